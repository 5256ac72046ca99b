"""The document index: every sequence id of a part once per epoch, in the order in which training reads them.

Source: docs/formats.md §2; megatron.core.datasets.gpt_dataset, `_build_document_index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import LimitError
from dsindex.indices.dtypes import DOCUMENT_DTYPE
from dsindex.indices.mersenne import shuffle_in_place

if TYPE_CHECKING:
    from numpy.typing import NDArray


def build_document_index(
    begin: int, end: int, num_epochs: int, *, rng: np.random.RandomState, separate_final_epoch: bool
) -> NDArray[np.int32]:
    """Repeat the ids [begin, end) for each epoch and shuffle them, advancing `rng` exactly as Megatron does.

    Args:
        begin: First sequence id of the part.
        end: One past the last sequence id.
        num_epochs: At least 1.
        rng: Freshly seeded with the job's seed.
        separate_final_epoch: Shuffle all epochs but the last together, then the last by itself.

    Returns:
        Sequence ids, shape [num_epochs * (end - begin)].

    Raises:
        LimitError: If an id does not fit int32.

    >>> rng = np.random.RandomState(1234)
    >>> build_document_index(0, 3, 2, rng=rng, separate_final_epoch=True)
    array([0, 1, 2, 1, 2, 0], dtype=int32)
    """
    if end > np.iinfo(DOCUMENT_DTYPE).max:
        msg = f"expected sequence ids below 2**31, got {end} sequences"
        raise LimitError(msg)
    documents = np.empty((num_epochs, end - begin), DOCUMENT_DTYPE)
    if num_epochs:
        documents[0] = np.arange(begin, end, dtype=DOCUMENT_DTYPE)
        documents[1:] = documents[0]
    index = documents.reshape(-1)
    together = len(index)
    if separate_final_epoch and num_epochs > 1:
        together -= end - begin
    shuffle_in_place(index[:together], rng=rng)
    shuffle_in_place(index[together:], rng=rng)
    return index
