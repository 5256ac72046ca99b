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
from dsindex.store.storage import DIGEST_BLOCK_BYTES, StoredFile, combine_digests, make_folder, open_unbuffered, writing
from dsindex.store.store import store_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        files: The first files, or all.
    """

    def __init__(self, output: Output, job: Job, files: Sequence[PartFile]) -> None:
        self.output = output
        self._ledger = job.ledger
        self._removes = not job.config.keep_shards
        self._files: list[PartFile] = []
        self._begins = [0]
        """Where each file begins in the token file, and where the last one ends."""
        self._num_taken = 0
        """Number of ranges that `take_ranges` has seen."""
        self.is_complete = output.token_suffix in output.complete_files(job.ledger)
        """Whether an earlier run completed it."""
        self._is_there = self.is_complete or output.in_bucket or self._has_ranges()
        for file in files:
            self.add(file)

    @property
    def size_bytes(self) -> int:
        """Size of all files so far."""
        return self._begins[-1]

    @property
    def _recorded(self) -> dict[int, str]:
        return self._ledger.ranges[self.output.recorded_name]

    def _has_ranges(self) -> bool:
        """Tell whether the file is there with all recorded ranges; otherwise they are void."""
        try:
            # On NFS, only opening a file makes sure that the server is asked.
            with open_unbuffered(self.output.token_file) as file:
                if os.fstat(file.fileno()).st_size > max(self._recorded, default=-1) * RANGE_BYTES:
                    return True
        except OSError:
            pass
        if self._recorded:
            self._ledger.record(Restart(self.output.recorded_name))
        return False

    def add(self, file: PartFile) -> None:
        """Add the next file."""
        self._files.append(file)
        self._begins.append(self.size_bytes + file.size_bytes)

    def needs(self, number: int) -> bool:
        """Tell whether a file is still needed, by its number."""
        begin, end = self._begins[number : number + 2]
        ranges = range(begin // RANGE_BYTES, -(-end // RANGE_BYTES))
        return not self.is_complete and (self.output.in_bucket or not all(map(self._recorded.__contains__, ranges)))

    def take_ranges(self, *, rest: bool = False) -> list[MergeRange]:
        """Return the ranges that became full, but those that are merged and those whose bytes are not known yet.

        Args:
            rest: Whether all files were added, so that the last range is as full as it will be.
        """
        if self.is_complete or self.output.in_bucket:
            return []
        num_full = -(-self.size_bytes // RANGE_BYTES) if rest else self.size_bytes // RANGE_BYTES
        taken, self._num_taken = range(self._num_taken, num_full), num_full
        for number in taken:
            if number in self._recorded:
                self._release(number)
        tasks = [self._range(number) for number in taken if number not in self._recorded]
        tasks = [task for task in tasks if all(piece.file.path for piece in task.pieces)]
        if tasks or rest:
            self._begin()
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
        """Record a merged range."""
        self._ledger.record(RangeMerged(self.output.recorded_name, task.number, digest))
        self._release(task.number)

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

    def finish(self) -> StoredFile | None:
        """Return the complete file once all ranges are recorded."""
        numbers = range(-(-self.size_bytes // RANGE_BYTES))
        if len(self._recorded) < len(numbers):
            return None
        digest = combine_digests(bytes.fromhex(self._recorded[number]) for number in numbers)
        return StoredFile(name=self.output.token_suffix, size_bytes=self.size_bytes, digest=digest)


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
    assemblies = [_Assembly(dataset, job) for dataset in datasets]
    total = sum(file.size_bytes for dataset in datasets for file in dataset.token_files)
    num_ranges = sum(len(assembly.ranges) for assembly in assemblies)
    job.reporter.stage("merge", total=total, unit="bytes", tasks=num_ranges, task_name="ranges")
    if any(dataset.output.in_bucket for dataset in datasets):
        job.require_locks()
        job.ledger.record(Publishing())
    for is_last in (False, True):
        calls = (
            ((assembly, what), call)
            for assembly in (reversed(assemblies) if is_last else assemblies)
            for what, call in assembly.calls(is_last=is_last)
        )
        with contextlib.closing(job.dispatch(calls).run()) as results:
            for (assembly, what), value in results:
                job.reporter.advance(assembly.take(what, value), tasks=0 if isinstance(what, str) else 1)
    return [dict(sorted(assembly.files.items())) for assembly in assemblies]


class _Assembly:
    """One dataset that is being assembled."""

    def __init__(self, dataset: Dataset, job: Job) -> None:
        self._dataset, self._output, self._ledger = dataset, dataset.output, job.ledger
        self.files = self._output.complete_files(job.ledger)
        """What is complete, by suffix."""
        if self._output.in_bucket and dataset.suffixes[-1] not in self.files:
            withdraw(self._output, dataset.suffixes)
        self._tokens = TokenFile(self._output, job, dataset.token_files)
        self.ranges = self._tokens.take_ranges(rest=True)
        """The ranges of its tokens that are not merged, on a disk."""
        self._complete_tokens()

    def calls(self, *, is_last: bool) -> Iterator[tuple[MergeRange | str, Call]]:
        """Yield the calls that are still to be made, by range or suffix.

        Args:
            is_last: Whether to write what completes a dataset in a bucket, or all else.
        """
        dataset, output = self._dataset, self._output
        functions: dict[str, tuple[Any, Any]] = {
            output.token_suffix: (merge_whole, dataset.token_files),
            PROVENANCE_SUFFIX: (make_provenance, dataset.provenance),
            QUARANTINE_SUFFIX: (make_quarantine, dataset.quarantine),
            "idx": (make_index, dataset.parts),
        }
        for suffix in dataset.suffixes:
            completes = output.in_bucket and suffix == dataset.suffixes[-1]
            if suffix in self.files or completes != is_last:
                continue
            if suffix == output.token_suffix and not output.in_bucket:
                yield from ((task, merge_call(task)) for task in self.ranges)
                continue
            function, parts = functions[suffix]
            name = f"{suffix.partition('.')[0]}[{output.name}]"
            arguments = (parts, output.partial(suffix))
            yield suffix, Call(name=name, place=output.final(suffix), function=function, arguments=arguments)

    def take(self, what: MergeRange | str, value: Any) -> int:  # noqa: ANN401 - a digest, or a StoredFile
        """Take one call's result; return the number of bytes that it merged."""
        if isinstance(what, MergeRange):
            self._tokens.record(what, value)
            self._complete_tokens()
            return what.size_bytes
        self._complete(value)
        return int(value.size_bytes) if what == self._output.token_suffix else 0

    def _complete_tokens(self) -> None:
        if not self._output.in_bucket and not self._tokens.is_complete and (file := self._tokens.finish()):
            self._complete(file)

    def _complete(self, file: StoredFile) -> None:
        self._ledger.record(FileComplete(self._output.recorded_name, file))
        self.files[file.name] = file
