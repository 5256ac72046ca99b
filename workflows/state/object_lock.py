"""One driver per work folder and per output in an object store: a lock object, made and changed by conditional writes.

The owner writes it again every HEARTBEAT_SECONDS, and it lapses LEASE_SECONDS after the last time, by the store's own
clock; on the owner's machine, the process table tells at once. Correctness never depends on the lock.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import orjson

from dsindex.errors import OutputError, PlanError
from dsindex.objects.writing import put_if_absent, put_if_same, read_object, remove_objects
from workflows.state.lock_owner import (
    LEASE_SECONDS,
    MAX_LOCK_BYTES,
    describe_self,
    is_alive,
    name_driver,
    parse_owner,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.objects.urls import ObjectUrl

HEARTBEAT_SECONDS = 15.0
_MOST_ROUNDS = 10


@contextlib.contextmanager
def hold_object_lock(url: ObjectUrl, *, what: str) -> Iterator[None]:
    """Hold a lock object while the block runs.

    Args:
        url: The lock's address.
        what: What the lock protects, for the message to a second driver.

    Raises:
        PlanError: If a driver that may be alive holds it, naming its host and process, or if an object of its name is
            not a lock.
        OutputError: If the store refuses.
    """
    lock = _ObjectLock(url, what=what)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_object_lock(url: ObjectUrl) -> bool:
    """Tell whether an object is a lock that a driver wrote."""
    found = read_object(url, most_bytes=MAX_LOCK_BYTES + 1)
    return found is not None and parse_owner(found[0]) is not None


def refuse_live_object_owner(url: ObjectUrl, *, what: str) -> None:
    """Refuse if a driver that may be alive holds a lock.

    Raises:
        PlanError: If one does, naming its host and process.
        OutputError: If the store refuses.
    """
    found = read_object(url, most_bytes=MAX_LOCK_BYTES + 1)
    if found is not None:
        _refuse_unless_dead(url, found[0], found[1].age_seconds, what=what)


def require_conditions(url: ObjectUrl, content: bytes) -> None:
    """Refuse a store that ignores conditions: without them, two drivers would not notice each other.

    Args:
        url: An object that this driver has just written; it is removed if the store is refused.
        content: Its content.

    Raises:
        PlanError: If it is replaced although there is one.
        OutputError: If the store refuses.
    """
    if put_if_absent(url, content + b"\n") is not None:
        remove_objects([url])
        msg = (
            f"{url}: expected a store with conditional writes (If-None-Match), got one that ignores them; write to "
            f"another store, or to a disk"
        )
        raise PlanError(msg)


class _ObjectLock:
    def __init__(self, url: ObjectUrl, *, what: str) -> None:
        self._url = url
        self._what = what
        self._content = orjson.dumps(describe_self())
        self._etag = ""
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._heartbeat, daemon=True, name="dsindex-lease")

    def acquire(self) -> None:
        """Write the lock, in place of a dead owner's if necessary, and start the heartbeat."""
        for _ in range(_MOST_ROUNDS):
            etag = put_if_absent(self._url, self._content)
            if etag is None:
                found = read_object(self._url, most_bytes=MAX_LOCK_BYTES + 1)
                if found is None:
                    continue  # it was released just now
                _refuse_unless_dead(self._url, found[0], found[1].age_seconds, what=self._what)
                etag = put_if_same(self._url, self._content, found[1].etag)
            if etag is not None:
                require_conditions(self._url, self._content)
                self._etag = etag
                self._beat.start()
                return
        msg = f"{self._url}: other drivers take {self._what} again and again; wait for them"
        raise PlanError(msg)

    def release(self) -> None:
        """Remove the lock, unless another driver took it over."""
        self._stop.set()
        self._beat.join()
        with contextlib.suppress(OutputError):  # otherwise it lapses
            found = read_object(self._url, most_bytes=MAX_LOCK_BYTES + 1)
            if found is not None and found[0] == self._content:
                remove_objects([self._url])

    def _heartbeat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OutputError):
                self._etag = put_if_same(self._url, self._content, self._etag) or self._etag


def _refuse_unless_dead(url: ObjectUrl, content: bytes, age_seconds: float, *, what: str) -> None:
    owner = parse_owner(content)
    if owner is None:
        msg = f"{url}: expected a lock of dsindex or nothing, got another object; move it away"
        raise PlanError(msg)
    alive = is_alive(owner)
    if alive is False:
        return
    remedy = "wait for it, or stop it and run the same command again"
    if alive is None:
        left = LEASE_SECONDS - age_seconds
        if left <= 0:
            return
        remedy += f"; if it no longer runs, its lock lapses in {left:.0f} s"
    msg = f"{url}: {name_driver(owner)} works on {what}; {remedy}"
    raise PlanError(msg)
