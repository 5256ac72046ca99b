"""Find and copy the tokens of a sample; compiled if numba is installed.

Even with a damaged index, nothing outside the tokens is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

try:
    from numba import njit
except ImportError:  # not installed, or not for this numpy

    def njit(**_: object) -> Any:  # noqa: ANN401 - a decorator
        """Return a decorator that does not compile."""
        return lambda function: function


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Columns: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.int64], int, NDArray[Any], NDArray[Any]]"
"""Tokens of each sequence, byte position of each in the `.bin`, log2 of a token's bytes; the document index, and the
sample index: rows [position in the document index, token offset], shape [samples + 1, 2]."""


@njit(cache=True, nogil=True)
def find_positions(columns: Columns, row: int) -> tuple[int, int]:
    """Return a sample's first position in the document index, and one past its last; -1 if an index is damaged."""
    _, _, _, document_index, sample_index = columns
    if 0 <= row < len(sample_index) - 1:
        first, last = int(sample_index[row, 0]), int(sample_index[row + 1, 0])
        if 0 <= first <= last < len(document_index):
            return first, last + 1
    return 0, -1


@njit(cache=True, nogil=True)
def find_part(num_tokens: int, columns: Columns, row: int, extra: int, position: int) -> tuple[int, int, int, int]:
    """Find the part of a sample that is at a position of the document index.

    Args:
        num_tokens: Tokens in the `.bin`.
        columns: Where sequences and samples are.
        row: Row of the sample index where the sample begins; it ends at the next row.
        extra: Tokens that a sample shares with the next: 1 or 0.
        position: One of the sample's positions.

    Returns:
        Sequence, offset in it, first token in the `.bin`, and number of tokens, which is -1 if the indices point
        outside the data.

    Source: Megatron-core GPTDataset, _query_document_sample_shuffle_indices.
    """
    lengths, pointers, item_shift, document_index, sample_index = columns
    sequence = int(document_index[position])
    if sequence < 0 or sequence >= len(lengths):
        return 0, 0, 0, -1
    low = int(sample_index[row, 1]) if position == sample_index[row, 0] else 0
    length = int(lengths[sequence])
    size = (int(sample_index[row + 1, 1]) + extra if position == sample_index[row + 1, 0] else length) - low
    begin = (int(pointers[sequence]) >> item_shift) + low
    # In this order, no sum can overflow.
    if low < 0 or size < 0 or size > length - low or begin < 0 or begin > num_tokens - size:
        return 0, 0, 0, -1
    return sequence, low, begin, size


@njit(cache=True, nogil=True)
def copy_sample(tokens: NDArray[Any], columns: Columns, row: int, extra: int, pad: int, out: NDArray[np.int64]) -> bool:
    """Copy a sample's tokens to `out` and fill the rest with `pad`; return whether the indices point into the data."""
    num_filled = 0
    first, end = find_positions(columns, row)
    for position in range(first, end):
        _, _, begin, size = find_part(len(tokens), columns, row, extra, position)
        if size < 0 or size > len(out) - num_filled:
            return False
        out[num_filled : num_filled + size] = tokens[begin : begin + size]
        num_filled += size
    out[num_filled:] = pad
    return bool(end > 0)


def list_parts(
    num_tokens: int, columns: Columns, row: int, extra: int, max_tokens: int
) -> list[tuple[int, int, int, int]] | None:
    """Return the parts of a sample of at most `max_tokens` tokens; None if the indices point outside the data."""
    first, end = find_positions(columns, row)
    parts = [find_part(num_tokens, columns, row, extra, position) for position in range(first, end)]
    is_damaged = any(size < 0 for *_, size in parts) or sum(size for *_, size in parts) > max_tokens
    return None if end < 0 or is_damaged else parts
