"""Run many calls on an executor, with a limited number in flight; retry machine faults, never data faults.

A data fault (dsindex's own errors) is final at once. After a machine fault (a lost worker, an I/O error) the call is
retried a few times, after growing pauses. A call past its deadline is dispatched a second time, and the attempt that
ends first counts: attempts write under unique names, so the other one does no harm.

Each I/O error halves the number of calls in flight, which then grows by one per round of successful calls. Slow
storage needs no such limit: it slows all calls, since they sync what they write, so their median and with it the
deadline grow too.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dsindex.errors import DsindexError, TaskError
from dsindex.execution.calls import Call
from dsindex.execution.interrupts import raise_missed_stop
from dsindex.store.storage import FULL_DISK_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from dsindex.execution.calls import Executor, Outcome

K = TypeVar("K")
"""The driver's key of a call: a number, a shard, a range of the output."""

POLL_SECONDS = 0.5
WINDOW = 8
"""Calls per slot that are started beyond the first whose result is missing, if results are wanted in order."""
READY_SECONDS = 0.02
"""Pause before asking again for a call that is not ready yet."""

DEFAULT_DEADLINE_SECONDS = 3600.0
"""The deadline until STRAGGLER_CALLS calls of a function have ended."""
STRAGGLER_FACTOR = 8
"""The deadline as a multiple of the median duration of a function's recent calls."""
STRAGGLER_MIN_SECONDS = 60.0
"""The shortest deadline that is derived from the median."""
STRAGGLER_CALLS = 10
"""Number of a function's calls that must have ended before their median is used."""
REMEMBERED_CALLS = 200
"""Number of recent calls of a function from which the median is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Budgets for machine faults."""

    attempts: int = 4
    """Number of I/O errors at which a call fails."""
    lost_workers: int = 3
    """Number of lost workers at which a call fails."""
    first_pause_seconds: float = 0.5
    """Pause before the first retry of a call; it doubles with each retry."""
    deadline_seconds: float | None = None
    """Duration of an attempt after which a second one is started; None: STRAGGLER_FACTOR medians."""


@dataclass(slots=True)
class DispatchStatistics:
    """Retries, lost workers and second attempts of a job, for the manifest's `run` part."""

    retries: int = 0
    lost_workers: int = 0
    stragglers: int = 0


@dataclass(slots=True)
class _Progress(Generic[K]):
    """One call in flight."""

    key: K
    call: Call
    turn: tuple[bool, int]
    """Sort key: whether the call followed a result, then its number in the job's order, or in that of starting."""
    failures: int = 0
    lost: int = 0
    overdue: int = 0
    attempts: dict[int, float] = field(default_factory=dict)
    """Attempts that run or wait for a slot: attempt id → time at which the executor got it."""


def run_calls(
    executor: Executor,
    calls: Iterable[tuple[K, Call] | None],
    *,
    on_result: Callable[[K, Any], Iterable[tuple[K, Call]] | None],
    order: Callable[[K], int] | None = None,
    policy: RetryPolicy | None = None,
    statistics: DispatchStatistics | None = None,
    on_idle: Callable[[], None] | None = None,
) -> None:
    """Run every call and hand each result to the driver once, in order of arrival.

    Args:
        executor: The executor to run them on.
        calls: Keys and calls, consumed only as slots become free, so a million of them are never held at once. None
            says that the next one is not ready yet.
        on_result: Called with a call's key and its function's value; may return further calls that this result makes
            possible, which are started before the rest of `calls`.
        order: Returns the number of a key of `calls` in the job's order; None: the order of `calls`.
        policy: Budgets and deadline.
        statistics: Counters to increase.
        on_idle: Called at least every half second, for progress displays.

    Raises:
        DsindexError: The data fault of the first such call in the job's order; earlier calls are allowed to end, so
            that the error does not depend on timing. Calls that followed a result come last.
        TaskError: If a call used up a budget.
    """
    dispatch = Dispatch(executor, calls, policy=policy, statistics=statistics, on_idle=on_idle, order=order)
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
        self._on_idle = on_idle
        self._by_attempt: dict[int, _Progress[K]] = {}
        self._paused: list[tuple[float, tuple[bool, int], _Progress[K]]] = []
        self._in_flight: dict[tuple[bool, int], _Progress[K]] = {}
        """Turn → call in flight."""
        self._fault: tuple[tuple[bool, int], BaseException] | None = None
        self.faults: list[BaseException] = []
        """The faults of all calls that ended with one."""
        self._next_overdue_check = 0.0
        self._durations: defaultdict[Callable[..., Any], deque[float]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED_CALLS)
        )
        """Function → durations of its recent calls, in seconds."""
        self._most_in_flight: float = math.inf
        """Lowered by I/O errors; see the module's docstring."""

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

    def _wait(self) -> list[Outcome]:
        """Return attempts that ended, waiting for one, but not long if a call may become ready meanwhile."""
        if not self._in_flight:
            time.sleep(READY_SECONDS)
            return []
        seconds = READY_SECONDS if self._is_waiting and len(self._in_flight) < self._room() else POLL_SECONDS
        if self._paused:
            seconds = min(seconds, max(0.0, self._paused[0][0] - time.monotonic()))
        return self._executor.wait(seconds)

    def _start_calls(self) -> None:
        now = time.monotonic()
        while self._paused and self._paused[0][0] <= now:
            self._start(heapq.heappop(self._paused)[2])
        for progress in self._next_calls():
            self._in_flight[progress.turn] = progress
            self._start(progress)

    def _next_calls(self) -> Iterator[_Progress[K]]:
        """Yield the next calls while more may be in flight; after a fault only those before it."""
        self._is_waiting = False
        while len(self._in_flight) < self._room():
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
                yield _Progress(*following, turn=(follows, number))

    def _room(self) -> float:
        """Return the number of calls that may be in flight; executors grow and shrink with their cluster."""
        return min(self._most_in_flight, self._executor.slots + self._executor.backlog)

    def _start(self, progress: _Progress[K], *, beyond_slots: bool = False) -> None:
        attempt = self._executor.start(progress.call, beyond_slots=beyond_slots)
        progress.attempts[attempt] = time.monotonic()
        self._by_attempt[attempt] = progress

    def _take(self, outcome: Outcome) -> _Progress[K] | None:
        """Record the end of an attempt; return its call if the attempt succeeded."""
        progress = self._by_attempt.pop(outcome.attempt_id, None)
        if progress is None:
            return None  # another attempt at the same call was faster
        started = progress.attempts.pop(outcome.attempt_id)
        if outcome.error is None:
            seconds = time.monotonic() - started if outcome.seconds is None else outcome.seconds
            self._durations[progress.call.function].append(seconds)
            self._most_in_flight += 1 / self._most_in_flight
            self._abandon([progress])
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
            self._abandon([progress])
            self._blame(progress.turn, outcome.error)
        return None

    def _retry(self, progress: _Progress[K], error: BaseException, used: int, budget: int) -> None:
        if progress.attempts:
            return  # another attempt is still running
        if used >= budget:
            self._abandon([progress])
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
        """Keep the fault of the first call, and abandon later calls, whose results are no longer needed."""
        self.faults.append(error)
        if self._fault is None or turn < self._fault[0]:
            self._fault = (turn, error)
        self._abandon([progress for progress in self._in_flight.values() if progress.turn > self._fault[0]])

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
        if self._executor.shortage is not None:
            return  # the nodes of all attempts are lost, and will be found to be
        functions = {progress.call.function for progress in self._in_flight.values()}
        deadlines = {function: self._deadline(function) for function in functions}
        # If most calls are overdue at once, the storage is slow, and more second attempts would make it slower.
        twice = sum(len(progress.attempts) > 1 for progress in self._in_flight.values())
        for progress in list(self._in_flight.values()):
            if twice >= max(1, self._executor.slots // 4):
                break
            seconds = self._seconds_of_attempts(progress, now)
            if len(seconds) == 1 and seconds[0] >= deadlines[progress.call.function]:
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
        """If both attempts at a call hang, replace the older one; each attempt gets twice the previous one's time."""
        seconds = self._seconds_of_attempts(progress, now)
        if len(seconds) < 2 or min(seconds) < deadline * 2**progress.overdue:
            return
        if self._policy.deadline_seconds is not None and progress.overdue + 1 >= self._policy.lost_workers:
            call = progress.call
            msg = (
                f"{call.name} ({call.place}): did not end in {progress.overdue + 1} attempts of at least "
                f"{self._policy.deadline_seconds:g} s; check the files that it reads, or raise --shard-deadline if "
                f"they are only slow"
            )
            self._abandon([progress])
            self._blame(progress.turn, TaskError(msg))
            return
        oldest = min(progress.attempts, key=progress.attempts.__getitem__)
        del progress.attempts[oldest], self._by_attempt[oldest]
        self._executor.abandon(oldest)
        self._start_beside(progress)

    def _seconds_of_attempts(self, progress: _Progress[K], now: float) -> list[float]:
        """Return how long the attempts at a call have been running; 0 for those that wait for a slot."""
        begun = [self._executor.running_since(attempt) for attempt in progress.attempts]
        return [0.0 if since is None else now - since for since in begun]

    def _deadline(self, function: Callable[..., Any]) -> float:
        """Return the seconds after which an attempt is overdue: more for threads, which share the CPUs."""
        if self._policy.deadline_seconds is not None:
            return self._policy.deadline_seconds
        durations = self._durations[function]
        if self._executor.kind == "local" or len(durations) < STRAGGLER_CALLS:
            return DEFAULT_DEADLINE_SECONDS
        return max(STRAGGLER_MIN_SECONDS, STRAGGLER_FACTOR * median(durations))


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
