"""The token files of a job's datasets, into which shards write their tokens where the output will have them.

So each token is written once. Where a shard's tokens begin is known as soon as every shard before it has its last
token; until then they are held in memory. A shard that would hold more than HELD_BYTES, or that is complete while one
before it is not being made, writes a file of its own, which is merged later (dsindex.engine.merge).

A token file has two names: one in the work folder, to which the ledger refers, and the partial name beside the output,
under which it is completed and published.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import math
import os
import struct
import threading
import time
from typing import IO, TYPE_CHECKING, Any

from dsindex.errors import OutputError
from dsindex.store.requests import release_slot
from dsindex.store.storage import (
    WRITEBACK_BYTES,
    DigestingWriter,
    StoredFile,
    StoredSection,
    append_all,
    output_error,
    start_writeback,
    write_at,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.store.clients import Bytes

HELD_BYTES = 64 << 20
"""Most bytes of tokens that a shard holds."""
_LOOK_SECONDS = 0.005
"""Time between two looks at whether a shard's place is known."""
_WAITING_SHARE = 0.1
"""Of the time that a shard took, how long it waits at most if another one could be made meanwhile."""
_LOOKED_AT = 16
"""Shards of which the sizes are read at once."""
_SHARED = ""
_NUMBERS = itertools.count(1)
"""Tells the attempts of a process apart."""


class TokenPlaces:
    """Where the shards of a job write their tokens; threads and processes of one machine share it.

    What one tells the others is in a file: for each shard who makes it, negated while it waits, and its sizes plus 1,
    as int64; what is not there is 0.

    Args:
        work_dir: The work folder.
        shared: The file, relative to the work folder; empty at first.
        names: The token file of each key, relative to the work folder.
        begin: Where the tokens of all shards begin in each.
        most_waiting: Number of complete shards that may wait for one before them at once and hold up nobody.
    """

    def __init__(
        self,
        work_dir: str,
        shared: str,
        names: Mapping[str, str],
        begin: Mapping[str, int],
        most_waiting: int,
    ) -> None:
        self._arguments = work_dir, shared, names, begin, most_waiting
        self._work_dir = work_dir
        self.shared = shared
        self.names = names
        self._descriptors: dict[str, int] = {}
        """Of the token files by key, and of the file that is shared, by an empty one."""
        self._shard_bytes = 8 * (1 + len(names))
        self._lock = threading.Lock()
        self._ends = dict(begin)
        """Where the tokens of the first `_num_known` shards end, by key."""
        self._num_known = 0
        self._running: set[Claim] = set()
        """The attempts of this process."""
        self._most_waiting = most_waiting
        self._is_closed = False

    def open(self) -> None:
        """Open all files, unless they are.

        Raises:
            OutputError: If one cannot be opened, or they were closed.
        """
        with self._lock:
            if self._is_closed:
                raise OutputError(f"{self._work_dir}: this attempt was given up")
            try:
                for key, name in {**self.names, _SHARED: self.shared}.items():
                    if key not in self._descriptors:
                        path = os.path.join(self._work_dir, name)
                        self._descriptors[key] = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                        with contextlib.suppress(OSError):  # a file system without locks
                            fcntl.flock(self._descriptors[key], fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError as error:
                raise output_error(self._work_dir, error) from error

    def __reduce__(self) -> tuple[type[TokenPlaces], tuple[Any, ...]]:
        return TokenPlaces, self._arguments

    def close(self) -> None:
        """Refuse all further writes, such as those of an attempt that was given up and still runs."""
        with self._lock:
            self._is_closed = True
            for claim in self._running:
                claim.is_given_up = True
            self._close_unused()

    def _close_unused(self) -> None:
        """Close the files once nobody writes; a number of an open file must not become another file's meanwhile."""
        if self._is_closed and not self._running:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors = {}

    def claim(self, shard: int) -> Claim:
        """Begin an attempt at a shard, which has files of its own if another one writes, or wrote, at its place."""
        self.open()
        with self._lock:
            ((_, *told),) = self._read(shard, 1)
            claim = Claim(self, shard, is_apart=all(told) or self._is_being_made(shard))
            if not claim.is_apart:
                self._write_maker(shard, claim.maker)
            self._running.add(claim)
            return claim

    def tell(self, first: int, sizes: Sequence[Mapping[str, int] | None]) -> None:
        """Tell the sizes of the tokens of consecutive shards by key, in bytes; None for one that is not complete."""
        nothing = [0] * len(self.names)
        rows = [nothing if each is None else [each[key] + 1 for key in self.names] for each in sizes]
        if len(rows) == 1:
            self._write(first * self._shard_bytes + 8, rows[0])
        else:
            self._write(first * self._shard_bytes, [number for row in rows for number in (0, *row)])

    def _read(self, shard: int, count: int) -> list[tuple[int, ...]]:
        """Return the maker and the sizes of shards."""
        num_bytes = count * self._shard_bytes
        data = os.pread(self._descriptors[_SHARED], num_bytes, shard * self._shard_bytes).ljust(num_bytes, b"\0")
        return list(struct.iter_unpack(f"={1 + len(self.names)}q", data))

    def _write(self, offset: int, numbers: Sequence[int]) -> None:
        write_at(self._descriptors[_SHARED], struct.pack(f"={len(numbers)}q", *numbers), offset)

    def _write_maker(self, shard: int, maker: int) -> None:
        self._write(shard * self._shard_bytes, [maker])

    def _is_being_made(self, shard: int) -> bool:
        process = abs(self._read(shard, 1)[0][0]) >> 32
        if process in (0, os.getpid()):
            return process != 0
        try:
            os.kill(process, 0)
        except OSError:
            return False
        return True

    def find_places(self) -> None:
        """Look how far the sizes of shards are known, and give this process's attempts up to there their places."""
        with self._lock:
            while True:
                for _, *told in self._read(self._num_known, _LOOKED_AT):
                    for claim in self._running:
                        if claim.shard == self._num_known and claim.begins is None and not claim.is_apart:
                            claim.begins = self._ends
                    if not all(told):
                        return
                    sizes = dict(zip(self.names, told, strict=True))
                    self._ends = {key: end + sizes[key] - 1 for key, end in self._ends.items()}
                    self._num_known += 1

    def wait(self, claim: Claim) -> None:
        """Wait until an attempt's place is known, unless a shard before it is not being made now.

        Where waiting holds up others, it takes no longer than a share of the time that the attempt took.
        """
        now = time.monotonic()
        before = self._read(self._num_known, max(0, claim.shard - self._num_known))
        has_room = sum(maker < 0 for maker, *_ in before) < self._most_waiting
        end = math.inf if has_room else now + _WAITING_SHARE * (now - claim.since)
        self._write_maker(claim.shard, -claim.maker)
        with release_slot():
            while claim.begins is None and not claim.is_given_up and time.monotonic() < end:
                is_being_made = self._is_being_made(self._num_known)
                self.find_places()
                if claim.begins is None and not is_being_made and not self._is_being_made(self._num_known):
                    break
                time.sleep(_LOOK_SECONDS)
        self._write_maker(claim.shard, claim.maker)

    def drop(self, claim: Claim) -> None:
        """End an attempt."""
        self.find_places()
        with self._lock:
            claim.is_given_up = True
            self._running.remove(claim)
            if not claim.is_apart:
                with contextlib.suppress(OSError):  # such as a full disk, which was reported already
                    self._write_maker(claim.shard, 0)
            self._close_unused()

    def write(self, key: str, data: Bytes, offset: int) -> None:
        """Write all of `data` at an offset of a token file."""
        write_at(self._descriptors[key], data, offset)

    def start_writeback(self, key: str, offset: int, num_bytes: int) -> None:
        """Let the system begin to write a range to the disk."""
        start_writeback(self._descriptors[key], offset, num_bytes)

    def sync(self, key: str) -> None:
        """Sync a token file."""
        os.fsync(self._descriptors[key])


def is_written_to(path: str) -> bool:
    """Tell whether a process has a token file open, such as a worker of a killed driver that was frozen and comes back.

    Raises:
        OSError: If the file cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
    return False


class Claim:
    """An attempt at a shard, which may write at the shard's place unless it is apart."""

    def __init__(self, places: TokenPlaces, shard: int, *, is_apart: bool) -> None:
        self.places = places
        self.shard = shard
        self.is_apart = is_apart
        self.maker = os.getpid() << 32 | next(_NUMBERS) & 0xFFFFFFFF
        self.since = time.monotonic()
        self.begins: Mapping[str, int] | None = None
        """Where the shard's tokens begin, by key; None until it is known."""
        self.is_given_up = False


class PlacedFile:
    """The tokens of one key of an attempt, written at their place in a token file, or else in a file of their own.

    Args:
        claim: The attempt's place.
        key: The key.
        place: The folder of `name`.
        name: The name of the file of their own.
    """

    def __init__(self, claim: Claim, key: str, place: str, name: str) -> None:
        self._tokens = _PlacedTokens(claim, key, os.path.join(place, name))
        self._name = name
        self.key = key
        self.writer = DigestingWriter(self._tokens)

    def write(self, data: Bytes) -> None:
        """Append data, which must not change afterwards."""
        self.writer.write(data)

    def finish(self) -> StoredFile:
        """Sync the tokens and return their name, size and digest."""
        stored = self.writer.as_stored(self._name)
        placed = self._tokens.finish()
        if placed is None:
            return stored
        name, begin = placed
        return StoredSection(name=name, size_bytes=stored.size_bytes, digest=stored.digest, begin=begin)

    def close(self, *, keep: bool) -> None:
        """Close a file of their own; remove it unless `keep`."""
        self._tokens.close(keep=keep)


class _PlacedTokens:
    """Bytes that are held until their place is known."""

    def __init__(self, claim: Claim, key: str, path: str) -> None:
        self._claim = claim
        self._key = key
        self._path = path
        self._held: list[Bytes] = []
        self._num_held = 0
        self._num_written = self._num_at_work = 0
        self._own: IO[bytes] | None = None

    def write(self, data: Bytes) -> int:
        if self._own is not None:
            append_all(self._own, data)
            return len(data)
        self._held.append(data)
        self._num_held += len(data)
        if self._claim.begins is None and not self._claim.is_apart:
            self._claim.places.find_places()
        if self._claim.begins is not None:
            self._write_held()
        elif self._num_held > HELD_BYTES or self._claim.is_apart:
            self._leave()
        return len(data)

    def _write_held(self) -> None:
        claim, begins = self._claim, self._claim.begins
        if claim.is_given_up or begins is None:
            raise OutputError(f"{self._path}: this attempt was given up")
        for data in self._held:
            claim.places.write(self._key, data, begins[self._key] + self._num_written)
            self._num_written += len(data)
            if self._num_written - self._num_at_work >= WRITEBACK_BYTES:
                offset = begins[self._key] + self._num_at_work
                claim.places.start_writeback(self._key, offset, self._num_written - self._num_at_work)
                self._num_at_work = self._num_written
        self._held, self._num_held = [], 0

    def _leave(self) -> None:
        """Go on in a file of their own."""
        self._own = open(self._path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        for data in self._held:
            append_all(self._own, data)
        self._held, self._num_held = [], 0

    def finish(self) -> tuple[str, int] | None:
        """Sync, and return the name of the token file and where the bytes begin; None for a file of their own."""
        claim = self._claim
        if self._own is None and claim.begins is None:
            if not claim.is_apart:
                claim.places.wait(claim)
            if claim.begins is None:
                self._leave()
        if self._own is not None:
            os.fsync(self._own.fileno())
            return None
        self._write_held()
        claim.places.sync(self._key)
        return claim.places.names[self._key], (claim.begins or {})[self._key]

    def close(self, *, keep: bool) -> None:
        self._held = []
        if self._own is not None:
            self._own.close()
            if not keep:
                os.unlink(self._path)
