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
        data, position = self.data, self.position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
            shift += 7
            if shift > 63:
                msg = "a number that is too long"
                raise struct.error(msg)

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

    def skip(self, kind: int, depth: int = 0) -> None:
        """Skip a value."""
        if depth > _MAX_NESTING:
            raise RecursionError
        if kind in _FIXED_BYTES:
            self.position += _FIXED_BYTES[kind]
        elif kind == _BINARY:
            size = self.varint()
            self.position += size
        elif kind in {_LIST, _SET}:
            count, item = self.items()
            for _ in range(count):
                self.skip_item(item, depth + 1)
        elif kind == _MAP:
            self.skip_map(depth + 1)
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        else:
            self.varint()

    def skip_map(self, depth: int) -> None:
        """Skip a map, which has no types if it is empty."""
        count = self.varint()
        kinds = self.byte() if count else 0
        for _ in range(count):
            self.skip_item(kinds >> 4, depth)
            self.skip_item(kinds & 15, depth)

    def skip_item(self, kind: int, depth: int) -> None:
        """Skip an item of a list or map, where a boolean is a byte."""
        if kind <= _FALSE:
            self.byte()
        else:
            self.skip(kind, depth)


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
    is_encrypted = has_metadata = False
    for number, kind in reader.fields():
        if (number, kind) == (3, _STRUCT):
            has_metadata = True
            for inner, inner_kind in reader.fields():
                if inner in {4, 5, 6, 11}:
                    values[inner] = reader.integer()
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
        is_encrypted=is_encrypted or not has_metadata,
    )
