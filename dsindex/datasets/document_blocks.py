"""The blocks of a `.pbin` that begin where documents begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def plan_document_blocks(document_lengths: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Return the token at which each block begins, by the rule of PackedMemMapDatasetMegatron.

    Args:
        document_lengths: Tokens of each document, shape [documents].
        block_size: Tokens per block.

    >>> plan_document_blocks(np.array([3, 4, 2, 9]), 5)
    array([0, 3, 7, 9])
    """
    ends = np.cumsum(document_lengths)
    begins = ends - document_lengths
    total = int(ends[-1]) if len(ends) else 0
    # If a block begins at the start of document i, these blocks begin in it: one per full block_size, and one for the
    # rest, which continues into later documents. The document in which the last one ends is visited next.
    rests = document_lengths % block_size
    num_blocks = document_lengths // block_size + (rests > 0)
    last_ends = begins + num_blocks * block_size
    following = np.searchsorted(begins, last_ends, side="right") - 1
    following = np.where(rests > 0, following, np.arange(1, len(begins) + 1))
    visited = _follow(following)
    counts = num_blocks[visited]
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    planned = np.repeat(begins[visited], counts) + within * block_size
    return planned[planned + block_size <= total]


def _follow(following: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the documents reached from the first one; each leads to a later one, or to itself at the end."""
    step = following.data
    count = len(following)
    visited = np.zeros(count, dtype=np.bool_)
    mark = visited.data
    document = 0
    while document < count and not mark[document]:
        mark[document] = True
        document = step[document]
    return np.flatnonzero(visited)
