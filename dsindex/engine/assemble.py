"""Assemble the files of datasets from their parts, under partial names.

Some ranges of the tokens may already be merged (dsindex.engine.assemble); the others are merged here. A `.pbin`
consists of the same parts between a header and an index, which are files in the work folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsindex.datasets.provenance import ShardProvenance, write_provenance
from dsindex.engine.dispatch import run_calls
from dsindex.engine.executors import Call
from dsindex.engine.merge import (
    MergeRange,
    Piece,
    RangePlanner,
    RangeResult,
    is_in_place,
    merge_range,
    plan_merge,
    write_merged_index,
)
from dsindex.engine.partial_files import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, find_partials, remove_partials
from dsindex.engine.publishing import (
    Dataset,
    current_upload,
    identify_parts,
    live_upload,
    new_upload,
    shard_part,
    stored_bytes,
)
from dsindex.engine.shards.attempt import shard_folder
from dsindex.engine.shards.places import TokenPlaces, is_written_to
from dsindex.engine.shards.tokenize import ShardQuarantine, write_quarantine
from dsindex.errors import InputError, OutputError
from dsindex.store.ownership import new_file_id, read_folder_id
from dsindex.store.reading import digest_file
from dsindex.store.requests import note_requests
from dsindex.store.storage import (
    StoredFile,
    StoredSection,
    combine_digests,
    holds_writes,
    make_folder,
    open_unbuffered,
    output_error,
    remove_if_present,
)
from dsindex.store.uploads import Upload, find_parts, open_output
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from dsindex.engine.ledger import Ledger
    from dsindex.engine.merge import Part
    from dsindex.engine.publishing import Target
    from dsindex.engine.shards.tokenize import ShardResult
    from dsindex.engine.start import Work


# Merge ranges of the output while shards are still being made.
#
# A range can be merged as soon as its shards and all shards before them are committed, because its offset is then
# known. dsindex.engine.assemble plans the same ranges again and skips those in the ledger. A recorded range is valid
# only for the pieces that it was merged from; a shard that was made again is a different piece.


def begin_token_file(target: Target, ledger: Ledger) -> Upload | None:
    """Ensure that the token file exists with all its recorded ranges, or start an empty one.

    Before an empty one is started, partial files of the job's former plans are removed, since no run will use them.

    Returns:
        The upload of which the ranges are parts, if the output is an object; else None.

    Raises:
        OutputError: If it cannot be created.
    """
    if target.is_remote:
        return _begin_upload(target, ledger)
    _begin_file(target, ledger)
    return None


def _begin_upload(target: Target, ledger: Ledger) -> Upload:
    """Return the upload with all recorded ranges, or begin an empty one."""
    final, path = target.final(target.token_suffix), target.token_file
    upload = current_upload(final, path, ledger)
    parts = None if upload is None else find_parts(upload)
    if upload is not None and parts is not None and ledger.merged_ranges(path) <= {number - 1 for number in parts}:
        return upload
    ledger.record_merge_again(path)
    return new_upload(final, path, ledger)


def _begin_file(target: Target, ledger: Ledger) -> None:
    path = target.token_file
    size_bytes = _size_on_server(path)
    if size_bytes is not None and size_bytes >= ledger.written_bytes(path):
        return
    _make_way(target, ledger)
    resize(path, 0)


def _make_way(target: Target, ledger: Ledger) -> None:
    """Remove the token file's partial name, and the partial files of former plans, which no run will use."""
    path, ending = target.token_file, f".{target.plan_id}.partial"
    ledger.record_merge_again(path)
    remove_partials([path, *(former for former in ledger.history.partials if not former.endswith(ending))])


@contextlib.contextmanager
def shards_in_place(
    sources: Sequence[TokenSource],
    work: Work,
    work_dir: str,
    *,
    kept: Mapping[int, ShardResult],
    num_shards: int,
    keep: bool,
) -> Iterator[TokenPlaces | None]:
    """Open the places at which the shards that are still to be made write their tokens.

    If the block fails, token files lose their names beside the outputs, and have those in the work folder.

    Args:
        sources: The datasets that are made of shards alone.
        work: The job's executor and ledger.
        work_dir: The work folder.
        kept: The shards that are made, by number.
        num_shards: Number of the job's shards.
        keep: Whether each shard is to have files of its own, since they are kept.

    Yields:
        None if shards write files of their own: `keep`, workers are on other machines, an output or the work folder is
        in an object store, they are on two disks, or the file system has no hard links.

    Raises:
        OutputError: If a file cannot be created.
    """
    targets = [source.target for source in sources]
    if keep:
        for target in targets:
            _unlink_token_file(target)
    places = None
    if targets and work.executor.kind == "local" and not keep and not holds_writes(work_dir):
        try:
            places = _open_places(sources, work, work_dir, kept=kept, num_shards=num_shards)
        except OSError as error:
            raise output_error(work_dir, error) from error
    if places is None:
        yield None
        return
    try:
        yield places
    except BaseException:
        for target in targets:
            _unlink_token_file(target)
        raise
    finally:
        places.close()
        with contextlib.suppress(OutputError):  # otherwise it is removed with the work folder
            remove_if_present(joined(work_dir, places.shared))


def _open_places(
    sources: Sequence[TokenSource], work: Work, work_dir: str, *, kept: Mapping[int, ShardResult], num_shards: int
) -> TokenPlaces | None:
    if any(source.target.is_remote or source.target.swapped_bytes > 1 for source in sources):
        return None
    names = {}
    for source in sources:
        name = _go_on_in(source, work.ledger, work_dir, kept, num_shards)
        path = joined(work_dir, name or _new_file(work_dir, "bin"))
        if not _link(path, source.target, work.ledger, goes_on=name is not None):
            return None
        names[source.key] = os.path.relpath(path, work_dir)
    begin = {source.key: source.target.header_bytes for source in sources}
    places = TokenPlaces(work_dir, _new_file(work_dir, "sizes"), names, begin, 0)
    places.open()
    results = map(kept.get, range(num_shards)) if kept else ()
    places.tell(
        0,
        [
            None if result is None else {source.key: source.part_of(result).bin_bytes for source in sources}
            for result in results
        ],
    )
    return places


def _go_on_in(
    source: TokenSource, ledger: Ledger, work_dir: str, kept: Mapping[int, ShardResult], num_shards: int
) -> str | None:
    """Return the token file of an earlier run in which all kept shards are where the output has them.

    Beyond a shard that is missing, nobody knows where they would be. A file with a further name is published already,
    and where a worker of an earlier run may still write, the bytes of other inputs may appear.
    """
    position, name, is_known = source.target.header_bytes, None, True
    for number in range(num_shards):
        result = kept.get(number)
        if result is None:
            is_known = False
            continue
        tokens, part = result.find_part(source.key).bin, source.part_of(result)
        if isinstance(tokens, StoredSection):
            name = name or tokens.name
            if tokens.name != name or tokens.begin != position or not is_known:
                return None
        position += part.bin_bytes
    if name is None:
        return None
    path = joined(work_dir, name)
    status = os.lstat(path)
    own = [each for each in find_partials(ledger.history.partials) if os.path.samestat(os.lstat(each), status)]
    is_own = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 + len(own)
    return name if is_own and not is_written_to(path) else None


def _new_file(work_dir: str, suffix: str) -> str:
    folder_id = read_folder_id(work_dir)
    if folder_id is None:
        raise OutputError(f"{work_dir}: expected the work folder, found nothing; run the same command again")
    name = f"{shard_folder(0)}/tokens.{new_file_id(folder_id)}.{suffix}"
    make_folder(joined(work_dir, shard_folder(0)))
    resize(joined(work_dir, name), 0)
    return name


def _link(path: str, target: Target, ledger: Ledger, *, goes_on: bool) -> bool:
    """Give a token file the partial name of the output too; return False if the file system cannot."""
    partial = target.token_file
    try:
        is_there = os.path.lexists(partial)
        if is_there and os.path.samestat(os.lstat(partial), os.stat(path)):
            return True
        if is_there or not goes_on:
            _make_way(target, ledger)
        make_folder(os.path.dirname(partial))
        os.link(path, partial)
    except OSError:
        return False
    return True


def _unlink_token_file(target: Target) -> None:
    """Remove the partial name of a token file that has one in the work folder."""
    with contextlib.suppress(OSError):
        if not target.is_remote and os.lstat(target.token_file).st_nlink > 1:
            os.unlink(target.token_file)


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


def _has_holes(path: str) -> bool:
    """Tell whether a file has ranges without blocks, as after it was truncated and written on, or is compressed."""
    try:
        with open_unbuffered(path) as file:
            status = os.fstat(file.fileno())
            first = os.lseek(file.fileno(), 0, os.SEEK_HOLE) if status.st_size else 0
    except OSError:  # whoever writes it says so
        return True
    return first < status.st_size or status.st_blocks * 512 < status.st_size  # some have blocks beyond their end


def range_call(task: MergeRange, target: Target, known: RangeResult | None = None) -> Call:
    """Return the call that merges a range, unless it is what an earlier run recorded, and returns a RangeResult."""
    return Call(
        name=f"{'merge' if known is None else 'check'}[{os.path.basename(target.prefix)}:{task.number:05d}]",
        place=f"{target.final(target.token_suffix)}, bytes {task.begin} to {task.end}",
        function=merge_range,
        arguments=(task, known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """A dataset that is made of shards alone."""

    target: Target
    key: str
    """The key of its part in a shard's result."""
    dtype: np.dtype[Any]
    """Its token type."""
    work_dir: str
    """The work folder."""

    def part_of(self, result: ShardResult) -> Part:
        """Return a shard's part of the dataset."""
        return shard_part(result.find_part(self.key), self.work_dir, self.dtype)


class EarlyRanges:
    """The ranges of a job's datasets that can be merged before the job's last shard is committed.

    Args:
        sources: The datasets that are made of shards alone.
        ledger: The job's ledger.
        num_shards: Number of the job's shards.
    """

    def __init__(self, sources: Sequence[TokenSource], ledger: Ledger, *, num_shards: int) -> None:
        self._files = {source.target.token_file: _GrowingFile(source) for source in sources}
        self._ledger = ledger
        self._num_shards = num_shards
        self._num_in_order = 0
        """Number of leading shards that are committed."""
        self._waiting: dict[int, ShardResult] = {}
        """Committed shards that wait for one before them, by number in the plan."""

    def take_shard(self, number: int, result: ShardResult) -> list[MergeRange]:
        """Add a shard by its number in the plan; return the ranges that can now be merged and are not yet.

        For the job's last shard none is returned: dsindex.engine.assemble merges the rest.
        """
        self._waiting[number] = result
        ready: list[MergeRange] = []
        while (following := self._waiting.pop(self._num_in_order, None)) is not None:
            self._num_in_order += 1
            for file in self._files.values():
                ready += file.add(following, self._ledger)
        return ready if self._num_in_order < self._num_shards else []

    def call(self, task: MergeRange) -> Call:
        """Return the call that merges a range and returns a RangeResult."""
        return range_call(task, self._files[task.output].target)


class _GrowingFile:
    """A token file whose first shards are known."""

    def __init__(self, source: TokenSource) -> None:
        self.target = source.target
        self._part_of = source.part_of
        self._has_begun = False
        self._upload: Upload | None = None
        self._planner = RangePlanner(self.target.token_file, bound_bytes=self.target.bound_bytes)
        # A header is known only at the end, so the range that contains it is left to `assemble`.
        self._planner.add(Piece(path="", identity="", offset=0, size_bytes=self.target.header_bytes))

    def add(self, result: ShardResult, ledger: Ledger) -> list[MergeRange]:
        """Add the next shard in plan order; return the ranges that are now full and not merged yet."""
        full = self._planner.add(self.target.piece(self._part_of(result)))
        ready = [task for task in full if task.begin >= self.target.header_bytes]
        if ready and not self._has_begun:
            self._upload = begin_token_file(self.target, ledger)
            self._has_begun = True
        return [replace(task, upload=self._upload) for task in ready if ledger.range(task) is None]


def _size_on_server(path: str) -> int | None:
    """Return a file's size as other nodes see it: on NFS, only opening a file makes sure that the server is asked."""
    try:
        with open_unbuffered(path) as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return None


def assemble(datasets: Sequence[Dataset], work: Work) -> list[dict[str, StoredFile]]:
    """Write all files of all datasets under their partial names, keeping those that an earlier run finished.

    Returns:
        For each dataset, its files by suffix.
    """
    reporter = work.reporter
    assemblies = [_Assembly(dataset, work.ledger) for dataset in datasets]
    num_ranges = sum(len(assembly.ranges) for assembly in assemblies)
    total = sum(dataset.bin_bytes for dataset in datasets)
    reporter.stage("merge", total=total, unit="bytes", tasks=num_ranges, task_name="ranges")
    reporter.watch(work.statistics)
    for assembly in assemblies:
        reporter.advance(assembly.bytes_done, tasks=assembly.num_ranges_done, fresh=False)

    def on_result(key: tuple[_Assembly, MergeRange | str], value: Any) -> None:  # noqa: ANN401 - as `take`
        assembly, what = key
        reporter.advance(assembly.take(what, value), tasks=0 if isinstance(what, str) else 1)

    run_calls(
        work.executor,
        (((assembly, what), call) for assembly in assemblies for what, call in assembly.calls()),
        on_result=on_result,
        policy=work.policy,
        statistics=work.statistics,
        on_idle=reporter.tick,
    )
    return [assembly.finish() for assembly in assemblies]


class _Assembly:
    """One dataset that is being assembled."""

    def __init__(self, dataset: Dataset, ledger: Ledger) -> None:
        self._dataset = dataset
        self._target = dataset.target
        self._merge_id = identify_parts(dataset.parts)
        self._ledger = ledger
        self._files: dict[str, StoredFile] = {}
        self.ranges: list[MergeRange] = []
        self._results: dict[int, RangeResult] = {}
        self.num_ranges_done = 0
        self._complete = self._resume_complete()
        if self._complete:
            self.bytes_done = dataset.bin_bytes
            return
        path = self._target.token_file
        if not self._target.is_remote:
            make_folder(os.path.dirname(path))
        upload = begin_token_file(self._target, ledger)
        is_placed = any(part.section is not None for part in dataset.parts)
        has_holes = is_placed and _has_holes(path)
        if upload is None:
            resize(path, dataset.bin_bytes)  # early merging may have left it shorter
        self.ranges = plan_merge(dataset.pieces, path, bound_bytes=self._target.bound_bytes, upload=upload)
        for task in self.ranges:
            result = ledger.range(task)
            # A store looks at what it gets, and the shards of a range in place were looked at. The file with those of
            # this run has two names, of which somebody may have given one to another file.
            is_own = ledger.is_of_this_run(task) and not is_placed
            if result is not None and (upload is not None or is_own or (is_in_place(task) and not has_holes)):
                self._results[task.number] = result
        self.num_ranges_done = len(self._results)
        self.bytes_done = sum(task.end - task.begin for task in self.ranges if task.number in self._results)

    def _resume_complete(self) -> bool:
        """Tell whether an earlier run completed all files; some of them may be published already."""
        recorded = self._ledger.assembled(self._target.token_file, self._merge_id)
        if recorded is None:
            return False
        files = {suffix: StoredFile(name=suffix, **entry) for suffix, entry in recorded.items()}
        if files.keys() != self._dataset.suffixes:
            return False
        if not all(self._is_whole(suffix, file) for suffix, file in files.items()):
            return False
        self._files = files
        return True

    def _is_whole(self, suffix: str, file: StoredFile) -> bool:
        """Tell whether a file is as it was recorded under its partial name, or else under its final name."""
        path, final = self._target.partial(suffix), self._target.final(suffix)
        if self._target.is_remote:
            upload = current_upload(final, path, self._ledger)
            return upload is not None and stored_bytes(upload) == file.size_bytes
        try:
            return digest_file(path if os.path.lexists(path) else final) == file.digest
        except InputError:
            return False

    def _place(self, suffix: str) -> str | Upload:
        """Return where a file is written that is written as a whole."""
        partial = self._target.partial(suffix)
        is_upload = self._target.is_remote
        return live_upload(self._target.final(suffix), partial, self._ledger) if is_upload else partial

    def calls(self) -> Iterator[tuple[MergeRange | str, Call]]:
        """Yield the calls that are still to be made, by range or suffix."""
        if self._complete:
            return
        dataset, target = self._dataset, self._target
        name = os.path.basename(target.prefix)
        if dataset.pbin is None:
            yield (
                "idx",
                Call(
                    name=f"index[{name}]",
                    place=target.final("idx"),
                    function=make_index,
                    arguments=(dataset.parts, self._place("idx")),
                ),
            )
        if dataset.provenance is not None:
            yield (
                PROVENANCE_SUFFIX,
                Call(
                    name=f"provenance[{name}]",
                    place=target.final(PROVENANCE_SUFFIX),
                    function=make_provenance,
                    arguments=(dataset.provenance, self._place(PROVENANCE_SUFFIX)),
                ),
            )
        if dataset.quarantine:
            yield (
                QUARANTINE_SUFFIX,
                Call(
                    name=f"quarantine[{name}]",
                    place=target.final(QUARANTINE_SUFFIX),
                    function=make_quarantine,
                    arguments=(dataset.quarantine, self._place(QUARANTINE_SUFFIX)),
                ),
            )
        for task in self.ranges:
            if task.number not in self._results:
                yield task, range_call(task, target, self._ledger.range(task))

    def take(self, what: MergeRange | str, value: Any) -> int:  # noqa: ANN401 - a RangeResult or a StoredFile
        """Take one call's result; return the number of bytes that it merged."""
        if isinstance(what, str):
            self._files[what] = value
            return 0
        note_requests(value.requests)
        self._results[what.number] = value = replace(value, requests=None)
        self._ledger.record_range(what, value)
        return what.end - what.begin

    def finish(self) -> dict[str, StoredFile]:
        if not self._complete:
            digests = [
                bytes.fromhex(digest) for task in self.ranges for digest in self._results[task.number].block_digests
            ]
            suffix = self._target.token_suffix
            self._files[suffix] = StoredFile(
                name=suffix, size_bytes=self._dataset.bin_bytes, digest=combine_digests(digests)
            )
            recorded = {
                suffix: {"size_bytes": file.size_bytes, "digest": file.digest} for suffix, file in self._files.items()
            }
            self._ledger.record_assembled(self._target.token_file, self._merge_id, recorded)
        return self._files


def make_index(parts: Sequence[Part], place: str | Upload) -> StoredFile:
    """Write the merged `.idx`, which is complete or absent."""
    with open_output(place) as file:
        write_merged_index(file, parts)
    return file.as_stored("idx")


def make_provenance(shards: Sequence[ShardProvenance], place: str | Upload) -> StoredFile:
    """Write the merged provenance, which is complete or absent."""
    with open_output(place) as file:
        write_provenance(file, shards)
    return file.as_stored(PROVENANCE_SUFFIX)


def make_quarantine(shards: Sequence[ShardQuarantine], place: str | Upload) -> StoredFile:
    """Write the merged quarantine, which is complete or absent."""
    with open_output(place) as file:
        write_quarantine(file, shards)
    return file.as_stored(QUARANTINE_SUFFIX)
