"""The tokens and documents of a dataset, read in blocks, so that memory does not depend on the number of documents."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dsindex.datasets.indexed import IndexedDataset
from dsindex.formats.pbin import open_tokens, read_document_lengths, read_pbin_header
from dsindex.readable import is_stored, stored_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.formats.token_array import Tokens

BLOCK_ITEMS = 1 << 18
"""Entries of an index held in memory at once."""


class TokenStore(Protocol):
    """Tokens in file order, and where documents begin."""

    @property
    def tokens(self) -> Tokens:
        """All tokens, to be sliced, shape [tokens]."""
        ...

    @property
    def num_documents(self) -> int:
        """Number of documents, including empty ones."""
        ...

    def document_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in file order, a block at a time."""
        ...

    def document_span(self, document: int) -> tuple[int, int]:
        """Return the first token of a document, and one past its last.

        Raises:
            IndexError: If there is no such document.
        """
        ...

    def documents_at(self, positions: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the documents of tokens, which are in ascending order: number, first token, one past the last."""
        ...


class IndexedStore:
    """An MMIDIDX dataset.

    Args:
        prefix: Path without `.bin` and `.idx`.
        check: Check every entry of the index.

    Raises:
        FormatError: If a file is missing or damaged.
    """

    def __init__(self, prefix: str, *, check: bool = True) -> None:
        self.dataset = IndexedDataset(prefix, check=check)
        self.tokens, self._lengths, self._pointers, self._shift = self.dataset.token_columns()
        self._boundaries = self.dataset.document_indices
        self.num_documents = self.dataset.num_documents
        self.num_sequences = len(self.dataset)
        self.paths: tuple[str, ...] = (f"{prefix}.bin", f"{prefix}.idx")

    def document_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in file order, a block at a time."""
        for begin in range(0, self.num_documents, BLOCK_ITEMS):
            end = min(begin + BLOCK_ITEMS, self.num_documents)
            yield np.diff(self._begins(self._boundaries[begin : end + 1]))

    def sequence_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each sequence, in file order, a block at a time."""
        for begin in range(0, self.num_sequences, BLOCK_ITEMS):
            yield self._lengths[begin : begin + BLOCK_ITEMS].astype(np.int64)

    def document_span(self, document: int) -> tuple[int, int]:
        """Return the first token of a document, and one past its last.

        Raises:
            IndexError: If there is no such document.
        """
        _require(self.paths[1], document, self.num_documents, "document")
        begin, end = self._begins(self._boundaries[document : document + 2]).tolist()
        return begin, end

    def sequence_span(self, sequence: int) -> tuple[int, int]:
        """Return the first token of a sequence, and one past its last.

        Raises:
            IndexError: If there is no such sequence.
        """
        _require(self.paths[1], sequence, self.num_sequences, "sequence")
        begin = int(self._pointers[sequence]) >> self._shift
        return begin, begin + int(self._lengths[sequence])

    def documents_at(self, positions: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the documents of tokens, which are in ascending order: number, first token, one past the last."""
        found = []
        for position in positions:
            # Empty sequences begin where the next one does, so the last that begins at or before owns the token.
            sequence = bisect.bisect_right(self._pointers, position << self._shift) - 1
            document = self.document_of(sequence)
            found.append((document, *self.document_span(document)))
        return found

    def document_of(self, sequence: int) -> int:
        """Return the document of a sequence that there is."""
        # Not np.searchsorted, which would copy all of the boundaries: they are not aligned in the file.
        return bisect.bisect_right(self._boundaries, sequence) - 1

    def _begins(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first token of each sequence; the number of tokens for the one past the last."""
        begins = np.full(len(sequences), len(self.tokens), np.int64)
        inside = (sequences >= 0) & (sequences < self.num_sequences)
        begins[inside] = self._pointers[sequences[inside]] >> self._shift
        return begins


class PackedStore:
    """A `.pbin` of any version, whose index is read as a stream.

    Args:
        path: The `.pbin`.

    Raises:
        FormatError: If the file is not a `.pbin`, or its index is damaged.
    """

    def __init__(self, path: str) -> None:
        self.header = read_pbin_header(path)
        self.tokens = open_tokens(path, self.header)
        self.paths: tuple[str, ...] = (path,)
        self.num_documents = sum(map(len, self.document_lengths()))

    def document_lengths(self) -> Iterator[NDArray[np.int64]]:
        """Yield the tokens of each document, in file order, a block at a time."""
        return read_document_lengths(self.paths[0], self.header)

    def document_span(self, document: int) -> tuple[int, int]:
        """Return the first token of a document, and one past its last.

        Raises:
            IndexError: If there is no such document.
        """
        _require(self.paths[0], document, self.num_documents, "document")
        first_document = first_token = 0
        for lengths in self.document_lengths():
            if document < first_document + len(lengths):
                begin = first_token + int(lengths[: document - first_document].sum())
                return begin, begin + int(lengths[document - first_document])
            first_document += len(lengths)
            first_token += int(lengths.sum())
        raise IndexError(document)

    def documents_at(self, positions: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return the documents of tokens, which are in ascending order: number, first token, one past the last."""
        found: list[tuple[int, int, int]] = []
        first_document = first_token = 0
        for lengths in self.document_lengths():
            if len(found) == len(positions):
                break
            ends = first_token + np.cumsum(lengths)
            while len(found) < len(positions) and len(ends) and positions[len(found)] < ends[-1]:
                number = int(np.searchsorted(ends, positions[len(found)], side="right"))
                found.append((first_document + number, int(ends[number] - lengths[number]), int(ends[number])))
            first_document += len(lengths)
            first_token = int(ends[-1]) if len(ends) else first_token
        return found


def size_of(paths: Sequence[str]) -> dict[str, int]:
    """Return the sizes of those files that exist, by path."""
    return {path: stored_size(path) for path in paths if is_stored(path)}


def _require(path: str, number: int, total: int, what: str) -> None:
    if not 0 <= number < total:
        have = f"from 0 to {total - 1}" if total else "in it, but it has none"
        msg = f"{path}: expected a {what} {have}, got {number}"
        raise IndexError(msg)
