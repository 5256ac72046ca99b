"""Read an object as a file of which any bytes can be asked for, with ranges fetched ahead of its reader.

Two kinds of ranges are held. Where a reader has said that it will read forwards, ranges of RANGE_BYTES are requested
before it needs them. Elsewhere a range is requested when it is needed, and each one that continues another is twice as
large. A handful of ranges is held at a time, whatever the size of the object.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.objects.buffers import give_back, take_buffer
from dsindex.objects.fetching import fetch_later
from dsindex.objects.stores import HEAD_BYTES, look_at_object, read_range
from dsindex.objects.waiting import result_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from dsindex.objects.urls import ObjectUrl

RANGE_BYTES = 8 << 20
"""About the bytes of a request where an object is read forwards: requests cost the same for every size."""
RANGES_AHEAD = 3
"""Ranges that are requested before their reader comes to them."""
FIRST_BYTES = 64 << 10
"""Bytes of a request elsewhere, at first."""
HELD_RANGES = 4
"""Ranges that are kept elsewhere."""


@dataclass(slots=True)
class _Range:
    begin: int
    end: int
    future: Future[Any]
    buffer: bytearray | None = None
    """What the content is written into, to be used again."""

    def content(self) -> memoryview[int]:
        return memoryview(result_of(self.future)).cast("B")

    def let_go(self) -> None:
        """Forget the content, of which nobody has a view any more."""
        if (self.future.cancel() or self.future.done()) and self.buffer is not None:
            give_back(self.buffer)
            self.buffer = None


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
            url, _ = look_at_object(url)
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
            self._ways = [*self._ways[-(HELD_RANGES - 1) :], way]
            self._request_ahead(way, begin)

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
        for way in self._ways:
            for each in way.ranges:
                each.let_go()
        self._ways.clear()
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
            way.ranges.pop(0).let_go()
        self._request_ahead(way, position)
        if way.ranges and way.ranges[0].begin <= position:
            return way.ranges[0]
        return None  # it was passed before

    def _request_ahead(self, way: _Way, position: int) -> None:
        if way.next < position < way.end and not way.ranges:
            way.next = position
        while way.next < way.end and len(way.ranges) <= RANGES_AHEAD:
            end = min(way.next + way.step, way.end)
            way.ranges.append(self._request(way.next, end, buffer=take_buffer(end - way.next)))
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
        begin, end = min(position, max(0, self.size_bytes - FIRST_BYTES)), position + size  # footers are read backwards
        if position + num_bytes <= HEAD_BYTES:
            begin, end = 0, HEAD_BYTES
        held = self._request(begin, min(end, self.size_bytes))
        self._others[begin] = held
        while len(self._others) > HELD_RANGES:
            self._others.popitem(last=False)
        return held

    def _request(self, begin: int, end: int, *, buffer: bytearray | None = None) -> _Range:
        if end <= HEAD_BYTES and begin == 0:
            _, head = look_at_object(self._url)
            future: Future[Any] = fetch_later(lambda: head[:end])
        else:
            url, into = self._url, None if buffer is None else memoryview(buffer)[: end - begin]
            future = fetch_later(lambda: read_range(url, begin, end, into=into, is_given_up=lambda: self._is_closed))
        return _Range(begin, end, future, buffer)
