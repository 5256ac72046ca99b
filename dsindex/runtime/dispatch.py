"""Run many calls on an executor, a limited number at a time; retry machine faults, never data faults.

A data fault (one of dsindex's own errors) is final at once. After a machine fault (a lost worker, an I/O error, an
attempt past its deadline) the call is retried a few times, after growing pauses. Every attempt writes under unique
names, so an abandoned attempt that is still running does no harm.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dsindex.errors import DsindexError, TaskError
from dsindex.options.common import WorkConfig
from dsindex.runtime.executors import ProcessExecutor, ThreadExecutor
from dsindex.runtime.interrupts import raise_missed_stop
from dsindex.store.errors import FULL_DISK_ERRORS
from dsindex.store.machine import available_cpus, available_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from dsindex.options.common import ExecutorConfig
    from dsindex.runtime.executors import Call, Executor

K = TypeVar("K")
"""Type of the driver's key for a call, such as a shard's number."""

MAX_FAILURES = 4
"""A call fails at this number of I/O errors."""
MAX_LOST_WORKERS = 3
"""A call fails at this number of lost workers and missed deadlines."""
PAUSE_SECONDS = 0.5
"""Pause before the first retry of a call; it doubles with each retry."""
POLL_SECONDS = 0.5
RETRY_SECONDS = 0.05
"""Longest wait for a result while a call waits for its retry."""


@dataclass(slots=True)
class _Flight(Generic[K]):
    key: K
    call: Call
    turn: tuple[bool, int]
    """Sort key: calls of the job before released calls, each in the order they began; the first error is reported."""
    begins: float = 0.0
    """When the next attempt begins (time.monotonic), if the call waits for a retry."""
    num_failures: int = 0
    num_lost: int = 0


class Dispatch(Generic[K]):
    """Runs every call and yields each result once, in order of arrival.

    Args:
        executor: The executor to run them on.
        calls: Keys and calls, consumed only as slots become free, so a million of them are never held at once.
    """

    def __init__(self, executor: Executor, calls: Iterable[tuple[K, Call]]) -> None:
        self._executor = executor
        self._calls = iter(calls)
        self._released: deque[tuple[K, Call]] = deque()
        """Calls that results released; they start next."""
        self._num_begun = 0
        self._flights: dict[int, _Flight[K]] = {}
        """Attempt id → call, for attempts that run or wait for a slot."""
        self._paused: list[_Flight[K]] = []
        """Calls that wait for a retry."""
        self._fault: tuple[tuple[bool, int], BaseException] | None = None

    def release(self, calls: Iterable[tuple[K, Call]]) -> None:
        """Add calls that a result made possible; they start before the rest."""
        self._released.extend(calls)

    def run(self) -> Generator[tuple[K, Any]]:
        """Yield the key and the result of each call, in order of arrival.

        No call is started while the caller handles a result. Closing the generator abandons running calls.

        Raises:
            DsindexError: The data fault of the first faulty call in the job's order. Earlier calls are allowed to
                end, so the error does not depend on timing.
            TaskError: If a call failed too often.
        """
        try:
            while True:
                raise_missed_stop()
                self._start_calls()
                if not self._flights and not self._paused:
                    break
                for outcome in self._executor.wait(RETRY_SECONDS if self._paused else POLL_SECONDS):
                    flight = self._flights.pop(outcome.attempt_id, None)
                    if flight is None:
                        continue
                    if outcome.error is None:
                        yield flight.key, outcome.value
                    else:
                        self._handle_fault(flight, outcome.error, worker_lost=outcome.worker_lost)
                self._executor.on_idle()
        finally:
            self._abandon(lambda _: True)
        if self._fault is not None:
            raise self._fault[1]

    def _start_calls(self) -> None:
        now = time.monotonic()
        ready = [flight for flight in self._paused if flight.begins <= now]
        self._paused = [flight for flight in self._paused if flight.begins > now]
        room = self._executor.slots + self._executor.backlog  # executors grow and shrink with their cluster
        while self._fault is None and len(self._flights) + len(self._paused) + len(ready) < room:
            is_released = bool(self._released)
            key_and_call = self._released.popleft() if is_released else next(self._calls, None)
            if key_and_call is None:
                break
            self._num_begun += 1
            ready.append(_Flight(*key_and_call, turn=(is_released, self._num_begun)))
        for flight in ready:
            deadline = max(self._executor.deadline_seconds, flight.call.seconds) * 2**flight.num_lost
            self._flights[self._executor.start(flight.call, deadline_seconds=deadline)] = flight

    def _handle_fault(self, flight: _Flight[K], error: BaseException, *, worker_lost: bool) -> None:
        """Schedule a retry if one may help; otherwise keep the error, unless an earlier call has one."""
        tries = max_tries = 0
        if worker_lost:
            flight.num_lost += 1
            self._executor.lost_workers += 1
            tries, max_tries = flight.num_lost, MAX_LOST_WORKERS
        elif is_machine_fault(error):
            flight.num_failures += 1
            tries, max_tries = flight.num_failures, MAX_FAILURES
        if tries < max_tries:
            self._executor.retries += 1
            pause = PAUSE_SECONDS * 2 ** (flight.num_failures + flight.num_lost - 1)
            flight.begins = time.monotonic() + pause
            self._paused.append(flight)
            return
        if tries:
            call, cause = flight.call, error
            last = cause.sentence if isinstance(cause, DsindexError) else cause
            error = TaskError(f"{call.name} ({call.place}): given up after {tries} attempts; the last failed: {last}")
            error.__cause__ = cause
        if self._fault is None or flight.turn < self._fault[0]:
            self._fault = (flight.turn, error)
            self._abandon(lambda other: other.turn > flight.turn)  # their results are no longer needed

    def _abandon(self, is_unwanted: Callable[[_Flight[K]], bool]) -> None:
        self._paused = [flight for flight in self._paused if not is_unwanted(flight)]
        attempt_ids = {attempt_id for attempt_id, flight in self._flights.items() if is_unwanted(flight)}
        for attempt_id in attempt_ids:
            del self._flights[attempt_id]
        self._executor.abandon(attempt_ids)


def run_in_order(executor: Executor, calls: Iterable[Call]) -> Generator[Any]:
    """Run calls with a Dispatch, and yield their results in the order of the calls; results must be small."""
    values_by_number: dict[int, Any] = {}
    next_number = 0
    with contextlib.closing(Dispatch(executor, enumerate(calls)).run()) as results:
        for number, value in results:
            values_by_number[number] = value
            while next_number in values_by_number:
                yield values_by_number.pop(next_number)
                next_number += 1


def is_machine_fault(error: BaseException) -> bool:
    """Tell whether a retry may help: after I/O errors other than a full disk, and after dsindex's transient errors."""
    if isinstance(error, DsindexError):
        return error.transient
    return isinstance(error, OSError) and error.errno not in FULL_DISK_ERRORS


# Choose and start the executor that the options ask for.

WORKER_MEMORY_BYTES = 460 << 20
"""Peak memory of a worker process, measured on Ray after 600 MB of text. A very long document adds its own size."""
THREADS_UP_TO_WORKERS = 4
"""Up to this many workers are threads by default: a thread holds the GIL for a seventh of its time."""
THREADS_UP_TO_BYTES = 2 << 30
"""Input up to this size is tokenized in threads by default: starting processes would take longer than it saves."""
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that Ray's job server sets for the drivers that it starts, in addition to RAY_ADDRESS."""


def wants_ray(config: ExecutorConfig) -> bool:
    """Tell whether the options ask for Ray, by the executor's name or a cluster's address."""
    return config.executor == "ray" or (config.executor == "auto" and cluster_address(config) is not None)


def wants_threads(config: ExecutorConfig, *, holds_gil: bool = False, text_bytes: int = 0) -> bool:
    """Tell whether tasks run in threads of this process rather than in worker processes.

    Args:
        config: The options.
        holds_gil: Whether calls hold the GIL.
        text_bytes: Size of the text to tokenize.
    """
    workers, memory = config.workers or available_cpus(), available_memory()
    fits = memory is None or workers * WORKER_MEMORY_BYTES <= memory
    is_large = workers > THREADS_UP_TO_WORKERS and text_bytes >= THREADS_UP_TO_BYTES and fits
    may_start_processes = not multiprocessing.current_process().daemon  # Python forbids it in workers of a pool
    is_slow = config.executor == "auto" and (holds_gil or is_large) and may_start_processes
    return not wants_ray(config) and config.executor != "processes" and not is_slow


def cluster_address(config: ExecutorConfig) -> str | None:
    """Return the address of the cluster to join; None to join none.

    RAY_ADDRESS counts for jobs with a work folder, for drivers that a cluster's job server started, and if the options
    name Ray or the address `auto`. Other commands need no cluster, so a stale RAY_ADDRESS does not stop them.
    """
    reads_environment = isinstance(config, WorkConfig) or config.executor == "ray" or JOB_VARIABLE in os.environ
    environment_address = os.environ.get("RAY_ADDRESS") if reads_environment or config.address == "auto" else None
    address = environment_address or config.address if config.address in {None, "auto"} else config.address
    return None if address == "local" else address


def make_executor(config: ExecutorConfig, *, holds_gil: bool = False, text_bytes: int = 0) -> Executor:
    """Start the executor that the options ask for.

    Args:
        config: The options.
        holds_gil: Whether calls hold the GIL.
        text_bytes: Size of the text to tokenize.

    Raises:
        TaskError: If Ray cannot be started or reached.
    """
    if not wants_ray(config):
        kind = ThreadExecutor if wants_threads(config, holds_gil=holds_gil, text_bytes=text_bytes) else ProcessExecutor
        return kind(config.workers or available_cpus())
    # Ray reads this at import. Without it, Ray warns about tasks that wait for a node, which is normal here.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "tasks with infeasible resource requests")
    address = cluster_address(config)
    private_token: dict[str, str] = {}
    if address is None and "RAY_AUTH_MODE" not in os.environ:  # otherwise Ray writes a token into the home folder
        private_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update(private_token)
    try:
        from dsindex.runtime.ray import RayExecutor  # Ray takes 0.7 s to import

        return RayExecutor(address=address, workers=config.workers)
    finally:
        for name in private_token:
            del os.environ[name]
