"""Open tables for pyarrow: checked for changes while they are read, and with its errors put into sentences."""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.regular_files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN_CHARACTERS = 200
_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError, struct.error)
_ERRORS_OF_SOURCES = (EOFError, zlib.error)
"""What decompression raises."""


class TableFile:
    """An open file as pyarrow reads it: it never asks for more bytes than there are, whatever the file claims.

    pyarrow decodes paths as UTF-8, so it gets this object instead of a name.
    """

    mode = "rb"

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path = path
        self.size = os.fstat(file.fileno()).st_size
        self.closed = False
        self._file = file
        self._map: mmap.mmap | None = None

    def read(self, num_bytes: int = -1) -> bytes:
        """Return up to `num_bytes` bytes, all that are left if negative."""
        left = max(0, self.size - self._file.tell())
        return self._file.read(left if num_bytes < 0 else min(num_bytes, left))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, which may be behind the end."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()

    def seekable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Do nothing: whoever opened the file closes it."""

    def mapped(self) -> memoryview:
        """Return the content as mapped memory; nothing is read before it is used.

        Raises:
            InputError: If the file is empty.
        """
        if self.size == 0:
            msg = f"{self.path}: expected a table, got an empty file; fetch or write it again"
            raise InputError(msg)
        if self._map is None:
            self._map = mmap.mmap(self._file.fileno(), self.size, prot=mmap.PROT_READ)
        return memoryview(self._map)

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
        size = os.fstat(self._file.fileno()).st_size
        if size < self.size:
            raise _changed(self.path, self.size, size)


@contextmanager
def open_table(path: str, expected_size: int | None = None) -> Iterator[TableFile]:
    """Open a table, and check on closing that it has not changed.

    Args:
        path: A regular file.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, or changes while it is read.
    """
    try:
        file = open_file(path)
    except OSError as error:
        msg = f"{path}: expected a file that can be read, got {error.strerror!r}; check the path and its permissions"
        raise InputError(msg) from error
    with file:
        before = os.fstat(file.fileno())
        if expected_size not in (None, before.st_size):
            msg = (
                f"{path}: expected {expected_size} bytes, got {before.st_size}; the file changed since the job was"
                " planned, run it again from the start"
            )
            raise InputError(msg)
        try:
            yield TableFile(path, file)
        except InputError as error:
            after = os.fstat(file.fileno())
            if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                raise _changed(path, before.st_size, after.st_size) from error
            raise
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _changed(path, before.st_size, after.st_size)


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
        msg = f"{path}: expected {what}, got {_describe(error)}"
        raise InputError(msg) from error


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


def _changed(path: str, expected: int, got: int) -> InputError:
    return InputError(
        f"{path}: expected {expected} bytes, got {got} or other content; the file changed while it was read,"
        " run the job again from the start once nothing writes to it"
    )
