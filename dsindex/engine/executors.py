"""Executors: where calls run. Threads and spawned processes are here, a Ray cluster in dsindex.engine.ray.

An executor starts calls and reports which have ended; dsindex.engine.dispatch retries them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dsindex.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess


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


@dataclass(frozen=True, slots=True)
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
    retries = 0
    """Calls that were tried again so far."""
    lost_workers = 0
    """Workers that died, were lost or ended at a deadline so far."""

    def share(self, value: object) -> object:
        """Make a large argument available to all workers once; pass what this returns in `Call.arguments`."""
        return value

    def require_seen(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:  # noqa: B027 - this machine does
        """Let the workers of other machines check, before their first call, that they see what this machine sees.

        Args:
            files: Files that calls read, with their sizes; of many, a few are checked.
            folders: Folders that calls write to.
        """

    def running(self) -> Mapping[int, float]:
        """Return the attempts that can be stopped, and when each began (time.monotonic)."""
        return {}

    @abstractmethod
    def start(self, call: Call) -> int:
        """Begin one attempt, or queue it for a worker; return its id."""

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
        self._futures: dict[int, Future[tuple[Any, Exception | None]]] = {}
        self._num_attempts = 0

    def start(self, call: Call) -> int:
        """Queue a call for the next free thread."""
        self._num_attempts += 1
        self._futures[self._num_attempts] = self._pool.submit(run_guarded, call.function, call.arguments)
        return self._num_attempts

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended."""
        if not self._futures:
            time.sleep(timeout)
        concurrent.futures.wait(self._futures.values(), timeout, concurrent.futures.FIRST_COMPLETED)
        ended = [attempt_id for attempt_id, future in self._futures.items() if future.done()]
        return [Outcome(attempt_id, *self._futures.pop(attempt_id).result()) for attempt_id in ended]

    def abandon(self, attempt_id: int) -> None:
        """Drop a queued call; one that runs ends by itself, unheard."""
        future = self._futures.pop(attempt_id, None)
        if future is not None:  # otherwise it ended meanwhile
            future.cancel()

    def close(self) -> None:
        """Drop queued calls and wait for running ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(slots=True, eq=False, kw_only=True)
class Worker:
    """A process that runs one call after another, as the driver knows it."""

    attempt_id: int | None = None
    """The attempt that it runs; None while it is idle or starts."""
    since: float = 0.0
    """When that began."""


W = TypeVar("W", bound=Worker)


class WorkerExecutor(Executor, Generic[W]):
    """Calls wait in a queue for workers, each of which can be lost, or ended, without the others."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, Call]] = deque()
        """Attempts that wait for a worker."""
        self._workers: list[W] = []
        self._num_attempts = 0

    def start(self, call: Call) -> int:
        """Queue one attempt."""
        self._num_attempts += 1
        self._queue.append((self._num_attempts, call))
        return self._num_attempts

    def running(self) -> Mapping[int, float]:
        """Return the attempts that workers run."""
        return {worker.attempt_id: worker.since for worker in self._workers if worker.attempt_id is not None}

    def abandon(self, attempt_id: int) -> None:
        """End the worker that runs an attempt."""
        self._queue = deque(entry for entry in self._queue if entry[0] != attempt_id)
        for worker in [each for each in self._workers if each.attempt_id == attempt_id]:
            self._end(worker)

    def close(self) -> None:
        """End all workers."""
        self._queue.clear()
        for worker in list(self._workers):
            self._end(worker)

    def _begin(self, worker: W) -> Call:
        """Give the first queued attempt to an idle worker."""
        worker.attempt_id, call = self._queue.popleft()
        worker.since = time.monotonic()
        return call

    def _end(self, worker: W) -> None:
        """End a worker and the attempt that it runs."""
        self._workers.remove(worker)


@dataclass(slots=True, eq=False, kw_only=True)
class _Process(Worker):
    process: BaseProcess
    connection: Connection


class ProcessExecutor(WorkerExecutor[_Process]):
    """Spawned processes: for work that holds the GIL, or for many workers."""

    kind = "processes"

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.slots = self.backlog = workers

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose process died."""
        self._assign()
        connections = {worker.connection: worker for worker in self._workers if worker.attempt_id is not None}
        if not connections:
            time.sleep(timeout)
        ready = multiprocessing.connection.wait(connections, timeout)
        outcomes = [self._take(worker) for connection, worker in connections.items() if connection in ready]
        self._assign()
        return outcomes

    def _assign(self) -> None:
        idle = [worker for worker in self._workers if worker.attempt_id is None]
        while self._queue and (idle or len(self._workers) < self.slots):
            worker = idle.pop() if idle else self._spawn()
            attempt = self._queue[0]
            call = self._begin(worker)
            try:
                worker.connection.send((call.function, call.arguments))
            except OSError:  # it died while it was idle
                self._end(worker)
                self._queue.appendleft(attempt)

    def _spawn(self) -> _Process:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
        with _spawning():
            process.start()
        theirs.close()
        self._workers.append(_Process(process=process, connection=ours))
        return self._workers[-1]

    def _take(self, worker: _Process) -> Outcome:
        """Return the outcome of the call that ended."""
        attempt_id, worker.attempt_id = worker.attempt_id or 0, None
        try:
            return Outcome(attempt_id, *worker.connection.recv())
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode or 0
            self._end(worker)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return Outcome(attempt_id, error=TaskError(f"its worker process died ({how})"), worker_lost=True)

    def _end(self, worker: _Process) -> None:
        super()._end(worker)
        worker.process.kill()
        worker.process.join()
        worker.connection.close()


def _serve(connection: Connection) -> None:
    """Run the driver's calls, until it is gone."""
    threading.Thread(target=_follow_driver, daemon=True).start()
    while True:
        connection.send(run_for_driver(*connection.recv()))


def _follow_driver() -> None:
    """End this process with the driver, even if that is killed in the middle of a call."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


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


def run_guarded(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Return a function's value, or an error that can be sent to the driver and raised there.

    A panic of a library in Rust is no `Exception`, and a SystemExit would end the driver without a word.
    """
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001 - the driver handles every error
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):  # a class may do anything there
                pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made here
                return None, error
        return None, RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def run_for_driver(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Do the same in another process; the error has its traceback, which cannot be pickled, as a note."""
    value, error = run_guarded(function, arguments)
    if error is not None:
        error.add_note("".join(traceback.format_exception(error)))
    return value, error
