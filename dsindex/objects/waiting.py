"""Let another task compute while one waits for a store.

Where tasks are threads of one process, as many compute at once as the machine has CPUs for them. One that waits for an
answer gives its place to another until the answer is there. Elsewhere nothing happens.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

_thread = threading.local()

Answer = TypeVar("Answer")


class Places:
    """As many tasks compute at once as there are places.

    A place that becomes free goes to whoever has waited for a store first, and then to new tasks, in their order: none
    overtakes another.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number
        self._returning: deque[threading.Lock] = deque()
        self._new: deque[threading.Lock] = deque()

    def take(self, *, returning: bool = False) -> None:
        """Wait for a place."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            (self._returning if returning else self._new).append(turn)
        turn.acquire()

    def give(self) -> None:
        """Give a place up."""
        with self._lock:
            waiting = self._returning or self._new
            if waiting:
                waiting.popleft().release()
            else:
                self._free += 1


@contextlib.contextmanager
def taking_place(places: Places) -> Iterator[None]:
    """Run the block in one of the places, which it gives up while it waits for a store."""
    places.take()
    _thread.places = places
    try:
        yield
    finally:
        _thread.places = None
        places.give()


@contextlib.contextmanager
def giving_place() -> Iterator[None]:
    """Let another task compute while the block waits for a store."""
    places: Places | None = getattr(_thread, "places", None)
    if places is None:
        yield
        return
    places.give()
    try:
        yield
    finally:
        places.take(returning=True)


def result_of(future: Future[Answer]) -> Answer:
    """Return the result of a request, and let another task compute until it is there.

    Raises:
        BaseException: What the request raised.
    """
    if not future.done():
        with giving_place():
            return future.result()
    return future.result()
