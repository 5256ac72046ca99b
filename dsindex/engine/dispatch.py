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
READY_SECONDS = 0.02
"""Pause before asking again for a call that is not ready yet."""


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
    calls: Iterable[tuple[K, Call] | None],
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
        calls: Keys and calls, consumed as slots become free; None says that the next one is not ready yet.
        policy: Budgets and deadline.
        statistics: Counters to increase.
        on_idle: Called at least every half second while waiting for a result.
        order: Returns the number of a key of `calls` in the job's order; None: the order of `calls`.
    """

    def __init__(
        self,
        executor: Executor,
        calls: Iterable[tuple[K, Call] | None],
        *,
        policy: RetryPolicy | None = None,
        statistics: DispatchStatistics | None = None,
        on_idle: Callable[[], None] | None = None,
        order: Callable[[K], int] | None = None,
    ) -> None:
        self._executor = executor
        self._calls = iter(calls)
        self._are_all_begun = False
        self._is_waiting = False
        """Whether the next call is not ready yet."""
        self._order = order
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

    @property
    def first_fault(self) -> int | None:
        """Number, in the job's order, of the first call that failed so far; calls after it are not started."""
        return None if self._fault is None or self._fault[0][0] else self._fault[0][1]

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
                if not self._in_flight and not self._is_waiting:
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
        """Return attempts that ended, waiting for one, but not long if a call may become ready meanwhile."""
        has_room = self._is_waiting and len(self._in_flight) < self._room
        seconds = READY_SECONDS if has_room else POLL_SECONDS
        if self._paused:
            seconds = min(seconds, max(0.0, self._paused[0][0] - time.monotonic()))
        return self._executor.wait(seconds)

    @property
    def _room(self) -> int:
        """Number of calls that may be in flight; executors grow and shrink with their cluster."""
        return self._executor.slots + self._executor.backlog

    def _start_calls(self) -> None:
        while self._paused and self._paused[0][0] <= time.monotonic():
            _, turn = heapq.heappop(self._paused)
            if turn in self._in_flight:  # otherwise abandoned meanwhile
                self._start(self._in_flight[turn])
        for flight in self._next_calls():
            self._in_flight[flight.turn] = flight
            self._start(flight)

    def _next_calls(self) -> Iterator[_Flight[K]]:
        """Yield the next calls while more may be in flight; after a fault only those before it."""
        self._is_waiting = False
        while len(self._in_flight) < self._room:
            follows = bool(self._released) and self._fault is None
            if follows:
                following: tuple[K, Call] | None = self._released.popleft()
            elif self._are_all_begun or (self._fault is not None and self._order is None):
                return
            else:
                try:
                    following = next(self._calls)
                except StopIteration:
                    self._are_all_begun = True
                    return
            if following is None:
                self._is_waiting = True
                return
            self._num_begun += 1
            number = self._num_begun if follows or self._order is None else self._order(following[0])
            if self._fault is None or (follows, number) < self._fault[0]:
                yield _Flight(*following, turn=(follows, number))

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
