"""Executors: where calls run. Threads and spawned processes are here, a Ray cluster in dsindex.engine.ray.

An executor starts calls and reports which have ended; dsindex.engine.dispatch retries them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from multiprocessing.context import SpawnProcess

Key = TypeVar("Key")


class ClusterLostError(TaskError):
    """The cluster is lost, so that no call can be made any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function to run on some worker, with arguments that can be pickled."""

    name: str
    """The name shown to users, such as `tokenize[00042]`."""
    place: str
    """The file or folder that it works on, for messages."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Arguments; may contain values that `Executor.share` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one attempt at a call."""

    attempt_id: int
    value: Any = None
    error: BaseException | None = None
    """The function's exception, or the reason for the loss of its worker."""
    worker_lost: bool = False
    """Whether the worker died or could not be reached, perhaps not because of the call."""


class Executor(ABC):
    """Runs calls. Not thread-safe: one driver owns it."""

    kind: str
    slots: int
    """Number of calls that run at once."""
    backlog: int
    """Number of calls to start beyond `slots`, so that no slot waits for the driver."""
    waiting: str | None = None
    """What calls wait for, and since when, as text; None if some run."""

    def share(self, value: object) -> object:
        """Make a large argument available to all workers once; pass what this returns in `Call.arguments`."""
        return value

    def require_seen(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:  # noqa: B027 - this machine does
        """Let the workers of other machines check, before their first call, that they see what this machine sees.

        Args:
            files: Files that calls read, with their sizes; of many, a few are checked.
            folders: Folders that calls write to.
        """

    @abstractmethod
    def start(self, call: Call) -> int:
        """Begin one attempt and return its id."""

    def running_since(self, attempt_id: int) -> float | None:  # noqa: ARG002 - of calls that can be stopped
        """Return when an attempt began (time.monotonic); None while it waits, or if it could not be stopped anyway."""
        return None

    @abstractmethod
    def wait(self, timeout: float) -> list[Outcome]:
        """Return the attempts that ended, waiting for at least one up to `timeout` seconds."""

    @abstractmethod
    def abandon(self, attempt_id: int) -> None:
        """Stop an attempt if possible; its outcome will not be reported."""

    @abstractmethod
    def close(self) -> None:
        """Stop all workers. Attempts that still run are abandoned."""


class ThreadExecutor(Executor):
    """Threads of this process: for work that releases the GIL, as parsing, encoding and file I/O do."""

    kind = "local"

    def __init__(self, workers: int) -> None:
        self.slots = self.backlog = workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="dsindex")
        self._futures: dict[int, Future[Any]] = {}
        self._num_attempts = 0

    def start(self, call: Call) -> int:
        """Queue a call for the next free thread."""
        self._num_attempts += 1
        self._futures[self._num_attempts] = self._pool.submit(call.function, *call.arguments)
        return self._num_attempts

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended."""
        outcomes = []
        for attempt_id in _await_ended(self._futures, timeout):
            future = self._futures.pop(attempt_id)
            error = future.exception()
            value = future.result() if error is None else None
            outcomes.append(Outcome(attempt_id=attempt_id, value=value, error=error and as_exception(error)))
        return outcomes

    def abandon(self, attempt_id: int) -> None:
        """Drop a queued call; one that runs ends by itself, unheard."""
        future = self._futures.pop(attempt_id, None)
        if future is not None:  # otherwise it ended meanwhile
            future.cancel()

    def close(self) -> None:
        """Drop queued calls and wait for running ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class ProcessExecutor(Executor):
    """Spawned processes: for work that holds the GIL, or for many workers. Each is a pool of one, lost by itself."""

    kind = "processes"

    def __init__(self, workers: int) -> None:
        self.slots = self.backlog = workers
        self._queue: deque[tuple[int, Call]] = deque()
        self._workers: list[_Worker] = []
        self._shared: list[bytes] = []
        self._num_attempts = 0

    def share(self, value: object) -> object:
        """Pickle a value once; each process gets it with its first call that needs it."""
        self._shared.append(pickle.dumps(value))
        return _Shared(len(self._shared) - 1)

    def start(self, call: Call) -> int:
        """Give a call to an idle process, or queue it."""
        self._num_attempts += 1
        self._queue.append((self._num_attempts, call))
        self._assign()
        return self._num_attempts

    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt was given to a process; None while it waits for one."""
        return next((worker.since for worker in self._workers if worker.attempt_id == attempt_id), None)

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose process died."""
        busy = {worker: worker.future for worker in self._workers if worker.attempt_id is not None}
        outcomes = [worker.take() for worker in _await_ended(busy, timeout)]
        self._assign()
        return outcomes

    def abandon(self, attempt_id: int) -> None:
        """Kill the process that runs an attempt."""
        self._queue = deque(entry for entry in self._queue if entry[0] != attempt_id)
        for worker in self._workers:
            if worker.attempt_id == attempt_id:
                worker.kill()
        self._assign()

    def close(self) -> None:
        """Kill all workers."""
        self._queue.clear()
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def _assign(self) -> None:
        self._workers = [worker for worker in self._workers if worker.is_alive()]
        idle = [worker for worker in self._workers if worker.attempt_id is None]
        while self._queue and (idle or len(self._workers) < self.slots):
            if not idle:
                idle.append(_Worker())
                self._workers += idle
            idle.pop().run(*self._queue.popleft(), self._shared)


class _Worker:
    """A spawned process."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_follow_driver)
        self._known: set[int] = set()
        """Numbers of the shared values that it has."""
        self._process: SpawnProcess | None = None
        """None until the first call."""
        self.future: Future[Any] = Future()
        self.attempt_id: int | None = None
        self.since = 0.0

    def is_alive(self) -> bool:
        """Tell whether calls can be given to it; one that died in a call still has to report that."""
        return self.attempt_id is not None or self._process is None or self._process.is_alive()

    def run(self, attempt_id: int, call: Call, shared: Sequence[bytes]) -> None:
        """Begin a call."""
        numbers = {value.number for value in call.arguments if isinstance(value, _Shared)} - self._known
        self._known |= numbers
        self.attempt_id, self.since = attempt_id, time.monotonic()
        others = set(multiprocessing.active_children())
        with _spawning():
            values = {number: shared[number] for number in numbers}
            self.future = self._pool.submit(_run, call.function, call.arguments, values)
        if self._process is None:
            (self._process,) = set(multiprocessing.active_children()) - others  # type: ignore[assignment]

    def take(self) -> Outcome:
        """Return the outcome of the call that ended."""
        attempt_id, self.attempt_id = self.attempt_id, None
        assert attempt_id is not None  # noqa: S101 - only busy workers are asked
        try:
            value, error = self.future.result()
        except BrokenProcessPool:
            reason = TaskError(f"its worker process died ({self._describe_exit()})")
            return Outcome(attempt_id=attempt_id, error=reason, worker_lost=True)
        except Exception as problem:  # noqa: BLE001 - a value that cannot be pickled, for example
            return Outcome(attempt_id=attempt_id, error=problem)
        return Outcome(attempt_id=attempt_id, value=value, error=error)

    def kill(self) -> None:
        """End the process, whatever it does."""
        self.attempt_id = None
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _describe_exit(self) -> str:
        assert self._process is not None  # noqa: S101 - it has had a call
        self._pool.shutdown(wait=True)  # whose thread reaps the process
        code = self._process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


@dataclass(frozen=True, slots=True)
class _Shared:
    """A shared value among the arguments of a call."""

    number: int


_values: dict[int, Any] = {}
"""Shared values of this worker process."""


def _run(function: Callable[..., Any], arguments: Sequence[Any], values: Mapping[int, bytes]) -> tuple[Any, Any]:
    _values.update({number: pickle.loads(value) for number, value in values.items()})  # noqa: S301 - the driver's
    return run_guarded(function, [_values[each.number] if isinstance(each, _Shared) else each for each in arguments])


def _follow_driver() -> None:
    """Let this worker end with the driver, even if that is killed in the middle of a call."""

    def follow() -> None:
        driver = multiprocessing.parent_process()
        if driver is not None:
            driver.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def _spawning() -> Iterator[None]:
    """Spawn a process that neither runs the calling script again, nor hears a Ctrl-C, which the driver handles."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        sys.modules["__main__"] = main


def _await_ended(futures: Mapping[Key, Future[Any]], timeout: float) -> list[Key]:
    """Return the keys of futures that have ended, waiting for one."""
    if not futures:
        time.sleep(timeout)
    concurrent.futures.wait(futures.values(), timeout, FIRST_COMPLETED)
    return [key for key, future in futures.items() if future.done()]


def run_guarded(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Return a function's value, or its error with the traceback as a note, since tracebacks cannot be pickled."""
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001 - the driver handles every error
        told = as_exception(error)
        try:
            pickle.loads(pickle.dumps(told))  # noqa: S301 - it was made here
        except Exception:  # noqa: BLE001 - a class may do anything there
            told = _described(error)
        told.add_note(traceback.format_exc())
        return None, told


def as_exception(error: BaseException) -> Exception:
    """Return an error that the driver can raise.

    A panic of a library in Rust is no `Exception`; a SystemExit would end the driver without a word.
    """
    return error if isinstance(error, Exception) else _described(error)


def _described(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")
