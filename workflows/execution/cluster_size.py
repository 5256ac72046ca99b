"""The nodes of a Ray cluster: how many CPUs there are, who adds some, and why none come.

An autoscaler adds nodes only while it sees a demand. `request_cpus` shows it one with tasks that do nothing, and not
with `ray.autoscaler.sdk.request_resources`, which would be less safe:

- A cluster has one such request, so several builds would overwrite each other's. The demands of tasks add up.
- It outlives its driver: nodes would be kept and paid for until somebody takes it back. Tasks end with their driver.
- The autoscaler of version 2, KubeRay's, starts no node at all if it cannot grant the whole request. For tasks it
  starts as many as it may.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
from ray._private.ray_logging import stdout_deduplicator
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.experimental.internal_kv import _internal_kv_get, internal_kv_get_gcs_client

from dsindex.errors import TaskError
from workflows.execution.calls import Shortage

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOK_SECONDS = 5.0
"""Interval at which a cluster with nodes is looked at."""
SHORTAGE_LOOK_SECONDS = 1.0
"""Interval at which a cluster without nodes is looked at."""
MOST_REQUESTED_CPUS = 1000
"""Most CPUs to ask for at once, which is also the number of tasks that Ray's autoscaler looks at."""
SILENT_SECONDS = 120.0
"""Time in which an autoscaler has to report; one that runs beside the head, as on Kubernetes, may start after it."""
LOST_NODES_SECONDS = 600.0
"""Time in which the nodes of a cluster without an autoscaler may return after all of them were lost."""
REASON_CHARACTERS = 300
INFEASIBLE_WARNING = re.compile("tasks with infeasible resource requests")
STATUS_KEY = "__autoscaling_status"
ERROR_KEY = "__autoscaling_error"
RPC_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerReport:
    """What the autoscaler of a cluster says."""

    adds_nodes: bool | None
    """Whether there is an autoscaler that adds nodes; None if none has reported yet."""
    reason: str
    """What it is doing, or why it adds no node."""


class ClusterSize:
    """The CPUs of the connected cluster, as of the last look.

    Args:
        address: The cluster's address, for messages.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.num_cpus = 0
        self.largest_memory = 0.0
        """Memory for tasks of the node that has most of it, in bytes."""
        self.shortage: Shortage | None = None
        """Set while there is no node with CPUs."""
        self._had_nodes = False
        self._num_wanted = 1
        self._looked = 0.0
        self.look()

    def look_if_due(self) -> bool:
        """Look at the cluster if it is time, and return whether it was.

        Raises:
            TaskError: If no node has CPUs, and nothing adds any.
        """
        interval = LOOK_SECONDS if self.shortage is None else SHORTAGE_LOOK_SECONDS
        if time.monotonic() - self._looked <= interval:
            return False
        self.look()
        if self.shortage is not None:
            self._require_hope(self.shortage)
        return True

    def look(self) -> None:
        """Look at the cluster: nodes are lost, and an autoscaler adds nodes while tasks wait."""
        self._looked = time.monotonic()
        nodes = living_nodes()
        self.num_cpus = int(sum(node["Resources"]["CPU"] for node in nodes))
        self.largest_memory = max((node["Resources"].get("memory", 0) for node in nodes), default=0)
        if nodes:
            self._had_nodes = True
            self.shortage = None
            return
        # A thread of the driver would print Ray's warning that tasks wait for a node, as if something were wrong.
        stdout_deduplicator.skip_re = INFEASIBLE_WARNING
        report = ask_autoscaler()
        since = self._looked if self.shortage is None else self.shortage.since
        self.shortage = Shortage(
            num_wanted=self._num_wanted, since=since, reason=report.reason, adds_nodes=report.adds_nodes
        )

    def request_cpus(self, number: int) -> int:
        """Show the autoscaler a demand for CPUs, which ends when the first nodes have come, or with this driver.

        Returns:
            The number of CPUs that were asked for.
        """
        self._num_wanted = max(1, min(number, MOST_REQUESTED_CPUS))
        for _ in range(self._num_wanted):
            _occupy_cpu.remote()
        return self._num_wanted

    def _require_hope(self, shortage: Shortage) -> None:
        """Refuse to wait for nodes that nobody adds.

        Raises:
            TaskError: If the cluster has no autoscaler, and its nodes did not return in time.
        """
        waited = time.monotonic() - shortage.since
        if shortage.adds_nodes or waited < self._patience(shortage):
            return
        what = "lost all its nodes with CPUs" if self._had_nodes else "has no node with CPUs"
        msg = (
            f"the Ray cluster at {self._address} {what}: {shortage.reason}; start a node that joins it "
            f"(ray start --address=HOST:PORT on another machine), and run the same command again"
        )
        raise TaskError(msg)

    def _patience(self, shortage: Shortage) -> float:
        if self._had_nodes:
            return LOST_NODES_SECONDS
        return SILENT_SECONDS if shortage.adds_nodes is None else 0.0


def living_nodes() -> list[dict[str, Any]]:
    """Return the nodes that can run tasks, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def ask_autoscaler() -> AutoscalerReport:
    """Return what the connected cluster's autoscaler says; both versions of Ray's autoscaler are understood."""
    with contextlib.suppress(ray.exceptions.RayError, RuntimeError, OSError, ValueError):
        status = GetClusterStatusReply()
        status.ParseFromString(internal_kv_get_gcs_client().get_cluster_status(timeout_s=RPC_SECONDS))
        if status.autoscaling_state.last_seen_cluster_resource_state_version:
            return read_second_version(status)
        text, error = _internal_kv_get(STATUS_KEY), _internal_kv_get(ERROR_KEY)
        if text:
            return read_first_version(json.loads(text), error)
        if error:
            return AutoscalerReport(adds_nodes=None, reason=_describe_crash(error))
    return AutoscalerReport(adds_nodes=None, reason="no autoscaler has reported yet")


def read_second_version(status: Any) -> AutoscalerReport:  # noqa: ANN401 - generated classes have no types
    """Read the reply of GetClusterStatus, which the autoscaler of version 2 fills."""
    state = status.autoscaling_state
    if not state.autoscaler_state_version:
        return _no_autoscaler()
    starting: Counter[str] = Counter()
    for request in state.pending_instance_requests:
        starting[request.ray_node_type_name] += request.count
    starting.update(instance.ray_node_type_name for instance in state.pending_instances)
    failures = {request.ray_node_type_name: request.reason for request in state.failed_instance_requests}
    return _report(starting, failures, can_grow=not state.infeasible_resource_requests)


def read_first_version(status: Mapping[str, Any], error: bytes | None) -> AutoscalerReport:
    """Read the status that the autoscaler of version 1 stores, and its own error."""
    report = status.get("autoscaler_report") or {}
    types = report.get("node_type_mapping") or {}
    if types and all(kind == f"node_{name}" for name, kind in types.items()):
        return _no_autoscaler()  # the names that it invents for nodes that others have started
    if error:
        return AutoscalerReport(adds_nodes=True, reason=_describe_crash(error))
    starting = Counter(report.get("pending_launches") or {})
    starting.update(kind for _, kind, _ in report.get("pending_nodes") or ())
    known = (report.get("node_availability_summary") or {}).get("node_availabilities") or {}
    troubles = {kind: node.get("unavailable_node_information") for kind, node in known.items()}
    failures = {kind: f"{why['category']}: {why['description']}" for kind, why in troubles.items() if why}
    failed = Counter(kind for _, kind in report.get("failed_nodes") or ())
    failures |= {kind: f"{number} failed to start" for kind, number in failed.items() if kind not in failures}
    return _report(starting, failures)


def _report(starting: Mapping[str, int], failures: Mapping[str, str], *, can_grow: bool = True) -> AutoscalerReport:
    parts = [f"{number} × {kind} starting" for kind, number in sorted(starting.items()) if number]
    parts += [f"{kind} not available ({' '.join(why.split())})" for kind, why in sorted(failures.items())]
    if not parts:
        parts = ["the autoscaler starts no node yet" if can_grow else "no node type may grow"]
        parts[0] += "; `ray status` and its max_workers say more"
    return AutoscalerReport(adds_nodes=True, reason=_shorten(", ".join(parts)))


def _no_autoscaler() -> AutoscalerReport:
    return AutoscalerReport(adds_nodes=False, reason="no autoscaler adds nodes to this cluster")


def _describe_crash(error: bytes) -> str:
    return _shorten(f"the autoscaler failed: {error.decode(errors='replace')}")


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= REASON_CHARACTERS else f"{text[: REASON_CHARACTERS - 1]}…"


@ray.remote(num_cpus=1, max_retries=0)  # type: ignore[untyped-decorator]
def _occupy_cpu() -> None:
    """Do nothing: a task that waits for a CPU is what an autoscaler goes by."""
