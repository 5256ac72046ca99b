"""CPUs and memory that this process may use, limited by the machine and by all nested control groups.

Source: the Linux kernel's cgroup-v2.rst, and cgroup-v1/memory.rst for version 1.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """Return the number of CPUs that this process may use, by its affinity and the quotas of its control groups."""
    count = len(os.sched_getaffinity(0))
    for folder in _control_groups("cpu"):
        for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            with contextlib.suppress(OSError, ValueError):  # "max" and -1 mean no limit
                quota, period = (int(number) for file in files for number in _read(folder / file).split())
                count = min(count, max(1, quota // period)) if quota > 0 else count
    return count


def available_memory() -> int | None:
    """Return the bytes that this process can use without swapping, within its control groups.

    A control group's usage includes cached files. The inactive ones count as free here, since the kernel drops them
    when memory is needed.

    Returns:
        None if the system does not report it.
    """
    limits = []
    with contextlib.suppress(OSError):
        lines = _read(Path("/proc/meminfo")).splitlines()
        limits += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for folder in _control_groups("memory"):
        for limit, usage, inactive in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError):
                free = int(_read(folder / limit)) - int(_read(folder / usage))
                counts = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
                limits.append(max(0, free + int(counts.get(inactive, 0))))
    return min(limits, default=None)


def _control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups for a controller, from the innermost to the root."""
    with contextlib.suppress(OSError):
        for line in _read(Path("/proc/self/cgroup")).splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = GROUPS / controller if controllers else GROUPS
            group = root / path.strip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(root)))


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii")
