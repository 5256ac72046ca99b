"""Threads that fetch ranges of objects while their readers compute.

They are daemons: a process that ends does not wait for a slow store.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Answer = TypeVar("Answer")

MOST_THREADS = 64
"""Maximum requests in flight per process."""


class _Fetchers:
    """A thread pool that grows when no thread is idle."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._open = 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._open += 1
            is_wanted = self._open > self._threads and self._threads < MOST_THREADS
            if is_wanted:
                self._threads += 1
                number = self._threads
        self._requests.put((future, function))
        if is_wanted:
            threading.Thread(target=self._work, name=f"dsindex-fetch-{number}", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, function = self._requests.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - it is raised to whoever waits
                    future.set_exception(error)
            del future, function
            with self._lock:
                self._open -= 1


_fetchers = _Fetchers()


def _start_anew() -> None:
    """Reset after a fork: threads do not survive it."""
    global _fetchers
    _fetchers = _Fetchers()


os.register_at_fork(after_in_child=_start_anew)


def fetch_later(function: Callable[[], Any]) -> Future[Any]:
    """Submit a function to the pool."""
    return _fetchers.submit(function)


def fetch_all(function: Callable[[Any], Answer], items: Iterable[Any], *, places: Iterable[str]) -> list[Answer]:
    """Call a function for each item: at once if any of the places is an object, in turn if all are files."""
    if not any(map(is_url, places)):
        return list(map(function, items))
    answers = [fetch_later(partial(function, item)) for item in items]
    try:
        return [answer.result() for answer in answers]
    finally:
        for answer in answers:
            answer.cancel()
