"""The beginning and the end of every job that publishes datasets.

`open_job` locks the work folder and the outputs, finds what is finished, and opens the ledger. Whatever can be refused
is refused before anything changes, and files under final names are left alone until everything that replaces them is
complete.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import dsindex
from dsindex.engine.dispatch import Dispatch
from dsindex.engine.executors import ClusterLostError
from dsindex.engine.interrupts import raise_missed_stop
from dsindex.engine.ledger import Finished, Ledger, Publishing
from dsindex.engine.output import find_finished, publish, refuse_inputs, remove_partials
from dsindex.engine.plan import compare_plans
from dsindex.engine.progress import ProgressFile, conclude
from dsindex.engine.start import make_executor
from dsindex.engine.work_folder import MARKER_FILE, hold_work_folder, remove_work, remove_work_folder
from dsindex.errors import PlanError
from dsindex.formats.manifest import Manifest, RecordedEngine, Run
from dsindex.options.config import work_folder_path
from dsindex.store.lock import hold_lock
from dsindex.store.storage import holds_writes
from dsindex.store.urls import absolute, folder_of, joined, with_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.engine.executors import Call, Executor
    from dsindex.engine.output import Output
    from dsindex.engine.progress import Reporter
    from dsindex.formats.manifest import Content, Plan
    from dsindex.options.config import WorkConfig
    from dsindex.store.lock import Lock
    from dsindex.text.engines import Engine

K = TypeVar("K")
LOCK_SUFFIX = "dsindex-lock"


@dataclass(kw_only=True)
class Job:
    """A job that owns its work folder and its outputs, and what its stages share."""

    config: WorkConfig
    plan: Plan
    outputs: Sequence[Output]
    ledger: Ledger
    reporter: Reporter
    executor_options: dict[str, Any]
    owned: contextlib.ExitStack
    locks: tuple[Lock, ...]
    """The locks of the work folder and of each output."""
    manifests: list[Manifest]
    """The manifests in the order of the outputs, once everything is published by this run or an earlier one."""
    already_complete: bool
    """Whether an earlier run of the plan published everything."""
    made_bytes: int = 0
    """Size of the inputs whose shards this run made."""
    began: float = field(default_factory=time.time)

    @cached_property
    def executor(self) -> Executor:
        """The executor, which starts when it is needed; it ends with the job."""
        return self.owned.enter_context(contextlib.closing(make_executor(self.config, **self.executor_options)))

    @property
    def work_dir(self) -> str:
        """The work folder."""
        return work_folder_path(self.config)

    @property
    def seconds(self) -> float:
        """Time since the job began."""
        return time.time() - self.began

    def dispatch(self, calls: Iterable[tuple[K, Call]]) -> Dispatch[K]:
        """Return what runs calls on the executor, with the job's budgets, counts and progress."""
        deadline, tick = self.config.shard_deadline, self.reporter.tick
        return Dispatch(self.executor, calls, deadline_seconds=deadline, on_idle=tick)

    def require_locks(self) -> None:
        """Check, before anything is published, that no other driver can have taken this job over.

        Raises:
            PlanError: If a lock was lost.
        """
        for lock in self.locks:
            lock.require_held()

    def publish(
        self, contents: Sequence[Content], *, engine: Engine | None = None, tokenizer_path: str | None = None
    ) -> None:
        """Publish the outputs, which are assembled, the last one first.

        Args:
            contents: The content of each output's manifest, in order.
            engine: The engine, if the job encodes.
            tokenizer_path: What names the tokenizer, which is recorded if it is a path in UTF-8.

        Raises:
            PlanError: If this driver lost a lock.
            OutputError: If a file cannot be written.
        """
        path = os.path.abspath(tokenizer_path or "")
        is_path = tokenizer_path and os.path.exists(path) and path.isprintable()
        run = Run(
            plan=self.plan,
            started=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began)),
            seconds=round(self.seconds, 3),
            host=socket.gethostname(),
            executor=self.executor.kind,
            workers=self.executor.slots,
            shards=len(self.outputs[0].parts),
            retries=self.executor.retries,
            lost_workers=self.executor.lost_workers,
            dsindex=dsindex.__version__,
            engine=msgspec.convert(engine, RecordedEngine | None, from_attributes=True),
            tokenizer_path=path if is_path else None,
        )
        self.require_locks()
        self.manifests = [Manifest(content=content, run=run) for content in contents]
        self.ledger.record(Publishing())
        publish(self.outputs, self.manifests)
        remove_partials(self.outputs, self.plan.plan_id)
        self.ledger.record(Finished())


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
    """Own a job's work folder and outputs while the block does its work, unless the job is already complete.

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
    refuse_inputs(outputs, [path for path, *_ in plan.inputs])
    work_dir = work_folder_path(config)
    with contextlib.ExitStack() as owned:
        locks = [owned.enter_context(hold_work_folder(work_dir))]
        locks += [owned.enter_context(hold_output(prefix)) for prefix in sorted(output.prefix for output in outputs)]
        ledger = Ledger(work_dir)
        settings, inputs = ([], []) if ledger.plan is None else compare_plans(ledger.plan, plan)
        is_same = not settings and not inputs
        is_publishing = ledger.is_publishing and not ledger.is_finished and is_same
        finished = find_finished(outputs, plan, replaces=config.replace or is_publishing)
        job = Job(
            config=config,
            plan=plan,
            outputs=outputs,
            ledger=ledger,
            reporter=reporter,
            executor_options={"text_bytes": 0 if finished else text_bytes, "holds_gil": holds_gil},
            owned=owned,
            locks=tuple(locks),
            manifests=finished,
            already_complete=bool(finished),
        )
        if job.already_complete:
            yield job
            conclude(absolute(config.output_prefix))
        else:
            _take_over(job, settings, inputs)
            with _working(job):
                yield job
        if not config.keep_shards and (not job.already_complete or is_same or not ledger.has_work):
            remove_work_folder(work_dir)


def hold_output(prefix: str) -> contextlib.AbstractContextManager[Lock]:
    """Hold the lock of an output.

    Raises:
        PlanError: If a driver that may be alive holds it.
        OutputError: If it cannot be written.
    """
    return hold_lock(with_suffix(absolute(prefix), f".{LOCK_SUFFIX}"), what=f"the output {prefix}")


def _take_over(job: Job, settings: Sequence[str], inputs: Sequence[str]) -> None:
    """Go on with the work of an earlier run, but for what belongs to inputs that changed.

    Args:
        job: The job.
        settings: What differs in the settings of the earlier run.
        inputs: What differs in its inputs.

    Raises:
        PlanError: If it is the work of other settings, naming what differs.
    """
    plan, ledger = job.plan, job.ledger
    if ledger.plan is None:
        return
    is_same_output = ledger.plan.settings.get("output-prefix") == plan.settings.get("output-prefix")
    if settings and ledger.has_work and not (job.config.replace and is_same_output):
        raise PlanError(
            f"{job.work_dir}: {'kept shards' if ledger.is_finished else 'unfinished work'} of another plan: "
            f"{'; '.join(settings)}; use the former options to continue, another --work-dir, or --replace to start "
            "the same output over"
        )
    if ledger.plan.plan_id != plan.plan_id:
        remove_partials(job.outputs, ledger.plan.plan_id)
    if settings:
        remove_work(job.work_dir)
        ledger.forget_all()
    if inputs:
        job.reporter.say("; ".join(inputs))


@contextlib.contextmanager
def _working(job: Job) -> Iterator[None]:
    """Give a job what it needs to work, and say what is kept if it is stopped."""
    work_dir, ledger, executor, prefix = job.work_dir, job.ledger, job.executor, absolute(job.config.output_prefix)
    ledger.begin(job.plan, again=not all(output.is_as_recorded(ledger) for output in job.outputs))
    try:
        with job.reporter.showing(*([] if holds_writes(prefix) else [ProgressFile(prefix)])):
            job.reporter.follow(executor)
            files = [joined(work_dir, MARKER_FILE), *(path for path, *_ in job.plan.inputs)]
            executor.require_seen(files, [folder_of(prefix)])
            yield
    except BaseException as stop:
        kept = f"{len(ledger.shards):,} finished shards are kept in {work_dir}; " if ledger.shards else ""
        kept += "run the same command again to continue"
        if isinstance(stop, ClusterLostError):
            raise ClusterLostError(f"{stop}; {kept} on a new cluster") from stop
        if not isinstance(stop, Exception) and not hasattr(stop, "__notes__"):
            stop.add_note(kept)
        raise
    finally:
        ledger.close()
        if not ledger.has_work:
            remove_partials(job.outputs, job.plan.plan_id)
            remove_work(work_dir)
