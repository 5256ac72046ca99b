"""Best-fit packing of conversations into blocks, compiled by numba.

Import this module only inside the function that packs: importing numba is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def assign_blocks(sizes: NDArray[np.int32], order: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int]:
    """Assign conversations to blocks, the longest conversation first, each into the fullest block with enough room.

    The cost is O(n) copies, plus a search of O(sqrt(capacity)) for each block and each distinct length. Conversations
    of equal length are placed together: the fullest block with enough room takes as many as fit, because it stays the
    fullest. `newest[r]` is the block with r free tokens that was filled last, and `older[block]` is the one filled
    before it. The search divides the values of r into stretches; `num_used[s]` counts the values in stretch s that have
    a block, so the search can skip a stretch without any.

    Args:
        sizes: Length of each conversation in tokens, at least 1.
        order: The conversations to place, longest first, each of at most `capacity` tokens. At most 2**31 - 1.
        capacity: Length of a block in tokens.

    Returns:
        (blocks, num_blocks): the block of each conversation of `order`, numbered in the order in which blocks were
        opened, and how many there are.
    """
    stretch = int(np.sqrt(capacity)) + 1
    num_used = np.zeros(capacity // stretch + 1, np.int32)
    newest = np.full(capacity + 1, -1, np.int32)
    older = np.empty(order.size, np.int32)  # one entry per block; there are at most as many blocks as conversations
    blocks = np.empty(order.size, np.int32)
    num_blocks = 0
    at = end = 0
    while at < order.size:
        size = sizes[order[at]]
        while end < order.size and sizes[order[end]] == size:
            end += 1
        while at < end:
            free = size
            while free <= capacity and newest[free] == -1:
                free += stretch if free % stretch == 0 and num_used[free // stretch] == 0 else 1
            if free > capacity:
                free, block = capacity, num_blocks
                num_blocks += 1
            else:
                block = newest[free]
                newest[free] = older[block]
                num_used[free // stretch] -= newest[free] == -1
            last = min(at + free // size, end)
            free -= (last - at) * size
            blocks[at:last] = block
            at = last
            num_used[free // stretch] += newest[free] == -1
            older[block] = newest[free]
            newest[free] = block
    return blocks, num_blocks
