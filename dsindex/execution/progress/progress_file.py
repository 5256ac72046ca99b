"""A job's progress in a file for other tools, replaced atomically about once a second.

    {"format": "dsindex progress 1", "state": "running", "updated": "2026-08-01T12:00:00Z", "started": …,
     "output": "/data/out/x", "host": …, "pid": …, "error": null, "message": null, "stage": {…},
     "finished_stages": [{…}]}

`state` is running, done, stopped or failed; `error` says in a sentence why a job stopped or failed, and `message` is
what a running job said last, such as what it waits for. The fields of a stage are those of
dsindex.execution.progress.reporter.Snapshot, without speeds once it has ended, and `series`, its progress over time.
A running job writes the file at least every BEAT_SECONDS: if `updated` is older than a minute, its driver was killed.
The file lies beside the output as `PREFIX.progress.json`, where it stays, and as `progress.json` in the work folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError, InputError, OutputError
from dsindex.execution.interrupts import TerminatedError
from dsindex.execution.progress.reporter import Display, Heartbeat
from dsindex.execution.progress.standard_streams import utc_now
from dsindex.execution.ray_token import hide_secrets
from dsindex.json_text import decode_json, encode_json
from dsindex.store.fetching import fetch_later
from dsindex.store.reading import open_stored
from dsindex.store.storage import FULL_DISK_ERRORS, read_own
from dsindex.store.urls import is_url
from dsindex.store.writing import put_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from dsindex.execution.progress.reporter import Snapshot
    from dsindex.store.urls import ObjectUrl

PROGRESS_FILE = "progress.json"
PROGRESS_TEMPORARY = "progress.json.tmp"
PROGRESS_FORMAT = "dsindex progress 1"
PROGRESS_SUFFIX = "progress.json"
SECONDS = 1.0
BEAT_SECONDS = 10.0
OBJECT_SECONDS = 30.0
"""An object costs a request."""
LARGEST_BYTES = 1 << 20
"""The limit on the size of a progress file; a longer file is none."""
SPEEDS = ("speed", "average_speed", "tokens_per_second", "eta_seconds")
"""Fields that a stage has only while it runs."""
MOST_POINTS = 240
SERIES_FIELDS = ("seconds", "done", "retries", "lost_workers")
"""What each point has, in this order; the first one is the beginning, with the work that an earlier run had done."""

Point = tuple[float, int, int, int]


class Series:
    """The points of a running stage. Once there are too many, every other one is left out, and fewer are added."""

    def __init__(self) -> None:
        self._stage = ""
        self._points: list[Point] = []
        self._step = 0.0
        """The least time between two points, in seconds."""

    def add(self, snapshot: Snapshot, *, last: bool = False) -> list[Point]:
        """Add a snapshot, and return all points of its stage.

        Args:
            snapshot: The stage; another one than before begins anew.
            last: Whether the stage has ended, so that the point is kept in any case.
        """
        if snapshot.stage != self._stage or (snapshot.seconds < self._points[-1][0]):
            kept = snapshot.done - round(snapshot.average_speed * snapshot.seconds)
            self._stage, self._points, self._step = snapshot.stage, [(0.0, max(0, kept), 0, 0)], 0.0
        if last or snapshot.seconds - self._points[-1][0] >= self._step:
            seconds = round(snapshot.seconds, 3)
            self._points.append((seconds, snapshot.done, snapshot.retries, snapshot.lost_workers))
        if len(self._points) > MOST_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]
            self._step = 1.5 * self._points[-1][0] / len(self._points)
        return list(self._points)


class ProgressFile(Display):
    """A display that writes a file.

    Args:
        write: Writes the content somewhere; an OSError is ignored, as the job itself reports a full disk.
        output: The absolute prefix of the job's output.
        finish: Called once the final state was written.
    """

    seconds = SECONDS

    def __init__(
        self, write: Callable[[bytes], None], *, output: str, finish: Callable[[], None] = lambda: None
    ) -> None:
        self._write_somewhere = write
        self._finish = finish
        self._lock = threading.Lock()
        """Held while the content changes or is written, since the heartbeat writes it too."""
        self._entry: dict[str, Any] = {
            "format": PROGRESS_FORMAT,
            "state": "running",
            "updated": "",
            "started": utc_now(),
            "output": output,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "error": None,
            "message": None,
            "stage": None,
            "finished_stages": [],
        }
        self._series = Series()
        self._write()
        self._heartbeat = Heartbeat(self._write, seconds=BEAT_SECONDS)

    def show(self, snapshot: Snapshot) -> None:
        """Write the running stage; a message is kept until there is progress."""
        before = self._entry["stage"]
        stage = {**_describe(snapshot), "series": self._series.add(snapshot)}
        changes: dict[str, Any] = {"stage": stage}
        if before is not None and before["done"] != stage["done"]:
            changes["message"] = None
        self._write(**changes)

    def end(self, snapshot: Snapshot) -> None:
        """Add the stage to the finished ones."""
        ended = {name: value for name, value in _describe(snapshot).items() if name not in SPEEDS}
        ended["series"] = self._series.add(snapshot, last=True)
        self._write(stage=None, message=None, finished_stages=[*self._entry["finished_stages"], ended])

    def say(self, text: str) -> None:
        """Write the message."""
        self._write(message=hide_secrets(text))

    def close(self, error: BaseException | None) -> None:
        """Write the final state."""
        self._heartbeat.stop()
        if error is None:
            self._write(state="done", message=None)
        else:
            state = "failed" if isinstance(error, Exception) else "stopped"
            self._write(state=state, error=_reason(error), **self._without_series())
        self._finish()

    def _without_series(self) -> dict[str, Any]:
        """Return the stages without their series, so that a full disk has room for the reason of the end."""
        stages = [self._entry["stage"], *self._entry["finished_stages"]]
        stage, *finished = [stage and {**stage, "series": []} for stage in stages]
        return {"stage": stage, "finished_stages": finished}

    def _write(self, **changes: Any) -> None:  # noqa: ANN401 - values of JSON
        with self._lock, contextlib.suppress(OSError):
            self._entry |= {**changes, "updated": utc_now()}
            self._write_somewhere(encode_json(self._entry, newline=True))


class ObjectFile:
    """The object `progress.json` in a work folder in an object store, written at most every OBJECT_SECONDS.

    It is written by another thread, so that a slow store stops nobody.
    """

    def __init__(self, folder: ObjectUrl) -> None:
        self._url = folder.with_suffix(f"/{PROGRESS_FILE}")
        self._written = -OBJECT_SECONDS
        self._sent: Future[Any] | None = None

    def write(self, content: bytes) -> None:
        """Replace the object, unless that was done just now or is being done."""
        is_busy = self._sent is not None and not self._sent.done()
        if is_busy or time.monotonic() - self._written < OBJECT_SECONDS:
            return
        self._written = time.monotonic()
        self._sent = fetch_later(partial(put_object, self._url, content))

    def finish(self) -> None:
        """Wait until nothing is being written, since the folder may be removed next."""
        if self._sent is not None:
            with contextlib.suppress(OutputError):
                self._sent.result()


class LastingFile:
    """A progress file that replaces only what is provably a progress file of dsindex.

    Args:
        path: The file.
        temporary: A path beside it that nobody else uses.
    """

    def __init__(self, path: str, *, temporary: str) -> None:
        self.path = path
        self.temporary = temporary
        self._own: tuple[bytes, ...] = ()
        """What was written last, and before, as a signal may end a write at any point."""
        self.is_foreign = False
        """Whether the name belongs to someone else's file, so that nothing is written any more."""

    def write(self, content: bytes) -> None:
        """Replace the progress file of an earlier run, and then only what was written here; leave other files alone.

        Raises:
            OSError: If it cannot be written.
        """
        found = None if self.is_foreign else _read(self.path)
        if found is not None:
            is_own = found in self._own if self._own else _parse(found) is not None
            self.is_foreign = not is_own
        if self.is_foreign:
            return
        try:
            self._own = (*self._own[-1:], content)
            _write_temporary(self.temporary, content)
            if found is None:
                self._create()
            else:
                os.replace(self.temporary, self.path)
        except OSError as error:
            if found is None or error.errno not in FULL_DISK_ERRORS:
                raise
            _overwrite(self.path, content)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.temporary)

    def _create(self) -> None:
        """Give the name to the file unless another one has it; a file system without links cannot tell."""
        try:
            os.link(self.temporary, self.path)
        except FileExistsError:
            self.is_foreign = True
        except OSError:
            os.replace(self.temporary, self.path)


def read_progress(path: str) -> dict[str, Any] | None:
    """Return the content of a progress file, here or in an object store; None if there is none, or something else."""
    try:
        if not is_url(path):
            return _parse(_read(path) or b"")
        with open_stored(path) as file:
            return _parse(file.read(LARGEST_BYTES + 1)[:LARGEST_BYTES])
    except (OSError, InputError):
        return None


def conclude(file: LastingFile) -> None:
    """Say `done` in the file of a driver that was killed after it had published everything."""
    with contextlib.suppress(OSError):
        entry = _parse(_read(file.path) or b"")
        if entry is not None and entry.get("state") != "done":
            ended = {**entry, "state": "done", "updated": utc_now(), "error": None, "message": None}
            file.write(encode_json(ended, newline=True))


def _describe(snapshot: Snapshot) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(snapshot).items()}


def _reason(error: BaseException) -> str:
    """Return in a sentence why a job ended, with what is kept."""
    if isinstance(error, KeyboardInterrupt | TerminatedError):
        how = "interrupted" if isinstance(error, KeyboardInterrupt) else "terminated"
        return hide_secrets("; ".join([how, *getattr(error, "__notes__", [])[:1]]))
    name = type(error).__name__
    text = str(error) if isinstance(error, DsindexError) else f"{name}: {error}" if str(error) else name
    return hide_secrets(text)


def _write_temporary(path: str, content: bytes) -> None:
    """Write a file, which is not synced: it says nothing that a crash may not take back."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    with open(descriptor, "wb") as file:
        file.write(content)


def _overwrite(path: str, content: bytes) -> None:
    """Write a file where it is, in the room that it has on a full disk; not atomically, but better than old news."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    with open(descriptor, "r+b", buffering=0) as file:
        file.write(content)
        file.truncate()


def _read(path: str) -> bytes | None:
    """Return the content of a file, None if there is none, and nothing of what cannot be a progress file."""
    try:
        return read_own(path, most_bytes=LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.EFBIG, errno.EACCES, errno.EPERM}:  # no file, or someone else's
            return b""
        raise


def _parse(content: bytes) -> dict[str, Any] | None:
    """Return the content of a progress file; None if it is something else."""
    try:
        entry = decode_json(content)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and entry.get("format") == PROGRESS_FORMAT else None
