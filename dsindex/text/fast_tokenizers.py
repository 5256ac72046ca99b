"""gigatoken's objects: each takes 0.1 s to load and works for one thread at a time, so that they are handed on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsindex.text.tokenizer import Tokenizer

_LOCK = threading.Lock()
_SPARE: dict[str, list[Any]] = {}
"""By the tokenizer's SHA-256; what nobody works with."""


def take_or_load(tokenizer: Tokenizer) -> Any:  # noqa: ANN401 - gigatoken has no types
    """Give an object that nobody else works with.

    Raises:
        RuntimeError, ValueError, TypeError: If gigatoken cannot load the tokenizer.
    """
    with _LOCK:
        spare = _SPARE.get(tokenizer.sha256)
        if spare:
            return spare.pop()

    import gigatoken

    return gigatoken.Tokenizer.from_json(tokenizer.json)


def hand_on(tokenizer: Tokenizer, fast: Any) -> None:  # noqa: ANN401 - as above
    """Leave an object to whoever wants one next."""
    with _LOCK:
        _SPARE.setdefault(tokenizer.sha256, []).append(fast)
