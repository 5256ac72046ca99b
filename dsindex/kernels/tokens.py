"""Kernel that inserts one token id between others and narrows all of them in one pass. Imports numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.kernels.jit import compiled, inlined
from dsindex.kernels.vectors import LANES, NOTHING, ONE, count_before, mark_from

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def insert_token(
    tokens: NDArray[np.uint32], places: NDArray[np.int64], token: int, result: NDArray[Any]
) -> tuple[int, int]:
    """Write tokens to `result` with another token inserted at given places; ids too large for its type are truncated.

    Args:
        tokens: Shape [T].
        places: Ascending indices into `result`, shape [P].
        token: Id to insert there.
        result: Shape [T + P].

    Returns:
        The largest of `tokens`, or 0 if there are none, and how many of them equal `token`.
    """
    largest, count, begin = np.uint32(0), 0, 0
    for number in range(len(places) + 1):
        end = places[number] - number if number < len(places) else len(tokens)
        source, target = tokens[begin:end], result[begin + number : end + number]
        for index in range(len(source)):
            value = source[index]
            target[index] = value
            largest = max(largest, value)
            count += value == token
        if number < len(places):
            result[places[number]] = token
        begin = end
    return int(largest), count


# Kernel that finds characters by their first two bytes in UTF-8. Imports numba.


@compiled
def find_characters(
    data: NDArray[np.uint8], begin: int, end: int, lowest: int, pairs: NDArray[np.uint8], places: NDArray[np.int64]
) -> int:
    """Write where characters begin whose first two bytes are wanted, ascending.

    Args:
        data: UTF-8.
        begin: Index in `data` from which to search.
        end: Index in `data` up to which to search; no character begins in the byte before it.
        lowest: The smallest first byte that is wanted, at least 0x80.
        pairs: 1 if the first two bytes, as a big-endian number, are wanted, else 0; shape [65536].
        places: Output: the index of each character's first byte.

    Returns:
        The number of places; -1 if there is no room for all.
    """
    position, count = begin, 0
    while position < end - 1:
        if position + LANES <= len(data):
            marks, step = mark_from(data, position, lowest), LANES
        else:
            marks, step = ONE if data[position] >= lowest else NOTHING, 1
        while marks != NOTHING:
            index = position + count_before(marks)
            marks &= marks - ONE
            if index < end - 1 and pairs[(np.int64(data[index]) << 8) | data[index + 1]]:
                if count == len(places):
                    return -1
                places[count] = index
                count += 1
        position += step
    return count


# Kernel that counts how often each token id occurs, and finds equal documents in the same pass. Imports numba.

_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(32), np.uint64(29))
_NEW, _NO_GROUP = -1, -2
_SHORT = 8
"""Documents of up to so many tokens are digested in as many steps, which takes less time than a mispredicted branch."""


@compiled
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


@inlined
def _mix(state: np.uint64, token: np.integer[Any]) -> np.uint64:
    mixed = (state ^ np.uint64(int(token))) * _PRIME
    return mixed ^ (mixed >> _SHIFTS[0])


@inlined
def _find_slot(slots: NDArray[np.uint64], group_of: NDArray[np.int64], digest: np.uint64) -> np.int64:
    last = np.uint64(len(slots) - 1)
    slot = (digest >> ONE) & last
    while group_of[slot] != _NO_GROUP and slots[slot] != digest:
        slot = (slot + ONE) & last
    return np.int64(slot)


@compiled
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
    group_of[:alone][slots == NOTHING] = _NO_GROUP
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
        digest = (mixed ^ (mixed >> _SHIFTS[1])) | ONE
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


# Kernel that counts sources, and draws documents by numbers that look random, the end of SplitMix64. Imports numba.


@compiled
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
