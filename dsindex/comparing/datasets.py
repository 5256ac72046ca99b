"""Compare two tokenized datasets: whether their tokens are the same, where they first differ, and by which rule.

Tools that turn the same texts into tokens mostly differ by a rule for the edges of documents: whether EOD ends them,
whether BOS begins them, and what becomes of empty texts (dsindex.comparing.rules).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.comparing.arrays import first_unequal
from dsindex.comparing.documents import Difference, Documents, find_difference
from dsindex.comparing.rules import Edges, count_bare, find_bare_difference, propose_edges
from dsindex.datasets.indexed import IndexedDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.comparing.documents import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two datasets."""

    same_tokens: bool
    """Whether all tokens are the same, one after the other."""
    same_boundaries: bool
    """Whether documents and sequences have the same tokens, too."""
    edges: tuple[Edges, Edges]
    difference: Difference | None
    """The first difference that the rules do not explain; None if they explain all."""
    empty_sequences: tuple[int, int] | None = None
    """Sequences without tokens, if that is all in which documents with the same tokens differ."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return self.same_tokens and self.same_boundaries

    @property
    def is_explained(self) -> bool:
        """Whether nothing differs but the rules for the edges and for empty documents."""
        return self.difference is None


def compare_datasets(
    first: Dataset, second: Dataset, *, on_progress: Callable[[int], None] | None = None
) -> Comparison:
    """Compare the tokens of two datasets, document by document, in bounded memory.

    Args:
        first: One dataset.
        second: Another one; token types may differ.
        on_progress: Called with the number of documents of the first one that were compared, from time to time.
    """
    one, other = Documents(first), Documents(second)
    plain = Edges(), Edges()
    difference = find_difference(one, other, on_progress=on_progress)
    if difference is None:
        same = _have_same_sequences(first, second)
        return Comparison(
            same_tokens=True,
            same_boundaries=same,
            edges=plain,
            difference=None,
            empty_sequences=None if same else _count_empty_sequences(first, second),
        )
    edges = propose_edges(first, second)
    counted = count_bare(one, edges[0]), count_bare(other, edges[1])
    return Comparison(
        same_tokens=len(one.tokens) == len(other.tokens) and first_unequal(one.tokens, other.tokens) is None,
        same_boundaries=False,
        edges=counted,
        difference=find_bare_difference((one, other), edges),
    )


def _have_same_sequences(first: Dataset, second: Dataset) -> bool:
    """Tell whether two datasets with the same documents cut them into the same sequences; a `.pbin` has none."""
    if not isinstance(first, IndexedDataset) or not isinstance(second, IndexedDataset):
        return True
    pairs = (
        (first.sequence_lengths, second.sequence_lengths),
        (first.document_indices, second.document_indices),
    )
    return all(len(a) == len(b) and first_unequal(a, b) is None for a, b in pairs)


def _count_empty_sequences(first: Dataset, second: Dataset) -> tuple[int, int] | None:
    """Return the sequences without tokens of two datasets with the same documents; None if others differ, too."""
    if not isinstance(first, IndexedDataset) or not isinstance(second, IndexedDataset):
        return None
    a, b = (dataset.sequence_lengths[dataset.sequence_lengths > 0] for dataset in (first, second))
    return (len(first) - len(a), len(second) - len(b)) if np.array_equal(a, b) else None
