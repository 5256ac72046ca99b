"""Start a job's executor while the job is examined for problems, and wait for a node, before any work is done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from dsindex.errors import TaskError
from dsindex.kernels.loader import count_bytes
from workflows.execution.calls import EarlyStart
from workflows.execution.choice import make_executor, wants_ray, wants_threads
from workflows.execution.interrupts import raise_missed_stop
from workflows.progress.choice import make_reporter

if TYPE_CHECKING:
    from collections.abc import Callable

    from workflows.execution.calls import Executor
    from workflows.options.config import ExecutorConfig, WorkConfig
    from workflows.progress.reporter import Reporter

LOOK_SECONDS = 0.5
"""Interval at which a waiting job looks for nodes and shows that it waits."""
WORKER_MEMORY_BYTES = 460 << 20
"""A worker process's peak memory, measured on Ray after 600 MB of text. A very long document adds its own size."""
LEAST_BYTES_PER_WORKER = 8 << 20
"""Input for which it pays to start a worker before the plan is made."""


def start_and_examine(
    config: WorkConfig, examine: Callable[[], None], *, num_bytes: int, holds_gil: bool = False
) -> Executor:
    """Start the executor that the options ask for, and examine the job for problems meanwhile.

    Ray takes seconds to start, so the examination then runs in another thread, and Ray's workers start. For a large
    input, the kernels are loaded in the background.

    Raises:
        DsindexError: A problem that the examination found, even if the executor failed too; nothing is left running.
        TaskError: If Ray cannot be started or reached.
    """
    if wants_threads(config, holds_gil=holds_gil):
        count_bytes(num_bytes)
    if not wants_ray(config):
        examine()
        return make_executor(config, holds_gil=holds_gil)
    executor: Executor | None = None
    raise_missed_stop()
    pool = ThreadPoolExecutor(1, thread_name_prefix="dsindex-examine")
    examination = pool.submit(examine)
    try:
        try:
            executor = make_executor(config, early=_start_early(num_bytes))
        except TaskError:
            examination.result()  # its error takes precedence, however fast Ray fails
            raise
        examination.result()
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception))  # a stop does not wait for it: it only reads
        if executor is not None:
            executor.close()
        raise
    pool.shutdown()
    return executor


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
    import dsindex.shards.tokenize  # noqa: F401 - so that no task waits for it

    count_bytes(num_bytes)
