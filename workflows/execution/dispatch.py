"""Run many calls on an executor: bounded in flight, retried where the machine failed, never where the data did.

Two budgets are kept apart. A data fault (dsindex's own errors) is final at once. A machine fault (a lost worker, an I/O
error) is tried again, a few times per call, with a pause that grows. A call past its deadline is dispatched a second
time and whichever attempt ends first counts: attempts write under names of their own, so the other one does no harm.

Storage that answers with I/O errors gets fewer calls at once: half as many after each error, and one more after every
so many that went well. Storage that is merely slow slows the calls themselves, which sync what they write: never more
of them are started than there are slots, and they then count as slow for all, not as stragglers.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dsindex.errors import DsindexError, TaskError
from dsindex.storage import FULL_DISK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from workflows.execution.calls import Call, Executor, Outcome

K = TypeVar("K")
"""What the driver knows a call by: a number, a shard, a range of the output."""

POLL_SECONDS = 0.5

DEFAULT_DEADLINE_SECONDS = 3600.0
"""Until enough calls have ended to know how long they take."""
STRAGGLER_FACTOR = 8
"""A call is overdue after so many medians of those of its function that ended last,"""
STRAGGLER_MIN_SECONDS = 60.0
"""and at least so many seconds,"""
STRAGGLER_CALLS = 10
"""as soon as so many have ended."""
REMEMBERED_CALLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How machine faults are answered."""

    attempts: int = 4
    """Attempts at one call that may end in an I/O error."""
    lost_workers: int = 3
    """Workers that one call may lose before it is named as their killer."""
    first_pause_seconds: float = 0.5
    """Before the first retry of a call; doubles with each."""
    deadline_seconds: float | None = None
    """After this long in an attempt, a second one is started; None: after STRAGGLER_FACTOR medians."""


@dataclass(slots=True)
class DispatchStatistics:
    """Retries, lost workers and second attempts of a job, for the manifest's `run` part."""

    retries: int = 0
    lost_workers: int = 0
    stragglers: int = 0


@dataclass(slots=True)
class _Progress(Generic[K]):
    """One call on its way."""

    key: K
    call: Call
    turn: tuple[bool, int]
    """Orders calls as they were begun, those that followed a result after all others."""
    failures: int = 0
    lost: int = 0
    overdue: int = 0
    attempts: dict[int, float] = field(default_factory=dict)
    """Attempts that run: attempt id to the time when it was started."""


def run_calls(
    executor: Executor,
    calls: Iterable[tuple[K, Call]],
    *,
    on_result: Callable[[K, Any], Iterable[tuple[K, Call]] | None],
    policy: RetryPolicy | None = None,
    statistics: DispatchStatistics | None = None,
    on_idle: Callable[[], None] | None = None,
) -> None:
    """Run every call and hand each result to the driver once, in order of arrival.

    Args:
        executor: Where to run.
        calls: Each with what the driver knows it by; consumed as slots get free: a million of them are never held at
            once.
        on_result: Gets a call's key and what its function returned; returns the calls, if any, that can be begun now
            that this result is there. They are begun before the rest of `calls`.
        policy: Budgets and deadline.
        statistics: Counted up.
        on_idle: Called at least every half second, for progress displays.

    Raises:
        DsindexError: The data fault of the call that comes first in `calls`: those before it are allowed to end, so
            that the error does not depend on timing. Calls that followed a result come last.
        TaskError: If a call used up a budget.
    """
    dispatch = Dispatch(executor, calls, policy=policy, statistics=statistics, on_idle=on_idle)
    with contextlib.closing(dispatch.run()) as results:
        for key, value in results:
            dispatch.release(on_result(key, value) or ())


class Dispatch(Generic[K]):
    """Runs calls as `run_calls` does, for a caller that takes the results at its own pace.

    Args:
        executor: Where to run.
        calls: Each with what the driver knows it by; consumed as slots get free.
        policy: Budgets and deadline.
        statistics: Counted up.
        on_idle: Called at least every half second while a result is awaited.
    """

    def __init__(
        self,
        executor: Executor,
        calls: Iterable[tuple[K, Call]],
        *,
        policy: RetryPolicy | None = None,
        statistics: DispatchStatistics | None = None,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self._executor = executor
        self._calls = iter(calls)
        self._released: deque[tuple[K, Call]] = deque()
        """Calls that followed a result, to be begun next."""
        self._num_begun = 0
        self._policy = policy or RetryPolicy()
        self._statistics = statistics or DispatchStatistics()
        self._on_idle = on_idle
        self._by_attempt: dict[int, _Progress[K]] = {}
        self._paused: list[tuple[float, tuple[bool, int], _Progress[K]]] = []
        self._in_flight: dict[tuple[bool, int], _Progress[K]] = {}
        """By turn."""
        self._fault: tuple[tuple[bool, int], BaseException] | None = None
        self._next_overdue_check = 0.0
        self._durations: defaultdict[Callable[..., Any], deque[float]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED_CALLS)
        )
        """By function: calls of one kind say nothing of how long those of another take."""
        self._most_in_flight: float = math.inf
        """Lowered by I/O errors; see the module's docstring."""

    def release(self, calls: Iterable[tuple[K, Call]]) -> None:
        """Add calls that follow a result; they are begun before the rest."""
        self._released.extend(calls)

    def run(self) -> Generator[tuple[K, Any]]:
        """Yield the key and the result of each call, in order of arrival.

        No call is started while the caller holds a result. Closing the generator abandons the calls that run.

        Raises:
            DsindexError, TaskError: As `run_calls`.
        """
        try:
            while True:
                self._start_calls()
                if not self._in_flight:
                    break
                for outcome in self._executor.wait(min(POLL_SECONDS, self._pause_left())):
                    finished = self._take(outcome)
                    if finished is not None:
                        yield finished.key, outcome.value
                self._redispatch_overdue()
                if self._on_idle is not None:
                    self._on_idle()
        except BaseException:
            self._abandon(list(self._in_flight.values()))
            raise
        if self._fault is not None:
            raise self._fault[1]

    def _pause_left(self) -> float:
        return max(0.0, self._paused[0][0] - time.monotonic()) if self._paused else POLL_SECONDS

    def _start_calls(self) -> None:
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            self._start(heapq.heappop(self._paused)[2])
        if self._fault is None:
            for progress in self._next_calls():
                self._in_flight[progress.turn] = progress
                self._start(progress)

    def _next_calls(self) -> Iterator[_Progress[K]]:
        """Yield the next calls while there is room for them."""
        while len(self._in_flight) < self._room():
            follows = bool(self._released)
            following = self._released.popleft() if follows else next(self._calls, None)
            if following is None:
                return
            self._num_begun += 1
            yield _Progress(*following, turn=(follows, self._num_begun))

    def _room(self) -> float:
        """How many calls may be in flight; executors grow and shrink with their cluster."""
        return min(self._most_in_flight, self._executor.slots + self._executor.backlog)

    def _start(self, progress: _Progress[K], *, beyond_slots: bool = False) -> None:
        attempt = self._executor.start(progress.call, beyond_slots=beyond_slots)
        progress.attempts[attempt] = time.monotonic()
        self._by_attempt[attempt] = progress

    def _take(self, outcome: Outcome) -> _Progress[K] | None:
        """Take note of how an attempt ended; return its call if that has succeeded by it."""
        progress = self._by_attempt.pop(outcome.attempt_id, None)
        if progress is None:
            return None  # another attempt at the same call came first
        started = progress.attempts.pop(outcome.attempt_id)
        if outcome.error is None:
            self._durations[progress.call.function].append(time.monotonic() - started)
            self._most_in_flight += 1 / self._most_in_flight
            self._finish(progress)
            return progress
        if outcome.worker_lost:
            progress.lost += 1
            self._statistics.lost_workers += 1
            self._retry(progress, outcome.error, progress.lost, self._policy.lost_workers)
        elif is_machine_fault(outcome.error):
            progress.failures += 1
            self._most_in_flight = max(1.0, self._room() / 2)
            self._retry(progress, outcome.error, progress.failures, self._policy.attempts)
        else:
            self._finish(progress)
            self._blame(progress.turn, outcome.error)
        return None

    def _retry(self, progress: _Progress[K], error: BaseException, used: int, budget: int) -> None:
        if progress.attempts:
            return  # another attempt still runs
        if used >= budget:
            self._finish(progress)
            call = progress.call
            msg = f"{call.name} ({call.place}): given up after {used} attempts, the last because {error}"
            fault = TaskError(msg)
            fault.__cause__ = error
            self._blame(progress.turn, fault)
            return
        self._statistics.retries += 1
        pause = self._policy.first_pause_seconds * 2 ** (progress.failures + progress.lost - 1)
        heapq.heappush(self._paused, (time.monotonic() + pause, progress.turn, progress))

    def _blame(self, turn: tuple[bool, int], error: BaseException) -> None:
        """Remember the fault of the first call; the results of those behind it are of no use any more."""
        if self._fault is None or turn < self._fault[0]:
            self._fault = (turn, error)
        self._abandon([progress for progress in self._in_flight.values() if progress.turn > self._fault[0]])

    def _finish(self, progress: _Progress[K]) -> None:
        self._abandon([progress])

    def _abandon(self, calls: list[_Progress[K]]) -> None:
        for progress in calls:
            del self._in_flight[progress.turn]
            for attempt in progress.attempts:
                self._by_attempt.pop(attempt, None)
                self._executor.abandon(attempt)
            progress.attempts.clear()
        if calls:
            self._paused = [entry for entry in self._paused if entry[1] in self._in_flight]
            heapq.heapify(self._paused)

    def _redispatch_overdue(self) -> None:
        now = time.monotonic()
        if now < self._next_overdue_check:
            return
        self._next_overdue_check = now + POLL_SECONDS
        functions = {progress.call.function for progress in self._in_flight.values()}
        deadlines = {function: self._deadline(function) for function in functions}
        # Where most calls are overdue at once, the storage is slow and second attempts would make it slower.
        twice = sum(len(progress.attempts) > 1 for progress in self._in_flight.values())
        for progress in list(self._in_flight.values()):
            if twice >= max(1, self._executor.slots // 4):
                break
            begun_before = now - deadlines[progress.call.function]
            if len(progress.attempts) == 1 and next(iter(progress.attempts.values())) <= begun_before:
                self._start_beside(progress)
                twice += 1
        if self._executor.kind != "local":  # a thread that hangs cannot be stopped
            for progress in list(self._in_flight.values()):
                self._replace_hanging(progress, now, deadlines[progress.call.function])

    def _start_beside(self, progress: _Progress[K]) -> None:
        self._statistics.stragglers += 1
        progress.overdue += 1
        self._start(progress, beyond_slots=True)

    def _replace_hanging(self, progress: _Progress[K], now: float, deadline: float) -> None:
        """Where two attempts hang, give the older one up for a third; each gets twice the time of the one before."""
        if len(progress.attempts) < 2 or now - max(progress.attempts.values()) < deadline * 2**progress.overdue:
            return
        if self._policy.deadline_seconds is not None and progress.overdue + 1 >= self._policy.lost_workers:
            call = progress.call
            msg = (
                f"{call.name} ({call.place}): did not end within {self._policy.deadline_seconds:g} s and more, tried "
                f"{progress.overdue + 1} times; look at what it reads, or raise --shard-deadline if it is only slow"
            )
            self._finish(progress)
            self._blame(progress.turn, TaskError(msg))
            return
        oldest = min(progress.attempts, key=progress.attempts.__getitem__)
        del progress.attempts[oldest], self._by_attempt[oldest]
        self._executor.abandon(oldest)
        self._start_beside(progress)

    def _deadline(self, function: Callable[..., Any]) -> float:
        """Return the seconds after which an attempt is overdue; a second thread would only take time from the first."""
        if self._policy.deadline_seconds is not None:
            return self._policy.deadline_seconds
        durations = self._durations[function]
        if self._executor.kind == "local" or len(durations) < STRAGGLER_CALLS:
            return DEFAULT_DEADLINE_SECONDS
        return max(STRAGGLER_MIN_SECONDS, STRAGGLER_FACTOR * median(durations))


def is_machine_fault(error: BaseException) -> bool:
    """Tell whether trying again may help: an I/O error that is neither a full disk nor dsindex's own verdict."""
    if isinstance(error, DsindexError):
        return error.transient
    return isinstance(error, OSError) and error.errno not in FULL_DISK_ERRORS
