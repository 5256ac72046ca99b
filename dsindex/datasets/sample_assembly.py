"""The kernel that copies the tokens of samples from a mapped `.bin`, so that no Python call is made per sequence.

It never reads outside `tokens`, even if an index is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@njit(cache=True, nogil=True)
def assemble_samples(
    tokens: NDArray[Any],
    lengths: NDArray[np.int32],
    pointers: NDArray[np.int64],
    item_shift: int,
    document_index: NDArray[np.signedinteger[Any]],
    sample_index: NDArray[np.signedinteger[Any]],
    rows: NDArray[np.integer[Any]],
    extra: int,
    pad: int,
    out: NDArray[np.int64],
) -> int:
    """Copy the tokens of samples into the rows of `out`; a sample extends from its row of the sample index to the next.

    Args:
        tokens: All tokens of the `.bin`.
        lengths: Number of tokens of each sequence.
        pointers: Byte position of each sequence in the `.bin`.
        item_shift: log2 of a token's bytes.
        document_index: Sequence numbers in the order of training.
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        rows: Rows of the sample index, as the shuffle index has them, shape [n].
        extra: Tokens that a sample shares with the next: 1 or 0.
        pad: Fills up a partial sample.
        out: Shape [n, sequence length + extra].

    Returns:
        Number of samples copied; less than n if the next one points outside the data.

    Source: Megatron-core GPTDataset, _query_document_sample_shuffle_indices.
    """
    for k in range(len(rows)):
        if _assemble_sample(
            tokens, lengths, pointers, item_shift, document_index, sample_index, int(rows[k]), extra, pad, out[k]
        ):
            continue
        return k
    return len(rows)


@njit(cache=True, nogil=True)
def _assemble_sample(
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
    if row < 0 or row >= len(sample_index) - 1:
        return False
    first, last = sample_index[row, 0], sample_index[row + 1, 0]
    if first < 0 or last < first or last >= len(document_index):
        return False
    filled = 0
    for position in range(first, last + 1):
        sequence = document_index[position]
        if sequence < 0 or sequence >= len(lengths):
            return False
        low = sample_index[row, 1] if position == first else 0
        high = sample_index[row + 1, 1] + extra if position == last else lengths[sequence]
        # In this order, no sum can overflow.
        if low < 0 or high < low or high > lengths[sequence] or high - low > len(out) - filled:
            return False
        count = high - low
        begin = (pointers[sequence] >> item_shift) + low
        if begin < 0 or begin > len(tokens) - count:
            return False
        for k in range(count):
            out[filled + k] = tokens[begin + k]
        filled += count
    out[filled:] = pad
    return True
