"""Read what is needed of a Parquet file's footer without pyarrow, which ends the process at encrypted columns.

Source: parquet.thrift of apache/parquet-format (FileMetaData, RowGroup, ColumnChunk, ColumnMetaData), in Thrift's
compact protocol: the header of a field has its type in the low half of a byte, and in the high half its distance to the
field before, or 0 if its number follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.text.tables.formats import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from dsindex.text.tables.files import TableFile

CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")
"""Names of the codecs, by number."""
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_FIXED_BYTES = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
"""Types of fields whose values have always the same size; a boolean is the type itself."""
_VARINTS = {4, 5, 6}
"""Types of integers."""
_DATA_PAGES = {0, 3}
_DICTIONARY_ENCODINGS = {2, 8}
_MAX_NESTING = 64
_END_BYTES = 8
"""Size of the footer, and the magic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """A column in a row group."""

    codec: int = 0
    num_values: int = 0
    uncompressed_bytes: int = 0
    has_dictionary: bool = False
    is_all_dictionary: bool = False
    """Whether every page of values consists of indices, as far as the footer says."""
    is_encrypted: bool = False

    @property
    def codec_name(self) -> str:
        """The name of the codec."""
        return CODECS[self.codec] if 0 <= self.codec < len(CODECS) else f"codec {self.codec}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetGroup:
    """A row group."""

    num_rows: int
    columns: dict[int, ColumnChunk]
    """The columns that were asked for, by their number."""


def check_magic(file: TableFile) -> None:
    """Check both ends of a file.

    Raises:
        InputError: If they are not those of a Parquet file, or the footer is encrypted.
    """
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


def read_parquet_groups(file: TableFile, columns: Collection[int]) -> list[ParquetGroup]:
    """Read the row groups of a Parquet file that pyarrow has opened.

    Args:
        file: The file.
        columns: Numbers of the stored columns that matter.

    Raises:
        InputError: If the footer is damaged.
    """
    file.seek(file.size - _END_BYTES)
    size = int.from_bytes(file.read(4), "little")
    file.seek(max(0, file.size - _END_BYTES - size))
    try:
        return list(_row_groups(_Reader(file.read(size)), columns))
    except (IndexError, struct.error, RecursionError) as error:
        msg = f"{file.path}: expected a Parquet file with a readable footer; it is damaged, fetch or write it again"
        raise InputError(msg) from error


class _Reader:
    """A position in a buffer of Thrift's compact protocol; reading behind the end is an IndexError."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def byte(self) -> int:
        value = self.data[self.position]
        self.position += 1
        return value

    def varint(self) -> int:
        value, self.position = _varint(self.data, self.position)
        return value

    def integer(self) -> int:
        """Read a signed number, which alternates: 0, -1, 1, -2."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield the number and type of each field of a struct; the caller reads or skips the value."""
        number = 0
        while header := self.byte():
            number = number + (header >> 4) if header >> 4 else self.integer()
            yield number, header & 15

    def items(self) -> tuple[int, int]:
        """Read the header of a list: the number and type of the items."""
        header = self.byte()
        return (self.varint() if header >> 4 == 15 else header >> 4), header & 15

    def skip(self, kind: int) -> None:
        """Skip the value of a field."""
        self.position = _skip(self.data, self.position, kind, 0)


def _skip(data: bytes, position: int, kind: int, depth: int) -> int:
    """Return the position after the value of a field; most of a footer is skipped, so this makes no calls for numbers.

    Raises:
        IndexError: If the value ends behind the data.
        RecursionError: If values nest too deeply.
    """
    if depth > _MAX_NESTING:
        raise RecursionError
    if kind == _STRUCT:
        while header := data[position]:
            position += 1
            if header < 16:  # the field's number follows
                position = _skip_varint(data, position)
            kind = header & 15
            if kind in _VARINTS:
                while data[position] >= 0x80:
                    position += 1
                position += 1
            else:
                position = _skip(data, position, kind, depth + 1)
        return position + 1
    if kind == _BINARY:
        size, position = _varint(data, position)
        return position + size
    if kind in {_LIST, _SET, _MAP}:
        return _skip_items(data, position, kind, depth + 1)
    return position + _FIXED_BYTES[kind] if kind in _FIXED_BYTES else _skip_varint(data, position)


def _skip_items(data: bytes, position: int, kind: int, depth: int) -> int:
    """Return the position after a list or map; a boolean in it is a byte."""
    header = data[position]
    if kind == _MAP:
        count, position = _varint(data, position)
        if count == 0:
            return position
        kinds = [data[position] >> 4, data[position] & 15]
        position += 1
    else:
        count, position = _varint(data, position + 1) if header >> 4 == 15 else (header >> 4, position + 1)
        kinds = [header & 15]
    for _ in range(count):
        for item in kinds:
            position = position + 1 if item <= _FALSE else _skip(data, position, item, depth)
        if position > len(data):
            raise IndexError
    return position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number without a sign, and the position after it."""
    value = data[position]
    if value < 0x80:
        return value, position + 1
    end = _skip_varint(data, position)
    value = 0
    for byte in reversed(data[position:end]):
        value = value << 7 | byte & 0x7F
    return value, end


def _skip_varint(data: bytes, position: int) -> int:
    """Return the position after a number of at most 64 bits."""
    for end in range(position + 1, position + 11):
        if data[end - 1] < 0x80:
            return end
    msg = "a number that is too long"
    raise struct.error(msg)


def _row_groups(reader: _Reader, wanted: Collection[int]) -> Iterator[ParquetGroup]:
    for number, kind in reader.fields():
        if (number, kind) == (4, _LIST):
            for _ in range(reader.items()[0]):
                yield _row_group(reader, wanted)
        else:
            reader.skip(kind)


def _row_group(reader: _Reader, wanted: Collection[int]) -> ParquetGroup:
    num_rows, columns = 0, {}
    for number, kind in reader.fields():
        if (number, kind) == (1, _LIST):
            for column in range(reader.items()[0]):
                if column in wanted:
                    columns[column] = _column_chunk(reader)
                else:
                    reader.skip(_STRUCT)
        elif number == 3:
            num_rows = reader.integer()
        else:
            reader.skip(kind)
    return ParquetGroup(num_rows=num_rows, columns=columns)


def _column_chunk(reader: _Reader) -> ColumnChunk:
    values: dict[int, int] = {}
    pages: list[bool | None] = []
    is_encrypted = has_metadata = False
    for number, kind in reader.fields():
        if (number, kind) == (3, _STRUCT):
            has_metadata = True
            for inner, inner_kind in reader.fields():
                if inner in {4, 5, 6, 11}:
                    values[inner] = reader.integer()
                elif (inner, inner_kind) == (13, _LIST):
                    pages = [_page_encoding(reader) for _ in range(reader.items()[0])]
                else:
                    reader.skip(inner_kind)
        else:
            is_encrypted |= number in {8, 9}  # crypto_metadata, encrypted_column_metadata
            reader.skip(kind)
    return ColumnChunk(
        codec=values.get(4, 0),
        num_values=values.get(5, 0),
        uncompressed_bytes=values.get(6, 0),
        has_dictionary=11 in values,
        is_all_dictionary=True in pages and False not in pages,
        is_encrypted=is_encrypted or not has_metadata,
    )


def _page_encoding(reader: _Reader) -> bool | None:
    """Tell whether some pages of values consist of indices of a dictionary; None for other pages."""
    values: dict[int, int] = {}
    for number, kind in reader.fields():
        if kind in _VARINTS:
            values[number] = reader.integer()
        else:
            reader.skip(kind)
    return values.get(2) in _DICTIONARY_ENCODINGS if values.get(1) in _DATA_PAGES else None
