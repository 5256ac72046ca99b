"""Datasets on their way from shards to complete files: which ranges can be merged, what is done, what is left.

On a disk, the tokens are merged by ranges, most of them while shards are still being made; the `.bin` of a shard is
removed once the ranges that need it are recorded. In a bucket, a dataset's objects are written at the end.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from dsindex.engine.executors import Call
from dsindex.engine.ledger import FileComplete, Publishing, RangeMerged, Restart
from dsindex.engine.merge import make_index, make_provenance, make_quarantine, merge_range, merge_whole
from dsindex.engine.output import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, withdraw
from dsindex.engine.tasks import MergeRange, PartFile, Piece
from dsindex.store.storage import DIGEST_BLOCK_BYTES, StoredFile, combine_digests, make_folder, open_file, writing
from dsindex.store.store import store_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.job import Job
    from dsindex.engine.output import Dataset, Output

RANGE_BYTES = DIGEST_BLOCK_BYTES
"""Size of an output's ranges, so that each has one digest."""


class TokenFile:
    """The token file of an output, which is the files of its parts, one after another; on a disk it is cut into ranges.

    A range can be merged as soon as its shards and all shards before them are recorded, because its place is then
    known. A plan's ranges have the same bytes whenever they are merged, so one that is recorded is done. If the file
    was lost since, what was recorded is void.

    Args:
        output: The output.
        job: Its ledger has what is merged already.
        files: All files, if they are known; otherwise they are added after room for the header.
    """

    def __init__(self, output: Output, job: Job, files: Sequence[PartFile] = ()) -> None:
        self.output = output
        self._ledger = job.ledger
        self._removes = not job.config.keep_shards
        self._files: list[PartFile] = []
        self._begins = [0]
        """Where each file begins in the token file, and where the last one ends."""
        self._num_taken = 0
        """Number of ranges that `take_ranges` has seen."""
        self._is_whole = False
        self.complete = output.complete_files(job.ledger)
        """The output's files that an earlier run completed, by suffix."""
        self.is_complete = output.token_suffix in self.complete
        self._is_there = self.is_complete or output.in_bucket or self._has_ranges()
        for file in files or [PartFile(path="", size_bytes=output.header_bytes)]:
            self.add(file)

    @property
    def _size_bytes(self) -> int:
        return self._begins[-1]

    @property
    def _recorded(self) -> dict[int, str]:
        return self._ledger.ranges[self.output.recorded_name]

    def _has_ranges(self) -> bool:
        """Tell whether the file is there with all recorded ranges; otherwise they are void."""
        try:
            # On NFS, only opening a file makes sure that the server is asked.
            with open_file(self.output.token_file) as file:
                if os.fstat(file.fileno()).st_size > max(self._recorded, default=-1) * RANGE_BYTES:
                    return True
        except OSError:
            pass
        if self._recorded:
            self._ledger.record(Restart(self.output.recorded_name))
            self.complete = {}
        return False

    def add(self, file: PartFile) -> None:
        """Add the next file."""
        self._files.append(file)
        self._begins.append(self._size_bytes + file.size_bytes)

    def needs(self, number: int) -> bool:
        """Tell whether a file is still needed, by its number."""
        begin, end = self._begins[number : number + 2]
        ranges = range(begin // RANGE_BYTES, -(-end // RANGE_BYTES))
        return not self.is_complete and (self.output.in_bucket or not all(map(self._recorded.__contains__, ranges)))

    def take_ranges(self, *, is_whole: bool = False) -> list[MergeRange]:
        """Return the ranges that became full, but those that are merged and those whose bytes are not known yet.

        Args:
            is_whole: Whether all files were added, so that the last range is as full as it will be.
        """
        if self.is_complete or self.output.in_bucket:
            return []
        self._is_whole = is_whole
        num_full = -(-self._size_bytes // RANGE_BYTES) if is_whole else self._size_bytes // RANGE_BYTES
        taken, self._num_taken = range(self._num_taken, num_full), num_full
        for number in taken:
            if number in self._recorded:
                self._release(number)
        tasks = [self._range(number) for number in taken if number not in self._recorded]
        tasks = [task for task in tasks if all(piece.file.path for piece in task.pieces)]
        if tasks or is_whole:
            self._begin()
        self._finish()
        return tasks

    def _files_of(self, number: int) -> range:
        """Return the numbers of the files that a range needs."""
        first = bisect_right(self._begins, number * RANGE_BYTES) - 1
        return range(first, min(bisect_left(self._begins, (number + 1) * RANGE_BYTES), len(self._files)))

    def _range(self, number: int) -> MergeRange:
        begin, end = number * RANGE_BYTES, (number + 1) * RANGE_BYTES
        pieces = (
            Piece(file=file, begin=max(0, begin - start), end=min(end - start, file.size_bytes))
            for file, start in ((self._files[each], self._begins[each]) for each in self._files_of(number))
        )
        return MergeRange(output=self.output.token_file, number=number, begin=begin, pieces=tuple(pieces))

    def _begin(self) -> None:
        """Begin the file, unless it is there.

        Raises:
            OutputError: If it cannot be created.
        """
        if not self._is_there:
            path = self.output.token_file
            make_folder(os.path.dirname(path))
            store_of(path).delete([path])
            with writing(path):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            self._is_there = True

    def record(self, task: MergeRange, digest: str) -> None:
        """Record a merged range, and the file with its last one."""
        self._ledger.record(RangeMerged(self.output.recorded_name, task.number, digest))
        self._release(task.number)
        self._finish()

    def _release(self, number: int) -> None:
        """Remove the tokens of shards that no range needs any more."""
        used_up = [
            self._files[each].path
            for each in self._files_of(number)
            if self._files[each].digest is not None and not self.needs(each)
        ]
        if used_up and self._removes:
            self._ledger.sync()
            store_of(used_up[0]).delete(used_up)

    def _finish(self) -> None:
        if self._is_whole and len(self._recorded) == self._num_taken:
            digest = combine_digests(bytes.fromhex(self._recorded[number]) for number in range(self._num_taken))
            file = StoredFile(name=self.output.token_suffix, size_bytes=self._size_bytes, digest=digest)
            self._ledger.record(FileComplete(self.output.recorded_name, file))


def merge_call(task: MergeRange) -> Call:
    """Return the call that merges a range and returns its digest."""
    return Call(
        name=f"merge[{os.path.basename(task.output).rsplit('.', 2)[0]}:{task.number:05d}]",
        place=f"{task.output}, bytes {task.begin} to {task.begin + task.size_bytes}",
        function=merge_range,
        arguments=(task,),
    )


# Assemble all files.


def assemble(job: Job, datasets: Sequence[Dataset]) -> list[dict[str, StoredFile]]:
    """Write all files of all datasets, keeping those that an earlier run completed.

    On a disk they have partial names. In a bucket, an earlier dataset of the same names is withdrawn first, and what
    completes each dataset is written last, so that no reader meets half of one.

    Returns:
        For each dataset, its files by suffix.
    """
    calls: list[tuple[tuple[TokenFile, MergeRange | str], Call]] = []
    last_calls: list[tuple[tuple[TokenFile, MergeRange | str], Call]] = []
    replaced: list[Dataset] = []
    for dataset in datasets:
        output, tokens = dataset.output, TokenFile(dataset.output, job, dataset.token_files)
        calls += [((tokens, task), merge_call(task)) for task in tokens.take_ranges(is_whole=True)]
        for suffix in dataset.suffixes:
            if suffix not in tokens.complete and (output.in_bucket or suffix != output.token_suffix):
                call = ((tokens, suffix), _write_call(dataset, suffix))
                if output.in_bucket and suffix == dataset.suffixes[-1]:
                    last_calls.insert(0, call)
                    replaced.append(dataset)
                else:
                    calls.append(call)
    num_ranges = sum(isinstance(what, MergeRange) for (_, what), _ in calls)
    total = sum(file.size_bytes for dataset in datasets for file in dataset.token_files)
    job.reporter.stage("merge", total=total, unit="bytes", tasks=num_ranges, task_name="ranges")
    if any(dataset.output.in_bucket for dataset in datasets):
        job.require_locks()
        job.ledger.record(Publishing())
    for dataset in replaced:
        withdraw(dataset.output, dataset.suffixes)
    for part in (calls, last_calls):
        with contextlib.closing(job.dispatch(part).run()) as results:
            for (tokens, what), value in results:
                if isinstance(what, MergeRange):
                    tokens.record(what, value)
                    job.reporter.advance(what.size_bytes)
                else:
                    job.ledger.record(FileComplete(tokens.output.recorded_name, value))
                    job.reporter.advance(value.size_bytes if what == tokens.output.token_suffix else 0, tasks=0)
    files = (job.ledger.files[dataset.output.recorded_name] for dataset in datasets)
    return [
        {suffix: own[suffix] for suffix in sorted(dataset.suffixes)}
        for dataset, own in zip(datasets, files, strict=True)
    ]


def _write_call(dataset: Dataset, suffix: str) -> Call:
    """Return the call that writes a file as a whole."""
    functions: dict[str, tuple[Any, Any]] = {
        dataset.output.token_suffix: (merge_whole, dataset.token_files),
        PROVENANCE_SUFFIX: (make_provenance, dataset.provenance),
        QUARANTINE_SUFFIX: (make_quarantine, dataset.quarantine),
        "idx": (make_index, dataset.parts),
    }
    function, parts = functions[suffix]
    name = f"{suffix.partition('.')[0]}[{dataset.output.name}]"
    arguments = (parts, dataset.output.partial(suffix))
    return Call(name=name, place=dataset.output.final(suffix), function=function, arguments=arguments)
