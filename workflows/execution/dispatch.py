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
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError, TaskError
from dsindex.storage import FULL_DISK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from workflows.execution.calls import Call, Executor, Outcome

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
    """What it took, for the manifest's `run` part."""

    retries: int = 0
    lost_workers: int = 0
    stragglers: int = 0


@dataclass(slots=True)
class _Progress:
    """One call on its way."""

    number: int
    call: Call
    failures: int = 0
    lost: int = 0
    overdue: int = 0
    tickets: dict[int, float] = field(default_factory=dict)
    """Attempts that run: ticket to the time when it was started."""


def run_calls(
    executor: Executor,
    calls: Iterable[tuple[int, Call] | None],
    *,
    on_result: Callable[[int, Any], None],
    policy: RetryPolicy | None = None,
    statistics: DispatchStatistics | None = None,
    on_idle: Callable[[], None] | None = None,
) -> None:
    """Run every call and hand each result to the driver once, in order of arrival.

    Args:
        executor: Where to run.
        calls: Numbered calls, consumed as slots get free: a million of them are never held at once. None says that
            nothing can be begun before a call that runs has ended; it is asked again then, and where none runs, it is
            the end.
        on_result: Gets the call's number and what its function returned.
        policy: Budgets and deadline.
        statistics: Counted up.
        on_idle: Called at least every half second, for progress displays.

    Raises:
        DsindexError: The data fault of the smallest call number: calls before it are allowed to end first, so that the
            error does not depend on timing.
        TaskError: If a call used up a budget.
    """
    results = iterate_calls(executor, calls, policy=policy, statistics=statistics, on_idle=on_idle)
    with contextlib.closing(results):
        for number, value in results:
            on_result(number, value)


def iterate_calls(
    executor: Executor,
    calls: Iterable[tuple[int, Call] | None],
    *,
    policy: RetryPolicy | None = None,
    statistics: DispatchStatistics | None = None,
    on_idle: Callable[[], None] | None = None,
) -> Generator[tuple[int, Any]]:
    """Run every call as `run_calls` does, and yield the number and the result of each, in order of arrival.

    No call is started while the caller holds a result. Closing the generator abandons the calls that run.
    """
    return _Dispatch(executor, calls, policy or RetryPolicy(), statistics or DispatchStatistics(), on_idle).run()


class _Dispatch:
    def __init__(
        self,
        executor: Executor,
        calls: Iterable[tuple[int, Call] | None],
        policy: RetryPolicy,
        statistics: DispatchStatistics,
        on_idle: Callable[[], None] | None,
    ) -> None:
        self._executor = executor
        self._calls: Iterator[tuple[int, Call] | None] = iter(calls)
        self._policy = policy
        self._statistics = statistics
        self._on_idle = on_idle
        self._by_ticket: dict[int, _Progress] = {}
        self._paused: list[tuple[float, int, _Progress]] = []
        self._in_flight: dict[int, _Progress] = {}
        self._fault: tuple[int, BaseException] | None = None
        self._next_overdue_check = 0.0
        self._durations: defaultdict[Callable[..., Any], deque[float]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED_CALLS)
        )
        """By function: calls of one kind say nothing of how long those of another take."""
        self._most_in_flight: float = math.inf
        """Lowered by I/O errors; see the module's docstring."""

    def run(self) -> Generator[tuple[int, Any]]:
        try:
            while True:
                self._start_calls()
                if not self._in_flight:
                    break
                for outcome in self._executor.wait(min(POLL_SECONDS, self._pause_left())):
                    finished = self._take(outcome)
                    if finished is not None:
                        yield finished.number, outcome.value
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
        while self._fault is None and len(self._in_flight) < self._room():
            numbered = next(self._calls, None)
            if numbered is None:
                break
            progress = _Progress(*numbered)
            self._in_flight[progress.number] = progress
            self._start(progress)

    def _room(self) -> float:
        """How many calls may be in flight; executors grow and shrink with their cluster."""
        return min(self._most_in_flight, self._executor.slots + self._executor.backlog)

    def _start(self, progress: _Progress, *, beyond_slots: bool = False) -> None:
        ticket = self._executor.start(progress.call, beyond_slots=beyond_slots)
        progress.tickets[ticket] = time.monotonic()
        self._by_ticket[ticket] = progress

    def _take(self, outcome: Outcome) -> _Progress | None:
        """Take note of how an attempt ended; return its call if that has succeeded by it."""
        progress = self._by_ticket.pop(outcome.ticket, None)
        if progress is None:
            return None  # another attempt at the same call came first
        started = progress.tickets.pop(outcome.ticket)
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
            self._blame(progress.number, outcome.error)
        return None

    def _retry(self, progress: _Progress, error: BaseException, used: int, budget: int) -> None:
        if progress.tickets:
            return  # another attempt still runs
        if used >= budget:
            self._finish(progress)
            call = progress.call
            msg = f"{call.name} ({call.place}): given up after {used} attempts, the last because {error}"
            fault = TaskError(msg)
            fault.__cause__ = error
            self._blame(progress.number, fault)
            return
        self._statistics.retries += 1
        pause = self._policy.first_pause_seconds * 2 ** (progress.failures + progress.lost - 1)
        heapq.heappush(self._paused, (time.monotonic() + pause, progress.number, progress))

    def _blame(self, number: int, error: BaseException) -> None:
        """Remember the fault of the smallest call; what lies behind it is of no use any more."""
        if self._fault is None or number < self._fault[0]:
            self._fault = (number, error)
        self._abandon([progress for progress in self._in_flight.values() if progress.number > self._fault[0]])

    def _finish(self, progress: _Progress) -> None:
        self._abandon([progress])

    def _abandon(self, calls: list[_Progress]) -> None:
        for progress in calls:
            del self._in_flight[progress.number]
            for ticket in progress.tickets:
                self._by_ticket.pop(ticket, None)
                self._executor.abandon(ticket)
            progress.tickets.clear()
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
        twice = sum(len(progress.tickets) > 1 for progress in self._in_flight.values())
        for progress in list(self._in_flight.values()):
            if twice >= max(1, self._executor.slots // 4):
                break
            begun_before = now - deadlines[progress.call.function]
            if len(progress.tickets) == 1 and next(iter(progress.tickets.values())) <= begun_before:
                self._start_beside(progress)
                twice += 1
        if self._executor.kind != "local":  # a thread that hangs cannot be stopped
            for progress in list(self._in_flight.values()):
                self._replace_hanging(progress, now, deadlines[progress.call.function])

    def _start_beside(self, progress: _Progress) -> None:
        self._statistics.stragglers += 1
        progress.overdue += 1
        self._start(progress, beyond_slots=True)

    def _replace_hanging(self, progress: _Progress, now: float, deadline: float) -> None:
        """Where two attempts hang, give the older one up for a third; each gets twice the time of the one before."""
        if len(progress.tickets) < 2 or now - max(progress.tickets.values()) < deadline * 2**progress.overdue:
            return
        if self._policy.deadline_seconds is not None and progress.overdue + 1 >= self._policy.lost_workers:
            call = progress.call
            msg = (
                f"{call.name} ({call.place}): did not end within {self._policy.deadline_seconds:g} s and more, tried "
                f"{progress.overdue + 1} times; look at what it reads, or raise --shard-deadline if it is only slow"
            )
            self._finish(progress)
            self._blame(progress.number, TaskError(msg))
            return
        oldest = min(progress.tickets, key=progress.tickets.__getitem__)
        del progress.tickets[oldest], self._by_ticket[oldest]
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
