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
def place_all(sizes: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int, NDArray[np.int32]]:
    """Assign conversations to blocks, the longest conversation first, each into the fullest block with enough room.

    The cost is O(n) copies, plus a search of O(sqrt(capacity)) for each block and each distinct length. Conversations
    of equal length are placed together: the fullest block with enough room takes as many as fit, because it stays the
    fullest. `newest[r]` is the block with r free tokens that was filled last, and `older[block]` is the one filled
    before it. The search divides the values of r into stretches; `num_used[s]` counts the values in stretch s that have
    a block, so the search can skip a stretch without any.

    Args:
        sizes: Length of each conversation in tokens, at least 1. Conversations longer than `capacity` are left out. At
            most 2**31 - 1 conversations.
        capacity: Length of a block in tokens.

    Returns:
        (blocks, num_blocks, order): the block of each conversation, −1 if it is left out, and the placed conversations,
        longest first. Blocks are numbered in the order in which they were opened.
    """
    order, ends = _longest_first(sizes, capacity)
    stretch = int(np.sqrt(capacity)) + 1
    num_used = np.zeros(capacity // stretch + 1, np.int32)
    newest = np.full(capacity + 1, -1, np.int32)
    older = np.empty(order.size, np.int32)  # one entry per block; there are at most as many blocks as conversations
    blocks = np.full(sizes.size, -1, np.int32)
    num_blocks = 0
    at = 0
    while at < order.size:
        size = sizes[order[at]]
        end = ends[size]
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
            while at < last:
                blocks[order[at]] = block
                at += 1
            num_used[free // stretch] += newest[free] == -1
            older[block] = newest[free]
            newest[free] = block
    return blocks, num_blocks, order


@njit(cache=True, nogil=True)
def _longest_first(sizes: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Sort the conversations of at most `capacity` tokens, longest first; also return where each length ends."""
    longest = 0
    for size in sizes:
        if longest < size <= capacity:
            longest = size
    ends = np.zeros(longest + 2, np.int64)
    for size in sizes:
        if size <= capacity:
            ends[size] += 1
    total = 0
    for size in range(longest, -1, -1):
        total, ends[size] = total + ends[size], total
    order = np.empty(total, np.int32)
    for conversation in range(sizes.size):
        size = sizes[conversation]
        if size <= capacity:
            order[ends[size]] = conversation
            ends[size] += 1
    return order, ends


@njit(cache=True, nogil=True)
def arrange(
    blocks: NDArray[np.int32], numbers: NDArray[np.int32], conversations: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Write the conversations of each block, in ascending order, to `conversations`; return where each block starts.

    Args:
        blocks: The block of each conversation, −1 if it is left out.
        numbers: The position of each block in the result; a permutation.
        conversations: Output array with one entry for each placed conversation.
    """
    starts = np.zeros(numbers.size + 1, np.int64)
    for block in blocks:
        if block >= 0:
            starts[numbers[block] + 1] += 1
    for number in range(numbers.size):
        starts[number + 1] += starts[number]
    nexts = starts[:-1].copy()
    for conversation in range(blocks.size):
        if blocks[conversation] >= 0:
            number = numbers[blocks[conversation]]
            conversations[nexts[number]] = conversation
            nexts[number] += 1
    return starts
