"""Disk space: the estimated need of shards and output, compared with what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dsindex.amounts import format_size
from dsindex.errors import OutputError
from dsindex.options.config import work_folder_path
from dsindex.store.storage import free_bytes, holds_writes, nearest_folder
from dsindex.store.urls import folder_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dsindex.engine.output import Output
    from dsindex.options.config import WorkConfig

LATE_SHARE = 0.3
"""Share of the shards that are there at a time on a disk, where their tokens go as they are merged."""
INDEX_BYTES = 24
PROVENANCE_BYTES = 16
"""Of a document, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The size of a job, extrapolated from a sample."""

    tokens: float
    """Tokens of all keys, EOD included."""
    documents: float
    """Documents of all inputs."""
    is_exact: bool = True
    """Whether everything was read."""

    def scaled(self, share: float) -> Estimate:
        """Return the estimate for a share of the records."""
        return replace(self, tokens=self.tokens * share, documents=self.documents * share)


def check_room(
    config: WorkConfig, estimate: Estimate, *, itemsize: int, num_keys: int, unfinished: Iterable[Output] = ()
) -> None:
    """Refuse a job whose shards and output would not fit on disk.

    Args:
        config: The options of the job.
        estimate: Its estimated size.
        itemsize: Bytes per token on disk.
        num_keys: Number of keys, each of which makes a dataset.
        unfinished: Outputs of which an earlier run may have written tokens.

    Raises:
        OutputError: If space is short, naming the folder and the needed and free space.
    """
    output_folder, work_dir = folder_of(config.output_prefix), work_folder_path(config)
    output = int(estimate.tokens * itemsize + estimate.documents * num_keys * INDEX_BYTES)
    shards = output + int(estimate.documents * PROVENANCE_BYTES)
    if not (config.keep_shards or holds_writes(output_folder)):
        shards = int(LATE_SHARE * shards)
    kept = (os.path.join(path, name) for path, _, names in os.walk(work_dir) for name in names)
    partials = (each.token_file for each in unfinished)
    needs = {output_folder: output - _allocated_bytes(partials), work_dir: shards - _allocated_bytes(kept)}
    require_room(needs, what="shards and output", remedy="make room, or put shards elsewhere with --work-dir")


def require_room(needs: Mapping[str, int], *, what: str, remedy: str) -> None:
    """Refuse to write more than fits on disk.

    Args:
        needs: Folder → estimated bytes, which are added up on each disk.
        what: Names what they are for.
        remedy: Says what to do.

    Raises:
        OutputError: If fewer bytes are free.
    """
    disks: dict[int, tuple[str, int]] = {}
    for folder in needs:
        if not holds_writes(folder):
            disk = os.stat(nearest_folder(folder)).st_dev
            first, before = disks.get(disk, (folder, 0))
            disks[disk] = first, before + needs[folder]
    for folder, needed in disks.values():
        if needed > (free := free_bytes(folder)):
            wanted, there = format_size(needed), format_size(free)
            raise OutputError(f"{folder}: about {wanted} are needed for {what}, {there} are free; {remedy}")


def _allocated_bytes(paths: Iterable[str]) -> int:
    """Return the disk space that files take, which is less than their size if they have holes."""
    return sum(os.stat(path).st_blocks * 512 for path in paths if os.path.exists(path))
