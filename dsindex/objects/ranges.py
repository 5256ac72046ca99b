"""Ranges of objects that are read here and there, as by a training job: joined, in flight together, kept for a while.

Every range is requested once while it is kept. The ranges of all objects of a process together are at most
`KEPT_BYTES`; those that were used longest ago are given up first.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from dsindex.errors import InputError
from dsindex.objects.fetching import fetch_later
from dsindex.objects.requests import ChangedObjectError
from dsindex.objects.stores import read_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from dsindex.objects.urls import ObjectUrl

KEPT_BYTES = 64 << 20
"""Bytes of ranges that a process keeps, of all objects."""
RANGE_BYTES = 8 << 20
"""Bytes of the largest request."""
JOINED_BYTES = 8 << 10
"""Bytes between two ranges that are rather read than asked for by a request of their own."""
SMALL_BYTES = 32 << 20
"""Objects that have no more than this together are read by blocks, each of which is then kept."""
BLOCK_BYTES = 1 << 20
FIRST_BYTES = 64 << 10
"""Bytes that are read ahead when a reader has gone on once; twice as many each further time."""
AHEAD_BYTES = 24 << 20
"""Most bytes that are read ahead of a reader that goes forwards."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A range that is kept, or under way."""

    begin: int
    end: int
    future: Future[Any]


class _Kept:
    """The ranges that a process keeps, by when they were used."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._ranges: OrderedDict[tuple[int, int], tuple[ObjectRanges, int]] = OrderedDict()
        self._size_bytes = 0
        self._read_whole: WeakSet[ObjectRanges] = WeakSet()

    def find_room_for_whole(self, owner: ObjectRanges) -> bool:
        """Tell whether all of an object will be kept; of several small ones, those that were opened first are."""
        with self.lock:
            known_bytes = sum(each.size_bytes for each in self._read_whole)
            is_small = known_bytes + owner.size_bytes <= SMALL_BYTES
            if is_small:
                self._read_whole.add(owner)
        return is_small

    def give_up_whole(self, owner: ObjectRanges) -> None:
        self._read_whole.discard(owner)

    def add(self, owner: ObjectRanges, begin: int, size_bytes: int) -> None:
        self._ranges[id(owner), begin] = owner, size_bytes
        self._size_bytes += size_bytes
        while self._size_bytes > KEPT_BYTES and len(self._ranges) > 1:
            (_, first), (other, size) = self._ranges.popitem(last=False)
            self._size_bytes -= size
            other.forget(first)

    def use(self, owner: ObjectRanges, begin: int) -> None:
        self._ranges.move_to_end((id(owner), begin))

    def remove(self, owner: ObjectRanges, begin: int) -> None:
        _, size = self._ranges.pop((id(owner), begin))
        self._size_bytes -= size


_kept = _Kept()


def _start_anew() -> None:
    """Keep nothing in a forked process, in which nobody waits for what its parent has requested."""
    global _kept
    _kept = _Kept()


os.register_at_fork(after_in_child=_start_anew)


class ObjectRanges:
    """An object whose ranges are read in any order, by any thread.

    Args:
        url: The object, which was looked at.
    """

    def __init__(self, url: ObjectUrl) -> None:
        if url.identity is None:
            msg = f"expected an object that was looked at, got {url}"
            raise ValueError(msg)
        self._url = url
        self.size_bytes = url.identity.size_bytes
        self._begins: list[int] = []
        self._held: dict[int, _Held] = {}
        """By begin; they do not overlap."""
        self._process = os.getpid()
        self._is_closed = False
        self._is_read_whole = _kept.find_room_for_whole(self)
        self._run_end = self._run_bytes = 0
        """Where the last range ended, and the bytes that were read forwards up to there."""

    def read(self, begin: int, end: int) -> bytearray:
        """Return the bytes [begin, end), and request those after it if the reader goes forwards.

        Raises:
            InputError: If the object cannot be read, or was replaced.
        """
        is_forwards = 0 <= begin - self._run_end <= JOINED_BYTES and end > begin
        self._run_bytes = self._run_bytes + end - begin if is_forwards else 0
        self._run_end = end
        awaited = self._request([(begin, end)])
        if is_forwards and end < self.size_bytes:
            ahead = min(max(self._run_bytes, FIRST_BYTES), AHEAD_BYTES)
            if not self._is_held(min(end + ahead // 2, self.size_bytes - 1)):
                self._request([(end, min(end + ahead, self.size_bytes))])
        return self._collect(begin, end, awaited)

    def read_many(self, ranges: Sequence[tuple[int, int]], *, later: Sequence[tuple[int, int]] = ()) -> list[bytearray]:
        """Return the bytes of many ranges [begin, end), requested together, and request others after them.

        Args:
            ranges: What is returned.
            later: What will be read soon.

        Raises:
            InputError: If the object cannot be read, or was replaced.
        """
        awaited = self._request(ranges)
        self._request(later)
        return [self._collect(begin, end, awaited) for begin, end in ranges]

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Request ranges [begin, end) that will be read soon."""
        self._request(ranges)

    def close(self) -> None:
        """Give up what is kept."""
        self._is_closed = True
        with _kept.lock:
            self._begin_anew_if_forked()
            _kept.give_up_whole(self)
            for begin in list(self._begins):
                _kept.remove(self, begin)
                self.forget(begin)

    def forget(self, begin: int) -> None:
        """Give up a range; called by whoever keeps account of all ranges, with the lock held."""
        del self._begins[bisect_right(self._begins, begin) - 1]
        self._held.pop(begin)

    def _request(self, ranges: Sequence[tuple[int, int]]) -> list[_Held]:
        """Request what of the ranges is not held, and return all that holds them, in order and without overlaps."""
        with _kept.lock:
            self._begin_anew_if_forked()
            needed = {each.begin: each for begin, end in ranges for each in self._held_between(begin, end)}
            for begin, end in self._joined(self._missing(ranges)):  # what is held may be given up from here on
                needed[begin] = self._hold(begin, end)
            return [needed[begin] for begin in sorted(needed)]

    def _begin_anew_if_forked(self) -> None:
        if self._process != os.getpid():
            self._begins, self._held, self._process = [], {}, os.getpid()

    def _held_between(self, begin: int, end: int) -> list[_Held]:
        found = []
        at = max(0, bisect_right(self._begins, begin) - 1)
        while at < len(self._begins) and self._begins[at] < end:
            held = self._held[self._begins[at]]
            if held.end > begin:
                found.append(held)
                _kept.use(self, held.begin)
            at += 1
        return found

    def _missing(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the parts of ranges that are not held, in order and without overlaps."""
        missing = []
        last = 0
        for begin, end in sorted(ranges):
            position = max(begin, last)
            last = max(last, end)
            if self._is_read_whole and position < end:
                position = position // BLOCK_BYTES * BLOCK_BYTES
                end = last = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, self.size_bytes)
            at = bisect_right(self._begins, position) - 1
            while position < end:
                if at >= 0 and self._begins[at] <= position < self._held[self._begins[at]].end:
                    position = self._held[self._begins[at]].end
                    continue
                at += 1
                stop = min(end, self._begins[at]) if at < len(self._begins) else end
                if position < stop:
                    missing.append((position, stop))
                position = stop
        return missing

    def _joined(self, missing: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Join neighbours, and cut what is larger than a request."""
        joined: list[tuple[int, int]] = []
        for begin, end in missing:
            if joined and begin - joined[-1][1] <= JOINED_BYTES and not self._lies_between(joined[-1][1], begin):
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        return [(at, min(at + RANGE_BYTES, end)) for begin, end in joined for at in range(begin, end, RANGE_BYTES)]

    def _lies_between(self, end: int, begin: int) -> bool:
        """Tell whether a range is held between two bytes."""
        if begin <= end:
            return begin < end
        at = bisect_right(self._begins, end - 1)
        return at < len(self._begins) and self._begins[at] < begin

    def _is_held(self, position: int) -> bool:
        with _kept.lock:
            at = bisect_right(self._begins, position) - 1
            return at >= 0 and position < self._held[self._begins[at]].end

    def _hold(self, begin: int, end: int) -> _Held:
        url = self._url
        future = fetch_later(lambda: read_range(url, begin, end, is_given_up=lambda: self._is_closed))
        held = _Held(begin, end, future)
        insort(self._begins, begin)
        self._held[begin] = held
        _kept.add(self, begin, end - begin)
        return held

    def _collect(self, begin: int, end: int, awaited: Sequence[_Held]) -> bytearray:
        content = bytearray(end - begin)
        position = begin
        at = max(0, bisect_right(awaited, begin, key=attrgetter("begin")) - 1)
        while position < end:
            held = awaited[at]
            try:
                found = memoryview(held.future.result()).cast("B")
            except InputError as error:
                self._drop(held)
                raise self._explained(error) from None
            stop = min(end, held.end)
            content[position - begin : stop - begin] = found[position - held.begin : stop - held.begin]
            position, at = stop, at + 1
        return content

    def _drop(self, failed: _Held) -> None:
        """Give up a range that could not be read, so that it is requested again when it is needed again."""
        with _kept.lock:
            if self._held.get(failed.begin) is failed:
                _kept.remove(self, failed.begin)
                self.forget(failed.begin)

    def _explained(self, error: InputError) -> InputError:
        if isinstance(error, ChangedObjectError):
            return ChangedObjectError(
                f"{self._url}: expected the object that was opened, got another; it was replaced, so open the dataset "
                f"again"
            )
        return error
