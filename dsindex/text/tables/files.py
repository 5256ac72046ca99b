"""Open tables for pyarrow: checked for changes while they are read, and with its errors put into sentences.

The wanted columns are found in the schema, and those that do not hold texts are refused.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dsindex.errors import InputError
from dsindex.store.local import LocalFile
from dsindex.store.types import RANGE_BYTES
from dsindex.text.streams import changed, opened_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsindex.store.types import Readable


# Find the wanted columns in a table's schema, and refuse those that do not hold texts.

_SHOWN_COLUMNS = 12
_SHOWN_NAME_CHARACTERS = 60


def is_string(kind: pa.DataType) -> bool:
    """Tell whether values of a type are strings, or null throughout."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Tell whether values of a type are lists with items in a row; the views of lists, which may overlap, are not."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_text(kind: pa.DataType) -> bool:
    """Tell whether values of a type are strings or lists of strings."""
    return is_string(kind) or (is_list(kind) and is_string(kind.value_type))


def find_columns(
    path: str,
    schema: pa.Schema,
    columns: Mapping[str, tuple[str, ...]],
    *,
    is_wanted: Callable[[pa.DataType], bool] = is_text,
    wanted: str = "strings or of lists of strings",
) -> dict[str, tuple[int, ...]]:
    """Find where each wanted column is.

    A column whose own name is the fields joined with dots is found, too, unless the first field is a column.

    Args:
        path: The file, for messages.
        schema: Its columns.
        columns: Names of the fields that lead to each wanted column.
        is_wanted: Tells whether a type is acceptable.
        wanted: Those types in words.

    Returns:
        For each wanted column the number of the column, and of the field at each level below.

    Raises:
        InputError: If a column is missing, is there twice, or has another type.
    """
    found = {}
    for name, fields in columns.items():
        places, kind = _find(path, schema, name, fields)
        if not is_wanted(kind):
            msg = f"{path}: expected a column of {wanted} at {name!r}, got {_shown(str(kind))}; {_choice(schema)}"
            raise InputError(msg)
        found[name] = places
    return found


def require_different_names(path: str, schema: pa.Schema) -> None:
    """Refuse columns, or fields of a struct, of the same name: an object of JSON would have only the last of them.

    Raises:
        InputError: Naming the first one found.
    """
    kinds = [pa.struct(list(schema))]
    while kinds:
        kind = kinds.pop()
        inner = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
        kinds += [field.type for field in inner]
        names = Counter(field.name for field in inner) if pa.types.is_struct(kind) else Counter()
        for name, count in names.items():
            if count > 1:
                msg = f"{path}: expected columns of different names, got {count} of the name {name!r}; rename them"
                raise InputError(msg)


def check_names(schema: pa.Schema) -> None:
    """Read all names, at every level.

    Raises:
        UnicodeDecodeError: If one is not UTF-8.
    """
    fields = list(schema)
    while fields:
        field = fields.pop()
        field.name  # noqa: B018 - reading it decodes it
        kind = field.type
        if pa.types.is_nested(kind):
            fields += [kind.field(number) for number in range(kind.num_fields)]


def joined_fields(schema: pa.Schema, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields, or the one column whose name they make with dots between them."""
    joined = ".".join(fields)
    return (joined,) if fields[0] not in schema.names and joined in schema.names else fields


def nested_column(batch: pa.RecordBatch, places: tuple[int, ...]) -> pa.Array:
    """Return a column; it is null wherever a struct around it is null.

    Args:
        batch: Rows of a table.
        places: As `find_columns` returns them.
    """
    array = batch.column(places[0])
    return pc.struct_field(array, list(places[1:])) if len(places) > 1 else array


def _find(path: str, schema: pa.Schema, name: str, fields: tuple[str, ...]) -> tuple[tuple[int, ...], pa.DataType]:
    kind = pa.struct(list(schema))
    places: list[int] = []
    for depth, field in enumerate(joined_fields(schema, fields)):
        outer = ".".join(fields[:depth])
        if not pa.types.is_struct(kind):
            raise InputError(
                f"{path}: expected a column of structs at {outer!r}, to read {name!r}, got {_shown(str(kind))}; "
                f"{_choice(schema)}"
            )
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if names.count(field) != 1:
            got = "no such column" if field not in names else f"{names.count(field)} columns of that name"
            raise InputError(f"{path}: expected the column {name!r}, got {got}; {_choice(schema)}")
        places.append(names.index(field))
        kind = kind.field(places[-1]).type
    return tuple(places), kind


def _choice(schema: pa.Schema) -> str:
    """Return the remedy for a wrong column: those that there are."""
    if not len(schema):
        return "it has no columns"
    shown = [f"{_shown(field.name)} ({_shown(str(field.type))})" for field in list(schema)[:_SHOWN_COLUMNS]]
    more = f" and {len(schema) - _SHOWN_COLUMNS} more" if len(schema) > _SHOWN_COLUMNS else ""
    return f"it has the columns {', '.join(shown)}{more}; choose with --json-keys"


def _shown(text: str) -> str:
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _SHOWN_NAME_CHARACTERS else text[:_SHOWN_NAME_CHARACTERS] + "…"


Content: TypeAlias = "memoryview[int] | FetchedContent"
"""The bytes of a table: mapped memory, or what fetches its slices."""
_SHOWN_CHARACTERS = 200
_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError, struct.error)
_ERRORS_OF_SOURCES = (EOFError, zlib.error)
"""What decompression raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """What the metadata says about one row group of Parquet or record batch of Arrow."""

    num_rows: int
    text_bytes: int
    """Uncompressed size of the wanted columns: an estimate, and as trustworthy as the file."""


class TableFile:
    """An open file as pyarrow reads it: it never asks for more bytes than there are, whatever the file claims.

    pyarrow decodes paths as UTF-8, so it gets this object instead of a name.
    """

    mode = "rb"

    def __init__(self, path: str, file: Readable) -> None:
        self.path = path
        self.size = file.size_bytes
        self.identity = (path, file.version, file.size_bytes)
        self.closed = False
        self.is_sampled = False
        """Whether its reader wants no more than the first rows."""
        self._file = file
        self._position = 0
        self._map: mmap.mmap | None = None

    def read(self, num_bytes: int = -1) -> bytes:
        """Return up to `num_bytes` bytes, all that are left if negative."""
        left = max(0, self.size - self._position)
        wanted = left if num_bytes < 0 else min(num_bytes, left)
        content = self._file.read_at(wanted, self._position)
        self._position += len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, which may be behind the end."""
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing: whoever opened the file closes it."""

    def content(self) -> Content:
        """Return the content, of which nothing is read before it is used.

        Raises:
            InputError: If the file is empty.
        """
        if self.size == 0:
            raise InputError(f"{self.path}: expected a table, got an empty file; fetch or write it again")
        if not isinstance(self._file, LocalFile):
            return FetchedContent(self._file, self.size)
        if self._map is None:
            self._map = mmap.mmap(self._file.file.fileno(), self.size, prot=mmap.PROT_READ)
        return memoryview(self._map)

    def expect_forwards(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say that these ranges of bytes will be read forwards, next to each other; a local file needs no such hint.

        Of a sampled one, only those are requested whole that are small: its reader may want the first rows alone.
        """
        if not isinstance(self._file, LocalFile):
            for begin, end in ranges:
                if not self.is_sampled or end - begin <= RANGE_BYTES:
                    self._file.expect_forwards(begin, end)

    def release(self, begin: int, end: int) -> None:
        """Take a part of the mapped content out of this process's memory, until it is used again."""
        begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def check_size(self) -> None:
        """Refuse to go on with a mapped file that became shorter, which would end the process.

        Raises:
            InputError: If it did.
        """
        size = self._file.size_if_changed()
        if size is not None and size < self.size:
            raise changed(self.path, self.size, size)


class FetchedContent:
    """A file that is not on this machine; slices of it are fetched."""

    def __init__(self, file: Readable, size_bytes: int) -> None:
        self._file = file
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, wanted: slice) -> memoryview[int]:
        begin, end, _ = wanted.indices(len(self))
        return memoryview(self._file.read_at(max(0, end - begin), begin))


def check_range(path: str, end: int, num_groups: int, what: str) -> None:
    """Refuse a range that ends after the last row group or record batch.

    Raises:
        InputError: If it does.
    """
    if end > num_groups:
        raise InputError(
            f"{path}: expected at least {end} {what}, got {num_groups}; the file changed since the job was planned, "
            "run it again from the start"
        )


@contextmanager
def open_table(path: str, expected_size: int | None = None) -> Iterator[TableFile]:
    """Open a table, and check on closing that it has not changed.

    Args:
        path: A regular file, or the address of an object.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, or changes while it is read.
    """
    with opened_input(path, expected_size) as file:
        yield TableFile(path, file)


@contextmanager
def errors_named(path: str, what: str) -> Iterator[None]:
    """Turn what pyarrow raises at a damaged or foreign file into a sentence.

    Args:
        path: The file.
        what: What was expected, such as `a Parquet file with a readable row group 3`.

    Raises:
        InputError: For every error of pyarrow, of the system and of decoding.
    """
    try:
        yield
    except InputError:
        raise
    except (*_ERRORS, *_ERRORS_OF_SOURCES) as error:
        raise InputError(f"{path}: expected {what}, got {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """Return an error and its remedy in words."""
    lines = str(error).strip().splitlines()
    shown = (lines[0] if lines else type(error).__name__)[:_SHOWN_CHARACTERS]
    if "crypt" in shown:
        return f"an encrypted one ({shown}); decrypt it into a new file first"
    if isinstance(error, NotImplementedError):
        return f"one that pyarrow {pa.__version__} does not read ({shown}); write it again without that"
    if isinstance(error, MemoryError):
        return f"one that needs more memory than there is ({shown}); it may be damaged, fetch or write it again"
    return f"an error ({shown}); it may be cut off or damaged, fetch or write it again"
