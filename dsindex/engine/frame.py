"""The frame of every job that publishes datasets; a kind of job defines only what differs.

A run looks for existing outputs, takes ownership of its work folder and outputs, examines the job for problems, makes
the parts, assembles them under partial names, publishes them, and cleans up. Whatever can be refused is refused before
anything changes, and files under final names are left alone until everything that replaces them is complete.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dsindex.engine.assemble import assemble
from dsindex.engine.dispatch import DispatchStatistics, RetryPolicy
from dsindex.engine.executors import ClusterLostError
from dsindex.engine.identity import describe_inputs
from dsindex.engine.interrupts import last_words, raise_missed_stop
from dsindex.engine.manifest import Manifest, describe_run, read_manifest
from dsindex.engine.outputs import (
    find_finished,
    look_at_output,
    refuse_inputs,
    require_unchanged,
)
from dsindex.engine.progress import PROGRESS_SUFFIX, ProgressFile, conclude
from dsindex.engine.publishing import Dataset, publish, require_assembled, withdraw
from dsindex.engine.start import Work, make_executor, start_and_examine
from dsindex.engine.work_folder import may_be_removed, own_work_folder, read_unfinished, remove_finished_folder
from dsindex.errors import PlanError
from dsindex.options.config import work_folder_path
from dsindex.store.lock import hold_lock, is_lock
from dsindex.store.ownership import MARKER_FILE
from dsindex.store.storage import holds_writes
from dsindex.store.urls import absolute, folder_of, joined, with_suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from dsindex.engine.executors import Executor
    from dsindex.engine.identity import Plan
    from dsindex.engine.ledger import Ledger
    from dsindex.engine.manifest import Content, Run
    from dsindex.engine.outputs import Output, Standing
    from dsindex.engine.progress import Reporter
    from dsindex.engine.work_folder import WorkFolder
    from dsindex.options.config import WorkConfig
    from dsindex.store.storage import StoredFile
    from dsindex.text.engines import Engine

LOCK_SUFFIX = "dsindex-lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The datasets of a job, ready to be assembled."""

    groups: tuple[tuple[Dataset, ...], ...]
    """Datasets that belong together; if the first one's last file exists, the others of its group are complete."""
    num_shards: int
    """Number of shards."""
    num_reference_texts: int = 0
    """Texts that the reference encoded while a faster engine encoded the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job: what distinguishes its kind and its options from all others."""

    config: WorkConfig
    """Options of the executor and the work folder."""
    plan: Plan
    outputs: tuple[Output, ...]
    """All outputs, in the order of the datasets of all groups."""
    make: Callable[[Work], Made]
    """Makes all parts of all datasets; raises DsindexError if they cannot be made."""
    describe: Callable[[Made, Sequence[dict[str, StoredFile]]], list[Content]]
    """Returns the content of each manifest, in the order of the outputs, given each dataset's files by suffix."""
    examine: Callable[[], None]
    """Checks for problems before any work is done; raises DsindexError."""
    text_bytes: int = 0
    """Size of the text to tokenize, about; 0 if the job does not tokenize."""
    holds_gil: bool = False
    """Whether tasks run Python code, so that threads would not help."""
    engine: Engine | None = None
    """The engine, if the job encodes."""
    tokenizer_path: str | None = None
    """Where the tokenizer is, if it is not an option of the job."""
    notes: tuple[str, ...] = ()
    """Sentences to say before the work begins."""
    require_same_inputs: Callable[[Sequence[Manifest]], None] | None = None
    """Raises PlanError if the inputs' content differs from what the given manifests of a finished output describe."""
    count_kept: Callable[[Ledger | None], tuple[int, int]] | None = None
    """Returns the number of shards that earlier runs have made, given the ledger if there is one, and that of all."""
    conclude: Callable[[Executor], None] | None = None
    """Called once everything is published, by this run or an earlier one."""

    @property
    def work_dir(self) -> str:
        """Absolute path of the work folder."""
        return work_folder_path(self.config)

    @property
    def prefix(self) -> str:
        """Absolute prefix of the output, as the options name it."""
        return absolute(self.config.output_prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The result of a job."""

    contents: tuple[Content, ...]
    """Contents of the manifests, in the order of the outputs."""
    run: Run
    """The `run` part of the first manifest."""
    already_complete: bool
    seconds: float


def run_job(job: Job, *, reporter: Reporter) -> JobOutcome:
    """Run a job, continuing an interrupted run of the same plan.

    Raises:
        DsindexError: If the job cannot be done as asked; files under final names are then unchanged.
        BaseException: Whatever interrupts the job, with a note about the finished work that is kept.
    """
    began = time.time()
    raise_missed_stop()
    refuse_inputs(job.outputs, [file.path for file in job.plan.inputs])
    finished = _find_finished(job)
    if finished is None:
        with contextlib.ExitStack() as owned:
            folder = owned.enter_context(
                own_work_folder(
                    job.work_dir,
                    job.plan,
                    fresh=job.config.fresh,
                    keep=job.config.keep_shards,
                )
            )
            for output in sorted(job.outputs, key=lambda output: output.prefix):
                owned.enter_context(hold_output(output.prefix))
            finished = _find_finished(job)  # another driver may have finished meanwhile
            if finished is None:
                return _run(job, folder, reporter, began)
    try:
        if job.conclude is not None:
            with contextlib.closing(make_executor(job.config)) as executor:
                job.conclude(executor)
    finally:
        _tidy_up(job)  # at the end, as the work folder has standard input
    return JobOutcome(
        contents=tuple(manifest.content for manifest in finished),
        run=finished[0].run,
        already_complete=True,
        seconds=time.time() - began,
    )


def _find_finished(job: Job) -> list[Manifest] | None:
    if job.config.fresh or not job.outputs:
        return None
    finished = find_finished(
        [look_at_output(output) for output in job.outputs],
        job.plan,
        replaces=job.config.replace,
        read_unfinished=partial(read_unfinished, job.work_dir),
    )
    if finished is not None and job.require_same_inputs is not None:
        try:
            job.require_same_inputs(finished)
        except PlanError:
            if not job.config.replace:
                raise
            return None
    return finished


def hold_output(prefix: str) -> AbstractContextManager[None]:
    """Hold the lock of an output.

    Raises:
        PlanError: If a driver that may be alive holds it.
        OutputError: If it cannot be written.
    """
    path, what = with_suffix(absolute(prefix), f".{LOCK_SUFFIX}"), f"the output {prefix}"
    return hold_lock(path, what=what)


def _tidy_up(job: Job) -> None:
    """Clean up after a run that published everything and was killed before it ended."""
    history = read_unfinished(job.work_dir)
    with contextlib.suppress(PlanError), contextlib.ExitStack() as held:
        for output in job.outputs if history.runs and may_be_removed(history, job.plan) else ():
            held.enter_context(hold_output(output.prefix))  # by now another folder's driver may work on it
        remove_finished_folder(job.work_dir, job.plan)
    conclude(job.prefix)
    for prefix in [*(output.prefix for output in job.outputs), job.prefix]:
        if is_lock(with_suffix(absolute(prefix), f".{LOCK_SUFFIX}")):
            with contextlib.suppress(PlanError), hold_output(prefix):
                pass  # a dead owner's lock is taken over and removed


def _run(job: Job, folder: WorkFolder, reporter: Reporter, began: float) -> JobOutcome:
    progress = None if holds_writes(job.prefix) else ProgressFile(job.prefix)
    opened: list[Ledger] = []
    kept = partial(_describe_kept, job, folder, opened)
    with reporter.showing(*filter(None, [progress])):
        if progress is not None and progress.is_foreign:
            reporter.say(f"{job.prefix}.{PROGRESS_SUFFIX}: is not dsindex's, so it is left alone")
        try:
            with last_words(partial(_end_at_once, reporter, kept)):
                return _carry_out(job, folder, reporter, began, progress=progress, opened=opened)
        except ClusterLostError as lost:
            raise ClusterLostError(f"{lost}; {kept()} on a new cluster") from lost
        except BaseException as stop:
            if not isinstance(stop, Exception) and not hasattr(stop, "__notes__"):
                stop.add_note(kept())
            raise


def _end_at_once(reporter: Reporter, kept: Callable[[], str], stop: BaseException) -> str:
    """Let the displays say that the job was stopped; return what is kept."""
    stop.add_note(kept())
    reporter.close_displays(stop)
    return stop.__notes__[0]


def _describe_kept(job: Job, folder: WorkFolder, opened: Sequence[Ledger]) -> str:
    if job.count_kept is None:
        return "run the same command again"
    starts_over = job.config.fresh and not folder.history.fresh
    ledger = opened[0] if opened else None if starts_over else folder.read_ledger()
    kept, total = job.count_kept(ledger)
    finished = f"{kept:,} of {total:,} shards are finished and kept in {job.work_dir}"
    return f"{finished}; run the same command again to continue"


def _describe_changes(job: Job, folder: WorkFolder) -> list[str]:
    """Return which inputs differ from those of the earlier run, or of the output to be replaced."""
    if job.config.fresh:
        return []
    old = folder.history.plan
    if old is None and job.outputs:
        manifest = read_manifest(job.outputs[0].prefix)
        old = job.plan.to_json() if manifest is None else manifest.run.plan
    changes = "" if old is None else "; ".join(describe_inputs(old, job.plan))
    lost = "" if folder.history.has_work else ": no shards were kept, so all are made"
    return [f"{changes}{lost}"] if changes else []


def _carry_out(
    job: Job,
    folder: WorkFolder,
    reporter: Reporter,
    began: float,
    *,
    progress: ProgressFile | None,
    opened: list[Ledger],
) -> JobOutcome:
    """Run the job; `opened` gets the ledger once it is open."""
    config = job.config
    standings = [look_at_output(output) for output in job.outputs]
    executor = start_and_examine(config, job.examine, num_bytes=job.text_bytes, holds_gil=job.holds_gil)
    with contextlib.closing(executor):
        notes = [*job.notes, *_begin_again(job, folder)]
        prefixes = [absolute(output.prefix) for output in job.outputs]
        with folder.open_ledger(job.plan, fresh=config.fresh, outputs=prefixes) as ledger:
            opened.append(ledger)
            work = Work(
                executor=executor,
                ledger=ledger,
                reporter=reporter,
                policy=RetryPolicy(deadline_seconds=config.shard_deadline),
                statistics=DispatchStatistics(),
            )
            try:
                for note in [*notes, *_describe_changes(job, folder)]:
                    reporter.say(note)
                reporter.follow(executor)
                files = [file.path for file in job.plan.inputs]
                executor.require_seen([joined(job.work_dir, MARKER_FILE), *files], [folder_of(job.prefix)])
                contents, run = _publish(job, work, job.make(work), standings, began)
                if job.conclude is not None:
                    job.conclude(executor)
            except BaseException as stop:
                if not isinstance(stop, Exception):
                    stop.add_note(_describe_kept(job, folder, opened))
                if progress is not None and not isinstance(stop, ClusterLostError):
                    progress.close(stop)  # before running shards end, as a second signal may come first
                raise
    return JobOutcome(contents=tuple(contents), run=run, already_complete=False, seconds=time.time() - began)


def _begin_again(job: Job, folder: WorkFolder) -> list[str]:
    """Empty the work folder if --fresh asks for it; return notes for the user.

    An interrupted --fresh job of the same plan is continued, since its shards are new.
    """
    history = folder.history
    if job.config.fresh:
        same_plan = history.plan == job.plan.decoded()
        if same_plan and history.fresh and not history.finished:
            return [f"{folder.path}: continuing the interrupted --fresh job"] if history.has_work else []
        folder.start_over(job.plan)
    elif folder.was_damaged:
        return [
            f"{folder.path}: plan.json was damaged and is written again; the ledger has the plan, so shards are kept"
        ]
    return []


def _publish(
    job: Job, work: Work, made: Made, standings: Sequence[Standing], began: float
) -> tuple[list[Content], Run]:
    datasets = [dataset for group in made.groups for dataset in group]
    files = assemble(datasets, work)
    contents = job.describe(made, files)
    run = describe_run(
        job.plan,
        began=began,
        executor=work.executor,
        statistics=work.statistics,
        shards=made.num_shards,
        engine=job.engine,
        num_reference_texts=made.num_reference_texts,
        tokenizer_path=_tokenizer_path(job),
    )
    for standing in standings:
        require_unchanged(standing)
    for dataset, own in zip(datasets, files, strict=True):
        require_assembled(dataset.target, own)
    _record_publishing(standings, datasets, work.ledger)
    encoded = [Manifest(content=content, run=run).encode() for content in contents]
    ready = iter(zip(datasets, files, encoded, strict=True))
    for group in made.groups:
        _publish_group([next(ready) for _ in group], work.ledger)
    work.ledger.record_finished()
    return contents, run


def _tokenizer_path(job: Job) -> str | None:
    """Return the path of a job's tokenizer; None if it has none, a name in the hub, or a path that is not UTF-8."""
    path = getattr(job.config, "tokenizer_model", job.tokenizer_path)
    if not isinstance(path, str) or not os.path.exists(path):
        return None
    return None if any("\udc80" <= character <= "\udcff" for character in os.path.abspath(path)) else path


def _record_publishing(standings: Sequence[Standing], datasets: Sequence[Dataset], ledger: Ledger) -> None:
    """Record the files to be published and replaced, while the manifests that prove dsindex wrote them still exist."""
    for standing, dataset in zip(standings, datasets, strict=True):
        files = {*standing.files.values(), *dataset.target.identify_partials(ledger)}
        ledger.record_publishing(absolute(standing.output.prefix), files)


def _publish_group(ready: Sequence[tuple[Dataset, dict[str, StoredFile], bytes]], ledger: Ledger) -> None:
    """Publish datasets that belong together, the first one last: if its last file exists, the others are complete."""
    withdraw(ready[0][0].target, ledger)
    for dataset, files, manifest in reversed(ready):
        publish(dataset, files, manifest, ledger)
