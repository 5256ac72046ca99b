"""Start a job's executor while the job is examined for problems, and wait for a node, before any work is done."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dsindex.execution.calls import EarlyStart
from dsindex.execution.choice import make_executor, wants_threads
from dsindex.execution.local import available_cpus
from dsindex.execution.progress.displays import make_reporter
from dsindex.kernels.loader import count_bytes, wait_for_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.execution.calls import Executor
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.options.config import ExecutorConfig, WorkConfig


LOOK_SECONDS = 0.5
"""Interval at which a waiting job looks for nodes and shows that it waits."""
WORKER_MEMORY_BYTES = 460 << 20
"""A worker process's peak memory, measured on Ray after 600 MB of text. A very long document adds its own size."""
LEAST_BYTES_PER_WORKER = 8 << 20
"""Input for which it pays to start a worker before the plan is made."""
THREADS_UP_TO_WORKERS = 4
"""Workers that are threads by default, however large the input: they hold the GIL for a seventh of their time."""
THREADS_UP_TO_BYTES = 2 << 30
"""Input that is tokenized in threads by default, as processes would take longer to start than they gain."""


def make_job_executor(config: WorkConfig, *, num_bytes: int, holds_gil: bool = False) -> Executor:
    """Start the executor of a job with a work folder.

    For a large input, the kernels are loaded in the background, and many workers are processes.

    Raises:
        TaskError: If Ray cannot be started or reached.
    """
    if wants_threads(config, holds_gil=holds_gil):
        count_bytes(num_bytes)
    threads = THREADS_UP_TO_WORKERS if _are_threads_slow(config, num_bytes) else None
    return make_executor(config, holds_gil=holds_gil, threads=threads, early=_start_early(num_bytes))


def _are_threads_slow(config: WorkConfig, num_bytes: int) -> bool:
    """Tell whether so many threads would wait for the GIL long enough that processes pay, if there is memory for them.

    Source: the model of docs/benchmarks.md, section "Many cores".
    """
    workers = config.workers or available_cpus()
    if workers <= THREADS_UP_TO_WORKERS or num_bytes < THREADS_UP_TO_BYTES:
        return False
    from dsindex.index.task import available_memory  # imports much

    available = available_memory()
    processes = -(-workers // THREADS_UP_TO_WORKERS)
    return available is None or 2 * processes * WORKER_MEMORY_BYTES <= available


def start_with_nodes(config: ExecutorConfig, reporter: Reporter | None = None, *, holds_gil: bool = False) -> Executor:
    """Start the executor of a job without a work folder, and wait until its cluster has a node.

    Args:
        config: The options.
        reporter: Shows what is waited for; None to show it on standard error.
        holds_gil: As for `make_executor`.

    Raises:
        TaskError: If Ray cannot be reached, or there is no node and no autoscaler that would add one.
    """
    executor = make_executor(config, holds_gil=holds_gil)
    try:
        if reporter is not None:
            reporter.follow(executor)
            wait_for_nodes(executor, reporter, lambda: 1)
        elif executor.shortage is not None:
            with make_reporter() as own:
                own.follow(executor)
                wait_for_nodes(executor, own, lambda: 1)
    except BaseException:
        executor.close()
        raise
    return executor


def wait_for_nodes(executor: Executor, reporter: Reporter, count_calls: Callable[[], int]) -> None:
    """Wait until a cluster has a node with CPUs, after asking its autoscaler for as many CPUs as the job can use.

    Args:
        executor: The job's executor; only a cluster can lack nodes.
        reporter: Shows what is waited for.
        count_calls: Returns the number of calls that the job could run at once.

    Raises:
        TaskError: If there is no node, and no autoscaler that would add one.
    """
    if executor.shortage is None:
        return
    wanted = executor.request_cpus(count_calls())
    reporter.stage("nodes", total=wanted, unit="CPUs")
    while executor.shortage is not None:
        reporter.tick()
        executor.wait(LOOK_SECONDS)
    reporter.advance(min(executor.slots, wanted))
    reporter.end_stage()


def _start_early(num_bytes: int) -> EarlyStart | None:
    """Return the workers to start for a job that tokenizes so many bytes; None if it tokenizes nothing."""
    if not num_bytes:
        return None
    return EarlyStart(
        num_calls=-(-num_bytes // LEAST_BYTES_PER_WORKER),
        memory_bytes=WORKER_MEMORY_BYTES,
        prepare=partial(prepare_worker, num_bytes),
    )


def prepare_worker(num_bytes: int) -> None:
    """Import what tokenizing needs, and load the kernels if they pay off for an input of this size."""
    count_bytes(num_bytes)
    import dsindex.engine.worker  # noqa: F401 - so that no task waits for it

    wait_for_kernels()
