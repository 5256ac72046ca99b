"""How long documents are: counts by length on a logarithmic scale, and the longest and shortest documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

EDGES: NDArray[np.int64] = np.unique(np.rint(2.0 ** (np.arange(0, 2 * 44) / 2)).astype(np.int64))
"""Where bins begin: 1, 2, 3, 4, 6, 8, 11, 16, …, two for each doubling. Empty documents have a bin before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """The documents whose number of tokens is in [begin, end)."""

    begin: int
    end: int
    documents: int
    tokens: int


class LengthCounter:
    """Counts documents and tokens by length."""

    def __init__(self) -> None:
        self._documents = np.zeros(len(EDGES) + 1, np.int64)
        self._tokens = np.zeros(len(EDGES) + 1, np.int64)

    def add(self, lengths: NDArray[np.int64]) -> None:
        """Count a block of documents."""
        places = np.searchsorted(EDGES, lengths, side="right")
        self._documents += np.bincount(places, minlength=len(self._documents))
        np.add.at(self._tokens, places, lengths)

    def bins(self) -> tuple[LengthBin, ...]:
        """Return the bins from the first to the last that has documents, without empty documents."""
        used = np.flatnonzero(self._documents[1:])
        if not len(used):
            return ()
        return tuple(
            LengthBin(
                begin=int(EDGES[number]),
                end=int(EDGES[number + 1]) if number + 1 < len(EDGES) else 2**63 - 1,
                documents=int(self._documents[number + 1]),
                tokens=int(self._tokens[number + 1]),
            )
            for number in range(int(used[0]), int(used[-1]) + 1)
        )


class Extremes:
    """Keeps the documents with the largest keys, of equal ones the first.

    Args:
        most: Number of documents to keep.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys = np.empty(0, np.int64)
        self._documents = np.empty(0, np.int64)

    def add(self, keys: NDArray[np.int64], documents: NDArray[np.int64]) -> None:
        """Offer documents, whose numbers are above all before."""
        if len(keys) > self._most:
            least = np.partition(keys, len(keys) - self._most)[len(keys) - self._most]
            above, equal = np.flatnonzero(keys > least), np.flatnonzero(keys == least)
            chosen = np.concatenate([above, equal[: self._most - len(above)]])
            keys, documents = keys[chosen], documents[chosen]
        keys, documents = np.concatenate([self._keys, keys]), np.concatenate([self._documents, documents])
        order = np.lexsort((documents, -keys))[: self._most]
        self._keys, self._documents = keys[order], documents[order]

    def documents(self) -> tuple[int, ...]:
        """Return the numbers of the documents, the largest key first."""
        return tuple(self._documents.tolist())
