"""Choose and start the executor that the options ask for."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from typing import TYPE_CHECKING

from dsindex.engine.executors import ProcessExecutor, ThreadExecutor
from dsindex.machine import available_cpus, available_memory
from dsindex.options.config import WorkConfig

if TYPE_CHECKING:
    from dsindex.engine.executors import Executor
    from dsindex.options.config import ExecutorConfig


WORKER_MEMORY_BYTES = 460 << 20
"""A worker process's peak memory, measured on Ray after 600 MB of text. A very long document adds its own size."""
THREADS_UP_TO_WORKERS = 4
"""Workers that are threads by default, however large the input: they hold the GIL for a seventh of their time."""
THREADS_UP_TO_BYTES = 2 << 30
"""Input that is tokenized in threads by default, as processes would take longer to start than they gain."""
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that Ray's job server sets for the drivers that it starts, beside RAY_ADDRESS."""


def wants_ray(config: ExecutorConfig) -> bool:
    """Tell whether the options ask for Ray: by name, or because a cluster was named."""
    return config.executor == "ray" or (config.executor == "auto" and cluster_address(config) is not None)


def wants_threads(config: ExecutorConfig, *, holds_gil: bool = False, text_bytes: int = 0) -> bool:
    """Tell whether tasks run in threads of this process: by default, unless they would wait for each other.

    Args:
        config: The options.
        holds_gil: Whether calls hold the GIL.
        text_bytes: Size of the text to tokenize.
    """
    workers, memory = config.workers or available_cpus(), available_memory()
    fits = memory is None or workers * WORKER_MEMORY_BYTES <= memory
    is_large = workers > THREADS_UP_TO_WORKERS and text_bytes >= THREADS_UP_TO_BYTES and fits
    may_start_processes = not multiprocessing.current_process().daemon  # Python forbids it in workers of a pool
    is_slow = config.executor == "auto" and (holds_gil or is_large) and may_start_processes
    return not wants_ray(config) and config.executor != "processes" and not is_slow


def cluster_address(config: ExecutorConfig) -> str | None:
    """Return the address of the cluster to join; None for none.

    RAY_ADDRESS counts for jobs with a work folder, which clusters are for, for all jobs that a cluster's job server
    started, and where Ray was asked for by name. All others need no cluster, and work without one that is gone.
    """
    looks_around = isinstance(config, WorkConfig) or config.executor == "ray" or JOB_VARIABLE in os.environ
    elsewhere = os.environ.get("RAY_ADDRESS") if looks_around or config.address == "auto" else None
    address = elsewhere or config.address if config.address in {None, "auto"} else config.address
    return None if address == "local" else address


def make_executor(config: ExecutorConfig, *, holds_gil: bool = False, text_bytes: int = 0) -> Executor:
    """Start the executor that the options ask for.

    Args:
        config: The options.
        holds_gil: Whether calls hold the GIL.
        text_bytes: Size of the text to tokenize.

    Raises:
        TaskError: If Ray cannot be started or reached.
    """
    if not wants_ray(config):
        kind = ThreadExecutor if wants_threads(config, holds_gil=holds_gil, text_bytes=text_bytes) else ProcessExecutor
        return kind(config.workers or available_cpus())
    # Ray reads it when it is imported, and would warn that tasks wait for a node, as if something were wrong.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "tasks with infeasible resource requests")
    address = cluster_address(config)
    own_token: dict[str, str] = {}
    if address is None and "RAY_AUTH_MODE" not in os.environ:  # otherwise Ray leaves one in the home folder
        own_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update(own_token)
    try:
        from dsindex.engine.ray import RayExecutor  # Ray takes 0.7 s to import

        return RayExecutor(address=address, workers=config.workers)
    finally:
        for name in own_token:
            del os.environ[name]
