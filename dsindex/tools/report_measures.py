"""What a report counts: one pass over the tokens of a dataset, and what index caches draw from it.

Documents are the same if 64 bits of a digest of their tokens are. Of more than MOST_DIGESTS documents, those of a share
of the digests are counted, and the rest is estimated from it, so memory does not grow with the dataset.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numba import njit

from dsindex.datasets.gpt import open_cached_index
from dsindex.datasets.provenance import ROWS_PER_GROUP, count_rows, read_rows
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.index.cache import BLENDED_CLASS, descriptions_in, read_description
from dsindex.index.cuts import count_cut_documents
from dsindex.index.epochs import SPLIT_NAMES, split_bounds
from dsindex.tools.lengths import LengthCounter
from dsindex.tools.phases import count_drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from dsindex.formats.mmididx import Tokens
    from dsindex.tools.kinds import TokenStore
    from dsindex.tools.lengths import LengthSummary

Item = TypeVar("Item")
Value = TypeVar("Value")

MOST_DIGESTS = 1 << 22
BLOCK_DOCUMENTS, BLOCK_TOKENS = 1 << 18, 1 << 24
"""A block has one document at least."""
LARGEST_VOCABULARY = 1 << 20
"""Ids from here on are counted together; the largest vocabularies have about 2**18."""
MOST_NAMED = 5
"""Documents that are named as longest, shortest and most repeated."""
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(32), np.uint64(29))


@njit(cache=True, nogil=True)
def read_block(tokens: NDArray[Any], lengths: NDArray[np.int64], size: int) -> tuple[Any, int, Any]:
    """Return how often each id below `size` occurs, how many tokens have others, and a digest of each document."""
    counts, others = np.zeros(size, np.int64), 0
    digests = np.empty(len(lengths), np.uint64)
    begin = 0
    for document in range(len(lengths)):
        # Two chains, so that one multiplication does not wait for the other.
        even, odd = np.uint64(lengths[document]), _PRIME
        for index in range(begin, begin + lengths[document]):
            token = int(tokens[index])
            if 0 <= token < size:
                counts[token] += 1
            else:
                others += 1
            mixed = (even ^ np.uint64(token)) * _PRIME
            even, odd = odd, mixed ^ (mixed >> _SHIFTS[0])
        begin += lengths[document]
        mixed = (even ^ (odd >> _SHIFTS[1])) * _PRIME + odd
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _PRIME
        digests[document] = mixed ^ (mixed >> _SHIFTS[1])
    return counts, others, digests


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Documents that occur more than once; empty ones do not count."""

    extra_documents: int
    """Documents that would go if each were kept once."""
    extra_tokens: int
    most: tuple[tuple[int, int], ...]
    """First document and number of copies of those with the most copies."""
    one_of: int
    """Of how many digests one was counted; 1 if all were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one pass over a dataset finds."""

    documents: int
    tokens: int
    lengths: LengthSummary
    counts: NDArray[np.int64]
    """How often each id occurs, shape [ids]."""
    others: int
    """Tokens whose id is negative, or LARGEST_VOCABULARY or more."""
    last_counts: NDArray[np.int64]
    """How many documents end with each id, shape [ids]."""
    by_source: NDArray[np.int64]
    """Documents, tokens and learned tokens of each source, shape [sources, 3]."""
    repeats: Repeats
    longest: tuple[int, ...]
    shortest: tuple[int, ...]
    """Numbers of documents, of those with tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive documents."""

    first: int
    begin: int
    lengths: NDArray[np.int64]


class Sources:
    """The source of each document: recorded in a provenance file, or sources whose documents follow each other.

    Args:
        names: Of the sources.
        num_documents: Documents of each source, if they follow each other.
        path: The provenance file otherwise.
    """

    def __init__(self, names: Sequence[str], *, num_documents: Sequence[int] = (), path: str | None = None) -> None:
        self.names = list(names)
        self._ends = np.cumsum(np.array(num_documents, np.int64))
        self._path = path
        self._rows = 0 if path is None else count_rows(path)
        self._group, self._inputs = -1, np.empty(0, np.int64)

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sources of documents [begin, end), which are asked for in order.

        Raises:
            FormatError: If the provenance file is damaged.
        """
        if self._path is None:
            ends = np.clip(self._ends, begin, end)
            return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=begin))
        found = [np.empty(0, np.int64)]
        while begin < end:
            group = begin // ROWS_PER_GROUP
            first = group * ROWS_PER_GROUP
            if group != self._group:
                inputs = read_rows(self._path, first, min(first + ROWS_PER_GROUP, self._rows))[0]
                if len(inputs) and not 0 <= inputs.min() <= inputs.max() < len(self.names):
                    raise FormatError(f"{self._path}: expected inputs below {len(self.names)}; the file is damaged")
                self._group, self._inputs = group, inputs.astype(np.int64)
            stop = min(end, first + ROWS_PER_GROUP)
            found.append(self._inputs[begin - first : stop - first])
            begin = stop
        return np.concatenate(found)


def measure(
    store: TokenStore,
    sources: Sources,
    *,
    masks: Tokens | None = None,
    threads: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Read all tokens of a dataset once. The result does not depend on the number of threads.

    Args:
        store: The dataset, with integer tokens.
        sources: The source of each document.
        masks: Of each token, other than 0 if it is learned.
        threads: Blocks that are read at once.
        on_progress: Called with the number of tokens read since the last call.

    Raises:
        FormatError: If tokens are missing, or the sources cannot be read.
    """
    size = min(LARGEST_VOCABULARY, 1 << 8 * min(store.tokens.dtype.itemsize, 4))
    one_of = 1 << (max(1, -(-store.num_documents // MOST_DIGESTS)) - 1).bit_length()
    counts, last_counts = np.zeros((2, size), np.int64)
    by_source, others, lengths = np.zeros((len(sources.names), 3), np.int64), 0, LengthCounter()
    kept: list[NDArray[np.int64]] = []
    extremes = {sign: np.empty((2, 0), np.int64) for sign in (-1, 1)}

    def read(block: Block) -> tuple[Any, int, Any, Any, Any]:
        tokens = np.asarray(store.tokens[block.begin : block.begin + int(block.lengths.sum())])
        filled, ends = np.flatnonzero(block.lengths), np.cumsum(block.lengths)
        learned = np.zeros(len(block.lengths), np.int64)
        if masks is not None and len(filled):
            own = masks[block.begin : block.begin + len(tokens)] != 0
            learned[filled] = np.add.reduceat(own, ends[filled] - block.lengths[filled], dtype=np.int64)
        last = tokens[ends[filled] - 1].astype(np.int64)
        return *read_block(tokens, block.lengths, size), learned, last[(last >= 0) & (last < size)]

    documents = tokens = 0
    for block, (own, foreign, digests, learned, last) in _map_ahead(
        read, _blocks(store), threads=threads, ahead=threads
    ):
        counts += own
        others += foreign
        last_counts += np.bincount(last, minlength=size)
        numbers = np.arange(block.first, block.first + len(block.lengths))
        known = sources.of(block.first, block.first + len(block.lengths))
        for column, amounts in enumerate((np.ones_like(known), block.lengths, learned)):
            np.add.at(by_source[:, column], known, amounts)
        lengths.add(block.lengths)
        filled = block.lengths > 0
        for sign, known_ones in extremes.items():
            both = np.concatenate([known_ones, np.stack([sign * block.lengths, numbers])[:, filled]], axis=1)
            extremes[sign] = both[:, np.lexsort((both[1], -both[0]))[:MOST_NAMED]]
        chosen = filled & (digests <= np.uint64((1 << 64) // one_of - 1))
        kept.append(np.stack([digests[chosen].view(np.int64), numbers[chosen], block.lengths[chosen]]))
        documents, tokens = documents + len(block.lengths), tokens + int(block.lengths.sum())
        on_progress(int(block.lengths.sum()))
    return Measurement(
        documents=documents,
        tokens=tokens,
        lengths=lengths.summary(),
        counts=counts,
        others=others,
        last_counts=last_counts,
        by_source=by_source,
        repeats=_find_repeats(np.concatenate([np.empty((3, 0), np.int64), *kept], axis=1), one_of),
        longest=tuple(extremes[1][1].tolist()),
        shortest=tuple(extremes[-1][1].tolist()),
    )


def _blocks(store: TokenStore) -> Iterator[Block]:
    first = begin = 0
    for lengths in store.document_lengths():
        at = 0
        while at < len(lengths):
            ends = np.cumsum(lengths[at : at + BLOCK_DOCUMENTS])
            size = max(1, int(np.searchsorted(ends, BLOCK_TOKENS, side="right")))
            if lengths[at : at + size].min() < 0 or begin + ends[size - 1] > len(store.tokens):
                raise FormatError(
                    f"{store.paths[0]}: expected documents within {len(store.tokens):,} tokens; verify it"
                )
            yield Block(first=first, begin=begin, lengths=np.ascontiguousarray(lengths[at : at + size]))
            at, first, begin = at + size, first + size, begin + int(ends[size - 1])


def _find_repeats(kept: NDArray[np.int64], one_of: int) -> Repeats:
    """Find equal digests among rows of digests, documents and lengths."""
    digests, documents, lengths = kept
    _, first, copies = np.unique(digests, return_index=True, return_counts=True)
    several = copies > 1
    first, copies = first[several], copies[several]
    order = np.lexsort((documents[first], -lengths[first], -copies))[:MOST_NAMED]
    return Repeats(
        extra_documents=int((copies - 1).sum()) * one_of,
        extra_tokens=int(((copies - 1) * lengths[first]).sum()) * one_of,
        most=tuple(zip(documents[first[order]].tolist(), copies[order].tolist(), strict=True)),
        one_of=one_of,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnDataset:
    """What one split of a job draws from a dataset."""

    prefix: str
    """As in the description."""
    num_samples: int = 0
    intended: float | None = None
    """Its weight in the blend; None without a blend."""
    part: tuple[int, int] | None = None
    """First sequence of the split's part, and one past its last; None if the dataset is not on the page."""
    part_tokens: int | None = None
    short_documents: tuple[int, int] | None = None
    """Documents that fit a sample, and those of them that are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSplit:
    """What the caches of one split draw."""

    split: str
    sequence_length: int
    datasets: tuple[DrawnDataset, ...]


def read_drawn(folder: str, lengths_of: Callable[[str], Any]) -> tuple[list[DrawnSplit], list[str]]:
    """Read what the caches of a folder draw from known datasets, and sentences about caches that cannot be read.

    Args:
        folder: The cache folder (`--data-cache-path`).
        lengths_of: Returns the tokens of each sequence of the dataset that a description names; None if it is not one
            of those that are looked at.

    Raises:
        InputError: If there is no folder, or no cache of these datasets.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: expected a folder with index caches, found none; check --cache")
    single: dict[tuple[str, str, int], DrawnDataset] = {}
    blends, findings = [], []
    for path in descriptions_in(folder):
        try:
            described = read_description(path)
            if described["class"] == BLENDED_CLASS:
                blends.append((described, _read_blend(path, described)))
            elif (lengths := lengths_of(str(described["dataset_path"]))) is not None:
                key = (str(described["dataset_path"]), str(described["index_split"]), int(described["sequence_length"]))
                single[key] = _read_split(path, described, lengths)
        except DsindexError as error:
            findings.append(str(error))
    splits, in_blends = [], set()
    for described, (drawn, intended) in blends:
        keys = [
            (str(each["dataset_path"]), str(described["split"]), each["sequence_length"])
            for each in described["datasets"]
        ]
        in_blends.update(keys)
        if not any(key in single for key in keys):
            continue
        datasets = tuple(
            replace(single.get(key, DrawnDataset(prefix=key[0])), num_samples=num, intended=share)
            for key, num, share in zip(keys, drawn, intended, strict=True)
        )
        splits.append(DrawnSplit(split=keys[0][1], sequence_length=keys[0][2], datasets=datasets))
    splits += [
        DrawnSplit(split=key[1], sequence_length=key[2], datasets=(own,))
        for key, own in single.items()
        if key not in in_blends
    ]
    if not splits and not findings:
        raise InputError(f"{folder}: expected index caches of the datasets, found none; check --cache")
    order = {name: place for place, name in enumerate(SPLIT_NAMES)}
    return sorted(splits, key=lambda each: order.get(each.split, len(order))), findings


def _read_split(path: str, described: Mapping[str, Any], lengths: Any) -> DrawnDataset:  # noqa: ANN401 - mapped
    split, matrix = str(described["index_split"]), described.get("split_matrix")
    samples, documents = open_cached_index(path, "shuffle_index"), open_cached_index(path, "document_index")
    begin, end = 0, len(lengths)
    try:
        if matrix is not None:
            begin, end = split_bounds(matrix[SPLIT_NAMES.index(split)], len(lengths))
        short = count_cut_documents(
            lengths, documents, sequence_length=described["sequence_length"], num_samples=len(samples)
        )
    except (IndexError, ValueError, TypeError) as error:
        raise FormatError(
            f"{path}: expected the split and the sequences of the dataset; build the cache again"
        ) from error
    return DrawnDataset(
        prefix=str(described["dataset_path"]),
        num_samples=len(samples),
        part=(begin, end),
        part_tokens=int(lengths[begin:end].sum(dtype=np.int64)),
        short_documents=short,
    )


def _read_blend(path: str, described: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Return the samples that a blend draws of each dataset, and their intended shares."""
    parts, weights = described["datasets"], described.get("weights")
    if (
        not isinstance(weights, list)
        or len(weights) != len(parts)
        or not all(type(each) in {int, float} for each in weights)
    ):
        raise FormatError(
            f"{path}: expected a weight for each of {len(parts)} datasets, got {weights!r}; build it again"
        )
    drawn = count_drawn(path, open_cached_index(path, "dataset_index"), len(parts)).tolist()
    return drawn, [weight / (sum(weights) or 1) for weight in weights]


def _map_ahead(
    function: Callable[[Item], Value], items: Iterable[Item], *, threads: int, ahead: int
) -> Iterator[tuple[Item, Value]]:
    """Yield items with their results, in order, while threads work on up to `ahead` items that follow."""
    waiting: deque[tuple[Item, Future[Value]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(function, item)))
                if len(waiting) > ahead:
                    first, future = waiting.popleft()
                    yield first, future.result()
            for first, future in waiting:
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()
