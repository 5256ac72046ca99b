"""Documents in a random order, which follows from a seed and their number alone: `--shuffle-documents SEED`.

The order is a Feistel network over the numbers of the documents: output document k is input document
`permute(k)`, found without a table, so memory does not grow with the number of documents, and any part of the output
can be written by itself.

Source: M. Luby and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988; J. Black
and P. Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.documents import Documents

ROUNDS = 6
LEAST_BITS = 3
"""Bits of half a number: the network needs some room to mix the numbers of few documents."""
BLOCK_DOCUMENTS = 1 << 16
"""Documents whose places are looked up at once."""
PIECE_TOKENS = 1 << 22
"""The most tokens that are returned at once."""


def permute(numbers: NDArray[np.integer[Any]], count: int, seed: int) -> NDArray[np.int64]:
    """Return the images of numbers under a pseudorandom permutation of range(count).

    Args:
        numbers: From 0 to count - 1, in any shape.
        count: At least 1.
        seed: From 0 to 2**64 - 1.

    >>> permute(np.arange(8), 8, seed=1234)
    array([0, 6, 7, 3, 2, 1, 4, 5])
    """
    half = np.uint64(max(LEAST_BITS, -(-(count - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half)) - 1)
    images = np.array(numbers, np.uint64)
    outside = np.ones(images.shape, np.bool_)
    while outside.any():  # an image beyond the range is mapped again, until it is inside
        left, right = images[outside] >> half, images[outside] & mask
        for number in range(ROUNDS):
            left, right = right, left ^ (_mix(right, seed, number) & mask)
        images[outside] = left << half | right
        outside = images >= np.uint64(count)
    return images.astype(np.int64)


def _mix(words: NDArray[np.uint64], seed: int, number: int) -> NDArray[np.uint64]:
    """Return a hash of words for a round. Source: splitmix64."""
    with np.errstate(over="ignore"):
        mixed = words + np.uint64(seed) + np.uint64(number + 1) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class ShuffledDocuments:
    """The documents of several datasets in one random order."""

    parts: Sequence[Documents]
    seed: int

    @property
    def num_documents(self) -> int:
        """Documents of all datasets."""
        return sum(part.num_documents for part in self.parts)

    def sources(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return rows [dataset, number in it] of the documents [begin, end)."""
        starts = np.array([0, *accumulate(part.num_documents for part in self.parts)])
        numbers = permute(np.arange(begin, end), self.num_documents, self.seed)
        places = np.searchsorted(starts, numbers, side="right") - 1
        return np.stack([places, numbers - starts[places]], axis=1)

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each document."""
        blocks = [spans[:, 2] - spans[:, 1] for spans in self._blocks(0, self.num_documents)]
        return np.concatenate(blocks) if blocks else np.empty(0, np.int64)

    def tokens(self, begin: int, end: int) -> Iterator[NDArray[Any]]:
        """Yield the tokens of the documents [begin, end) in pieces, copied."""
        for spans in self._blocks(begin, end):
            piece: list[NDArray[Any]] = []
            size = 0
            for part, first, last in spans.tolist():
                for start in range(first, last, PIECE_TOKENS):
                    stop = min(start + PIECE_TOKENS, last)
                    if size + stop - start > PIECE_TOKENS:
                        yield np.concatenate(piece)
                        piece, size = [], 0
                    piece.append(self.parts[part].tokens[start:stop])
                    size += stop - start
            if piece:
                yield np.concatenate(piece)

    def _blocks(self, begin: int, end: int) -> Iterator[NDArray[np.int64]]:
        """Yield rows [dataset, first token, one past the last] of the documents [begin, end)."""
        for first in range(begin, end, BLOCK_DOCUMENTS):
            places, numbers = self.sources(first, min(first + BLOCK_DOCUMENTS, end)).T
            spans = np.empty((len(numbers), 3), np.int64)
            spans[:, 0] = places
            for place in np.unique(places).tolist():
                spans[places == place, 1:] = self.parts[place].spans(numbers[places == place])
            yield spans
