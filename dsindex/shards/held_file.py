"""A file of an attempt whose work folder is in an object store, until it is written there."""

from __future__ import annotations

import mmap
import tempfile
from typing import IO, TYPE_CHECKING

from dsindex.errors import OutputError
from dsindex.objects.blocks import Blocks
from dsindex.objects.recent import keep_recent
from dsindex.objects.writing import MOST_OBJECT_BYTES, put_object
from dsindex.storage import DigestingWriter, append_all, output_error

if TYPE_CHECKING:
    from dsindex.objects.blocks import Bytes
    from dsindex.objects.urls import ObjectUrl
    from dsindex.storage import StoredFile

HELD_BYTES = 64 << 20
"""Size up to which a file is held in memory; beyond, it is in an unnamed file of the node."""


class HeldFile:
    """One file of an attempt, open for sequential writing.

    Args:
        place: The node's temporary folder, where the content is once it is large; no other process sees it there, and
            it is gone with this one.
        name: Name of the object relative to the work folder.
    """

    def __init__(self, place: str, name: str) -> None:
        self._name = name
        self._content = _Content(place)
        self.writer = DigestingWriter(self._content)

    def write(self, data: Bytes) -> None:
        """Append data."""
        self.writer.write(data)

    def finish(self) -> StoredFile:
        """Return the file's name, size and digest."""
        return self.writer.as_stored(self._name)

    def send(self, folder: ObjectUrl) -> None:
        """Write the finished file as an object of a work folder.

        Raises:
            OutputError: If it cannot be read again, is larger than an object may be, or the store refuses.
        """
        url = folder.lengthened(f"/{self._name}")
        if self.writer.size_bytes > MOST_OBJECT_BYTES:
            msg = (
                f"{url}: expected a shard of at most {MOST_OBJECT_BYTES >> 30} GiB, which is what a store takes in one "
                f"request, got {self.writer.size_bytes:,} bytes; use a smaller --shard-size"
            )
            raise OutputError(msg)
        content = self._content.whole()
        put_object(url, content)
        if self._content.is_held:
            keep_recent(url, content)

    def close(self, *, keep: bool) -> None:  # noqa: ARG002 - the object was written before
        """Let the content go."""
        self._content.close()


class _Content:
    """Bytes in memory, and in a file once they are many."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: list[bytes] = []
        self._num_held = 0
        self._file: IO[bytes] | None = None

    def write(self, data: Bytes) -> int:
        if self._file is None and self._num_held + len(data) > HELD_BYTES:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed by close()
            for block in self._held:
                append_all(self._file, block)
            self._held = []
        if self._file is None:
            self._held.append(bytes(data))
            self._num_held += len(data)
        else:
            append_all(self._file, data)
        return len(data)

    @property
    def is_held(self) -> bool:
        """Whether all is in memory."""
        return self._file is None

    def whole(self) -> Blocks:
        """Return all that was written."""
        if self._file is None:
            return Blocks(tuple(self._held))
        try:
            return Blocks.of(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise output_error(self._folder, error) from error

    def close(self) -> None:
        self._held = []
        if self._file is not None:
            self._file.close()
