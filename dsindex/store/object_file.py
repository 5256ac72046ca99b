"""Read an object by ranges: as an open input, as a file of Python's, and as an array.

What will be read forwards is requested ahead in ranges of RANGE_BYTES. Elsewhere a range is requested when it is
needed, and one that continues another is twice as large. A handful of ranges is held at a time.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.store.object_client import read_range, start
from dsindex.store.types import RANGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from dsindex.store.types import InputStatus

RANGES_AHEAD = 3
FIRST_BYTES = 64 << 10
"""Bytes of a request elsewhere, at first."""
TAIL_BYTES = 256 << 10
"""Bytes that are read of an object's end, where most footers fit."""
HELD_RANGES = 48
WINDOWS = 24
"""Parts of an object that may be read forwards at a time."""


@dataclass(frozen=True, slots=True)
class _Range:
    begin: int
    end: int
    future: Future[Any]


class ObjectReader:
    """An object that is open for reading, as it was looked at.

    Args:
        status: The object; all reads raise InputError if it was replaced, unless its version is empty.
    """

    def __init__(self, status: InputStatus) -> None:
        self._url = status.path
        # The Hub counts requests, and each is two: it redirects to its storage.
        self._step = 2 * RANGE_BYTES if status.path.startswith("hf://") else RANGE_BYTES
        self.size_bytes = status.size_bytes
        self.version = status.version
        self._expected: list[tuple[int, int]] = []
        self._held: OrderedDict[int, _Range] = OrderedDict()
        self._lock = threading.RLock()

    def expect_forwards(self, begin: int, end: int) -> None:
        """Say that the bytes [begin, end) will be read forwards; requests for them begin at once."""
        begin, end = max(0, begin), min(end, self.size_bytes)
        if begin < end:
            with self._lock:
                self._expected = [*self._expected[1 - WINDOWS :], (begin, end)]
                self._request_ahead(begin, begin, end)

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return the bytes from an offset on, fewer than asked for only at the end of the object."""
        content = bytearray(max(0, min(num_bytes, self.size_bytes - offset)))
        self.read_into(memoryview(content), offset)
        return bytes(content)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Fill a buffer with the bytes from an offset on; return their number, smaller only at the object's end."""
        wanted = max(0, min(len(view), self.size_bytes - offset))
        done = 0
        while done < wanted:
            position = offset + done
            with self._lock:
                found = self._range_with(position, wanted - done)
            content = memoryview(found.future.result()).cast("B")
            piece = content[position - found.begin : position - found.begin + wanted - done]
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def size_if_changed(self) -> int | None:
        """Return None: every request is for the object that was looked at, and an error otherwise."""
        return None

    def close(self) -> None:
        """Give up what was requested ahead."""
        with self._lock:
            for each in self._held.values():
                each.future.cancel()
            self._held.clear()
            self._expected = []

    def _range_with(self, position: int, num_bytes: int) -> _Range:
        for begin, end in reversed(self._expected):
            if begin <= position < end:
                return self._request_ahead(begin, position, end)
        found = self._find(position)
        if found is not None:
            return found
        if num_bytes >= RANGE_BYTES:
            return self._request_ahead(position, position, position + num_bytes)
        size = next((2 * (each.end - each.begin) for each in self._held.values() if each.end == position), FIRST_BYTES)
        end = min(position + min(max(size, num_bytes), RANGE_BYTES), self.size_bytes)
        return self._request(min(position, max(0, self.size_bytes - TAIL_BYTES)), end)  # footers are read backwards

    def _find(self, position: int) -> _Range | None:
        return next((each for each in reversed(self._held.values()) if each.begin <= position < each.end), None)

    def _request_ahead(self, begin: int, position: int, end: int) -> _Range:
        """Return the range at a position of bytes [begin, end) that are read forwards, and request those after it."""
        for passed in [each for each in self._held.values() if begin <= each.begin and each.end <= position]:
            del self._held[passed.begin]
        first = found = self._find(position) or self._request(position, min(position + self._step, end))
        for _ in range(RANGES_AHEAD):
            if found.end >= end:
                break
            found = self._find(found.end) or self._request(found.end, min(found.end + self._step, end))
        return first

    def _request(self, begin: int, end: int) -> _Range:
        requested = self._held[begin] = _Range(begin, end, start(read_range(self._url, begin, end, self.version)))
        self._held.move_to_end(begin)
        while len(self._held) > HELD_RANGES:
            self._held.popitem(last=False)
        return requested


class RawObject(io.RawIOBase):
    """An object as a file of Python's."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Fill a buffer from the position."""
        done = self._reader.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += done
        return done

    def close(self) -> None:
        """Give up what was requested ahead."""
        if not self.closed:
            self._reader.close()
        super().close()


class ObjectArray:
    """A one-dimensional, read-only array of an object's bytes; its items are requested when they are asked for.

    `array[a:b]`, `array[i]` and `array[numbers]` are copies, as numpy arrays and scalars. For parts here and there,
    `read_many` asks for all at once.

    Args:
        status: The object.
        dtype: Type of the items.
        offset: First byte of the first item.
        count: Number of items; None for as many as there are.

    Raises:
        InputError: If the object cannot be read; as do all methods, also if it was replaced.
    """

    ndim = 1

    def __init__(self, status: InputStatus, dtype: np.dtype[Any], *, offset: int = 0, count: int | None = None) -> None:
        self.url = status.path
        self.dtype = dtype
        self._version = status.version
        self._offset = offset
        self.size_bytes = status.size_bytes
        """Size of the object."""
        room = max(0, self.size_bytes - offset) // dtype.itemsize
        self._count = room if count is None else count
        if self._count > room:
            raise ValueError(f"{self.url}: expected {count} items of {dtype} from byte {offset} on, got {room}")

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
            return self.read_many([(begin, max(begin, end))])[0] if step == 1 else self[np.arange(begin, end, step)]
        if not isinstance(key, np.ndarray):
            return self[np.array([key])][0]
        numbers = np.flatnonzero(key) if key.dtype.kind == "b" else key
        ids = np.where(numbers < 0, numbers + self._count, numbers)
        known, places = np.unique(ids, return_inverse=True)
        found = self.read_many([(number, number + 1) for number in known.tolist()])
        return np.concatenate([np.empty(0, self.dtype), *found])[places]

    def close(self) -> None:
        """Do nothing: an array holds nothing."""

    def read_many(self, parts: Sequence[tuple[int, int]]) -> list[NDArray[Any]]:
        """Return items [begin, end) of many parts, which are requested at once.

        Raises:
            IndexError: If there are no such items.
        """
        wanted = [(self._offset + begin * self.dtype.itemsize, end - begin) for begin, end in parts]
        for begin, end in parts:
            if not 0 <= begin <= end <= self._count:
                raise IndexError(f"{self.url}: expected items within {self._count}, got {begin} to {end}")
        futures = [
            start(read_range(self.url, begin, begin + count * self.dtype.itemsize, self._version)) if count else None
            for begin, count in wanted
        ]
        return [np.frombuffer(b"" if each is None else each.result(), self.dtype) for each in futures]
