"""The order of shuffled documents: by a key that is a hash of the seed and the document's number.

A document's number counts the documents of all shards in the order of the inputs, from 0. The keys of a seed are all
different, since the hash is invertible, so they alone determine the order: it does not depend on shards or on how the
work is divided.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEY = np.dtype("<u8")
KEY_RANGE = 1 << 64
"""Keys are in [0, KEY_RANGE)."""

_CHUNK_DOCUMENTS = 1 << 20


def document_keys(seed: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return the keys of documents [first, first + count).

    Twice the finalizer of splitmix64, with a half of XXH3-128 of the seed added before each; both steps are invertible.

    >>> document_keys(1234, 0, 2).tolist()
    [14902054254488592312, 16958783590660293857]
    """
    digest = xxhash.xxh3_128_digest(f"dsindex --shuffle-documents {seed}".encode())
    halves = np.frombuffer(digest, ">u8").astype(np.uint64)
    keys = np.arange(first, first + count, dtype=np.uint64)
    for half in halves:
        keys += half
        keys ^= keys >> np.uint64(30)
        keys *= np.uint64(0xBF58476D1CE4E5B9)
        keys ^= keys >> np.uint64(27)
        keys *= np.uint64(0x94D049BB133111EB)
        keys ^= keys >> np.uint64(31)
    return keys.astype(KEY, copy=False)


def cut_key_range(num_buckets: int) -> list[tuple[int, int]]:
    """Cut the keys evenly into ranges [low, high).

    >>> cut_key_range(1) == [(0, 2**64)], cut_key_range(2)[0] == (0, 2**63)
    (True, True)
    """
    return list(pairwise(bucket * KEY_RANGE // num_buckets for bucket in range(num_buckets + 1)))


def find_keys(keys: NDArray[np.uint64], low: int, high: int) -> tuple[int, int]:
    """Return where ascending keys in [low, high) begin and end."""
    begin = int(np.searchsorted(keys, np.uint64(low)))
    end = len(keys) if high >= KEY_RANGE else int(np.searchsorted(keys, np.uint64(high)))
    return begin, end


def shuffled_order(seed: int, num_documents: int) -> NDArray[np.int64]:
    """Return the number of the document at each position of the shuffled dataset; takes 16 bytes per document."""
    keys = np.empty(num_documents, KEY)
    for begin in range(0, num_documents, _CHUNK_DOCUMENTS):
        count = min(_CHUNK_DOCUMENTS, num_documents - begin)
        keys[begin : begin + count] = document_keys(seed, begin, count)
    return np.argsort(keys)
