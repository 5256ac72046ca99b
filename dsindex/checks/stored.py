"""Read the documents of a dataset by their numbers, from an MMIDIDX pair or a `.pbin`, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsindex.formats.mmididx import read_index
from dsindex.formats.pbin import open_tokens, read_document_lengths
from dsindex.formats.token_array import open_token_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.formats.pbin import PbinHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PbinRun:
    """Consecutive documents of a `.pbin`, whose index can only be read from its beginning."""

    first_document: int
    first_token: int
    lengths: NDArray[np.int64]
    """Tokens of each document, shape [documents]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Consecutive documents."""

    sequences_per_document: NDArray[Any]
    """Number of sequences of each document, shape [documents]."""
    sequence_lengths: NDArray[Any]
    """Tokens of each sequence, shape [sequences]."""
    tokens: NDArray[Any]
    """Token ids of all sequences, shape [tokens]."""


class StoredDocuments(Protocol):
    """Documents of a dataset that can be read by number."""

    end: int
    """One past the number of the last document that can be read."""

    def read(self, first: int, count: int) -> Documents:
        """Return the documents [first, first + count), all of which must exist."""
        ...

    def position(self, document: int) -> int:
        """Return the number that a document has in the dataset."""
        ...


class IndexedDocuments:
    """All documents of an MMIDIDX dataset, whose index must be intact."""

    def __init__(self, prefix: str) -> None:
        self._index = read_index(f"{prefix}.idx")
        self._tokens, _ = open_token_array(f"{prefix}.bin", self._index.dtype)
        self.end = self._index.header.num_documents

    def read(self, first: int, count: int) -> Documents:
        """Return the documents [first, first + count)."""
        index = self._index
        boundaries = index.document_indices[first : first + count + 1]
        begin, end = int(boundaries[0]), int(boundaries[-1])
        lengths = index.sequence_lengths[begin:end]
        at_byte = index.sequence_pointers[begin] if begin < index.header.num_sequences else 0
        token = int(at_byte) // index.dtype.itemsize
        return Documents(
            sequences_per_document=np.diff(boundaries),
            sequence_lengths=lengths,
            tokens=self._tokens[token : token + int(lengths.sum(dtype=np.int64))],
        )

    def position(self, document: int) -> int:
        """Return the document's own number."""
        return document


class ShuffledDocuments:
    """Documents of a shuffled MMIDIDX dataset by the numbers that they had before.

    Args:
        prefix: The dataset, whose index must be intact.
        first: Number of the first document that can be read.
        positions: Place in the dataset of that document and of those after it.
    """

    def __init__(self, prefix: str, first: int, positions: NDArray[np.int64]) -> None:
        self._documents = IndexedDocuments(prefix)
        self._first = first
        self._positions = positions
        self.end = first + len(positions)

    def read(self, first: int, count: int) -> Documents:
        """Return the documents [first, first + count)."""
        numbers = self._positions[first - self._first :][:count].tolist()
        found = [self._documents.read(number, 1) for number in numbers]
        none = np.empty(0, np.int64)
        return Documents(
            sequences_per_document=np.concatenate([none, *(each.sequences_per_document for each in found)]),
            sequence_lengths=np.concatenate([none, *(each.sequence_lengths for each in found)]),
            tokens=np.concatenate([none, *(each.tokens for each in found)]),
        )

    def position(self, document: int) -> int:
        """Return the number that a document has in the dataset."""
        at = document - self._first
        return int(self._positions[at]) if at < len(self._positions) else document


class PbinDocuments:
    """A run of documents of a `.pbin`."""

    def __init__(self, path: str, header: PbinHeader, run: PbinRun) -> None:
        self._run = run
        self._tokens = open_tokens(path, header)
        self._ends = run.first_token + np.concatenate(([0], np.cumsum(run.lengths)))
        self.end = run.first_document + len(run.lengths)

    def read(self, first: int, count: int) -> Documents:
        """Return the documents [first, first + count)."""
        begin = first - self._run.first_document
        return Documents(
            sequences_per_document=np.ones(count, np.int64),
            sequence_lengths=self._run.lengths[begin : begin + count],
            tokens=self._tokens[self._ends[begin] : self._ends[begin + count]],
        )

    def position(self, document: int) -> int:
        """Return the document's own number."""
        return document


def read_runs(path: str, header: PbinHeader, bounds: Iterable[tuple[int, int]]) -> Iterator[PbinRun]:
    """Read runs of documents in one pass over the index of a `.pbin`.

    Args:
        path: The file.
        header: Its header.
        bounds: First document of each run and one past its last, ascending, without overlap; runs are shorter if the
            file has fewer documents.

    Raises:
        FormatError: If the index is damaged.
    """
    chunks = read_document_lengths(path, header)
    held = np.empty(0, np.int64)
    document = token = 0
    for begin, end in bounds:
        while True:
            passed = held[: begin - document]
            document, token = document + len(passed), token + int(passed.sum())
            held = held[len(passed) :]
            chunk = next(chunks, None) if document + len(held) < end else None
            if chunk is None:
                break
            held = np.concatenate((held, chunk))
        yield PbinRun(first_document=begin, first_token=token, lengths=held[: end - begin])
