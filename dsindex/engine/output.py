"""A dataset's files: assembled from shards under partial names, and published once all are complete.

On a disk, files are assembled beside the output (a rename cannot cross file systems) as `<final>.<plan id>.partial`: a
leftover process of another plan cannot write there, and one of the same plan would write the same bytes. The tokens
are merged by ranges, most of them while shards are still being made, and the `.bin` of a shard is removed once the
ranges that need it are recorded. In a bucket, an object appears complete under its final name; the one that completes a
dataset is written last.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

import xxhash

from dsindex.datasets.provenance import ShardProvenance, write_provenance
from dsindex.engine.dispatch import Dispatch
from dsindex.engine.executors import Call
from dsindex.engine.manifest import files_have_recorded_sizes, manifest_path, read_manifest
from dsindex.engine.merge import (
    RangePlanner,
    merge_range,
    merge_whole,
    merged_header,
    plan_merge,
    write_merged_index,
)
from dsindex.engine.plan import describe_inputs, describe_settings
from dsindex.engine.tasks import MergeRange, Part, Piece
from dsindex.engine.worker import ShardQuarantine, require_written, write_quarantine
from dsindex.errors import OutputError, PlanError
from dsindex.formats.mmididx import IndexHeader
from dsindex.json_text import name_bytes, show_name
from dsindex.store.storage import (
    StoredFile,
    combine_digests,
    holds_writes,
    make_folder,
    open_unbuffered,
    output_error,
    sync_folder,
)
from dsindex.store.store import find, open_output, replace_file, store_of
from dsindex.store.urls import joined, local_paths, with_suffix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from dsindex.engine.ledger import Ledger
    from dsindex.engine.manifest import Manifest
    from dsindex.engine.plan import Plan
    from dsindex.engine.tasks import KeyResult, ShardResult, ShardTask
    from dsindex.engine.work import Work

PROVENANCE_SUFFIX = "provenance.parquet"
QUARANTINE_SUFFIX = "quarantine.jsonl.zst"
MEGATRON_SUFFIXES = ("bin", PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "idx")
"""In the order of publishing: if the last file exists, the others are complete."""
PBIN_SUFFIXES = (PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "pbin")


def partial_path(final: str, plan_id: str) -> str:
    """Return the path of a file until it is published."""
    return f"{final}.{plan_id}.partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A dataset that a job is going to make, as far as it is known before its parts exist."""

    prefix: str
    """Absolute path or address without suffix."""
    plan_id: str
    """Id of the job's plan."""
    bound_bytes: int = 0
    """Approximate upper bound on the token file's size by the plan alone; the ranges are derived from it."""
    header_bytes: int = 0
    """Size of a `.pbin`'s header; 0 for a `.bin` and an `.idx`."""
    swapped_bytes: int = 1
    """Size of a token if its byte order is reversed; 1 if tokens are copied as they are."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of all files that it may have, except the manifest's, in the order of publishing."""
        return PBIN_SUFFIXES if self.header_bytes else MEGATRON_SUFFIXES

    @property
    def token_suffix(self) -> str:
        """The suffix of the file that is assembled from tokens."""
        return "pbin" if self.header_bytes else "bin"

    @property
    def in_bucket(self) -> bool:
        """Whether its files are objects."""
        return holds_writes(self.prefix)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return os.path.basename(self.prefix)

    @property
    def key(self) -> str:
        """Its name in the ledger; folders may be moved."""
        return os.path.basename(self.token_file) if not self.in_bucket else f"{self.name}.{self.plan_id}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Final paths of all its files, the manifest's last."""
        return (*map(self.final, self.suffixes), manifest_path(self.prefix))

    def final(self, suffix: str) -> str:
        """Return a file's published path, or an object's address."""
        return with_suffix(self.prefix, f".{suffix}")

    def partial(self, suffix: str) -> str:
        """Return where a file is written: under its partial name on a disk, its final one in a bucket."""
        final = self.final(suffix)
        return final if self.in_bucket else partial_path(final, self.plan_id)

    @property
    def token_file(self) -> str:
        """Where the tokens are assembled."""
        return self.partial(self.token_suffix)

    def piece(self, part: Part) -> Piece:
        """Return the piece that a part adds to the token file."""
        return replace(part.piece, swapped_bytes=self.swapped_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinEnds:
    """The header and the index of a `.pbin`, before and after its tokens."""

    head: Piece
    index: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A dataset that is ready to be assembled: all its parts exist."""

    output: Output
    parts: tuple[Part, ...]
    """The parts, in output order."""
    provenance: tuple[ShardProvenance, ...] | None
    quarantine: tuple[ShardQuarantine, ...] = ()
    """Shards' bad records; if empty, no quarantine file is published."""
    pbin: PbinEnds | None = None
    """Header and index of a `.pbin`; None for a `.bin` and an `.idx`."""

    @property
    def header(self) -> IndexHeader:
        """The header of the merged dataset's `.idx`, with its counts."""
        return merged_header(self.parts)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of the files that the dataset has, in the order of publishing."""
        absent = {PROVENANCE_SUFFIX: self.provenance is None, QUARANTINE_SUFFIX: not self.quarantine}
        return tuple(suffix for suffix in self.output.suffixes if not absent.get(suffix))

    @property
    def pieces(self) -> list[Piece]:
        """The pieces of the token file, in order."""
        tokens = [self.output.piece(part) for part in self.parts]
        return tokens if self.pbin is None else [self.pbin.head, *tokens, *self.pbin.index]

    @property
    def bin_bytes(self) -> int:
        """Size of the merged token file."""
        return sum(piece.size_bytes for piece in self.pieces)


def identify_parts(parts: Sequence[Part]) -> str:
    """Return a short id for parts in their order."""
    return xxhash.xxh3_64_hexdigest(name_bytes("\n".join(part.identity for part in parts)))


def shard_part(shard: KeyResult, work_dir: str, dtype: np.dtype[Any]) -> Part:
    """Return one key's part of a shard, for merging."""
    return Part(
        bin_path=joined(work_dir, shard.bin.name),
        idx_path=joined(work_dir, shard.idx.name),
        identity=shard.bin.digest,  # another attempt writes the same bytes
        bin_bytes=shard.bin.size_bytes,
        bin=shard.bin,
        idx=shard.idx,
        header=IndexHeader(
            dtype=dtype, num_sequences=shard.num_sequences, num_boundaries=shard.num_documents + 1, has_modes=False
        ),
    )


def shard_provenance(
    results: Sequence[tuple[ShardTask, ShardResult]], work_dir: str, parts: Sequence[KeyResult | None]
) -> tuple[ShardProvenance, ...]:
    """Return the provenance of a part of each shard, None for one without, with the shard's first line in its input."""
    provenance = []
    for (task, result), part, (first_line, first_offset) in zip(results, parts, first_places(results), strict=True):
        file = result.provenance if part is None or part.provenance is None else part.provenance
        if file is None:
            continue
        provenance.append(
            ShardProvenance(
                path=joined(work_dir, file.name),
                input=None if task.files else task.input,
                first_input=task.input,
                first_line=first_line,
                first_offset=first_offset,
                digest=file.digest,
            )
        )
    return tuple(provenance)


def shard_quarantine(
    results: Sequence[tuple[ShardTask, ShardResult]], work_dir: str, inputs: Sequence[str] | Mapping[int, str]
) -> tuple[ShardQuarantine, ...]:
    """Return each shard's bad records, with the number of its first line; `inputs` are the paths as given."""
    return tuple(
        ShardQuarantine(
            path=joined(work_dir, result.quarantine.name),
            files=[inputs[number] for number in task.inputs],
            first_line=first_line,
            first_offset=first_offset,
            digest=result.quarantine.digest,
        )
        for (task, result), (first_line, first_offset) in zip(results, first_places(results), strict=True)
        if result.quarantine is not None
    )


def first_places(results: Sequence[tuple[ShardTask, ShardResult]]) -> list[tuple[int, int]]:
    """Return for each shard the 1-based number of its first line in its input, and what its offsets count from."""
    places: list[tuple[int, int]] = []
    for _, group in groupby(results, key=lambda pair: pair[0].input):
        line, offset = 1, 0
        for task, result in group:
            places.append((line, 0 if task.form.has_absolute_offsets else offset))
            line, offset = line + result.num_lines, offset + result.text_bytes
    return places


# What is there already.


def find_finished(
    outputs: Sequence[Output], plan: Plan, *, replaces: bool, is_publishing: bool
) -> list[Manifest] | None:
    """Return the manifests of existing output if the same plan made all of it; refuse output that must not be replaced.

    Args:
        outputs: Every output of the job.
        plan: The job's plan.
        replaces: Whether output of another plan, or of somebody else, may be replaced.
        is_publishing: Whether an interrupted run of the plan has begun to publish.

    Returns:
        The manifests of finished output of the same plan; None if there is work to do.

    Raises:
        PlanError: If another plan made the output, naming what differs.
        FormatError: If a manifest cannot be read.
        OutputError: If no manifest describes the files under final names.
    """
    finished: list[Manifest] = []
    for output in outputs:
        manifest = read_manifest(output.prefix)
        if manifest is None:
            if not (replaces or is_publishing):
                _refuse_undescribed(output)
            continue
        stored = manifest.run.plan
        changes = describe_settings(stored, plan) + describe_inputs(stored, plan)
        if changes and not replaces:
            raise PlanError(
                f"{output.prefix}: finished output of another plan is here: {'; '.join(changes)}; choose another place "
                f"for the output, or replace it with --replace"
            )
        if not changes and files_have_recorded_sizes(output.prefix, manifest):
            finished.append(manifest)
        elif not (replaces or is_publishing):
            _refuse_undescribed(output, manifest)
    return finished if outputs and len(finished) == len(outputs) else None


def _refuse_undescribed(output: Output, manifest: Manifest | None = None) -> None:
    """Refuse files under final names that no manifest describes; a described file that is lost is made again."""
    for suffix in output.suffixes:
        found = find(output.final(suffix))
        file = None if manifest is None else manifest.content.digests.get(suffix)
        if found is not None and (file is None or file.size_bytes != found.size_bytes):
            raise OutputError(
                f"{output.final(suffix)}: exists already, and no manifest says that dsindex made it; choose another "
                f"place for the output, or replace it with --replace"
            )


def refuse_inputs(outputs: Sequence[Output], inputs: Sequence[str]) -> None:
    """Refuse outputs that are inputs of the same job, under any name or link.

    Raises:
        OutputError: If an output is an input, naming both.
    """
    names = [path for output in outputs for path in output.paths]
    local: dict[tuple[int, int], str] = {}
    for path in local_paths(names):
        with contextlib.suppress(OSError):
            status = os.stat(path)
            local[status.st_dev, status.st_ino] = path
    remote = set(names) - set(local_paths(names))
    for path in dict.fromkeys(inputs) if remote or local else ():
        found = path if path in remote else None
        with contextlib.suppress(OSError):  # reported when it is read
            status = os.stat(path)
            found = found or local.get((status.st_dev, status.st_ino))
        if found is not None:
            raise OutputError(
                f"{found}: expected an output that is none of the inputs, got the input {show_name(path)}; choose "
                f"another --output-prefix"
            )


def remove_partials(outputs: Sequence[Output], plan_id: str) -> None:
    """Remove the partial files of a plan; one that cannot be removed stays, since it is not an output."""
    for output in outputs:
        if not output.in_bucket:
            finals = [*map(output.final, output.suffixes)]
            store_of(output.prefix).delete(partial_path(final, plan_id) for final in finals)


def remove_temporary(outputs: Sequence[Output]) -> None:
    """Remove what a killed driver left of files that it was writing beside the outputs, which nobody else may write."""
    names = {name for output in outputs for name in (*output.paths, *map(output.partial, output.suffixes))}
    folders = {os.path.dirname(output.prefix) for output in outputs if not output.in_bucket}
    for folder in folders:
        found = store_of(folder).list(folder, recursive=False)
        store_of(folder).delete(each.path for each in found if _TEMPORARY.sub("", each.path) in names - {each.path})


_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
"""The ending of a name under which a store writes a file."""


# Merge ranges of the output while shards are still being made.


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """A dataset that is made of shards alone."""

    output: Output
    key: str
    """The key of its part in a shard's result."""
    dtype: np.dtype[Any]
    """Its token type."""
    work_dir: str
    """The work folder."""

    def part_of(self, result: ShardResult) -> Part:
        """Return a shard's part of the dataset."""
        return shard_part(result.find_part(self.key), self.work_dir, self.dtype)


class _Consumed:
    """Removes the tokens of shards once the ranges that need them are merged and recorded.

    A file that ends in a range with something else, such as the header of a `.pbin`, stays until the job is done.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._needed: Counter[str] = Counter()
        self._whole: set[str] = set()

    def plan(self, task: MergeRange) -> None:
        """Take a range into account before it is merged."""
        is_lasting = any(piece.whole is None for piece in task.pieces)
        for piece in task.pieces:
            self._needed[piece.path] += 2 if is_lasting else 1
            if piece.whole is not None and piece.offset + piece.size_bytes == piece.whole.size_bytes:
                self._whole.add(piece.path)

    def record(self, task: MergeRange, blocks: Sequence[str]) -> None:
        """Record a merged range."""
        if self._work.ledger.range(task) is None:
            self._work.ledger.record_range(task, blocks)
        for piece in task.pieces:
            self._needed[piece.path] -= 1
        used_up = [path for path in {piece.path for piece in task.pieces} & self._whole if not self._needed[path]]
        if used_up and not self._work.keep_shards:
            self._work.ledger.sync()
            store_of(used_up[0]).delete(used_up)


class EarlyRanges:
    """The ranges of a job's datasets on a disk that can be merged before the job's last shard is made.

    A range can be merged as soon as its shards and all shards before them are recorded, because its offset is then
    known. `assemble` plans the same ranges again and skips those in the ledger. A recorded range is valid only for the
    bytes that it was merged from.

    Args:
        sources: The datasets that are made of shards alone.
        work: The job's ledger.
        num_shards: Number of the job's shards.
    """

    def __init__(self, sources: Sequence[TokenSource], work: Work, *, num_shards: int) -> None:
        self._sources = [source for source in sources if not source.output.in_bucket]
        self._unbegun = {source.output.token_file: source.output for source in self._sources}
        self._planners = [_plan_tokens(source.output) for source in self._sources]
        self._work = work
        self._consumed = _Consumed(work)
        self._num_shards = num_shards
        self._num_in_order = 0
        """Number of leading shards that are recorded."""
        self._waiting: dict[int, ShardResult] = {}
        """Recorded shards that wait for one before them, by number in the plan."""

    def take_shard(self, number: int, result: ShardResult) -> list[MergeRange]:
        """Add a shard by its number in the plan; return the ranges that can now be merged and are not yet.

        For the job's last shard none is returned: `assemble` merges the rest.
        """
        self._waiting[number] = result
        full: list[MergeRange] = []
        while (following := self._waiting.pop(self._num_in_order, None)) is not None:
            self._num_in_order += 1
            for source, planner in zip(self._sources, self._planners, strict=True):
                full += planner.add(source.output.piece(source.part_of(following)))
        if self._num_in_order == self._num_shards:
            return []
        ready = []
        for task in full:
            self._consumed.plan(task)
            blocks = self._work.ledger.range(task)
            if blocks is not None:
                self._consumed.record(task, blocks)
            elif all(piece.path for piece in task.pieces):  # a header is known only at the end
                self._begin(task.output)
                ready.append(task)
        return ready

    def _begin(self, path: str) -> None:
        output = self._unbegun.pop(path, None)
        if output is not None:
            begin_token_file(output, self._work.ledger)

    def take_range(self, task: MergeRange, blocks: Sequence[str]) -> None:
        """Record a merged range."""
        self._consumed.record(task, blocks)


def _plan_tokens(output: Output) -> RangePlanner:
    planner = RangePlanner(output.token_file, bound_bytes=output.bound_bytes)
    planner.add(Piece(path="", identity="", offset=0, size_bytes=output.header_bytes))
    return planner


def merge_call(task: MergeRange) -> Call:
    """Return the call that merges a range and returns the digests of its blocks."""
    return Call(
        name=f"merge[{os.path.basename(task.output).rsplit('.', 2)[0]}:{task.number:05d}]",
        place=f"{task.output}, bytes {task.begin} to {task.end}",
        function=merge_range,
        arguments=(task,),
    )


# What an earlier run has done.


def find_merged(
    sources: Sequence[TokenSource], known: Mapping[int, ShardResult], num_shards: int, work: Work
) -> set[str]:
    """Return the names of the files of shards' tokens that are merged, so that nobody needs them.

    Token files that lack merged bytes are begun again.

    Args:
        sources: The datasets that are made of shards alone.
        known: The receipts of shards in the ledger, by number.
        num_shards: Number of the job's shards.
        work: The job's ledger.
    """
    leading = list(takewhile(lambda result: result is not None, map(known.get, range(num_shards))))
    merged: set[str] = set()
    for source in sources:
        output, parts = source.output, [source.part_of(result) for result in leading if result is not None]
        is_all = len(parts) == num_shards
        files = {part.bin_path: part.bin.name for part in parts if part.bin is not None}
        if is_all and _find_file(output, output.token_suffix, identify_parts(parts), work.ledger) is not None:
            merged.update(files.values())
            continue
        if output.in_bucket:
            continue
        begin_token_file(output, work.ledger)
        planner = _plan_tokens(output)
        ranges = [task for part in parts for task in planner.add(output.piece(part))]
        rest = planner.rest()
        ranges += rest if is_all else []
        needed = {piece.path for task in ranges if work.ledger.range(task) is None for piece in task.pieces}
        needed |= set() if is_all else {piece.path for task in rest for piece in task.pieces}
        merged.update(name for path, name in files.items() if path not in needed)
    return merged


def begin_token_file(output: Output, ledger: Ledger) -> None:
    """Ensure that the token file exists with all its recorded ranges, or start an empty one.

    Raises:
        OutputError: If it cannot be created.
    """
    path = output.token_file
    try:
        with open_unbuffered(path) as file:  # on NFS, only opening a file makes sure that the server is asked
            if os.fstat(file.fileno()).st_size >= ledger.merged_bytes(path):
                return
    except OSError:
        pass
    ledger.record_restart(output.key)
    make_folder(os.path.dirname(path))
    store_of(path).delete([path])
    resize(path, 0)


def resize(path: str, size_bytes: int) -> None:
    """Resize a file, creating it if necessary; added bytes are sparse and take no disk space.

    Raises:
        OutputError: If it cannot be created or resized.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            os.ftruncate(descriptor, size_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise output_error(path, error) from error


def _find_file(output: Output, suffix: str, made_of: str, ledger: Ledger) -> StoredFile | None:
    """Return a file that an earlier run completed and recorded, if it is there: published already, or not yet."""
    file = ledger.file(output.key, suffix, made_of)
    if file is None:
        return None
    for path in dict.fromkeys((output.partial(suffix), output.final(suffix))):
        found = find(path)
        if found is not None:
            return file if found.size_bytes == file.size_bytes else None
    return None


# Assemble all files.


def assemble(datasets: Sequence[Dataset], work: Work) -> list[dict[str, StoredFile]]:
    """Write all files of all datasets, keeping those that an earlier run completed.

    On a disk they have partial names. In a bucket, an earlier dataset of the same names is withdrawn first, and what
    completes each dataset is written last, so that no reader meets half of one.

    Returns:
        For each dataset, its files by suffix.
    """
    reporter = work.reporter
    assemblies = [_Assembly(dataset, work) for dataset in datasets]
    num_ranges = sum(len(assembly.ranges) for assembly in assemblies)
    total = sum(dataset.bin_bytes for dataset in datasets)
    reporter.stage("merge", total=total, unit="bytes", tasks=num_ranges, task_name="ranges")
    reporter.watch(work.statistics)
    for assembly in assemblies:
        reporter.advance(assembly.bytes_done, tasks=assembly.num_ranges_done, fresh=False)
    if any(dataset.output.in_bucket for dataset in datasets):
        work.require_locks()
        work.ledger.record_publishing()
    for assembly in assemblies:
        assembly.withdraw()

    for is_last in (False, True):
        calls = (
            ((assembly, what), call)
            for assembly in (reversed(assemblies) if is_last else assemblies)
            for what, call in assembly.calls(is_last=is_last)
        )
        dispatch = Dispatch(work.executor, calls, policy=work.policy, statistics=work.statistics, on_idle=reporter.tick)
        with contextlib.closing(dispatch.run()) as results:
            for (assembly, what), value in results:
                reporter.advance(assembly.take(what, value), tasks=0 if isinstance(what, str) else 1)
    return [assembly.files for assembly in assemblies]


class _Assembly:
    """One dataset that is being assembled."""

    def __init__(self, dataset: Dataset, work: Work) -> None:
        self._dataset, self._output, self._ledger = dataset, dataset.output, work.ledger
        self._made_of = identify_parts(dataset.parts)
        self._consumed = _Consumed(work)
        self.ranges: list[MergeRange] = []
        self._blocks: dict[int, Sequence[str]] = {}
        self.files: dict[str, StoredFile] = {}
        """What is complete, by suffix."""
        for suffix in dataset.suffixes:
            found = _find_file(self._output, suffix, self._made_of, self._ledger)
            if found is not None:
                self.files[suffix] = found
        if self._output.token_suffix in self.files:
            self.bytes_done, self.num_ranges_done = dataset.bin_bytes, 0
            return
        if not self._output.in_bucket:
            self._plan_ranges()
        self.bytes_done = sum(task.end - task.begin for task in self.ranges if task.number in self._blocks)
        self.num_ranges_done = len(self._blocks)

    def _plan_ranges(self) -> None:
        path = self._output.token_file
        begin_token_file(self._output, self._ledger)
        resize(path, self._dataset.bin_bytes)  # early merging may have left it shorter
        self.ranges = plan_merge(self._dataset.pieces, path, bound_bytes=self._output.bound_bytes)
        for task in self.ranges:
            self._consumed.plan(task)
        for task in self.ranges:
            blocks = self._ledger.range(task)
            if blocks is not None:
                self._blocks[task.number] = blocks
                self._consumed.record(task, blocks)
        self._complete_tokens()

    def _complete_tokens(self) -> None:
        if len(self._blocks) < len(self.ranges):
            return
        digests = [bytes.fromhex(digest) for task in self.ranges for digest in self._blocks[task.number]]
        suffix, size_bytes = self._output.token_suffix, self._dataset.bin_bytes
        self._complete(StoredFile(name=suffix, size_bytes=size_bytes, digest=combine_digests(digests)))

    def _complete(self, file: StoredFile) -> None:
        self._ledger.record_file(self._output.key, file.name, self._made_of, file)
        self.files[file.name] = file

    def withdraw(self) -> None:
        """Remove an earlier dataset from a bucket, unless this one is there already."""
        if self._output.in_bucket and self._dataset.suffixes[-1] not in self.files:
            withdraw(self._output)
            _remove_absent(self._dataset)

    def calls(self, *, is_last: bool) -> Iterator[tuple[MergeRange | str, Call]]:
        """Yield the calls that are still to be made, by range or suffix.

        Args:
            is_last: Whether to write what completes a dataset in a bucket, or all else.
        """
        for suffix in self._dataset.suffixes:
            completes = self._output.in_bucket and suffix == self._dataset.suffixes[-1]
            if suffix not in self.files and completes == is_last:
                yield from self._calls_of(suffix)

    def _calls_of(self, suffix: str) -> Iterator[tuple[MergeRange | str, Call]]:
        dataset, output = self._dataset, self._output
        if suffix == output.token_suffix and not output.in_bucket:
            for task in self.ranges:
                if task.number not in self._blocks:
                    yield task, merge_call(task)
            return
        path = output.partial(suffix)
        make: tuple[Any, ...] = (make_index, dataset.parts, path)
        if suffix == output.token_suffix:
            make = (merge_whole, dataset.pieces, path, suffix)
        elif suffix == PROVENANCE_SUFFIX:
            make = (make_provenance, dataset.provenance, path)
        elif suffix == QUARANTINE_SUFFIX:
            make = (make_quarantine, dataset.quarantine, path)
        function, *arguments = make
        name = suffix.partition(".")[0]
        yield (
            suffix,
            Call(
                name=f"{name}[{output.name}]", place=output.final(suffix), function=function, arguments=tuple(arguments)
            ),
        )

    def take(self, what: MergeRange | str, value: Any) -> int:  # noqa: ANN401 - digests of blocks, or a StoredFile
        """Take one call's result; return the number of bytes that it merged."""
        if isinstance(what, str):
            self._complete(value)
            return self._dataset.bin_bytes if what == self._output.token_suffix else 0
        self._consumed.record(what, value)
        self._blocks[what.number] = value
        self._complete_tokens()
        return what.end - what.begin


def make_index(parts: Sequence[Part], path: str) -> StoredFile:
    """Write the merged `.idx`, which is complete or absent.

    Raises:
        OutputError: If it cannot be written, or the index of a shard is not the one that was written.
    """
    for part in parts:
        if part.idx is not None:
            require_written(part.idx_path, part.idx.digest)
    with open_output(path) as file:
        write_merged_index(file, parts)
    return file.as_stored("idx")


def make_provenance(shards: Sequence[ShardProvenance], path: str) -> StoredFile:
    """Write the merged provenance, which is complete or absent."""
    for shard in shards:
        require_written(shard.path, shard.digest)
    with open_output(path) as file:
        write_provenance(file, shards)
    return file.as_stored(PROVENANCE_SUFFIX)


def make_quarantine(shards: Sequence[ShardQuarantine], path: str) -> StoredFile:
    """Write the merged quarantine, which is complete or absent."""
    for shard in shards:
        require_written(shard.path, shard.digest)
    with open_output(path) as file:
        write_quarantine(file, shards)
    return file.as_stored(QUARANTINE_SUFFIX)


# Publish.


def publish(groups: Sequence[Sequence[tuple[Dataset, bytes]]], work: Work) -> None:
    """Give the files of datasets their final names. Called again after a crash, it finishes.

    To a reader, an `.idx` means that its `.bin` is complete. So an earlier dataset of these names is removed first,
    beginning with its manifest and its `.idx` or `.pbin`; and a new one's manifest comes last.

    Args:
        groups: Datasets, which are assembled, with their manifests; those that belong together, the first one of which
            is published last.
        work: The job's ledger and locks.

    Raises:
        PlanError: If this driver lost a lock.
        OutputError: If a file cannot be renamed or written.
    """
    work.require_locks()
    work.ledger.record_publishing()
    for group in groups:
        first = group[0][0]
        if not first.output.in_bucket and os.path.exists(first.output.partial(first.suffixes[-1])):
            withdraw(first.output)
        for dataset, manifest in reversed(group):
            if not dataset.output.in_bucket:
                _rename_all(dataset)
            replace_file(manifest_path(dataset.output.prefix), manifest)


def withdraw(output: Output) -> None:
    """Remove an earlier dataset's manifest and its `.idx` or `.pbin`.

    Raises:
        OutputError: If they cannot be removed.
    """
    paths = [manifest_path(output.prefix), output.final(output.suffixes[-1])]
    left = store_of(output.prefix).delete(paths)
    if left:
        raise OutputError(f"{left[0]}: cannot be removed, and a new file is to take its place; remove it and run again")


def _remove_absent(dataset: Dataset) -> None:
    """Remove the files of an earlier dataset that this one does not have."""
    output = dataset.output
    absent = [output.final(suffix) for suffix in output.suffixes if suffix not in dataset.suffixes]
    store_of(output.prefix).delete(absent)


def _rename_all(dataset: Dataset) -> None:
    output = dataset.output
    *others, last = dataset.suffixes
    folder = os.path.dirname(output.prefix)
    if not os.path.exists(output.partial(last)):
        return  # it is published, as are all before it
    withdraw(output)
    _remove_absent(dataset)
    try:
        for suffix in others:
            with contextlib.suppress(FileNotFoundError):  # published before a crash
                os.replace(output.partial(suffix), output.final(suffix))
        sync_folder(folder)
        os.replace(output.partial(last), output.final(last))
        sync_folder(folder)
    except OSError as error:
        raise output_error(output.prefix, error) from error
