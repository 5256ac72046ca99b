"""Where the tokens of a sample are, and how they are copied; compiled, where numba is installed.

Nothing is read outside the tokens, even if an index is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from numba import njit
except ImportError:  # not installed, or not for this numpy

    def njit(**_: object) -> Any:  # noqa: ANN401 - a decorator
        """Leave a function as it is."""
        return lambda function: function


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def find_positions(
    document_index: NDArray[np.signedinteger[Any]], sample_index: NDArray[np.signedinteger[Any]], row: int
) -> tuple[int, int]:
    """Return the first of a sample's positions in the document index, and one past its last; -1 for a damaged index."""
    if 0 <= row < len(sample_index) - 1:
        first, last = int(sample_index[row, 0]), int(sample_index[row + 1, 0])
        if 0 <= first <= last < len(document_index):
            return first, last + 1
    return 0, -1


@njit(cache=True, nogil=True)
def find_part(
    num_tokens: int,
    lengths: NDArray[np.int32],
    pointers: NDArray[np.int64],
    item_shift: int,
    document_index: NDArray[np.signedinteger[Any]],
    sample_index: NDArray[np.signedinteger[Any]],
    row: int,
    extra: int,
    position: int,
) -> tuple[int, int, int, int]:
    """Find the part of a sample that is at a position of the document index.

    Args:
        num_tokens: Tokens in the `.bin`.
        lengths: Number of tokens of each sequence.
        pointers: Byte position of each sequence in the `.bin`.
        item_shift: log2 of a token's bytes.
        document_index: Sequence numbers in the order of training.
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        row: Row of the sample index, as the shuffle index has it. The sample extends to the next.
        extra: Tokens that a sample shares with the next: 1 or 0.
        position: One of the sample's positions.

    Returns:
        Sequence, offset in it, first token in the `.bin`, and number of tokens, which is -1 if the indices point
        outside the data.

    Source: Megatron-core GPTDataset, _query_document_sample_shuffle_indices.
    """
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
def copy_sample(
    tokens: NDArray[Any],
    lengths: NDArray[np.int32],
    pointers: NDArray[np.int64],
    item_shift: int,
    document_index: NDArray[np.signedinteger[Any]],
    sample_index: NDArray[np.signedinteger[Any]],
    row: int,
    extra: int,
    pad: int,
    out: NDArray[np.int64],
) -> bool:
    """Copy the tokens of a sample to `out`, which `pad` fills up; tell whether the indices point into the data."""
    filled, num_tokens = 0, len(tokens)
    first, end = find_positions(document_index, sample_index, row)
    for position in range(first, end):
        _, _, begin, size = find_part(
            num_tokens, lengths, pointers, item_shift, document_index, sample_index, row, extra, position
        )
        if size < 0 or size > len(out) - filled:
            return False
        out[filled : filled + size] = tokens[begin : begin + size]
        filled += size
    out[filled:] = pad
    return bool(end > 0)


def list_parts(columns: tuple[Any, ...], row: int, extra: int, room: int) -> list[tuple[int, int, int, int]] | None:
    """Return the parts of a sample of at most `room` tokens; None if the indices point outside the data."""
    tokens, *others = columns
    first, end = find_positions(*others[-2:], row)
    parts = [find_part(len(tokens), *others, row, extra, position) for position in range(first, end)]
    is_damaged = any(size < 0 for *_, size in parts) or sum(size for *_, size in parts) > room
    return None if end < 0 or is_damaged else parts
