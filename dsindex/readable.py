"""The seam between what reads inputs and where they are: files of this machine, or objects in stores.

An input has a size and a version by which a change is noticed, and any range of its bytes can be read.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dsindex.objects.urls import is_url, parse_url
from dsindex.regular_files import open_file, open_unbuffered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader, FileIO


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """What an input was when it was looked at."""

    path: str
    """Its path, or the address by which the same object is read again."""
    size_bytes: int
    version: str
    """Modification time in ns, or an object's ETag."""


class Readable(Protocol):
    """An input that is open for reading."""

    @property
    def size_bytes(self) -> int:
        """Its size when it was opened."""
        ...

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return the bytes from an offset on, fewer than asked for only at the end."""
        ...

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Fill a buffer with the bytes from an offset on, or with some of them; return their number, 0 at the end."""
        ...

    def expect_forwards(self, begin: int, end: int) -> None:
        """Say that the bytes [begin, end) will be read forwards."""
        ...

    def size_if_changed(self) -> int | None:
        """Return its size by now if it changed since it was opened, which an object may say by an error instead."""
        ...


class LocalFile:
    """A file of this machine."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        status = os.fstat(file.fileno())
        self.size_bytes = status.st_size
        self.version = str(status.st_mtime_ns)

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return the bytes from an offset on, fewer than asked for only at the end."""
        return os.pread(self.file.fileno(), num_bytes, offset)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Fill a buffer with the bytes from an offset on, or with some of them; return their number, 0 at the end."""
        return os.preadv(self.file.fileno(), [view], offset)

    def expect_forwards(self, begin: int, end: int) -> None:  # noqa: ARG002 - Linux reads ahead in whole files
        """Let the system read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def size_if_changed(self) -> int | None:
        """Return its size by now if its size or time is not what it was."""
        status = os.fstat(self.file.fileno())
        now = (status.st_size, str(status.st_mtime_ns))
        return None if now == (self.size_bytes, self.version) else status.st_size


def input_status(path: str) -> InputStatus:
    """Look at an input.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    if is_url(path):
        from dsindex.objects.stores import look_at_object

        url = parse_url(path)
        if url.identity is None:
            url, _ = look_at_object(url)
        if url.identity is not None:
            return InputStatus(path=url, size_bytes=url.identity.size_bytes, version=url.identity.version)
    status = os.stat(path)
    return InputStatus(path=path, size_bytes=status.st_size, version=str(status.st_mtime_ns))


def is_there(path: str) -> bool:
    """Tell whether a path leads to a file, or is an address: what is there is then told by reading it."""
    return is_url(path) or os.path.isfile(path)


def is_stored(path: str) -> bool:
    """Tell whether there is a file at a path, or an object at an address, which is looked at.

    Raises:
        InputError: If an object store does not answer, or refuses.
    """
    if not is_url(path):
        return os.path.isfile(path)
    from dsindex.objects.requests import MissingObjectError

    try:
        input_status(path)
    except MissingObjectError:
        return False
    return True


def stored_size(path: str) -> int:
    """Return the size of a file or an object in bytes.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    return input_status(path).size_bytes if is_url(path) else os.path.getsize(path)


def open_stored(path: str) -> BufferedReader:
    """Open a file or an object for reading in binary mode.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    if not is_url(path):
        return open_file(path)
    from dsindex.objects.files import open_object

    return open_object(parse_url(path))


@contextmanager
def open_readable(path: str) -> Iterator[Readable]:
    """Open an input for reading ranges.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    if is_url(path):
        from dsindex.objects.reading import ObjectReader

        reader = ObjectReader(parse_url(path))
        try:
            yield reader
        finally:
            reader.close()
    else:
        with open_unbuffered(path) as file:
            yield LocalFile(file)
