"""The store of a path or an address: files of this machine, or objects, which are imported with the first address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.errors import MissingObjectError
from dsindex.store.local import LOCAL
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from dsindex.store.storage import Bytes, DigestingWriter
    from dsindex.store.types import InputStatus, Store


def store_of(path: str) -> Store:
    """Return the store of a path or an address."""
    if is_url(path):
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        return OBJECTS
    return LOCAL


def find(path: str) -> InputStatus | None:
    """Return what `head` does; None if there is nothing."""
    try:
        return store_of(path).head(path)
    except (MissingObjectError, FileNotFoundError, NotADirectoryError):
        return None


def replace_file(path: str, data: Bytes) -> None:
    """Write a small file or an object at once, replacing what is there.

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
