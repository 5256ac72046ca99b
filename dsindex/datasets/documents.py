"""The documents of token datasets in any format: where each one ends, and all of them in a random order."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.packed import PbinDocuments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.detect import DetectedDataset
    from dsindex.store.read import Items


BLOCK_DOCUMENTS = 1 << 20
"""Documents whose lengths are held in memory at once: as many as a row group of provenance has rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The tokens of a dataset in file order, and where documents end."""

    path: str
    """The file with the tokens."""
    tokens: Items
    """All tokens, to be sliced, shape [tokens]."""
    num_documents: int
    """Number of documents, including empty ones."""
    ends_of: Callable[[NDArray[np.integer[Any]]], NDArray[np.int64]]
    """Returns the position in `tokens` where each of some documents ends, given their numbers; 0 for number -1."""

    @classmethod
    def of_bounds(cls, path: str, tokens: Items, bounds: NDArray[np.int64]) -> Documents:
        """Return the documents that end at `bounds[1:]`; the first bound is 0."""
        return cls(path=path, tokens=tokens, num_documents=len(bounds) - 1, ends_of=lambda last: bounds[last + 1])

    def spans(self, documents: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """Return rows [first token, one past the last] of documents."""
        return np.stack([self.ends_of(documents - 1), self.ends_of(documents)], axis=1)

    def end(self, document: int) -> int:
        """Return the position in `tokens` where a document ends; 0 for document -1."""
        return int(self.ends_of(np.array([document]))[0])

    def lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in file order, a block at a time."""
        for begin in range(0, self.num_documents, BLOCK_DOCUMENTS):
            numbers = np.arange(begin - 1, min(begin + BLOCK_DOCUMENTS, self.num_documents))
            yield np.diff(self.ends_of(numbers))

    def span(self, document: int) -> tuple[int, int]:
        """Return the first token of a document, and one past its last.

        Raises:
            IndexError: If there is no such document.
        """
        if not 0 <= document < self.num_documents:
            raise IndexError(f"{self.path}: there is no document {document}; it has {self.num_documents:,}")
        return self.end(document - 1), self.end(document)

    def document_at(self, position: int) -> int:
        """Return the number of the document that contains the token at a position."""
        return bisect.bisect_right(range(self.num_documents), position, key=self.end)

    def window(self, first: int, num_documents: int) -> Documents:
        """Return only the documents [first, first + num_documents)."""
        start = self.end(first - 1)
        return Documents(
            path=self.path,
            tokens=self.tokens[start : self.end(first + num_documents - 1)],
            num_documents=num_documents,
            ends_of=lambda documents: self.ends_of(first + documents) - start,
        )


def open_documents(detected: DetectedDataset, *, check: bool = False) -> Documents:
    """Open a dataset and return its documents.

    Raises:
        FormatError: If it is damaged.
    """
    if detected.kind == "pbin":
        return documents_of(PbinDocuments(detected.path))
    return documents_of(IndexedDataset(detected.path, check=check))


def documents_of(dataset: IndexedDataset | PbinDocuments) -> Documents:
    """Return the documents of an open dataset."""
    if isinstance(dataset, PbinDocuments):
        return Documents.of_bounds(dataset.path, dataset.tokens, dataset.document_bounds)
    tokens, _, pointers, shift = dataset.token_columns()
    boundaries, num_sequences = dataset.document_indices, len(dataset)

    def ends_of(documents: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        next_sequences = np.asarray(boundaries[documents + 1])
        ends = np.full(len(next_sequences), len(tokens), np.int64)  # where no sequence follows
        is_sequence = (next_sequences >= 0) & (next_sequences < num_sequences)
        ends[is_sequence] = pointers[next_sequences[is_sequence]] >> shift
        return ends

    return Documents(path=f"{dataset.prefix}.bin", tokens=tokens, num_documents=dataset.num_documents, ends_of=ends_of)


# Documents in a random order that depends only on a seed and the number of documents: `--shuffle-documents SEED`.
#
# The order is a Feistel network over the numbers of the documents: output document k is input document `permute(k)`,
# computed without a table, so memory does not grow with the number of documents, and any part of the output can be
# written independently.
#
# Source: M. Luby and C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988;
# J. Black and P. Rogaway, "Ciphers with arbitrary finite domains", 2002 (cycle walking).

ROUNDS = 6
MIN_HALF_BITS = 3
"""Minimum bits of each half: with fewer, the network would not mix the numbers of few documents well."""
GATHERED_DOCUMENTS = 1 << 16
"""Documents whose positions are looked up at once."""
PIECE_TOKENS = 1 << 22
"""Limit on the tokens of a piece."""


def permute(numbers: NDArray[np.integer[Any]], count: int, seed: int, *, inverse: bool = False) -> NDArray[np.int64]:
    """Return the images of numbers under a pseudorandom permutation of range(count), or under its inverse.

    Args:
        numbers: From 0 to count - 1, in any shape.
        count: More than any of the numbers.
        seed: From 0 to 2**64 - 1.
        inverse: Whether to return the numbers whose images these are.

    >>> permute(np.arange(8), 8, seed=1234)
    array([0, 6, 7, 3, 2, 1, 4, 5])
    """
    half_bits = np.uint64(max(MIN_HALF_BITS, -(-(count - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half_bits)) - 1)
    images = np.array(numbers, np.uint64)
    is_outside = np.ones(images.shape, np.bool_)
    while is_outside.any():  # an image beyond the range is mapped again, until it is inside
        left, right = images[is_outside] >> half_bits, images[is_outside] & mask
        for number in range(ROUNDS)[:: -1 if inverse else 1]:
            if inverse:
                left, right = right ^ (splitmix64(left, seed, number) & mask), left
            else:
                left, right = right, left ^ (splitmix64(right, seed, number) & mask)
        images[is_outside] = left << half_bits | right
        is_outside = images >= np.uint64(count)
    return images.astype(np.int64)


def shuffle_items(items: NDArray[Any], seed: int) -> Iterator[NDArray[Any]]:
    """Yield an item for each document in the random order, a block at a time, copied."""
    for begin in range(0, len(items), BLOCK_DOCUMENTS):
        numbers = np.arange(begin, min(begin + BLOCK_DOCUMENTS, len(items)))
        yield items[permute(numbers, len(items), seed)]


def splitmix64(words: NDArray[np.uint64], seed: int = 0, number: int = 0) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each word; every round `number` has a different hash function."""
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
    inverse: bool = False
    """Whether the random order is undone."""

    @property
    def num_documents(self) -> int:
        """Number of documents of all datasets."""
        return sum(part.num_documents for part in self.parts)

    def sources(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return rows [dataset, number of the document in it] of the documents [begin, end)."""
        starts = np.array([0, *accumulate(part.num_documents for part in self.parts)])
        numbers = permute(np.arange(begin, end), self.num_documents, self.seed, inverse=self.inverse)
        dataset_numbers = np.searchsorted(starts, numbers, side="right") - 1
        return np.stack([dataset_numbers, numbers - starts[dataset_numbers]], axis=1)

    def lengths(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the number of tokens of each of the documents [begin, end)."""
        blocks = [spans[:, 2] - spans[:, 1] for spans in self._blocks(begin, end)]
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
        for first in range(begin, end, GATHERED_DOCUMENTS):
            dataset_numbers, numbers = self.sources(first, min(first + GATHERED_DOCUMENTS, end)).T
            spans = np.empty((len(numbers), 3), np.int64)
            spans[:, 0] = dataset_numbers
            for dataset in np.unique(dataset_numbers).tolist():
                spans[dataset_numbers == dataset, 1:] = self.parts[dataset].spans(numbers[dataset_numbers == dataset])
            yield spans
