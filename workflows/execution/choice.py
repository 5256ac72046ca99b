"""Choose the executor: threads of this process, spawned processes, or a Ray cluster."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from workflows.execution.cpus import available_cpus
from workflows.execution.local import ProcessExecutor, ThreadExecutor
from workflows.execution.ray_thread import RayInThread

if TYPE_CHECKING:
    from workflows.execution.calls import Executor
    from workflows.options.config import ExecutorConfig


def wants_ray(config: ExecutorConfig) -> bool:
    """Tell whether the options ask for Ray: by name, or because a cluster was named (`--address` or RAY_ADDRESS)."""
    return config.executor == "ray" or (config.executor == "auto" and _address(config) is not None)


def wants_threads(config: ExecutorConfig, *, holds_gil: bool = False) -> bool:
    """Tell whether tasks run in threads of this process."""
    in_processes = config.executor == "processes" or (config.executor == "auto" and holds_gil)
    return not wants_ray(config) and not in_processes


def _address(config: ExecutorConfig) -> str | None:
    return config.address or os.environ.get("RAY_ADDRESS") or None


def make_executor(config: ExecutorConfig, *, holds_gil: bool = False) -> Executor:
    """Start the executor that the options ask for.

    `auto` is Ray if and only if a cluster was named; otherwise it is threads, or processes for work that holds the GIL.

    Raises:
        TaskError: If Ray cannot be started or reached.
    """
    if wants_ray(config):
        return RayInThread(partial(_connect_ray, config), watches_head=_address(config) is not None)
    workers = config.workers or available_cpus()
    return ThreadExecutor(workers) if wants_threads(config, holds_gil=holds_gil) else ProcessExecutor(workers)


def _connect_ray(config: ExecutorConfig) -> Executor:
    from workflows.execution.ray_executor import RayExecutor  # Ray takes 0.7 s to import

    return RayExecutor(address=_address(config), workers=config.workers, ship_code=not config.installed)
