"""Let another task compute while one waits for a store.

Where tasks are threads of one process, as many compute at once as the machine has CPUs for them. One that waits for an
answer gives its place to another until the answer is there. Elsewhere nothing happens.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

_thread = threading.local()

Answer = TypeVar("Answer")


@contextlib.contextmanager
def taking_place(places: threading.Semaphore) -> Iterator[None]:
    """Run the block in one of the places, which it gives up while it waits for a store."""
    with places:
        _thread.places = places
        try:
            yield
        finally:
            _thread.places = None


@contextlib.contextmanager
def giving_place() -> Iterator[None]:
    """Let another task compute while the block waits for a store."""
    places: threading.Semaphore | None = getattr(_thread, "places", None)
    if places is None:
        yield
        return
    places.release()
    try:
        yield
    finally:
        places.acquire()


def result_of(future: Future[Answer]) -> Answer:
    """Return the result of a request, and let another task compute until it is there.

    Raises:
        BaseException: What the request raised.
    """
    if not future.done():
        with giving_place():
            return future.result()
    return future.result()
