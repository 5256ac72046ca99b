"""The number of CPUs that this process may use."""

from __future__ import annotations

import os


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
