"""Read an object as a seekable file, with read-ahead.

Two kinds of ranges are held. Where a reader has said that it will read forwards, ranges of RANGE_BYTES are requested
before it needs them. Elsewhere a range is requested when it is needed, and each one that continues another is twice as
large. A handful of ranges is held at a time, whatever the size of the object.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from dsindex.store.requests import fetch_later, result_of
from dsindex.store.stores import HEAD_BYTES, head_object, read_range

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from dsindex.store.urls import ObjectUrl

RANGE_BYTES = 8 << 20
"""About the bytes of a request where an object is read forwards: requests cost the same for every size."""
RANGES_AHEAD = 3
"""Ranges that are requested before their reader comes to them."""
FIRST_BYTES = 64 << 10
"""Bytes of a request elsewhere, at first."""
TAIL_BYTES = 256 << 10
"""Bytes that are read of an object's end, where most footers fit."""
HELD_RANGES = 4
"""Ranges that are kept elsewhere."""
_MOST_WAYS = 24
"""Parts of an object that may be read forwards at a time."""


@dataclass(slots=True)
class _Range:
    begin: int
    end: int
    future: Future[Any]

    def content(self) -> memoryview[int]:
        return memoryview(result_of(self.future)).cast("B")


@dataclass(slots=True)
class _Way:
    """A part of the object that is read forwards."""

    begin: int
    next: int
    """Where the next request begins."""
    end: int
    step: int
    """Bytes of a request: all are about as large, since a small last one would cost as much as the others."""
    ranges: list[_Range]


class ObjectReader:
    """An object that is open for reading.

    Args:
        url: Its address; it is looked at unless it was before, and read as it was then.

    Raises:
        InputError: If it cannot be read; as do all methods, also if the object was replaced.
    """

    def __init__(self, url: ObjectUrl) -> None:
        if url.identity is None:
            url, _ = head_object(url)
        self._url = url
        self._ways: list[_Way] = []
        self._others: OrderedDict[int, _Range] = OrderedDict()
        self._is_closed = False
        identity = url.identity
        self.size_bytes = 0 if identity is None else identity.size_bytes
        self.version = "" if identity is None else identity.version

    def expect_forwards(self, begin: int, end: int) -> None:
        """Say that the bytes [begin, end) will be read forwards; requests for them begin at once."""
        begin, end = max(0, begin), min(end, self.size_bytes)
        if begin < end:
            num_ranges = max(1, round((end - begin) / RANGE_BYTES))
            way = _Way(begin=begin, next=begin, end=end, step=-(-(end - begin) // num_ranges), ranges=[])
            self._drop(self._ways[: 1 - _MOST_WAYS])
            self._ways.append(way)
            self._request_ahead(way, begin)

    def forget(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Say that ranges that were expected will not be read again."""
        self._drop([way for way in self._ways if (way.begin, way.end) in ranges])

    def _drop(self, ways: Sequence[_Way]) -> None:
        for way in ways:
            self._ways.remove(way)
            for each in way.ranges:
                each.future.cancel()

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return the bytes from an offset on, fewer than asked for only at the end of the object."""
        wanted = max(0, min(num_bytes, self.size_bytes - offset))
        if wanted:
            found = self._range_with(offset, wanted)
            if offset + wanted <= found.end:
                return bytes(found.content()[offset - found.begin : offset - found.begin + wanted])
        content = bytearray(wanted)
        self.read_into(memoryview(content), offset)
        return bytes(content)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Fill a buffer with the bytes from an offset on; return their number, smaller only at the object's end."""
        wanted = max(0, min(len(view), self.size_bytes - offset))
        done = 0
        while done < wanted:
            position = offset + done
            found = self._range_with(position, wanted - done)
            piece = found.content()[position - found.begin : position - found.begin + wanted - done]
            view[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def size_if_changed(self) -> int | None:
        """Return None: every request is for the object that was looked at, and an error otherwise."""
        return None

    def close(self) -> None:
        """Forget what was requested ahead."""
        self._is_closed = True
        self._drop(list(self._ways))
        self._others.clear()

    def _range_with(self, position: int, num_bytes: int) -> _Range:
        for way in reversed(self._ways):
            if way.begin <= position < way.end:
                found = self._on_way(way, position)
                if found is not None:
                    return found
        return self._elsewhere(position, num_bytes)

    def _on_way(self, way: _Way, position: int) -> _Range | None:
        while way.ranges and way.ranges[0].end <= position:
            way.ranges.pop(0)
        self._request_ahead(way, position)
        if way.ranges and way.ranges[0].begin <= position:
            return way.ranges[0]
        return None  # it was passed before

    def _request_ahead(self, way: _Way, position: int) -> None:
        if way.next < position < way.end and not way.ranges:
            way.next = position
        while way.next < way.end and len(way.ranges) <= RANGES_AHEAD:
            end = min(way.next + way.step, way.end)
            way.ranges.append(self._request(way.next, end))
            way.next = end

    def _elsewhere(self, position: int, num_bytes: int) -> _Range:
        size = FIRST_BYTES
        for begin, held in self._others.items():
            if held.begin <= position < held.end:
                self._others.move_to_end(begin)
                return held
            if held.end == position:
                size = 2 * (held.end - held.begin)
        size = min(max(size, num_bytes), RANGE_BYTES)
        begin, end = min(position, max(0, self.size_bytes - TAIL_BYTES)), position + size  # footers are read backwards
        if position + num_bytes <= HEAD_BYTES:
            begin, end = 0, HEAD_BYTES
        held = self._request(begin, min(end, self.size_bytes))
        self._others[begin] = held
        while len(self._others) > HELD_RANGES:
            self._others.popitem(last=False)
        return held

    def _request(self, begin: int, end: int) -> _Range:
        if end <= HEAD_BYTES and begin == 0:
            _, head = head_object(self._url)
            future: Future[Any] = fetch_later(lambda: head[:end])
        elif end == self.size_bytes and end - begin <= TAIL_BYTES:
            future = fetch_later(partial(_read_tail, self._url, self.version, begin, end))
        else:
            url = self._url
            future = fetch_later(lambda: read_range(url, begin, end, is_given_up=lambda: self._is_closed))
        return _Range(begin, end, future)


@lru_cache(16)
def _read_tail(url: ObjectUrl, _version: str, begin: int, end: int) -> bytes:
    """Read the end of an object once for what detects its format, measures and samples it."""
    return bytes(read_range(url, begin, end))


# An object as a file of Python's, for programs that read one forwards or by its end.

_BUFFER_BYTES = 256 << 10


class _RawObject(io.RawIOBase):
    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._reader.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        done = self._reader.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += done
        return done

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


def open_object(url: ObjectUrl) -> io.BufferedReader:
    """Open an object for reading in binary mode.

    Raises:
        InputError: If it cannot be read; as do the methods.
    """
    return io.BufferedReader(_RawObject(ObjectReader(url)), _BUFFER_BYTES)
