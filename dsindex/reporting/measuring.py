"""One pass over the tokens of a dataset, by threads that each take a block of documents at a time."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsindex.errors import FormatError
from dsindex.reporting.lengths import Extremes, LengthBin, LengthCounter
from dsindex.reporting.repeats import RepeatFinder, Repeats, group_documents
from dsindex.reporting.sources import SourceCounter, SourceTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.inspection.stores import TokenStore
    from dsindex.reporting.sources import Sources

BLOCK_DOCUMENTS = 1 << 16
BLOCK_TOKENS = 1 << 24
"""Tokens of a block, unless a single document has more."""
LARGEST_VOCABULARY = 1 << 20
"""Ids from here on are counted together; the largest vocabularies have about 2**18."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """How often each id occurs."""

    by_id: NDArray[np.int64]
    """Shape [the largest id that occurs + 1]."""
    others: int
    """Tokens whose id is negative or LARGEST_VOCABULARY or more."""
    other_ids: tuple[int, int] | None
    """The smallest and the largest of those ids."""
    last_by_id: NDArray[np.int64]
    """How many documents end with each id, shape as `by_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one pass over a dataset finds."""

    documents: int
    tokens: int
    empty: int
    """Documents without tokens."""
    lengths: tuple[LengthBin, ...]
    longest: tuple[int, ...]
    """Numbers of the longest documents."""
    shortest: tuple[int, ...]
    """Numbers of the shortest documents that have tokens."""
    counts: TokenCounts
    sources: tuple[SourceTotals, ...]
    repeats: Repeats


class _Block(NamedTuple):
    first_document: int
    first_token: int
    lengths: NDArray[np.int64]


def measure(
    store: TokenStore,
    sources: Sources,
    *,
    threads: int,
    folder: str,
    most: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Read all tokens of a dataset once. The result does not depend on the number of threads.

    Memory: the counts of ids for each thread (at most 16 MiB), a block's digests, and 1 Mi documents to sort.

    Args:
        store: The dataset, with integer tokens.
        sources: The source of each document.
        threads: Blocks that are read at once.
        folder: Where files without a name may be made, 40 bytes per document, if there are more than 1 Mi of them.
        most: The largest number of documents to name as longest, shortest, and most repeated.
        on_progress: Called with the number of tokens read since the last call.

    Raises:
        FormatError: If tokens are missing, or the sources cannot be read.
        OutputError: If `folder` cannot be written to.
    """
    counter = _IdCounter(store.tokens.dtype)
    lengths, by_source = LengthCounter(), SourceCounter(sources.num_sources)
    longest, shortest = Extremes(most), Extremes(most)
    documents = tokens = empty = 0

    def read(block: _Block) -> NDArray[np.void]:
        end = block.first_token + int(block.lengths.sum())
        found = store.tokens[block.first_token : end]
        ends = np.cumsum(block.lengths)
        counter.add(found, ends[block.lengths > 0])
        return group_documents(found, ends, block.first_document)

    with RepeatFinder(store.num_documents, folder=folder) as finder:
        for block, groups in _in_order(read, _blocks(store), threads):
            finder.add(groups)
            own = sources.of(block.first_document, block.first_document + len(block.lengths))
            by_source.add(own, block.lengths, block.first_document)
            lengths.add(block.lengths)
            has_tokens = np.flatnonzero(block.lengths)
            longest.add(block.lengths[has_tokens], has_tokens + block.first_document)
            shortest.add(-block.lengths[has_tokens], has_tokens + block.first_document)
            documents += len(block.lengths)
            tokens += int(block.lengths.sum())
            empty += len(block.lengths) - len(has_tokens)
            on_progress(int(block.lengths.sum()))
        repeats = finder.find(most)
    return Measurement(
        documents=documents,
        tokens=tokens,
        empty=empty,
        lengths=lengths.bins(),
        longest=longest.documents(),
        shortest=shortest.documents(),
        counts=counter.counts(),
        sources=by_source.totals(),
        repeats=repeats,
    )


def find_spans(store: TokenStore, documents: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the first token of documents, and one past their last, from one pass over the lengths."""
    wanted = np.array(sorted(set(documents)), np.int64)
    spans: dict[int, tuple[int, int]] = {}
    for block in _blocks(store):
        some = wanted[(wanted >= block.first_document) & (wanted < block.first_document + len(block.lengths))]
        if len(some):
            ends = np.cumsum(block.lengths) + block.first_token
            for document in some.tolist():
                place = document - block.first_document
                spans[document] = (int(ends[place] - block.lengths[place]), int(ends[place]))
    return spans


def _blocks(store: TokenStore) -> Iterator[_Block]:
    document = token = 0
    total = len(store.tokens)
    for lengths in store.document_lengths():
        begin = 0
        ends = np.cumsum(lengths)
        if len(lengths) and (lengths.min() < 0 or token + int(ends[-1]) > total):
            msg = f"expected documents within {total:,} tokens, got others; the dataset is damaged: verify it"
            raise FormatError(msg)
        while begin < len(lengths):
            before = int(ends[begin - 1]) if begin else 0
            stop = int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right"))
            stop = min(max(stop, begin + 1), begin + BLOCK_DOCUMENTS)
            yield _Block(document + begin, token + before, lengths[begin:stop])
            begin = stop
        document += len(lengths)
        token += int(ends[-1]) if len(ends) else 0


def _in_order(
    read: Callable[[_Block], NDArray[np.void]], blocks: Iterator[_Block], threads: int
) -> Iterator[tuple[_Block, NDArray[np.void]]]:
    """Yield blocks with their results, while the next ones are read."""
    waiting: deque[tuple[_Block, Future[NDArray[np.void]]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="measure") as pool:
        try:
            for block in blocks:
                waiting.append((block, pool.submit(read, block)))
                if len(waiting) > threads:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


class _IdCounter:
    """Counts ids in tables of each thread."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        from dsindex.kernels.token_counts import count_tokens  # compiled by numba, which is slow to import

        self._count = count_tokens
        self._size = min(LARGEST_VOCABULARY, 1 << (8 * dtype.itemsize)) if dtype.itemsize <= 2 else LARGEST_VOCABULARY
        self._own = threading.local()
        self._lock = threading.Lock()
        self._tables: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._others = 0
        self._range: tuple[int, int] | None = None

    def add(self, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Count tokens, and those before each end as the last of a document."""
        if not hasattr(self._own, "tables"):
            self._own.tables = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
            with self._lock:
                self._tables.append(self._own.tables)
        by_id, last_by_id = self._own.tables
        others, smallest, largest = self._count(tokens, by_id)
        self._count(tokens[ends - 1], last_by_id)
        if others:
            with self._lock:
                self._others += int(others)
                low, high = self._range or (smallest, largest)
                self._range = (min(low, int(smallest)), max(high, int(largest)))

    def counts(self) -> TokenCounts:
        """Return the counts of all threads."""
        by_id, last_by_id = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        for own, own_last in self._tables:
            by_id += own
            last_by_id += own_last
        used = np.flatnonzero(by_id)
        size = int(used[-1]) + 1 if len(used) else 0
        return TokenCounts(by_id=by_id[:size], others=self._others, other_ids=self._range, last_by_id=last_by_id[:size])
