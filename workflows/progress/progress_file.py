"""`progress.json` in the work folder: a job's progress for other tools, replaced atomically about once a second.

    {"format": "dsindex progress 1", "state": "running", "updated": "2026-08-01T12:00:00Z", "started": …,
     "host": …, "pid": …, "error": null, "stage": {…}, "finished_stages": [{…}]}

`state` is running, done, failed or stopped (by a signal); a stage's fields are those of
workflows.progress.snapshot.Snapshot. If a file is in state running and has not been updated for minutes, its driver was
killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsindex.json_text import decode_json, encode_json
from workflows.progress.displays import utc_now

if TYPE_CHECKING:
    from workflows.progress.snapshot import Snapshot

PROGRESS_FILE = "progress.json"
PROGRESS_TEMPORARY = "progress.json.tmp"
PROGRESS_FORMAT = "dsindex progress 1"
SECONDS = 1.0


class ProgressFile:
    """A display that writes a file."""

    seconds = SECONDS

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._started = utc_now()
        self._stage: dict[str, Any] | None = None
        self._finished: list[dict[str, Any]] = []
        self._write("running")

    def show(self, snapshot: Snapshot) -> None:
        """Write the running stage."""
        self._stage = asdict(snapshot)
        self._write("running")

    def end(self, snapshot: Snapshot) -> None:
        """Add the stage to the finished ones."""
        self._stage = None
        self._finished.append(asdict(snapshot))
        self._write("running")

    def say(self, text: str) -> None:
        """Do nothing: the file has figures only."""

    def close(self, error: BaseException | None) -> None:
        """Write the final state."""
        ended = "failed" if isinstance(error, Exception) else "stopped"
        self._write("done" if error is None else ended, error)

    def _write(self, state: str, error: BaseException | None = None) -> None:
        entry = {
            "format": PROGRESS_FORMAT,
            "state": state,
            "updated": utc_now(),
            "started": self._started,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "error": None if error is None else str(error) or type(error).__name__,
            "stage": self._stage,
            "finished_stages": self._finished,
        }
        _replace(self._folder, entry)


def record_stop(folder: str, stop: BaseException) -> None:
    """Write that this process was stopped, unless its job has ended already."""
    path = os.path.join(folder, PROGRESS_FILE)
    entry: object = None
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        entry = decode_json(file.read())
    if not isinstance(entry, dict) or entry.get("pid") != os.getpid() or entry.get("host") != socket.gethostname():
        ProgressFile(folder).close(stop)
    elif entry.get("state") == "running":
        _replace(folder, {**entry, "state": "stopped", "updated": utc_now(), "error": str(stop)})


def _replace(folder: str, entry: dict[str, Any]) -> None:
    # Neither synced nor required: the job itself reports a full disk.
    with contextlib.suppress(OSError):
        temporary = os.path.join(folder, PROGRESS_TEMPORARY)
        with open(temporary, "wb") as file:
            file.write(encode_json(entry, indent=True, newline=True))
        os.replace(temporary, os.path.join(folder, PROGRESS_FILE))
