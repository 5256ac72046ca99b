"""The documents of a dataset of any format as one array of tokens and the ends of documents, and where two differ."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.comparing.arrays import first_unequal
from dsindex.datasets.indexed import IndexedDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dsindex.datasets.pbin import PbinDocuments
    from dsindex.formats.token_array import Tokens

    Dataset: TypeAlias = IndexedDataset | PbinDocuments

BLOCK_ENDS = 1 << 20
"""Documents whose ends are compared at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first document in which two datasets differ."""

    documents: tuple[int | None, int | None]
    """Its number in each; None where there is no such document."""
    token: int
    """Position of the first token that differs, counted without what the rules take off."""


class Documents:
    """Tokens and ends of documents, as they are mapped from a dataset's files."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.tokens: Tokens = dataset.token_columns()[0] if isinstance(dataset, IndexedDataset) else dataset.tokens
        """All tokens, one document after the other."""

    def __len__(self) -> int:
        """Return the number of documents, including empty ones."""
        return num_documents(self._dataset)

    def ends(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return where the documents [begin, end) end in `tokens`."""
        dataset = self._dataset
        if not isinstance(dataset, IndexedDataset):
            return dataset.document_ends[begin:end]
        _, lengths, pointers, shift = dataset.token_columns()
        following = np.asarray(dataset.document_indices[begin + 1 : end + 1])
        found = np.full(len(following), len(self.tokens), np.int64)  # where no sequence follows
        inside = following < len(lengths)
        found[inside] = pointers[following[inside]] >> shift
        return found

    def end(self, document: int) -> int:
        """Return where a document ends in `tokens`; 0 for -1, which ends before the first."""
        return int(self.ends(document, document + 1)[0]) if document >= 0 else 0

    def document_at(self, position: int) -> int:
        """Return the document that has a token."""
        return bisect_right(range(len(self)), position, key=self.end)


def num_documents(dataset: Dataset) -> int:
    """Return the number of documents, including empty ones."""
    return dataset.num_documents if isinstance(dataset, IndexedDataset) else len(dataset)


def read_document(dataset: Dataset, number: int) -> NDArray[Any]:
    """Return the tokens of a document."""
    return dataset.document(number) if isinstance(dataset, IndexedDataset) else dataset[number]


def find_difference(
    one: Documents, other: Documents, *, on_progress: Callable[[int], None] | None = None
) -> Difference | None:
    """Return the first document in which two datasets differ; None if all are the same.

    Args:
        one: The documents of one dataset.
        other: Those of another one; token types may differ.
        on_progress: Called with the number of documents that are the same, from time to time.
    """

    def advance(tokens: int) -> None:
        if on_progress is not None:
            on_progress(one.document_at(tokens - 1) + 1)

    shared = min(len(one), len(other))
    by_end = _first_unequal_end(one, other, shared)
    # Up to there both have the same boundaries, so the first token that differs is in a document with one number.
    limit = min(one.end(min(by_end, shared - 1)), other.end(min(by_end, shared - 1)))
    token = first_unequal(one.tokens[:limit], other.tokens[:limit], on_progress=advance)
    if token is not None:
        document = one.document_at(token)
        return Difference(documents=(document, document), token=token - one.end(document - 1))
    if by_end < shared:
        return Difference(documents=(by_end, by_end), token=limit - one.end(by_end - 1))
    if len(one) == len(other):
        return None
    return Difference(documents=(shared, None) if len(one) > shared else (None, shared), token=0)


def _first_unequal_end(one: Documents, other: Documents, shared: int) -> int:
    """Return the first of the shared documents that ends elsewhere in the other dataset; their number if none does."""
    for begin in range(0, shared, BLOCK_ENDS):
        end = min(begin + BLOCK_ENDS, shared)
        unequal = np.flatnonzero(one.ends(begin, end) != other.ends(begin, end))
        if len(unequal):
            return begin + int(unequal[0])
    return shared
