"""The beginning and the end of every job that publishes datasets.

`open_job` locks the work folder and the outputs, finds what is finished, and opens the ledger. Whatever can be refused
is refused before anything changes, and files under final names are left alone until everything that replaces them is
complete.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.engine.dispatch import Dispatch, DispatchStatistics, RetryPolicy
from dsindex.engine.executors import ClusterLostError
from dsindex.engine.input_paths import STANDARD_INPUT
from dsindex.engine.interrupts import raise_missed_stop
from dsindex.engine.ledger import Ledger
from dsindex.engine.manifest import Manifest, describe_run, read_manifest
from dsindex.engine.output import find_finished, publish, refuse_inputs, remove_partials, remove_temporary
from dsindex.engine.plan import describe_changes, describe_inputs, describe_settings, id_of_plan
from dsindex.engine.progress import ProgressFile, conclude
from dsindex.engine.start import make_executor
from dsindex.engine.work_folder import MARKER_FILE, hold_work_folder, remove_work, remove_work_folder
from dsindex.errors import PlanError
from dsindex.options.config import work_folder_path
from dsindex.store.lock import hold_lock
from dsindex.store.storage import holds_writes
from dsindex.store.urls import absolute, folder_of, joined, with_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.engine.executors import Call, Executor
    from dsindex.engine.manifest import Content, Run
    from dsindex.engine.output import Dataset, Output
    from dsindex.engine.plan import Plan
    from dsindex.engine.progress import Reporter
    from dsindex.options.config import WorkConfig
    from dsindex.store.lock import Lock
    from dsindex.text.engines import Engine

K = TypeVar("K")
LOCK_SUFFIX = "dsindex-lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """The result of a job."""

    contents: tuple[Content, ...]
    """Contents of the manifests, in the order of the outputs."""
    run: Run
    """The `run` part of the first manifest."""
    already_complete: bool
    seconds: float


@dataclass(kw_only=True)
class Job:
    """A job that owns its work folder and its outputs, and what its stages share."""

    config: WorkConfig
    plan: Plan
    ledger: Ledger
    reporter: Reporter
    executor_options: dict[str, Any]
    owned: contextlib.ExitStack
    locks: tuple[Lock, ...]
    """The locks of the work folder and of each output."""
    statistics: DispatchStatistics = field(default_factory=DispatchStatistics)
    """Counts of retries and lost workers."""
    began: float = field(default_factory=time.time)
    outcome: JobOutcome | None = None
    """The result, once everything is published, by this run or an earlier one."""

    @cached_property
    def executor(self) -> Executor:
        """The executor, which starts when it is needed; it ends with the job."""
        return self.owned.enter_context(contextlib.closing(make_executor(self.config, **self.executor_options)))

    @cached_property
    def policy(self) -> RetryPolicy:
        """Budgets and deadlines of tasks."""
        return RetryPolicy(deadline_seconds=self.config.shard_deadline)

    @cached_property
    def work_dir(self) -> str:
        """The work folder."""
        return work_folder_path(self.config)

    @property
    def keep_shards(self) -> bool:
        """Whether the tokens of shards are kept once they are merged."""
        return self.config.keep_shards

    @property
    def published(self) -> JobOutcome:
        """The result.

        Raises:
            ValueError: If nothing is published yet.
        """
        if self.outcome is None:
            raise ValueError("expected a job that is published")
        return self.outcome

    def dispatch(self, calls: Iterable[tuple[K, Call]]) -> Dispatch[K]:
        """Return what runs calls on the executor, with the job's budgets, counts and progress."""
        return Dispatch(
            self.executor, calls, policy=self.policy, statistics=self.statistics, on_idle=self.reporter.tick
        )

    def require_locks(self) -> None:
        """Check, before anything is published, that no other driver can have taken this job over.

        Raises:
            PlanError: If a lock was lost.
        """
        for lock in self.locks:
            lock.require_held()

    def publish(
        self,
        datasets: Sequence[Dataset],
        contents: Sequence[Content],
        *,
        num_shards: int,
        engine: Engine | None = None,
        tokenizer_path: str | None = None,
    ) -> None:
        """Publish datasets that are assembled, the last one first.

        Args:
            datasets: The datasets.
            contents: The content of each dataset's manifest, in order.
            num_shards: Number of shards.
            engine: The engine, if the job encodes.
            tokenizer_path: What names the tokenizer.

        Raises:
            PlanError: If this driver lost a lock.
            OutputError: If a file cannot be written.
        """
        run = describe_run(
            self.plan,
            began=self.began,
            executor=self.executor,
            statistics=self.statistics,
            shards=num_shards,
            engine=engine,
            tokenizer_path=tokenizer_path,
        )
        self.require_locks()
        self.ledger.record_publishing()
        publish(datasets, [Manifest(content=content, run=run).encode() for content in contents])
        self.ledger.record_finished()
        seconds = time.time() - self.began
        self.outcome = JobOutcome(contents=tuple(contents), run=run, already_complete=False, seconds=seconds)


@contextlib.contextmanager
def open_job(
    config: WorkConfig,
    plan: Plan,
    outputs: Sequence[Output],
    *,
    reporter: Reporter,
    text_bytes: int = 0,
    holds_gil: bool = False,
) -> Iterator[Job]:
    """Own a job's work folder and outputs while the block does its work, unless `outcome` says that it is finished.

    Args:
        config: Options of the executor and the work folder.
        plan: The job's plan.
        outputs: All outputs.
        reporter: Shows progress.
        text_bytes: Size of the text to tokenize, about; 0 if the job does not tokenize.
        holds_gil: Whether tasks run Python code, so that threads would not help.

    Raises:
        DsindexError: If the job cannot be done as asked; files under final names are then unchanged.
        BaseException: Whatever interrupts the block, with a note about the finished work that is kept.
    """
    raise_missed_stop()
    refuse_inputs(outputs, [file.absolute_path for file in plan.inputs])
    work_dir = work_folder_path(config)
    with contextlib.ExitStack() as owned:
        locks = [owned.enter_context(hold_work_folder(work_dir))]
        locks += [owned.enter_context(hold_output(prefix)) for prefix in sorted(output.prefix for output in outputs)]
        ledger = Ledger(work_dir)
        is_same = ledger.plan is not None and not describe_changes(ledger.plan, plan)
        is_publishing = ledger.is_publishing and not ledger.is_finished and is_same
        finished = find_finished(outputs, plan, replaces=config.replace, is_publishing=is_publishing)
        job = Job(
            config=config,
            plan=plan,
            ledger=ledger,
            reporter=reporter,
            executor_options={"text_bytes": 0 if finished else text_bytes, "holds_gil": holds_gil},
            owned=owned,
            locks=tuple(locks),
        )
        if finished is None:
            _take_over(job, outputs)
            with _working(job, outputs):
                yield job
        else:
            contents, run = tuple(manifest.content for manifest in finished), finished[0].run
            seconds = time.time() - job.began
            job.outcome = JobOutcome(contents=contents, run=run, already_complete=True, seconds=seconds)
            yield job
            conclude(absolute(config.output_prefix))
        if not config.keep_shards and (finished is None or is_same or not ledger.has_work):
            remove_work_folder(work_dir)


def hold_output(prefix: str) -> contextlib.AbstractContextManager[Lock]:
    """Hold the lock of an output.

    Raises:
        PlanError: If a driver that may be alive holds it.
        OutputError: If it cannot be written.
    """
    return hold_lock(with_suffix(absolute(prefix), f".{LOCK_SUFFIX}"), what=f"the output {prefix}")


def _take_over(job: Job, outputs: Sequence[Output]) -> None:
    """Decide whether the work of an earlier run goes on, and remove what does not.

    Raises:
        PlanError: If it is the work of other settings, naming what differs.
    """
    config, plan, ledger = job.config, job.plan, job.ledger
    if ledger.plan is None:
        manifest = read_manifest(outputs[0].prefix) if config.replace else None
        if manifest is not None and (inputs := describe_inputs(manifest.run.plan, plan)):
            job.reporter.say(f"{'; '.join(inputs)}: no shards were kept, so all are made")
        return
    settings, inputs = describe_settings(ledger.plan, plan), describe_inputs(ledger.plan, plan)
    for name in ("output-prefix", "output"):
        before = ledger.plan["settings"].get(name)
        if ledger.has_work and before != plan.settings.get(name):
            raise PlanError(
                f"{job.work_dir}: expected no work on another output, got work on {before or 'one of another kind'}; "
                f"choose another --work-dir, or remove this folder (rm -r) if nobody needs it"
            )
    if settings and ledger.has_work and not config.replace:
        what = "the kept shards" if ledger.is_finished else "unfinished work"
        raise PlanError(
            f"{job.work_dir}: {what} of another plan are here: {'; '.join(settings)}; use the former options to "
            f"continue, --replace to start over, or another --work-dir"
        )
    if id_of_plan(ledger.plan) != plan.plan_id:
        remove_partials(outputs, id_of_plan(ledger.plan))
    remove_temporary(outputs)
    if settings:
        remove_work(job.work_dir)
        ledger.forget_all()
    if inputs:
        job.reporter.say("; ".join(inputs))


@contextlib.contextmanager
def _working(job: Job, outputs: Sequence[Output]) -> Iterator[None]:
    """Give a job what it needs to work, and say what is kept if it is stopped."""
    work_dir, plan, ledger, executor, reporter = job.work_dir, job.plan, job.ledger, job.executor, job.reporter
    ledger.begin()
    ledger.record_plan(plan)
    prefix = absolute(job.config.output_prefix)
    displays = [] if holds_writes(prefix) else [ProgressFile(prefix)]
    kept = "run the same command again to continue"
    try:
        with reporter.showing(*displays):
            try:
                reporter.follow(executor, job.statistics)
                files = [joined(work_dir, MARKER_FILE), *(file.absolute_path for file in plan.inputs)]
                executor.require_seen(files, [folder_of(prefix)])
                yield
            except BaseException as stop:
                if ledger.shards:
                    kept = f"{len(ledger.shards):,} finished shards are kept in {work_dir}; {kept}"
                if isinstance(stop, ClusterLostError):
                    raise ClusterLostError(f"{stop}; {kept} on a new cluster") from stop
                if not isinstance(stop, Exception) and not hasattr(stop, "__notes__"):
                    stop.add_note(kept)
                raise
    finally:
        ledger.close()
        if not ledger.has_work and all(file.path != STANDARD_INPUT for file in plan.inputs):
            remove_partials(outputs, plan.plan_id)
            remove_work_folder(work_dir)
