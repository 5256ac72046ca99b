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
import os
import socket
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError
from dsindex.execution.interrupts import TerminatedError
from dsindex.execution.progress.reporter import Display, Heartbeat
from dsindex.execution.progress.standard_streams import utc_now
from dsindex.execution.ray_token import hide_secrets
from dsindex.json_text import decode_json, encode_json
from dsindex.store.lasting import LastingFile, open_lasting
from dsindex.store.ownership import read_named
from dsindex.store.urls import folder_of

if TYPE_CHECKING:
    from dsindex.execution.progress.reporter import Snapshot

PROGRESS_FILE = "progress.json"
PROGRESS_TEMPORARY = "progress.json.tmp"
PROGRESS_FORMAT = "dsindex progress 1"
PROGRESS_SUFFIX = "progress.json"
SECONDS = 1.0
BEAT_SECONDS = 10.0
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
        file: Where it is written; an OSError is ignored, as the job itself reports a full disk.
        output: The absolute prefix of the job's output.
    """

    seconds = SECONDS

    def __init__(self, file: LastingFile, *, output: str) -> None:
        self._file = file
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

    def note_end(self, snapshot: Snapshot) -> None:
        """Keep the stage for `close` to write: an object may be written only now and then."""
        with self._lock:
            self._entry["stage"] = {**_describe(snapshot), "series": self._series.add(snapshot)}

    def close(self, error: BaseException | None) -> None:
        """Write the final state."""
        self._heartbeat.stop()
        if error is None:
            self._write(state="done", message=None)
        else:
            state = "failed" if isinstance(error, Exception) else "stopped"
            self._write(state=state, error=_reason(error), **self._without_series())
        self._file.finish()

    def _without_series(self) -> dict[str, Any]:
        """Return the stages without their series, so that a full disk has room for the reason of the end."""
        stages = [self._entry["stage"], *self._entry["finished_stages"]]
        stage, *finished = [stage and {**stage, "series": []} for stage in stages]
        return {"stage": stage, "finished_stages": finished}

    def _write(self, **changes: Any) -> None:  # noqa: ANN401 - values of JSON
        with self._lock, contextlib.suppress(OSError):
            self._entry |= {**changes, "updated": utc_now()}
            self._file.write(encode_json(self._entry, newline=True))


def read_progress(path: str) -> dict[str, Any] | None:
    """Return the content of a progress file, here or in an object store; None if there is none, or something else."""
    with contextlib.suppress(DsindexError):
        return _parse(read_named(folder_of(path), os.path.basename(path), most_bytes=LARGEST_BYTES) or b"")
    return None


def open_progress_file(path: str, *, temporary: str) -> LastingFile:
    """Return a progress file, which replaces only what is provably one."""
    return open_lasting(
        path, temporary=temporary, most_bytes=LARGEST_BYTES, is_own=lambda content: _parse(content) is not None
    )


def conclude(file: LastingFile) -> None:
    """Say `done` in the file of a driver that was killed after it had published everything."""
    with contextlib.suppress(OSError):
        entry = _parse(file.read() or b"")
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


def _parse(content: bytes) -> dict[str, Any] | None:
    """Return the content of a progress file; None if it is something else."""
    try:
        entry = decode_json(content)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and entry.get("format") == PROGRESS_FORMAT else None
