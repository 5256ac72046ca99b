"""Pack conversations into blocks of L tokens, and assemble the arrays that a training step reads.

A block contains whole conversations. Target i is token i + 1 of the **same** conversation; the last token has no
target. So the loss mask at i is the mask of token i + 1, and 0 at the end of a conversation and on padding.

For context parallelism, each conversation is padded to a multiple of some number of tokens, so that all ranks get
equal shares of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import LimitError
from dsindex.formats.dtypes import starts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One row of a batch; `tokens`, `targets`, `loss_mask` and `position_ids` have shape [L]."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    """Next token of the same conversation; the pad id at the last token and on padding."""
    loss_mask: NDArray[np.float32]
    """1 where the target is trainable, else 0."""
    position_ids: NDArray[np.int64]
    """Position within the padded conversation, or within the padding at the end of the block; both count from 0."""
    sequence_boundaries: NDArray[np.int32]
    """Start of each conversation, then the end of the last, where padding begins; shape [conversations + 1]."""
    cu_seqlens: NDArray[np.int32]
    """`sequence_boundaries`, plus L if padding ends the block: attention treats that padding as one more sequence."""
    cu_seqlens_unpadded: NDArray[np.int32]
    """Cumulative numbers of tokens without padding; same shape as `cu_seqlens`."""


def assemble_block(
    conversations: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    *,
    sequence_length: int,
    pad_id: int,
    pad_to_multiple: int = 1,
) -> Block:
    """Assemble a block from conversations, in the given order.

    Args:
        conversations: Tokens and mask (1 = trainable) of each conversation.
        sequence_length: L, in tokens.
        pad_id: The padding token.
        pad_to_multiple: Each conversation is padded to a multiple of this number of tokens.

    Raises:
        ValueError: If the padded conversations have more than L tokens in total, or a mask and its tokens differ in
            length.

    >>> block = assemble_block([(np.array([7, 8, 9]), np.array([0, 0, 1]))], sequence_length=4, pad_id=0)
    >>> block.tokens.tolist(), block.targets.tolist(), block.loss_mask.tolist()
    ([7, 8, 9, 0], [8, 9, 0, 0], [0.0, 1.0, 0.0, 0.0])
    """
    for tokens, mask in conversations:
        if len(tokens) != len(mask):
            raise ValueError(f"a conversation has {len(tokens)} tokens, but its mask has {len(mask)}")
    lengths = np.array([len(tokens) for tokens, _ in conversations], dtype=np.int64)
    padded_lengths = -(-lengths // pad_to_multiple) * pad_to_multiple
    boundaries, unpadded_starts = (starts_of(sizes).astype(np.int32) for sizes in (padded_lengths, lengths))
    total = int(boundaries[-1])
    if total > sequence_length:
        raise ValueError(f"the conversations have {total} tokens, more than the {sequence_length} of a block")
    all_tokens = np.full(sequence_length, pad_id, dtype=np.int64)
    targets = np.full(sequence_length, pad_id, dtype=np.int64)
    loss_mask = np.zeros(sequence_length, dtype=np.float32)
    for (tokens, mask), begin in zip(conversations, boundaries.tolist(), strict=False):
        end = begin + len(tokens)
        all_tokens[begin:end] = tokens
        targets[begin : end - 1] = tokens[1:]
        loss_mask[begin : end - 1] = mask[1:]
    final_end = [sequence_length] if total < sequence_length else []
    cu_seqlens = np.append(boundaries, np.array(final_end, np.int32))
    return Block(
        tokens=all_tokens,
        targets=targets,
        loss_mask=loss_mask,
        position_ids=np.arange(sequence_length) - np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens)),
        sequence_boundaries=boundaries,
        cu_seqlens=cu_seqlens,
        cu_seqlens_unpadded=np.append(unpadded_starts, unpadded_starts[-1:] if final_end else unpadded_starts[:0]),
    )


# Assign whole conversations to blocks of L tokens: best fit, longest first.
#
# The packing depends only on the lengths, L and the multiple to which lengths are padded, not on shards, workers or
# time. Each conversation goes into the fullest block with enough room; among equally full blocks, into the one that was
# filled last. Conversations of equal length are placed in the order of their ids. In the result, the conversations of a
# block are in ascending order. Blocks are shuffled with a fixed seed, because best fit sorts them by the length of
# their conversations and some trainers read packs in file order.

MAX_SEQUENCE_LENGTH = 2**27
"""Largest L, in tokens: the search keeps an integer for each possible amount of free space."""
MAX_SEQUENCES = 2**31 - 1
ORDER_SEED = 1234


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """The assignment of conversations to blocks."""

    sequence_length: int
    """L: tokens per block."""
    conversations: NDArray[np.int32]
    """Ids of the conversations, block after block; ascending within each block."""
    block_starts: NDArray[np.int64]
    """Start of each block in `conversations`, then the end of the last; shape [blocks + 1]."""
    num_tokens: int
    """Number of tokens in all blocks, without padding."""

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
        """Fraction of the blocks' positions that hold tokens rather than padding; 1 if there are no blocks."""
        return self.num_tokens / (self.num_blocks * self.sequence_length) if self.num_blocks else 1.0

    def block(self, number: int) -> NDArray[np.int32]:
        """Return the ids of one block's conversations."""
        return self.conversations[self.block_starts[number] : self.block_starts[number + 1]]


def lay_out_blocks(
    lengths: ArrayLike, *, sequence_length: int, pad_to_multiple: int = 1, drop_longer: bool = False
) -> BlockLayout:
    """Assign conversations to blocks by best fit, longest first; takes about 24 bytes of memory per conversation.

    Args:
        lengths: Number of tokens of each conversation, in [1, sequence_length]; the index is the conversation's id.
        sequence_length: L, in tokens.
        pad_to_multiple: Each conversation is padded to a multiple of this number of tokens.
        drop_longer: Leave out conversations of more than L tokens.

    Returns:
        An assignment with every conversation exactly once, except those that `drop_longer` leaves out.

    Raises:
        ValueError: If a length, L or the multiple is out of range.
        LimitError: If L is larger than MAX_SEQUENCE_LENGTH, or there are more than MAX_SEQUENCES conversations.

    >>> plan = lay_out_blocks([5, 3, 4, 4], sequence_length=8)
    >>> [plan.block(number).tolist() for number in range(plan.num_blocks)], plan.fill
    ([[0, 1], [2, 3]], 1.0)
    """
    from dsindex.chat.best_fit import assign_blocks  # imports numba, which is slow

    length_array = np.asarray(lengths).reshape(-1)
    sizes = length_array if length_array.dtype.kind in "iu" else length_array.astype(np.int64)
    if sequence_length < 1:
        raise ValueError(f"sequence_length {sequence_length} is less than 1")
    if not 1 <= pad_to_multiple <= sequence_length or sequence_length % pad_to_multiple:
        raise ValueError(f"sequence_length {sequence_length} is not a multiple of pad_to_multiple {pad_to_multiple}")
    if sequence_length > MAX_SEQUENCE_LENGTH:
        raise LimitError(f"sequence_length {sequence_length} is above the limit of {MAX_SEQUENCE_LENGTH}")
    if sizes.size > MAX_SEQUENCES:
        raise LimitError(f"{sizes.size:,} conversations are more than the {MAX_SEQUENCES:,} that can be packed")
    if sizes.size and (sizes.min() < 1 or (sizes.max() > sequence_length and not drop_longer)):
        number = int(np.flatnonzero((sizes < 1) | (sizes > sequence_length))[0])
        raise ValueError(f"conversation {number} has {sizes[number]} tokens, not 1 to {sequence_length}")
    padded_sizes = np.minimum(sizes, sequence_length + 1).astype(np.int32)
    if pad_to_multiple > 1:
        padded_sizes = -(-padded_sizes // pad_to_multiple) * pad_to_multiple
    num_longer = np.count_nonzero(padded_sizes > sequence_length)
    order = _sort_by(sequence_length - padded_sizes, np.arange(len(padded_sizes), dtype=np.int32))[num_longer:]
    blocks, num_blocks = assign_blocks(padded_sizes, order, sequence_length)
    blocks = np.random.RandomState(ORDER_SEED).permutation(num_blocks).astype(np.int32)[blocks]
    conversations = _sort_by(blocks, order)
    return BlockLayout(
        sequence_length=sequence_length,
        conversations=conversations,
        block_starts=starts_of(np.bincount(blocks, minlength=num_blocks)),
        num_tokens=int(sizes[conversations].sum(dtype=np.int64)),
    )


def _sort_by(keys: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return ids sorted by key, and by id where keys are equal; sorting both as one number is the fastest way."""
    combined = keys.astype(np.int64)
    combined <<= 32
    combined |= ids
    combined.sort()
    return combined.astype(np.int32)  # the low 32 bits
