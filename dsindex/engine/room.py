"""Disk space: the estimated need of shards and output, compared with what is free."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import format_size
from dsindex.errors import OutputError
from dsindex.store.storage import can_map, free_bytes, nearest_folder
from dsindex.store.urls import folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The size of a job, extrapolated from a sample."""

    tokens: float
    """Tokens of all keys, EOD included."""
    documents: float
    """Documents of all inputs."""
    token_margin: float = 0.0
    """The tokens are so many more or fewer in one job of twenty at most; 0 if everything was read."""

    def scaled(self, share: float) -> Estimate:
        """Return the estimate for a share of the records."""
        margin = self.token_margin * share
        return Estimate(tokens=self.tokens * share, documents=self.documents * share, token_margin=margin)

    @property
    def shown_documents(self) -> str:
        """The documents, to two digits unless everything was read."""
        return f"{self.documents:,.0f}" if not self.token_margin else _two_digits(self.documents, round)

    @property
    def shown_tokens(self) -> str:
        """The tokens with their range, to two digits unless everything was read."""
        if not self.token_margin:
            return f"{self.tokens:,.0f}"
        if self.token_margin >= self.tokens:
            return f"{_two_digits(self.tokens, round)} (the inputs can be read in too few places for a range)"
        low = _two_digits(self.tokens - self.token_margin, math.floor)
        high = _two_digits(self.tokens + self.token_margin, math.ceil)
        return f"{_two_digits(self.tokens, round)} ({low} to {high})"


def _two_digits(value: float, rounded: Callable[[float], int]) -> str:
    """Return a number that is rounded to two digits.

    >>> _two_digits(684_280_716, round), _two_digits(684_280_716, math.ceil), _two_digits(7, round)
    ('680,000,000', '690,000,000', '7')
    """
    unit = 10 ** max(0, math.floor(math.log10(max(value, 1))) - 1)
    return f"{rounded(value / unit) * unit:,}"


_LATE_SHARE = 0.3
"""Share of the output that is written while the shards that it is made of are still there."""


def check_room(
    estimate: Estimate,
    *,
    itemsize: int,
    num_keys: int,
    output_folder: str,
    work_dir: str,
    unfinished: Sequence[str] = (),
) -> None:
    """Refuse a job whose shards and output would not fit on disk.

    Args:
        estimate: The estimated size of the job.
        itemsize: Bytes per token on disk.
        num_keys: Number of keys, each of which makes a dataset.
        output_folder: Folder of the output, which exists; or an address.
        work_dir: Folder of the shards, which need not exist; or an address.
        unfinished: Files of the output that an earlier run has written.

    Raises:
        OutputError: If space is short, naming the folder and the needed and free space.
    """
    indices = int(estimate.documents * num_keys * 24)
    output = int(estimate.tokens * itemsize) + indices
    shards = output + int(estimate.documents * 16)
    work = work_dir if os.path.isdir(work_dir) else folder_of(work_dir)
    needs = {output_folder: output}
    if os.path.isdir(work) and os.path.isdir(output_folder) and _are_on_one_disk(work, output_folder):
        needs[output_folder] = shards + int(_LATE_SHARE * output)  # tokens of shards go as they are merged
    else:
        needs[work] = shards
    already = size_of_files(work_dir) + sum(map(_allocated_bytes, unfinished))
    for place, needed in needs.items():
        require_room(
            place,
            needed - already,
            what="shards and output",
            remedy="make room, or put shards elsewhere with --work-dir",
        )


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
        wanted, there = format_size(needed), format_size(free)
        raise OutputError(f"{folder}: about {wanted} are needed for {what}, {there} are free; {remedy}")


def size_of_files(folder: str) -> int:
    """Return the disk space that the files below a folder take; 0 if it does not exist."""
    return sum(_allocated_bytes(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)


def _allocated_bytes(path: str) -> int:
    """Return the disk space that a file takes, which is less than its size if it has holes."""
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0  # removed meanwhile


def _are_on_one_disk(*folders: str) -> bool:
    if not all(map(can_map, folders)):  # one is in an object store
        return False
    return len({os.stat(nearest_folder(folder)).st_dev for folder in folders}) == 1
