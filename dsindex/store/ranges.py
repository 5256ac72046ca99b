"""Random access to objects, as by a training job: coalesced, concurrent, cached ranges.

Every range is requested once while it is kept. The ranges of all objects of a process together are at most
`KEPT_BYTES`; those that were used longest ago are given up first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import threading
import time
import uuid
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import xxhash

from dsindex.errors import InputError
from dsindex.store.requests import ChangedObjectError, fetch_later
from dsindex.store.stores import HEAD_BYTES, head_object, read_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from dsindex.store.urls import ObjectIdentity, ObjectUrl


KEPT_BYTES = 64 << 20
"""Capacity of the range cache per process."""
RANGE_BYTES = 8 << 20
"""Maximum request size."""
JOINED_BYTES = 8 << 10
"""Maximum gap when coalescing ranges."""
SMALL_BYTES = 32 << 20
"""Total size up to which objects are read by blocks and cached whole."""
BLOCK_BYTES = 1 << 20
FIRST_BYTES = 64 << 10
"""Initial read-ahead, doubled by each sequential read."""
AHEAD_BYTES = 24 << 20
"""Maximum read-ahead."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A range that is cached or in flight."""

    begin: int
    end: int
    future: Future[Any]


class _Kept:
    """LRU cache of ranges."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._ranges: OrderedDict[tuple[int, int], tuple[ObjectRanges, int]] = OrderedDict()
        self._size_bytes = 0
        self._read_whole: WeakSet[ObjectRanges] = WeakSet()

    def find_room_for_whole(self, owner: ObjectRanges) -> bool:
        """Whether an object is cached whole; first come, first served among small ones."""
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
    """Reset after a fork: the parent's requests never complete here."""
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
            raise ValueError(f"expected an object that was looked at, got {url}")
        self._url = url
        self.size_bytes = url.identity.size_bytes
        self._begins: list[int] = []
        self._held: dict[int, _Held] = {}
        """Sorted by begin, disjoint."""
        self._process = os.getpid()
        self._is_closed = False
        self._is_read_whole = _kept.find_room_for_whole(self)
        self._run_end = self._run_bytes = 0
        """End of the last range, and the length of the sequential run up to it."""

    def read(self, begin: int, end: int) -> bytearray:
        """Return bytes [begin, end), reading ahead of sequential readers.

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
        """Return the bytes of many ranges [begin, end) in concurrent requests, and prefetch others.

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
        """Prefetch ranges [begin, end)."""
        self._request(ranges)

    def close(self) -> None:
        """Evict everything."""
        self._is_closed = True
        with _kept.lock:
            self._begin_anew_if_forked()
            _kept.give_up_whole(self)
            for begin in list(self._begins):
                _kept.remove(self, begin)
                self.forget(begin)

    def forget(self, begin: int) -> None:
        """Evict a range; the cache calls this with the lock held."""
        del self._begins[bisect_right(self._begins, begin) - 1]
        self._held.pop(begin)

    def _request(self, ranges: Sequence[tuple[int, int]]) -> list[_Held]:
        """Request the missing parts of ranges; return the cached ranges that cover them, sorted and disjoint."""
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
        """Return the missing parts of ranges, sorted and disjoint."""
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
        """Coalesce neighbours and split at the maximum request size."""
        joined: list[tuple[int, int]] = []
        for begin, end in missing:
            if joined and begin - joined[-1][1] <= JOINED_BYTES and not self._lies_between(joined[-1][1], begin):
                joined[-1] = joined[-1][0], end
            else:
                joined.append((begin, end))
        return [(at, min(at + RANGE_BYTES, end)) for begin, end in joined for at in range(begin, end, RANGE_BYTES)]

    def _lies_between(self, end: int, begin: int) -> bool:
        """Whether any cached range intersects [begin, end)."""
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
        """Evict a range that failed, so that the next read retries it."""
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


# Objects that are kept as files in the user's cache folder, to be mapped into memory: indices and manifests.
#
# They are in `$XDG_CACHE_HOME/dsindex/store` (or `~/.cache/dsindex/store`), named by a hash of address, endpoint and
# version, so that an object that was replaced has another file. `files.jsonl` records what was written there, and
# nothing else is ever removed. The files that were used longest ago are removed once all together are larger than
# `$DSINDEX_CACHE_GB`, by default 50 GB.

CAP_VARIABLE = "DSINDEX_CACHE_GB"
DEFAULT_CAP_GB = 50.0
KEPT_RANGE_BYTES = 8 << 20
RANGES_IN_FLIGHT = 8
_RECORD = "files.jsonl"
_NAME = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]{32}\.tmp)?")
_ABANDONED_SECONDS = 86_400


def keep_copy(url: ObjectUrl) -> str:
    """Return the path of a local copy of an object, downloaded unless cached.

    Processes that ask at the same time fetch it once, as far as the file system has locks.

    Raises:
        InputError: If the object cannot be read, or the file not be written.
    """
    if url.identity is None:
        url, _ = head_object(url)
    identity = url.identity
    if identity is None:
        raise ValueError(f"expected an object that was looked at, got {url}")
    folder = _folder(url)
    path = os.path.join(folder, _name_of(url, identity))
    try:
        if not _is_kept(path, identity):
            with _locked(os.path.join(folder, f"lock-{os.path.basename(path)[:2]}")):
                if not _is_kept(path, identity):
                    _fetch(url, identity, path)
                    _remove_others(folder, path)
        os.utime(path)
    except OSError as error:
        raise InputError(
            f"{url}: cannot be kept in {folder} ({error.strerror}); make room there, or set XDG_CACHE_HOME to a folder "
            f"that has more"
        ) from error
    return path


def _folder(url: ObjectUrl) -> str:
    try:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"), "dsindex", "objects")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        msg = f"{url}: its index is kept in the user's cache folder, which cannot be used ({error}); set XDG_CACHE_HOME"
        raise InputError(msg) from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        msg = f"{folder}: expected a folder that only this user can write to; set XDG_CACHE_HOME to another one"
        raise InputError(msg)
    return folder


def _name_of(url: ObjectUrl, identity: ObjectIdentity) -> str:
    endpoint = url.access.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    parts = (endpoint if url.scheme == "s3" else "", str(url), identity.version, identity.size_bytes)
    return xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())


def _is_kept(path: str, identity: ObjectIdentity) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == identity.size_bytes


def _fetch(url: ObjectUrl, identity: ObjectIdentity, path: str) -> None:
    """Download the object in concurrent requests to a temporary file, and rename it."""
    folder, name = os.path.split(path)
    temporary = f"{name}.{uuid.uuid4().hex}.tmp"
    lines = [json.dumps({"name": each, "address": str(url)}) + "\n" for each in (temporary, name)]
    with _locked(os.path.join(folder, "lock-record")), open(os.path.join(folder, _RECORD), "a") as record:
        record.writelines(lines)
    temporary = os.path.join(folder, temporary)
    try:
        with open(temporary, "xb") as file:
            file.writelines(_contents(url, identity))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _contents(url: ObjectUrl, identity: ObjectIdentity) -> Iterator[Any]:
    if identity.size_bytes <= HEAD_BYTES:
        yield head_object(url)[1]
        return
    begins = iter(range(0, identity.size_bytes, KEPT_RANGE_BYTES))
    awaited: deque[Future[Any]] = deque()
    is_over = False
    try:
        while True:
            while len(awaited) < RANGES_IN_FLIGHT and (begin := next(begins, None)) is not None:
                end = min(begin + KEPT_RANGE_BYTES, identity.size_bytes)
                awaited.append(fetch_later(partial(read_range, url, begin, end, is_given_up=lambda: is_over)))
            if not awaited:
                return
            yield awaited.popleft().result()
    finally:
        is_over = True
        for each in awaited:
            each.cancel()


def _remove_others(folder: str, kept: str) -> None:
    """Evict the least recently used files beyond the cap, and abandoned downloads."""
    with _locked(os.path.join(folder, "lock-record")):
        found: dict[str, os.stat_result] = {}
        for name in _recorded(folder):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    found[name] = status
        total = sum(status.st_size for status in found.values())
        cap = _cap_bytes()
        for name, status in sorted(found.items(), key=lambda each: each[1].st_mtime_ns):
            is_partial = name.endswith(".tmp")
            is_old = time.time() - status.st_mtime > _ABANDONED_SECONDS
            if name != os.path.basename(kept) and (is_old if is_partial else total > cap):
                os.unlink(os.path.join(folder, name))
                total -= status.st_size
                del found[name]
        lines = [json.dumps({"name": name}) + "\n" for name in found]
        temporary = os.path.join(folder, f"{_RECORD}.tmp")
        with open(temporary, "w") as record:
            record.writelines(lines)
        os.replace(temporary, os.path.join(folder, _RECORD))


def _recorded(folder: str) -> set[str]:
    names = set()
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _RECORD), "rb") as record:
        for line in record:
            try:
                name = json.loads(line)["name"]
            except (ValueError, LookupError, TypeError):  # cut off by a crash
                continue
            if isinstance(name, str) and _NAME.fullmatch(name):
                names.add(name)
    return names


def _cap_bytes() -> float:
    given = os.environ.get(CAP_VARIABLE, "")
    try:
        cap = float(given or DEFAULT_CAP_GB)
    except ValueError:
        cap = -1.0
    if not cap >= 0:
        raise InputError(f"{CAP_VARIABLE}: expected a number of GB such as 50, got {given!r}")
    return cap * 1e9


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a file lock, where the file system has locks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):  # some network file systems have none; then it may be fetched twice
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# The numbers in an object as an array whose parts are read when they are asked for.

_TAKEN_TOGETHER = 1024
"""Maximum items per gather."""


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
            url, _ = head_object(url)
        self.url = url
        """The object, pinned to a version."""
        self.dtype = dtype
        self._offset = offset
        self._ranges = ObjectRanges(url)
        self.size_bytes = self._ranges.size_bytes
        """Size of the object."""
        room = max(0, self.size_bytes - offset) // dtype.itemsize
        self._count = room if count is None else count
        if self._count > room:
            raise ValueError(f"{url}: expected {count} items of {dtype} from byte {offset} on, got {room}")

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
            raise IndexError(f"expected numbers below {self._count}, got {ids.max()}")
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
        """Return items [begin, end) of many parts in concurrent requests, and prefetch others."""
        wanted, after = ([self._bytes(*part) for part in each] for each in (parts, later))
        return [self._array(content) for content in self._ranges.read_many(wanted, later=after)]

    def expect(self, parts: Sequence[tuple[int, int]]) -> None:
        """Prefetch items [begin, end) of parts."""
        self._ranges.expect([self._bytes(*part) for part in parts])

    def close(self) -> None:
        """Evict the object."""
        self._ranges.close()

    def _bytes(self, begin: int, end: int) -> tuple[int, int]:
        if not 0 <= begin <= end <= self._count:
            raise IndexError(f"{self.url}: expected items within {self._count}, got {begin} to {end}")
        return self._offset + begin * self.dtype.itemsize, self._offset + end * self.dtype.itemsize

    def _array(self, content: bytearray) -> NDArray[Any]:
        array = np.frombuffer(content, self.dtype)
        array.flags.writeable = False
        return array
