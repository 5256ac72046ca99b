"""How long documents are, in one pass: exact quantiles, and counts on a logarithmic scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SHARES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
_LARGE = 1 << 16
"""Lengths from here on are kept one by one: they are few, since each stands for so many tokens."""
EDGES: NDArray[np.int64] = np.unique(np.rint(2.0 ** (np.arange(0, 2 * 44) / 2)).astype(np.int64))
"""Where bins begin: 1, 2, 3, 4, 6, 8, 11, 16, …, two for each doubling. Empty documents have a bin before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The documents whose number of tokens is in [begin, end)."""

    begin: int
    end: int
    documents: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """The distribution of lengths."""

    count: int
    total: int
    empty: int
    quantiles: dict[str, int]
    """Share as a percentage -> the length that at least this share does not exceed; empty without lengths."""
    bins: tuple[LengthBin, ...] = ()
    """From the first to the last that has documents, without empty documents."""


def summarize_lengths(blocks: Iterable[NDArray[np.int64]], *, shares: Sequence[float] = SHARES) -> LengthSummary:
    """Count lengths and find their quantiles.

    Args:
        blocks: The lengths, none negative.
        shares: Quantiles as shares of all lengths, from 0 to 1.

    >>> summarize_lengths([np.array([3, 0]), np.array([70_000])], shares=(0, 0.5, 1)).quantiles
    {'0': 0, '50': 3, '100': 70000}
    """
    counter = LengthCounter()
    for block in blocks:
        counter.add(block)
    return counter.summary(shares)


class LengthCounter:
    """Counts lengths."""

    def __init__(self) -> None:
        self._small = np.zeros(_LARGE, np.int64)
        self._large = [np.empty(0, np.int64)]

    def add(self, block: NDArray[np.int64]) -> None:
        """Count the lengths of a block, none negative."""
        if len(block) and block.max() >= _LARGE:
            self._large.append(block[block >= _LARGE])
            block = block[block < _LARGE]
        counts = np.bincount(block)
        self._small[: len(counts)] += counts

    def summary(self, shares: Sequence[float] = SHARES) -> LengthSummary:
        """Return what was counted."""
        below, above = np.cumsum(self._small), np.sort(np.concatenate(self._large))
        num_small = int(below[-1])
        count = num_small + len(above)
        found: dict[str, int] = {}
        for share in shares if count else ():
            rank = max(-(-round(share * 1_000_000) * count // 1_000_000) - 1, 0)
            value = np.searchsorted(below, rank, side="right") if rank < num_small else above[rank - num_small]
            found[f"{share * 100:g}"] = int(value)
        total = int((self._small * np.arange(_LARGE)).sum()) + int(above.sum())
        return LengthSummary(
            count=count, total=total, empty=int(self._small[0]), quantiles=found, bins=self._bins(above)
        )

    def _bins(self, above: NDArray[np.int64]) -> tuple[LengthBin, ...]:
        lengths = np.concatenate([np.arange(1, _LARGE), above])
        documents = np.concatenate([self._small[1:], np.ones(len(above), np.int64)])
        places = np.searchsorted(EDGES, lengths, side="right") - 1
        by_bin, tokens = np.zeros((2, len(EDGES)), np.int64)
        np.add.at(by_bin, places, documents)
        np.add.at(tokens, places, documents * lengths)
        used = np.flatnonzero(by_bin)
        return tuple(
            LengthBin(
                begin=int(EDGES[number]),
                end=int(EDGES[number + 1]) if number + 1 < len(EDGES) else 2**63 - 1,
                documents=int(by_bin[number]),
                tokens=int(tokens[number]),
            )
            for number in (range(int(used[0]), int(used[-1]) + 1) if len(used) else ())
        )
