"""The frame of every job on text: own the work folder, look ahead, start the executor, show progress, say what is kept.

What can be refused at once is refused before Ray is started; what takes a look at the input, while it starts.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsindex.errors import TaskError
from dsindex.loops import count_bytes
from workflows.executors import make_executor, wants_ray, wants_threads
from workflows.nodes import check_nodes, require_sound
from workflows.progress import displays_of_job
from workflows.workfolder import open_ledger, own_work_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from workflows.config import WorkConfig
    from workflows.executors import Executor
    from workflows.ledger import Ledger
    from workflows.progress import Reporter
    from workflows.source import TextSource
    from workflows.workfolder import Plan


@contextlib.contextmanager
def open_session(
    config: WorkConfig,
    source: TextSource,
    plan: Plan,
    *,
    work_dir: str,
    keys: Sequence[str],
    reporter: Reporter,
    examine: Callable[[], None],
    holds_gil: bool = False,
) -> Iterator[tuple[Executor, Ledger]]:
    """Give a job what it works with, for the time of the block.

    Args:
        config: Where tasks run, and whether the work folder is kept.
        source: What the job tokenizes.
        plan: What it will do.
        work_dir: Its work folder.
        keys: Whose texts a node of a named cluster tries to read before work starts.
        reporter: Is told how it goes.
        examine: Finds out what would fail, before anything is done.
        holds_gil: The tasks run Python code, so that threads would not help.

    Raises:
        PlanError: If another driver works there, or the folder belongs to another plan.
        InputError: If a node of a named cluster does not see what is seen here.
        DsindexError: What the examination finds.
        BaseException: What interrupts the job, with a note that says what is kept.
    """
    with own_work_folder(work_dir, plan, keep=config.keep_shards):
        executor = start_and_examine(config, examine, num_bytes=source.total_bytes, holds_gil=holds_gil)
        with contextlib.closing(executor), open_ledger(work_dir, plan) as ledger:
            try:
                with reporter.showing(*displays_of_job(work_dir, executor)):
                    if executor.is_cluster:
                        folders = (work_dir, os.path.dirname(os.path.abspath(config.output_prefix)))
                        require_sound(check_nodes(executor, source, folders, keys=keys, thorough=False))
                    yield executor, ledger
            except BaseException as stop:
                if not isinstance(stop, Exception):
                    stop.add_note(_what_is_kept(source, ledger, work_dir))
                raise


def start_and_examine(
    config: WorkConfig, examine: Callable[[], None], *, num_bytes: int, holds_gil: bool = False
) -> Executor:
    """Start the executor that the options ask for, and find out meanwhile what would fail.

    Ray takes seconds to start, and wants the main thread for that: the examination is then in another one. For a large
    input the compiled loops are loaded meanwhile.

    Raises:
        DsindexError: What the examination finds, whether or not the executor can be started; nothing is left running.
        TaskError: If Ray cannot be started or reached.
    """
    if wants_threads(config, holds_gil=holds_gil):
        count_bytes(num_bytes)
    if not wants_ray(config):
        examine()
        return make_executor(config, holds_gil=holds_gil)
    executor: Executor | None = None
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="dsindex-examine") as pool:
            examination = pool.submit(examine)
            try:
                executor = make_executor(config, holds_gil=holds_gil)
            except TaskError:
                examination.result()  # a fault that it finds is the one that is told, however fast Ray fails
                raise
            examination.result()
    except BaseException:
        if executor is not None:
            executor.close()
        raise
    return executor


def _what_is_kept(source: TextSource, ledger: Ledger, work_dir: str) -> str:
    tasks = source.tasks()
    kept = sum(ledger.shard(task) is not None for task in tasks)
    return (
        f"{kept:,} of {len(tasks):,} shards are finished and kept in {work_dir}; run the same command again to continue"
    )
