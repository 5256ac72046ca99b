"""The shuffle index: the order in which the samples of an index are drawn.

Source: docs/formats.md §2; megatron.core.datasets.gpt_dataset, `_build_shuffle_index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.indices.dtypes import shuffle_dtype
from dsindex.indices.mersenne import shuffle_in_place

if TYPE_CHECKING:
    from numpy.typing import NDArray


def build_shuffle_index(
    num_samples: int, *, shuffled_together: int | None = None, rng: np.random.RandomState
) -> NDArray[Any]:
    """Permute sample ids, advancing `rng` exactly as Megatron does.

    Args:
        num_samples: Samples in the index.
        shuffled_together: Permute [0, shuffled_together) first, then the rest by itself; None for all at once.
        rng: In the state left by build_document_index.

    Returns:
        Permutation of range(num_samples), shape [num_samples].

    >>> build_shuffle_index(6, shuffled_together=4, rng=np.random.RandomState(1234))
    array([0, 1, 2, 3, 5, 4], dtype=uint32)
    """
    index = np.arange(num_samples, dtype=shuffle_dtype(num_samples))
    together = num_samples if shuffled_together is None else shuffled_together
    shuffle_in_place(index[:together], rng=rng)
    shuffle_in_place(index[together:], rng=rng)
    return index
