"""The Ray executor in a thread of its own, where no signal handler runs and nothing can hang the driver.

Python runs signal handlers in the main thread. An exception that one raises within Ray's compiled code is lost, or
becomes a SystemError. So Ray is imported, connected and called in another thread, while the main thread only waits: a
stop reaches it at once, whatever Ray does.

Ray ends its driver without an exception when the head has not answered for a minute. A watch gives up before that.
"""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future, InvalidStateError, wait
from concurrent.futures import TimeoutError as NotYet
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.execution.calls import ClusterLostError, Executor
from dsindex.execution.interrupts import is_process_ending, raise_missed_stop, take_sigterm_back
from dsindex.execution.ray_address import parse_address, try_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.execution.calls import Call, NodeAnswer, Outcome, Shortage

T = TypeVar("T")

LOST_SECONDS = 40.0
"""A head that has not answered for so long is lost. Ray ends the driver after 60 s; a restarted head needs less."""
KNOCK_SECONDS = 2.0
"""Interval of the attempts to reach the head."""
SLICE_SECONDS = 0.5
"""The longest time that the main thread waits at once."""
CONNECT_SLICE_SECONDS = 0.02
"""The same while Ray connects, when it may replace the handler of SIGTERM at any moment."""


class RayInThread(Executor):
    """Passes every call on to an executor that lives in its own thread.

    Args:
        connect: Returns the executor; called in the thread.
        watches_head: Whether to look for the head of the executor's cluster, so as to give up before Ray does.

    Raises:
        TaskError: If it cannot be connected; every method raises ClusterLostError once the head is lost.
    """

    kind = "ray"

    def __init__(self, connect: Callable[[], Executor], *, watches_head: bool = True) -> None:
        self._thread = OwnThread("dsindex-ray")
        self._outcomes: Future[list[Outcome]] | None = None
        """A wait that has not returned yet."""
        self._has_ended = threading.Event()
        connecting = self._thread.submit(connect)
        try:
            while not connecting.done():
                wait([connecting], CONNECT_SLICE_SECONDS)
                raise_missed_stop()
                take_sigterm_back()
            self._executor = connecting.result()
            take_sigterm_back()
        except BaseException as error:
            if not isinstance(error, Exception) and not is_process_ending():
                self._thread.submit(lambda: connecting.result().close())  # a Ctrl-C that the process outlives
            self._thread.end()
            raise
        self.is_cluster, self.note = self._executor.is_cluster, self._executor.note
        self._copy_size()
        head = getattr(self._executor, "head_address", None)
        if watches_head and head is not None:
            threading.Thread(target=self._watch, args=(head,), daemon=True, name="dsindex-head").start()

    @property
    def shortage(self) -> Shortage | None:
        """Why no task can run now; None if tasks can run."""
        return self._executor.shortage

    @property
    def waiting(self) -> str | None:
        """What calls wait for, since when and why, as text; None if some run."""
        return self._executor.waiting

    def request_cpus(self, number: int) -> int:
        """Ask the cluster's autoscaler for CPUs; return how many were asked for."""
        return self._thread.run(self._executor.request_cpus, number)

    def check_new_nodes(self, check: Callable[[], None]) -> None:
        """Run a check before the first call on each node that `on_every_node` has not reached."""
        self._thread.run(self._executor.check_new_nodes, check)

    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt began; None while it waits for a slot."""
        return self._executor.running_since(attempt_id)

    def _copy_size(self) -> None:
        """Take over the cluster's size, which changes as nodes come and go."""
        self.slots, self.backlog = self._executor.slots, self._executor.backlog

    def share(self, value: object) -> object:
        """Make a large argument available to all workers once."""
        return self._thread.run(self._executor.share, value)

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Begin one attempt and return its id."""
        return self._thread.run(lambda: self._executor.start(call, beyond_slots=beyond_slots))

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the attempts that ended; none, if Ray takes longer than `timeout` seconds to say so."""
        if self._outcomes is None:
            self._outcomes = self._thread.submit(self._executor.wait, timeout)
        end = time.monotonic() + timeout + SLICE_SECONDS
        while not self._outcomes.done() and time.monotonic() < end:
            wait([self._outcomes], SLICE_SECONDS)
        if not self._outcomes.done():
            return []
        outcomes = self._outcomes.result()
        self._outcomes = None
        self._copy_size()
        return outcomes

    def abandon(self, attempt_id: int) -> None:
        """Stop an attempt if possible; the end of the process stops all, and a lost cluster none."""
        if not is_process_ending() and not self._thread.has_failed:
            self._thread.run(self._executor.abandon, attempt_id)

    def on_every_node(self, call: Call, *, timeout: float) -> dict[str, NodeAnswer]:
        """Run a call once on each machine that runs tasks."""
        return self._thread.run(lambda: self._executor.on_every_node(call, timeout=timeout))

    def close(self) -> None:
        """Disconnect, unless the process is about to end, which does it without waiting for Ray."""
        self._has_ended.set()
        if is_process_ending() or self._thread.has_failed:
            return
        self._thread.run(self._executor.close)
        self._thread.end()
        take_sigterm_back()

    def _watch(self, head: str) -> None:
        """Fail all calls when the head has not answered for LOST_SECONDS."""
        address = parse_address(head, source="the head")
        answered = time.monotonic()
        while not self._has_ended.wait(KNOCK_SECONDS):
            if try_port(address) is None:
                answered = time.monotonic()
            elif time.monotonic() - answered >= LOST_SECONDS:
                msg = f"{head}: the head of the Ray cluster has not answered for {LOST_SECONDS:.0f} s and is lost"
                self._thread.fail(ClusterLostError(msg))
                return


class OwnThread:
    """Runs functions one after the other in one thread, which does not keep the process alive.

    The processes that Ray starts in it end with it, so it lives until `end`.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._under_way: set[Future[Any]] = set()
        threading.Thread(target=self._work, daemon=True, name=name).start()

    @property
    def has_failed(self) -> bool:
        """Whether `fail` was called."""
        return self._failure is not None

    def submit(self, function: Callable[..., T], *arguments: object) -> Future[T]:
        """Run a function after those before it."""
        future: Future[T] = Future()
        self._under_way.add(future)
        self._calls.put((future, lambda: function(*arguments)))
        if self._failure is not None:
            _fail(future, self._failure)
        return future

    def run(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a function, and return its value or raise its error."""
        return wait_for(self.submit(function, *arguments))

    def fail(self, error: Exception) -> None:
        """Let all calls end with an error, those under way too, whose functions may hang for ever."""
        self._failure = error
        for future in list(self._under_way):
            _fail(future, error)

    def end(self) -> None:
        """End the thread after the calls that were submitted."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            with contextlib.suppress(InvalidStateError):
                try:
                    value = function()
                except BaseException as error:  # noqa: BLE001 - handed to the caller
                    future.set_exception(error)
                else:
                    future.set_result(value)
            self._under_way.discard(future)
            del call, future, function


def wait_for(future: Future[T]) -> T:
    """Return a future's value; a signal ends the waiting even if another thread of the process received it."""
    while True:
        try:
            return future.result(SLICE_SECONDS)
        except NotYet:
            if future.done():
                raise
            raise_missed_stop()


def _fail(future: Future[Any], error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_exception(error)
