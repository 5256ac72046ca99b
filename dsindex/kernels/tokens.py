"""Kernel that inserts one token id between others and narrows all of them in one pass. Imports numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.kernels.jit import compiled
from dsindex.kernels.vectors import LANES, NOTHING, ONE, count_before, mark_from

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


# Kernel that finds characters by their first two bytes in UTF-8. Imports numba.


@compiled
def find_characters(
    data: NDArray[np.uint8], begin: int, end: int, lowest: int, pairs: NDArray[np.uint8], places: NDArray[np.int64]
) -> int:
    """Write where characters begin whose first two bytes are wanted, ascending.

    Args:
        data: UTF-8.
        begin: Index in `data` from which to search.
        end: Index in `data` up to which to search; no character begins in the byte before it.
        lowest: The smallest first byte that is wanted, at least 0x80.
        pairs: 1 if the first two bytes, as a big-endian number, are wanted, else 0; shape [65536].
        places: Output: the index of each character's first byte.

    Returns:
        The number of places; -1 if there is no room for all.
    """
    position, count = begin, 0
    while position < end - 1:
        if position + LANES <= len(data):
            marks, step = mark_from(data, position, lowest), LANES
        else:
            marks, step = ONE if data[position] >= lowest else NOTHING, 1
        while marks != NOTHING:
            index = position + count_before(marks)
            marks &= marks - ONE
            if index < end - 1 and pairs[(np.int64(data[index]) << 8) | data[index + 1]]:
                if count == len(places):
                    return -1
                places[count] = index
                count += 1
        position += step
    return count
