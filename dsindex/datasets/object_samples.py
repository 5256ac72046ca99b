"""The tokens of samples of a dataset in an object store: those of a batch are requested together, the next ones ahead.

A sample is read by its sequences, those that follow each other in the `.bin` together. As the shuffle index says which
samples come next, a reader that goes forwards, by samples or by batches, waits for no request but the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dsindex.datasets.reading_order import ReadingOrder
from dsindex.datasets.sample_parts import find_parts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.objects.arrays import ObjectArray

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
