"""Counts the progress of a job and passes it to displays, which know nothing about jobs.

Speeds count only fresh work: work kept from an earlier run takes no time now and would make the ETA too short.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from workflows.execution.dispatch import DispatchStatistics
from workflows.progress.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from workflows.execution.calls import Executor
    from workflows.progress.snapshot import Display

WINDOW_SECONDS = 30.0
"""The shortest window over which the recent speed is computed."""
WINDOW_SHARE = 0.1
"""The window as a share of the stage's duration, if that is longer, so that a long job's ETA is steady."""
WINDOW_SAMPLES = 60
"""Number of samples kept of a window."""


class Reporter:
    """Passes the progress of a job to any number of displays."""

    def __init__(self, *displays: Display) -> None:
        self._displays = list(displays)
        self._due: dict[Display, float] = dict.fromkeys(displays, 0.0)
        self._stage: _Stage | None = None
        self._statistics = self._before = DispatchStatistics()
        self._executor: Executor | None = None

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.end_stage()
        for display in self._displays:
            display.close(error)
        self._displays, self._due = [], {}

    @contextlib.contextmanager
    def showing(self, *displays: Display) -> Iterator[None]:
        """Show on more displays while the block runs; the running stage ends with it."""
        self._displays += displays
        self._due |= dict.fromkeys(displays, 0.0)
        error: BaseException | None = None
        try:
            yield
            self.end_stage()
        except BaseException as raised:
            error = raised
            raise
        finally:
            for display in displays:
                self._displays.remove(display)
                del self._due[display]
                display.close(error)

    def close_displays(self, error: BaseException) -> None:
        """Let all displays say that the job has ended, where no block that shows them will."""
        for display in self._displays:
            display.close(error)

    def watch(self, statistics: DispatchStatistics) -> None:
        """Show the retries, lost workers and stragglers that these statistics count from now on, for each stage."""
        self._statistics, self._before = statistics, replace(statistics)

    def follow(self, executor: Executor) -> None:
        """Show what this executor is waiting for while it cannot run tasks."""
        self._executor = executor

    def stage(self, name: str, *, total: int, unit: str, tasks: int = 0, task_name: str = "shards") -> None:
        """Begin a stage of `total` units, done in `tasks` tasks."""
        self.end_stage()
        self._stage = _Stage(name, total, unit, tasks, task_name)
        self._before = replace(self._statistics)
        now = time.monotonic()
        self._due = {display: now + display.seconds for display in self._due}

    def advance(
        self,
        amount: int,
        *,
        tasks: int = 1,
        documents: int = 0,
        tokens: int = 0,
        fresh: bool = True,
        task: int | None = None,
    ) -> None:
        """Count finished work.

        Args:
            amount: Units.
            tasks: Tasks that ended.
            documents: Documents.
            tokens: Tokens.
            fresh: False for an earlier run's work, which does not count for speeds.
            task: The task that `count_running` knows, whose work so far this replaces.
        """
        if self._stage is not None:
            self._stage.end_task(task)
            self._stage.add(amount, tasks, documents, tokens, fresh=fresh)
        self.tick()

    def count_running(self, task: int) -> Callable[[int, int, int], None]:
        """Return a function that counts a running task's units, documents and tokens so far, called from any thread.

        The task's second attempt counts from where the first came to, so progress never goes back.
        """
        return _ignore if self._stage is None else self._stage.begin_task(task)

    def tick(self) -> None:
        """Show a snapshot on every display whose interval has passed."""
        if self._stage is None:
            return
        now = time.monotonic()
        waiting = [display for display, due in self._due.items() if due <= now]
        if waiting:
            snapshot = self._snapshot(self._stage, now)
            for display in waiting:
                display.show(snapshot)
                self._due[display] = now + display.seconds

    def say(self, text: str) -> None:
        """Show a message."""
        for display in self._displays:
            display.say(text)

    def _snapshot(self, stage: _Stage, now: float, *, ended: bool = False) -> Snapshot:
        of_stage = DispatchStatistics(
            retries=self._statistics.retries - self._before.retries,
            lost_workers=self._statistics.lost_workers - self._before.lost_workers,
            stragglers=self._statistics.stragglers - self._before.stragglers,
        )
        snapshot = stage.snapshot(of_stage, now, ended=ended)
        waiting = None if ended or self._executor is None else self._executor.waiting
        return snapshot if waiting is None else replace(snapshot, waiting=waiting, eta_seconds=None)

    def end_stage(self) -> None:
        """End the running stage, if there is one."""
        if self._stage is not None:
            snapshot = self._snapshot(self._stage, time.monotonic(), ended=True)
            for display in self._displays:
                display.end(snapshot)
        self._stage = None


class _Stage:
    """Counts and speeds of one stage."""

    def __init__(self, name: str, total: int, unit: str, tasks: int, task_name: str) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._tasks, self._task_name = tasks, task_name
        self._done = self._tasks_done = self._documents = self._tokens = 0
        self._fresh = self._fresh_tokens = 0
        self._began = time.monotonic()
        self._samples = deque([(self._began, 0, 0)])
        """Time, fresh units and fresh tokens, from about one window ago until now."""
        self._running: dict[int, tuple[int, int, int]] = {}
        """Running task → its units, documents and tokens so far."""
        self._lock = threading.Lock()
        """Held while running tasks change, which their threads do."""

    def begin_task(self, task: int) -> Callable[[int, int, int], None]:
        with self._lock:
            self._running[task] = (0, 0, 0)

        def count(amount: int, documents: int, tokens: int) -> None:
            with self._lock:
                before = self._running.get(task)
                if before is not None:  # otherwise another attempt ended meanwhile
                    self._running[task] = (
                        max(before[0], amount),
                        max(before[1], documents),
                        max(before[2], tokens),
                    )

        return count

    def end_task(self, task: int | None) -> None:
        if task is not None:
            with self._lock:
                self._running.pop(task, None)

    def add(self, amount: int, tasks: int, documents: int, tokens: int, *, fresh: bool) -> None:
        self._done += amount
        self._tasks_done += tasks
        self._documents += documents
        self._tokens += tokens
        if fresh:
            self._fresh += amount
            self._fresh_tokens += tokens

    def snapshot(self, statistics: DispatchStatistics, now: float, *, ended: bool = False) -> Snapshot:
        with self._lock:
            running = [sum(amounts) for amounts in zip((0, 0, 0), *self._running.values(), strict=True)]
        fresh_now, fresh_tokens = self._fresh + running[0], self._fresh_tokens + running[2]
        seconds = max(1e-6, now - self._began)
        average = fresh_now / seconds
        before, fresh, tokens = (self._began, 0, 0) if ended else self._recent(now, fresh_now, fresh_tokens)
        passed = max(1e-6, now - before)
        speed = (fresh_now - fresh) / passed
        done = self._done + running[0]
        left = self._total - done
        return Snapshot(
            stage=self._name,
            unit=self._unit,
            done=done,
            total=self._total,
            tasks=self._task_name,
            tasks_done=self._tasks_done,
            tasks_total=self._tasks,
            documents=self._documents + running[1],
            tokens=self._tokens + running[2],
            seconds=seconds,
            speed=speed,
            average_speed=average,
            tokens_per_second=(fresh_tokens - tokens) / passed,
            eta_seconds=left / speed if left > 0 and speed > 0 else None,
            retries=statistics.retries,
            lost_workers=statistics.lost_workers,
            stragglers=statistics.stragglers,
        )

    def _recent(self, now: float, fresh: int, fresh_tokens: int) -> tuple[float, int, int]:
        """Return the counts of about one window ago, and store the current ones."""
        window = max(WINDOW_SECONDS, WINDOW_SHARE * (now - self._began))
        while len(self._samples) > 1 and self._samples[1][0] <= now - window:
            self._samples.popleft()
        if now - self._samples[-1][0] >= window / WINDOW_SAMPLES:
            self._samples.append((now, fresh, fresh_tokens))
        return self._samples[0]


def _ignore(_amount: int, _documents: int, _tokens: int) -> None:
    """Count nothing, outside a stage."""
