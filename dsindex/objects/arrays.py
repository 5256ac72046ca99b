"""The numbers in an object as an array whose parts are read when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.objects.ranges import JOINED_BYTES, ObjectRanges
from dsindex.objects.stores import look_at_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.objects.urls import ObjectUrl


_TAKEN_TOGETHER = 1024
"""Items here and there that are requested together."""


class ObjectArray:
    """A one-dimensional, read-only array of an object's bytes.

    `array[a:b]`, `array[i]` and `array[numbers]` are copies, as numpy arrays and scalars. Slices that follow each other
    are read ahead; for parts here and there, `read_many` asks for all at once.

    Args:
        url: The object.
        dtype: Type of the items.
        offset: First byte of the first item.
        count: Number of items; None for as many as there are.

    Raises:
        InputError: If the object cannot be read; as do all methods, also if it was replaced.
    """

    ndim = 1

    def __init__(self, url: ObjectUrl, dtype: np.dtype[Any], *, offset: int = 0, count: int | None = None) -> None:
        if url.identity is None:
            url, _ = look_at_object(url)
        self.url = url
        """The object, with the version that is read."""
        self.dtype = dtype
        self._offset = offset
        self._ranges = ObjectRanges(url)
        self.size_bytes = self._ranges.size_bytes
        """Size of the object."""
        room = max(0, self.size_bytes - offset) // dtype.itemsize
        self._count = room if count is None else count
        if self._count > room:
            msg = f"{url}: expected {count} items of {dtype} from byte {offset} on, got {room}"
            raise ValueError(msg)

    def __len__(self) -> int:
        """Return the number of items."""
        return self._count

    @property
    def size(self) -> int:
        """The number of items."""
        return self._count

    @property
    def shape(self) -> tuple[int]:
        """The number of items, as numpy has it."""
        return (self._count,)

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self._count * self.dtype.itemsize

    def __getitem__(self, key: Any) -> Any:  # noqa: ANN401 - as numpy's
        """Return an item, a slice, or the items with the numbers in an array."""
        if isinstance(key, slice):
            begin, end, step = key.indices(self._count)
            if step != 1:
                return self.take(np.arange(begin, end, step))
            if begin >= end:
                return np.empty(0, self.dtype)
            return self._array(self._ranges.read(*self._bytes(begin, end)))
        if isinstance(key, np.ndarray):
            return self.take(np.flatnonzero(key) if key.dtype.kind == "b" else key)
        return self.take(np.array([key]))[0]

    def take(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the items with these numbers.

        Raises:
            IndexError: If there is no such item.
        """
        ids = np.where(numbers < 0, numbers + self._count, numbers)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._count:
            msg = f"expected numbers below {self._count}, got {ids.max()}"
            raise IndexError(msg)
        known, places = np.unique(ids, return_inverse=True)
        found = [np.empty(0, self.dtype)]
        for begin in range(0, len(known), _TAKEN_TOGETHER):
            some = known[begin : begin + _TAKEN_TOGETHER]
            if (some[-1] - some[0]) * self.dtype.itemsize <= len(some) * JOINED_BYTES:
                found.append(self[int(some[0]) : int(some[-1]) + 1][some - some[0]])
            else:
                found += self.read_many([(number, number + 1) for number in some.tolist()])
        return np.concatenate(found)[places]

    def read_many(
        self, parts: Sequence[tuple[int, int]], *, later: Sequence[tuple[int, int]] = ()
    ) -> list[NDArray[Any]]:
        """Return the items [begin, end) of many parts, requested together, and request parts that will be read soon."""
        wanted, after = ([self._bytes(*part) for part in each] for each in (parts, later))
        return [self._array(content) for content in self._ranges.read_many(wanted, later=after)]

    def expect(self, parts: Sequence[tuple[int, int]]) -> None:
        """Request the items [begin, end) of parts that will be read soon."""
        self._ranges.expect([self._bytes(*part) for part in parts])

    def close(self) -> None:
        """Give up what is kept of the object."""
        self._ranges.close()

    def _bytes(self, begin: int, end: int) -> tuple[int, int]:
        if not 0 <= begin <= end <= self._count:
            msg = f"{self.url}: expected items within {self._count}, got {begin} to {end}"
            raise IndexError(msg)
        return self._offset + begin * self.dtype.itemsize, self._offset + end * self.dtype.itemsize

    def _array(self, content: bytearray) -> NDArray[Any]:
        array = np.frombuffer(content, self.dtype)
        array.flags.writeable = False
        return array
