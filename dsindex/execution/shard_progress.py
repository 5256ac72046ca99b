"""Progress callbacks for running shards; a no-op without a listener."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_listener: ContextVar[Callable[[int, int, int], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def reporting_to(listener: Callable[[int, int, int], None] | None) -> Iterator[None]:
    """Pass on what `report` is called with in this thread while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(text_bytes: int, documents: int, tokens: int) -> None:
    """Tell how many bytes of text, documents and tokens of a shard are done so far."""
    listener = _listener.get()
    if listener is not None:
        listener(text_bytes, documents, tokens)
