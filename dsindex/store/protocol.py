"""The interface of the stores: read, write, list and delete, each by a complete path or address."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from dsindex.errors import MissingObjectError
from dsindex.store.errors import ABSENT, reading
from dsindex.store.local import LOCAL
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dsindex.store.local import Bytes, DigestingWriter, InputStatus, LocalStore
    from dsindex.store.objects import ObjectStore


Store: TypeAlias = "LocalStore | ObjectStore"
"""A file system or an object store. Reads raise InputError or OSError, writes raise OutputError.

    head     return size and version; MissingObjectError or FileNotFoundError if the file is absent
    open     open for reading; a known status pins an object's version, and saves a request for its status
    read     return a small file's content, and an object's version; None if absent
    put      write or replace atomically
    list     return the files in a folder, or below it, sorted by the bytes of the paths
    paths_in         return the paths in a folder, including folders on a disk
    unfinished_path  return where to write a file: on a disk under another name, from which it is renamed when complete
    delete   delete files, if they exist; return those that cannot be deleted
    writer   open for writing; the file appears complete when the block ends, or not at all. Files beyond 150 GB need an
             upper bound of their size, which determines the size of an upload's parts
"""


def store_of(path: str) -> Store:
    """Return the store of a path or an address."""
    if is_url(path):
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        return OBJECTS
    return LOCAL


def find(path: str) -> InputStatus | None:
    """Return the status of a file or an object; None if the path is absent or a folder.

    Raises:
        InputError: If the disk or the store fails, or refuses access.
    """
    with reading(path), suppress(MissingObjectError, *ABSENT, IsADirectoryError, ValueError):  # ValueError: a NUL byte
        return store_of(path).head(path)
    return None


def replace_file(path: str, data: Bytes) -> None:
    """Write or replace a small file or an object atomically.

    Raises:
        OutputError: If the folder cannot be created, or the write fails.
    """
    store_of(path).put(path, data)


def open_output(path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:
    """Open a file or an object for sequential writing; it appears complete when the block ends, or not at all.

    Raises:
        OutputError: If the folder cannot be created, or a write fails.
    """
    return store_of(path).writer(path, size_bytes=size_bytes)
