"""Assemble conversations into a block of L tokens, as a training step reads it.

Every conversation keeps all its tokens. Target i is token i + 1 of the **same** conversation; its last token has no
target. So the loss mask at i is the mask of token i + 1, and 0 at the end of a conversation and on padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One row of a batch; all arrays but the last have shape [L]."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    """Next token of the same conversation; the pad id if there is none."""
    loss_mask: NDArray[np.float32]
    """1 where the target is trainable."""
    position_ids: NDArray[np.int64]
    """Position in the conversation or in the padding, from 0."""
    sequence_boundaries: NDArray[np.int32]
    """Start of each conversation, then the end of the last, where padding begins; shape [conversations + 1]."""


def assemble_block(
    conversations: Sequence[tuple[NDArray[Any], NDArray[Any]]], *, sequence_length: int, pad_id: int
) -> Block:
    """Return a block of conversations, one after the other.

    Args:
        conversations: Tokens and mask (1 = trainable) of each.
        sequence_length: L, in tokens.
        pad_id: Fills the rest.

    Returns:
        The block.

    Raises:
        ValueError: If the conversations have more than L tokens together, or a mask is not as long as its tokens.

    >>> block = assemble_block([(np.array([7, 8, 9]), np.array([0, 0, 1]))], sequence_length=4, pad_id=0)
    >>> block.tokens.tolist(), block.targets.tolist(), block.loss_mask.tolist()
    ([7, 8, 9, 0], [8, 9, 0, 0], [0.0, 1.0, 0.0, 0.0])
    """
    for tokens, mask in conversations:
        if len(tokens) != len(mask):
            raise ValueError(f"expected a mask for each of {len(tokens)} tokens, got {len(mask)}")
    boundaries = np.cumsum([0, *(len(tokens) for tokens, _ in conversations)], dtype=np.int64)
    total = int(boundaries[-1])
    if total > sequence_length:
        raise ValueError(f"expected at most {sequence_length} tokens in a block, got {total}")
    all_tokens = np.full(sequence_length, pad_id, dtype=np.int64)
    targets = np.full(sequence_length, pad_id, dtype=np.int64)
    loss_mask = np.zeros(sequence_length, dtype=np.float32)
    position_ids = np.zeros(sequence_length, dtype=np.int64)
    for (tokens, mask), begin in zip(conversations, boundaries[:-1].tolist(), strict=True):
        end = begin + len(tokens)
        all_tokens[begin:end] = tokens
        targets[begin : end - 1] = tokens[1:]
        loss_mask[begin : end - 1] = mask[1:]
        position_ids[begin:end] = np.arange(len(tokens))
    position_ids[total:] = np.arange(sequence_length - total)
    return Block(
        tokens=all_tokens,
        targets=targets,
        loss_mask=loss_mask,
        position_ids=position_ids,
        sequence_boundaries=boundaries.astype(np.int32),
    )


# Assign conversations to blocks of L tokens without cutting any: best fit, the longest first.
#
# The packing is a function of the list of lengths and L, so it does not depend on shards, workers or time. A
# conversation goes into the fullest block that still has room for it, or, among equally full ones, into the most
# recently filled. Among equally long conversations, the first goes first. In the result, a block's conversations are in
# ascending order, and blocks are in the order of their first conversation.

MAX_SEQUENCE_LENGTH = 2**27
"""Largest block in tokens; the search stores two integers per possible remainder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """The assignment of conversations to blocks."""

    sequence_length: int
    """L: tokens per block."""
    conversations: NDArray[np.int64]
    """Ids of conversations, block after block, ascending in each."""
    block_starts: NDArray[np.int64]
    """Start of each block in `conversations`, then the end of the last; shape [blocks + 1]."""
    num_tokens: int
    """Tokens in all blocks, without padding."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_starts) - 1

    @property
    def num_padding(self) -> int:
        """Number of padding tokens in all blocks."""
        return self.num_blocks * self.sequence_length - self.num_tokens

    @property
    def fill(self) -> float:
        """Share of the blocks' capacity that is filled; 1 without blocks."""
        return self.num_tokens / (self.num_blocks * self.sequence_length) if self.num_blocks else 1.0

    def block(self, number: int) -> NDArray[np.int64]:
        """Return the ids of one block's conversations."""
        return self.conversations[self.block_starts[number] : self.block_starts[number + 1]]


def lay_out_blocks(lengths: ArrayLike, *, sequence_length: int) -> BlockLayout:
    """Assign conversations to blocks by best fit, the longest first.

    Args:
        lengths: Tokens of each conversation, each in [1, sequence_length]; the index is its id.
        sequence_length: L, in tokens.

    Returns:
        An assignment with every conversation exactly once.

    Raises:
        ValueError: If a length or L is out of range.
        LimitError: If L is larger than MAX_SEQUENCE_LENGTH.

    >>> plan = lay_out_blocks([5, 3, 4, 4], sequence_length=8)
    >>> [plan.block(number).tolist() for number in range(plan.num_blocks)], plan.fill
    ([[0, 1], [2, 3]], 1.0)
    """
    from dsindex.kernels.best_fit import place_all  # numba: loaded only when it is used

    sizes = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if sequence_length < 1:
        raise ValueError(f"expected a sequence_length of at least 1, got {sequence_length}")
    if sequence_length > MAX_SEQUENCE_LENGTH:
        raise LimitError(f"sequence_length: expected at most {MAX_SEQUENCE_LENGTH}, got {sequence_length}")
    if sizes.size and not 1 <= sizes.min() <= sizes.max() <= sequence_length:
        outside = int(np.flatnonzero((sizes < 1) | (sizes > sequence_length))[0])
        raise ValueError(f"conversation {outside}: expected 1 to {sequence_length} tokens, got {sizes[outside]}")
    order = np.argsort(-sizes, kind="stable")
    return _arrange(sizes, place_all(sizes, order, sequence_length), sequence_length)


def _arrange(sizes: NDArray[np.int64], blocks: NDArray[np.int64], sequence_length: int) -> BlockLayout:
    """Number the blocks by their first conversation and list the conversations of each."""
    _, firsts, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    rank = np.empty(firsts.size, dtype=np.int64)
    rank[np.argsort(firsts)] = np.arange(firsts.size)
    numbers = rank[inverse]
    starts = np.zeros(firsts.size + 1, dtype=np.int64)
    np.cumsum(np.bincount(numbers, minlength=firsts.size), out=starts[1:])
    return BlockLayout(
        sequence_length=sequence_length,
        conversations=np.argsort(numbers, kind="stable"),
        block_starts=starts,
        num_tokens=int(sizes.sum()),
    )
