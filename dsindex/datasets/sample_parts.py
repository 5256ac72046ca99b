"""Which sequences a sample's tokens come from, and which samples a sequence's go to, without reading tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from dsindex.datasets.indexed import IndexedDataset


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePart:
    """A run of a sample's tokens, and the sequence that it comes from."""

    prefix: str
    """Prefix of the dataset."""
    sequence: int
    """Number of the sequence in the dataset."""
    offset: int
    """Position of the first token in the sequence."""
    num_tokens: int


def find_parts(
    dataset: IndexedDataset,
    document_index: NDArray[Any],
    sample_index: NDArray[Any],
    row: int,
    *,
    num_tokens: int,
    extra: int,
    keeps_empty: bool = False,
) -> list[SamplePart] | None:
    """Return the parts of a sample, in order, as a rule without those that have no tokens.

    Args:
        dataset: The tokens.
        document_index: Sequence numbers in the order of training.
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        row: Row of the sample index where the sample begins.
        num_tokens: Tokens of a whole sample.
        extra: Tokens that a sample shares with the next: 1 or 0.
        keeps_empty: Whether to return parts without tokens as well.

    Returns:
        The parts; None if the indices point outside the data, as `assemble_samples` tells.
    """
    tokens, lengths, pointers, shift = dataset.token_columns()
    if not 0 <= row < len(sample_index) - 1:
        return None
    (first, first_offset), (last, last_offset) = sample_index[row : row + 2].tolist()
    if not 0 <= first <= last < len(document_index):
        return None
    parts = []
    room = num_tokens
    for position in range(first, last + 1):
        sequence = int(document_index[position])
        if not 0 <= sequence < len(lengths):
            return None
        length = int(lengths[sequence])
        low = first_offset if position == first else 0
        high = last_offset + extra if position == last else length
        begin = (int(pointers[sequence]) >> shift) + low
        if not 0 <= low <= high <= length or high - low > room or not 0 <= begin <= len(tokens) - (high - low):
            return None
        if high > low or keeps_empty:
            parts.append(SamplePart(prefix=dataset.prefix, sequence=sequence, offset=low, num_tokens=high - low))
        room -= high - low
    return parts


def find_occurrences(
    sequences: range,
    dataset: IndexedDataset,
    document_index: NDArray[Any],
    sample_index: NDArray[Any],
    shuffle_index: NDArray[Any],
    *,
    extra: int,
) -> list[Occurrence] | int:
    """Return where the tokens of sequences that follow each other occur in the samples, by sample number.

    Args:
        sequences: Their numbers in the dataset.
        dataset: The tokens.
        document_index: Sequence numbers in the order of training.
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
        shuffle_index: Row of the sample index for each sample, shape [samples].
        extra: Tokens that a sample shares with the next: 1 or 0.

    Returns:
        The occurrences; where the indices point outside the samples, the row that does not exist.
    """
    seen: Counter[int] = Counter()
    found = []
    for position in find_range(document_index, sequences.start, sequences.stop).tolist():
        sequence = int(document_index[position])
        seen[sequence] += 1
        length = int(dataset.sequence_lengths[sequence])
        for row, begin, end in zip(*rows_with_position(sample_index, position, length, extra), strict=True):
            found.append((int(row), seen[sequence], sequence, int(begin), int(end)))
    rows = np.array([row for row, *_ in found], np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < len(shuffle_index):
        return int(rows.max())
    numbers = find_values(shuffle_index, rows, len(shuffle_index))
    sample_of = dict(zip(shuffle_index[numbers].tolist(), numbers.tolist(), strict=True))
    occurrences = [
        Occurrence(sample=sample_of[row], epoch=epoch, sequence=sequence, offset=begin, num_tokens=end - begin)
        for row, epoch, sequence, begin, end in found
        if row in sample_of
    ]
    return sorted(occurrences, key=lambda each: (each.sample, each.sequence, each.offset))


# Find values in the large arrays of an index cache, block by block on all CPUs.

BLOCK = 1 << 20
"""Items that are compared at once, so that what is compared stays in the CPU's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Tokens of a document in a training sample."""

    sample: int
    """Number of the sample, in the order of training."""
    epoch: int
    """1 for the first copy of the sequence in the document index, 2 for the second, and so on."""
    sequence: int
    """Number of the sequence in the dataset."""
    offset: int
    """Position of the first token in the sequence."""
    num_tokens: int
    dataset: int = 0
    """Number of the dataset in the blend."""


def find_range(array: NDArray[Any], begin: int, end: int) -> NDArray[np.int64]:
    """Return the positions of the values in [begin, end), in order."""
    return _in_blocks(len(array), lambda a, b: np.flatnonzero((array[a:b] >= begin) & (array[a:b] < end)))


def find_values(array: NDArray[Any], values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the positions of any of the values, in order.

    Args:
        array: What is searched, shape [n].
        values: The wanted ones, each in [0, size).
        size: What every item should be below; larger ones are passed over.
    """
    wanted = _table(values, size)
    return _in_blocks(len(array), lambda a, b: np.flatnonzero(_look_up(wanted, array[a:b])))


def find_pairs(
    firsts: NDArray[Any], seconds: NDArray[Any], first: int, values: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Return the positions where `firsts` is `first` and `seconds` is any of the values, in order."""
    wanted = _table(values, size)

    def search(begin: int, end: int) -> NDArray[np.int64]:
        own = np.flatnonzero(firsts[begin:end] == first)
        return own[_look_up(wanted, seconds[begin:end][own])]

    return _in_blocks(len(firsts), search)


def rows_with_position(
    sample_index: NDArray[Any], position: int, num_tokens: int, extra: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples that have tokens of the sequence at a position of the document index.

    Args:
        sample_index: Rows [position in the document index, token offset], shape [samples + 1, 2].
        position: Of the sequence in the document index.
        num_tokens: Of the sequence.
        extra: Tokens that a sample shares with the next: 1 or 0.

    Returns:
        Rows of the sample index, and where each one's tokens begin and end in the sequence.
    """
    column = sample_index[:, 0]  # bisect, since numpy's search would copy the column
    low = max(bisect_left(column, position) - 1, 0)
    high = min(bisect_right(column, position), len(sample_index) - 1)
    rows = np.arange(low, max(low, high), dtype=np.int64)
    edges = np.asarray(sample_index[low : max(low, high) + 1], np.int64)
    (first, first_offset), (last, last_offset) = edges[:-1].T, edges[1:].T
    begins = np.where(first == position, first_offset, 0)
    ends = np.minimum(np.where(last == position, last_offset + extra, num_tokens), num_tokens)
    own = (first <= position) & (position <= last) & (begins < ends)
    return rows[own], begins[own], ends[own]


def _table(values: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    table = np.zeros(size + 1, np.bool_)  # the last item stands for all that is out of range
    table[values] = True
    return table


def _look_up(table: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = table.take(values, mode="clip")
    return found & (values >= 0)


def _in_blocks(size: int, search: Callable[[int, int], NDArray[Any]]) -> NDArray[np.int64]:
    begins = range(0, size, BLOCK)
    if len(begins) < 2:
        return np.asarray(search(0, size), np.int64)
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    from dsindex.machine import available_cpus

    with ThreadPoolExecutor(available_cpus()) as pool:
        found = pool.map(lambda begin: search(begin, begin + BLOCK) + begin, begins)
        return np.concatenate([np.empty(0, np.int64), *found])
