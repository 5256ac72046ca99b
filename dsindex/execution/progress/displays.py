"""The displays of a job: a bar in a terminal, plain lines in a log, JSON lines for machines, Ray's metrics, and a file.

Ray's metrics are Prometheus gauges `ray_dsindex_…`, scraped from the node where the driver runs. Ray's metrics agent
keeps a counter for as long as its node lives, and a gauge for about 20 s after it was set last. So everything is a
gauge, counts as well: they begin at 0, are set again and again while the driver lives, and end with it. What is unknown
is not set, so it has no series.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.amounts import count, format_speed, format_token_speed
from dsindex.execution.progress.progress_file import (
    PROGRESS_FILE,
    PROGRESS_TEMPORARY,
    ProgressFile,
    open_progress_file,
)
from dsindex.execution.progress.reporter import Display, Heartbeat, Reporter
from dsindex.execution.progress.standard_streams import show_lines, use_json_lines, write_json_line
from dsindex.json_text import show_name
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from rich.progress import TaskID

    from dsindex.execution.calls import Executor
    from dsindex.execution.progress.reporter import Snapshot

LINE_SECONDS = 5.0
WAITING_SECONDS = 30.0
"""Interval at which a log is told again that a stage is waiting for the same."""
BAR_SECONDS = 0.2
GAUGES = {
    "done": "finished units of the stage: bytes, or things such as datasets",
    "total": "units of the stage",
    "tasks_done": "finished tasks of the stage",
    "tasks_total": "tasks of the stage",
    "speed": "recent units per second",
    "tokens_per_second": "recent tokens per second",
    "eta_seconds": "estimated seconds until the stage ends; absent while it is unknown",
}
"""Set while their stage runs, from fields of snapshots."""
COUNTS = {
    "documents": "documents tokenized, or kept from an earlier run",
    "tokens": "tokens made, or kept from an earlier run",
    "retries": "attempts that were retried",
    "lost_workers": "workers lost while they ran a task",
    "stragglers": "tasks so slow that a second attempt was started",
}
"""Named `…_total` and set until the driver ends; they only grow."""
LABELS = ("build", "stage")
BEAT_SECONDS = 5.0
"""Shorter than the 10 s at which Ray exports metrics."""


class PlainDisplay(Display):
    """A line every few seconds.

    Args:
        seconds: The interval.
        has_ends: Whether a stage that ended has a line as well.
    """

    def __init__(self, *, seconds: float = LINE_SECONDS, has_ends: bool = True) -> None:
        self.seconds = seconds
        self._has_ends = has_ends
        self._reason = ""
        """What the stage was waiting for when the last line was written."""
        self._next_line = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Write a line, but not often about the same that is waited for."""
        reason = (snapshot.waiting or "").partition("; ")[2]
        now = time.monotonic()
        if reason and reason == self._reason and now < self._next_line:
            return
        self._reason, self._next_line = reason, now + WAITING_SECONDS
        share = "" if snapshot.waiting else f"{snapshot.share:.0%}, "
        self.say(f"{snapshot.stage}: {share}{describe(snapshot)}")

    def end(self, snapshot: Snapshot) -> None:
        """Write the stage's summary."""
        if self._has_ends:
            self.say(f"{snapshot.stage}: {describe_end(snapshot)}")

    def say(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(show_lines([text]))
        sys.stderr.flush()


class JsonDisplay(Display):
    """Structured logs: one JSON object per line, with `time` and `event`."""

    seconds = LINE_SECONDS

    def show(self, snapshot: Snapshot) -> None:
        """Write an object of event `progress`."""
        write_json_line("progress", asdict(snapshot))

    def end(self, snapshot: Snapshot) -> None:
        """Write an object of event `stage`."""
        write_json_line("stage", asdict(snapshot))

    def say(self, text: str) -> None:
        """Write an object of event `message`."""
        write_json_line("message", {"message": text})


class BarDisplay(Display):
    """A bar per stage.

    Args:
        is_transient: Whether the bars are removed at the end.
    """

    seconds = BAR_SECONDS

    def __init__(self, *, is_transient: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description:9}"),
            BarColumn(bar_width=24 if console.width >= 100 else 10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[detail]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
            console=console,
            expand=True,
            transient=is_transient,
        )
        self._progress.start()
        self._task: TaskID | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Update the bar."""
        self._update(snapshot, describe(snapshot, most_important_first=True))

    def end(self, snapshot: Snapshot) -> None:
        """Leave a full bar with the stage's summary."""
        self._update(snapshot, describe_end(snapshot))
        self._task = None

    def _update(self, snapshot: Snapshot, detail: str) -> None:
        if self._task is None:
            self._task = self._progress.add_task(snapshot.stage, detail="")
        # The bar of an empty stage is full.
        total, done = (snapshot.total, snapshot.done) if snapshot.total else (1, 1)
        self._progress.update(self._task, total=total, completed=done, detail=detail)

    def say(self, text: str) -> None:
        """Write a line above the bars."""
        self._progress.console.print(show_name(text), highlight=False, markup=False)

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 - the command line reports errors
        """Stop updating the bars and leave them visible."""
        self._progress.stop()


class RayMetrics(Display):
    """A display that sends figures to Ray's metrics agent.

    Args:
        build: The value of the label `build`: the prefix of the build's output.
    """

    seconds = 2.0

    def __init__(self, *, build: str) -> None:
        from ray.util.metrics import Gauge  # Ray takes 0.7 s to import

        # Ray accepts ASCII only.
        self._build = show_name(build).encode("ascii", "backslashreplace").decode()
        self._gauges = {name: Gauge(f"dsindex_{name}", text, LABELS) for name, text in GAUGES.items()}
        self._counts = {name: Gauge(f"dsindex_{name}_total", text, LABELS) for name, text in COUNTS.items()}
        self._lock = threading.Lock()
        self._running: Snapshot | None = None
        self._stages: dict[str, Snapshot] = {}
        """The last snapshot of every stage so far."""
        self._heartbeat = Heartbeat(self._send, seconds=BEAT_SECONDS)

    def show(self, snapshot: Snapshot) -> None:
        """Set the figures of the running stage, and the counts of all."""
        with self._lock:
            self._running = self._stages[snapshot.stage] = snapshot
        self._send()

    def end(self, snapshot: Snapshot) -> None:
        """Set the last figures of a stage; from then on only its counts."""
        self.show(snapshot)
        with self._lock:
            self._running = None

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 - figures do not tell how a job ended
        """Stop setting figures; Ray drops them soon."""
        self._heartbeat.stop()

    def _send(self) -> None:
        with self._lock:
            figures = [] if self._running is None else [(self._running, self._gauges)]
            figures += [(stage, self._counts) for stage in self._stages.values()]
            for snapshot, gauges in figures:
                for name, gauge in gauges.items():
                    if (value := getattr(snapshot, name)) is not None:
                        gauge.set(value, {"build": self._build, "stage": snapshot.stage})


def displays_of_job(work_dir: str, executor: Executor, *, output: str | None = None) -> list[Display]:
    """Return the displays of a job with a work folder besides standard error: a file, and Ray's metrics.

    Args:
        work_dir: The work folder.
        executor: The executor of the job's tasks.
        output: The absolute prefix of the job's output, which names the build; None: the work folder.
    """
    output = output or work_dir
    file = open_progress_file(joined(work_dir, PROGRESS_FILE), temporary=joined(work_dir, PROGRESS_TEMPORARY))
    displays: list[Display] = [ProgressFile(file, output=output)]
    if executor.kind == "ray":
        displays.append(RayMetrics(build=output))
    return displays


def make_reporter(*, log_json: bool = False, has_table: bool = False) -> Reporter:
    """Return a reporter on standard error: JSON lines on request, a bar in a terminal, otherwise plain lines.

    Args:
        log_json: Write JSON lines.
        has_table: Whether a table of results follows; then bars are removed, and only a long stage has plain lines.
    """
    if log_json:
        use_json_lines()
        return Reporter(JsonDisplay())
    if sys.stderr.isatty():
        return Reporter(BarDisplay(is_transient=has_table))
    return Reporter(PlainDisplay(seconds=WAITING_SECONDS, has_ends=False) if has_table else PlainDisplay())


def describe(snapshot: Snapshot, *, most_important_first: bool = False) -> str:
    """Return a stage's counts, speeds, remaining time and troubles, as far as they are known, or what it waits for."""
    if snapshot.waiting:
        return snapshot.waiting
    eta = [] if snapshot.eta_seconds is None else [f"ETA {format_duration(snapshot.eta_seconds)}"]
    speeds = _speeds(snapshot, snapshot.speed)
    counts = _counts(snapshot)
    troubles = _troubles(snapshot)
    parts = [*eta, *troubles, *speeds, *counts] if most_important_first else [*counts, *speeds, *eta, *troubles]
    return ", ".join(parts)


def describe_end(snapshot: Snapshot) -> str:
    """Return the summary of a stage that ended."""
    parts = [*_counts(snapshot), *_speeds(snapshot, snapshot.average_speed), *_troubles(snapshot)]
    return ", ".join([f"done in {format_duration(snapshot.seconds)}", *parts])


def _counts(snapshot: Snapshot) -> list[str]:
    parts = []
    if snapshot.unit != "bytes":
        parts.append(f"{snapshot.done:,}/{snapshot.total:,} {snapshot.unit}")
    elif snapshot.tasks_total:
        parts.append(f"{snapshot.tasks_done:,}/{snapshot.tasks_total:,} {snapshot.tasks}")
    if snapshot.documents:
        parts.append(count(snapshot.documents, "document"))
    return parts


def _speeds(snapshot: Snapshot, speed: float) -> list[str]:
    parts = []
    if snapshot.unit == "bytes" and speed > 0:
        parts.append(format_speed(speed))
    if snapshot.tokens_per_second > 0:
        parts.append(format_token_speed(snapshot.tokens_per_second))
    return parts


def _troubles(snapshot: Snapshot) -> list[str]:
    troubles = {
        "retry": snapshot.retries,
        "lost worker": snapshot.lost_workers,
        "straggler": snapshot.stragglers,
    }
    plurals = {"retry": "retries"}
    return [
        f"{number:,} {name if number == 1 else plurals.get(name, name + 's')}"
        for name, number in troubles.items()
        if number
    ]


def format_duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> format_duration(3.21), format_duration(192), format_duration(11532)
    ('3.2 s', '3:12 min', '3:12:12 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"
