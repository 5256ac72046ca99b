"""The CPUs that tasks and actors of all jobs of a Ray cluster wait for."""

from __future__ import annotations

import ray
from ray.autoscaler.v2.sdk import get_cluster_status


def count_waiting_cpus() -> int:
    """Return the number of CPUs that tasks and actors of all jobs wait for; 0 if the cluster does not say."""
    try:
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
    except Exception:  # noqa: BLE001 - an answer that matters only for fairness must not end a build
        return 0
    return int(
        sum(
            request.count * request.bundle.get("CPU", 0)
            for demand in status.resource_demands.ray_task_actor_demand
            for request in demand.bundles_by_count
        )
    )
