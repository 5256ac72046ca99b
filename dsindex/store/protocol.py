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
"""A file system or object store. Reads raise InputError or OSError, writes raise OutputError.

    head     size and version; MissingObjectError or FileNotFoundError if there is nothing
    open     for reading; a known status pins an object's version and saves the request for it
    read     a small file's content, and an object's version; None if absent
    put      write or replace at once
    list     the files in a folder, or below it, sorted by the bytes of the paths
    delete   idempotent; returns the files that are left since that is refused
    writer   for writing; the file appears complete when the block ends, or not at all. An upper bound of the size is
             needed beyond 150 GB, where it determines the parts of an upload
"""


def store_of(path: str) -> Store:
    """Return the store of a path or an address."""
    if is_url(path):
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        return OBJECTS
    return LOCAL


def find(path: str) -> InputStatus | None:
    """Return what `head` does; None if there is nothing, or a folder.

    Raises:
        InputError: If the disk or the store does not answer, or refuses.
    """
    with reading(path), suppress(MissingObjectError, *ABSENT, IsADirectoryError, ValueError):  # a NUL byte
        return store_of(path).head(path)
    return None


def replace_file(path: str, data: Bytes) -> None:
    """Write or replace a small file or an object at once.

    Raises:
        OutputError: If the folder, the disk or the store refuses.
    """
    store_of(path).put(path, data)


def open_output(path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:
    """Open a file or an object for sequential writing; it appears complete when the block ends, or not at all.

    Raises:
        OutputError: If the folder, the disk or the store refuses.
    """
    return store_of(path).writer(path, size_bytes=size_bytes)
