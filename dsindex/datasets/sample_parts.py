"""Which sequences a sample's tokens come from, and which samples a sequence's go to, without reading tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsindex.datasets.reading_order import ReadingOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.datasets.samples import Occurrence
    from dsindex.store.object_file import ObjectArray


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


# The tokens of samples of a dataset in an object store: those of a batch are requested together, the next ones ahead.
#
# A sample is read by its sequences, those that follow each other in the `.bin` together. As the shuffle index says
# which samples come next, a reader that goes forwards, by samples or by batches, waits for no request but the first.

AHEAD_BYTES = 4 << 20
MOST_AHEAD = 128
"""Samples that are requested ahead at most."""

Part = tuple[int, int]
"""Token at which a part of a sample begins in the `.bin`, and one past its last."""


def most_ahead(sample_bytes: int) -> int:
    """Return how many samples of so many bytes are requested ahead at most."""
    return min(MOST_AHEAD, AHEAD_BYTES // sample_bytes + 1)


class ObjectSamples:
    """The samples of a dataset in an object store.

    Args:
        dataset: The tokens.
        document_index: Sequence numbers in the order of training.
        sample_index: Rows [position in document_index, token offset], shape [samples + 1, 2].
    """

    def __init__(self, dataset: IndexedDataset, document_index: NDArray[Any], sample_index: NDArray[Any]) -> None:
        self._dataset = dataset
        self._document_index = document_index
        self._sample_index = sample_index
        self._order = ReadingOrder()

    def fill(
        self,
        out: NDArray[np.int64],
        numbers: NDArray[np.integer[Any]],
        shuffle_index: NDArray[Any],
        *,
        extra: int,
        pad: int,
        reads_ahead: bool,
    ) -> int:
        """Copy the tokens of samples into the rows of `out`, as `assemble_samples` does.

        Args:
            out: Shape [n, sequence length + extra].
            numbers: The samples, all of which must exist, shape [n].
            shuffle_index: Row of the sample index for each sample.
            extra: Tokens that a sample shares with the next: 1 or 0.
            pad: Fills up a partial sample.
            reads_ahead: Whether to request the samples that the reader will want next, as far as it can be told.

        Returns:
            Number of samples copied; less than n if the next one points outside the data.

        Raises:
            InputError: If an object cannot be read, or was replaced.
        """
        width = out.shape[1]
        total = len(shuffle_index)
        wanted = [number + total if number < 0 else number for number in numbers.tolist()]
        samples = self._parts(wanted, shuffle_index, width, extra)
        numbers_later: list[int] = []
        if reads_ahead:
            most = most_ahead(width * self._dataset.dtype.itemsize)
            numbers_later = [each for each in self._order.expected_after(wanted, most=most) if 0 <= each < total]
        samples_later = self._parts(numbers_later, shuffle_index, width, extra)
        found = iter(self._tokens().read_many(_joined(samples), later=_joined(samples_later)))
        for row, sample in zip(out, samples, strict=False):
            filled = 0
            for begin, end in sample:
                row[filled : filled + end - begin] = next(found)
                filled += end - begin
            row[filled:] = pad
        return len(samples)

    def expect(self, numbers: Sequence[int], shuffle_index: NDArray[Any], *, width: int, extra: int) -> None:
        """Request the tokens of samples, all of which must exist, without waiting for them."""
        self._tokens().expect(_joined(self._parts(numbers, shuffle_index, width, extra)))

    def _tokens(self) -> ObjectArray:
        return cast("ObjectArray", self._dataset.token_columns()[0])  # as this class is for datasets in stores only

    def _parts(self, numbers: Sequence[int], shuffle_index: NDArray[Any], width: int, extra: int) -> list[list[Part]]:
        """Return the parts of samples, up to one that points outside the data."""
        _, _, pointers, shift = self._dataset.token_columns()
        samples = []
        for number in numbers:
            row = int(shuffle_index[number])
            found = find_parts(
                self._dataset, self._document_index, self._sample_index, row, num_tokens=width, extra=extra
            )
            if found is None:
                break
            begins = [(int(pointers[part.sequence]) >> shift) + part.offset for part in found]
            samples.append([(begin, begin + part.num_tokens) for begin, part in zip(begins, found, strict=True)])
        return samples


def _joined(samples: Sequence[Sequence[Part]]) -> list[Part]:
    return [part for sample in samples for part in sample]
