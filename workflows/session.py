"""The frame of every job that works in a work folder: own it, start the executor, show progress, say what is kept."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from workflows.executors import make_executor
from workflows.nodes import check_nodes, require_sound
from workflows.progress import displays_of_job
from workflows.workfolder import open_work_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        holds_gil: The tasks run Python code, so that threads would not help.

    Raises:
        PlanError: If another driver works there, or the folder belongs to another plan.
        InputError: If a node of a named cluster does not see what is seen here.
        BaseException: What interrupts the job, with a note that says what is kept.
    """
    with open_work_folder(work_dir, plan, keep=config.keep_shards) as ledger:
        executor = make_executor(config, holds_gil=holds_gil)
        try:
            with reporter.showing(*displays_of_job(work_dir, executor)):
                if executor.is_cluster:
                    folders = (work_dir, os.path.dirname(os.path.abspath(config.output_prefix)))
                    require_sound(check_nodes(executor, source, folders, keys=keys, thorough=False))
                yield executor, ledger
        except BaseException as stop:
            if not isinstance(stop, Exception):
                tasks = source.tasks()
                kept = sum(ledger.shard(task) is not None for task in tasks)
                stop.add_note(
                    f"{kept:,} of {len(tasks):,} shards are finished and kept in {work_dir}; "
                    f"run the same command again to continue"
                )
            raise
        finally:
            executor.close()
