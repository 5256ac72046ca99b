"""gigatoken's object: one of each tokenizer for all threads of a process, built again when it has learnt too much.

An object takes 0.2 s to load, under the interpreter's lock. Calls that run at the same time have tables of words of
their own in it; they grow with the text.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from dsindex.text.ragged import encode_ragged

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer

REBUILD_AFTER_BYTES = 640 * 1024**2
"""gigatoken remembers every word and never forgets, so it is built again after so much text for each table.

That takes time, and then the words have to be learnt again: done after every 160 MiB, a build of 1.2 GB took 9 and 16 %
longer, in two medians of four rounds."""
REBUILD_AFTER_GROWTH = 192 * 1024**2
"""Or sooner, when the process has grown by so much for each table since: 20 MB of random words make it grow by
190 MB. The memory goes when the object goes."""
REBUILD_AFTER_SECONDS = 2.0
"""Or after so much CPU time where a process cannot see its size: it grows by 160 MB a second at most."""

_UNDIVIDED_BYTES = 2 << 20
"""gigatoken 0.10 encodes less text than this in the calling thread, even where it is free to use others."""


class FastTokenizer:
    """What threads share; results do not depend on what was encoded before."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        """Held while the object is looked at or built, not while it encodes."""
        self._fast: Any = None
        self._learns = True
        self._running, self._tables = 0, 1
        """Calls that encode now, and the most that did so at once: each had a table."""
        self._used_bytes, self._used_seconds = 0, 0.0
        self._resident_when_built: int | None = None
        self._others: list[Any] = []
        """More objects, for calls that find no table free in the first one."""
        self._alone = threading.Lock()
        self._beside = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))

    def encode(
        self, offsets: NDArray[np.int64], data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode texts, special-token strings in them included, in the calling thread.

        Args:
            offsets: Where the texts begin in `data`, and where the last one ends; shape [D + 1].
            data: UTF-8.

        Returns:
            Token ids, shape [T], and the number of tokens of each text, shape [D].

        Raises:
            RuntimeError, ValueError, TypeError: If gigatoken cannot load the tokenizer.
        """
        num_bytes = int(offsets[-1] - offsets[0])
        fast = self._take(num_bytes)
        begin = time.thread_time()
        try:
            with self._turn(fast, num_bytes) as (free, parallel):
                return encode_ragged(free, offsets, data, parallel=parallel)
        finally:
            with self._lock:
                self._running -= 1
                self._used_seconds += time.thread_time() - begin

    def _take(self, num_bytes: int) -> Any:  # noqa: ANN401 - gigatoken has no types
        """Return the object for a call, after building it where that is due."""
        from gigatoken.gigatoken_rs import SentencePieceTokenizer

        give_back_memory()
        with self._lock:
            if self._fast is None or (self._learns and self._has_learnt_much(num_bytes)):
                self._fast = None  # the old tables go before new ones are made, unless a call still uses them
                self._others.clear()
                self._fast = self._load()
                self._learns = not isinstance(self._fast.backend, SentencePieceTokenizer)
                self._tables = 1
                self._used_bytes, self._used_seconds = 0, 0.0
                self._resident_when_built = resident_bytes()
            self._running += 1
            self._tables = max(self._tables, self._running)
            self._used_bytes += num_bytes
            return self._fast

    def _load(self) -> Any:  # noqa: ANN401 - as above
        import gigatoken

        return gigatoken.Tokenizer.from_json(self._tokenizer.json)

    def _has_learnt_much(self, num_bytes: int) -> bool:
        if self._used_bytes + num_bytes > REBUILD_AFTER_BYTES * self._tables:
            return True
        now = resident_bytes()
        if now is None or self._resident_when_built is None:
            return self._used_seconds > REBUILD_AFTER_SECONDS * self._tables
        return now - self._resident_when_built > REBUILD_AFTER_GROWTH * self._tables

    @contextlib.contextmanager
    def _turn(self, fast: Any, num_bytes: int) -> Iterator[tuple[Any, bool]]:  # noqa: ANN401 - as above
        """Return an object with a free table, and what to call its `parallel` so that it encodes in this thread.

        One table is for calls that are not parallel; the others are those of gigatoken's pool of threads, one for each
        CPU. A call of little text takes one of these too, and none of the threads. Where none is free, as for several
        very long documents at once, another object is used.
        """
        if not self._learns:  # then it has no tables to wait for
            yield fast, False
        elif self._alone.acquire(blocking=False):
            try:
                yield fast, False
            finally:
                self._alone.release()
        elif num_bytes < _UNDIVIDED_BYTES and self._beside.acquire(blocking=False):
            try:
                yield fast, True
            finally:
                self._beside.release()
        else:
            with self._lock:
                other = self._others.pop() if self._others else self._load()
            try:
                yield other, False
            finally:
                with self._lock:
                    if fast is self._fast:  # else it is as old as the first one that was given up
                        self._others.append(other)


_KEPT = 2
_SHARED: dict[str, FastTokenizer] = {}
"""By the tokenizer's SHA-256; the last few."""
_SHARED_LOCK = threading.Lock()


def fast_tokenizer(tokenizer: Tokenizer) -> FastTokenizer:
    """Return the one of this process."""
    with _SHARED_LOCK:
        shared = _SHARED.pop(tokenizer.sha256, None) or FastTokenizer(tokenizer)
        _SHARED[tokenizer.sha256] = shared
        while len(_SHARED) > _KEPT:
            del _SHARED[next(iter(_SHARED))]
        return shared


def _forget_after_fork() -> None:
    """Begin anew in a forked process: a lock that another thread held at that moment would never be given back."""
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    _SHARED.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def resident_bytes() -> int | None:
    """Return the memory that this process holds; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


@functools.cache
def give_back_memory() -> None:
    """Keep the C library from raising, with every large block, the sizes up to which it keeps what is free.

    Without this the heaps of two threads hold 100 MB of nothing after some GB of text. Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 8 << 20)  # more than most blocks of tokens, less than a table of words
        mallopt(_M_TRIM_THRESHOLD, 4 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
