"""Show the progress of a command: bars in a terminal or notebook, lines in a log, and a file next to the output.

    {"format": "dsindex progress 1", "state": "running", "updated": "2026-08-01T12:00:00Z", "started": …,
     "output": "/data/out/x", "host": …, "pid": …, "error": null, "message": null, "stage": {…},
     "finished_stages": [{…}]}

`state` is running, done, stopped or failed; `error` says why a command stopped or failed, and `message` is its last
message. A stage has the fields of Snapshot. While a stage runs, the file is replaced about once a second: if `updated`
is then older than a minute, the driver was killed.

Speeds count only the work of this run: shards kept from an earlier run take no time and would make the ETA too short.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError
from dsindex.messages import count, format_size, remove_secrets, short_number, show_name
from dsindex.store.json_text import decode_json, encode_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import TaskID

    from dsindex.runtime.executors import Executor

PROGRESS_SUFFIX = "progress.json"
PROGRESS_FORMAT = "dsindex progress 1"
LINE_SECONDS = 5.0
BAR_SECONDS = 0.2
FILE_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class Snapshot:
    """A stage at one moment."""

    stage: str
    unit: str
    """Unit of `done` and `total`: bytes, or a plural noun such as files."""
    done: int = 0
    """Finished units, including the units of an earlier run."""
    total: int
    tasks: str
    """Plural noun for the tasks: shards, ranges."""
    tasks_done: int = 0
    tasks_total: int
    """Number of tasks; 0 if the stage counts only units."""
    documents: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Seconds since the stage began."""
    speed: float = 0.0
    """Units per second in this run."""
    tokens_per_second: float = 0.0
    """Tokens per second in this run."""
    eta_seconds: float | None = None
    """Estimated seconds until the stage ends; None before the first task of this run ends, and after the stage."""
    retries: int = 0
    """Retries of the command so far."""
    lost_workers: int = 0
    """Workers lost so far."""
    waiting: str | None = None
    """What the stage waits for while no task can run, such as the nodes of a cluster."""

    @property
    def share(self) -> float:
        """Finished share, from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Display:
    """Shows stages and messages; each method is a no-op unless a display overrides it."""

    seconds: float
    """Interval between two snapshots of a stage."""

    def show(self, snapshot: Snapshot, *, ended: bool) -> None:
        """Show a running stage, or the summary of one that ended."""

    def say(self, text: str) -> None:
        """Show a message."""

    def close(self, error: BaseException | None, last: Snapshot | None) -> None:
        """End; `error` is the exception that ended the command, if any, and `last` the stage that it interrupted."""


class PlainDisplay(Display):
    """Writes a line to standard error every few seconds."""

    seconds = LINE_SECONDS

    def show(self, snapshot: Snapshot, *, ended: bool) -> None:
        """Write a line."""
        if ended or snapshot.done < snapshot.total:
            self.say(f"{snapshot.stage}: {describe(snapshot)}")

    def say(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(f"{show_name(text)}\n")
        sys.stderr.flush()


class BarDisplay(Display):
    """Shows a bar per stage in a terminal."""

    seconds = BAR_SECONDS

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        detail = TextColumn("{task.fields[detail]}", table_column=Column(no_wrap=True, ratio=1))
        columns = ("{task.description:8}", BarColumn(bar_width=10), detail)
        self._progress = Progress(*columns, console=Console(stderr=True), expand=True)
        self._progress.start()
        self._task: TaskID | None = None

    def show(self, snapshot: Snapshot, *, ended: bool) -> None:
        """Update the bar; bars of stages that ended stay visible."""
        if self._task is None:
            self._task = self._progress.add_task(snapshot.stage, total=1.0, detail="")
        self._progress.update(self._task, completed=snapshot.share, detail=describe(snapshot))
        self._task = None if ended else self._task

    def say(self, text: str) -> None:
        """Write a line above the bars."""
        self._progress.console.print(show_name(text), highlight=False, markup=False)

    def close(self, error: BaseException | None, last: Snapshot | None) -> None:  # noqa: ARG002 - the command line reports errors
        """Stop updating the bars and leave them visible."""
        self._progress.stop()


class NotebookDisplay(Display):
    """Shows a bar per stage below a notebook cell."""

    seconds = BAR_SECONDS

    def __init__(self) -> None:
        notebook = importlib.import_module("IPython.display")
        self._html, self._lines = notebook.HTML, list[str]()
        self._cell = notebook.display(notebook.HTML(""), display_id=True)

    def show(self, snapshot: Snapshot, *, ended: bool) -> None:
        """Update the bar; bars of stages that ended stay visible."""
        bar = f'{snapshot.stage} <progress value="{snapshot.share}"></progress> {html.escape(describe(snapshot))}'
        self._cell.update(self._html("<br>".join([*self._lines, bar])))
        self._lines += [bar] if ended else []

    def say(self, text: str) -> None:
        """Show a line above the next bar."""
        self._lines.append(html.escape(show_name(text)))


class ProgressFile(Display):
    """Writes PREFIX.progress.json. Ignores I/O errors, since the command itself reports a full disk.

    Args:
        prefix: Absolute prefix of the output, on a disk of this machine.
    """

    seconds = FILE_SECONDS

    def __init__(self, prefix: str) -> None:
        self._path = f"{prefix}.{PROGRESS_SUFFIX}"
        self._entry: dict[str, Any] = {"format": PROGRESS_FORMAT, "state": "running", "updated": ""}
        self._entry |= {"started": utc_now(), "output": prefix, "host": socket.gethostname(), "pid": os.getpid()}
        self._write(error=None, message=None, stage=None, finished_stages=[])

    def show(self, snapshot: Snapshot, *, ended: bool) -> None:
        """Write the stage."""
        stage = asdict(snapshot)
        if ended:
            self._write(stage=None, message=None, finished_stages=[*self._entry["finished_stages"], stage])
        else:
            self._write(stage=stage)

    def say(self, text: str) -> None:
        """Write the message."""
        self._write(message=remove_secrets(text))

    def close(self, error: BaseException | None, last: Snapshot | None) -> None:
        """Write the final state and the stage in which an error occurred."""
        state = "done" if error is None else "failed" if isinstance(error, Exception) else "stopped"
        self._write(state=state, error=error and remove_secrets(_describe_end(error)), stage=last and asdict(last))

    def _write(self, **changes: Any) -> None:  # noqa: ANN401 - values of JSON
        self._entry |= {**changes, "updated": utc_now()}
        with contextlib.suppress(OSError):
            try:
                with open(f"{self._path}.tmp", "wb") as file:
                    file.write(encode_json(self._entry, newline=True))
                os.replace(f"{self._path}.tmp", self._path)
            except OSError:
                os.unlink(f"{self._path}.tmp")


def utc_now() -> str:
    """Return the current time in UTC, as in `2026-08-01T12:00:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def read_progress(path: str) -> dict[str, Any] | None:
    """Return the content of a progress file; None if there is no valid one."""
    try:
        with open(path, "rb") as file:
            entry = decode_json(file.read())
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) and entry.get("format") == PROGRESS_FORMAT else None


def mark_done(prefix: str) -> None:
    """Set the state to `done` if a driver was killed after it had published everything."""
    entry = read_progress(f"{prefix}.{PROGRESS_SUFFIX}")
    if entry is not None and entry.get("state") != "done":
        ProgressFile(prefix).close(None, None)


def _describe_end(error: BaseException) -> str:
    """Return why a command ended; for an interrupted one, also what is kept."""
    if isinstance(error, KeyboardInterrupt):
        return "; ".join([str(error) or "interrupted", *getattr(error, "__notes__", [])[:1]])
    return error.sentence if isinstance(error, DsindexError) else f"{type(error).__name__}: {error}"


class Reporter:
    """Counts the progress of stages and passes it to any number of displays."""

    def __init__(self) -> None:
        self._due_times: dict[Display, float] = {}
        """Display → time of its next snapshot."""
        self._stage: Snapshot | None = None
        self._base = (0, 0)
        """Units and tokens of an earlier run, which speeds do not count."""
        self._began = 0.0
        self._executor: Executor | None = None

    @contextlib.contextmanager
    def show_on(self, *displays: Display) -> Iterator[Reporter]:
        """Also show progress on these displays while the block runs; the running stage ends with the block."""
        self._due_times |= dict.fromkeys(displays, 0.0)
        error: BaseException | None = None
        try:
            yield self
            self.end_stage()
        except BaseException as raised:
            error = raised
            raise
        finally:
            last = self._stage and self._snapshot(self._stage)
            for display in displays:
                display.close(error, last)
                del self._due_times[display]

    def follow(self, executor: Executor) -> None:
        """Show which cluster runs the job, what the job waits for, and its retries and lost workers."""
        self._executor = executor
        executor.on_idle = self.tick
        if executor.introduction is not None:
            self.say(executor.introduction)

    def stage(self, name: str, *, total: int, unit: str, tasks: int = 0, task_name: str = "shards") -> None:
        """Begin a stage of `total` units, done in `tasks` tasks."""
        self.end_stage()
        self._stage = Snapshot(stage=name, unit=unit, total=total, tasks=task_name, tasks_total=tasks)
        self._base, self._began = (0, 0), time.monotonic()
        self._due_times = {display: self._began + display.seconds for display in self._due_times}

    def advance(self, amount: int, *, tasks: int = 1, documents: int = 0, tokens: int = 0, fresh: bool = True) -> None:
        """Count finished work.

        Args:
            amount: Finished units.
            tasks: Finished tasks.
            documents: Documents.
            tokens: Tokens.
            fresh: False for work of an earlier run, which must be counted first.
        """
        if (stage := self._stage) is not None:
            stage.done += amount
            stage.tasks_done += tasks
            stage.documents += documents
            stage.tokens += tokens
            self._base = self._base if fresh else (stage.done, stage.tokens)
        self.tick()

    def tick(self) -> None:
        """Show a snapshot on every display whose interval has passed."""
        now = time.monotonic()
        due_displays = [display for display, due_time in self._due_times.items() if due_time <= now]
        if self._stage is not None and due_displays:
            snapshot = self._snapshot(self._stage)
            for display in due_displays:
                display.show(snapshot, ended=False)
                self._due_times[display] = now + display.seconds

    def say(self, text: str) -> None:
        """Show a message."""
        for display in self._due_times:
            display.say(text)

    def end_stage(self) -> None:
        """End the running stage, if there is one."""
        if self._stage is not None:
            snapshot = replace(self._snapshot(self._stage), eta_seconds=None, waiting=None)
            for display in self._due_times:
                display.show(snapshot, ended=True)
        self._stage = None

    def _snapshot(self, stage: Snapshot) -> Snapshot:
        """Return a stage with its speeds."""
        seconds = max(1e-6, time.monotonic() - self._began)
        speed, tokens_per_second = ((stage.done - self._base[0]) / seconds, (stage.tokens - self._base[1]) / seconds)
        snapshot = replace(stage, seconds=round(seconds, 3), speed=round(speed, 3))
        snapshot.tokens_per_second = round(tokens_per_second, 3)
        if (executor := self._executor) is not None:
            snapshot.waiting, snapshot.retries = executor.waiting, executor.retries
            snapshot.lost_workers = executor.lost_workers
        if stage.total > stage.done and speed > 0 and snapshot.waiting is None:
            snapshot.eta_seconds = round((stage.total - stage.done) / speed, 3)
        return snapshot


def choose_display() -> Display:
    """Return bars in a terminal or notebook, otherwise lines on standard error."""
    if "ipykernel" in sys.modules:
        return NotebookDisplay()
    return BarDisplay() if sys.stderr.isatty() else PlainDisplay()


def describe(snapshot: Snapshot) -> str:
    """Describe a stage: share, counts, speeds, time left and retries, or what it waits for."""
    if snapshot.waiting:
        return snapshot.waiting
    if snapshot.done >= snapshot.total:
        parts = [f"done in {format_duration(snapshot.seconds)}"]
        parts += [format_size(snapshot.total)] if snapshot.unit == "bytes" and snapshot.total else []
    else:
        counts = (snapshot.done, snapshot.total, snapshot.unit)
        if snapshot.unit == "bytes":
            counts = (snapshot.tasks_done, snapshot.tasks_total, snapshot.tasks)
        parts = [f"{snapshot.share:.0%}", *([f"{counts[0]:,} of {counts[1]:,} {counts[2]}"] if counts[1] > 1 else [])]
    parts += [f"{format_size(snapshot.speed)}/s"] if snapshot.unit == "bytes" and snapshot.speed > 0 else []
    parts += [f"{short_number(snapshot.tokens_per_second)} tokens/s"] if snapshot.tokens_per_second > 0 else []
    parts += [f"ETA {format_duration(snapshot.eta_seconds)}"] if snapshot.eta_seconds is not None else []
    troubles = ((snapshot.retries, "retry", "retries"), (snapshot.lost_workers, "lost worker", "lost workers"))
    parts += [f"{number:,} {singular if number == 1 else plural}" for number, singular, plural in troubles if number]
    parts += [count(snapshot.documents, "document")] if snapshot.documents else []
    return ", ".join(parts)


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> format_duration(3.21), format_duration(192), format_duration(11532)
    ('3.2 s', '3:12 min', '3:12:12 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remaining_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remaining_seconds:02} h" if hours else f"{minutes}:{remaining_seconds:02} min"
