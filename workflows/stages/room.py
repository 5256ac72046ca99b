"""Disk space: the estimated need of shards and output, compared with what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import OutputError
from dsindex.objects.urls import is_url
from dsindex.storage import free_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workflows.options.build import BuildConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The size of a job, extrapolated from a sample."""

    tokens: float
    """Tokens of all keys, EOD included."""
    documents: float
    """Documents of all inputs."""

    def scaled(self, share: float) -> Estimate:
        """Return the estimate for a share of the records."""
        return Estimate(tokens=self.tokens * share, documents=self.documents * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCopies:
    """How often the documents are in the work folder."""

    at_most: int = 1
    """Before the output is written."""
    at_end: int = 1
    """While the output is written."""


def shard_copies(config: BuildConfig) -> ShardCopies:
    """Return how often a build has its documents in the work folder; a shuffle adds its runs and then its buckets."""
    if config.shuffle_documents is None:
        return ShardCopies()
    return ShardCopies(at_most=3, at_end=2) if config.keep_shards else ShardCopies(at_most=2, at_end=1)


def check_room(
    estimate: Estimate,
    *,
    itemsize: int,
    num_keys: int,
    output_folder: str,
    work_dir: str,
    unfinished: Sequence[str] = (),
    copies: ShardCopies = ShardCopies(),
    exports: int = 0,
) -> None:
    """Refuse a job whose shards and output would not fit on disk.

    Args:
        estimate: The estimated size of the job.
        itemsize: Bytes per token on disk.
        num_keys: Number of keys, each of which makes a dataset.
        output_folder: Folder of the output, which exists; or an address.
        work_dir: Folder of the shards, which need not exist; or an address.
        unfinished: Files of the output that an earlier run has written.
        copies: How often the documents are in the work folder.
        exports: Bytes of what is made of the output afterwards, in the same folder.

    Raises:
        OutputError: If space is short, naming the folder and the needed and free space.
    """
    output = int(estimate.tokens * itemsize + estimate.documents * num_keys * 24)
    shards = output + int(estimate.documents * 16)
    work = work_dir if is_url(work_dir) or os.path.isdir(work_dir) else os.path.dirname(work_dir)
    needs = {output_folder: output}
    if os.path.isdir(work) and os.path.isdir(output_folder) and os.stat(work).st_dev == os.stat(output_folder).st_dev:
        needs[output_folder] = max(output + shards * copies.at_end, shards * copies.at_most)
    else:
        needs[work] = shards * copies.at_most
    # Shards are gone by then.
    needs[output_folder] = max(needs[output_folder], output + exports)
    needs = {place: needed for place, needed in needs.items() if not is_url(place)}  # buckets have no size
    already = size_of_files(work_dir) + sum(map(_allocated_bytes, unfinished))
    what = "shards, output and exports" if exports else "shards and output"
    for place, needed in needs.items():
        require_room(place, needed - already, what=what, remedy="make room, or put shards elsewhere with --work-dir")


def require_room(folder: str, needed: int, *, what: str, remedy: str) -> None:
    """Refuse to write more than fits on disk.

    Args:
        folder: An existing folder.
        needed: Estimated bytes.
        what: Names what they are for.
        remedy: Says what to do.

    Raises:
        OutputError: If fewer bytes are free.
    """
    free = free_bytes(folder)
    if needed > free:
        msg = f"{folder}: about {_gigabytes(needed)} are needed for {what}, {_gigabytes(free)} are free; {remedy}"
        raise OutputError(msg)


def size_of_files(folder: str) -> int:
    """Return the disk space that the files below a folder take; 0 if it does not exist."""
    return sum(_allocated_bytes(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)


def _allocated_bytes(path: str) -> int:
    """Return the disk space that a file takes, which is less than its size if it has holes."""
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0  # removed meanwhile


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.2f} GB"
