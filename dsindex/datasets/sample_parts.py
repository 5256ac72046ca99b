"""Which sequences a sample's tokens come from, and which samples a sequence's go to, without reading tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.datasets.samples import Occurrence


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
    from dsindex.datasets.samples import Occurrence, find_range, find_values, rows_with_position

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
