"""How many requests to a store are in flight: half as many after it asked to slow down, then slowly more again."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.objects.urls import ObjectUrl

MOST_REQUESTS = 64
"""Requests of a process to one bucket or server that are in flight at once."""


class Gate:
    """Lets requests to one store pass, as many at once as it bears.

    A refusal halves the limit, but those of requests that were in flight when it was halved last do not, since they say
    nothing new. As many successes as the limit raise it by one.
    """

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self._most = self._limit = most
        self._in_flight = self._successes = self._halvings = 0
        self._changed = threading.Condition()

    @property
    def limit(self) -> int:
        """Requests that may be in flight by now."""
        return self._limit

    @contextlib.contextmanager
    def passing(self) -> Iterator[int]:
        """Wait until a request may begin; yields what `slow_down` wants to know of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._in_flight < self._limit)
            self._in_flight += 1
            halvings = self._halvings
        try:
            yield halvings
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify()

    def slow_down(self, halvings: int) -> None:
        """Note that the store refused a request because there were too many."""
        with self._changed:
            if halvings == self._halvings:
                self._halvings += 1
                self._limit = max(1, self._limit // 2)
                self._successes = 0

    def succeed(self) -> None:
        """Note that the store answered a request."""
        with self._changed:
            self._successes += 1
            if self._limit < self._most and self._successes >= self._limit:
                self._successes = 0
                self._limit += 1
                self._changed.notify()


_gates: dict[str, Gate] = {}
_lock = threading.Lock()


def gate_of(url: ObjectUrl) -> Gate:
    """Return the gate of the bucket or server of an address in this process."""
    with _lock:
        store = f"{url.scheme}://{url.bucket} {url.access.endpoint_url or ''}"
        return _gates.setdefault(store, Gate())


def _forget() -> None:
    """Begin anew in a forked process, in which the threads that were passing do not exist."""
    global _lock
    _lock = threading.Lock()
    _gates.clear()


os.register_at_fork(after_in_child=_forget)
