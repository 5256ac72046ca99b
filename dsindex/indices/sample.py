"""The sample index: the position in the document index, and the token in that document, at which each sample begins.

Sample k begins at token k*L of the part's documents laid end to end. Its row is the first position p in the document
index whose end reaches k*L + x tokens, and the offset k*L minus the tokens before p:

    lengths [20, 50, 60, 30, 100, 5], L = 30, x = 1: tokens before each 0 20 70 130 160 260
    row 1: 31 tokens end in position 1, offset 30 - 20 = 10
    row 4: 121 tokens end in position 2 at its offset 120 - 70 = 50

The document index is cut into blocks; threads first count the tokens of each block, then write its rows.

Source: docs/formats.md §2; megatron.core.datasets helpers.cpp, `build_sample_idx`.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import LimitError
from dsindex.indices.dtypes import sample_dtype
from dsindex.kernels.jit import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from dsindex.indices.epochs import SampleRule

BLOCK_POSITIONS = 1 << 20
"""Positions of the document index that one thread processes at a time."""

GATHERED = 512
"""Lengths fetched at a time."""


def build_sample_index(
    sequence_lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    num_samples: int,
    *,
    rule: SampleRule,
    begin: int = 0,
    threads: int = 1,
) -> NDArray[Any]:
    """Find the first token of each sample.

    Args:
        sequence_lengths: Tokens of the sequences [begin, begin + n), shape [n], none negative.
        document_index: Ids in [begin, begin + n), shape [D].
        num_samples: The result of `epochs.count_samples` for the sum of the lengths in the document index.
        rule: How tokens are cut into samples.
        begin: The sequence id of sequence_lengths[0].
        threads: Threads to use; the result does not depend on it.

    Returns:
        Rows (position in the document index, token offset), shape [num_samples + 1, 2]. The last row is the end of the
        last sample.

    Raises:
        LimitError: If the last row would be negative, which Megatron also refuses.

    >>> from dsindex.indices.epochs import SampleRule
    >>> lengths = np.array([20, 50, 60, 30, 100, 5], np.int32)
    >>> rows = build_sample_index(lengths, np.arange(6, dtype=np.int32), 8, rule=SampleRule(sequence_length=30))
    >>> rows.tolist()
    [[0, 0], [1, 10], [1, 40], [2, 20], [2, 50], [3, 20], [4, 20], [4, 50], [4, 80]]
    """
    rows = np.zeros((num_samples + 1, 2), sample_dtype(len(document_index)))
    length, extra = rule.sequence_length, int(rule.extra_token)
    blocks = [
        (first, min(first + BLOCK_POSITIONS, len(document_index)))
        for first in range(0, len(document_index), BLOCK_POSITIONS)
    ]
    sums = _run(
        threads,
        lambda block: int(_count_tokens(sequence_lengths, begin, document_index, *block)),
        [(block,) for block in blocks],
    )
    ends = list(itertools.accumulate(sums))

    def walk(block: tuple[int, int], before: int) -> None:
        _walk_block(sequence_lengths, begin, document_index, *block, before, length, extra, rows)

    _run(threads, walk, [(block, end - count) for block, end, count in zip(blocks, ends, sums, strict=True)])
    total = ends[-1] if ends else 0
    reached = max(0, (total - extra) // length)
    if reached < num_samples:
        # A kept partial sample ends with the last token: its row is the last position, x tokens before the end.
        last_offset = int(sequence_lengths[int(document_index[-1]) - begin]) - extra
        if last_offset < 0:
            msg = (
                "the last sequence is empty, so the end of the kept partial sample cannot be stored "
                "(Megatron also stops there); use another seed, or drop the partial sample"
            )
            raise LimitError(msg)
        rows[reached + 1 :] = (len(document_index) - 1, last_offset)
    return rows


def _run(threads: int, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    calls = list(calls)
    if threads == 1 or len(calls) == 1:
        return [function(*arguments) for arguments in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda arguments: function(*arguments), calls))


@compiled
def _count_tokens(
    lengths: NDArray[np.int32], begin: int, document_index: NDArray[np.int32], first: int, end: int
) -> int:
    total: Any = 0
    for position in range(first, end):
        # Unsigned, since numba checks every signed index for counting from the end.
        total += np.int64(lengths[np.uint32(document_index[position]) - np.uint32(begin)])
    result: int = total
    return result


@compiled
def _walk_block(
    lengths: NDArray[np.int32],
    begin: int,
    document_index: NDArray[np.int32],
    first: int,
    end: int,
    before: int,
    length: int,
    extra: int,
    rows: NDArray[Any],
) -> None:
    """Write the rows of the samples whose first token, plus x, is in positions [first, end)."""
    # The first row with row * L + x > before; row 0 is (0, 0) whatever the lengths.
    row = max(1, (before - extra) // length + 1)
    target = row * length + extra
    tokens: Any = before
    gathered = np.empty(GATHERED, np.int32)
    for group in range(first, end, GATHERED):
        # Lengths are fetched together, since mispredicted branches would otherwise wait for each of them.
        count = min(GATHERED, end - group)
        for step in range(count):
            gathered[step] = lengths[np.uint32(document_index[group + step]) - np.uint32(begin)]
        for step in range(count):
            start = tokens
            tokens += np.int64(gathered[step])
            while tokens >= target and row < rows.shape[0]:
                rows[row, 0] = group + step
                rows[row, 1] = row * length - start
                row += 1
                target += length
