"""Calls on a Ray cluster, run by workers that hold one CPU each and retried by the driver, not by Ray.

A cluster is joined only if the user named one; otherwise a private one is started, and stopped at the end.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dsindex.errors import TaskError
from dsindex.json_text import show_name
from workflows.execution.calls import Call, NodeAnswer, Outcome, run_guarded
from workflows.execution.cluster_size import ClusterSize, living_nodes
from workflows.execution.new_nodes import NodeCheck, name_node, run_after_check
from workflows.execution.ray_connection import connect, restore_variables
from workflows.execution.ray_workers import RayWorkers, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.execution.calls import EarlyStart, Shortage

BUSY_SECONDS = 10.0
"""Time without any worker after which it is said that others use all CPUs."""
START_SECONDS = 5.0
"""Longest wait for workers that start before a node's check is given to a process of its own."""


class RayExecutor:
    """Runs calls on workers of a Ray cluster; used in a thread without signals (workflows.execution.ray_thread)."""

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
        self.head_address: str = ray.get_runtime_context().gcs_address
        self._workers = workers
        self._cluster = ClusterSize(address or "this machine")
        self._use_cluster_size()
        self._checked_nodes: frozenset[str] = frozenset()
        self._check: object | None = None
        """A NodeCheck in the object store."""
        self._pool = RayWorkers(
            max_reserved_bytes=lambda: self._cluster.largest_memory, prepare=None if early is None else early.prepare
        )
        self._num_attempts = 0
        if early is not None:
            self._pool.hire(min(self.slots, early.num_calls), early.memory_bytes)

    def _use_cluster_size(self) -> None:
        self.slots = self.backlog = self._workers or max(1, self._cluster.num_cpus)

    @property
    def shortage(self) -> Shortage | None:
        """Why no task can run now; None if tasks can run."""
        return self._cluster.shortage

    @property
    def waiting(self) -> str | None:
        """What calls wait for, since when and why, as text; None if some run."""
        if self._cluster.shortage is not None:
            return self._cluster.shortage.describe()
        since = self._pool.waits_since
        if since is None or time.monotonic() - since < BUSY_SECONDS:
            return None  # workers take that long to start
        seconds = time.monotonic() - since
        return (
            f"waiting for CPUs: other jobs use all {self._cluster.num_cpus:,}, for {seconds:.0f} s; builds take turns, "
            f"other jobs need not"
        )

    def request_cpus(self, number: int) -> int:
        """Ask the cluster's autoscaler for CPUs, at most as many as workers; return how many were asked for."""
        number = self._cluster.want(min(number, self._workers or number))
        self._pool.hire(number)
        return number

    def check_new_nodes(self, check: Callable[[], None]) -> None:
        """Run a check before the first call on each node that `on_every_node` has not reached."""
        self._check = ray.put(NodeCheck(check=check, checked_nodes=self._checked_nodes, key=uuid.uuid4().hex))

    def share(self, value: object) -> object:
        """Put a value into the object store once."""
        return ray.put(value)

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Submit one attempt; beyond the slots it does not wait for a free CPU."""
        self._num_attempts += 1
        if self._check is not None:
            call = replace(call, function=run_after_check, arguments=(self._check, call.function, *call.arguments))
        if beyond_slots:
            self._pool.run_beside(self._num_attempts, call)
        else:
            self._pool.enqueue(self._num_attempts, call)
        return self._num_attempts

    def running_since(self, attempt_id: int) -> float | None:
        """Return when an attempt began; None while it waits for a worker."""
        return self._pool.running_since(attempt_id)

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose worker or node was lost."""
        if self._cluster.look_if_due():
            self._use_cluster_size()
        # Workers that wait for a CPU are what an autoscaler goes by.
        grows = self._cluster.grows and self._workers is None
        return self._pool.wait(timeout, slots=self.slots + self.backlog if grows else self.slots)

    def abandon(self, attempt_id: int) -> None:
        """Kill the worker that runs an attempt; its outcome is not reported."""
        self._pool.drop(attempt_id)

    def on_every_node(self, call: Call, *, timeout: float) -> dict[str, NodeAnswer]:
        """Run the call on every living node that has CPUs, busy or not.

        An idle worker of the node runs it, if there is one. If a node has not answered after a quarter of the time,
        another process of that node runs the call too.
        """
        nodes = {
            name_node(node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]): node["NodeID"]
            for node in living_nodes()
        }
        self._checked_nodes = frozenset(nodes.values())
        deadline = time.monotonic() + timeout
        self._pool.await_begun(nodes.values(), min(timeout / 4, START_SECONDS))
        tasks = {name: [self._pool.ask(node, call) or _start_on_node(call, node)] for name, node in nodes.items()}
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
        self._pool.close()
        if not self._is_guest:
            ray.shutdown()
            restore_variables(self._variables_before)


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
            answers[name] = _read_answer(next(task for task, _ in attempts if task in ready))
            _cancel_unfinished(attempts)
    return answers


def _cancel_unfinished(attempts: list[tuple[Any, Callable[[], None]]]) -> None:
    """Cancel running and waiting calls. Ray 2.60 can crash this process if a task that has just ended is cancelled."""
    _, unfinished = ray.wait([task for task, _ in attempts], num_returns=len(attempts), timeout=0)
    for task, cancel in attempts:
        if task in unfinished:
            cancel()


def _read_answer(task: Any) -> NodeAnswer:  # noqa: ANN401 - Ray's own type is private
    try:
        value, error = ray.get(task)
    except ray.exceptions.RayError as lost:
        return NodeAnswer(error=TaskError(f"it was lost ({first_line(lost)})"))
    return NodeAnswer(value=value, error=error)


@ray.remote  # type: ignore[untyped-decorator]  # Ray's types are not read
def _run_call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:  # noqa: ANN401 - of any call
    return run_guarded(function, arguments)
