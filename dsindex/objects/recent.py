"""Objects that this process has written and will read again: held in memory, so that they need not be fetched.

Only objects under names that are used once are held, since such a name never stands for other content. Whoever runs
tasks in this process decides how much is held; in processes that run a task at a time, what one writes is seldom what
it reads next, and nothing is held.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsindex.objects.blocks import Blocks
    from dsindex.objects.urls import ObjectUrl


@dataclass(slots=True)
class _Recent:
    """The contents, in the order in which they were written, which is about that in which they are read."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    contents: dict[str, Blocks] = field(default_factory=dict)
    most_bytes: int = 0
    held_bytes: int = 0


_recent = _Recent()


def _forget() -> None:
    """Hold nothing in a forked process; the lock may have been held while it was forked."""
    global _recent
    _recent = _Recent()


os.register_at_fork(after_in_child=_forget)


def hold_recent(most_bytes: int) -> None:
    """Hold objects of so many bytes together from now on; 0 lets all go."""
    with _recent.lock:
        _recent.most_bytes = most_bytes
        _let_go()


def keep_recent(url: ObjectUrl, content: Blocks) -> None:
    """Hold an object that was written, if there is room for it."""
    with _recent.lock:
        if len(content) <= _recent.most_bytes and str(url) not in _recent.contents:
            _recent.contents[str(url)] = content
            _recent.held_bytes += len(content)
            _let_go()


def find_recent(path: str) -> Blocks | None:
    """Return the content of an object that is held; None for others."""
    with _recent.lock:
        return _recent.contents.get(str(path))


def _let_go() -> None:
    while _recent.held_bytes > _recent.most_bytes:
        oldest = next(iter(_recent.contents))
        _recent.held_bytes -= len(_recent.contents.pop(oldest))
