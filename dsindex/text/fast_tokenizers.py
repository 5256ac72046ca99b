"""Share one gigatoken object per tokenizer among all threads of a process, and rebuild it when its tables grow large.

An object takes 0.2 s to load, under the interpreter's lock. Each concurrent call has its own table of words in it,
which grows with the text.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import os
import threading
import time
from itertools import pairwise
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dsindex.text.conversion import (
    convert_sentencepiece,
    convert_tiktoken,
    read_definition,
    read_sentencepiece,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer


# Pass texts to gigatoken and get tokens back as arrays.
#
# gigatoken takes and returns ragged arrays of awkward, a package that it depends on. Importing it takes 0.2 s of CPU
# time, and each call 0.5 ms in Python. Where awkward cannot be imported, gigatoken returns a list of views of an array,
# which takes 1 µs a text. So few texts are passed by a function in which the import fails: PyImport_Import, which
# gigatoken calls, takes `__import__` from the builtins of the running function. Nothing else in the process notices.

FEW_TEXTS = 512
"""Texts in a call up to which a list takes less time than an array of awkward."""
LISTED_TEXTS = 100_000
"""Texts in larger calls that a process passes as lists before it imports awkward."""
_num_listed = 0


def encode_ragged(
    fast: Any,  # noqa: ANN401 - gigatoken has no types
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    *,
    parallel: bool,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the tokens of texts from gigatoken; special tokens in the texts are recognised.

    Args:
        fast: A gigatoken.Tokenizer.
        offsets: Start of each text in `data`, then the end of the last; shape [D + 1].
        data: The texts in UTF-8, concatenated.
        parallel: Use gigatoken's threads.

    Returns:
        Token ids, shape [T], and the number of tokens of each text, shape [D].
    """
    global _num_listed  # as what is imported does, it belongs to the process
    if len(offsets) > FEW_TEXTS:
        _num_listed += len(offsets)
        if _num_listed > LISTED_TEXTS:
            return _encode_array(fast, offsets, data, parallel)
    view = data.data
    rows = _encode_list(fast.backend, [view[a:b].tobytes() for a, b in pairwise(offsets.tolist())], parallel)
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    whole = rows[0].base if rows else None
    return whole if whole is not None and whole.size == lengths.sum() else np.concatenate([_NO_TOKENS, *rows]), lengths


def _encode_array(
    fast: Any,  # noqa: ANN401 - as above
    offsets: NDArray[np.int64],
    data: NDArray[np.uint8],
    parallel: bool,
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    import awkward

    content = awkward.contents.NumpyArray(data, parameters={"__array__": "char"})
    texts = awkward.contents.ListOffsetArray(
        awkward.index.Index64(offsets), content, parameters={"__array__": "string"}
    )
    layout = fast.encode_batch(awkward.Array(texts), parallel=parallel).layout
    ends = np.asarray(layout.offsets.data, np.int64)
    return np.asarray(layout.content.data, np.uint32)[ends[0] : ends[-1]], np.diff(ends)


def _import_others(name: str, *arguments: Any) -> Any:  # noqa: ANN401 - those of __import__
    if name == "awkward":
        raise ImportError(name)
    return __import__(name, *arguments)


_encode_list: Callable[[Any, list[bytes], bool], list[NDArray[np.uint32]]] = FunctionType(
    (lambda backend, texts, parallel: backend.encode_batch(texts, parallel=parallel)).__code__,
    {"__builtins__": {**vars(builtins), "__import__": _import_others}},
)
_NO_TOKENS = np.empty(0, np.uint32)


REBUILD_AFTER_BYTES = 640 * 1024**2
"""Text per table after which the object is rebuilt, since gigatoken never forgets a word.

Rebuilding every 160 MiB made builds 9 to 16 % slower."""
REBUILD_AFTER_GROWTH = 192 * 1024**2
"""Growth of the process per table after which the object is rebuilt earlier."""
LEARNT_PER_BYTE = 10
"""Most bytes by which the object grows with a byte of text: 20 MB of random words take 190 MB."""
REBUILD_AFTER_SECONDS = 2.0
"""CPU time after which the object is rebuilt if a process cannot see its size; it grows by at most 160 MB/s."""

_UNDIVIDED_BYTES = 2 << 20
"""gigatoken 0.10 encodes less text than this in the calling thread, even if it may use others."""
_PATIENCE_SECONDS = 0.1
"""Time to wait for a table: to load another object takes 0.1 s, with other calls held up, and it has learnt no word."""


class FastTokenizer:
    """A gigatoken tokenizer that threads share; results do not depend on what was encoded before."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        """Held while the object is chosen or built, not while it encodes."""
        self._fast: Any = None
        self._learns = True
        self._running, self._tables = 0, 1
        """Calls that are encoding, and the most that did so at once, which is the number of tables."""
        self._used_bytes, self._used_seconds = 0, 0.0
        self._resident_when_built: int | None = None
        self._others: list[Any] = []
        """Further objects, for calls that find no free table in the first one."""
        self._alone = threading.Lock()
        self._beside = threading.BoundedSemaphore(len(os.sched_getaffinity(0)))

    def encode(
        self, offsets: NDArray[np.int64], data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode texts in the calling thread; special-token strings in a text become special tokens.

        Args:
            offsets: Start of each text in `data`, then the end of the last one; shape [D + 1].
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
        """Return the object for a call, after rebuilding it if that is due."""
        from gigatoken.gigatoken_rs import SentencePieceTokenizer

        give_back_memory()
        with self._lock:
            if self._fast is None or (self._learns and self._has_learnt_much(num_bytes)):
                self._fast = None  # frees the old tables before new ones are made, unless a call still uses them
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

        return gigatoken.Tokenizer.from_json(json_for_gigatoken(self._tokenizer))

    def _has_learnt_much(self, num_bytes: int) -> bool:
        if self._used_bytes + num_bytes > REBUILD_AFTER_BYTES * self._tables:
            return True
        now = resident_bytes()
        if now is None or self._resident_when_built is None:
            return self._used_seconds > REBUILD_AFTER_SECONDS * self._tables
        learnt = min(now - self._resident_when_built, LEARNT_PER_BYTE * self._used_bytes)  # others grow as well
        return learnt > REBUILD_AFTER_GROWTH * self._tables

    @contextlib.contextmanager
    def _turn(self, fast: Any, num_bytes: int) -> Iterator[tuple[Any, bool]]:  # noqa: ANN401 - as above
        """Yield an object with a free table, and the `parallel` argument that makes it encode in this thread.

        One table serves calls that are not parallel; the others belong to gigatoken's thread pool, one per CPU. A
        parallel call with little text uses one of these tables but no thread. A call with more uses another object that
        was loaded before, or waits for the first table. If that takes long, as with several very long documents at
        once, it loads another object.
        """
        is_small = num_bytes < _UNDIVIDED_BYTES
        patience = 0.0 if is_small or self._others else _PATIENCE_SECONDS
        if not self._learns:  # it has no tables to wait for
            yield fast, False
        elif self._alone.acquire(timeout=patience):
            try:
                yield fast, False
            finally:
                self._alone.release()
        elif is_small and self._beside.acquire(blocking=False):
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
                    if fast is self._fast:  # otherwise it is as old as the object that was discarded
                        self._others.append(other)


@functools.lru_cache(maxsize=2)
def json_for_gigatoken(tokenizer: Tokenizer) -> bytes:
    """Return the tokenizer.json that gigatoken loads: the tokenizer itself, or what it was converted to.

    Raises:
        Unsuitable: If there is none that gigatoken encodes as the tokenizer's reference does.
    """
    if tokenizer.library == "tokenizers":
        return tokenizer.json
    if tokenizer.library == "sentencepiece":
        return orjson.dumps(convert_sentencepiece(read_sentencepiece(tokenizer.model)))
    return orjson.dumps(convert_tiktoken(read_definition(tokenizer.model)))


_KEPT = 2
_SHARED: dict[str, FastTokenizer] = {}
"""The most recent few, by the tokenizer's SHA-256."""
_SHARED_LOCK = threading.Lock()


def fast_tokenizer(tokenizer: Tokenizer) -> FastTokenizer:
    """Return the process-wide FastTokenizer of a tokenizer."""
    with _SHARED_LOCK:
        shared = _SHARED.pop(tokenizer.sha256, None) or FastTokenizer(tokenizer)
        _SHARED[tokenizer.sha256] = shared
        while len(_SHARED) > _KEPT:
            del _SHARED[next(iter(_SHARED))]
        return shared


def _forget_after_fork() -> None:
    """Start afresh in a forked process, where a lock held by another thread would never be released."""
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    _SHARED.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


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
