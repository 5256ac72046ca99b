"""What a store is: one interface to read, write, list and delete, by a whole path or address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from dsindex.store.storage import Bytes, DigestingWriter


RANGE_BYTES = 8 << 20
"""About the bytes of a request where an object is read forwards: requests cost the same for every size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """A file or an object as it was looked at."""

    path: str
    size_bytes: int
    version: str
    """Modification time in ns, or an object's ETag."""
    modified_ns: int = 0
    """When it was written, in ns since 1970."""


class Readable(Protocol):
    """A file or an object that is open for reading; its methods raise InputError or OSError."""

    size_bytes: int
    version: str

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return bytes from an offset; short only at the end."""
        ...

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read into a buffer from an offset; return the number of bytes, 0 at the end."""
        ...

    def expect_forwards(self, begin: int, end: int) -> None:
        """Say that the bytes [begin, end) will be read forwards."""
        ...

    def size_if_changed(self) -> int | None:
        """Return its present size if it changed; None otherwise."""
        ...


class Store(Protocol):
    """What stores paths. Reads raise InputError or a file's OSError, writes OutputError."""

    def head(self, path: str) -> InputStatus:
        """Return size and version; MissingObjectError or FileNotFoundError if there is nothing."""
        ...

    def open(self, path: str) -> AbstractContextManager[Readable]:
        """Open for reading ranges."""
        ...

    def read(self, path: str, *, most_bytes: int | None = None) -> tuple[bytes, str] | None:
        """Return the content, or its first `most_bytes`, and its version for `put_if_match`; None if absent."""
        ...

    def put(self, path: str, data: Bytes) -> str:
        """Write or replace at once; return the version."""
        ...

    def put_if_absent(self, path: str, data: Bytes) -> str | None:
        """Write; return the version, or None if something has the name."""
        ...

    def put_if_match(self, path: str, data: Bytes, version: str) -> str | None:
        """Replace a version; return the new one, or None if another is there, or nothing."""
        ...

    def list(self, folder: str, *, recursive: bool = True) -> Sequence[InputStatus]:
        """Return what is in a folder, or below it, sorted by the bytes of the paths."""
        ...

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete (idempotent); return those that are refused."""
        ...

    def writer(self, path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:
        """Open for writing; it appears complete when the block ends, or not at all.

        Args:
            path: The final path.
            size_bytes: Upper bound of the size; needed beyond 150 GB, where it determines the parts of an upload.
        """
        ...
