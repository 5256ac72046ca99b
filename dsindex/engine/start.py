"""Start a job's executor while the job is examined for problems, and wait for a node, before any work is done."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dsindex.amounts import format_room
from dsindex.errors import OutputError, TaskError
from dsindex.execution.calls import EarlyStart
from dsindex.execution.choice import make_executor, wants_ray, wants_threads
from dsindex.execution.interrupts import raise_missed_stop
from dsindex.execution.local import available_cpus
from dsindex.execution.progress.displays import make_reporter
from dsindex.kernels.loader import count_bytes, wait_for_kernels
from dsindex.options.config import work_folder_path
from dsindex.store.storage import can_map, free_bytes, nearest_folder
from dsindex.store.urls import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.engine.ledger import Ledger
    from dsindex.execution.calls import Executor
    from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.options.build import BuildConfig
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


def start_and_examine(
    config: WorkConfig, examine: Callable[[], None], *, num_bytes: int, holds_gil: bool = False
) -> Executor:
    """Start the executor that the options ask for, and examine the job for problems meanwhile.

    Ray takes seconds to start, so the examination then runs in another thread, and Ray's workers start. For a large
    input, the kernels are loaded in the background, and many workers are processes.

    Raises:
        DsindexError: A problem that the examination found, even if the executor failed too; nothing is left running.
        TaskError: If Ray cannot be started or reached.
    """
    if wants_threads(config, holds_gil=holds_gil):
        count_bytes(num_bytes)
    if not wants_ray(config):
        examine()
        wait_for_kernels()
        threads = THREADS_UP_TO_WORKERS if _are_threads_slow(config, num_bytes) else None
        return make_executor(config, holds_gil=holds_gil, threads=threads, early=_start_early(num_bytes))
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
    import dsindex.engine.shards.tokenize  # noqa: F401 - so that no task waits for it

    wait_for_kernels()


# The objects that a job's stages share while it owns its work folder.


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The objects that a job's stages share while it owns its work folder."""

    executor: Executor
    ledger: Ledger
    reporter: Reporter
    policy: RetryPolicy
    """Budgets and deadlines of tasks."""
    statistics: DispatchStatistics
    """Counts of retries, lost workers and stragglers."""


# Disk space: the estimated need of shards and output, compared with what is free.


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The size of a job, extrapolated from a sample."""

    tokens: float
    """Tokens of all keys, EOD included."""
    documents: float
    """Documents of all inputs."""
    token_margin: float = 0.0
    """The tokens are so many more or fewer in one job of twenty at most; 0 if everything was read."""

    def scaled(self, share: float) -> Estimate:
        """Return the estimate for a share of the records."""
        margin = self.token_margin * share
        return Estimate(tokens=self.tokens * share, documents=self.documents * share, token_margin=margin)

    @property
    def shown_documents(self) -> str:
        """The documents, to two digits unless everything was read."""
        return f"{self.documents:,.0f}" if not self.token_margin else _two_digits(self.documents, round)

    @property
    def shown_tokens(self) -> str:
        """The tokens with their range, to two digits unless everything was read."""
        if not self.token_margin:
            return f"{self.tokens:,.0f}"
        if self.token_margin >= self.tokens:
            return f"{_two_digits(self.tokens, round)} (the inputs can be read in too few places for a range)"
        low = _two_digits(self.tokens - self.token_margin, math.floor)
        high = _two_digits(self.tokens + self.token_margin, math.ceil)
        return f"{_two_digits(self.tokens, round)} ({low} to {high})"


def _two_digits(value: float, rounded: Callable[[float], int]) -> str:
    """Return a number that is rounded to two digits.

    >>> _two_digits(684_280_716, round), _two_digits(684_280_716, math.ceil), _two_digits(7, round)
    ('680,000,000', '690,000,000', '7')
    """
    unit = 10 ** max(0, math.floor(math.log10(max(value, 1))) - 1)
    return f"{rounded(value / unit) * unit:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCopies:
    """How often the documents are in the work folder."""

    at_most: int = 1
    """Before the output is written."""
    at_end: int = 1
    """While the output is written."""
    in_place: bool = False
    """Whether their tokens are those of the output (dsindex.engine.shards.places)."""


def shard_copies(config: BuildConfig) -> ShardCopies:
    """Return how often a build has its documents in the work folder."""
    return ShardCopies(in_place=writes_in_place(config))


def writes_in_place(config: WorkConfig) -> bool:
    """Tell whether nearly all shards of a job that tokenizes texts write their tokens into its output.

    Of many processes, a good part of the shards is complete before those before them, and has files of its own.
    """
    folders = (work_folder_path(config), folder_of(config.output_prefix))
    workers = config.workers or available_cpus()
    are_threads = config.executor == "local" or workers <= THREADS_UP_TO_WORKERS
    return wants_threads(config) and are_threads and not config.keep_shards and _are_on_one_disk(*folders)


def _are_on_one_disk(*folders: str) -> bool:
    if not all(map(can_map, folders)):  # one is in an object store
        return False
    return len({os.stat(nearest_folder(folder)).st_dev for folder in folders}) == 1


def check_room(
    estimate: Estimate,
    *,
    itemsize: int,
    num_keys: int,
    output_folder: str,
    work_dir: str,
    unfinished: Sequence[str] = (),
    copies: ShardCopies = ShardCopies(),
) -> None:
    """Refuse a job whose shards and output would not fit on disk.

    Args:
        estimate: The estimated size of the job.
        itemsize: Bytes per token on disk.
        num_keys: Number of keys, each of which makes a dataset.
        output_folder: Folder of the output, which exists; or an address.
        work_dir: Folder of the shards, which need not exist; or an address.
        unfinished: Files of the output that an earlier run has written.
        copies: How often the documents are in the work folder.

    Raises:
        OutputError: If space is short, naming the folder and the needed and free space.
    """
    indices = int(estimate.documents * num_keys * 24)
    output = int(estimate.tokens * itemsize) + indices
    shards = (indices if copies.in_place else output) + int(estimate.documents * 16)
    work = work_dir if os.path.isdir(work_dir) else folder_of(work_dir)
    needs = {output_folder: output}
    if os.path.isdir(work) and os.path.isdir(output_folder) and _are_on_one_disk(work, output_folder):
        needs[output_folder] = max(output + shards * copies.at_end, shards * copies.at_most)
    else:
        needs[work] = shards * copies.at_most
    already = size_of_files(work_dir) + sum(map(_allocated_bytes, unfinished))
    for place, needed in needs.items():
        require_room(
            place,
            needed - already,
            what="shards and output",
            remedy="make room, or put shards elsewhere with --work-dir",
        )


def require_room(folder: str, needed: int, *, what: str, remedy: str) -> None:
    """Refuse to write more than fits on disk.

    Args:
        folder: An existing folder.
        needed: Estimated bytes.
        what: Names what they are for.
        remedy: Says what to do.

    Raises:
        OutputError: If fewer bytes are free.
    """
    free = free_bytes(folder)
    if needed > free:
        wanted, there = format_room(needed, free)
        raise OutputError(f"{folder}: about {wanted} are needed for {what}, {there} are free; {remedy}")


def size_of_files(folder: str) -> int:
    """Return the disk space that the files below a folder take; 0 if it does not exist."""
    return sum(_allocated_bytes(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)


def _allocated_bytes(path: str) -> int:
    """Return the disk space that a file takes, which is less than its size if it has holes, as one of its names."""
    try:
        status = os.stat(path)
    except OSError:
        return 0  # removed meanwhile
    return status.st_blocks * 512 // max(1, status.st_nlink)
