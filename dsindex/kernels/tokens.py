"""Kernel that inserts one token id between others and narrows all of them in one pass. Imports numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def insert_token(
    tokens: NDArray[np.uint32], places: NDArray[np.int64], token: int, result: NDArray[Any]
) -> tuple[int, int]:
    """Write tokens to `result` with another token inserted at given places; ids too large for its type are truncated.

    Args:
        tokens: Shape [T].
        places: Ascending indices into `result`, shape [P].
        token: Id to insert there.
        result: Shape [T + P].

    Returns:
        The largest of `tokens`, or 0 if there are none, and how many of them equal `token`.
    """
    largest, count, begin = np.uint32(0), 0, 0
    for number in range(len(places) + 1):
        end = places[number] - number if number < len(places) else len(tokens)
        source, target = tokens[begin:end], result[begin + number : end + number]
        for index in range(len(source)):
            value = source[index]
            target[index] = value
            largest = max(largest, value)
            count += value == token
        if number < len(places):
            result[places[number]] = token
        begin = end
    return int(largest), count
