"""Choose the executor: threads of this process, spawned processes, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
from functools import partial
from typing import TYPE_CHECKING

from dsindex.execution.local import ProcessExecutor, ThreadExecutor, available_cpus
from dsindex.execution.ray_address import JOB_VARIABLE
from dsindex.execution.ray_thread import RayInThread
from dsindex.options.config import WorkConfig

if TYPE_CHECKING:
    from dsindex.execution.calls import EarlyStart, Executor
    from dsindex.options.config import ExecutorConfig


def wants_ray(config: ExecutorConfig) -> bool:
    """Tell whether the options ask for Ray: by name, or because a cluster was named."""
    return config.executor == "ray" or (config.executor == "auto" and cluster_address(config) is not None)


def wants_threads(config: ExecutorConfig, *, holds_gil: bool = False) -> bool:
    """Tell whether tasks run in threads of this process."""
    may_start_processes = not multiprocessing.current_process().daemon  # Python forbids it in workers of a pool
    in_processes = config.executor == "processes" or (config.executor == "auto" and holds_gil and may_start_processes)
    return not wants_ray(config) and not in_processes


def cluster_address(config: ExecutorConfig) -> str | None:
    """Return the address of the cluster to join; None for none.

    RAY_ADDRESS counts for jobs with a work folder, which clusters are for, for all jobs that a cluster's job server
    started, and where Ray was asked for by name. All others need no cluster, and work without one that is gone.
    """
    if config.address == "local":
        return None
    if config.address:
        return config.address
    looks_around = isinstance(config, WorkConfig) or config.executor == "ray" or JOB_VARIABLE in os.environ
    elsewhere = os.environ.get("RAY_ADDRESS") if looks_around else None
    return None if elsewhere == "local" else elsewhere or None


def make_executor(
    config: ExecutorConfig,
    *,
    holds_gil: bool = False,
    threads: int | None = None,
    early: EarlyStart | None = None,
) -> Executor:
    """Start the executor that the options ask for.

    `auto` is Ray if and only if a cluster was named; otherwise it is threads, or processes for work that holds the GIL.

    Args:
        config: The options.
        holds_gil: Whether calls hold the GIL.
        threads: Number of threads up to which calls share a process; None: all, unless they hold the GIL.
        early: The workers that Ray starts in advance, and how processes are prepared.

    Raises:
        TaskError: If Ray cannot be started or reached.
        TokenError: If the cluster does not accept the token, or wants one and there is none.
    """
    if wants_ray(config):
        connect = partial(_connect_ray, config, early)
        return RayInThread(connect, watches_head=cluster_address(config) is not None)
    workers = config.workers or available_cpus()
    own_threads = 1 if holds_gil or config.executor == "processes" else threads or workers
    if wants_threads(config, holds_gil=holds_gil or own_threads < workers):
        return ThreadExecutor(workers)
    return ProcessExecutor(workers, threads=own_threads, prepare=None if early is None else early.prepare)


def _connect_ray(config: ExecutorConfig, early: EarlyStart | None) -> Executor:
    # Ray reads it when it is imported, and would warn that tasks wait for a node, as if something were wrong.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "tasks with infeasible resource requests")
    from dsindex.execution.ray_executor import RayExecutor  # Ray takes 0.7 s to import

    return RayExecutor(
        address=cluster_address(config),
        workers=config.workers,
        ship_code=not config.installed,
        early=early,
    )
