"""Progress on standard error: a bar in a terminal, a plain line every few seconds in a log, JSON lines for machines."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.amounts import count, format_speed, format_token_speed
from workflows.progress.json_lines import write_json_line
from workflows.progress.standard_streams import show_lines

if TYPE_CHECKING:
    from rich.progress import TaskID

    from workflows.progress.snapshot import Snapshot

LINE_SECONDS = 5.0
WAITING_SECONDS = 30.0
"""Interval at which a log is told again that a stage is waiting for the same."""
BAR_SECONDS = 0.2


class PlainDisplay:
    """A line every few seconds."""

    def __init__(self, *, seconds: float = LINE_SECONDS) -> None:
        self.seconds = seconds
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
        self.say(f"{snapshot.stage}: {describe_end(snapshot)}")

    def say(self, text: str) -> None:
        """Write a line."""
        sys.stderr.write(show_lines(text) + "\n")
        sys.stderr.flush()

    def close(self, error: BaseException | None) -> None:
        """Do nothing: the command line reports errors."""


class JsonDisplay:
    """Structured logs: one JSON object per line, with `time` and `event`."""

    def __init__(self, *, seconds: float = LINE_SECONDS) -> None:
        self.seconds = seconds

    def show(self, snapshot: Snapshot) -> None:
        """Write an object of event `progress`."""
        write_json_line("progress", asdict(snapshot))

    def end(self, snapshot: Snapshot) -> None:
        """Write an object of event `stage`."""
        write_json_line("stage", asdict(snapshot))

    def say(self, text: str) -> None:
        """Write an object of event `message`."""
        write_json_line("message", {"message": text})

    def close(self, error: BaseException | None) -> None:
        """Do nothing: the command line reports errors."""


class BarDisplay:
    """A bar per stage."""

    seconds = BAR_SECONDS

    def __init__(self) -> None:
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
        self._progress.console.print(show_lines(text), highlight=False, markup=False)

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 - the command line reports errors
        """Stop updating the bars and leave them visible."""
        self._progress.stop()


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
