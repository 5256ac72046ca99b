"""Executors run calls: on threads and spawned processes here, on a Ray cluster in dsindex.runtime.ray.

An executor starts calls and reports those that ended; dsindex.runtime.dispatch retries them.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import queue
import re
import signal
import sys
import threading
import time
import traceback
import uuid
from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dsindex._version import __version__
from dsindex.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set
    from concurrent.futures import Future

HIRE_SECONDS = 2.0
"""Pause after a worker failed to start."""
DEADLINE_POLL_SECONDS = 0.5
"""How often the deadlines of running calls are checked."""
FAILING_SECONDS = 30.0
"""How long workers may fail to start before the job fails: on a lost node they fail until Ray notices the loss."""


class ClusterLostError(TaskError):
    """The cluster is lost; no further call can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function to run on a worker, with arguments that can be pickled."""

    name: str
    """The name shown to users, such as `tokenize[00042]`."""
    place: str
    """The file or folder that it works on, for messages."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    """Arguments; may contain values that `Executor.share` returned."""
    seconds: float = 0.0
    """Deadline of this call, if it is longer than the executor's."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A large argument that many calls use, such as a tokenizer; each worker process receives it once."""

    key: str
    value: Any = None
    """The value or a reference to it; None when sent to a worker that already has it."""

    def take(self) -> Any:  # noqa: ANN401 - what was shared
        """Return the value, on a worker; every call there gets the same object."""
        return received.setdefault(self.key, self.value)


received: dict[str, Any] = {}
"""On a worker: key → shared value."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt at a call."""

    attempt_id: int
    value: Any = None
    error: BaseException | None = None
    """The function's exception, or the reason why its worker was lost."""
    worker_lost: bool = False
    """Whether the worker died or became unreachable, which may not be the call's fault."""


@dataclass(slots=True, eq=False, kw_only=True)
class Worker:
    """The driver's view of a worker, which runs one call at a time."""

    handle: Any
    """A thread pool, a pool of one process, or an actor."""
    future: Future[Any] | None = None
    """Future of its start, then of its current call; None while it is idle and after it is laid off."""
    pid: int | None = None
    """Its process id, once it has started."""
    attempt_id: int | None = None
    """The attempt that it runs; None while it is idle or starting."""
    ends: float = math.inf
    """Deadline of its attempt (time.monotonic)."""
    received: set[str] = field(default_factory=set)
    """Keys of the shared values already sent to it."""

    def take_unsent(self, call: Call) -> list[Shared]:
        """Return the shared values of a call that this worker lacks, and count them as sent."""
        unsent = [arg for arg in call.arguments if isinstance(arg, Shared) and arg.key not in self.received]
        self.received.update(arg.key for arg in unsent)
        return unsent


class Executor(ABC):
    """Runs calls on workers of one driver; a worker can be lost or killed without affecting the other workers."""

    kind: str
    loss_errors: tuple[type[Exception], ...] = ()
    """Exceptions that mean a lost worker; empty if workers cannot be killed."""
    introduction: str | None = None
    """Sentence that names the joined cluster, if it is the user's."""
    waiting: str | None = None
    """What calls wait for, and since when; None while calls run."""
    retries = 0
    """Number of retried calls so far."""
    lost_workers = 0
    """Number of workers that died, were lost or were killed at a deadline so far."""
    deadline_seconds = 3600.0
    """Longest duration of a call's first attempt, after which its worker is killed; doubled after each lost worker."""

    def __init__(self, workers: int) -> None:
        self.slots = workers
        """Number of calls that run at once."""
        self.backlog = workers
        """Number of calls queued beyond `slots`, so that no slot waits for the driver."""
        self.max_workers = workers
        self.on_idle: Callable[[], None] = lambda: None
        """Called at least every half second while calls run, for progress displays."""
        self._queue: deque[tuple[int, Call, float]] = deque()
        """Attempts that wait for a worker: id, call, allowed seconds."""
        self._workers: dict[Worker, None] = {}
        self._idle: list[Worker] = []
        self._num_starting = 0
        self._ended: queue.SimpleQueue[tuple[Worker, Future[Any]]] = queue.SimpleQueue()
        """Workers whose futures ended. Thanks to the queue, waiting costs the same for any number of workers."""
        self._next_check = 0.0
        self._num_attempts = 0
        self._next_hire = 0.0
        self._failing_since: float | None = None

    @abstractmethod
    def hire(self) -> tuple[Worker, Future[Any] | None]:
        """Start a worker; return it with the future of its start, or None if it can take a call at once."""

    def give(self, worker: Worker, call: Call) -> Future[Any]:
        """Send a call to a worker; return the future of its value and error."""
        future: Future[Any] = worker.handle.submit(run_guarded, call.function, call.arguments)
        return future

    @abstractmethod
    def end(self, worker: Worker) -> None:
        """End a worker, which may be lost already."""

    def result_of(self, future: Future[Any]) -> Any:  # noqa: ANN401 - of any function
        """Return the result of a finished future; raise one of `loss_errors` if the worker was lost."""
        return future.result()

    def share(self, value: object) -> object:
        """Wrap a large value for `Call.arguments`, so that it is sent once per worker."""
        return value

    def require_seen(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:  # noqa: B027 - none needed here
        """Make workers on other machines check, before their first call, that they see the same files.

        Args:
            files: Files that calls read, with their sizes; of many, a few are checked.
            folders: Folders that calls write to.
        """

    def start(self, call: Call, *, deadline_seconds: float = math.inf) -> int:
        """Queue one attempt at a call; return its id. The worker is killed if the attempt takes longer."""
        self._num_attempts += 1
        self._queue.append((self._num_attempts, call, deadline_seconds))
        return self._num_attempts

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the attempts that ended, waiting up to `timeout` seconds for the first.

        Raises:
            TaskError: If no worker can start.
        """
        self._assign()
        finished = []
        with contextlib.suppress(queue.Empty):
            finished.append(self._ended.get(timeout=timeout))
            while True:
                finished.append(self._ended.get_nowait())
        outcomes = [self._handle_finished(worker, future) for worker, future in finished if worker.future is future]
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + DEADLINE_POLL_SECONDS
            outcomes += [self._end_overdue(worker) for worker in list(self._workers) if worker.ends <= now]
        self._assign()  # keeps workers busy while the driver handles these outcomes
        return [outcome for outcome in outcomes if outcome is not None]

    def abandon(self, attempt_ids: Set[int]) -> None:
        """Stop attempts by ending their workers; their outcomes will not be reported."""
        self._queue = deque(attempt for attempt in self._queue if attempt[0] not in attempt_ids)
        for worker in [candidate for candidate in self._workers if candidate.attempt_id in attempt_ids]:
            self._lay_off(worker)

    def close(self) -> None:
        """End all workers, and abandon attempts that still run."""
        self._queue.clear()
        for worker in list(self._workers):
            self._lay_off(worker)

    def _lay_off(self, worker: Worker) -> None:
        del self._workers[worker]
        self.end(worker)
        worker.future = None

    def _watch(self, worker: Worker, future: Future[Any]) -> None:
        worker.future = future
        future.add_done_callback(lambda ended: self._ended.put((worker, ended)))

    def _assign(self) -> None:
        """Hire workers if attempts wait for one, and give queued attempts to idle workers."""
        missing = len(self._queue) - len(self._idle) - self._num_starting
        if missing > 0 and time.monotonic() >= self._next_hire:
            self._hire(min(missing, self.max_workers - len(self._workers)))
        while self._queue and self._idle:
            worker, (attempt_id, call, seconds) = self._idle.pop(), self._queue[0]
            try:
                future = self.give(worker, call)
            except self.loss_errors:  # while it was idle; its pid may belong to another process by now
                worker.pid = None
                self._lay_off(worker)
                continue
            worker.attempt_id = attempt_id
            worker.ends = time.monotonic() + seconds if self.loss_errors else math.inf
            self._queue.popleft()
            self._watch(worker, future)

    def _hire(self, count: int) -> None:
        """Start workers; if the system's limits allow fewer, continue with the running ones."""
        try:
            for _ in range(count):
                worker, future = self.hire()
                self._workers[worker] = None
                if future is None:
                    self._idle.append(worker)
                else:
                    self._num_starting += 1
                    self._watch(worker, future)
        except OSError as error:
            if not self._workers:
                hint = "raise the limits of this shell (`ulimit -n 4096`), or use --executor local"
                raise TaskError(f"no worker can start ({error.strerror})", hint=hint) from error
            self.max_workers = len(self._workers)

    def _handle_finished(self, worker: Worker, future: Future[Any]) -> Outcome | None:
        """Handle a finished future: either a worker started, or its attempt ended."""
        attempt_id, worker.attempt_id, worker.ends = worker.attempt_id, None, math.inf
        self._num_starting -= attempt_id is None
        try:
            result = self.result_of(future)
        except self.loss_errors as error:
            worker.pid = None
            self._lay_off(worker)
            if attempt_id is not None:
                reason = TaskError(f"its worker was lost ({last_line(error)})")
                return Outcome(attempt_id, error=reason, worker_lost=True)
            self._hire_later(error)
            return None
        worker.future = None
        self._idle.append(worker)
        if attempt_id is not None:
            return Outcome(attempt_id, *result)
        worker.pid, self._failing_since = result, None
        return None

    def _end_overdue(self, worker: Worker) -> Outcome:
        """End a worker whose attempt is past its deadline."""
        self._lay_off(worker)
        reason = TaskError("it did not end in time", hint="check the files that it reads, or raise --shard-deadline")
        return Outcome(worker.attempt_id or 0, error=reason, worker_lost=True)

    def _hire_later(self, error: Exception) -> None:
        now = time.monotonic()
        self._next_hire = now + HIRE_SECONDS
        self._failing_since = self._failing_since or now
        if now - self._failing_since >= FAILING_SECONDS:
            hint = f"install dsindex {__version__} on every node, and check the folder and environment of its workers"
            raise TaskError(f"the workers of the executor {self.kind} do not start ({last_line(error)})", hint=hint)


class ThreadExecutor(Executor):
    """Threads of this process: for work that releases the GIL, as parsing, encoding and file I/O do."""

    kind = "local"

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="dsindex")

    def hire(self) -> tuple[Worker, None]:
        """Return a placeholder for one thread of the pool."""
        return Worker(handle=self._pool), None

    def end(self, worker: Worker) -> None:
        """Cancel a queued call; the result of a running call is discarded."""
        if worker.future is not None:
            worker.future.cancel()

    def close(self) -> None:
        """Drop queued calls and wait for running ones."""
        super().close()
        self._pool.shutdown(wait=True, cancel_futures=True)


class ProcessExecutor(Executor):
    """Spawned processes, each a pool of one: for work that holds the GIL, or for many workers."""

    kind = "processes"
    loss_errors = (BrokenExecutor,)

    def share(self, value: object) -> object:
        """Wrap a value with a key, so that `give` sends it only once."""
        return Shared(uuid.uuid4().hex, value)

    def give(self, worker: Worker, call: Call) -> Future[Any]:
        """Send a call, with only those shared values that the process lacks."""
        new = worker.take_unsent(call)
        arguments = (Shared(arg.key) if isinstance(arg, Shared) and arg not in new else arg for arg in call.arguments)
        future: Future[Any] = worker.handle.submit(run_guarded, call.function, tuple(arguments))
        return future

    def hire(self) -> tuple[Worker, Future[Any]]:
        """Spawn a process."""
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_end_with_driver)
        with _isolate_spawned():
            return Worker(handle=pool), pool.submit(begin_worker)

    def end(self, worker: Worker) -> None:
        """Kill the process; one that is still starting exits by itself."""
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        # Wait for the pool's own thread: at exit, the interpreter writes to its wake-up pipe, which it may be closing.
        worker.handle.shutdown(wait=True, cancel_futures=True)


def begin_worker() -> int:
    """Import the modules that calls need, while the driver does other work; return the process id."""
    import dsindex.runtime.merge  # noqa: F401

    return os.getpid()


def _end_with_driver() -> None:
    """Exit when the driver exits, even if the driver is killed during a call."""

    def follow() -> None:
        driver = multiprocessing.parent_process()
        if driver is not None:
            driver.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


@contextlib.contextmanager
def _isolate_spawned() -> Iterator[None]:
    """Keep spawned processes from rerunning the calling script and from receiving Ctrl-C, which the driver handles."""
    main_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
        sys.modules["__main__"] = main_module


def run_guarded(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[Any, Exception | None]:
    """Return a function's value, or an error that can be sent to the driver and raised there.

    Everything is caught: a panic in a Rust library is no `Exception`, and a SystemExit would end the driver silently.
    The traceback, which cannot be pickled, is added as a note.
    """
    try:
        return function(*(arg.take() if isinstance(arg, Shared) else arg for arg in arguments)), None
    except BaseException as error:  # noqa: BLE001 - the driver handles every error
        sent_error: Exception = RuntimeError(f"{type(error).__name__}: {error}")
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):  # pickling runs code of the error's class
                pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made here
                sent_error = error
        sent_error.add_note("".join(traceback.format_exception(error)))
        return None, sent_error


def last_line(error: BaseException) -> str:
    r"""Return the last line of an error's message without colors; in errors from a worker, it names the cause.

    >>> last_line(RuntimeError("lost\n\x1b[36mImportError: no such module\x1b[39m\n"))
    'ImportError: no such module'
    """
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error))
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), type(error).__name__)
