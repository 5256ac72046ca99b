"""Exact quantiles of many lengths from a few passes over blocks of them, in memory that does not grow with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    Blocks = Callable[[], Iterable[NDArray[np.int64]]]

SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_BITS = 16
_TOP = 48
"""Lengths have at most 63 bits: three levels of 16 below the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """The distribution of lengths."""

    count: int
    total: int
    empty: int
    """Lengths of 0."""
    quantiles: dict[str, int]
    """Share as a percentage -> the length that at least this share does not exceed; empty without lengths."""


def summarize_lengths(blocks: Blocks, *, shares: Sequence[float] = SHARES) -> LengthSummary:
    """Count lengths and find their quantiles: one pass if all are below 65,536, at most four.

    Args:
        blocks: Returns the lengths anew at each call, as blocks of int64, none negative.
        shares: Quantiles as shares of all lengths, from 0 to 1.

    >>> summarize_lengths(lambda: [np.array([3, 0]), np.array([70_000])], shares=(0, 0.5, 1)).quantiles
    {'0': 0, '50': 3, '100': 70000}
    """
    small = np.zeros(1 << _BITS, np.int64)
    count = total = 0
    for block in blocks():
        count += len(block)
        total += int(block.sum())
        small += np.bincount(block[block < len(small)], minlength=len(small))
    below = np.cumsum(small)
    found: dict[str, int] = {}
    for share in shares if count else ():
        rank = max(-(-round(share * 1_000_000) * count // 1_000_000) - 1, 0)
        value = int(np.searchsorted(below, rank, side="right"))
        found[f"{share * 100:g}"] = value if value < len(small) else _select(blocks, rank, count)
    return LengthSummary(count=count, total=total, empty=int(small[0]), quantiles=found)


def _select(blocks: Blocks, rank: int, count: int) -> int:
    """Return the length with a rank, 16 bits at a time from the top."""
    if rank == count - 1:
        return max(int(block.max()) for block in blocks() if len(block))
    prefix = 0
    for shift in range(_TOP, -1, -_BITS):
        counts = np.zeros(1 << _BITS, np.int64)
        for block in blocks():
            chosen = block[block >> (shift + _BITS) == prefix] if shift < _TOP else block
            counts += np.bincount((chosen >> shift) & 0xFFFF, minlength=len(counts))
        below = np.cumsum(counts)
        digit = int(np.searchsorted(below, rank, side="right"))
        rank -= int(below[digit] - counts[digit])
        prefix = prefix << _BITS | digit
    return prefix
