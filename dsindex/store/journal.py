"""The lines of a ledger: a file of the work folder, or numbered segments in a bucket.

A line is handed over before the call that appends it returns. In a file, the system then has it; against power cuts,
lines are synced in batches. In a bucket, a batch becomes a segment, `ledger/00000001.jsonl` and so on, each of which is
written if absent: a second driver finds its number taken.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from dsindex.errors import FormatError, PlanError
from dsindex.store.local import open_file, writing
from dsindex.store.urls import is_url, joined

if TYPE_CHECKING:
    from collections.abc import Iterator


LEDGER_FILE = "ledger.jsonl"
LEDGER_FOLDER = "ledger"
FILE_SYNC_SECONDS = 1.0
SEGMENT_SECONDS = 5.0
"""A segment costs a request."""

Journal: TypeAlias = "FileJournal | SegmentJournal"


def ledger_path(work_dir: str) -> str:
    """Return the path of a work folder's ledger, or the address of the folder of its segments."""
    return joined(work_dir, LEDGER_FOLDER if is_url(work_dir) else LEDGER_FILE)


def open_journal(path: str) -> Journal:
    """Return the journal at a path or an address that `ledger_path` returned."""
    return SegmentJournal(path) if is_url(path) else FileJournal(path)


class FileJournal:
    """The file `ledger.jsonl` of a work folder."""

    sync_seconds = FILE_SYNC_SECONDS

    def __init__(self, path: str) -> None:
        self._path = path
        self._ends_whole = True
        self._descriptor = -1

    def read(self) -> Iterator[bytes]:
        """Yield the lines of the file, the last of which may be cut off.

        Raises:
            FormatError: If it cannot be read.
        """
        try:
            with open_file(self._path) as file:
                for line in file:
                    yield line
                    self._ends_whole = line.endswith(b"\n")
        except FileNotFoundError:
            pass
        except OSError as error:
            msg = f"{self._path}: cannot be read ({error.strerror}); fix that, or choose another --work-dir"
            raise FormatError(msg) from error

    def begin(self) -> None:
        """Open the file, creating it if necessary, and end a line that was cut off.

        Raises:
            OutputError: If it cannot be written.
        """
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if not self._ends_whole:
            self.append(b"\n")

    def append(self, line: bytes) -> None:
        """Hand a line to the system.

        Raises:
            OutputError: If it cannot be written.
        """
        view = memoryview(line)
        with writing(self._path):
            while view:
                view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        """Sync the file, so that everything recorded survives a power cut.

        Raises:
            OutputError: If it cannot be written.
        """
        with writing(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Sync and close."""
        try:
            self.sync()
        finally:
            os.close(self._descriptor)


class SegmentJournal:
    """The segments of a work folder in a bucket."""

    sync_seconds = SEGMENT_SECONDS

    def __init__(self, folder: str) -> None:
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        self._folder = folder
        self._store = OBJECTS
        self._last = 0
        """Number of the last segment that is there."""
        self._pending = bytearray()

    def read(self) -> Iterator[bytes]:
        """Yield the lines of all segments."""
        segments = sorted(filter(_number_of, (each.path for each in self._store.list(self._folder))), key=_number_of)
        for path in segments:
            content, _ = self._store.read(path) or (b"", "")
            yield from content.splitlines(keepends=True)
            self._last = _number_of(path)

    def begin(self) -> None:
        """Do nothing: the next segment is written with the first lines."""

    def append(self, line: bytes) -> None:
        """Add a line to the next segment."""
        self._pending += line

    def sync(self) -> None:
        """Write the next segment.

        Raises:
            PlanError: If another driver has written one of its number.
            OutputError: If the store refuses.
        """
        if not self._pending:
            return
        segment = joined(self._folder, f"{self._last + 1:08d}.jsonl")
        if self._store.put_if_absent(segment, bytes(self._pending)) is None:
            msg = f"{segment}: expected to write this next, but another driver continues this job; wait for it"
            raise PlanError(msg)
        self._last += 1
        self._pending.clear()

    def close(self) -> None:
        """Write what is left."""
        self.sync()


def _number_of(path: str) -> int:
    """Return the number of a segment; 0 for an object of another name."""
    name, _, suffix = os.path.basename(path).partition(".")
    return int(name) if suffix == "jsonl" and len(name) == 8 and name.isdecimal() else 0
