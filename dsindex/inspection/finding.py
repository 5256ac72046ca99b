"""Find runs of token ids in the tokens of a dataset, in parallel over ranges that overlap."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from dsindex.formats.token_array import Tokens
    from dsindex.inspection.stores import TokenStore

    Places = tuple[NDArray[np.int64], NDArray[np.int64]]
    """Tokens at which a pattern begins, ascending, and the number of the pattern."""

RANGE_TOKENS = 1 << 20
"""Tokens searched by one task."""
LOOKED_UP = 64
"""Places whose documents are looked up at once, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An occurrence of token ids within one document."""

    document: int
    position: int
    """Number of its first token in the document."""
    num_tokens: int
    """Tokens of the document."""
    token: int
    """Number of its first token in the file."""
    pattern: int
    """Which of the patterns it is."""


def find_ids(
    store: TokenStore,
    patterns: Sequence[Sequence[int]],
    *,
    limit: int,
    threads: int,
    range_tokens: int = RANGE_TOKENS,
) -> list[Match]:
    """Return the first occurrences of any pattern within a document, in file order.

    The result does not depend on the number of threads or the size of a range. Nothing is read far beyond the last
    occurrence that is returned.

    Args:
        store: The dataset.
        patterns: Token ids to look for, none of them empty.
        limit: The largest number of occurrences to return.
        threads: Ranges searched at once.
        range_tokens: Tokens that begin occurrences of one range.

    Raises:
        ValueError: If a pattern is empty.
    """
    if not all(patterns):
        msg = "expected token ids to look for, got none"
        raise ValueError(msg)
    matches: list[Match] = []
    step = max(limit, LOOKED_UP)
    for tokens, numbers in _search(store.tokens, patterns, threads=threads, range_tokens=range_tokens):
        for begin in range(0, len(tokens), step):
            some = tokens[begin : begin + step].tolist()
            spans = store.documents_at(some)
            for token, number, (document, first, end) in zip(
                some, numbers[begin : begin + step].tolist(), spans, strict=True
            ):
                if token + len(patterns[number]) <= end:
                    match = Match(
                        document=document,
                        position=token - first,
                        num_tokens=end - first,
                        token=token,
                        pattern=number,
                    )
                    matches.append(match)
                if len(matches) == limit:
                    return matches
    return matches


def _search(tokens: Tokens, patterns: Sequence[Sequence[int]], *, threads: int, range_tokens: int) -> Iterator[Places]:
    """Yield the places of each range in order, while the next ranges are searched."""
    largest = np.iinfo(tokens.dtype)
    known = [
        (number, np.array(ids, tokens.dtype))
        for number, ids in enumerate(patterns)
        if min(ids) >= largest.min and max(ids) <= largest.max
    ]
    waiting: deque[Future[Places]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="find") as pool:
        try:
            for begin in range(0, len(tokens), range_tokens):
                waiting.append(pool.submit(_search_range, tokens, known, begin, begin + range_tokens))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _search_range(tokens: Tokens, patterns: Sequence[tuple[int, NDArray[Any]]], begin: int, end: int) -> Places:
    """Return the places at which a pattern begins in [begin, end); it may reach beyond the end."""
    found, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, ids in patterns:
        block = tokens[begin : end + len(ids) - 1]
        if len(block) < len(ids):
            continue
        starts = len(block) - len(ids) + 1
        rarest = int(np.argmax(ids))  # larger ids are rarer: merges are learnt by frequency
        places = np.flatnonzero(block[rarest : rarest + starts] == ids[rarest])
        for offset, token in enumerate(ids):
            places = places[block[places + offset] == token]
        found.append(places + begin)
        numbers.append(np.full(len(places), number))
    positions, owners = np.concatenate(found), np.concatenate(numbers)
    order = np.argsort(positions, kind="stable")
    return positions[order], owners[order]
