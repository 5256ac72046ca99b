"""Kernels of the report: count token ids and sources, find equal documents. Imports numba, which is slow.

They release the GIL and start no threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(32), np.uint64(29))
_NOTHING, _ONE = np.uint64(0), np.uint64(1)
_NEW, _NO_GROUP = -1, -2
_SHORT = 8
"""Documents of up to so many tokens are digested in as many steps, which takes less time than a mispredicted branch."""


@njit(cache=True, nogil=True)
def _count_ids(tokens: NDArray[Any], counts: NDArray[np.int64]) -> tuple[int, int, int]:
    others, smallest, largest = 0, 0, 0
    for index in range(len(tokens)):
        token = int(tokens[index])
        if 0 <= token < len(counts):
            counts[token] += 1
        else:
            smallest = token if others == 0 else min(smallest, token)
            largest = token if others == 0 else max(largest, token)
            others += 1
    return others, smallest, largest


@njit(cache=True, nogil=True, forceinline=True)
def _mix(state: np.uint64, token: np.integer[Any]) -> np.uint64:
    mixed = (state ^ np.uint64(int(token))) * _PRIME
    return mixed ^ (mixed >> _SHIFTS[0])


@njit(cache=True, nogil=True, forceinline=True)
def _find_slot(slots: NDArray[np.uint64], group_of: NDArray[np.int64], digest: np.uint64) -> np.int64:
    last = np.uint64(len(slots) - 1)
    slot = (digest >> _ONE) & last
    while group_of[slot] != _NO_GROUP and slots[slot] != digest:
        slot = (slot + _ONE) & last
    return np.int64(slot)


@njit(cache=True, nogil=True)
def measure_documents(
    tokens: NDArray[Any],
    lengths: NDArray[np.int64],
    counts: NDArray[np.int64],
    last_counts: NDArray[np.int64],
    first: int,
    limit: np.uint64,
    slots: NDArray[np.uint64],
    groups: NDArray[np.int64],
) -> tuple[int, int, int, int]:
    """Add the occurrences of each id to `counts`, those as the last of a document too, and find equal documents.

    Documents are told apart by 64 bits of their tokens, which are odd. Those without tokens have no group.

    Args:
        tokens: Integers, shape [T].
        lengths: Tokens of each document, summing to T, shape [D].
        counts: Shape [ids]; other ids are only counted together.
        last_counts: The same shape.
        first: Number of the first document.
        limit: The largest digest of which each document has a group of its own.
        slots: Hash table of digests above the limit whose documents share a group, with linear probing from half of
            the digest modulo its length, a power of 2; 0 where free, as some are. Shape [slots].
        groups: Output: the digest, first document, tokens of each and number of documents of each group, in the order
            of first documents. Shape [D, 4].

    Returns:
        How many tokens have another id, and the smallest and the largest of those (0, 0, 0 if there are none), and the
        number of groups.
    """
    others, smallest, largest = _count_ids(tokens, counts)
    begin = num_groups = 0
    states = np.empty(_SHORT + 2, np.uint64)
    alone = len(slots)  # in place of a slot
    group_of = np.full(alone + 1, _NEW)
    group_of[:alone][slots == _NOTHING] = _NO_GROUP
    for document in range(len(lengths)):
        end = begin + lengths[document]
        if end == begin:
            continue
        # Two chains, so that one multiplication does not wait for the other.
        even, odd = np.uint64(end - begin), _PRIME
        if end - begin <= _SHORT and begin + _SHORT <= len(tokens):
            states[0], states[1] = even, odd
            for index in range(_SHORT):
                states[index + 2] = _mix(states[index], tokens[begin + index])
            even, odd = states[end - begin], states[end - begin + 1]
        else:
            for index in range(begin, end):
                even, odd = odd, _mix(even, tokens[index])
        if 0 <= int(tokens[end - 1]) < len(last_counts):
            last_counts[int(tokens[end - 1])] += 1
        mixed = (even ^ (odd >> _SHIFTS[1])) * _PRIME + odd
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _PRIME
        digest = (mixed ^ (mixed >> _SHIFTS[1])) | _ONE
        slot = _find_slot(slots, group_of, digest) if digest > limit else np.int64(alone)
        group = group_of[slot]
        if group >= 0:
            groups[group, 3] += 1
        elif group == _NEW:
            groups[num_groups, 0], groups[num_groups, 1] = np.int64(digest), first + document
            groups[num_groups, 2], groups[num_groups, 3] = end - begin, 1
            group_of[slot], group_of[alone] = num_groups, _NEW
            num_groups += 1
        begin = end
    return others, smallest, largest, num_groups


# Documents are drawn by numbers that look random, the end of SplitMix64.


@njit(cache=True, nogil=True)
def count_sources(
    first: int,
    lengths: NDArray[np.int64],
    sources: NDArray[np.int64],
    documents: NDArray[np.int64],
    tokens: NDArray[np.int64],
    worst: NDArray[np.uint64],
    priorities: NDArray[np.uint64],
    places: NDArray[np.int64],
) -> int:
    """Count documents and tokens by source, and write which have tokens and a priority below the worst of their source.

    Args:
        first: Number of the first document.
        lengths: Tokens of each document, shape [D].
        sources: Source of each document, shape [D].
        documents: By source, added to.
        tokens: By source, added to.
        worst: By source.
        priorities: Output: of those documents, which depend on their numbers alone, shape [D].
        places: Output: the indices of those documents, shape [D].

    Returns:
        The number of those documents.
    """
    count = begin = num_tokens = 0
    source, least = sources[0], worst[sources[0]]
    for place in range(len(lengths)):
        mixed = np.uint64(first + place + 1) * _PRIME
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(31)
        if sources[place] != source:
            documents[source] += place - begin
            tokens[source] += num_tokens
            source, begin, num_tokens = sources[place], place, 0
            least = worst[source]
        num_tokens += lengths[place]
        if mixed < least and lengths[place] > 0:
            priorities[count], places[count] = mixed, place
            count += 1
    documents[source] += len(lengths) - begin
    tokens[source] += num_tokens
    return count
