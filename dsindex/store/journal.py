"""An append-only log of lines, each with its own digest: a file on a disk, or numbered segments in a bucket.

On a disk, `append` hands each line to the operating system, so the line survives a killed driver. A thread syncs the
file once a second, so the driver never waits for the disk. In a bucket, the thread writes the new lines as the next
segment, `journal/00000001.jsonl` and so on. A segment is never replaced, so a second driver fails on a number in use.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import xxhash

from dsindex.errors import FormatError, PlanError
from dsindex.store.errors import reading
from dsindex.store.local import open_file, writing
from dsindex.store.protocol import store_of
from dsindex.store.urls import is_url, join_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

JOURNAL_FILE = "journal.jsonl"
JOURNAL_FOLDER = "journal"
_DIGEST_CHARACTERS = 16


def open_log(work_dir: str) -> Log:
    """Return the log of a work folder, on a disk or in a bucket."""
    if is_url(work_dir):
        return Log(_Segments(join_path(work_dir, JOURNAL_FOLDER)))
    return Log(_File(join_path(work_dir, JOURNAL_FILE)))


def _digest(line: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(line).encode()


class Log:
    """A log whose lines survive a killed driver, and a thread that syncs them, so that they survive a power cut.

    `remove_when_synced` deletes files only after the lines that make them unnecessary are synced.
    """

    def __init__(self, place: _File | _Segments) -> None:
        self._place = place
        self._changed = threading.Condition()
        self._appended = self._synced = 0
        self._sync_requested = self._closing = False
        self._unused: list[str] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def read(self) -> Iterator[bytes]:
        """Yield the lines in order, skipping damaged and truncated ones.

        Raises:
            FormatError: If the log cannot be read.
        """
        for stored in self._place.lines():
            digest, line = stored[:_DIGEST_CHARACTERS], stored[_DIGEST_CHARACTERS + 1 :].rstrip(b"\n")
            if digest == _digest(line):
                yield line

    def begin(self) -> None:
        """Open the log for appending.

        Raises:
            OutputError: If it cannot be written.
        """
        self._place.open()
        self._thread = threading.Thread(target=self._keep_syncing, daemon=True, name="dsindex-journal")
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Append a line.

        Raises:
            OutputError: If it cannot be written, or an earlier sync failed.
            PlanError: If another driver writes to the same log.
        """
        self._raise_error()
        with self._changed:
            self._place.write(b"%s %s\n" % (_digest(line), line))
            self._appended += 1

    def remove_when_synced(self, paths: Iterable[str]) -> None:
        """Remove files once all lines appended so far are synced."""
        with self._changed:
            self._unused += paths
            self._appended += 1

    def sync(self) -> None:
        """Wait until all appended lines are synced; raises like `append`."""
        with self._changed:
            goal = self._appended
            self._sync_requested = True
            self._changed.notify_all()
            while self._synced < goal and self._error is None:
                self._changed.wait()
        self._raise_error()

    def close(self) -> None:
        """Sync and close; raises like `append`."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._thread = None
        self._place.close()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _keep_syncing(self) -> None:
        while not (self._closing and self._synced == self._appended):
            with self._changed:
                if not (self._sync_requested or self._closing):
                    self._changed.wait(self._place.sync_seconds)
                goal, unused, self._unused, self._sync_requested = self._appended, self._unused, [], False
            if goal == self._synced:
                continue
            try:
                self._place.sync()
                if unused:
                    store_of(unused[0]).delete(unused)
            except BaseException as error:  # noqa: BLE001 - the driver's next call raises it
                self._error = error
            with self._changed:
                self._synced = goal
                self._changed.notify_all()
            if self._error is not None:
                return


class _File:
    """A log on a disk: one file."""

    sync_seconds = 1.0

    def __init__(self, path: str) -> None:
        self._path, self._descriptor, self._ends_whole = path, -1, True

    def lines(self) -> Iterator[bytes]:
        hint = "fix that, or choose another --work-dir"
        with reading(self._path, FormatError, hint=hint), suppress(FileNotFoundError), open_file(self._path) as file:
            for line in file:
                self._ends_whole = line.endswith(b"\n")
                yield line

    def open(self) -> None:
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if not self._ends_whole:
            self.write(b"\n")

    def write(self, stored: bytes) -> None:
        view = memoryview(stored)
        with writing(self._path):
            while view:
                view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        with writing(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        with writing(self._path):  # a network file system may report errors of writing only here
            os.close(self._descriptor)


class _Segments:
    """A log in a bucket: numbered objects in one folder."""

    sync_seconds = 5.0  # a segment costs a request

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = 0
        """Number of the last segment that was read or written."""
        self._pending: list[bytes] = []

    def lines(self) -> Iterator[bytes]:
        store = store_of(self._path)
        segments = sorted(filter(_segment_number, (file.path for file in store.list(self._path))), key=_segment_number)
        for path in segments:
            content, _ = store.read(path) or (b"", "")
            yield from content.splitlines(keepends=True)
            self._last = _segment_number(path)

    def open(self) -> None:
        """Do nothing: `sync` creates the segments."""

    def write(self, stored: bytes) -> None:
        self._pending.append(stored)

    def sync(self) -> None:
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        if num_written := len(self._pending):  # the driver may append meanwhile
            segment = join_path(self._path, f"{self._last + 1:08d}.jsonl")
            if OBJECTS.put_if(segment, b"".join(self._pending[:num_written])) is None:
                raise PlanError(f"{segment}: another driver continues this job", hint="wait until it has ended")
            self._last += 1
            del self._pending[:num_written]

    def close(self) -> None:
        """Do nothing: no segment stays open."""


def _segment_number(path: str) -> int:
    """Return the number of a segment; 0 for any other object."""
    name, _, suffix = os.path.basename(path).partition(".")
    return int(name) if suffix == "jsonl" and len(name) == 8 and name.isdecimal() else 0
