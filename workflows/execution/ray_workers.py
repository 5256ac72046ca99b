"""Workers on a Ray cluster: actors that hold one CPU each and run one call after another.

Ray ends idle processes beyond a node's number of CPUs. With a task per call, builds that share a cluster would lose
their processes to each other after nearly every call, and each new process imports and loads everything again (65
processes instead of 4 for two builds on two CPUs, which took five times as long). An actor keeps its process.

A worker keeps its CPU until it has nothing to do or has held it for a while, and other jobs wait for CPUs.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from dsindex.errors import TaskError
from dsindex.json_text import show_name
from workflows.execution.calls import Call, Outcome, run_guarded
from workflows.execution.ray_demand import count_waiting_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

HOLD_SECONDS = 30.0
"""Time for which a worker holds its CPU although other jobs wait: many times what it takes to start another one."""
LOOK_SECONDS = 2.0
"""Interval at which the CPUs that other jobs wait for are counted."""


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
    call: Call | None = None
    since: float = 0.0
    """Time at which it began to run."""
    call_since: float = 0.0
    """Time at which its call began, or its last call ended."""
    is_leaving: bool = False
    """Whether it is given up when its call ends."""


class RayWorkers:
    """The workers of one driver, and the attempts that wait for one."""

    def __init__(self, *, max_reserved_bytes: Callable[[], float], prepare: Callable[[], None] | None = None) -> None:
        """Begin without workers.

        Args:
            prepare: Run once in each worker's process, before its first call.
            max_reserved_bytes: Returns the largest memory that can be reserved on a node; a worker for a call that
                needs more reserves none, since it would wait forever.
        """
        self._max_reserved_bytes = max_reserved_bytes
        self._prepare = prepare
        self._queue: deque[tuple[int, Call]] = deque()
        self._workers: list[_Worker] = []
        self._looked = 0.0
        self._others_waited = False
        self._hires_from = 0.0
        """Time before which no worker is hired, so that a CPU that was given up goes to another job."""
        self.waits_since: float | None = None
        """Time since which attempts wait and no worker runs."""

    def hire(self, number: int, memory_bytes: int = 0) -> None:
        """Ask for workers until there are `number`; their processes start while the driver does something else.

        Args:
            number: The number of workers to have.
            memory_bytes: Memory that each new one reserves, if a node has so much.
        """
        memory_bytes = self._reservable(memory_bytes)
        for _ in range(number - sum(not worker.is_extra for worker in self._workers)):
            self._hire(memory_bytes)

    def enqueue(self, attempt: int, call: Call) -> None:
        """Let the next free worker run an attempt."""
        self._queue.append((attempt, call))

    def run_beside(self, attempt: int, call: Call) -> None:
        """Run an attempt on a worker of its own, which does not wait for a CPU."""
        self._give(self._hire(0, is_extra=True), attempt, call)

    def running_since(self, attempt: int) -> float | None:
        """Return when an attempt began (time.monotonic); None while it waits for a worker."""
        return next((worker.call_since for worker in self._workers if worker.attempt == attempt and worker.node), None)

    def await_begun(self, nodes: Collection[str], timeout: float) -> None:
        """Wait until a worker runs on each of the nodes, or all that were hired run; use this between stages only."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            starting = [worker for worker in self._workers if worker.node is None]
            if not starting or {worker.node for worker in self._workers} >= set(nodes):
                return
            self.wait(left, slots=0)

    def ask(self, node: str, call: Call) -> tuple[Any, Callable[[], None]] | None:
        """Let an idle worker of a node run a call between stages.

        Returns:
            A reference to the value, and a function that kills the worker; None if no worker is idle there.
        """
        for worker in self._workers:
            if worker.node == node and worker.attempt is None:
                reference = worker.actor.run.options(name=show_name(call.name)).remote(call.function, *call.arguments)
                return reference, partial(self._dismiss, worker)
        return None

    def drop(self, attempt: int) -> None:
        """Forget an attempt; its worker, if it runs, is killed."""
        self._queue = deque(entry for entry in self._queue if entry[0] != attempt)
        for worker in [worker for worker in self._workers if worker.attempt == attempt]:
            self._dismiss(worker)

    def wait(self, timeout: float, *, slots: int) -> list[Outcome]:
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

    def close(self) -> None:
        """Kill all workers."""
        self._queue.clear()
        for worker in list(self._workers):
            self._dismiss(worker)

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
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = time.monotonic()
        num_busy = sum(worker.attempt is not None for worker in own)
        needed = min(slots, num_busy + len(self._queue))
        if needed > len(own) and time.monotonic() >= self._hires_from:
            self.hire(needed, max(self._reservable(call.memory_bytes) for _, call in self._queue))

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
        """Return the memory to reserve for a call: none if no node has so much."""
        return memory_bytes if memory_bytes <= self._max_reserved_bytes() else 0

    def _give(self, worker: _Worker, attempt: int, call: Call) -> None:
        worker.attempt, worker.call, worker.call_since = attempt, call, time.monotonic()
        worker.reference = worker.actor.run.options(name=show_name(call.name)).remote(call.function, *call.arguments)

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
                if not self._queue:
                    return  # nobody needs it
                attempt, _ = self._queue.popleft()  # so that retries of what cannot start are limited, too
            reason = TaskError(f"its Ray worker was lost ({first_line(lost)})")
            yield Outcome(attempt_id=attempt, error=reason, worker_lost=True)
            return
        now = time.monotonic()
        if attempt is None:
            worker.node, worker.since, worker.call_since = got, now, now
            return
        value, error = got
        seconds = now - worker.call_since
        worker.attempt, worker.call, worker.call_since = None, None, now
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


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
