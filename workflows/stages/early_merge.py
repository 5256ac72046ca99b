"""Merge ranges of the output while shards are still being made.

A range can be merged as soon as its shards and all shards before them are committed, because its offset is then known.
workflows.stages.assemble plans the same ranges again and skips those in the ledger. A recorded range is valid only for
the pieces that it was merged from; a shard that was made again is a different piece.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsindex.merging.parts import Piece
from dsindex.merging.ranges import RangePlanner, merge_range
from dsindex.objects.uploads import find_parts
from dsindex.objects.urls import ObjectUrl
from dsindex.storage import output_error
from workflows.execution.calls import Call
from workflows.state.partial_files import remove_partials
from workflows.state.uploads import current_upload, new_upload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.merging.parts import Part
    from dsindex.merging.ranges import MergeRange
    from dsindex.objects.uploads import Upload
    from dsindex.shards.tasks import ShardResult
    from workflows.state.ledger import Ledger
    from workflows.state.publishing import Target


def begin_token_file(target: Target, ledger: Ledger) -> Upload | None:
    """Ensure that the token file exists with all its recorded ranges, or start an empty one.

    Before an empty one is started, partial files of the job's former plans are removed, since no run will use them.

    Returns:
        The upload of which the ranges are parts, if the output is an object; else None.

    Raises:
        OutputError: If it cannot be created.
    """
    final = target.final(target.token_suffix)
    if isinstance(final, ObjectUrl):
        return _begin_upload(final, target, ledger)
    _begin_file(target, ledger)
    return None


def _begin_upload(final: ObjectUrl, target: Target, ledger: Ledger) -> Upload:
    """Return the upload with all recorded ranges, or begin an empty one."""
    path = target.token_file
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
    ledger.record_merge_again(path)
    ending = f".{target.plan_id}.partial"
    remove_partials(former for former in ledger.history.partials if not former.endswith(ending))
    ledger.record_partials([path])
    resize(path, 0)


def resize(path: str, size_bytes: int) -> None:
    """Resize a file, creating it if necessary; added bytes are sparse and take no disk space.

    Raises:
        OutputError: If it cannot be created or resized.
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
    """Return the call that merges a range and returns a RangeResult."""
    return Call(
        name=f"merge[{os.path.basename(target.prefix)}:{task.number:05d}]",
        place=f"{target.final(target.token_suffix)}, bytes {task.begin} to {task.end}",
        function=merge_range,
        arguments=(task,),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSource:
    """A dataset that is made of shards, and how to find a shard's part of it."""

    target: Target
    part_of: Callable[[ShardResult], Part]
    """Returns a shard's part of the dataset."""


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

        For the job's last shard none is returned: workflows.stages.assemble merges the rest.
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
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
