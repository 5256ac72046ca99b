"""Assemble conversations into a block of L tokens, as a training step reads it.

Every conversation keeps all its tokens. Target i is token i + 1 of the **same** conversation; its last token has no
target. So the loss mask at i is the mask of token i + 1, and 0 at the end of a conversation and on padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


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
