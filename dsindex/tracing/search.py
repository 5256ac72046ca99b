"""Find values in the large arrays of an index cache, block by block on all CPUs."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda begin: search(begin, begin + BLOCK) + begin, begins)
        return np.concatenate([np.empty(0, np.int64), *found])
