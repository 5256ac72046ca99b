"""Run a job that assembles datasets: its outputs, locks, journal and publishing, and the work of earlier runs.

`open_job` locks the work folder and the outputs, finishes what a killed driver had committed, checks whether the output
is complete, and opens the journal. Every check comes before any change, and files under final names are unchanged until
everything that replaces them is complete.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from dsindex._version import __version__
from dsindex.errors import FormatError, PlanError
from dsindex.formats.manifest import (
    Manifest,
    Plan,
    RecordedEngine,
    Run,
    files_have_recorded_sizes,
    manifest_path,
    read_manifest,
)
from dsindex.formats.provenance import PROVENANCE_SUFFIX
from dsindex.formats.quarantine import QUARANTINE_SUFFIX
from dsindex.options.common import work_folder_path
from dsindex.runtime.dispatch import make_executor
from dsindex.runtime.executors import ClusterLostError
from dsindex.runtime.interrupts import raise_missed_stop
from dsindex.runtime.plan import compare_plans
from dsindex.runtime.progress import PROGRESS_SUFFIX, ProgressFile, mark_done
from dsindex.runtime.publish import (
    Artifact,
    finish_publishing,
    hold_output,
    is_publishing,
    publish,
    refuse_inputs,
    remove_leftovers,
)
from dsindex.runtime.tasks import MergeRange, Segment, SourceFile
from dsindex.runtime.work_folder import (
    MARKER_FILE,
    Began,
    Finished,
    Journal,
    hold_work_folder,
    remove_unused,
    remove_work,
    remove_work_folder,
)
from dsindex.store.local import DIGEST_BLOCK_BYTES, LOCAL
from dsindex.store.protocol import find, open_output
from dsindex.store.urls import absolute, folder_of, join_path, local_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from dsindex.formats.manifest import Content
    from dsindex.options.common import WorkConfig
    from dsindex.runtime.executors import Executor
    from dsindex.runtime.progress import Reporter
    from dsindex.store.local import StoredFile
    from dsindex.store.lock import Lock
    from dsindex.text.engines import Engine


RANGE_BYTES = DIGEST_BLOCK_BYTES
"""Size of the ranges of a token file: one digest block, so that each range has one digest."""
MEGATRON_SUFFIXES = ("bin", PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "idx")
"""In the order of publishing: if the last file exists, all are complete."""
PBIN_SUFFIXES = (PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "pbin")


def ranges_of(begin: int, end: int) -> range:
    """Return the numbers of the ranges that overlap the bytes [begin, end) of a token file."""
    return range(begin // RANGE_BYTES, -(-end // RANGE_BYTES))


@dataclass(kw_only=True, eq=False)
class Output:
    """A dataset that a job assembles from segments, which are appended in order."""

    prefix: str
    """Absolute path or address without suffix."""
    plan_id: str
    dtype: np.dtype[Any]
    """Token type of its segments."""
    is_mask: bool = False
    """Whether it has a value for each token of another output, which keeps the provenance and bad records of both."""
    head: SourceFile | None = None
    """Header of a `.pbin`, written after all tokens are known; None for a `.bin` with an `.idx`."""
    seed: int | None = None
    """Seed for a random order of the documents of a `.pbin`; None to keep their order."""
    list_path: str | None = None
    """File that lists this and other datasets; published with this one, after the other datasets are complete."""
    segments: list[Segment] = field(init=False, default_factory=list)
    sources: list[SourceFile] = field(init=False, default_factory=list)
    """The files that make up its token file: header, tokens of each segment, trailing bytes."""
    begins: list[int] = field(init=False, default_factory=lambda: [0])
    """Offset of each source in the token file, then the size of the token file."""

    def __post_init__(self) -> None:
        if self.head is not None:
            self.append_source(self.head)

    @cached_property
    def artifact(self) -> Artifact:
        """All files that it may have, and the manifest."""
        *leading_paths, last_path = map(self.final, self.all_suffixes)
        list_paths = () if self.list_path is None else (self.list_path,)
        finals = (*leading_paths, *list_paths, last_path, manifest_path(self.prefix))
        return Artifact(finals=finals, plan_id=self.plan_id)

    @property
    def has_ranges(self) -> bool:
        """Whether its token file is merged in ranges; otherwise one task writes the whole file."""
        return not self.artifact.is_in_place and self.seed is None

    @property
    def all_suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have, without the manifest, in the order of publishing."""
        return MEGATRON_SUFFIXES if self.head is None else PBIN_SUFFIXES

    @property
    def suffixes(self) -> list[str]:
        """Suffixes of the files that it does have, once all segments are known."""
        has_rows = {
            PROVENANCE_SUFFIX: any(segment.provenance for segment in self.segments),
            QUARANTINE_SUFFIX: any(segment.quarantine for segment in self.segments),
        }
        return [suffix for suffix in self.all_suffixes if has_rows.get(suffix, True)]

    @property
    def token_suffix(self) -> str:
        """Suffix of the token file."""
        return "bin" if self.head is None else "pbin"

    @property
    def name(self) -> str:
        """Its name in messages and in the journal, without folders, which may be moved."""
        return os.path.basename(self.prefix)

    def final(self, suffix: str) -> str:
        """Return a file's published path or address."""
        return f"{self.prefix}.{suffix}"

    def partial(self, suffix: str) -> str:
        """Return where a file is written: under its partial name on a disk, under its final name in a bucket."""
        return self.artifact.partial(self.final(suffix))

    # The token file, by ranges.

    @property
    def token_path(self) -> str:
        """Path at which the token file is assembled."""
        return self.partial(self.token_suffix)

    @property
    def size_bytes(self) -> int:
        """Size of the token file so far."""
        return self.begins[-1]

    @property
    def ranges(self) -> range:
        """Numbers of all ranges; the last one may not be full."""
        return ranges_of(0, self.size_bytes)

    def append(self, segment: Segment) -> range:
        """Append a segment; return the numbers of the ranges that it filled, except the one with the header."""
        before = self.size_bytes
        self.segments.append(segment)
        self.append_source(segment.bin)
        first = max(before // RANGE_BYTES, int(self.head is not None))
        return range(first, max(first, self.size_bytes // RANGE_BYTES))

    def append_source(self, source: SourceFile) -> None:
        """Append a file to the token file: a segment's tokens, the header, or the trailing bytes."""
        self.sources.append(source)
        self.begins.append(self.size_bytes + source.size_bytes)

    def replace(self, place: int, segment: Segment) -> None:
        """Replace a segment by another one of the same size."""
        self.segments[place] = segment
        self.sources[place + int(self.head is not None)] = segment.bin

    def sources_of(self, number: int) -> range:
        """Return the numbers of the sources that a range needs."""
        first = bisect_right(self.begins, number * RANGE_BYTES) - 1
        return range(first, min(bisect_left(self.begins, (number + 1) * RANGE_BYTES), len(self.sources)))

    def range_task(self, number: int) -> MergeRange:
        """Return the task that merges a range."""
        begin, end = number * RANGE_BYTES, (number + 1) * RANGE_BYTES
        sources = [(self.sources[source], self.begins[source]) for source in self.sources_of(number)]
        pieces = ((file, max(0, begin - start), min(end - start, file.size_bytes)) for file, start in sources)
        return MergeRange(output=self.token_path, begin=begin, pieces=tuple(pieces))


@dataclass(kw_only=True)
class Job:
    """A running job: its work folder, its outputs, and the state that its stages share."""

    config: WorkConfig
    plan: Plan
    prefix: str
    """The absolute output prefix."""
    outputs: Sequence[Output]
    work_dir: str
    journal: Journal
    reporter: Reporter
    text_bytes: int
    holds_gil: bool
    stack: contextlib.ExitStack
    locks: Sequence[Lock]
    """The locks of the work folder and of each output."""
    manifests: list[Manifest]
    """The manifests, in the order of the outputs, once this run or an earlier one has published everything."""
    already_complete: bool
    """Whether an earlier run of the plan published everything."""
    made_bytes: int = 0
    """Size of the inputs whose shards this run made."""
    began: float = field(default_factory=time.time)

    @cached_property
    def executor(self) -> Executor:
        """The executor, started on first use and closed with the job."""
        text_bytes = 0 if self.already_complete else self.text_bytes
        executor = make_executor(self.config, text_bytes=text_bytes, holds_gil=self.holds_gil)
        executor.deadline_seconds, executor.on_idle = self.config.shard_deadline, self.reporter.tick
        return self.stack.enter_context(contextlib.closing(executor))

    @property
    def artifacts(self) -> list[Artifact]:
        """The files of each output."""
        return [output.artifact for output in self.outputs]

    def require_locks(self) -> None:
        """Refuse to publish if another driver may have taken over this job.

        Raises:
            PlanError: If a lock was lost.
        """
        for lock in self.locks:
            lock.require_held()

    def publish(
        self,
        manifest_contents: Sequence[Content],
        texts: Mapping[str, str],
        *,
        num_shards: int,
        engine: Engine | None = None,
        tokenizer_path: str | None = None,
    ) -> None:
        """Publish the assembled outputs.

        Args:
            manifest_contents: The content of each output's manifest, in order.
            texts: Contents of the dataset lists, by path.
            num_shards: Number of shards or datasets that each output was assembled from.
            engine: The engine, if the job encodes.
            tokenizer_path: Path or name of the tokenizer; recorded only if it is an existing, printable path.

        Raises:
            PlanError: If this driver lost a lock.
            OutputError: If a file cannot be written, or differs from what was assembled.
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
            shards=num_shards,
            retries=self.executor.retries,
            lost_workers=self.executor.lost_workers,
            dsindex=__version__,
            engine=msgspec.convert(engine, RecordedEngine | None, from_attributes=True),
            tokenizer_path=path if is_path else None,
        )
        manifests = [Manifest(content=content, run=run) for content in manifest_contents]
        self.journal.log.sync()
        self.require_locks()
        written: dict[str, StoredFile | None] = {}
        for output, manifest in zip(reversed(self.outputs), reversed(manifests), strict=True):
            written |= {output.final(suffix): file for suffix, file in manifest.content.digests.items()}
            contents = {manifest_path(output.prefix): manifest.encode()}
            if output.list_path is not None:
                contents[output.list_path] = os.fsencode(texts[output.list_path])
            for final, content in contents.items():
                with open_output(output.artifact.partial(final)) as file:
                    file.write(content)
                written[final] = file.stored_file(final)
        publish(self.artifacts, written)
        self.journal.record(Finished())
        self.manifests = manifests


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
    """Lock a job's work folder and outputs while the block runs; prepare the work unless the job is already complete.

    Args:
        config: Options of the executor and the work folder.
        plan: The job's plan.
        outputs: All outputs.
        reporter: Shows progress.
        text_bytes: Approximate size of the text to tokenize; 0 if the job does not tokenize.
        holds_gil: Whether tasks run Python code, so that threads would not help.

    Raises:
        DsindexError: If the job cannot be done as requested; files under final names are then unchanged.
        BaseException: Any exception of the block, with a note about the finished work that is kept.
    """
    raise_missed_stop()
    work_dir, prefix = work_folder_path(config), absolute(config.output_prefix)
    artifacts = [output.artifact for output in outputs]
    refuse_inputs(artifacts, [path for path, *_ in plan.inputs])
    with contextlib.ExitStack() as stack:
        locks = [stack.enter_context(hold_work_folder(work_dir))]
        locks += [stack.enter_context(hold_output(prefix)) for prefix in sorted(output.prefix for output in outputs)]
        finish_publishing(artifacts)
        journal = Journal(work_dir)
        manifests = find_finished(outputs, plan, replaces=config.replace or is_publishing(artifacts))
        job = Job(
            config=config,
            plan=plan,
            prefix=prefix,
            outputs=outputs,
            work_dir=work_dir,
            journal=journal,
            reporter=reporter,
            text_bytes=text_bytes,
            holds_gil=holds_gil,
            stack=stack,
            locks=locks,
            manifests=manifests,
            already_complete=bool(manifests),
        )
        if manifests:
            yield job
            mark_done(prefix)
        else:
            _take_over(job)
            with _prepare_work(job):
                yield job
        journal = job.journal
        began = journal.began
        is_other = began is not None and began.output_prefix != prefix and journal.has_work
        former_prefix = "" if began is None else began.output_prefix + outputs[0].prefix[len(prefix) :]
        is_moved = began is not None and began.plan == plan and find(manifest_path(former_prefix)) is None
        if config.keep_shards:
            remove_unused(work_dir, (file.name for result in journal.shards.values() for file in result.stored_files))
        elif config.work_dir is None or is_moved or not is_other:
            remove_work_folder(work_dir)
        remove_leftovers(artifacts)


def find_finished(outputs: Sequence[Output], plan: Plan, *, replaces: bool) -> list[Manifest]:
    """Return the manifests if the same plan made all outputs; refuse existing output that must not be replaced.

    Args:
        outputs: Every output of the job.
        plan: The job's plan.
        replaces: Whether output of another plan or another program may be replaced.

    Returns:
        The manifest of each output; empty if there is work to do.

    Raises:
        PlanError: If another plan made the output, naming the differences, or if it has no manifest.
        FormatError: If a manifest cannot be read.
    """
    manifests: list[Manifest] = []
    for output in outputs:
        difference = ""
        try:
            manifest = read_manifest(output.prefix)
        except FormatError:
            if not replaces:
                raise
            manifest = None
        if manifest is not None:
            settings, inputs = compare_plans(manifest.run.plan, plan)
            difference = "; ".join([*settings, *inputs])
        elif existing_path := next(filter(find, output.artifact.finals), None):
            difference = f"{os.path.basename(existing_path)} exists already, and no manifest says that dsindex made it"
        if difference and not replaces:
            hint = "choose another place for the output, or replace it with --replace"
            raise PlanError(f"{output.prefix}: output of other inputs or options is here: {difference}", hint=hint)
        if manifest and not difference and files_have_recorded_sizes(output.prefix, manifest):
            manifests.append(manifest)
    return manifests if len(manifests) == len(outputs) else []


def _take_over(job: Job) -> None:
    """Continue the work of an earlier run, except for inputs that changed.

    Raises:
        PlanError: If the work belongs to other settings or to another output, naming the differences.
    """
    journal, began, prefix = job.journal, job.journal.began, job.prefix
    if began is None:
        return
    settings, inputs = compare_plans(began.plan, job.plan)
    is_shared = job.config.work_dir is not None  # a default folder has moved with its output
    if is_shared and journal.has_work and began.output_prefix != prefix and (settings or inputs):
        raise PlanError(
            f"{job.work_dir}: this work folder belongs to another build, of {began.output_prefix}",
            hint="choose another --work-dir, or remove this folder to give that build up",
        )
    if settings and journal.has_work and not job.config.replace:
        raise PlanError(
            f"{job.work_dir}: this work folder belongs to a build with different options: {'; '.join(settings)}",
            hint="use the same options as before to continue, or --replace to discard the work and start over",
        )
    if began.output_prefix != prefix:  # the job was moved: partial files may be left under the old prefix
        for artifact in job.artifacts:
            finals = (began.output_prefix + final[len(prefix) :] for final in artifact.finals)
            remove_leftovers([replace(artifact, finals=tuple(finals))])
    if settings:
        remove_work(job.work_dir)
        job.journal = Journal(job.work_dir)
    if inputs:
        job.reporter.say("; ".join(inputs))


@contextlib.contextmanager
def _prepare_work(job: Job) -> Iterator[None]:
    """Prepare the work folder and the executor for the block, and report what is kept if it is stopped."""
    journal, prefix, artifacts, plan_id = job.journal, job.prefix, job.artifacts, job.plan.plan_id
    remove_leftovers(artifacts, keeps=plan_id, with_commits=False)

    def tidy() -> None:
        LOCAL.delete(local_paths([f"{prefix}.{PROGRESS_SUFFIX}.tmp"]))
        is_done = bool(job.manifests)
        remove_leftovers(artifacts, keeps=None if is_done or not journal.has_work else plan_id, with_commits=is_done)
        if not journal.has_work:
            remove_work(job.work_dir)

    job.stack.callback(tidy)  # registered before the executor starts, so that it runs after the executor has ended
    executor = job.executor
    journal.log.begin()
    try:
        began = Began(plan=job.plan, output_prefix=prefix)
        if journal.began != began or journal.is_finished:
            journal.record(began)
        with job.reporter.show_on(*map(ProgressFile, local_paths([prefix]))), _noting_kept_shards(job):
            job.reporter.follow(executor)
            files = [join_path(job.work_dir, MARKER_FILE), *(path for path, *_ in job.plan.inputs if path != "-")]
            executor.require_seen(files, [folder_of(prefix)])
            yield
    finally:
        journal.log.close()


@contextlib.contextmanager
def _noting_kept_shards(job: Job) -> Iterator[None]:
    """Add to what stops the block how to continue, for the command line and the progress file."""
    try:
        yield
    except BaseException as stop:
        num_shards = len(job.journal.shards)
        note = f"{num_shards:,} finished shards are kept in {job.work_dir}; " if num_shards else ""
        note += "run the same command again to continue"
        if isinstance(stop, ClusterLostError):
            raise ClusterLostError(f"{stop}; {note} on a new cluster") from stop
        if not isinstance(stop, Exception) and not hasattr(stop, "__notes__"):
            stop.add_note(note)
        raise
