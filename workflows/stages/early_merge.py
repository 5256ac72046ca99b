"""Merge ranges of the output while shards are still being made.

A range can be merged as soon as the shards that it is made of, and all shards before them, are committed: its place is
then known. workflows.stages.assemble plans the same ranges again and finds in the ledger which are done. A recorded
range counts only for exactly the pieces that it was made of; a shard that had to be made again is another piece.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.merge import Piece, RangePlanner, merge_range
from dsindex.storage import output_error
from workflows.execution.calls import Call
from workflows.state.partial_files import remove_partials

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.merge import MergeRange, Part, RangeResult
    from dsindex.shards.tokenize import ShardResult
    from workflows.state.ledger import Ledger
    from workflows.state.publishing import Target


def begin_token_file(target: Target, ledger: Ledger) -> None:
    """See to it that there is a file to write ranges into, which has all that the ledger says of it.

    Partial files that the job's former plans began go first: nothing will continue them.

    Raises:
        OutputError: If it cannot be made.
    """
    path = target.token_file
    size_bytes = _size_on_server(path)
    if size_bytes is not None and size_bytes >= ledger.written_bytes(path):
        return
    ledger.record_merge_again(path)
    ending = f".{target.plan_id}.partial"
    remove_partials(former for former in ledger.history.partials if not former.endswith(ending))
    ledger.record_partials([path])
    resize(path, 0)


def resize(path: str, size_bytes: int) -> None:
    """Resize a file, creating it if need be; new parts are empty and take no room.

    Raises:
        OutputError: If that cannot be done.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, 0o666)
        try:
            os.ftruncate(descriptor, size_bytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise output_error(path, error) from error


def range_call(task: MergeRange, target: Target) -> Call:
    """Return a range as a call that returns a RangeResult."""
    return Call(
        name=f"merge[{os.path.basename(target.prefix)}:{task.number:05d}]",
        place=f"{target.final(target.token_suffix)}, bytes {task.begin} to {task.end}",
        function=merge_range,
        arguments=(task,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """Where the tokens of a dataset come from."""

    target: Target
    part_of: Callable[[ShardResult], Part]
    """Gives a shard's part of the dataset."""


class EarlyRanges:
    """The ranges of all datasets of a job that can be merged before the job's last shard is there.

    Args:
        sources: Of each dataset that is made of shards alone.
        ledger: Of the job.
    """

    def __init__(self, sources: Sequence[TokenSource], ledger: Ledger) -> None:
        self._files = [_GrowingFile(source) for source in sources]
        self._ledger = ledger
        self._num_shards = 0
        self._ready: deque[tuple[_GrowingFile, MergeRange]] = deque()
        self._under_way: dict[int, MergeRange] = {}
        self._num_calls = 0

    def has_all(self, results: Sequence[ShardResult | None]) -> bool:
        """Look for new shards, as far as none before them is missing; tell whether all are there.

        Args:
            results: Of all shards in plan order; more of them every time.
        """
        while self._num_shards < len(results):
            result = results[self._num_shards]
            if result is None:
                return False
            for file in self._files:
                self._ready += ((file, task) for task in file.add(result))
            self._num_shards += 1
        return True

    def next_call(self) -> tuple[int, Call] | None:
        """Return a range that can be merged, numbered from 0; None: there is none for now."""
        while self._ready:
            file, task = self._ready.popleft()
            file.begin(self._ledger)
            if self._ledger.range(task) is None:
                number = self._num_calls
                self._num_calls += 1
                self._under_way[number] = task
                return number, range_call(task, file.target)
        return None

    def take(self, number: int, result: RangeResult) -> None:
        """Commit what the call of this number gave."""
        self._ledger.record_range(self._under_way.pop(number), result)


class _GrowingFile:
    """A file of tokens whose first shards are known."""

    def __init__(self, source: TokenSource) -> None:
        self.target = source.target
        self._part_of = source.part_of
        self._has_begun = False
        self._planner = RangePlanner(self.target.token_file, bound_bytes=self.target.bound_bytes)
        # What a head says is known at the end, so the range that has it waits for that.
        self._planner.add(Piece(path="", identity="", offset=0, size_bytes=self.target.head_bytes))

    def add(self, result: ShardResult) -> list[MergeRange]:
        """Take the next shard in plan order; give the ranges that can now be merged."""
        full = self._planner.add(self.target.piece(self._part_of(result)))
        return [task for task in full if task.begin >= self.target.head_bytes]

    def begin(self, ledger: Ledger) -> None:
        """See to it once that the file is there."""
        if not self._has_begun:
            begin_token_file(self.target, ledger)
            self._has_begun = True


def _size_on_server(path: str) -> int | None:
    """Return a file's size as other nodes see it: NFS asks its server when a file is opened, not always before."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
