"""Start a job's executor while the job is examined for problems, before any work is done."""

from __future__ import annotations

import math
import multiprocessing
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import format_room
from dsindex.engine.executors import ProcessExecutor, ThreadExecutor
from dsindex.errors import OutputError
from dsindex.machine import available_cpus, available_memory
from dsindex.options.config import WorkConfig, work_folder_path
from dsindex.store.storage import can_map, free_bytes, nearest_folder
from dsindex.store.urls import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.engine.dispatch import DispatchStatistics, RetryPolicy
    from dsindex.engine.executors import Executor
    from dsindex.engine.ledger import Ledger
    from dsindex.engine.progress import Reporter
    from dsindex.options.build import BuildConfig
    from dsindex.options.config import ExecutorConfig


WORKER_MEMORY_BYTES = 460 << 20
"""A worker process's peak memory, measured on Ray after 600 MB of text. A very long document adds its own size."""
LEAST_BYTES_PER_WORKER = 8 << 20
"""Input for which it pays to start a worker before the plan is made."""
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
        text_bytes: Size of the text to tokenize, for which Ray's workers begin to start.

    Raises:
        TaskError: If Ray cannot be started or reached.
    """
    if not wants_ray(config):
        kind = ThreadExecutor if wants_threads(config, holds_gil=holds_gil, text_bytes=text_bytes) else ProcessExecutor
        return kind(config.workers or available_cpus())
    # Ray reads it when it is imported, and would warn that tasks wait for a node, as if something were wrong.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "tasks with infeasible resource requests")
    address, first_calls = cluster_address(config), -(-text_bytes // LEAST_BYTES_PER_WORKER)
    own_token: dict[str, str] = {}
    if address is None and "RAY_AUTH_MODE" not in os.environ:  # otherwise Ray leaves one in the home folder
        own_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update(own_token)
    try:
        from dsindex.engine.ray import RayExecutor  # Ray takes 0.7 s to import

        return RayExecutor(address=address, workers=config.workers, first_calls=first_calls)
    finally:
        for name in own_token:
            del os.environ[name]


def start_and_examine(
    config: WorkConfig, examine: Callable[[], None], *, num_bytes: int, holds_gil: bool = False
) -> Executor:
    """Start the executor that the options ask for, and examine the job for problems while its workers start.

    Raises:
        DsindexError: A problem that the examination found; nothing is left running.
        TaskError: If Ray cannot be started or reached.
    """
    executor = make_executor(config, holds_gil=holds_gil, text_bytes=num_bytes)
    try:
        examine()
    except BaseException:
        executor.close()
        raise
    return executor


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
    """Counts of retries and lost workers."""


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
