"""The numbers of a report: counts from one pass over a dataset's tokens, and what index caches draw from it.

Documents are the same if 64-bit digests of their tokens are equal. Beyond MOST_DIGESTS documents, only a share of the
digests is kept and the total is estimated, so memory does not grow with the dataset.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from dsindex.commands.token_data import LengthCounter
from dsindex.commands.verify_caches import CHUNK_ITEMS, list_caches, part_of, read_blend
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.formats.provenance import read_rows
from dsindex.megatron.cache import BLENDED_CLASS, files_of, is_maxtext, read_description
from dsindex.megatron.epochs import SPLIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from dsindex.commands.token_data import LengthSummary
    from dsindex.datasets.documents import Documents
    from dsindex.store.read import Items

MOST_DIGESTS = 1 << 22
BLOCK_TOKENS = 1 << 24
"""Most tokens of a block, unless its only document is longer."""
LARGEST_VOCABULARY = 1 << 20
"""Ids from here on are counted together; the largest vocabularies have about 2**18."""
MOST_NAMED = 5
"""Most documents that are named as longest, shortest and most repeated."""
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = (np.uint64(32), np.uint64(29))


@njit(cache=True, nogil=True)
def read_block(tokens: NDArray[Any], lengths: NDArray[np.int64], num_ids: int) -> tuple[Any, Any, int, Any]:
    """Count the tokens of consecutive documents, and digest each document.

    Args:
        tokens: Tokens of all documents, laid end to end.
        lengths: Tokens of each document.
        num_ids: Number of ids to count.

    Returns:
        How often each id below `num_ids` occurs, how many documents end with each, how many tokens have any other id,
        and a digest of each document.
    """
    counts, last_counts, num_foreign = np.zeros(num_ids, np.int64), np.zeros(num_ids, np.int64), 0
    digests = np.empty(len(lengths), np.uint64)
    begin = 0
    for document in range(len(lengths)):
        # Two independent chains of multiplications, which the processor overlaps.
        even, odd = np.uint64(lengths[document]), _PRIME
        token = -1
        for index in range(begin, begin + lengths[document]):
            token = int(tokens[index])
            if 0 <= token < num_ids:
                counts[token] += 1
            else:
                num_foreign += 1
            mixed = (even ^ np.uint64(token)) * _PRIME
            even, odd = odd, mixed ^ (mixed >> _SHIFTS[0])
        begin += lengths[document]
        if 0 <= token < num_ids:
            last_counts[token] += 1
        mixed = (even ^ (odd >> _SHIFTS[1])) * _PRIME + odd
        mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _PRIME
        digests[document] = mixed ^ (mixed >> _SHIFTS[1])
    return counts, last_counts, num_foreign, digests


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The result of one pass over a dataset."""

    documents: int
    tokens: int
    lengths: LengthSummary
    counts: NDArray[np.int64]
    """How often each id occurs, shape [ids]."""
    foreign_tokens: int
    """Tokens whose id is negative, or LARGEST_VOCABULARY or more."""
    last_counts: NDArray[np.int64]
    """How many documents end with each id, shape [ids]."""
    by_source: NDArray[np.int64]
    """Documents, tokens and trained tokens of each source, shape [sources, 3]."""
    repetitions: int
    """Number of documents, not empty, that repeat an earlier one."""
    repeated: tuple[tuple[int, int], ...]
    """The most frequent documents: number of the first, and number of copies."""
    longest: tuple[int, ...]
    shortest: tuple[int, ...]
    """Numbers of the shortest documents that are not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive documents that are read together."""

    first: int
    """Number of the first document."""
    begin: int
    """Position of the first token."""
    lengths: NDArray[np.int64]
    sources: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The source of each document, from a provenance file or from the number of documents of consecutive sources."""

    names: list[str]
    path: str | None = None
    """Path of the provenance file."""
    num_documents: Sequence[int] = ()
    """Documents of each source, without a provenance file."""

    def numbers(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sources of documents [begin, end).

        Raises:
            FormatError: If the provenance file is damaged.
        """
        if self.path is None:
            ends = np.clip(np.cumsum(self.num_documents), begin, end)
            return np.repeat(np.arange(len(ends)), np.diff(ends, prepend=begin))
        inputs = read_rows(self.path, begin, end)[0].astype(np.int64)
        if len(inputs) and not 0 <= inputs.min() <= inputs.max() < len(self.names):
            raise FormatError(f"{self.path}: damaged, since it refers to more than {len(self.names)} inputs")
        return inputs


def measure(
    documents: Documents,
    sources: Sources,
    *,
    masks: Items | None = None,
    threads: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Read all tokens of a dataset once; the result does not depend on the number of threads.

    Args:
        documents: The dataset, with integer tokens.
        sources: The source of each document.
        masks: For each token, not 0 if it is trained on.
        threads: Number of blocks to read at the same time.
        on_progress: Called with the number of tokens read since the last call.

    Raises:
        FormatError: If tokens are missing, or the sources cannot be read.
    """
    num_ids = min(LARGEST_VOCABULARY, 1 << 8 * min(documents.tokens.dtype.itemsize, 4))
    # The digest of one document in `factor` is kept.
    factor = 1 << (max(1, -(-documents.num_documents // MOST_DIGESTS)) - 1).bit_length()
    largest_digest, num_sources = np.uint64((1 << 64) // factor - 1), len(sources.names)

    def measure_block(block: Block) -> tuple[Any, ...]:
        lengths = block.lengths
        tokens = np.asarray(documents.tokens[block.begin : block.begin + int(lengths.sum())])
        counts, last_counts, num_foreign, digests = read_block(tokens, lengths, num_ids)
        by_source = np.zeros((num_sources, 3), np.int64)
        by_source[:, 0] = np.bincount(block.sources, minlength=num_sources)
        by_source[:, 1] = np.bincount(block.sources, lengths, num_sources)
        nonempty = np.flatnonzero(lengths)
        if masks is not None and len(nonempty):
            begins = (np.cumsum(lengths) - lengths)[nonempty]
            is_trained = np.asarray(masks[block.begin : block.begin + len(tokens)]) != 0
            num_trained = np.add.reduceat(is_trained, begins, dtype=np.int64)
            by_source[:, 2] = np.bincount(block.sources[nonempty], num_trained, num_sources)
        numbers = np.flatnonzero((digests <= largest_digest) & (lengths > 0))
        digest_rows = np.stack([digests[numbers].view(np.int64), block.first + numbers, lengths[numbers]])
        return counts, last_counts, num_foreign, by_source, digest_rows

    counts, last_counts = np.zeros((2, num_ids), np.int64)
    by_source, num_foreign, lengths = np.zeros((num_sources, 3), np.int64), 0, LengthCounter()
    digest_rows = [np.empty((3, 0), np.int64)]
    longest = shortest = np.empty((2, 0), np.int64)
    for block, block_counts in _map_ahead(measure_block, _blocks(documents, sources), threads=threads):
        counts += block_counts[0]
        last_counts += block_counts[1]
        num_foreign += block_counts[2]
        by_source += block_counts[3]
        digest_rows.append(block_counts[4])
        lengths.add(block.lengths)
        longest = _merge_largest(longest, block.lengths, block.first)
        shortest = _merge_largest(shortest, -block.lengths, block.first)
        on_progress(int(block.lengths.sum()))
    summary = lengths.summary()
    repetitions, repeated = _find_repeats(np.concatenate(digest_rows, axis=1))
    return Measurement(
        documents=summary.count,
        tokens=summary.total,
        lengths=summary,
        counts=counts,
        foreign_tokens=num_foreign,
        last_counts=last_counts,
        by_source=by_source,
        repetitions=repetitions * factor,
        repeated=repeated,
        longest=tuple(longest[1].tolist()),
        shortest=tuple(shortest[1].tolist()),
    )


def _blocks(documents: Documents, sources: Sources) -> Iterator[Block]:
    first = begin = 0
    for lengths in documents.lengths():
        ends, numbers, at = np.cumsum(lengths), sources.numbers(first, first + len(lengths)), 0
        while at < len(lengths):
            before = int(ends[at - 1]) if at else 0
            stop = max(at + 1, int(np.searchsorted(ends, before + BLOCK_TOKENS, side="right")))
            yield Block(first=first + at, begin=begin + before, lengths=lengths[at:stop], sources=numbers[at:stop])
            at = stop
        first, begin = first + len(lengths), begin + int(ends[-1])


def _merge_largest(largest: NDArray[np.int64], values: NDArray[np.int64], first: int) -> NDArray[np.int64]:
    """Return the MOST_NAMED largest values, without zeros, and their numbers; the first of equal values wins."""
    is_new = values != 0
    if largest.shape[1] == MOST_NAMED:
        is_new &= values > largest[0, -1]
    new_numbers = np.flatnonzero(is_new)
    merged = np.concatenate([largest, np.stack([values[new_numbers], first + new_numbers])], axis=1)
    return merged[:, np.lexsort((merged[1], -merged[0]))[:MOST_NAMED]]


def _find_repeats(digest_rows: NDArray[np.int64]) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Count equal digests in rows of digests, documents and lengths, and return the most frequent ones."""
    digests, documents, lengths = digest_rows
    _, first, copies = np.unique(digests, return_index=True, return_counts=True)
    first, copies = first[copies > 1], copies[copies > 1]
    order = np.lexsort((documents[first], -lengths[first], -copies))[:MOST_NAMED]
    repeats = zip(documents[first[order]].tolist(), copies[order].tolist(), strict=True)
    return int((copies - 1).sum()), tuple(repeats)


def _map_ahead(
    function: Callable[[Block], tuple[Any, ...]], blocks: Iterator[Block], *, threads: int
) -> Iterator[tuple[Block, tuple[Any, ...]]]:
    """Yield blocks with their results, in order, while threads work on the next blocks."""
    waiting: deque[tuple[Block, Future[tuple[Any, ...]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for block in blocks:
            waiting.append((block, pool.submit(function, block)))
            if len(waiting) > threads:
                oldest, future = waiting.popleft()
                yield oldest, future.result()
        for oldest, future in waiting:
            yield oldest, future.result()


# Index caches.


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnDataset:
    """What a split of a job reads from a dataset."""

    prefix: str
    """The path in the description."""
    num_samples: int = 0
    intended: float | None = None
    """The dataset's weight in the blend; None without a blend."""
    part: tuple[int, int] | None = None
    """First sequence of the split, and one past its last; None if the dataset is not in the report."""
    part_tokens: int | None = None
    short_documents: tuple[int, int] | None = None
    """Number of documents that fit into a sample, and how many of them are split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSplit:
    """What the caches of a split draw from datasets."""

    split: str
    sequence_length: int
    datasets: tuple[DrawnDataset, ...]


def read_drawn_splits(folder: str, lengths_of: Callable[[str, bool], Any]) -> tuple[list[DrawnSplit], list[str]]:
    """Read what a folder's caches draw from the report's datasets; also return sentences about unreadable caches.

    Args:
        folder: The cache folder (`--data-cache-path`).
        lengths_of: Returns the tokens of each sequence, or document, of the dataset that a description names; None if
            the dataset is not in the report.

    Raises:
        InputError: If there is no folder, or no cache of these datasets.
    """
    draws: dict[tuple[str, str, int], DrawnDataset] = {}
    blends, findings = [], []
    for path in list_caches(folder):
        try:
            description = read_description(path)
            if description["class"] == BLENDED_CLASS:
                blends.append((description, *read_blend(path, description)))
            elif (lengths := lengths_of(str(description["dataset_path"]), is_maxtext(description))) is not None:
                draws[_cache_key(description)] = _read_split(path, description, lengths)
        except DsindexError as error:
            findings.append(error.sentence)
    keyed_parts = []
    unblended = dict(draws)
    for description, counts, weights in blends:
        keys = [_cache_key(dataset) for dataset in description["datasets"]]
        if any(key in draws for key in keys):
            rows = zip(keys, counts, weights, strict=True)
            parts = [
                replace(
                    draws.get(key, DrawnDataset(prefix=key[0])), num_samples=num, intended=weight / (sum(weights) or 1)
                )
                for key, num, weight in rows
            ]
            keyed_parts.append((keys[0], parts))
        for key in keys:
            unblended.pop(key, None)
    keyed_parts += [(key, [drawn_dataset]) for key, drawn_dataset in unblended.items()]
    if not keyed_parts and not findings:
        raise InputError(f"{folder}: no index caches of these datasets", hint="check --cache")
    order = {name: number for number, name in enumerate(SPLIT_NAMES)}
    keyed_parts.sort(key=lambda pair: order.get(pair[0][1], len(order)))
    splits = [DrawnSplit(split=key[1], sequence_length=key[2], datasets=tuple(parts)) for key, parts in keyed_parts]
    return splits, findings


def _cache_key(description: Mapping[str, Any]) -> tuple[str, str, int]:
    return str(description["dataset_path"]), str(description["index_split"]), int(description["sequence_length"])


def _read_split(path: str, description: Mapping[str, Any], lengths: Any) -> DrawnDataset:  # noqa: ANN401 - mapped
    samples, documents = files_of(path).open("shuffle_index"), files_of(path).open("document_index")
    prefix, _, length = _cache_key(description)
    begin, end = part_of(path, description, len(lengths))
    try:
        cut_counts = _count_cut_documents(lengths, documents, sequence_length=length, num_samples=len(samples))
    except IndexError as error:
        problem = "refers to sequences that the dataset does not have"
        raise FormatError(f"{path}: {problem}", hint="rebuild the cache") from error
    part_tokens = int(lengths[begin:end].sum(dtype=np.int64))
    return DrawnDataset(
        prefix=prefix, num_samples=len(samples), part=(begin, end), part_tokens=part_tokens, short_documents=cut_counts
    )


def _count_cut_documents(
    lengths: NDArray[np.int32], documents: NDArray[np.integer[Any]], *, sequence_length: int, num_samples: int
) -> tuple[int, int]:
    """Count the documents of 1 to L tokens in an index of any program, and how many of them are split across samples.

    Sample k reads the tokens [k * L, (k + 1) * L) of the documents laid end to end, so a document is split if it begins
    before a multiple of L and ends after it.

    Args:
        lengths: Tokens of each sequence of the dataset.
        documents: The document index.
        sequence_length: L.
        num_samples: Samples of the index; documents after the last sample are not counted.

    >>> lengths = np.array([5, 3, 6, 12, 2], np.int32)
    >>> _count_cut_documents(lengths, np.array([0, 2, 1, 3, 4]), sequence_length=8, num_samples=3)
    (3, 1)
    """
    length, begin, counts = np.int64(sequence_length), np.int64(0), np.zeros(2, np.int64)
    for first in range(0, len(documents), CHUNK_ITEMS):
        document_lengths = np.asarray(lengths[documents[first : first + CHUNK_ITEMS]], np.int64)
        ends = begin + np.cumsum(document_lengths)
        starts, begin = ends - document_lengths, begin + document_lengths.sum()
        is_short = (starts < num_samples * length) & (document_lengths > 0) & (document_lengths <= length)
        last = np.minimum(ends[is_short], num_samples * length) - 1
        counts += [is_short.sum(), (last // length > starts[is_short] // length).sum()]
    return int(counts[0]), int(counts[1])
