"""Which samples will be asked for next, told from those that were: batches that advance by equal steps.

A worker of a DataLoader is given every n-th batch of the sampler, so in order each of its batches is the one before
moved by as many samples as all workers take. Samples one after the other are batches of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ReadingOrder:
    """The batches that a reader asked for so far."""

    def __init__(self) -> None:
        self._last: list[int] = []
        self._step = 0
        self._streak = 0
        """Batches that were as expected, one after the other."""
        self._ahead = 0
        """Batches after the last one that were expected before."""

    def expected_after(self, numbers: Sequence[int], *, most: int) -> list[int]:
        """Note a batch, and return the numbers expected after it that were not returned before.

        They grow with the batches that were as expected, and come in portions of half of `most`, so that neighbours are
        read together.

        Args:
            numbers: The batch.
            most: Most numbers to be ahead of the reader.
        """
        batch = list(numbers)
        if not batch:
            return []
        step = batch[0] - self._last[0] if self._last else 0
        goes_on = step != 0 and len(batch) == len(self._last) and self._moved(step) == batch
        if goes_on and step == self._step:
            self._streak += 1
            self._ahead = max(0, self._ahead - 1)
        else:
            self._streak = self._ahead = 0
            self._step = step if goes_on else 0
        self._last = batch
        if self._streak == 0:
            return []
        depth = min(2 ** min(self._streak, 16), max(1, most // len(batch)))
        if self._ahead > depth // 2:
            return []
        found = [number for ahead in range(self._ahead + 1, depth + 1) for number in self._moved(ahead * self._step)]
        self._ahead = depth
        return found

    def _moved(self, step: int) -> list[int]:
        return [number + step for number in self._last]
