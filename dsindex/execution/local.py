"""Executors of this machine: threads of the driver's process, and processes that it spawns."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import wait as wait_for_connections
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.errors import TaskError
from dsindex.execution.calls import Call, Executor, Outcome, as_exception, reporting_to, run_guarded
from dsindex.store.requests import Slots, hold_slot
from dsindex.store.writing import hold_recent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext, SpawnProcess

Item = TypeVar("Item")
Value = TypeVar("Value")

RECENT_BYTES = 224 << 20
"""Bytes of shards in object stores that threads hold until they are merged: those of two ranges, and what is finished
before its turn."""
REPORT_SECONDS = 0.5
"""Shortest time between two reports of a call in another process."""


def available_cpus() -> int:
    """Return the number of CPUs that this process may use, by its affinity and the quota of its control group."""
    count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no control group
    return count


class ThreadExecutor(Executor):
    """Threads of this process: for work that releases the GIL, as parsing, encoding and file I/O do."""

    kind = "local"
    is_on_this_machine = True

    def __init__(self, workers: int) -> None:
        self.slots = workers
        self.backlog = workers
        self._places = Slots(workers)
        self._queue: deque[tuple[int, Call]] = deque()
        """Calls that nobody has begun, which are taken in this order by threads that have a place."""
        self.most_waiting = (workers + 1) // 2  # for stores, or for others
        self._pool = ThreadPoolExecutor(workers + self.most_waiting, thread_name_prefix="dsindex")
        self._ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._num_attempts = 0
        self._running: dict[int, float] = {}
        """Attempt → when it began."""
        self._abandoned: set[int] = set()
        hold_recent(RECENT_BYTES)

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:  # noqa: ARG002 - more threads would not help
        """Queue a call for the next free thread."""
        self._num_attempts += 1
        self._queue.append((self._num_attempts, call))
        self._pool.submit(self._run_next)
        return self._num_attempts

    def _run_next(self) -> None:
        with hold_slot(self._places):
            try:
                attempt_id, call = self._queue.popleft()
            except IndexError:  # closed meanwhile
                return
            self._running[attempt_id] = time.monotonic()
            try:
                with reporting_to(call.listener):
                    outcome = Outcome(attempt_id=attempt_id, value=call.function(*call.arguments))
            except BaseException as error:  # noqa: BLE001 - the driver handles every error
                outcome = Outcome(attempt_id=attempt_id, error=as_exception(error))
            del self._running[attempt_id]
        self._ended.put(outcome)

    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt began; None while it waits for a thread."""
        return self._running.get(attempt_id)

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended."""
        try:
            ended = [self._ended.get(timeout=timeout)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return [outcome for outcome in ended if outcome.attempt_id not in self._abandoned]

    def abandon(self, attempt_id: int) -> None:
        """Ignore an attempt's outcome; a thread cannot be stopped and ends by itself."""
        self._abandoned.add(attempt_id)

    def close(self) -> None:
        """Drop queued calls and wait for running ones."""
        self._queue.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)
        hold_recent(0)


class ProcessExecutor(Executor):
    """Spawned processes: for work that holds the GIL, that may kill its process, or for many workers."""

    kind = "processes"
    is_on_this_machine = True

    def __init__(self, workers: int, *, threads: int = 1, prepare: Callable[[], None] | None = None) -> None:
        """Start nothing yet.

        Args:
            workers: Number of calls that run at once.
            threads: Number of calls that a process runs at once, at most; with more than one, further calls of it may
                wait for others.
            prepare: Run once in each process, before its first call.
        """
        self.slots = workers
        self._num_processes = -(-workers // threads)
        self._threads = -(-workers // self._num_processes)
        self._calls_of_process = self._threads + (self._threads // 2)
        self.backlog = self.most_waiting = self._num_processes * (self._threads // 2)
        self._prepare = prepare
        self._shared: list[bytes] = []
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        self._busy: dict[int, _Worker] = {}
        self._waiting: list[tuple[int, Call]] = []
        self._lost: list[Outcome] = []
        """Calls whose process was killed for another one."""
        self._num_attempts = 0

    def share(self, value: object) -> object:
        """Pickle a value once; each process gets it with its first call that needs it."""
        self._shared.append(pickle.dumps(value))
        return _Shared(len(self._shared) - 1)

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Send a call to the process with the fewest, or to a new one while there may be more."""
        self._num_attempts += 1
        if beyond_slots:
            self._give(self._new_worker(), self._num_attempts, call)
        else:
            self._waiting.append((self._num_attempts, call))
            self._hand_out()
        return self._num_attempts

    def _hand_out(self) -> None:
        while self._waiting:
            for worker in self._workers:
                if not worker.calls and not worker.is_alive():  # died while idle, so no call is to blame
                    worker.kill()
            self._workers = [worker for worker in self._workers if not worker.is_killed]
            least = min(self._workers, key=lambda worker: len(worker.calls), default=None)
            if least is None or (least.calls and len(self._workers) < self._num_processes):
                least = self._new_worker()
            if len(least.calls) >= self._calls_of_process:
                return
            self._give(least, *self._waiting.pop(0))

    def _new_worker(self) -> _Worker:
        worker = _Worker(self._context, self._threads, self._prepare, self._shared)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, attempt_id: int, call: Call) -> None:
        worker.send(attempt_id, call)
        self._busy[attempt_id] = worker

    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt began; None while it waits for a process."""
        worker = self._busy.get(attempt_id)
        return None if worker is None else worker.calls[attempt_id].since

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose worker died."""
        workers = dict.fromkeys(self._busy.values())
        ended, self._lost = self._lost, []
        ready = wait_for_connections([worker.pipe for worker in workers], 0 if ended else timeout)
        for worker in [worker for worker in workers if worker.pipe in ready]:
            try:
                told = worker.receive()
                if told is not None:
                    ended.append(told)
            except (EOFError, OSError):
                ended += self._give_up(worker, f"its worker process died ({_describe_exit(worker.wait())})")
        for outcome in ended:
            self._busy.pop(outcome.attempt_id, None)
        self._hand_out()
        return ended

    def _give_up(self, worker: _Worker, reason: str) -> list[Outcome]:
        """Forget a process that is gone; return the outcomes of its calls."""
        self._workers.remove(worker)
        lost = [
            Outcome(attempt_id=attempt_id, error=TaskError(reason), worker_lost=True) for attempt_id in worker.calls
        ]
        for outcome in lost:
            self._busy.pop(outcome.attempt_id, None)
        return lost

    def abandon(self, attempt_id: int) -> None:
        """Kill the process that runs an attempt; its other calls are lost."""
        self._waiting = [entry for entry in self._waiting if entry[0] != attempt_id]
        worker = self._busy.pop(attempt_id, None)
        if worker is not None:
            worker.kill()
            del worker.calls[attempt_id]
            self._lost += self._give_up(worker, "its worker process was ended for another call, which hung")
        self._hand_out()

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
        self._workers, self._busy, self._waiting = [], {}, []


@dataclass(frozen=True, slots=True)
class _Shared:
    """A shared value among the arguments of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """A call that a process has."""

    call: Call
    since: float
    """When it was sent (time.monotonic)."""


class _Worker:
    """One spawned process and the pipe to it."""

    def __init__(
        self, context: SpawnContext, threads: int, prepare: Callable[[], None] | None, shared: Sequence[bytes]
    ) -> None:
        self.pipe, theirs = context.Pipe()
        self._shared = shared
        self._known: set[int] = set()
        """Numbers of the shared values that it has."""
        self.calls: dict[int, _Sent] = {}
        """By attempt."""
        self._is_ready = False
        """Before the process reads its pipe, a large message would block us."""
        self.is_killed = False
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs, threads, prepare), daemon=True)
        # A terminal sends Ctrl-C to workers too, so they inherit a mask that blocks it and leave it to the driver.
        # Spawning the first process would start the resource tracker, which unblocks the signal again.
        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _main_module_hidden():
                self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, attempt_id: int, call: Call) -> None:
        self.calls[attempt_id] = _Sent(call, time.monotonic())
        if not self._is_ready:
            return
        numbers = {value.number for value in call.arguments if isinstance(value, _Shared)} - self._known
        self._known |= numbers
        values = {number: self._shared[number] for number in numbers}
        # If the worker died while idle, `wait` notices the closed pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((attempt_id, call.function, call.arguments, values))

    def receive(self) -> Outcome | None:
        """Return the outcome of a call; None if none is done, after passing on what one reported."""
        message = self.pipe.recv()
        if message is None:
            self._is_ready = True
            for attempt_id, sent in self.calls.items():
                self.send(attempt_id, sent.call)
            return None
        attempt_id, told = message
        if isinstance(told, _Report):
            listener = self.calls[attempt_id].call.listener
            if listener is not None:
                listener(told.text_bytes, told.documents, told.tokens)
            return None
        del self.calls[attempt_id]
        value, error = told
        return Outcome(attempt_id=attempt_id, value=value, error=error)

    def wait(self) -> int | None:
        """Return the exit code of a process that has closed its end of the pipe."""
        self._process.join(5.0)
        code = self._process.exitcode
        self.kill()
        return code

    def kill(self) -> None:
        self.is_killed = True
        self.pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Keep a spawned process from running the calling script again, as Python does to define its names."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Connection, threads: int, prepare: Callable[[], None] | None) -> None:
    """Run calls until the driver closes its end."""
    threading.current_thread().name = "dsindex-worker"
    threading.Thread(target=_die_with_driver, daemon=True).start()
    shared: dict[int, Any] = {}
    if prepare is not None:
        prepare()
    lock, slots = threading.Lock(), Slots(threads)
    pool = ThreadPoolExecutor(threads + threads // 2, thread_name_prefix="dsindex") if threads > 1 else None

    def send(message: object) -> None:
        with lock, contextlib.suppress(OSError):  # the driver is gone
            pipe.send(message)

    def run(attempt_id: int, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        with hold_slot(slots), reporting_to(_Reports(lambda report: send((attempt_id, report)))):
            told = run_guarded(function, arguments)
        try:
            send((attempt_id, told))
        except BaseException:  # noqa: BLE001 - such as a value that cannot be pickled
            traceback.print_exc()
            os._exit(1)  # a thread that ends does not tell the driver

    send(None)
    while True:
        try:
            attempt_id, function, arguments, values = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        shared |= {number: pickle.loads(value) for number, value in values.items()}  # noqa: S301 - the driver's
        arguments = [shared[each.number] if isinstance(each, _Shared) else each for each in arguments]
        if pool is None:
            run(attempt_id, function, arguments)
        else:
            pool.submit(run, attempt_id, function, arguments)


@dataclass(frozen=True, slots=True)
class _Report:
    """What a call reports while it runs."""

    text_bytes: int
    documents: int
    tokens: int


class _Reports:
    """Sends what a call reports to the driver, but not more often than it is shown."""

    def __init__(self, send: Callable[[_Report], None]) -> None:
        self._send = send
        self._due = time.monotonic() + REPORT_SECONDS

    def __call__(self, text_bytes: int, documents: int, tokens: int) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + REPORT_SECONDS
            self._send(_Report(text_bytes, documents, tokens))


def _die_with_driver() -> None:
    """End this process when the driver is killed, even in the middle of a shard."""
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "unknown exit"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def map_ahead(
    function: Callable[[Item], Value], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[tuple[Item, Value]]:
    """Yield items with their results, in order, while threads work on up to `ahead` items that follow."""
    waiting: deque[tuple[Item, Future[Value]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) > ahead:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
