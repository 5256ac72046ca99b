"""Datasets on their way from shards to complete files: which ranges can be merged, what is done, what is left.

On a disk, the tokens are merged by ranges, most of them while shards are still being made; the `.bin` of a shard is
removed once the ranges that need it are recorded. In a bucket, a dataset's objects are written at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsindex.engine.executors import Call
from dsindex.engine.ledger import FileComplete, Publishing, RangeMerged, Restart
from dsindex.engine.merge import make_index, make_provenance, make_quarantine, merge_range, merge_whole
from dsindex.engine.output import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, withdraw
from dsindex.engine.tasks import MergeRange, Piece
from dsindex.store.storage import DIGEST_BLOCK_BYTES, StoredFile, combine_digests, make_folder, open_unbuffered, writing
from dsindex.store.store import store_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.engine.job import Job
    from dsindex.engine.ledger import Ledger
    from dsindex.engine.output import Dataset, Output

RANGE_BYTES = DIGEST_BLOCK_BYTES
"""Size of an output's ranges, so that each has one digest."""


class TokenFile:
    """The token file of an output on a disk, cut into ranges of RANGE_BYTES.

    A range can be merged as soon as its shards and all shards before them are recorded, because its offset is then
    known. A plan's ranges have the same bytes whenever they are merged, so one that is recorded is done.

    Args:
        output: The output.
        ledger: Has what is merged already; if the file was lost since, that is void.
        removes: Whether to remove the tokens of shards once the ranges that need them are recorded.
    """

    def __init__(self, output: Output, ledger: Ledger, *, removes: bool) -> None:
        self.output = output
        self._ledger = ledger
        self._removes = removes
        self._number = 0
        self._pieces: list[Piece] = []
        """The pieces of the range that is not full yet."""
        self._room = RANGE_BYTES
        self.size_bytes = 0
        """Size of all pieces so far."""
        self.needed: Counter[str] = Counter()
        """Path of a shard's tokens → number of ranges that still need it."""
        self._is_there = self._find()

    def _find(self) -> bool:
        """Tell whether the file is there with all recorded ranges; otherwise they are void."""
        recorded = self._ledger.ranges[self.output.recorded_name]
        try:
            # On NFS, only opening a file makes sure that the server is asked.
            with open_unbuffered(self.output.token_file) as file:
                if os.fstat(file.fileno()).st_size > max(recorded, default=-1) * RANGE_BYTES:
                    return True
        except OSError:
            pass
        if recorded:
            self._ledger.record(Restart(self.output.recorded_name))
        return False

    def _begin(self) -> None:
        """Begin the file, unless it is there.

        Raises:
            OutputError: If it cannot be created.
        """
        if self._is_there:
            return
        path = self.output.token_file
        make_folder(os.path.dirname(path))
        store_of(path).delete([path])
        with writing(path):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        self._is_there = True

    def add(self, piece: Piece) -> list[MergeRange]:
        """Add the next piece; return the ranges that it fills and that are not merged yet."""
        full: list[MergeRange] = []
        offset, left = piece.offset, piece.size_bytes
        self.size_bytes += left
        while left:
            taken = min(left, self._room)
            self._pieces.append(replace(piece, offset=offset, size_bytes=taken))
            self.needed[piece.path] += 1
            offset, left, self._room = offset + taken, left - taken, self._room - taken
            if not self._room:
                full.append(self._cut())
        return self._unmerged(full)

    def rest(self) -> list[MergeRange]:
        """Return the range that is not full, unless it is merged; after the last piece, it is the last range."""
        return self._unmerged([self._cut()] if self._pieces else [])

    def _cut(self) -> MergeRange:
        begin, path = self._number * RANGE_BYTES, self.output.token_file
        task = MergeRange(number=self._number, begin=begin, output=path, pieces=tuple(self._pieces))
        self._number, self._room, self._pieces = self._number + 1, RANGE_BYTES, []
        return task

    def _unmerged(self, tasks: Sequence[MergeRange]) -> list[MergeRange]:
        recorded = self._ledger.ranges[self.output.recorded_name]
        for task in tasks:
            if task.number in recorded:
                self._release(task)
            else:
                self._begin()
        return [task for task in tasks if task.number not in recorded]

    def record(self, task: MergeRange, digest: str) -> None:
        """Record a merged range."""
        self._ledger.record(RangeMerged(self.output.recorded_name, task.number, digest))
        self._release(task)

    def _release(self, task: MergeRange) -> None:
        """Remove the tokens of shards that no range needs any more, if all of the range is from shards.

        The header and the index of a `.pbin` are made again by each run, which then merges their ranges again.
        """
        if any(piece.whole is None for piece in task.pieces):
            return
        paths = {piece.path for piece in task.pieces}
        self.needed.subtract(paths)
        used_up = [path for path in paths if not self.needed[path]]
        if used_up and self._removes:
            self._ledger.sync()
            store_of(used_up[0]).delete(used_up)

    def finish(self) -> StoredFile:
        """Return the complete file, all ranges of which are recorded."""
        self._begin()
        recorded = self._ledger.ranges[self.output.recorded_name]
        digest = combine_digests(bytes.fromhex(recorded[number]) for number in range(self._number))
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
    total = sum(piece.size_bytes for dataset in datasets for piece in dataset.pieces)
    open_ranges = [task for assembly in assemblies for task in assembly.ranges]
    job.reporter.stage("merge", total=total, unit="bytes", tasks=len(open_ranges), task_name="ranges")
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
        self.ranges: list[MergeRange] = []
        self._tokens: TokenFile | None = None
        if self._output.in_bucket:
            if dataset.suffixes[-1] not in self.files:
                withdraw(dataset)
        elif self._output.token_suffix not in self.files:
            self._tokens = TokenFile(self._output, job.ledger, removes=not job.config.keep_shards)
            self.ranges = [task for piece in dataset.pieces for task in self._tokens.add(piece)] + self._tokens.rest()
            self._left = len(self.ranges)
            self._complete_tokens()

    def calls(self, *, is_last: bool) -> Iterator[tuple[MergeRange | str, Call]]:
        """Yield the calls that are still to be made, by range or suffix.

        Args:
            is_last: Whether to write what completes a dataset in a bucket, or all else.
        """
        dataset, output = self._dataset, self._output
        functions: dict[str, Any] = {
            output.token_suffix: (merge_whole, dataset.pieces, output.token_file, output.token_suffix),
            PROVENANCE_SUFFIX: (make_provenance, dataset.provenance, output.partial(PROVENANCE_SUFFIX)),
            QUARANTINE_SUFFIX: (make_quarantine, dataset.quarantine, output.partial(QUARANTINE_SUFFIX)),
            "idx": (make_index, dataset.parts, output.partial("idx")),
        }
        for suffix in dataset.suffixes:
            completes = output.in_bucket and suffix == dataset.suffixes[-1]
            if suffix in self.files or completes != is_last:
                continue
            if suffix == output.token_suffix and self._tokens is not None:
                yield from ((task, merge_call(task)) for task in self.ranges)
                continue
            function, *arguments = functions[suffix]
            name = f"{suffix.partition('.')[0]}[{output.name}]"
            yield suffix, Call(name=name, place=output.final(suffix), function=function, arguments=tuple(arguments))

    def take(self, what: MergeRange | str, value: Any) -> int:  # noqa: ANN401 - a digest, or a StoredFile
        """Take one call's result; return the number of bytes that it merged."""
        if isinstance(what, str):
            self._complete(value)
            return int(value.size_bytes) if what == self._output.token_suffix else 0
        if self._tokens is not None:
            self._tokens.record(what, value)
            self._left -= 1
            self._complete_tokens()
        return what.size_bytes

    def _complete_tokens(self) -> None:
        if self._tokens is not None and not self._left:
            self._complete(self._tokens.finish())

    def _complete(self, file: StoredFile) -> None:
        self._ledger.record(FileComplete(self._output.recorded_name, file))
        self.files[file.name] = file
