"""The token files of a job's datasets, into which shards write their tokens where the output will have them.

So each token is written once. Where a shard's tokens begin is known as soon as every shard before it has its last
token; until then they are held in memory. A shard that would hold more than HELD_BYTES, or that is complete while one
before it is not being made, writes a file of its own, which is merged later (dsindex.engine.merge).

A token file has two names: one in the work folder, to which the ledger refers, and the partial name beside the output,
under which it is completed and published.
"""

from __future__ import annotations

import os
import threading
from typing import IO, TYPE_CHECKING

from dsindex.errors import OutputError
from dsindex.store.requests import release_slot
from dsindex.store.storage import (
    WRITEBACK_BYTES,
    DigestingWriter,
    StoredFile,
    StoredSection,
    append_all,
    start_writeback,
    write_at,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.store.clients import Bytes

HELD_BYTES = 64 << 20
"""Most bytes of tokens that a shard holds."""
_LOOK_SECONDS = 1.0
"""Longest time between two looks at whether a shard before is still being made."""


class TokenPlaces:
    """Where the shards of a job write their tokens; threads share it.

    Args:
        work_dir: The work folder.
        names: The token file of each key, relative to the work folder.
        begin: Where the tokens of all shards begin in each.
        most_waiting: Number of complete shards that may wait for one before them at once.
    """

    def __init__(self, work_dir: str, names: Mapping[str, str], begin: Mapping[str, int], *, most_waiting: int) -> None:
        self.names = names
        self._descriptors = {
            key: os.open(os.path.join(work_dir, name), os.O_WRONLY | os.O_NOFOLLOW) for key, name in names.items()
        }
        self._changed = threading.Condition()
        self._ends = dict(begin)
        """Where the tokens of the first `_num_known` shards end, by key."""
        self._num_known = 0
        self._sizes: dict[int, Mapping[str, int]] = {}
        """Sizes of the tokens of shards after them by key, in bytes."""
        self._running: dict[int, Claim] = {}
        self._room = most_waiting
        self._is_closed = False

    def close(self) -> None:
        """Refuse all further writes, such as those of an attempt that was given up and still runs."""
        with self._changed:
            self._is_closed = True
            for claim in self._running.values():
                claim.is_given_up = True
            self._changed.notify_all()
            self._close_unused()

    def _close_unused(self) -> None:
        """Close the files once nobody writes; a number of an open file must not become another file's meanwhile."""
        if self._is_closed and not self._running:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors = {}

    def claim(self, shard: int) -> Claim | None:
        """Begin an attempt at a shard; None if another attempt may write at its place."""
        with self._changed:
            if shard < self._num_known or shard in self._sizes or shard in self._running:
                return None
            self._running[shard] = claim = Claim(self, shard)
            self._find_places()
            return claim

    def tell(self, shard: int, sizes: Mapping[str, int]) -> None:
        """Take the sizes of a shard's tokens by key, in bytes, as soon as all of them are there."""
        with self._changed:
            if shard >= self._num_known:
                self._sizes[shard] = sizes
                self._find_places()

    def _find_places(self) -> None:
        """Go on to the first shard of which the sizes are not known, and tell all before it and itself their places."""
        while True:
            claim = self._running.get(self._num_known)
            if claim is not None and claim.begins is None:
                claim.begins = self._ends
            sizes = self._sizes.pop(self._num_known, None)
            if sizes is None:
                break
            self._ends = {key: end + sizes[key] for key, end in self._ends.items()}
            self._num_known += 1
        self._changed.notify_all()

    def wait(self, claim: Claim) -> None:
        """Wait until an attempt's place is known, unless a shard before it is not being made now."""
        with release_slot(), self._changed:
            if not self._room:
                return
            self._room -= 1
            while claim.begins is None and self._num_known in self._running and not claim.is_given_up:
                self._changed.wait(_LOOK_SECONDS)
            self._room += 1

    def drop(self, claim: Claim) -> None:
        """End an attempt."""
        with self._changed:
            claim.is_given_up = True
            if self._running.get(claim.shard) is claim:
                del self._running[claim.shard]
            self._changed.notify_all()
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


class Claim:
    """An attempt at a shard that may write at the shard's place."""

    def __init__(self, places: TokenPlaces, shard: int) -> None:
        self.places = places
        self.shard = shard
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
        if self._claim.begins is not None:
            self._write_held()
        elif self._num_held > HELD_BYTES:
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
