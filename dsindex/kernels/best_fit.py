"""The best-fit kernel, compiled by numba; imported only when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.jit import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def place_all(sizes: NDArray[np.int64], order: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Return the block of each conversation; O(n log capacity).

    `newest[r]` is the most recently filled block with r free places, `older` links it to the one before. The tree has a
    leaf for each r, and a node is 1 iff a leaf under it has a block.

    Args:
        sizes: Tokens of each conversation, in [1, capacity].
        order: Ids in the order in which they are placed.
        capacity: Tokens of a block.

    Returns:
        Block of each conversation, numbered in the order in which blocks are opened; shape of `sizes`.
    """
    width = 1
    while width < capacity + 1:
        width *= 2
    tree = np.zeros(2 * width, np.uint8)
    newest = np.full(capacity + 1, -1, np.int64)
    older = np.full(sizes.size, -1, np.int64)
    blocks = np.empty(sizes.size, np.int64)
    num_blocks = 0
    for conversation in order:
        leaf = _find_room(tree, width + sizes[conversation])
        if leaf == 0:
            free, block = capacity, num_blocks
            num_blocks += 1
        else:
            free = leaf - width
            block = newest[free]
            newest[free] = older[block]
            if newest[free] == -1:
                _clear(tree, leaf)
        blocks[conversation] = block
        free -= sizes[conversation]
        older[block] = newest[free]
        newest[free] = block
        _set(tree, width + free)
    return blocks


@compiled
def _find_room(tree: NDArray[np.uint8], leaf: int) -> int:
    """Return the first set leaf from `leaf` on, or 0: go up to a used right neighbour, then down its left side."""
    if tree[leaf]:
        return leaf
    while leaf > 1 and (leaf % 2 == 1 or tree[leaf + 1] == 0):
        leaf //= 2
    if leaf <= 1:
        return 0
    leaf += 1
    while 2 * leaf < tree.size:
        leaf = 2 * leaf if tree[2 * leaf] else 2 * leaf + 1
    return leaf


@compiled
def _set(tree: NDArray[np.uint8], leaf: int) -> None:
    while leaf >= 1 and tree[leaf] == 0:
        tree[leaf] = 1
        leaf //= 2


@compiled
def _clear(tree: NDArray[np.uint8], leaf: int) -> None:
    tree[leaf] = 0
    leaf //= 2
    while leaf >= 1 and tree[2 * leaf] == 0 and tree[2 * leaf + 1] == 0:
        tree[leaf] = 0
        leaf //= 2
