"""CPUs, memory and limits of processes, as the system and the control group of this process grant them."""

from __future__ import annotations

import os
import resource

from dsindex.amounts import count
from workflows.diagnosis.report import Finding, Group
from workflows.execution.cpus import available_cpus
from workflows.stages.start import WORKER_MEMORY_BYTES

_CGROUPS = "/sys/fs/cgroup"
_UNLIMITED_BYTES = 1 << 60
"""From here on, a limit of version 1 of control groups means none."""
_FEWEST_OPEN_FILES = 1024
_SMALLEST_FILE_LIMIT_BYTES = 1 << 30


def examine_machine() -> Group:
    """Return CPUs, memory and limits, with findings where they are scarce."""
    usable, quota, limit = available_cpus(), _cpu_quota(), _memory_limit()
    free = _memory_available()
    affinity = len(os.sched_getaffinity(0))
    granted = "no quota" if quota is None else f"a quota of {quota:g}"
    bounded = "no limit" if limit is None else f"limit {_gigabytes(limit)}"
    cpus = f"{os.cpu_count()} in the machine, {affinity} by affinity, {granted}; jobs use {usable}"
    memory = (
        f"{_gigabytes(_memory_total())} in the machine, {_gigabytes(free)} available, {bounded} of the control group"
    )
    facts = [("CPU", _cpu_model()), ("CPUs", cpus), ("memory", memory)]
    findings = []
    if quota is not None and quota < usable:
        message = (
            f"the control group grants {quota:g} CPUs, but jobs would start work for {usable}; use "
            f"--workers {max(1, int(quota))}"
        )
        findings.append(Finding(message=message))
    usable_bytes = min((size for size in (free, limit) if size is not None), default=WORKER_MEMORY_BYTES)
    if usable_bytes < WORKER_MEMORY_BYTES:
        message = (
            f"{_gigabytes(usable_bytes)} of memory can be used, and a worker takes up to "
            f"{_gigabytes(WORKER_MEMORY_BYTES)}; use --workers 1, or raise the limit"
        )
        findings.append(Finding(message=message))
    limits, about_limits = _examine_limits()
    return Group(name="machine", facts=(*facts, limits), findings=(*findings, *about_limits))


def _examine_limits() -> tuple[tuple[str, str], list[Finding]]:
    """Return the limits of a process as a fact, with findings where they are low."""
    files, file_size = resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    shown = (
        f"{_shown(files)} open files (ulimit -n), file size {_size(file_size)} (ulimit -f), "
        f"address space {_size(space)} (ulimit -v)"
    )
    findings = []
    if 0 <= files < _FEWEST_OPEN_FILES:
        message = f"{count(files, 'open file')} are few for a job with many inputs; raise it: ulimit -n 65536"
        findings.append(Finding(message=message))
    if file_size >= 0:
        message = (
            f"files may have at most {_size(file_size)}, and a larger dataset fails; raise it: ulimit -f unlimited"
        )
        findings.append(Finding(message=message, breaks_builds=file_size < _SMALLEST_FILE_LIMIT_BYTES))
    return ("limits", shown), findings


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model"}:
            return value.strip()
    return "unknown model"


def _memory_total() -> int | None:
    return _meminfo("MemTotal")


def _memory_available() -> int | None:
    return _meminfo("MemAvailable")


def _meminfo(wanted: str) -> int | None:
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == wanted and value.split()[:1] and value.split()[0].isdigit():
            return int(value.split()[0]) * 1024
    return None


def _cpu_quota() -> float | None:
    """Return the smallest quota of this process's control groups in CPUs; None if there is none."""
    quotas = []
    for folder in _own_folders(""):
        words = _read(f"{folder}/cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            quotas.append(int(words[0]) / max(1, int(words[1])))
    for folder in _own_folders("cpu"):
        quota, period = _read(f"{folder}/cpu.cfs_quota_us").strip(), _read(f"{folder}/cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / max(1, int(period)))
    return min(quotas, default=None)


def _memory_limit() -> int | None:
    """Return the smallest limit on the memory of this process's control groups; None if there is none."""
    texts = [_read(f"{folder}/memory.max").strip() for folder in _own_folders("")]
    texts += [_read(f"{folder}/memory.limit_in_bytes").strip() for folder in _own_folders("memory")]
    return min((int(text) for text in texts if text.isdigit() and int(text) < _UNLIMITED_BYTES), default=None)


def _own_folders(controller: str) -> list[str]:
    """Return the folders of this process's control group and of those above it; within a container, the root is it.

    Args:
        controller: Name of a controller of version 1; empty for version 2.
    """
    root = os.path.join(_CGROUPS, controller) if controller else _CGROUPS
    folders = [root]
    for line in _read("/proc/self/cgroup").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if controller in names.split(","):
            parts = [part for part in path.split("/") if part and part != ".."]
            folders += [os.path.join(root, *parts[: number + 1]) for number in range(len(parts))]
    return folders


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _shown(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _size(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else _gigabytes(limit)


def _gigabytes(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 1e9:,.2f} GB"
