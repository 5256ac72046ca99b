"""The frame of every job that publishes datasets: what is there before, from parts to files, from files to datasets.

`open_job` locks the work folder and the outputs, finds what is finished, and opens the ledger. Whatever can be refused
is refused before anything changes, and files under final names are left alone until everything that replaces them is
complete.

On a disk, the tokens are merged by ranges, most of them while shards are still being made; the `.bin` of a shard is
removed once the ranges that need it are recorded. A range can be merged as soon as its shards and all shards before
them are recorded, because its place is then known. A plan's ranges have the same bytes whenever they are merged, so one
that is recorded is done. In a bucket, an output's objects are written at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from dsindex._version import __version__
from dsindex.errors import OutputError, PlanError
from dsindex.formats.manifest import (
    Manifest,
    Plan,
    RecordedEngine,
    Run,
    files_have_recorded_sizes,
    manifest_path,
    read_manifest,
)
from dsindex.messages import show_name, without_secrets
from dsindex.options.common import work_folder_path
from dsindex.runtime.dispatch import Dispatch, make_executor
from dsindex.runtime.executors import Call, ClusterLostError
from dsindex.runtime.interrupts import raise_missed_stop
from dsindex.runtime.output import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, Output, ranges_of
from dsindex.runtime.progress import ProgressFile, conclude
from dsindex.runtime.tasks import MergeRange
from dsindex.runtime.work_folder import (
    MARKER_FILE,
    Began,
    FileComplete,
    Finished,
    Ledger,
    Publishing,
    RangeMerged,
    hold_work_folder,
    remove_work,
    remove_work_folder,
)
from dsindex.runtime.worker import make_index, make_provenance, make_quarantine, merge_range, merge_whole
from dsindex.store.json_text import encode_json
from dsindex.store.local import StoredFile, combine_digests, holds_writes, sync_folder, writing
from dsindex.store.lock import hold_lock
from dsindex.store.protocol import find, replace_file, store_of
from dsindex.store.urls import absolute, folder_of, joined, with_suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dsindex.formats.manifest import Content
    from dsindex.options.common import WorkConfig
    from dsindex.runtime.executors import Executor
    from dsindex.runtime.progress import Reporter
    from dsindex.store.local import InputStatus
    from dsindex.store.lock import Lock
    from dsindex.text.engines import Engine

K = TypeVar("K")
RangeOfOutput: TypeAlias = tuple[Output, MergeRange]


@dataclass(kw_only=True)
class Job:
    """A job that owns its work folder and its outputs, and what its stages share."""

    config: WorkConfig
    plan: Plan
    outputs: Sequence[Output]
    ledger: Ledger
    reporter: Reporter
    start_executor: Callable[[], Executor]
    owned: contextlib.ExitStack
    locks: Sequence[Lock]
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
        return self.owned.enter_context(contextlib.closing(self.start_executor()))

    @property
    def work_dir(self) -> str:
        """The work folder."""
        return work_folder_path(self.config)

    def dispatch(self, calls: Iterable[tuple[K, Call]]) -> Dispatch[K]:
        """Return what runs calls on the executor, with the job's budgets, counts and progress."""
        deadline, tick = self.config.shard_deadline, self.reporter.tick
        return Dispatch(self.executor, calls, deadline_seconds=deadline, on_idle=tick)

    # From parts to files.

    def full_ranges(self, output: Output, *, is_whole: bool = False) -> list[tuple[RangeOfOutput, Call]]:
        """Return the calls for ranges that became full, but for those that are merged; begin the token file.

        Args:
            output: One of the job's outputs.
            is_whole: Whether all parts were added, so that all ranges are as full as they will be.

        Raises:
            OutputError: If the token file cannot be created.
        """
        if output.in_bucket:
            return []
        merged = self.ledger.ranges[output.name]
        tasks = [output.range_of(number) for number in output.take_ranges(is_whole=is_whole) if number not in merged]
        if (tasks or is_whole) and not (merged or output.is_begun):
            replace_file(output.token_file, b"")
            output.is_begun = True
        calls = []
        for task in tasks:
            name = f"merge[{output.name}.{output.token_suffix}:{task.number:05d}]"
            place = f"{task.output}, bytes {task.begin} to {task.begin + task.size_bytes}"
            call = Call(name=name, place=place, function=merge_range, arguments=(task,))
            calls.append(((output, task), call))
        return calls

    def record_range(self, output: Output, task: MergeRange, digest: str) -> None:
        """Record a merged range, and remove the tokens of shards that no range needs any more."""
        self.ledger.record(RangeMerged(output.name, task.number, digest))
        merged, used_up = self.ledger.ranges[output.name], []
        for number in output.files_of(task.number):
            file = output.token_files[number]
            needed = ranges_of(*output.begins[number : number + 2])
            if file.digest is not None and all(map(merged.__contains__, needed)):
                used_up.append(file.path)
        if used_up and not self.config.keep_shards:
            self.ledger.sync()
            store_of(used_up[0]).delete(used_up)

    def assemble(self) -> None:
        """Write all files of all outputs, keeping those that an earlier run completed.

        On a disk they have partial names. In a bucket, an earlier dataset of the same names is withdrawn first, and
        what completes each dataset is written last, so that no reader meets half of one.
        """
        calls: list[tuple[tuple[Output, MergeRange | str], Call]] = []
        last_calls: list[tuple[tuple[Output, str], Call]] = []
        for output in self.outputs:
            calls += self.full_ranges(output, is_whole=True)
            whole = [suffix for suffix in output.suffixes if output.in_bucket or suffix != output.token_suffix]
            missing = [suffix for suffix in whole if suffix not in self.ledger.files[output.name]]
            own = [((output, suffix), _write_call(output, suffix)) for suffix in missing]
            if output.in_bucket and missing and missing[-1] == output.suffixes[-1]:
                last_calls.insert(0, own.pop())
            calls += own
        ranges = [what for (_, what), _ in calls if isinstance(what, MergeRange)]
        sizes = [each.size_bytes for each in ranges] + [each.begins[-1] for each in self.outputs if each.in_bucket]
        self.reporter.stage("merge", total=sum(sizes), unit="bytes", tasks=len(ranges), task_name="ranges")
        if any(output.in_bucket for output in self.outputs):
            self._begin_publishing()
        for (output, _), _ in last_calls:
            withdraw(output)
        for part in (calls, last_calls):
            with contextlib.closing(self.dispatch(part).run()) as results:
                for (output, what), value in results:
                    if isinstance(what, MergeRange):
                        self.record_range(output, what, value)
                        self.reporter.advance(what.size_bytes)
                    else:
                        self.ledger.record(FileComplete(output.name, value))
                        self.reporter.advance(value.size_bytes if what == output.token_suffix else 0, tasks=0)
        for output in self.outputs:
            files = {**self.ledger.files[output.name], **self._merged_file(output)}
            output.digests = {suffix: files[suffix] for suffix in sorted(output.suffixes)}

    def _merged_file(self, output: Output) -> dict[str, StoredFile]:
        """Return the token file on a disk by its suffix, from the digests of its ranges."""
        if output.in_bucket:
            return {}
        digests = [bytes.fromhex(digest) for _, digest in sorted(self.ledger.ranges[output.name].items())]
        name, size_bytes = output.token_suffix, output.begins[-1]
        return {name: StoredFile(name=name, size_bytes=size_bytes, digest=combine_digests(digests))}

    # From files to datasets.

    def _begin_publishing(self) -> None:
        """Record that final names are given from now on, if no other driver can have taken this job over.

        Raises:
            PlanError: If a lock was lost.
        """
        for lock in self.locks:
            lock.require_held()
        self.ledger.record(Publishing())

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
            seconds=round(time.time() - self.began, 3),
            host=socket.gethostname(),
            executor=self.executor.kind,
            workers=self.executor.slots,
            shards=len(self.outputs[0].parts),
            retries=self.executor.retries,
            lost_workers=self.executor.lost_workers,
            dsindex=__version__,
            engine=msgspec.convert(engine, RecordedEngine | None, from_attributes=True),
            tokenizer_path=path if is_path else None,
        )
        self.manifests = [Manifest(content=content, run=run) for content in contents]
        self._begin_publishing()
        publish(self.outputs, self.manifests)
        remove_partials(self.outputs, self.plan.plan_id)
        self.ledger.record(Finished())


def _write_call(output: Output, suffix: str) -> Call:
    """Return the call that writes a file as a whole."""
    functions: dict[str, tuple[Any, Any]] = {
        output.token_suffix: (merge_whole, output.token_files),
        PROVENANCE_SUFFIX: (make_provenance, output.provenance),
        QUARANTINE_SUFFIX: (make_quarantine, output.quarantine),
        "idx": (make_index, output.parts),
    }
    function, parts = functions[suffix]
    name = f"{suffix.partition('.')[0]}[{output.name}]"
    arguments = (parts, output.partial(suffix))
    return Call(name=name, place=output.final(suffix), function=function, arguments=arguments)


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
        settings, inputs = compare_plans(ledger.plan or plan, plan)
        is_same = not settings and not inputs
        is_publishing = ledger.is_publishing and not ledger.is_finished and is_same
        finished = find_finished(outputs, plan, replaces=config.replace or is_publishing)
        left_bytes = 0 if finished else text_bytes
        job = Job(
            config=config,
            plan=plan,
            outputs=outputs,
            ledger=ledger,
            reporter=reporter,
            start_executor=partial(make_executor, config, text_bytes=left_bytes, holds_gil=holds_gil),
            owned=owned,
            locks=locks,
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
        if not config.keep_shards and (not job.already_complete or is_same or not job.ledger.has_work):
            remove_work_folder(work_dir)


def find_finished(outputs: Sequence[Output], plan: Plan, *, replaces: bool) -> list[Manifest]:
    """Return the manifests of existing output if the same plan made all of it; refuse output that must not be replaced.

    Args:
        outputs: Every output of the job.
        plan: The job's plan.
        replaces: Whether output of another plan, or of somebody else, may be replaced, as when an interrupted run of
            the plan has begun to publish.

    Returns:
        The manifests of finished output of the same plan; nothing if there is work to do.

    Raises:
        PlanError: If another plan made the output, naming what differs, or no manifest describes it.
        FormatError: If a manifest cannot be read.
    """
    finished: list[Manifest] = []
    for output in outputs:
        manifest, foreign = read_manifest(output.prefix), ""
        if manifest is not None:
            settings, inputs = compare_plans(manifest.run.plan, plan)
            foreign = "; ".join([*settings, *inputs])
        elif found := next(filter(find, map(output.final, output.all_suffixes)), None):
            foreign = f"{os.path.basename(found)} exists already, and no manifest says that dsindex made it"
        if foreign and not replaces:
            raise PlanError(
                f"{output.prefix}: finished output of another plan is here: {foreign}; choose another place for the "
                f"output, or replace it with --replace"
            )
        if manifest and not foreign and files_have_recorded_sizes(output.prefix, manifest):
            finished.append(manifest)
    return finished if len(finished) == len(outputs) else []


def refuse_inputs(outputs: Sequence[Output], inputs: Sequence[str]) -> None:
    """Refuse outputs that are inputs of the same job, also through links to folders or files.

    Raises:
        OutputError: If an output is an input, naming both.
    """
    names = [path for output in outputs for path in output.paths if output.in_bucket or os.path.exists(path)]
    existing = {os.path.realpath(path): path for path in names}
    for path in inputs if existing else ():
        if found := existing.get(os.path.realpath(path)):
            raise OutputError(
                f"{found}: expected an output that is none of the inputs, got the input {show_name(path)}; choose "
                f"another --output-prefix"
            )


def hold_output(prefix: str) -> contextlib.AbstractContextManager[Lock]:
    """Hold the lock of an output.

    Raises:
        PlanError: If a driver that may be alive holds it.
        OutputError: If it cannot be written.
    """
    return hold_lock(with_suffix(absolute(prefix), ".dsindex-lock"), what=f"the output {prefix}")


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
            f"{job.work_dir}: shards of another plan are here: {'; '.join(settings)}; use the former options to "
            "continue, another --work-dir, or --replace to start the same output over"
        )
    if ledger.plan.plan_id != plan.plan_id:
        remove_partials(job.outputs, ledger.plan.plan_id)
    if settings:
        remove_work(job.work_dir)
        job.ledger = Ledger(job.work_dir)
    if inputs:
        job.reporter.say("; ".join(inputs))


@contextlib.contextmanager
def _working(job: Job) -> Iterator[None]:
    """Give a job what it needs to work, and say what is kept if it is stopped."""
    work_dir, ledger, executor, prefix = job.work_dir, job.ledger, job.executor, absolute(job.config.output_prefix)
    ledger.begin()
    try:
        is_begun = ledger.plan == job.plan and not ledger.is_finished
        if not is_begun or not all(output.is_as_recorded(ledger) for output in job.outputs):
            ledger.record(Began(job.plan))
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


# What jobs leave, and publish.

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
"""The ending of a name under which a store writes a file."""


def remove_partials(outputs: Sequence[Output], plan_id: str) -> None:
    """Remove the partial files of a plan, and what killed drivers and workers left of files that they wrote.

    What cannot be removed stays, since it is not an output.
    """
    own = [output for output in outputs if not output.in_bucket]
    partials = {output.partial(suffix, plan_id) for output in own for suffix in output.all_suffixes}
    names = partials.union(*(output.paths for output in own))
    for folder in {os.path.dirname(output.prefix) for output in own}:
        found = [each.path for each in store_of(folder).list(folder, recursive=False)]
        left = (path for path in found if path in partials or _TEMPORARY.sub("", path) in names - {path})
        store_of(folder).delete(left)


def publish(outputs: Sequence[Output], manifests: Sequence[Manifest]) -> None:
    """Give the files of datasets their final names, in reverse order. Called again after a crash, it finishes.

    To a reader, an `.idx` means that its `.bin` is complete. So an earlier dataset of these names is removed first,
    beginning with its manifest and its `.idx` or `.pbin`; and a new one's manifest comes last.

    Raises:
        OutputError: If a file cannot be renamed or written.
    """
    # What completes a dataset is the last of its files; in a bucket, all have final names.
    waiting = [each for each in outputs if not each.in_bucket and os.path.exists(each.partial(each.suffixes[-1]))]
    for output in waiting:
        withdraw(output)
    for output, manifest in zip(reversed(outputs), reversed(manifests), strict=True):
        if output in waiting:
            _rename_all(output)
        replace_file(manifest_path(output.prefix), manifest.encode())


def withdraw(output: Output) -> None:
    """Remove an earlier dataset's manifest and its `.idx` or `.pbin`, and files that the new one does not have.

    Raises:
        OutputError: If the former cannot be removed.
    """
    store = store_of(output.prefix)
    left = store.delete([manifest_path(output.prefix), output.final(output.suffixes[-1])])
    if left:
        raise OutputError(f"{left[0]}: cannot be removed, and a new file is to take its place; remove it and run again")
    store.delete(map(output.final, {*output.all_suffixes} - {*output.suffixes}))


def _rename_all(output: Output) -> None:
    *others, last = output.suffixes
    folder = os.path.dirname(output.prefix)
    with writing(output.prefix):
        for suffix in others:
            with contextlib.suppress(FileNotFoundError):  # published before a crash
                os.replace(output.partial(suffix), output.final(suffix))
        sync_folder(folder)
        os.replace(output.partial(last), output.final(last))
        sync_folder(folder)


# A job's identity, which is its settings and the ordered list of its inputs. Two runs belong to the same plan if and
# only if nothing that their output depends on differs. If only inputs differ, their shards alone are made again: each
# belongs to its own input.


def make_plan(settings: Mapping[str, Any], inputs: Iterable[InputStatus] = ()) -> Plan:
    """Return the plan of settings, which are of types that JSON has, and inputs."""
    return Plan(
        settings=json.loads(encode_json(settings)),
        inputs=[(file.path, file.size_bytes, file.version) for file in inputs],
    )


def compare_plans(old: Plan, new: Plan) -> tuple[list[str], list[str]]:
    """Return the differences between the settings and those between the inputs of two plans, a phrase for each.

    Bad records may be set aside from now on: shards that were made when they made the job fail have none.
    """
    before, now = old.settings, new.settings
    settings = [
        f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) and (name, before.get(name)) != ("on-bad-record", "fail")
    ]
    if old.inputs == new.inputs:
        return settings, []
    inputs, files_before, files_now = [], Counter(old.inputs), Counter(new.inputs)
    for what, files in (("gone", files_before - files_now), ("new", files_now - files_before)):
        if files:
            more = f" and {files.total() - 1:,} more are" if files.total() > 1 else " is"
            inputs.append(f"the input {show_name(next(iter(files))[0])}{more} {what} or changed")
    return settings, inputs or ["the inputs are in another order"]


def _shown(value: object) -> str:
    return "not set" if value is None else without_secrets(encode_json(value).decode())
