"""Read Parquet: open a file, measure its row groups, and read them in small batches.

What is needed of the footer is read here before pyarrow's metadata is: pyarrow 26 ends the process where a column chunk
is encrypted, and does not say so before. Source: parquet.thrift of apache/parquet-format (FileMetaData, RowGroup,
ColumnChunk, ColumnMetaData), in Thrift's compact protocol: the header of a field has its type in the low half of a
byte, and in the high half its distance to the field before, or 0 if its number follows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.text.forms import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC
from dsindex.text.tables.columns import check_names, joined_fields
from dsindex.text.tables.files import RowGroup, TableFile, check_range, errors_named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow.parquet as pq

_READ_BYTES = 1 << 20
"""Bytes of a column read at a time."""
_FIRST_ROWS, _MOST_ROWS = 16, 4096
"""Rows decoded at a time: the first, as their size is unknown, and the most."""
_MOST_LEAVES_AHEAD = 2
"""Columns that are read ahead next to each other, where the file is not on this machine."""
_BYTES_PER_INDEX = 8
"""A column with fewer bytes per row than this, and a dictionary, stays encoded until its rows are cut."""
_DATA_PAGES, _DICTIONARY_ENCODINGS = {0, 3}, {2, 8}
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
_FALSE, _BINARY, _LIST, _SET, _STRUCT = 2, 8, 9, 10, 12
_FIXED_BYTES = {1: 0, 2: 0, 3: 1, 7: 8, 13: 16}
"""Types of values of one size: true and false, which are the type itself, byte, double and UUID."""
_VARINTS = {4, 5, 6}
_GROUPS, _COLUMNS, _NUM_ROWS, _METADATA, _ENCRYPTION = 4, 1, 3, 3, {8, 9}
_CODEC, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET, _PAGES = 4, 5, 6, 7, 9, 11, 13
_CHUNK = {
    _METADATA: {
        **dict.fromkeys((_CODEC, _NUM_VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET)),
        _PAGES: dict.fromkeys((1, 2)),  # type and encoding
    },
    **dict.fromkeys(_ENCRYPTION),
}
"""What is kept of a column chunk."""
_END_BYTES = 8
"""Size of the footer, and the magic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    num_rows: int
    chunks: dict[int, dict[int, Any]]
    """Fields of ColumnMetaData, by the number of the stored column."""

    @property
    def text_bytes(self) -> int:
        return sum(int(chunk.get(_UNCOMPRESSED, 0)) for chunk in self.chunks.values())


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


def measure_parquet(
    file: TableFile, opened: pq.ParquetFile, fields: Sequence[tuple[str, ...]] | None
) -> list[RowGroup]:
    """Return the rows and bytes of each row group, as the footer claims them.

    Raises:
        InputError: If the footer is damaged, or a wanted column is encrypted or compressed in an unknown way.
    """
    groups = _read_groups(file, opened, _leaf_columns(opened, fields))
    for number, group in enumerate(groups):
        if group.num_rows < 0 or any(chunk.get(_UNCOMPRESSED, 0) < 0 for chunk in group.chunks.values()):
            msg = f"{file.path}: expected rows and sizes in row group {number}, got negative ones; fetch it again"
            raise InputError(msg)
    return [RowGroup(num_rows=group.num_rows, text_bytes=group.text_bytes) for group in groups]


def read_parquet(
    file: TableFile, begin: int, end: int, fields: Sequence[tuple[str, ...]] | None, batch_bytes: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the row groups [begin, end), about `batch_bytes` at a time, with the number of their group."""
    opened = open_parquet(file)
    columns = None
    if fields is not None:
        fields = [joined_fields(opened.schema_arrow, path) for path in fields]
        columns = [".".join(path) for path in fields]
    leaves = _leaf_columns(opened, fields)
    groups = _read_groups(file, opened, leaves)
    check_range(file.path, end, len(groups), "row groups")
    encoded = _encoded_columns(opened, groups[begin:end])
    if encoded and fields is not None:
        opened = open_parquet(file, encoded, opened.metadata)
    for number, group in enumerate(groups[begin:end], begin):
        if len(leaves) <= _MOST_LEAVES_AHEAD:
            file.expect_forwards([_chunk_range(chunk) for chunk in group.chunks.values()])
        what = f"a Parquet file with a readable row group {number}"
        with errors_named(file.path, what):
            batches = opened.iter_batches(_FIRST_ROWS, row_groups=[number], columns=columns, use_threads=False)
        missing = group.num_rows
        # A few rows may be much larger than those before them: as many as fit by the average never cost much time.
        average_rows = batch_bytes * group.num_rows // max(1, group.text_bytes)
        while True:
            with errors_named(file.path, what):
                rows = next(batches, None)
            if rows is None:
                break
            missing -= rows.num_rows
            yield number, rows
            fitting_rows = batch_bytes * rows.num_rows // max(1, rows.nbytes)
            most = min(2 * rows.num_rows, _MOST_ROWS, average_rows, fitting_rows)
            opened.reader.set_batch_size(max(1, most))
        if missing:
            raise InputError(
                f"{file.path}: expected {group.num_rows} rows in row group {number}, got {group.num_rows - missing}; "
                "the file is damaged, fetch or write it again"
            )


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


def _chunk_range(chunk: dict[int, Any]) -> tuple[int, int]:
    """Return where a column chunk is in the file, as the footer claims."""
    begin = min(filter(None, [chunk.get(_DICTIONARY_OFFSET), chunk.get(_DATA_OFFSET)]), default=0)
    return max(0, begin), begin + chunk.get(_COMPRESSED, 0)


def _encoded_columns(opened: pq.ParquetFile, groups: Sequence[_Group]) -> list[str]:
    """Return the strings that consist of a dictionary and indices: decoded, they can be thousands of times as large."""
    found = {
        leaf
        for group in groups
        for leaf, chunk in group.chunks.items()
        if _DICTIONARY_OFFSET in chunk
        and (
            chunk.get(_UNCOMPRESSED, 0) < _BYTES_PER_INDEX * chunk.get(_NUM_VALUES, 0)
            or {page.get(2) in _DICTIONARY_ENCODINGS for page in chunk.get(_PAGES, []) if page.get(1) in _DATA_PAGES}
            == {True}
        )
    }
    columns = [opened.metadata.schema.column(leaf) for leaf in sorted(found)]
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _read_groups(file: TableFile, opened: pq.ParquetFile, leaves: Collection[int]) -> list[_Group]:
    """Read the row groups of a file, with the chunks of the stored columns that are wanted.

    Raises:
        InputError: If the footer is damaged, or one of these columns is encrypted or compressed in an unknown way.
    """
    file.seek(file.size - _END_BYTES)
    size = int.from_bytes(file.read(4), "little")
    file.seek(max(0, file.size - _END_BYTES - size))
    wanted = frozenset(leaves)
    tree = {_GROUPS: {_NUM_ROWS: None, _COLUMNS: lambda column: _CHUNK if column in wanted else None}}
    try:
        footer, _ = _read_value(file.read(size), 0, _STRUCT, tree)
        groups = []
        for group in footer.get(_GROUPS, []):
            chunks = dict(enumerate(group.get(_COLUMNS, [])))
            columns = {leaf: chunks[leaf] for leaf in sorted(wanted) if leaf in chunks}
            metadata = {leaf: chunk.get(_METADATA, {}) for leaf, chunk in columns.items()}
            for leaf, chunk in columns.items():
                _check_chunk(file.path, opened, leaf, chunk)
            groups.append(_Group(num_rows=group.get(_NUM_ROWS, 0), chunks=metadata))
    except (IndexError, RecursionError, AttributeError, TypeError) as error:
        msg = f"{file.path}: expected a Parquet file with a readable footer; it is damaged, fetch or write it again"
        raise InputError(msg) from error
    return groups


def _check_chunk(path: str, opened: pq.ParquetFile, leaf: int, chunk: dict[int, Any]) -> None:
    codec = chunk.get(_METADATA, {}).get(_CODEC, 0)
    codec_name = _CODECS[codec] if 0 <= codec < len(_CODECS) else f"codec {codec}"
    if _ENCRYPTION & chunk.keys() or _METADATA not in chunk:
        name = opened.metadata.schema.column(leaf).path
        raise InputError(f"{path}: expected the column {name!r} without encryption; decrypt the file into a new one")
    if not _is_known_codec(codec_name):
        name = opened.metadata.schema.column(leaf).path
        raise InputError(
            f"{path}: expected the column {name!r} in a codec that pyarrow {pa.__version__} reads, got "
            f"{codec_name}; write the file again with zstd"
        )


@functools.cache
def _is_known_codec(name: str) -> bool:
    try:
        return name == "UNCOMPRESSED" or bool(pa.Codec.is_available(name.lower()))
    except ValueError:
        return False


def _read_value(data: bytes, place: int, kind: int, wanted: Any) -> tuple[Any, int]:  # noqa: ANN401 - any value of Thrift
    """Return a value and the place after it: a number, the wanted fields of a struct, or a list of either.

    Args:
        data: A footer.
        place: Where the value begins.
        kind: Its type.
        wanted: What to keep: for a struct, a dictionary by the number of the field; for a list, the same for all of its
            items, or a function that returns it for an item. None to skip the value, which costs no memory.

    Raises:
        IndexError: If the value ends behind the data.
        RecursionError: If values nest too deeply.
        TypeError: If it has a type that footers do not have.
    """
    if kind in _VARINTS:
        value, place = _read_varint(data, place)
        return (value >> 1) ^ -(value & 1), place
    if kind == _STRUCT:
        return _read_struct(data, place, wanted or {})
    if kind in {_LIST, _SET}:
        return _read_list(data, place, wanted)
    if kind == _BINARY:
        size, place = _read_varint(data, place)
        return None, place + size
    if kind not in _FIXED_BYTES:
        raise TypeError
    return None, place + _FIXED_BYTES[kind]


def _read_struct(data: bytes, place: int, wanted: dict[int, Any]) -> tuple[dict[int, Any], int]:
    found = {}
    number = 0
    while header := data[place]:
        place += 1
        if header >> 4:
            number += header >> 4
        else:
            number, place = _read_value(data, place, 4, None)
        kind = header & 15
        if number in wanted:
            found[number], place = _read_value(data, place, kind, wanted[number])
        elif kind in _VARINTS:  # most of a footer is skipped: without a call for a number or a text
            while data[place] >= 0x80:
                place += 1
            place += 1
        elif kind == _STRUCT:
            _, place = _read_struct(data, place, {})
        elif kind == _BINARY and data[place] < 0x80:
            place += 1 + data[place]
        else:
            _, place = _read_value(data, place, kind, None)
    return found, place + 1


def _read_list(data: bytes, place: int, wanted: Any) -> tuple[list[Any], int]:  # noqa: ANN401 - as above
    count, kind = data[place] >> 4, data[place] & 15
    place += 1
    if count == 15:
        count, place = _read_varint(data, place)
    if kind <= _FALSE:  # in a list, a boolean is a byte
        return [], place + count
    items = []
    for number in range(count):
        value, place = _read_value(data, place, kind, wanted(number) if callable(wanted) else wanted)
        if wanted is not None:
            items.append(value)
    return items, place


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of at most 64 bits, and the place after it."""
    if data[place] < 0x80:
        return data[place], place + 1
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise IndexError
