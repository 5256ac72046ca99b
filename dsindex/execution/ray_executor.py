"""Calls on a Ray cluster, run by workers that hold one CPU each and retried by the driver, not by Ray.

A cluster is joined only if the user named one; otherwise a private one is started, and stopped at the end.

Workers are actors that run one call after another. Ray ends idle processes beyond a node's number of CPUs: with a task
per call, builds that share a cluster would lose their processes to each other after nearly every call, and each new
process imports and loads everything again (65 processes instead of 4 for two builds on two CPUs, which took five times
as long). An actor keeps its process. A worker keeps its CPU until it has nothing to do or has held it for a while, and
other jobs wait for CPUs.

Nodes that join a cluster while a job runs are checked by their workers before the first call there.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
import ray.util
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dsindex.errors import InputError, TaskError
from dsindex.execution.calls import Call, Executor, NodeAnswer, Outcome, run_guarded
from dsindex.execution.ray_address import untried_release
from dsindex.execution.ray_cluster import ClusterSize, connect, count_waiting_cpus, living_nodes, restore_variables
from dsindex.execution.store_variables import given_store_variables, run_where_stores_are
from dsindex.json_text import show_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dsindex.execution.calls import EarlyStart, Shortage

BUSY_SECONDS = 10.0
"""Time without any worker after which it is said that others use all CPUs."""
START_SECONDS = 5.0
"""Longest wait for workers that start before a node's check is given to a process of its own."""
HOLD_SECONDS = 30.0
"""Time for which a worker holds its CPU although other jobs wait: many times what it takes to start another one."""
LOOK_SECONDS = 2.0
"""Interval at which the CPUs that other jobs wait for are counted."""

_PASSED: set[str] = set()
"""Keys of the checks that this worker process need not run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A check that a worker runs before its first call, unless the driver has checked its node."""

    check: Callable[[], None]
    """Raises InputError if the node would fail."""
    checked_nodes: frozenset[str]
    """Ray's ids of the nodes that the driver has checked."""
    key: str
    """Distinguishes the checks of several jobs, whose calls a worker process may run one after the other."""


def _run_after_check(entry: NodeCheck, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - of any function
    """Run a function in a worker of a sound node.

    Raises:
        InputError: If the node fails the check, with its name.
    """
    if entry.key not in _PASSED:
        node = ray.get_runtime_context().get_node_id()
        if node not in entry.checked_nodes:
            try:
                entry.check()
            except InputError as fault:
                msg = f"{_name_node(socket.gethostname(), ray.util.get_node_ip_address(), node)}: {fault}"
                raise InputError(msg) from fault
        _PASSED.add(entry.key)
    return function(*arguments)


def _name_node(host: str, address: str, node_id: str) -> str:
    """Return the name of a node in messages: host, address, and the beginning of Ray's id."""
    return f"{host} ({address}, {node_id[:6]})"


class RayWorker:
    """A process on some node that runs calls."""

    def begin(self, prepare: Callable[[], None] | None) -> str:
        """Prepare this process for its calls; return the id of its node."""
        if prepare is not None:
            prepare()
        return str(ray.get_runtime_context().get_node_id())

    def run(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:  # noqa: ANN401 - of any call
        """Run one call."""
        return run_guarded(function, arguments)


_ACTOR_CLASS: Any = ray.remote(RayWorker)


@ray.remote
def _run_call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:  # noqa: ANN401 - of any call
    return run_guarded(function, arguments)


@dataclass(slots=True, eq=False, kw_only=True)
class _Worker:
    """One actor, as the driver knows it."""

    actor: Any
    memory_bytes: int
    """Memory that is reserved for it."""
    is_extra: bool
    """Whether it runs one call beyond the slots, without a CPU of its own."""
    reference: Any = None
    """What it is waited for with: its node's id at first, then the value of its call."""
    node: str | None = None
    """None until its process runs."""
    attempt: int | None = None
    since: float = 0.0
    """Time at which it began to run."""
    call_since: float = 0.0
    """Time at which its call began, or its last call ended."""
    is_leaving: bool = False
    """Whether it is given up when its call ends."""

    def run(self, call: Call) -> Any:  # noqa: ANN401 - Ray's own type is private
        """Begin a call; return a reference to its value."""
        return self.actor.run.options(name=show_name(call.name)).remote(call.function, *call.arguments)


class RayExecutor(Executor):
    """Runs calls on workers of a Ray cluster; used in a thread without signals (dsindex.execution.ray_thread)."""

    kind = "ray"

    def __init__(
        self,
        *,
        address: str | None,
        workers: int | None,
        ship_code: bool = True,
        early: EarlyStart | None = None,
    ) -> None:
        """Connect.

        Args:
            address: The cluster to join; None starts a private one.
            workers: Number of calls that run at once; None: all CPUs of the cluster.
            ship_code: Whether to send this process's code to the nodes of a named cluster, unless Ray's job server
                started this process and has sent the code already.
            early: The workers that begin to start now.

        Raises:
            TaskError: If the cluster cannot be started or reached.
            TokenError: If its token is missing, cannot be sent, or is not accepted.
        """
        self._is_guest = ray.is_initialized()
        if not self._is_guest:
            self._variables_before = connect(address, workers, ship_code=ship_code)
        self.is_cluster = address is not None
        self.note = untried_release(ray.__version__)
        self.head_address: str = ray.get_runtime_context().gcs_address
        self._num_workers = workers
        self._cluster = ClusterSize(address or "this machine")
        self._use_cluster_size()
        self._checked_nodes: frozenset[str] = frozenset()
        self._check: object | None = None
        """A NodeCheck in the object store."""
        self._prepare = None if early is None else early.prepare
        self._num_attempts = 0
        self._queue: deque[tuple[int, Call]] = deque()
        """Attempts that wait for a worker."""
        self._workers: list[_Worker] = []
        self._looked = 0.0
        self._others_waited = False
        self._hires_from = 0.0
        """Time before which no worker is hired, so that a CPU that was given up goes to another job."""
        self._failed_starts = 0
        """Times that workers were lost before they began, since one last began."""
        self._waits_since: float | None = None
        """Time since which attempts wait and no worker runs."""
        if early is not None:
            self._hire_up_to(min(self.slots, early.num_calls), early.memory_bytes)

    def _use_cluster_size(self) -> None:
        self.slots = self.backlog = self._num_workers or max(1, self._cluster.num_cpus)

    @property
    def shortage(self) -> Shortage | None:
        """Why no task can run now; None if tasks can run."""
        return self._cluster.shortage

    @property
    def waiting(self) -> str | None:
        """What calls wait for, since when and why, as text; None if some run."""
        if self._cluster.shortage is not None:
            return self._cluster.shortage.describe()
        if self._waits_since is None:
            return None
        seconds = time.monotonic() - self._waits_since
        if seconds < BUSY_SECONDS:
            return None  # workers take that long to start
        return (
            f"waiting for CPUs: other jobs use all {self._cluster.num_cpus:,}, for {seconds:.0f} s; builds take turns, "
            f"other jobs need not"
        )

    def request_cpus(self, number: int) -> int:
        """Ask the cluster's autoscaler for CPUs, at most as many as workers; return how many were asked for."""
        number = self._cluster.want(min(number, self._num_workers or number))
        self._hire_up_to(number)
        return number

    def check_new_nodes(self, check: Callable[[], None]) -> None:
        """Run a check before the first call on each node that `on_every_node` has not reached."""
        self._check = ray.put(NodeCheck(check=check, checked_nodes=self._checked_nodes, key=uuid.uuid4().hex))

    def share(self, value: object) -> object:
        """Put a value into the object store once."""
        return ray.put(value)

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Submit one attempt; beyond the slots it runs on a worker of its own, which does not wait for a CPU."""
        self._num_attempts += 1
        if self._check is not None:
            call = replace(call, function=_run_after_check, arguments=(self._check, call.function, *call.arguments))
        call = _as_this_process(call)
        if beyond_slots:
            self._give(self._hire(0, is_extra=True), self._num_attempts, call)
        else:
            self._queue.append((self._num_attempts, call))
        return self._num_attempts

    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt began; None while it waits for a worker."""
        running = (worker.call_since for worker in self._workers if worker.attempt == attempt_id and worker.node)
        return next(running, None)

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose worker or node was lost."""
        if self._cluster.look_if_due():
            self._use_cluster_size()
        # Workers that wait for a CPU are what an autoscaler goes by.
        grows = self._cluster.grows and self._num_workers is None
        return self._wait(timeout, slots=self.slots + self.backlog if grows else self.slots)

    def abandon(self, attempt_id: int) -> None:
        """Kill the worker that runs an attempt; its outcome is not reported."""
        self._queue = deque(entry for entry in self._queue if entry[0] != attempt_id)
        for worker in [worker for worker in self._workers if worker.attempt == attempt_id]:
            self._dismiss(worker)

    def on_every_node(self, call: Call, *, timeout: float) -> dict[str, NodeAnswer]:
        """Run the call on every living node that has CPUs, busy or not.

        An idle worker of the node runs it, if there is one. If a node has not answered after a quarter of the time,
        another process of that node runs the call too.
        """
        call = _as_this_process(call)
        nodes = {
            _name_node(node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]): node["NodeID"]
            for node in living_nodes()
        }
        self._checked_nodes = frozenset(nodes.values())
        deadline = time.monotonic() + timeout
        self._await_begun(min(timeout / 4, START_SECONDS))
        tasks = {name: [self._ask_idle(node, call) or _start_on_node(call, node)] for name, node in nodes.items()}
        answers = _collect_answers(tasks, time.monotonic() + timeout / 4)
        for name in tasks:
            tasks[name].append(_start_on_node(call, nodes[name]))
        answers |= _collect_answers(tasks, deadline)
        for name, attempts in tasks.items():
            _cancel_unfinished(attempts)
            answers[name] = NodeAnswer(error=TaskError(f"it did not answer within {timeout:.0f} s"))
        return {name: answers[name] for name in nodes}

    def close(self) -> None:
        """Disconnect, and stop a cluster that was started here; a connection that was already open stays open."""
        self._queue.clear()
        for worker in list(self._workers):
            self._dismiss(worker)
        if not self._is_guest:
            ray.shutdown()
            restore_variables(self._variables_before)

    def _await_begun(self, timeout: float) -> None:
        """Wait between stages until a worker runs on each of the nodes, or all that were hired run."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            begun = {worker.node for worker in self._workers}
            if None not in begun or begun >= self._checked_nodes:
                return
            self._wait(left, slots=0)

    def _ask_idle(self, node: str, call: Call) -> tuple[Any, Callable[[], None]] | None:
        """Let an idle worker of a node run a call between stages.

        Returns:
            A reference to the value, and a function that kills the worker; None if no worker is idle there.
        """
        for worker in self._workers:
            if worker.node == node and worker.attempt is None:
                return worker.run(call), partial(self._dismiss, worker)
        return None

    def _wait(self, timeout: float, *, slots: int) -> list[Outcome]:
        """Return the attempts that ended, waiting up to `timeout` seconds for one; use at most `slots` workers."""
        self._assign(slots)
        by_reference = {worker.reference: worker for worker in self._workers if worker.reference is not None}
        ready: list[Any] = []
        if by_reference:
            ready, _ = ray.wait(list(by_reference), num_returns=1, timeout=timeout)
        else:
            time.sleep(timeout)
        if ready:
            ready, _ = ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        outcomes = [outcome for reference in ready for outcome in self._take(by_reference[reference])]
        self._leave_some_to_others()
        self._assign(slots)  # no worker should wait until the driver has handled these outcomes
        return outcomes

    def _assign(self, slots: int) -> None:
        """Give queued attempts to idle workers, and hire more if there are fewer than could be used."""
        idle = [worker for worker in self._workers if worker.node is not None and worker.attempt is None]
        for worker in idle:
            if not self._queue:
                break
            if self._reservable(self._queue[0][1].memory_bytes) > worker.memory_bytes:
                self._dismiss(worker)  # one that reserves enough is hired below
            else:
                self._give(worker, *self._queue.popleft())
        own = [worker for worker in self._workers if not worker.is_extra]
        if not self._queue or any(worker.node is not None for worker in own):
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = time.monotonic()
        num_busy = sum(worker.attempt is not None for worker in own)
        needed = min(slots, num_busy + len(self._queue))
        if needed > len(own) and time.monotonic() >= self._hires_from:
            self._hire_up_to(needed, max(self._reservable(call.memory_bytes) for _, call in self._queue))

    def _hire_up_to(self, number: int, memory_bytes: int = 0) -> None:
        """Ask for workers until there are `number`; their processes start while the driver does something else."""
        memory_bytes = self._reservable(memory_bytes)
        for _ in range(number - sum(not worker.is_extra for worker in self._workers)):
            self._hire(memory_bytes)

    def _hire(self, memory_bytes: int, *, is_extra: bool = False) -> _Worker:
        actor = _ACTOR_CLASS.options(
            num_cpus=0 if is_extra else 1,
            memory=memory_bytes or None,
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
        ).remote()
        worker = _Worker(actor=actor, memory_bytes=memory_bytes, is_extra=is_extra)
        if not is_extra:
            worker.reference = actor.begin.remote(self._prepare)
        self._workers.append(worker)
        return worker

    def _reservable(self, memory_bytes: int) -> int:
        """Return the memory to reserve for a call: none if no node has so much, as the worker would wait forever."""
        return memory_bytes if memory_bytes <= self._cluster.largest_memory else 0

    @staticmethod
    def _give(worker: _Worker, attempt: int, call: Call) -> None:
        worker.attempt, worker.call_since, worker.reference = attempt, time.monotonic(), worker.run(call)

    def _dismiss(self, worker: _Worker) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            ray.kill(worker.actor)

    def _take(self, worker: _Worker) -> Iterable[Outcome]:
        """Take what a worker was waited for: its node, or the end of its attempt."""
        attempt, reference = worker.attempt, worker.reference
        worker.reference = None
        try:
            got = ray.get(reference)
        except ray.exceptions.RayError as lost:
            self._dismiss(worker)
            if attempt is None:
                now = time.monotonic()
                if now < self._hires_from:
                    return
                # Ray places workers on a lost node until it has noticed the loss, for which no call is to blame.
                self._hires_from = now + LOOK_SECONDS
                self._failed_starts += 1
                if self._failed_starts == 1 or not self._queue:
                    return
                attempt, _ = self._queue.popleft()  # so that retries of what cannot start are limited, too
            reason = TaskError(f"its Ray worker was lost ({_first_line(lost)})")
            yield Outcome(attempt_id=attempt, error=reason, worker_lost=True)
            return
        now = time.monotonic()
        if attempt is None:
            worker.node, worker.since, worker.call_since = got, now, now
            self._failed_starts = 0
            return
        value, error = got
        seconds = now - worker.call_since
        worker.attempt, worker.call_since = None, now
        if worker.is_extra or worker.is_leaving:
            self._dismiss(worker)
        if worker.is_leaving:
            self._hires_from = now + LOOK_SECONDS
        yield Outcome(attempt_id=attempt, value=value, error=error, seconds=seconds)

    def _leave_some_to_others(self) -> None:
        """If other jobs wait for CPUs, give up idle workers, and half of those that have held theirs for long."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        own = [worker for worker in self._workers if worker.node is not None and not worker.is_extra]
        idle = [worker for worker in own if worker.attempt is None and now - worker.call_since > LOOK_SECONDS]
        held = [worker for worker in own if not worker.is_leaving and now - worker.since > HOLD_SECONDS]
        if not idle and not held:
            return
        num_own_waiting = sum(worker.node is None and not worker.is_extra for worker in self._workers)
        others_wait = count_waiting_cpus() > num_own_waiting
        # What the cluster reports is a little late, so a worker that has just begun may look like another job.
        others_waited, self._others_waited = self._others_waited, others_wait
        if not (others_wait and others_waited):
            return
        for worker in idle:
            self._dismiss(worker)
        busy = [worker for worker in held if worker.attempt is not None]
        for worker in busy[: -(-len(busy) // 2)]:
            worker.is_leaving = True


def _as_this_process(call: Call) -> Call:
    """Return the call such that it reaches stores where the options of this process say."""
    variables = given_store_variables()
    if not variables:
        return call
    return replace(call, function=run_where_stores_are, arguments=(variables, call.function, *call.arguments))


def _start_on_node(call: Call, node: str) -> tuple[Any, Callable[[], None]]:
    """Return a reference to a call's value on a node, and a function that cancels the call."""
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"name": show_name(call.name), "num_cpus": 0, "max_retries": 0, "scheduling_strategy": place}
    reference = _run_call.options(**options).remote(call.function, *call.arguments)
    return reference, partial(ray.cancel, reference, force=True)


def _collect_answers(tasks: dict[str, list[tuple[Any, Callable[[], None]]]], deadline: float) -> dict[str, NodeAnswer]:
    """Wait for the first answer of each node, and remove nodes that have answered from `tasks`."""
    answers: dict[str, NodeAnswer] = {}
    while tasks and (left := deadline - time.monotonic()) > 0:
        ready, _ = ray.wait([task for attempts in tasks.values() for task, _ in attempts], timeout=left)
        for name in [name for name, attempts in tasks.items() if any(task in ready for task, _ in attempts)]:
            attempts = tasks.pop(name)
            try:
                value, error = ray.get(next(task for task, _ in attempts if task in ready))
                answers[name] = NodeAnswer(value=value, error=error)
            except ray.exceptions.RayError as lost:
                answers[name] = NodeAnswer(error=TaskError(f"it was lost ({_first_line(lost)})"))
            _cancel_unfinished(attempts)
    return answers


def _cancel_unfinished(attempts: list[tuple[Any, Callable[[], None]]]) -> None:
    """Cancel running and waiting calls. Ray 2.60 can crash this process if a task that has just ended is cancelled."""
    _, unfinished = ray.wait([task for task, _ in attempts], num_returns=len(attempts), timeout=0)
    for task, cancel in attempts:
        if task in unfinished:
            cancel()


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
