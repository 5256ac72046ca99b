"""An append-only log of lines, each with its own digest: a file on a disk, or numbered segments in a bucket.

A line of a file is handed to the system before `append` returns, so it survives a killed driver; a thread syncs the
file once a second, so that the driver never waits for a disk. In a bucket, the thread writes what was appended since as
`journal/00000001.jsonl` and so on. A segment is only created, never replaced: a second driver finds its number taken.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import xxhash

from dsindex.errors import FormatError, PlanError
from dsindex.store.local import open_file, writing
from dsindex.store.protocol import store_of
from dsindex.store.urls import is_url, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

JOURNAL_FILE = "journal.jsonl"
JOURNAL_FOLDER = "journal"
_DIGEST_CHARACTERS = 16


def journal_path(work_dir: str) -> str:
    """Return the path of a work folder's journal, or the address of the folder of its segments."""
    return joined(work_dir, JOURNAL_FOLDER if is_url(work_dir) else JOURNAL_FILE)


def open_log(path: str) -> Log:
    """Return the log at a path or an address that `journal_path` returned."""
    return SegmentLog(path) if is_url(path) else FileLog(path)


def _digest(line: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(line).encode()


class Log(ABC):
    """Lines that survive the driver, and a thread that makes them survive a power cut.

    Paths handed to `remove_when_synced` are removed after every line appended before is synced: what they held is then
    recorded elsewhere.
    """

    sync_seconds: float

    def __init__(self, path: str) -> None:
        self._path = path
        self._changed = threading.Condition()
        self._appended = self._synced = 0
        self._asked = False
        self._closing = False
        self._unused: list[str] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def read(self) -> Iterator[bytes]:
        """Yield the lines as they were appended; one that was damaged or cut off is left out.

        Raises:
            FormatError: If the log cannot be read.
        """
        for stored in self._stored_lines():
            digest, line = stored[:_DIGEST_CHARACTERS], stored[_DIGEST_CHARACTERS + 1 :].rstrip(b"\n")
            if digest == _digest(line):
                yield line

    def begin(self) -> None:
        """Open the log for appending.

        Raises:
            OutputError: If it cannot be written.
        """
        self._open()
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
            self._write(b"%s %s\n" % (_digest(line), line))
            self._appended += 1

    def remove_when_synced(self, paths: Iterable[str]) -> None:
        """Remove files once all that was appended so far is synced."""
        with self._changed:
            self._unused += paths
            self._appended += 1

    def sync(self) -> None:
        """Wait until all that was appended is synced; raises as `append`."""
        with self._changed:
            goal = self._appended
            self._asked = True
            self._changed.notify_all()
            while self._synced < goal and self._error is None:
                self._changed.wait()
        self._raise_error()

    def close(self) -> None:
        """Sync and close; raises as `append`."""
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._thread = None
        self._close()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _keep_syncing(self) -> None:
        while not (self._closing and self._synced == self._appended):
            with self._changed:
                if not (self._asked or self._closing):
                    self._changed.wait(self.sync_seconds)
                goal, unused, self._unused, self._asked = self._appended, self._unused, [], False
            if goal == self._synced:
                continue
            try:
                self._sync()
                if unused:
                    store_of(unused[0]).delete(unused)
            except BaseException as error:  # noqa: BLE001 - raised by the driver's next call
                self._error = error
            with self._changed:
                self._synced = goal
                self._changed.notify_all()
            if self._error is not None:
                return

    @abstractmethod
    def _stored_lines(self) -> Iterator[bytes]: ...

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _write(self, stored: bytes) -> None: ...

    @abstractmethod
    def _sync(self) -> None: ...

    def _close(self) -> None:  # noqa: B027 - a bucket has nothing to close
        pass


class FileLog(Log):
    """A log in a file."""

    sync_seconds = 1.0
    _descriptor = -1
    _ends_whole = True

    def _stored_lines(self) -> Iterator[bytes]:
        try:
            with open_file(self._path) as file:
                for line in file:
                    self._ends_whole = line.endswith(b"\n")
                    yield line
        except FileNotFoundError:
            pass
        except OSError as error:
            hint = "fix that, or choose another --work-dir"
            raise FormatError(f"{self._path}: cannot be read ({error.strerror})", hint=hint) from error

    def _open(self) -> None:
        with writing(self._path):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        if not self._ends_whole:
            self._write(b"\n")

    def _write(self, stored: bytes) -> None:
        view = memoryview(stored)
        with writing(self._path):
            while view:
                view = view[os.write(self._descriptor, view) :]

    def _sync(self) -> None:
        with writing(self._path):
            os.fsync(self._descriptor)

    def _close(self) -> None:
        os.close(self._descriptor)


class SegmentLog(Log):
    """A log in the segments of a folder in a bucket."""

    sync_seconds = 5.0  # a segment costs a request

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._last = 0
        """Number of the last segment."""
        self._pending = bytearray()

    def _stored_lines(self) -> Iterator[bytes]:
        store = store_of(self._path)
        segments = sorted(filter(_segment_number, (each.path for each in store.list(self._path))), key=_segment_number)
        for path in segments:
            content, _ = store.read(path) or (b"", "")
            yield from content.splitlines(keepends=True)
            self._last = _segment_number(path)

    def _open(self) -> None:
        pass

    def _write(self, stored: bytes) -> None:
        self._pending += stored

    def _sync(self) -> None:
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        with self._changed:
            content = bytes(self._pending)
        if not content:
            return
        segment = joined(self._path, f"{self._last + 1:08d}.jsonl")
        if OBJECTS.put_if_absent(segment, content) is None:
            raise PlanError(f"{segment}: another driver continues this job", hint="wait until it has ended")
        self._last += 1
        with self._changed:
            del self._pending[: len(content)]


def _segment_number(path: str) -> int:
    """Return the number of a segment; 0 for an object of another name."""
    name, _, suffix = os.path.basename(path).partition(".")
    return int(name) if suffix == "jsonl" and len(name) == 8 and name.isdecimal() else 0
