"""Run many calls on an executor, a limited number at a time; retry machine faults, never data faults.

A data fault (dsindex's own errors) is final at once. After a machine fault (a lost worker, an I/O error, an attempt
past its deadline) the call is retried a few times, after growing pauses. Attempts write under unique names, so one that
goes on unheard does no harm.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dsindex.engine.executors import Call, Outcome
from dsindex.engine.interrupts import raise_missed_stop
from dsindex.errors import DsindexError, TaskError
from dsindex.store.storage import FULL_DISK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from dsindex.engine.executors import Executor

K = TypeVar("K")
"""The driver's key of a call: a number, a shard, a range of the output."""

POLL_SECONDS = 0.5
WINDOW = 8
"""Calls per slot that are started beyond the first whose result is missing, if results are wanted in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Budgets for machine faults."""

    attempts: int = 4
    """Number of I/O errors at which a call fails."""
    lost_workers: int = 3
    """Number of lost workers, and of attempts past their deadline, at which a call fails."""
    first_pause_seconds: float = 0.5
    """Pause before the first retry of a call; it doubles with each retry."""
    deadline_seconds: float = 3600.0
    """Longest duration of a call's first attempt, after which its worker is ended; it doubles with each retry."""


@dataclass(slots=True)
class DispatchStatistics:
    """Retries and lost workers of a job, for the manifest's `run` part."""

    retries: int = 0
    lost_workers: int = 0


@dataclass(slots=True)
class _Flight(Generic[K]):
    """One call in flight."""

    key: K
    call: Call
    turn: tuple[bool, int]
    """Sort key: whether the call followed a result, then its number in the job's order, or in that of starting."""
    attempt_id: int | None = None
    """The attempt that runs or waits for a slot; None between two attempts."""
    failures: int = 0
    lost: int = 0


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
        executor: The executor to run them on.
        calls: Keys and calls, consumed only as slots become free, so a million of them are never held at once.
        on_result: Called with a call's key and its function's value; may return further calls that this result makes
            possible, which are started before the rest of `calls`.
        policy: Budgets and deadline.
        statistics: Counters to increase.
        on_idle: Called at least every half second, for progress displays.

    Raises:
        DsindexError: The data fault of the first such call in the job's order; earlier calls are allowed to end, so
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
        executor: The executor to run them on.
        calls: Keys and calls, consumed as slots become free.
        policy: Budgets and deadline.
        statistics: Counters to increase.
        on_idle: Called at least every half second while waiting for a result.
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
        """Calls that followed a result, to be started next."""
        self._num_begun = 0
        self._policy = policy or RetryPolicy()
        self._statistics = statistics or DispatchStatistics()
        self._on_idle = on_idle or (lambda: None)
        self._in_flight: dict[tuple[bool, int], _Flight[K]] = {}
        """Turn → call in flight."""
        self._attempts: dict[int, _Flight[K]] = {}
        self._paused: list[tuple[float, tuple[bool, int]]] = []
        """A heap of times and the turns of calls that are retried then."""
        self._fault: tuple[tuple[bool, int], BaseException] | None = None
        self.faults: list[BaseException] = []
        """The faults of all calls that ended with one."""

    def release(self, calls: Iterable[tuple[K, Call]]) -> None:
        """Add calls that follow a result; they are started before the rest."""
        self._released.extend(calls)

    def run(self) -> Generator[tuple[K, Any]]:
        """Yield the key and the result of each call, in order of arrival.

        No call is started while the caller handles a result. Closing the generator abandons running calls.

        Raises:
            DsindexError, TaskError: As `run_calls`.
        """
        try:
            while True:
                raise_missed_stop()
                self._start_calls()
                if not self._in_flight:
                    break
                for outcome in self._wait():
                    flight = self._attempts.pop(outcome.attempt_id, None)
                    if flight is not None and self._has_succeeded(flight, outcome):
                        yield flight.key, outcome.value
                self._end_overdue()
                self._on_idle()
        except BaseException:
            self._abandon(list(self._in_flight.values()))
            raise
        if self._fault is not None:
            raise self._fault[1]

    def _wait(self) -> list[Outcome]:
        """Return attempts that ended, waiting for one, but not beyond the next retry."""
        pause = self._paused[0][0] - time.monotonic() if self._paused else POLL_SECONDS
        return self._executor.wait(min(POLL_SECONDS, max(0.0, pause)))

    def _start_calls(self) -> None:
        while self._paused and self._paused[0][0] <= time.monotonic():
            _, turn = heapq.heappop(self._paused)
            if turn in self._in_flight:  # otherwise abandoned meanwhile
                self._start(self._in_flight[turn])
        # Executors grow and shrink with their cluster.
        while self._fault is None and len(self._in_flight) < self._executor.slots + self._executor.backlog:
            follows = bool(self._released)
            following = self._released.popleft() if follows else next(self._calls, None)
            if following is None:
                return
            self._num_begun += 1
            flight = _Flight(*following, turn=(follows, self._num_begun))
            self._in_flight[flight.turn] = flight
            self._start(flight)

    def _start(self, flight: _Flight[K]) -> None:
        flight.attempt_id = self._executor.start(flight.call)
        self._attempts[flight.attempt_id] = flight

    def _has_succeeded(self, flight: _Flight[K], outcome: Outcome) -> bool:
        """Record the end of an attempt; retry its call if that may help."""
        flight.attempt_id = None
        if outcome.error is None:
            del self._in_flight[flight.turn]
        elif outcome.worker_lost:
            self._lose(flight, outcome.error)
        elif is_machine_fault(outcome.error):
            flight.failures += 1
            self._retry(flight, outcome.error, flight.failures, self._policy.attempts)
        else:
            self._blame(flight, outcome.error)
        return outcome.error is None

    def _lose(self, flight: _Flight[K], error: BaseException) -> None:
        flight.lost += 1
        self._statistics.lost_workers += 1
        self._retry(flight, error, flight.lost, self._policy.lost_workers)

    def _retry(self, flight: _Flight[K], error: BaseException, used: int, budget: int) -> None:
        if used >= budget:
            call = flight.call
            fault = TaskError(f"{call.name} ({call.place}): given up after {used} attempts, the last because {error}")
            fault.__cause__ = error
            self._blame(flight, fault)
            return
        self._statistics.retries += 1
        pause = self._policy.first_pause_seconds * 2 ** (flight.failures + flight.lost - 1)
        heapq.heappush(self._paused, (time.monotonic() + pause, flight.turn))

    def _blame(self, flight: _Flight[K], error: BaseException) -> None:
        """Keep the fault of the first call, and abandon later calls, whose results are no longer needed."""
        self.faults.append(error)
        if self._fault is None or flight.turn < self._fault[0]:
            self._fault = (flight.turn, error)
        later = [other for other in self._in_flight.values() if other is not flight and other.turn > self._fault[0]]
        self._abandon([flight, *later])

    def _abandon(self, flights: list[_Flight[K]]) -> None:
        for flight in flights:
            del self._in_flight[flight.turn]
            if flight.attempt_id is not None:
                del self._attempts[flight.attempt_id]
                self._executor.abandon(flight.attempt_id)

    def _end_overdue(self) -> None:
        """End the workers of attempts past their deadline."""
        for flight in list(self._in_flight.values()):
            since = None if flight.attempt_id is None else self._executor.running_since(flight.attempt_id)
            deadline = self._policy.deadline_seconds * 2**flight.lost
            if flight.attempt_id is None or since is None or time.monotonic() - since < deadline:
                continue
            self._executor.abandon(flight.attempt_id)
            del self._attempts[flight.attempt_id]
            flight.attempt_id = None
            reason = f"it did not end within {deadline:g} s; check the files that it reads, or raise --shard-deadline"
            self._lose(flight, TaskError(reason))


def run_in_order(
    executor: Executor,
    calls: Iterable[Call],
    *,
    policy: RetryPolicy | None = None,
    statistics: DispatchStatistics | None = None,
    on_idle: Callable[[], None] | None = None,
) -> Generator[Any]:
    """Run calls and yield their results in the order of the calls.

    Args:
        executor: The executor to run them on.
        calls: The calls, consumed as slots become free and at most WINDOW per slot ahead of the results.
        policy: Budgets and deadline.
        statistics: Counters to increase.
        on_idle: Called at least every half second while waiting for a result.

    Raises:
        DsindexError: The data fault of the first call that has one, after the results of all calls before it.
        TaskError: If a call used up a budget.
    """
    numbered = enumerate(calls)
    first = islice(numbered, WINDOW * executor.slots)
    dispatch = Dispatch(executor, first, policy=policy, statistics=statistics, on_idle=on_idle)
    ended: dict[int, Any] = {}
    upcoming = 0
    with contextlib.closing(dispatch.run()) as results:
        for number, value in results:
            ended[number] = value
            while upcoming in ended:
                upcoming += 1
                dispatch.release(islice(numbered, 1))
                yield ended.pop(upcoming - 1)


def ordered_runner(
    executor: Executor, *, name: str, policy: RetryPolicy | None = None
) -> Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]:
    """Return a function for the library's `run_tasks` arguments: it maps a function over tasks, in order.

    Args:
        executor: The executor to run tasks on.
        name: Name of the tasks shown to users, as in `name[7]`.
        policy: Budgets and deadline.
    """

    def run_tasks(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        calls = (
            Call(name=f"{name}[{number}]", place=f"range {number}", function=function, arguments=(task,))
            for number, task in enumerate(tasks)
        )
        return run_in_order(executor, calls, policy=policy)

    return run_tasks


def is_machine_fault(error: BaseException) -> bool:
    """Tell whether a retry may help: for I/O errors except a full disk, and dsindex's errors that are transient."""
    if isinstance(error, DsindexError):
        return error.transient
    return isinstance(error, OSError) and error.errno not in FULL_DISK_ERRORS
