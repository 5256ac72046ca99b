"""Kernel that counts how often each token id occurs. Imports numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.kernels.jit import compiled

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@compiled
def count_tokens(tokens: NDArray[Any], counts: NDArray[np.int64]) -> tuple[int, int, int]:
    """Add the occurrences of each id to `counts`.

    Args:
        tokens: Integers, shape [T].
        counts: Shape [ids]; other ids are only counted together.

    Returns:
        How many tokens have another id, and the smallest and the largest of those; (0, 0, 0) if there are none.
    """
    others, smallest, largest = 0, 0, 0
    for index in range(len(tokens)):
        token = int(tokens[index])
        if 0 <= token < len(counts):
            counts[token] += 1
        else:
            smallest = token if others == 0 else min(smallest, token)
            largest = token if others == 0 else max(largest, token)
            others += 1
    return others, smallest, largest
