"""From batches of texts to batches of tokens: one protocol, an encoder for each engine."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dsindex.text.engines import Engine, choose_engine
from dsindex.text.fast_tokenizers import fast_tokenizer
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer

__all__ = ["Encoder", "Engine", "TokenBatch", "choose_engine", "make_encoder"]

TOKENIZERS_BATCH_BYTES = 512 * 1024
"""Text per call of `tokenizers`; the rate is the same up to 4 MiB, and the results in memory are smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tokens of D texts, one after the other."""

    tokens: NDArray[np.uint32]
    """Token ids, shape [T]."""
    lengths: NDArray[np.int64]
    """Number of tokens of each text, shape [D]; they add up to T."""


class Encoder(Protocol):
    """Turns texts into tokens, in the calling thread; threads may share it."""

    engine: Engine

    def encode(self, texts: pa.LargeStringArray) -> TokenBatch:
        """Encode texts without nulls, each on its own, special-token strings in them included."""
        ...


def make_encoder(tokenizer: Tokenizer, engine: Engine) -> Encoder:
    """Give an encoder; what takes time to load is loaded once in a process, when it is first used.

    Args:
        tokenizer: As loaded.
        engine: As chosen; `tokenizer` must be the one that it was chosen for.

    For `tokenizers` TOKENIZERS_PARALLELISM is set to false for the process unless it is set: the only switch that the
    library has. Threads that each encode in this way add up (2 threads: 5.8 MB/s against 2.8), which they do not with
    RAYON_NUM_THREADS=1, where all threads wait for one (2.2 MB/s).
    """
    return (GigatokenEncoder if engine.name == "gigatoken" else TokenizersEncoder)(tokenizer, engine)


class TokenizersEncoder:
    """The reference: the `tokenizers` library."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.engine = engine
        self._loaded = shared_tokenizer(tokenizer)
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


class GigatokenEncoder:
    """The fast one: gigatoken over the Arrow buffers as they are, with the tokens around a text added by us."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.engine = engine
        self._fast = fast_tokenizer(tokenizer)

    def encode(self, texts: pa.LargeStringArray) -> TokenBatch:
        """Encode all texts in one call."""
        if len(texts) == 0:
            return TokenBatch(tokens=np.empty(0, np.uint32), lengths=np.empty(0, np.int64))
        tokens, lengths = self._fast.encode(*string_buffers(texts))
        added = (*self.engine.prefix, *self.engine.suffix)
        return self._with_added(tokens, lengths) if added else TokenBatch(tokens=tokens, lengths=lengths)

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
