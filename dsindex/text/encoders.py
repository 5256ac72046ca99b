"""From batches of texts to batches of tokens: one protocol, an encoder for each engine, one of each per thread."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsindex.text.engines import Engine, choose_engine
from dsindex.text.fast_tokenizers import hand_on, take_or_load
from dsindex.text.ragged import encode_ragged
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer

__all__ = ["Encoder", "Engine", "TokenBatch", "choose_engine", "encoder_for_thread"]

TOKENIZERS_BATCH_BYTES = 512 * 1024
"""Text per call of `tokenizers`; the rate is the same up to 4 MiB, and the results in memory are smaller."""

REBUILD_AFTER_BYTES = 640 * 1024**2
"""gigatoken remembers every word and never forgets, so it is built again after so much text.

That takes 0.15 s, under the interpreter's lock, and then the words have to be learnt again: done after every 160 MiB,
encoding 1.2 GB took 8 % longer in the median of four rounds."""
REBUILD_AFTER_GROWTH = 192 * 1024**2
"""Or sooner, when the process has grown by so much for each of its encoders since: 20 MB of random words make one grow
by 190 MB. The memory goes when the object goes."""
REBUILD_AFTER_SECONDS = 2.0
"""Or after so much CPU time where a process cannot see its size: it grows by 160 MB a second at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tokens of D texts, one after the other."""

    tokens: NDArray[np.uint32]
    """Token ids, shape [T]."""
    lengths: NDArray[np.int64]
    """Number of tokens of each text, shape [D]; they add up to T."""


class Encoder(Protocol):
    """Turns texts into tokens; belongs to one thread."""

    engine: Engine

    def encode(self, texts: pa.LargeStringArray) -> TokenBatch:
        """Encode texts without nulls, each on its own, special-token strings in them included."""
        ...

    def close(self) -> None:
        """Give up what was loaded."""
        ...


def encoder_for_thread(tokenizer: Tokenizer, engine: Engine, *, num_threads: int = 1) -> Encoder:
    """Give the calling thread's encoder, built on its first use.

    Args:
        tokenizer: As loaded.
        engine: As chosen; `tokenizer` must be the one that it was chosen for.
        num_threads: 1 encodes in the calling thread alone. For more, the engine's own pool over all CPUs works.

    With one thread, TOKENIZERS_PARALLELISM is set to false for the process unless it is set: the only switch that the
    library has. Threads that each encode in this way add up (2 threads: 5.8 MB/s against 2.8), which they do not with
    RAYON_NUM_THREADS=1, where all threads wait for one (2.2 MB/s).
    """
    key = (tokenizer.sha256, engine, num_threads)
    encoders: dict[tuple[str, Engine, int], Encoder] = _OF_THREAD.__dict__.setdefault("encoders", {})
    if key not in encoders:
        encoders.clear()  # a thread works for one build at a time
        kind = GigatokenEncoder if engine.name == "gigatoken" else TokenizersEncoder
        encoders[key] = kind(tokenizer, engine, num_threads=num_threads)
    return encoders[key]


def release_encoder() -> None:
    """Give up the calling thread's encoder, if it has one; another thread takes over what it had loaded."""
    for encoder in _OF_THREAD.__dict__.pop("encoders", {}).values():
        encoder.close()


_OF_THREAD = threading.local()


class TokenizersEncoder:
    """The reference: the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine, *, num_threads: int = 1) -> None:
        self.engine = engine
        self._loaded = shared_tokenizer(tokenizer)
        if num_threads == 1:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(self, texts: pa.LargeStringArray) -> TokenBatch:
        """Encode in calls of about half a MiB, so that memory does not depend on the size of the batch."""
        tokens, lengths = [np.empty(0, np.uint32)], []
        for batch in _batches(texts, TOKENIZERS_BATCH_BYTES):
            encodings = self._loaded.encode_batch_fast(batch, add_special_tokens=self.engine.add_special_tokens)
            counts = [len(encoding) for encoding in encodings]
            ids = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
            tokens.append(np.fromiter(ids, np.uint32, count=sum(counts)))
            lengths.extend(counts)
        return TokenBatch(tokens=np.concatenate(tokens), lengths=np.array(lengths, np.int64))

    def close(self) -> None:
        """The library's object is shared by all threads."""


class GigatokenEncoder:
    """The fast one: gigatoken over the Arrow buffers as they are, with the tokens around a text added by us."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine, *, num_threads: int = 1) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._parallel = num_threads > 1
        self._fast: Any = None
        self._used_bytes, self._used_seconds = 0, 0.0
        self._resident_when_built: int | None = None
        _LIVE.add(self)

    def encode(self, texts: pa.LargeStringArray) -> TokenBatch:
        """Encode all texts in one call."""
        if len(texts) == 0:
            return TokenBatch(tokens=np.empty(0, np.uint32), lengths=np.empty(0, np.int64))
        offsets, data = string_buffers(texts)
        tokens, lengths = self._encoded(offsets, data)
        added = (*self.engine.prefix, *self.engine.suffix)
        return self._with_added(tokens, lengths) if added else TokenBatch(tokens=tokens, lengths=lengths)

    def close(self) -> None:
        """Hand on the object, if one was loaded."""
        if self._fast is not None:
            hand_on(self._tokenizer, self._fast)
            self._fast = None

    def _encoded(
        self, offsets: NDArray[np.int64], data: NDArray[np.uint8]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        num_bytes = int(offsets[-1] - offsets[0])
        _give_back_memory()
        if self._fast is None or self._used_bytes + num_bytes > REBUILD_AFTER_BYTES or self._has_grown():
            self._fast = None  # the old caches go before the new object is made
            self._fast = take_or_load(self._tokenizer)
            self._used_bytes, self._used_seconds = 0, 0.0
            self._resident_when_built = resident_bytes()
        begin = time.thread_time()
        encoded = encode_ragged(self._fast, offsets, data, parallel=self._parallel)
        self._used_seconds += time.thread_time() - begin
        self._used_bytes += num_bytes
        return encoded

    def _has_grown(self) -> bool:
        now = resident_bytes()
        if now is None or self._resident_when_built is None:
            return self._used_seconds > REBUILD_AFTER_SECONDS
        return now - self._resident_when_built > REBUILD_AFTER_GROWTH * len(_LIVE)

    def _with_added(self, tokens: NDArray[np.uint32], lengths: NDArray[np.int64]) -> TokenBatch:
        """Put the fixed tokens around each text.

        Two texts of 2 and 0 tokens, with BOS and EOS: inserted before tokens 0, 2, 2, 2, in this order.
        """
        ends = np.concatenate([[0], np.cumsum(lengths)])
        before = np.repeat(ends[:-1, np.newaxis], len(self.engine.prefix), axis=1)
        after = np.repeat(ends[1:, np.newaxis], len(self.engine.suffix), axis=1)
        places = np.concatenate([before, after], axis=1).ravel()
        added = np.array([*self.engine.prefix, *self.engine.suffix], np.uint32)
        tokens = np.insert(tokens, places, np.tile(added, lengths.size))
        return TokenBatch(tokens=tokens, lengths=lengths + added.size)


_LIVE: weakref.WeakSet[GigatokenEncoder] = weakref.WeakSet()


def resident_bytes() -> int | None:
    """Give the memory that this process holds; None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


@functools.cache
def _give_back_memory() -> None:
    """Keep the C library from raising, with every large block, the sizes up to which it keeps what is free.

    Without this the heaps of two threads hold 100 MB of nothing after some GB of text. Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 8 << 20)  # more than most blocks of tokens, less than a table of words
        mallopt(_M_TRIM_THRESHOLD, 4 << 20)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def string_buffers(texts: pa.LargeStringArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Give the buffers of an Arrow array without copies.

    Returns:
        Offsets of shape [D + 1] into the bytes, the first not 0 where the array is a slice; and all the buffer's bytes.
    """
    _, ends, data = texts.buffers()
    if ends is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(ends, np.int64, count=len(texts) + 1, offset=8 * texts.offset)
    return offsets, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def _batches(texts: pa.LargeStringArray, batch_bytes: int) -> Iterator[list[str]]:
    """Cut into lists of at most so many bytes; a longer text stands alone."""
    if len(texts) == 0:
        return
    offsets, _ = string_buffers(texts)
    begin = 0
    while begin < len(texts):
        end = int(np.searchsorted(offsets, offsets[begin] + batch_bytes, side="right")) - 1
        end = max(end, begin + 1)
        yield texts.slice(begin, end - begin).to_pylist()
        begin = end
