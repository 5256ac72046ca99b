"""Encode with gigatoken: one object per tokenizer, which all threads of a process share.

gigatoken returns the tokens of one text as an array, and those of many as an array of awkward, or as lists. So texts
are joined by a special token of the tokenizer and encoded as one: text is split at special tokens before all else. They
are passed as a BytesSource, since gigatoken imports awkward to look at a list: 0.3 s of CPU time.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer

Separator: TypeAlias = tuple[str, int]
"""A special token and its id."""

REBUILD_AFTER_BYTES = 1 << 30
"""Text after which the object is rebuilt, since gigatoken never forgets a word."""
REBUILD_AFTER_GROWTH = 256 << 20
"""Growth of the process after which the object is rebuilt earlier."""
LEARNT_PER_BYTE = 10
"""Most bytes by which the object grows with a byte of text: 20 MB of random words take 190 MB."""


class FastTokenizer:
    """A gigatoken tokenizer; results do not depend on what was encoded before."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._content = tokenizer.json
        self._lock = threading.Lock()
        """Held while the object is chosen or built, not while it encodes."""
        self._backend: Any = None
        self._used_bytes = 0
        self._resident_when_built: int | None = None

    def encode(
        self, texts: Sequence[bytes], separator: Separator | None
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode texts; special-token strings in a text become special tokens.

        Args:
            texts: The texts in UTF-8, at least one.
            separator: A token that can be between texts; None for none, which takes longer.

        Returns:
            Token ids, shape [T], and the number of tokens of each text, shape [D].

        Raises:
            RuntimeError, ValueError, TypeError: If gigatoken cannot load the tokenizer.
        """
        backend = self._take(sum(map(len, texts)))
        encoded = None if separator is None else _encode_joined(backend, texts, *separator)
        return _encode_each(backend, texts) if encoded is None else encoded

    def _take(self, num_bytes: int) -> Any:  # noqa: ANN401 - gigatoken has no types
        """Return the object for a call, after rebuilding it if that is due."""
        import gigatoken

        give_back_memory()
        with self._lock:
            if self._backend is None or self._has_learnt_much(num_bytes):
                self._backend = None  # frees the old tables before new ones are made, unless a call still uses them
                self._backend = gigatoken.Tokenizer.from_json(self._content).backend
                self._used_bytes = 0
                self._resident_when_built = resident_bytes()
            self._used_bytes += num_bytes
            return self._backend

    def _has_learnt_much(self, num_bytes: int) -> bool:
        if self._used_bytes + num_bytes > REBUILD_AFTER_BYTES:
            return True
        now = resident_bytes()
        if now is None or self._resident_when_built is None:
            return False
        grown = min(now - self._resident_when_built, LEARNT_PER_BYTE * self._used_bytes)  # others grow as well
        return grown > REBUILD_AFTER_GROWTH


def _encode_joined(
    backend: Any,  # noqa: ANN401 - as above
    texts: Sequence[bytes],
    separator: str,
    number: int,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]] | None:
    """Encode texts as one; None if the separators among the tokens are not those of the text.

    gigatoken encodes less than 2 MiB in the calling thread even if it may use others, and holds no lock meanwhile.
    """
    from gigatoken.gigatoken_rs import BytesSource, PadTruncate

    between = separator.encode()
    [ids], _ = backend.encode_batch_padded(BytesSource([between.join(texts)]), PadTruncate(0), parallel=True)
    places = np.flatnonzero(ids == number)
    if len(places) != len(texts) - 1:  # a text has some of its own
        own = np.array([text.count(between) for text in texts])
        if len(places) != own.sum() + len(texts) - 1:
            return None
        places = places[np.cumsum(own[:-1] + 1) - 1]
    lengths = np.diff(places, prepend=-1, append=len(ids)) - 1
    return np.delete(ids, places), lengths


def _encode_each(
    backend: Any,  # noqa: ANN401 - as above
    texts: Sequence[bytes],
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    from gigatoken.gigatoken_rs import BytesSource

    rows = backend.encode_batch_list(BytesSource(list(texts)), parallel=True)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths


_SHARED: dict[str, FastTokenizer] = {}
"""The most recent few, by the tokenizer's SHA-256."""
_SHARED_LOCK = threading.Lock()
_KEPT = 2


def fast_tokenizer(tokenizer: Tokenizer) -> FastTokenizer:
    """Return the process-wide FastTokenizer of a tokenizer."""
    with _SHARED_LOCK:
        shared = _SHARED.pop(tokenizer.sha256, None) or FastTokenizer(tokenizer)
        _SHARED[tokenizer.sha256] = shared
        while len(_SHARED) > _KEPT:
            del _SHARED[next(iter(_SHARED))]
        return shared


def resident_bytes() -> int | None:
    """Return the resident memory of this process in bytes; None if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


@functools.cache
def give_back_memory() -> None:
    """Keep the C library from raising its thresholds for returning free memory with every large block.

    Without this, the heaps of two threads hold 100 MB of free memory after some GB of text. Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 8 << 20)  # more than most blocks of tokens, less than a table of words
        mallopt(_M_TRIM_THRESHOLD, 16 << 20)  # more than a block needs, or each one faults its pages in again


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
