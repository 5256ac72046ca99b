"""Read the rows of a Parquet or Arrow file in batches that are small, or not copied, with the wanted columns only."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.text.tables.arrow_messages import (
    DICTIONARY,
    RECORD_BATCH,
    SCHEMA,
    Message,
    find_file_messages,
    find_stream_messages,
)
from dsindex.text.tables.columns import check_names, joined_fields
from dsindex.text.tables.files import TableFile, errors_named
from dsindex.text.tables.parquet_footer import ParquetGroup, check_magic, read_parquet_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.parquet as pq

    from dsindex.text.tables.files import Content

StoredFormat: TypeAlias = Literal["parquet", "arrow-file", "arrow-stream"]

_READ_BYTES = 1 << 20
"""Bytes of a Parquet column read at a time."""
_FIRST_ROWS, _MOST_ROWS = 16, 4096
"""Rows decoded at a time from Parquet: the first, as their size is unknown, and the most."""
_MOST_LEAVES_AHEAD = 2
"""Columns of Parquet that are read ahead next to each other, where the file is not on this machine."""
_BYTES_PER_INDEX = 8
"""A Parquet column with fewer bytes per row than this, and a dictionary, stays encoded until its rows are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBatch:
    """Consecutive rows of a row group or record batch."""

    rows: pa.RecordBatch
    group: int


def read_schema(file: TableFile, format: StoredFormat) -> pa.Schema:
    """Return all columns of a table.

    Raises:
        InputError: If the file is not a whole table of this format.
    """
    if format == "parquet":
        return open_parquet(file).schema_arrow
    data = file.content()
    return _arrow_schema(file.path, data, find_messages(file.path, data, format))


def read_batches(
    file: TableFile,
    begin: int,
    end: int,
    *,
    format: StoredFormat,
    fields: Sequence[tuple[str, ...]] | None,
    batch_bytes: int,
) -> Iterator[TableBatch]:
    """Yield the rows of the row groups or record batches [begin, end), in order.

    A batch of Parquet has about `batch_bytes`, if its rows are of similar sizes. A batch of Arrow is a whole record
    batch, whose memory is the mapped file unless it is compressed. Arrow's arrays are not validated.

    Args:
        file: The table.
        begin: Number of the first row group or record batch.
        end: Number after the last.
        format: The file's format.
        fields: Names of the fields that lead to each wanted column; None for all columns.
        batch_bytes: Bytes to decode at a time.

    Raises:
        InputError: If the file is damaged, or has fewer row groups.
    """
    if format == "parquet":
        return _read_parquet(file, begin, end, fields, batch_bytes)
    return _read_arrow(file, begin, end, format, fields)


def open_parquet(file: TableFile, dictionaries: Sequence[str] = (), metadata: object = None) -> pq.ParquetFile:
    """Open a Parquet file.

    Args:
        file: The file.
        dictionaries: Paths of the columns to leave encoded.
        metadata: Its footer, if it was read before.

    Raises:
        InputError: If it is cut off, damaged or encrypted.
    """
    import pyarrow.parquet as pq

    check_magic(file)
    with errors_named(file.path, "a Parquet file with a readable footer"):
        opened = pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            metadata=metadata,
            read_dictionary=list(dictionaries),
            pre_buffer=False,
            buffer_size=_READ_BYTES,
            page_checksum_verification=True,
        )
        check_names(opened.schema_arrow)
        return opened


def leaf_columns(opened: pq.ParquetFile, fields: Sequence[tuple[str, ...]] | None) -> list[int]:
    """Return the numbers of the stored columns of a Parquet file that the wanted columns consist of, None for all."""
    if fields is None:
        return list(range(len(opened.metadata.schema)))
    wanted = [".".join(path) for path in fields]
    schema = opened.metadata.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    return [
        number
        for number, path in enumerate(paths)
        if any(path == column or path.startswith(f"{column}.") for column in wanted)
    ]


def _read_parquet(
    file: TableFile, begin: int, end: int, fields: Sequence[tuple[str, ...]] | None, batch_bytes: int
) -> Iterator[TableBatch]:
    opened = open_parquet(file)
    columns = None
    if fields is not None:
        fields = [joined_fields(opened.schema_arrow, path) for path in fields]
        columns = [".".join(path) for path in fields]
    leaves = leaf_columns(opened, fields)
    groups = read_parquet_groups(file, leaves)
    _check_range(file.path, end, len(groups), "row groups")
    check_columns(file.path, opened, groups[begin:end])
    encoded = _encoded_columns(opened, groups[begin:end])
    if encoded and fields is not None:
        opened = open_parquet(file, encoded, opened.metadata)
    for number, group in enumerate(groups[begin:end], begin):
        if len(leaves) <= _MOST_LEAVES_AHEAD:
            file.expect_forwards([_chunk_range(opened, number, leaf) for leaf in leaves])
        what = f"a Parquet file with a readable row group {number}"
        with errors_named(file.path, what):
            batches = opened.iter_batches(_FIRST_ROWS, row_groups=[number], columns=columns, use_threads=False)
        missing = group.num_rows
        # A few rows may be much larger than those before them: as many as fit by the average never cost much time.
        group_bytes = sum(chunk.uncompressed_bytes for chunk in group.columns.values())
        average_rows = batch_bytes * group.num_rows // max(1, group_bytes)
        while True:
            with errors_named(file.path, what):
                rows = next(batches, None)
            if rows is None:
                break
            missing -= rows.num_rows
            yield TableBatch(rows=rows, group=number)
            fitting_rows = batch_bytes * rows.num_rows // max(1, rows.nbytes)
            most = min(2 * rows.num_rows, _MOST_ROWS, average_rows, fitting_rows)
            opened.reader.set_batch_size(max(1, most))
        if missing:
            msg = (
                f"{file.path}: expected {group.num_rows} rows in row group {number}, got {group.num_rows - missing}; "
                "the file is damaged, fetch or write it again"
            )
            raise InputError(msg)


def _chunk_range(opened: pq.ParquetFile, group: int, leaf: int) -> tuple[int, int]:
    """Return where a column of a row group is in the file, as the footer claims."""
    chunk = opened.metadata.row_group(group).column(leaf)
    begin = min(filter(None, [chunk.dictionary_page_offset, chunk.data_page_offset]), default=0)
    return max(0, begin), begin + chunk.total_compressed_size


def check_columns(path: str, opened: pq.ParquetFile, groups: Sequence[ParquetGroup]) -> None:
    """Refuse columns that are encrypted, or compressed in an unknown way.

    Raises:
        InputError: Naming the column.
    """
    for group in groups:
        for leaf, chunk in group.columns.items():
            if chunk.is_encrypted:
                name = opened.metadata.schema.column(leaf).path
                msg = f"{path}: expected the column {name!r} without encryption; decrypt the file into a new one"
                raise InputError(msg)
            if not _is_known_codec(chunk.codec_name):
                name = opened.metadata.schema.column(leaf).path
                msg = (
                    f"{path}: expected the column {name!r} in a codec that pyarrow {pa.__version__} reads, got "
                    f"{chunk.codec_name}; write the file again with zstd"
                )
                raise InputError(msg)


@functools.cache
def _is_known_codec(name: str) -> bool:
    try:
        return name == "UNCOMPRESSED" or bool(pa.Codec.is_available(name.lower()))
    except ValueError:
        return False


def _encoded_columns(opened: pq.ParquetFile, groups: Sequence[ParquetGroup]) -> list[str]:
    """Return the strings that consist of a dictionary and indices: decoded, they can be thousands of times as large."""
    found = {
        leaf
        for group in groups
        for leaf, chunk in group.columns.items()
        if chunk.has_dictionary
        and (chunk.is_all_dictionary or chunk.uncompressed_bytes < _BYTES_PER_INDEX * chunk.num_values)
    }
    columns = [opened.metadata.schema.column(leaf) for leaf in sorted(found)]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def find_messages(path: str, data: Content, format: StoredFormat) -> list[Message]:
    """Find the messages of an Arrow file or stream, the schema first.

    Raises:
        InputError: If one is damaged or cut off.
    """
    return (find_file_messages if format == "arrow-file" else find_stream_messages)(path, data)


def _read_arrow(
    file: TableFile, begin: int, end: int, format: StoredFormat, fields: Sequence[tuple[str, ...]] | None
) -> Iterator[TableBatch]:
    data = file.content()
    messages = find_messages(file.path, data, format)
    batches = [number for number, message in enumerate(messages) if message.kind == RECORD_BATCH]
    _check_range(file.path, end, len(batches), "record batches")
    if begin == end:
        return
    # Dictionaries may be replaced on the way: all those before a record batch count.
    skipped = [message for message in messages[: batches[begin]] if message.kind in {SCHEMA, DICTIONARY}]
    pieces = _Pieces(data, [*skipped, *messages[batches[begin] : batches[end - 1] + 1]])
    schema = _arrow_schema(file.path, data, messages)
    file.expect_forwards([(messages[batches[begin]].begin, messages[batches[end - 1]].end)])
    with errors_named(file.path, "an Arrow file with a readable schema"):
        reader = pa.ipc.open_stream(pa.PythonFile(pieces, mode="r"), options=_wanted(schema, fields))
    for group, number in enumerate(batches[begin:end], begin):
        file.check_size()
        with errors_named(file.path, f"an Arrow file with a readable record batch {group}"):
            rows = next(reader, None)
            if rows is None:
                msg = "the end of the stream"
                raise pa.ArrowInvalid(msg)
            rows.validate()
        yield TableBatch(rows=rows, group=group)
        file.release(messages[number].begin, messages[number].end)


def _arrow_schema(path: str, data: Content, messages: Sequence[Message]) -> pa.Schema:
    with errors_named(path, "an Arrow file with a readable schema"):
        schema = pa.ipc.open_stream(pa.PythonFile(_Pieces(data, messages[:1]), mode="r")).schema
        check_names(schema)
        return schema


class _Pieces:
    """Messages of a stream, one after the other, as a file that pyarrow reads without copies."""

    def __init__(self, data: Content, messages: Sequence[Message]) -> None:
        self.closed = False
        self._data = data
        self._ranges = [(message.begin, message.end) for message in reversed(messages)]

    def read(self, num_bytes: int) -> memoryview:
        """Return up to `num_bytes` bytes, not beyond the end of a message: pyarrow reads no more of one than it has."""
        if not self._ranges:
            return self._data[:0]
        begin, end = self._ranges.pop()
        cut = min(end, begin + num_bytes)
        if cut < end:
            self._ranges.append((cut, end))
        return self._data[begin:cut]

    read_buffer = read

    def close(self) -> None:
        """Do nothing."""


def _wanted(schema: pa.Schema, fields: Sequence[tuple[str, ...]] | None) -> pa.ipc.IpcReadOptions:
    """Return options to read the wanted columns only, and in one thread."""
    if fields is None:
        return pa.ipc.IpcReadOptions(use_threads=False)
    names = {joined_fields(schema, path)[0] for path in fields}
    numbers = [number for number, name in enumerate(schema.names) if name in names]
    return pa.ipc.IpcReadOptions(use_threads=False, included_fields=numbers)


def _check_range(path: str, end: int, num_groups: int, what: str) -> None:
    if end > num_groups:
        msg = (
            f"{path}: expected at least {end} {what}, got {num_groups}; the file changed since the job was planned, "
            "run it again from the start"
        )
        raise InputError(msg)
