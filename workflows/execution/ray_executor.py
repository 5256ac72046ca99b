"""Tasks on a Ray cluster: one stateless task per call, one CPU each, retried by the driver and not by Ray.

A cluster is joined only if the user named one; otherwise a private one is started, and stopped at the end.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import dsindex
import workflows
from dsindex.errors import TaskError
from dsindex.json_text import show_name
from workflows.execution.calls import Call, NodeAnswer, Outcome, run_guarded
from workflows.execution.cpus import available_cpus
from workflows.execution.ray_token import check_token, hide_token

if TYPE_CHECKING:
    from collections.abc import Callable

SINGLE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Environment of all workers: one thread per task. Variables per task would make Ray start new workers."""

LOOK_SECONDS = 5.0
"""Interval at which the cluster's size is queried."""

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that Ray's job server sets for the drivers that it starts."""


class RayExecutor:
    """Runs calls as Ray tasks; made and used in a thread that gets no signals (workflows.execution.ray_thread)."""

    kind = "ray"

    def __init__(self, *, address: str | None, workers: int | None, ship_code: bool = True) -> None:
        """Connect.

        Args:
            address: The cluster to join; None starts a private one.
            workers: Number of calls that run at once; None: all CPUs of the cluster.
            ship_code: Whether to send this process's code to the nodes of a named cluster, unless Ray's job server
                started this process and has sent the code already.

        Raises:
            TaskError: If the cluster cannot be started or reached.
            TokenError: If its token cannot be sent.
        """
        self._is_guest = ray.is_initialized()
        self._variables_before = {name: os.environ.get(name) for name in SINGLE_THREAD}
        if not self._is_guest:
            self._connect(address, workers, ship_code=ship_code)
        self.is_cluster = address is not None
        self.head_address: str = ray.get_runtime_context().gcs_address
        self._workers = workers
        self._look_at_cluster()
        self._running: dict[Any, int] = {}
        self._references: dict[int, Any] = {}
        self._num_attempts = 0

    def _look_at_cluster(self) -> None:
        """Update the cluster's size: nodes are lost, and an autoscaler adds nodes while tasks wait."""
        self._looked = time.monotonic()
        self.slots = self.backlog = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._largest_memory = max((node["Resources"].get("memory", 0) for node in living_nodes()), default=0)

    def _connect(self, address: str | None, workers: int | None, *, ship_code: bool) -> None:
        check_token()
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        if address is None:
            # Inherited by workers; a runtime_env would waste those that Ray starts in advance (1.5 s).
            os.environ.update(SINGLE_THREAD)
            # The address is needed: a plain init() joins any cluster that still runs on this machine.
            options |= {
                "address": "local",
                "num_cpus": workers or available_cpus(),
                "include_dashboard": False,
            }
        else:
            runtime_env: dict[str, Any] = {"env_vars": SINGLE_THREAD}
            if ship_code and JOB_VARIABLE not in os.environ:
                packages = (dsindex, workflows)
                runtime_env["py_modules"] = [os.path.dirname(package.__file__ or "") for package in packages]
                runtime_env["excludes"] = ["__pycache__"]
            options |= {"address": address, "runtime_env": runtime_env}
        try:
            ray.init(**options)
        except UnicodeEncodeError as error:
            msg = (
                "expected a command line and a working folder in UTF-8, which Ray requires, got another name; write "
                "such names in a --config file, as \\udcXX within double quotes, or use --executor local"
            )
            raise TaskError(msg) from error
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            place = "a local Ray instance" if address is None else f"the Ray cluster at {address}"
            reason = hide_token(str(error))
            msg = f"{place}: cannot be started or reached ({reason}); check --address, or use --executor local"
            raise TaskError(msg) from error

    def share(self, value: object) -> object:
        """Put a value into the object store once."""
        return ray.put(value)

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:
        """Submit one attempt; beyond the slots it does not wait for a free CPU."""
        self._num_attempts += 1
        remote = self._remote(call, num_cpus=0 if beyond_slots else 1)
        reference = remote.remote(call.function, *call.arguments)
        self._running[reference] = self._num_attempts
        self._references[self._num_attempts] = reference
        return self._num_attempts

    def _remote(self, call: Call, *, num_cpus: int) -> Any:  # noqa: ANN401 - Ray's own type is private
        return _run_call.options(
            name=show_name(call.name),
            num_cpus=num_cpus,
            max_retries=0,
            scheduling_strategy="SPREAD",
            # A task that needs more memory than any node has would wait forever.
            memory=call.memory_bytes if num_cpus and 0 < call.memory_bytes <= self._largest_memory else None,
        )

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose worker or node was lost."""
        if not self._running:
            time.sleep(timeout)
            return []
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look_at_cluster()
        references = list(self._running)
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(references, num_returns=len(references), timeout=0)
        return [self._outcome(reference) for reference in ready]

    def _outcome(self, reference: Any) -> Outcome:  # noqa: ANN401 - Ray's own type is private
        attempt_id = self._running.pop(reference)
        del self._references[attempt_id]
        try:
            value, error = ray.get(reference)
        except ray.exceptions.RayError as lost:
            reason = TaskError(f"its Ray worker was lost ({_first_line(lost)})")
            return Outcome(attempt_id=attempt_id, error=reason, worker_lost=True)
        return Outcome(attempt_id=attempt_id, value=value, error=error)

    def abandon(self, attempt_id: int) -> None:
        """Kill the worker that runs an attempt; its outcome is not reported."""
        reference = self._references.pop(attempt_id, None)
        if reference is not None:
            del self._running[reference]
            ray.cancel(reference, force=True)

    def on_every_node(self, call: Call, *, timeout: float) -> dict[str, NodeAnswer]:
        """Run the call on every living node that has CPUs, busy or not.

        If a node has not answered after a quarter of the time, a second worker of that node runs the call too.
        """
        nodes = {
            f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:6]})": node["NodeID"]
            for node in living_nodes()
        }
        deadline = time.monotonic() + timeout
        tasks = {name: [_start_on_node(call, node)] for name, node in nodes.items()}
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
        for attempt_id in list(self._references):
            self.abandon(attempt_id)
        if not self._is_guest:
            ray.shutdown()
            self._restore_variables()

    def _restore_variables(self) -> None:
        """Restore the environment variables that were set for workers."""
        for name, value in self._variables_before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def living_nodes() -> list[dict[str, Any]]:
    """Return the nodes that can run tasks, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def _start_on_node(call: Call, node: str) -> Any:  # noqa: ANN401 - Ray's own type is private
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"name": show_name(call.name), "num_cpus": 0, "max_retries": 0, "scheduling_strategy": place}
    return _run_call.options(**options).remote(call.function, *call.arguments)


def _collect_answers(tasks: dict[str, list[Any]], deadline: float) -> dict[str, NodeAnswer]:
    """Wait for the first answer of each node, and remove nodes that have answered from `tasks`."""
    answers: dict[str, NodeAnswer] = {}
    while tasks and (left := deadline - time.monotonic()) > 0:
        ready, _ = ray.wait([task for attempts in tasks.values() for task in attempts], timeout=left)
        for name in [name for name, attempts in tasks.items() if any(task in ready for task in attempts)]:
            attempts = tasks.pop(name)
            answers[name] = _read_answer(next(task for task in attempts if task in ready))
            _cancel_unfinished(attempts)
    return answers


def _cancel_unfinished(tasks: list[Any]) -> None:
    """Cancel running and waiting tasks. Ray 2.60 can crash this process if a task that has just ended is cancelled."""
    _, unfinished = ray.wait(tasks, num_returns=len(tasks), timeout=0)
    for task in unfinished:
        ray.cancel(task, force=True)


def _read_answer(task: Any) -> NodeAnswer:  # noqa: ANN401 - Ray's own type is private
    try:
        value, error = ray.get(task)
    except ray.exceptions.RayError as lost:
        return NodeAnswer(error=TaskError(f"it was lost ({_first_line(lost)})"))
    return NodeAnswer(value=value, error=error)


@ray.remote  # type: ignore[untyped-decorator]
def _run_call(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:  # noqa: ANN401
    return run_guarded(function, arguments)
