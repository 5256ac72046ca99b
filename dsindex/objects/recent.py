"""Objects that this process has written and will read again: held in memory, so that they need not be fetched.

Only objects under names that are used once are held, since such a name never stands for other content. Whoever runs
tasks in this process decides how much is held; in processes that run a task at a time, what one writes is seldom what
it reads next, and nothing is held.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dsindex.objects.blocks import Blocks
    from dsindex.objects.urls import ObjectUrl


SMALL_BYTES = 1 << 20
"""Objects below this size, which are read last, do not have to go for larger ones."""
_SHARE_OF_SMALL = 8
"""Small objects have this part of the room."""


@dataclass(slots=True)
class _Shelf:
    """Contents in the order in which they were written, which is about that in which they are read."""

    contents: dict[str, Blocks] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    """Bytes of each content that nobody has read to the end."""
    most_bytes: int = 0
    held_bytes: int = 0

    def hold(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._make_room()

    def keep(self, name: str, content: Blocks) -> None:
        if len(content) <= self.most_bytes and name not in self.contents:
            self.contents[name], self.unread[name] = content, len(content)
            self.held_bytes += len(content)
            self._make_room()

    def note_read(self, name: str, num_bytes: int) -> None:
        if name in self.contents:
            self.unread[name] -= num_bytes
            if self.unread[name] <= 0:
                self._let_go(name)

    def _make_room(self) -> None:
        while self.held_bytes > self.most_bytes:
            self._let_go(next(iter(self.contents)))

    def _let_go(self, name: str) -> None:
        del self.unread[name]
        self.held_bytes -= len(self.contents.pop(name))


@dataclass(slots=True)
class _Recent:
    lock: threading.Lock = field(default_factory=threading.Lock)
    large: _Shelf = field(default_factory=_Shelf)
    small: _Shelf = field(default_factory=_Shelf)
    pinned: dict[str, Blocks] = field(default_factory=dict)
    """What a task has in hand, whatever the room."""


_recent = _Recent()


def _forget() -> None:
    """Hold nothing in a forked process; the lock may have been held while it was forked."""
    global _recent
    _recent = _Recent()


os.register_at_fork(after_in_child=_forget)


def hold_recent(most_bytes: int) -> None:
    """Hold objects of so many bytes together from now on; 0 lets all go."""
    with _recent.lock:
        small_bytes = most_bytes // _SHARE_OF_SMALL
        _recent.small.hold(small_bytes)
        _recent.large.hold(most_bytes - small_bytes)


def keep_recent(url: ObjectUrl, content: Blocks) -> None:
    """Hold an object that was written, if there is room for it."""
    with _recent.lock:
        shelf = _recent.small if len(content) < SMALL_BYTES else _recent.large
        shelf.keep(str(url), content)


@contextlib.contextmanager
def holding(contents: Mapping[str, Blocks]) -> Iterator[None]:
    """Hold objects for the time of the block, by their addresses, such as what a task reads several times."""
    with _recent.lock:
        _recent.pinned.update(contents)
    try:
        yield
    finally:
        with _recent.lock:
            for name in contents:
                _recent.pinned.pop(name, None)  # a second attempt at the same task may have been here


def find_recent(path: str) -> Blocks | None:
    """Return the content of an object that is held; None for others."""
    name = str(path)
    with _recent.lock:
        return _recent.large.contents.get(name) or _recent.small.contents.get(name) or _recent.pinned.get(name)


def let_go_read(path: str, num_bytes: int) -> None:
    """Say that so many bytes of an object will not be read again; it is let go once all of them are read."""
    with _recent.lock:
        _recent.large.note_read(str(path), num_bytes)
