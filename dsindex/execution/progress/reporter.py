"""Progress of a job: snapshots of its stages, and the reporter that passes them to displays, which know no jobs.

Speeds count only fresh work: work kept from an earlier run takes no time now and would make the ETA too short.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsindex.execution.dispatch import DispatchStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from dsindex.execution.calls import Executor

WINDOW_SECONDS = 30.0
"""The shortest window over which the recent speed is computed."""
WINDOW_SHARE = 0.1
"""The window as a share of the stage's duration, if that is longer, so that a long job's ETA is steady."""
WINDOW_SAMPLES = 60
"""Number of samples kept of a window."""
JOIN_SECONDS = 5.0
"""How long the end of a job waits for a heartbeat that hangs, such as a write to a server that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A stage at one moment, with everything that displays show."""

    stage: str
    unit: str
    """Unit of `done` and `total`: bytes, or things such as datasets."""
    done: int = 0
    """Finished units, including an earlier run's."""
    total: int
    tasks: str
    """Name of the stage's tasks: shards, ranges."""
    tasks_done: int = 0
    tasks_total: int
    """Number of tasks; 0 if the stage counts only units."""
    documents: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Seconds since the stage began."""
    speed: float = 0.0
    """Recent units per second of fresh work."""
    average_speed: float = 0.0
    """Units per second of fresh work since the stage began."""
    tokens_per_second: float = 0.0
    """Recent tokens per second of fresh work; of a stage that ended, the average."""
    eta_seconds: float | None = None
    """Estimated seconds until the stage ends; None if no fresh work is done yet, or none is left."""
    retries: int = 0
    """Retries in this stage."""
    lost_workers: int = 0
    """Workers lost in this stage."""
    stragglers: int = 0
    """Second attempts at slow tasks in this stage."""
    waiting: str | None = None
    """What the stage is waiting for while no task can run, such as a cluster's nodes."""

    @property
    def share(self) -> float:
        """Share that is done, from 0 to 1."""
        return self.done / self.total if self.total else 1.0


class Display:
    """Shows snapshots and messages; each method is a no-op unless a display overrides it."""

    seconds: float
    """Interval between two snapshots."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a running stage."""

    def end(self, snapshot: Snapshot) -> None:
        """Show a stage that ended."""

    def say(self, text: str) -> None:
        """Show a message."""

    def note_end(self, snapshot: Snapshot) -> None:
        """Note how far the running stage came when the job failed, before `close`."""

    def close(self, error: BaseException | None) -> None:
        """Stop showing; `error` is the exception that ended the job, if any."""


class Heartbeat:
    """Calls a function from another thread every few seconds until it is stopped, even while the driver is busy.

    So a watcher can tell a busy driver from a dead one.
    """

    def __init__(self, function: Callable[[], None], *, seconds: float) -> None:
        self._stop = threading.Event()

        def beat() -> None:
            while not self._stop.wait(seconds):
                function()

        self._thread = threading.Thread(target=beat, daemon=True, name="dsindex-heartbeat")
        self._thread.start()

    def stop(self) -> None:
        """Stop; the function is not called any more."""
        self._stop.set()
        self._thread.join(JOIN_SECONDS)


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
                self._close(display, error)  # first, so that a second signal meets it among those to close, or closed
                self._displays.remove(display)
                del self._due[display]

    def close_displays(self, error: BaseException) -> None:
        """Let all displays say that the job has ended, where no block that shows them will."""
        for display in self._displays:
            self._close(display, error)

    def _close(self, display: Display, error: BaseException | None) -> None:
        if error is not None and self._stage is not None:
            display.note_end(self._snapshot(self._stage, time.monotonic()))
        display.close(error)

    def watch(self, statistics: DispatchStatistics) -> None:
        """Show the retries, lost workers and stragglers that these statistics count from now on, for each stage."""
        self._statistics, self._before = statistics, replace(statistics)

    def follow(self, executor: Executor) -> None:
        """Show the executor's note, and what it is waiting for while it cannot run tasks."""
        self._executor = executor
        if executor.note is not None:
            self.say(executor.note)

    def stage(self, name: str, *, total: int, unit: str, tasks: int = 0, task_name: str = "shards") -> None:
        """Begin a stage of `total` units, done in `tasks` tasks."""
        self.end_stage()
        self._stage = _Stage(Snapshot(stage=name, unit=unit, total=total, tasks=task_name, tasks_total=tasks))
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
        return (lambda *_: None) if self._stage is None else self._stage.begin_task(task)

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
        snapshot = replace(
            stage.snapshot(now, ended=ended),
            retries=self._statistics.retries - self._before.retries,
            lost_workers=self._statistics.lost_workers - self._before.lost_workers,
            stragglers=self._statistics.stragglers - self._before.stragglers,
        )
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

    def __init__(self, counted: Snapshot) -> None:
        self._counted = counted
        """The tasks that ended."""
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
                    self._running[task] = (max(before[0], amount), max(before[1], documents), max(before[2], tokens))

        return count

    def end_task(self, task: int | None) -> None:
        if task is not None:
            with self._lock:
                self._running.pop(task, None)

    def add(self, amount: int, tasks: int, documents: int, tokens: int, *, fresh: bool) -> None:
        before = self._counted
        self._counted = replace(
            before,
            done=before.done + amount,
            tasks_done=before.tasks_done + tasks,
            documents=before.documents + documents,
            tokens=before.tokens + tokens,
        )
        if fresh:
            self._fresh += amount
            self._fresh_tokens += tokens

    def snapshot(self, now: float, *, ended: bool) -> Snapshot:
        with self._lock:
            amount, documents, tokens = map(sum, zip((0, 0, 0), *self._running.values(), strict=True))
        fresh_now, fresh_tokens = self._fresh + amount, self._fresh_tokens + tokens
        began, fresh_then, tokens_then = (self._began, 0, 0) if ended else self._recent(now, fresh_now, fresh_tokens)
        passed, seconds = max(1e-6, now - began), max(1e-6, now - self._began)
        counted = self._counted
        speed = (fresh_now - fresh_then) / passed
        left = counted.total - counted.done - amount
        return replace(
            counted,
            done=counted.done + amount,
            documents=counted.documents + documents,
            tokens=counted.tokens + tokens,
            seconds=seconds,
            speed=speed,
            average_speed=fresh_now / seconds,
            tokens_per_second=(fresh_tokens - tokens_then) / passed,
            eta_seconds=left / speed if left > 0 and speed > 0 else None,
        )

    def _recent(self, now: float, fresh: int, fresh_tokens: int) -> tuple[float, int, int]:
        """Return the counts of about one window ago, and store the current ones."""
        window = max(WINDOW_SECONDS, WINDOW_SHARE * (now - self._began))
        while len(self._samples) > 1 and self._samples[1][0] <= now - window:
            self._samples.popleft()
        if now - self._samples[-1][0] >= window / WINDOW_SAMPLES:
            self._samples.append((now, fresh, fresh_tokens))
        return self._samples[0]
