"""Tables of all formats: their columns, the rows and bytes of their parts, and the rows of some parts in batches."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.store.types import RANGE_BYTES
from dsindex.text.forms import ARROW_FILE_MAGIC, CONTINUATION, ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC
from dsindex.text.tables.files import (
    RowGroup,
    TableFile,
    check_names,
    check_range,
    errors_named,
    find_columns,
    is_list,
    is_text,
    joined_fields,
    nested_column,
    open_table,
    require_different_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow.parquet as pq

    from dsindex.text.forms import TableFormat, TextPart
    from dsindex.text.tables.files import Content, TableFile

    Columns = Mapping[str, tuple[str, ...]]
    """Names of the fields that lead to each wanted column, by its name."""


# Read Arrow IPC files and streams; find and measure their messages by the headers, without the bodies.
#
# pyarrow reads a stream's messages with their bodies, of which a plan needs nothing, and does not say where they are.
#
# Source: the columnar format's "Serialization and Interprocess Communication", and its _Message.fbs and File.fbs.
# Headers are flatbuffers: a table begins with the distance back to its vtable, which holds the offset of each field, or
# 0.

_SCHEMA, _DICTIONARY, _RECORD_BATCH = 1, 2, 3
"""Types of headers."""
_PREFIX_BYTES = 8
_FILE_BEGIN_BYTES = 8
_MEASURED_BATCHES = 16
"""Record batches among which one is read to estimate the size of the others, unless all are too large."""
_MOST_MEASURED_BYTES = 64 << 20
_FILE_END_BYTES = 4 + len(ARROW_FILE_MAGIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """Where a message is in its file."""

    kind: int
    begin: int
    """Position of its first byte."""
    body: int
    """Position of its body."""
    end: int
    """Position after its body."""
    num_rows: int
    """Rows of a record batch; 0 for others."""


def read_arrow_schema(file: TableFile) -> pa.Schema:
    """Return all columns of a file or stream.

    Raises:
        InputError: If it is damaged or cut off.
    """
    data = file.content()
    return _read_schema(file.path, data, _find_messages(file.path, data))


def measure_arrow(file: TableFile, columns: Columns | None) -> list[RowGroup]:
    """Return the rows of each record batch, and about the bytes of the wanted columns, None for all.

    The smallest of the first batches shows how large they are in memory beside the stored batch.

    Raises:
        InputError: If a header or that batch is damaged.
    """
    data = file.content()
    batches = [message for message in _find_messages(file.path, data) if message.kind == _RECORD_BATCH]
    groups = [RowGroup(num_rows=message.num_rows, text_bytes=message.end - message.body) for message in batches]
    if len(groups) < 2:
        return groups
    number = min(range(min(len(groups), _MEASURED_BATCHES)), key=lambda number: groups[number].text_bytes)
    if groups[number].text_bytes > _MOST_MEASURED_BYTES:
        return groups
    fields = None if columns is None else tuple(columns.values())
    [(_, rows)] = read_arrow(file, number, number + 1, fields)
    places = None if columns is None else find_columns(file.path, rows.schema, columns).values()
    found = rows.columns if places is None else [nested_column(rows, place) for place in places]
    share = Fraction(sum(column.nbytes for column in found), max(1, groups[number].text_bytes))
    return [replace(group, text_bytes=int(group.text_bytes * share)) for group in groups]


def read_arrow(
    file: TableFile, begin: int, end: int, fields: Sequence[tuple[str, ...]] | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the record batches [begin, end), which are not validated, with their numbers.

    Their memory is the mapped file unless they are compressed.
    """
    data = file.content()
    messages = _find_messages(file.path, data)
    batches = [number for number, message in enumerate(messages) if message.kind == _RECORD_BATCH]
    check_range(file.path, end, len(batches), "record batches")
    if begin == end:
        return
    # Dictionaries may be replaced on the way: all those before a record batch count.
    skipped = [message for message in messages[: batches[begin]] if message.kind in {_SCHEMA, _DICTIONARY}]
    pieces = _Pieces(data, [*skipped, *messages[batches[begin] : batches[end - 1] + 1]])
    schema = _read_schema(file.path, data, messages)
    file.expect_forwards([(messages[batches[begin]].begin, messages[batches[end - 1]].end)])
    with errors_named(file.path, "an Arrow file with a readable schema"):
        reader = pa.ipc.open_stream(pa.PythonFile(pieces, mode="r"), options=_wanted(schema, fields))
    for group, number in enumerate(batches[begin:end], begin):
        file.check_size()
        with errors_named(file.path, f"an Arrow file with a readable record batch {group}"):
            rows = next(reader, None)
            if rows is None:
                raise pa.ArrowInvalid("the end of the stream")
            rows.validate()
        yield group, rows
        file.release(messages[number].begin, messages[number].end)


def _read_schema(path: str, data: Content, messages: Sequence[_Message]) -> pa.Schema:
    with errors_named(path, "an Arrow file with a readable schema"):
        schema = pa.ipc.open_stream(pa.PythonFile(_Pieces(data, messages[:1]), mode="r")).schema
        check_names(schema)
        return schema


class _Pieces:
    """Messages of a stream, one after the other, as a file that pyarrow reads without copies."""

    def __init__(self, data: Content, messages: Sequence[_Message]) -> None:
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


def _find_messages(path: str, data: Content) -> list[_Message]:
    """Find the messages of a stream, up to its end mark or the end of the file, the schema first.

    An Arrow file holds a stream between its magic and a footer.

    Raises:
        InputError: If a message is cut off or is none, or the first is not a schema.
    """
    begin, end, what = 0, len(data), "stream"
    if data[: len(ARROW_FILE_MAGIC)] == ARROW_FILE_MAGIC:
        begin, end, what = _FILE_BEGIN_BYTES, len(data) - _FILE_END_BYTES, "file"
        if data[-len(ARROW_FILE_MAGIC) :] != ARROW_FILE_MAGIC or end < begin:
            msg = f"{path}: expected an Arrow file that ends with a footer; it is cut off, fetch or write it again"
            raise InputError(msg)
        while data[begin : begin + 8] == bytes(8):  # arrow-rs aligns messages to 64 bytes
            begin += 8
    messages: list[_Message] = []
    position = begin
    while position < end:
        place = f"message {len(messages) + 1} at byte {position}"
        if end - position < _PREFIX_BYTES:
            raise _cut_off(path, place)
        if data[position : position + 4] != CONTINUATION:
            msg = f"{path}: expected an Arrow {what}, got something else as {place}; fetch or write the file again"
            raise InputError(msg)
        if struct.unpack("<i", data[position + 4 : position + 8])[0] == 0:
            break
        messages.append(_read_message(path, data, position, place))
        position = messages[-1].end
    if not messages or messages[0].kind != _SCHEMA or any(message.kind == _SCHEMA for message in messages[1:]):
        msg = f"{path}: expected an Arrow {what} that begins with its one schema; fetch or write the file again"
        raise InputError(msg)
    return messages


def _read_message(path: str, data: Content, position: int, place: str) -> _Message:
    (size,) = struct.unpack("<i", data[position + 4 : position + 8])
    body = position + _PREFIX_BYTES + size
    if size <= 0 or body > len(data):
        raise _cut_off(path, place)
    try:
        root = _root(data[position + _PREFIX_BYTES : body])
        kind, body_bytes, header = root.scalar(1, "<B"), root.scalar(3, "<q"), root.table(2)
        num_rows = header.scalar(0, "<q") if kind == _RECORD_BATCH and header is not None else 0
        if num_rows < 0:
            raise struct.error("a negative number of rows")
    except struct.error as error:
        raise InputError(f"{path}: expected {place}, got a damaged header; fetch or write the file again") from error
    if body_bytes < 0 or body_bytes > len(data) - body:
        raise _cut_off(path, place)
    return _Message(kind=kind, begin=position, body=body, end=body + body_bytes, num_rows=num_rows)


def _cut_off(path: str, place: str) -> InputError:
    return InputError(f"{path}: expected a whole {place}, got the end of the file; it is cut off, fetch it again")


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer; every read outside the buffer is a struct.error."""

    data: memoryview
    position: int

    def scalar(self, field: int, code: str) -> int:
        """Return a number, 0 if the field is absent."""
        place = self._place(field)
        return 0 if place is None else _unpack(self.data, code, place)

    def table(self, field: int) -> _Table | None:
        """Return a table inside this one, None if the field is absent."""
        place = self._place(field)
        return None if place is None else _Table(self.data, place + _unpack(self.data, "<I", place))

    def _place(self, field: int) -> int | None:
        vtable = self.position - _unpack(self.data, "<i", self.position)
        entry = 4 + 2 * field
        offset = _unpack(self.data, "<H", vtable + entry) if entry < _unpack(self.data, "<H", vtable) else 0
        return self.position + offset if offset else None


def _root(data: memoryview) -> _Table:
    return _Table(data, _unpack(data, "<I", 0))


def _unpack(data: memoryview, code: str, position: int) -> int:
    if position < 0:  # struct would count from the end
        raise struct.error("a position before the start")
    number: int = struct.unpack_from(code, data, position)[0]
    return number


# Read Parquet: open a file, measure its row groups, and read them in small batches.

_READ_BYTES = 1 << 20
"""Bytes of a column read at a time."""
_FIRST_ROWS, _MOST_ROWS = 16, 4096
"""Rows decoded at a time: the first, as their size is unknown, and the most."""
_GAP_BYTES = 64 << 10
"""Bytes of other columns that are read along rather than by-passed with another request, beside a quarter of the next
chunk."""
_RANGES_AT_ONCE = 2
"""Ranges of one row group that are read ahead next to each other, where the file is not on this machine."""
_MOST_AHEAD, _BYTES_AHEAD = 16, 2 * RANGE_BYTES
"""Ranges of row groups that are requested before their turn, and their bytes."""
_FOOTER_BYTES = 16 << 20
"""Footers of the files that were read last, kept for the next parts of the same files; the last one of any size."""
_BYTES_PER_INDEX, _LARGEST_DICTIONARY = 4, 16 << 20
"""A column with a dictionary stays encoded until its rows are cut; writers limit dictionaries to about 1 MiB."""


class _Footers:
    """The footers of the files that were read last, by the files' identities."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, int], pq.FileMetaData] = OrderedDict()
        self._num_bytes = 0

    def get(self, identity: tuple[str, str, int]) -> pq.FileMetaData | None:
        """Return a footer that is kept."""
        return self._kept.get(identity)

    def keep(self, identity: tuple[str, str, int], footer: pq.FileMetaData) -> None:
        """Keep a footer, and drop the oldest where there are too many."""
        with self._lock:
            if identity not in self._kept:
                self._kept[identity] = footer
                self._num_bytes += footer.serialized_size
            while len(self._kept) > 1 and self._num_bytes > _FOOTER_BYTES:
                self._num_bytes -= self._kept.popitem(last=False)[1].serialized_size


_footers = _Footers()


def open_parquet(file: TableFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file.

    Args:
        file: The file.
        dictionaries: Paths of the columns to leave encoded.

    Raises:
        InputError: If it is cut off, damaged or encrypted.
    """
    import pyarrow.parquet as pq

    known = _footers.get(file.identity)
    if known is None:
        _check_magic(file)
    with errors_named(file.path, "a Parquet file with a readable footer"):
        opened = pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            metadata=known,
            read_dictionary=list(dictionaries),
            pre_buffer=False,
            buffer_size=_READ_BYTES,
            page_checksum_verification=True,
        )
        check_names(opened.schema_arrow)
    if known is None:
        _footers.keep(file.identity, opened.metadata)
    return opened


def _check_magic(file: TableFile) -> None:
    file.seek(0)
    head = file.read(4)
    file.seek(max(0, file.size - 4))
    tail = file.read(4)
    if tail == ENCRYPTED_PARQUET_MAGIC:
        msg = f"{file.path}: expected a Parquet file without encryption, got an encrypted one; decrypt it to a new file"
        raise InputError(msg)
    if head != PARQUET_MAGIC or tail != PARQUET_MAGIC or file.size < 3 * 4:
        msg = f"{file.path}: expected a whole Parquet file, got one that does not end as it should; fetch it again"
        raise InputError(msg)


def measure_parquet(
    file: TableFile, opened: pq.ParquetFile, fields: Sequence[tuple[str, ...]] | None
) -> list[RowGroup]:
    """Return the rows and bytes of each row group, as the footer claims them.

    Raises:
        InputError: If the footer is damaged, or a wanted column is encrypted or compressed in an unknown way.
    """
    groups = []
    leaves = _leaf_columns(opened, fields)
    for number in range(opened.metadata.num_row_groups):
        num_rows = opened.metadata.row_group(number).num_rows
        sizes = [chunk.total_uncompressed_size for chunk in _chunks(file.path, opened, number, leaves)]
        if min(num_rows, *sizes, 0) < 0:
            msg = f"{file.path}: expected rows and sizes in row group {number}, got negative ones; fetch it again"
            raise InputError(msg)
        groups.append(RowGroup(num_rows=num_rows, text_bytes=sum(sizes)))
    return groups


def _read_parquet(
    file: TableFile,
    opened: pq.ParquetFile,
    begin: int,
    end: int,
    fields: Sequence[tuple[str, ...]] | None,
    batch_bytes: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the row groups [begin, end), about `batch_bytes` at a time, with the number of their group."""
    columns = None
    if fields is not None:
        fields = [joined_fields(opened.schema_arrow, path) for path in fields]
        columns = [".".join(path) for path in fields]
    leaves = _leaf_columns(opened, fields)
    check_range(file.path, end, opened.metadata.num_row_groups, "row groups")
    groups = [_chunks(file.path, opened, number, leaves) for number in range(begin, end)]
    encoded = [
        opened.metadata.schema.column(leaf).path
        for leaf, chunks in zip(leaves, zip(*groups, strict=True), strict=True)
        if any(map(_stays_encoded, chunks))
    ]
    if encoded and fields is not None:
        opened = open_parquet(file, encoded)
    # Who reads a sample may want no more than its first rows.
    read_ahead = groups[:1] if file.is_sampled else groups
    ahead = _ReadAhead(file, plan_ranges([list(map(_chunk_range, chunks)) for chunks in read_ahead]))
    for number, chunks in enumerate(groups, begin):
        ahead.come_to(number - begin)
        num_rows = opened.metadata.row_group(number).num_rows
        what = f"a Parquet file with a readable row group {number}"
        with errors_named(file.path, what):
            batches = opened.iter_batches(_FIRST_ROWS, row_groups=[number], columns=columns, use_threads=False)
        missing = num_rows
        # A few rows may be much larger than those before them: as many as fit by the average never cost much time.
        plain_bytes = sum(chunk.total_uncompressed_size for chunk in chunks if not _stays_encoded(chunk))
        average_rows = batch_bytes * num_rows // max(1, plain_bytes)
        while True:
            with errors_named(file.path, what):
                rows = next(batches, None)
            if rows is None:
                break
            missing -= rows.num_rows
            yield number, rows
            dictionary_bytes = sum(map(_dictionary_bytes, rows.columns))
            fitting_rows = batch_bytes * rows.num_rows // max(1, rows.nbytes - dictionary_bytes)
            growth = 16 if dictionary_bytes else 2
            most = min(growth * rows.num_rows, _MOST_ROWS, average_rows, fitting_rows)
            opened.reader.set_batch_size(max(1, most))
        if missing:
            raise InputError(
                f"{file.path}: expected {num_rows} rows in row group {number}, got {num_rows - missing}; "
                "the file is damaged, fetch or write it again"
            )


def _dictionary_bytes(column: pa.Array) -> int:
    """Return the size of stored dictionaries, which pyarrow makes anew for each batch, however few its rows are."""
    if pa.types.is_struct(column.type):
        return sum(map(_dictionary_bytes, column.flatten()))
    if is_list(column.type):
        return _dictionary_bytes(column.values)
    is_stored = pa.types.is_dictionary(column.type) and len(column.dictionary) > len(column)
    return int(column.dictionary.nbytes) if is_stored else 0


def plan_ranges(groups: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return which ranges of a file to request for its row groups, in order.

    Neighbours are one range where little is between them and a single request can have both: requests cost the same for
    every size.

    Args:
        groups: For each row group, where its wanted column chunks begin and end.

    Returns:
        Number of the first row group that needs them, and ranges; row groups that share a range are one entry.

    >>> plan_ranges([[(4, 90_000)], [(99_000, 200_000)], [(210_000, 300_000)], [(9_000_000, 9_100_000)]])
    [(0, [(4, 300000)]), (3, [(9000000, 9100000)])]
    """
    planned: list[tuple[int, list[tuple[int, int]]]] = []
    for number, chunks in enumerate(groups):
        ranges: list[tuple[int, int]] = []
        for chunk in sorted(chunks):
            if not _lengthen(ranges, chunk):
                ranges.append(chunk)
        before = planned[-1][1] if planned else []
        if not (len(before) == len(ranges) == 1 and _lengthen(before, ranges[0])):
            planned.append((number, ranges))
    return planned


def _lengthen(ranges: list[tuple[int, int]], new: tuple[int, int]) -> bool:
    """Lengthen the last range up to the end of a new one, if that is worth it."""
    if not ranges:
        return False
    begin, end = ranges[-1]
    is_near = 0 <= new[0] - end <= max(_GAP_BYTES, (new[1] - new[0]) // 4)
    if is_near and new[1] - begin <= RANGE_BYTES:
        ranges[-1] = (begin, new[1])
        return True
    return False


class _ReadAhead:
    """Requests the ranges of row groups before their turn, a few at a time."""

    def __init__(self, file: TableFile, planned: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        self._file = file
        self._left = deque(planned)
        self._requested: deque[tuple[int, Sequence[tuple[int, int]]]] = deque()

    def come_to(self, group: int) -> None:
        """Note that the row group `group` is read next."""
        while len(self._requested) > 1 and self._requested[1][0] <= group:
            self._requested.popleft()
        while self._left and len(self._left[0][1]) <= _RANGES_AT_ONCE:
            sizes = [end - begin for _, ranges in (*self._requested, self._left[0]) for begin, end in ranges]
            if self._left[0][0] > group and (len(sizes) > _MOST_AHEAD or sum(sizes) > _BYTES_AHEAD):
                break
            self._file.expect_forwards(self._left[0][1])
            self._requested.append(self._left.popleft())


def _leaf_columns(opened: pq.ParquetFile, fields: Sequence[tuple[str, ...]] | None) -> list[int]:
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


def _chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk is in the file, as the footer claims."""
    begin = min(filter(None, [chunk.dictionary_page_offset, chunk.data_page_offset]), default=0)
    return max(0, begin), begin + chunk.total_compressed_size


def _stays_encoded(chunk: pq.ColumnChunkMetaData) -> bool:
    """Tell whether a chunk is a dictionary of strings and indices: decoded, it can be thousands of times as large."""
    if chunk.physical_type != "BYTE_ARRAY" or not chunk.has_dictionary_page:
        return False
    data_bytes = chunk.total_compressed_size - (chunk.data_page_offset - chunk.dictionary_page_offset)
    is_full = chunk.total_uncompressed_size > _LARGEST_DICTIONARY  # strings follow the indices
    return bool(
        (data_bytes < _BYTES_PER_INDEX * chunk.num_values and not is_full)
        or chunk.total_uncompressed_size < 2 * _BYTES_PER_INDEX * chunk.num_values
        or "PLAIN" not in chunk.encodings
    )


def _chunks(path: str, opened: pq.ParquetFile, group: int, leaves: Sequence[int]) -> list[pq.ColumnChunkMetaData]:
    """Return what the footer says about the stored columns that are wanted in a row group.

    Raises:
        InputError: If one of them is damaged, encrypted or compressed in an unknown way.
    """
    with errors_named(path, f"a Parquet file with a readable row group {group}"):
        try:
            _open_columns(opened, group, leaves)
        except OSError:
            for leaf in leaves:
                _check_column(path, opened, group, leaf)
            raise
        row_group = opened.metadata.row_group(group)
        return [row_group.column(leaf) for leaf in leaves]


def _open_columns(opened: pq.ParquetFile, group: int, leaves: Sequence[int]) -> None:
    """Raise what reading raises, but read nothing: pyarrow's metadata ends the process at an encrypted column."""
    if leaves:
        next(opened.reader.iter_batches(0, [group], column_indices=leaves, use_threads=False), None)


def _check_column(path: str, opened: pq.ParquetFile, group: int, leaf: int) -> None:
    name = opened.metadata.schema.column(leaf).path
    try:
        _open_columns(opened, group, [leaf])
    except OSError as error:
        if "crypt" in str(error):
            msg = f"{path}: expected the column {name!r} without encryption; decrypt the file into a new one"
            raise InputError(msg) from error
        if any(word in str(error).lower() for word in ("codec", "compression")):
            raise InputError(
                f"{path}: expected the column {name!r} in a codec that pyarrow {pa.__version__} reads, got another "
                f"({error}); write the file again with zstd"
            ) from error
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows of a row group or record batch; Arrow's arrays are not validated."""

    group: int
    first_row: int
    """Number of the first row, counted from 0 at the start of the range."""
    batch: pa.RecordBatch
    columns: dict[str, pa.Array]
    """The wanted columns by name."""


def measure_table(
    path: str,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    *,
    expected_size: int | None = None,
) -> Sequence[RowGroup]:
    """Check that a table has the wanted columns, and measure its row groups or record batches, in order.

    Args:
        path: A regular file.
        format: The file's format.
        columns: Names of the fields that lead to each wanted column, by its name; None for all columns.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file is damaged, encrypted or compressed in an unknown way, or a column is missing or of
            another type.
    """
    with open_table(path, expected_size) as file:
        if format == "parquet":
            opened = open_parquet(file)
            schema = opened.schema_arrow
        else:
            schema = read_arrow_schema(file)
        if columns is not None:
            find_columns(path, schema, columns)
        if format == "parquet":
            paths = None if columns is None else [joined_fields(schema, fields) for fields in columns.values()]
            return measure_parquet(file, opened, paths)
        return measure_arrow(file, columns)


def read_rows(
    part: TextPart,
    columns: Columns | None,
    *,
    batch_bytes: int,
    purpose: str,
    is_wanted: Callable[[pa.DataType], bool] = is_text,
) -> Iterator[Rows]:
    """Yield the rows of the row groups or record batches of a part, in order.

    A batch of Parquet has about `batch_bytes`, if its rows are of similar sizes. A batch of Arrow is a whole record
    batch, whose memory is the mapped file unless it is compressed.

    Args:
        part: A part of a table.
        columns: The wanted columns; None for all.
        batch_bytes: Bytes to decode at a time.
        purpose: What is expected, such as `a table with readable texts`, for errors.
        is_wanted: Tells whether a column's type is acceptable.

    Raises:
        InputError: If the file is damaged, has fewer row groups, lacks a column or changes while it is read.
    """
    path, format = part.path, cast("TableFormat", part.form.format)
    if part.begin == part.end:
        return
    with open_table(path, part.expected_size) as file:
        file.is_sampled = part.is_sample
        opened = open_parquet(file) if format == "parquet" else None
        schema = read_arrow_schema(file) if opened is None else opened.schema_arrow
        if columns is None:
            require_different_names(path, schema)
        else:
            find_columns(path, schema, columns, is_wanted=is_wanted)
        fields = None if columns is None else tuple(columns.values())
        if opened is not None:
            batches = _read_parquet(file, opened, part.begin, part.end, fields, batch_bytes)
        else:
            batches = read_arrow(file, part.begin, part.end, fields)
        row = 0
        for group, batch in batches:
            with errors_named(path, f"{purpose} in row group {group}"):
                if columns is None:
                    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                else:
                    places = find_columns(path, batch.schema, columns, is_wanted=is_wanted)
                    arrays = {name: nested_column(batch, places[name]) for name in columns}
            yield Rows(group=group, first_row=row, batch=batch, columns=arrays)
            row += batch.num_rows
