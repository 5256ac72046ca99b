"""Kernel that finds characters by their first two bytes in UTF-8. Imports numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.jit import compiled
from dsindex.kernels.vectors import LANES, NOTHING, ONE, count_before, mark_from

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def find_characters(
    data: NDArray[np.uint8], begin: int, end: int, lowest: int, pairs: NDArray[np.bool_], places: NDArray[np.int64]
) -> int:
    """Write where characters begin whose first two bytes are wanted, ascending.

    Args:
        data: UTF-8.
        begin: Index in `data` from which to search.
        end: Index in `data` up to which to search; no character begins in the byte before it.
        lowest: The smallest first byte that is wanted, at least 0x80.
        pairs: Whether the first two bytes, as a big-endian number, are wanted; shape [65536].
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
