"""Compare two datasets: tokens, the first difference and its source, the rules by which they differ, and settings."""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xxhash

from dsindex.amounts import count
from dsindex.datasets.decoding import decode_tokens
from dsindex.datasets.gpt import open_cached_index
from dsindex.datasets.instruction import packing_prefix
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX, caches_by_split
from dsindex.datasets.origins import find_document_origins
from dsindex.engine.manifest import read_manifest
from dsindex.errors import DsindexError, FormatError, InputError, UsageError
from dsindex.execution.local import map_ahead
from dsindex.execution.report import Report
from dsindex.index.cache import (
    BLENDED_ARRAYS,
    DESCRIPTION_SUFFIX,
    GPT_ARRAYS,
    GPT_CLASS,
    descriptions_in,
    find_description,
    read_description,
)
from dsindex.store.reading import is_stored
from dsindex.store.urls import as_prefix
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools.inspect_kinds import IndexedStore, PackedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray

    from dsindex.engine.manifest import Content
    from dsindex.execution.progress.reporter import Reporter
    from dsindex.formats.mmididx import Tokens
    from dsindex.options.datasets import CompareConfig
    from dsindex.tools.inspect_kinds import TokenStore


# The first item in which two large arrays differ, block by block on all CPUs.

BLOCK = 1 << 21
"""Items that are compared at once."""
BLOCKS_AHEAD = 4
"""Blocks that are compared before it is known whether an earlier one differs, for each CPU."""


def first_unequal(one: Tokens, other: Tokens, *, on_progress: Callable[[int], None] | None = None) -> int | None:
    """Return the first position at which two arrays differ, within the shorter one; None if there is none.

    Args:
        one: An array of any integer type, which may be mapped; shape [n], or [n, m] to compare rows.
        other: Another one; types may differ.
        on_progress: Called with the number of items that are the same, from time to time.
    """
    size = min(len(one), len(other))

    def compare(begin: int) -> int | None:
        end = min(begin + BLOCK, size)
        unequal = one[begin:end] != other[begin:end]
        if not unequal.any():
            return None
        return begin + int(np.argmax(unequal if unequal.ndim == 1 else unequal.any(axis=1)))

    cpus = os.cpu_count() or 1
    for begin, found in map_ahead(compare, range(0, size, BLOCK), threads=cpus, ahead=BLOCKS_AHEAD * cpus):
        if found is not None:
            return found
        if on_progress is not None:
            on_progress(min(begin + BLOCK, size))
    return None


# Compare index caches of dsindex or Megatron: the first item of each index that differs, and the settings that do.

SPLITS = ["train", "valid", "test"]
"""In the order in which they are compared."""
Key: TypeAlias = "tuple[int | None, str]"
"""Number of the dataset in a blend, None for the blend itself, and the name of the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDifference:
    """An index that differs."""

    dataset: int | None
    """Number of the dataset in a blend, from 0; None for the blend's own indices and without a blend."""
    index: str
    lengths: tuple[int, int]
    position: int | None
    """The first item that differs; None if the shorter one is the beginning of the longer."""
    values: tuple[list[int], list[int]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitComparison:
    """The caches of one split on both sides."""

    split: str
    paths: tuple[str | None, str | None]
    """Their descriptions; None where there is no cache of the split."""
    num_indices: int
    differences: tuple[IndexDifference, ...]
    settings: tuple[tuple[str, str, str], ...]
    """Names of what the descriptions differ in, with both values."""

    @property
    def is_same(self) -> bool:
        """Whether all indices are the same, whatever the settings."""
        return None not in self.paths and not self.differences


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CompareResult(Report):
    """What was found: a DatasetComparison, or a CacheComparison of two index caches; true if they are the same."""

    @property
    def is_same(self) -> bool:
        """Whether the tokens, or all indices, are the same."""
        raise NotImplementedError

    def __bool__(self) -> bool:
        return self.is_same

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'the same' if self.is_same else 'DIFFERENT'})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CacheComparison(CompareResult):
    """What was found of two index caches."""

    paths: tuple[str, str]
    splits: tuple[SplitComparison, ...]

    @property
    def is_same(self) -> bool:
        """Whether all splits have the same indices."""
        return all(split.is_same for split in self.splits)

    def lines(self) -> list[str]:
        """Return the result as text."""
        lines = [f"{side}  {path}" for side, path in zip("AB", self.paths, strict=True)]
        lines.append("the same" if self.is_same else "DIFFERENT")
        for split in self.splits:
            lines += _describe_split(split)
        return lines


def are_caches(first: str, second: str) -> bool:
    """Whether two paths are index caches: descriptions, or folders with some.

    Raises:
        InputError: If only one of them is.
    """
    one, other = (
        path.endswith(DESCRIPTION_SUFFIX) or (os.path.isdir(path) and bool(descriptions_in(path)))
        for path in (first, second)
    )
    if one != other:
        cache, wrong = (first, second) if one else (second, first)
        msg = f"{wrong}: expected an index cache to compare with {cache}, got something else; give two of one kind"
        raise InputError(msg)
    return one


def compare_caches(first: str, second: str) -> CacheComparison:
    """Compare the index caches of two folders split by split, or those of two descriptions.

    Raises:
        InputError: If a folder has several caches of a split.
        FormatError: If a file is missing or damaged.
    """
    one, other = _by_split(first), _by_split(second)
    if len(one) == len(other) == 1 and one.keys() != other.keys():  # two descriptions, each of another split
        [(split, path)], [(split_there, path_there)] = one.items(), other.items()
        compared = [_compare(f"{split} and {split_there}", path, path_there)]
    else:
        splits = sorted(
            one.keys() | other.keys(),
            key=lambda split: (SPLITS.index(split) if split in SPLITS else len(SPLITS), split),
        )
        compared = [_compare(split, one.get(split), other.get(split)) for split in splits]
    return CacheComparison(paths=(first, second), splits=tuple(compared))


def _by_split(path: str) -> dict[str, str]:
    """Return the description of each split's cache.

    Raises:
        InputError: If there are several of a split.
        FormatError: If a description is damaged.
    """
    known = {each: read_description(each) for each in (descriptions_in(path) if os.path.isdir(path) else [path])}
    found = {}
    for split, paths in caches_by_split(known).items():
        if len(paths) > 1:
            msg = f"{path}: expected one index cache of the split {split}, got {len(paths)}: {', '.join(paths)}; "
            raise InputError(f"{msg}give the path of one")
        found[split] = paths[0]
    return found


def _compare(split: str, first: str | None, second: str | None) -> SplitComparison:
    if first is None or second is None:
        return SplitComparison(split=split, paths=(first, second), num_indices=0, differences=(), settings=())
    descriptions = read_description(first), read_description(second)
    sides = [dict(_indices(path, description)) for path, description in zip((first, second), descriptions, strict=True)]
    one, other = sides
    found = [_difference(*key, one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]
    return SplitComparison(
        split=split,
        paths=(first, second),
        num_indices=len(found),
        differences=tuple(each for each in found if each is not None),
        settings=tuple(_settings(*descriptions)),
    )


def _indices(path: str, description: Mapping[str, Any]) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Yield each index of a cache, and those of a blend's datasets."""
    yield from (((None, name), array) for name, array in _arrays(path, description))
    for number, part in enumerate(description.get("datasets", ())):
        own = find_description(os.path.dirname(path), part)
        yield from (((number, name), array) for name, array in _arrays(own, part))


def _arrays(path: str, description: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the indices beside a description, whose name need not be its hash."""
    for name in GPT_ARRAYS if description["class"] == GPT_CLASS else BLENDED_ARRAYS:
        yield name, open_cached_index(path, name)


def _difference(
    dataset: int | None, name: str, one: NDArray[Any] | None, other: NDArray[Any] | None
) -> IndexDifference | None:
    lengths = (0 if one is None else len(one), 0 if other is None else len(other))
    position = None if one is None or other is None else first_unequal(one, other)
    if position is None or one is None or other is None:
        same = one is not None and other is not None and lengths[0] == lengths[1]
        return (
            None if same else IndexDifference(dataset=dataset, index=name, lengths=lengths, position=None, values=None)
        )
    values = (one[position].reshape(-1).tolist(), other[position].reshape(-1).tolist())
    return IndexDifference(dataset=dataset, index=name, lengths=lengths, position=position, values=values)


def _settings(one: Mapping[str, Any], other: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what two descriptions differ in; the datasets of blends are compared one by one."""
    for name in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(name), other.get(name)
        if mine == theirs:
            continue
        if name != "datasets" or not isinstance(mine, list) or not isinstance(theirs, list):
            yield f"{before}{name}", str(mine), str(theirs)
            continue
        if len(mine) != len(theirs):
            yield f"{before}datasets", str(len(mine)), str(len(theirs))
        for number, (part, other_part) in enumerate(zip(mine, theirs, strict=False)):
            yield from _settings(part, other_part, f"dataset {number}: ")


# Where two datasets differ, as arrays of tokens and ends of documents.

BLOCK_ENDS = 1 << 20
"""Documents whose ends are compared at once."""
FIRST_BLOCK_ENDS = 64
"""The same after a document that only one dataset has, where the next may be near."""
SHOWN_PLACES = 10
"""Places with documents that only one dataset has, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first document in which two datasets differ."""

    documents: tuple[int | None, int | None]
    """Its number in each; None where there is no such document."""
    token: int
    """Position of the first token that differs, counted without what the rules take off."""


def find_difference(
    one: TokenStore, other: TokenStore, *, on_progress: Callable[[int], None] | None = None
) -> Difference | None:
    """Return the first document in which two datasets differ; None if all are the same.

    Args:
        one: The documents of one dataset.
        other: Those of another one; token types may differ.
        on_progress: Called with the number of documents that are the same, from time to time.
    """

    def advance(tokens: int) -> None:
        if on_progress is not None:
            on_progress(one.document_at(tokens - 1) + 1)

    shared = min(one.num_documents, other.num_documents)
    by_end = _first_unequal_end(one, other, shared)
    # Up to there both have the same boundaries, so the first token that differs is in a document with one number.
    limit = min(one.end(min(by_end, shared - 1)), other.end(min(by_end, shared - 1)))
    token = first_unequal(one.tokens[:limit], other.tokens[:limit], on_progress=advance)
    if token is not None:
        document = one.document_at(token)
        return Difference(documents=(document, document), token=token - one.end(document - 1))
    if by_end < shared:
        return Difference(documents=(by_end, by_end), token=limit - one.end(by_end - 1))
    if one.num_documents == other.num_documents:
        return None
    return Difference(documents=(shared, None) if one.num_documents > shared else (None, shared), token=0)


def _first_unequal_end(one: TokenStore, other: TokenStore, shared: int) -> int:
    """Return the first of the shared documents that ends elsewhere in the other dataset; their number if none does."""
    for begin in range(0, shared, BLOCK_ENDS):
        end = min(begin + BLOCK_ENDS, shared)
        unequal = np.flatnonzero(one.ends(begin, end) != other.ends(begin, end))
        if len(unequal):
            return begin + int(unequal[0])
    return shared


# Rules by which tools differ at the edges of documents: what begins and ends them, and what becomes of empty texts.
#
# A rule is proposed from the first documents and then tested on all of them: with the edges taken off and empty
# documents left out, both datasets must have the same documents.

BLOCK_DOCUMENTS = 1 << 18
"""Documents that are compared in one step."""
BLOCK_TOKENS = 1 << 22
"""Tokens beyond which a step takes no further document."""
PROPOSING_DOCUMENTS = 2000
"""Documents from which rules are proposed."""
CLEAR_SHARE = 0.9
"""Share of the documents looked at that a proposed rule must fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """What a dataset has around the tokens of every text."""

    first: int | None = None
    """The token that begins documents, such as BOS."""
    last: int | None = None
    """The token that ends documents, such as EOD."""
    num_empty: int = 0
    num_edges_only: int = 0
    """Documents that have only these tokens: texts without tokens of their own."""


def propose_edges(first: TokenStore, second: TokenStore) -> tuple[Edges, Edges]:
    """Return the tokens that one dataset has around each text and the other has not, as the first documents suggest."""
    texts = [
        [dataset.document(number).astype(np.int64) for number in range(min(PROPOSING_DOCUMENTS, dataset.num_documents))]
        for dataset in (first, second)
    ]
    # If one has fewer documents it may leave out empty texts, for which another tool may write one token.
    shortest = (0,) if first.num_documents == second.num_documents else (1, 2)
    for least in shortest:
        kept = [[text for text in side if len(text) >= least] for side in texts]
        pairs = [(one, other) for one, other in zip(*kept, strict=False) if len(one) and len(other)]
        votes = Counter(vote for one, other in pairs if (vote := _explain(one, other)) is not None)
        clear = [vote for vote, count in votes.most_common(1) if count >= CLEAR_SHARE * len(pairs)]
        if clear:
            break
    else:
        return Edges(), Edges()
    a_first, a_last, b_first, b_last = clear[0]
    # What both have counts as well: a text without tokens of its own has nothing else.
    if a_first is None and b_first is None:
        a_first = b_first = _shared(text[0] for side in texts for text in side if len(text))
    if a_last is None and b_last is None:
        a_last = b_last = _shared(text[-1] for side in texts for text in side if len(text))
    return Edges(first=a_first, last=a_last), Edges(first=b_first, last=b_last)


def count_bare(documents: TokenStore, edges: Edges) -> Edges:
    """Return the edges with the numbers of documents that are empty, or have nothing else."""
    num_empty = num_edges_only = 0
    for block in _read_blocks(documents):
        lengths = np.diff(np.concatenate([[0], block.ends]))
        _, bare = _edge_places(block, edges)
        num_empty += int((lengths == 0).sum())
        num_edges_only += int(((bare == 0) & (lengths > 0)).sum())
    return Edges(first=edges.first, last=edges.last, num_empty=num_empty, num_edges_only=num_edges_only)


def find_bare_difference(documents: tuple[TokenStore, TokenStore], edges: tuple[Edges, Edges]) -> Difference | None:
    """Return the first document that differs, compared without edges and without what is then empty."""
    streams = [_bare_blocks(own, mine) for own, mine in zip(documents, edges, strict=True)]
    nothing = np.empty(0, np.int64)
    left: list[_Block | None] = [_Block(numbers=nothing, tokens=nothing, ends=nothing)] * 2
    while True:
        for side, stream in enumerate(streams):
            block = left[side]
            while block is not None and not len(block):
                block = next(stream, None)
            left[side] = block
        one, other = left
        if one is None or other is None:
            if one is None and other is None:
                return None
            ends = tuple(None if block is None else int(block.numbers[0]) for block in left)
            return Difference(documents=(ends[0], ends[1]), token=0)
        number = min(len(one), len(other))
        found = _differ(one.slice(0, number), other.slice(0, number))
        if found is not None:
            return found
        left = [one.slice(number, len(one)), other.slice(number, len(other))]


def _differ(one: _Block, other: _Block) -> Difference | None:
    """Return the first difference of two blocks with the same number of documents."""
    if np.array_equal(one.ends, other.ends) and np.array_equal(one.tokens, other.tokens):
        return None
    shorter = min(len(one.tokens), len(other.tokens))
    unequal = np.flatnonzero(one.tokens[:shorter] != other.tokens[:shorter])
    by_token = len(one) if not len(unequal) else int(np.searchsorted(one.ends, unequal[0], side="right"))
    lengths = np.flatnonzero(one.ends != other.ends)
    by_length = len(one) if not len(lengths) else int(lengths[0])
    document = min(by_token, by_length)
    begin = int(one.ends[document - 1]) if document else 0
    a, b = one.tokens[begin : one.ends[document]], other.tokens[begin : other.ends[document]]
    same = min(len(a), len(b))
    places = np.flatnonzero(a[:same] != b[:same])
    return Difference(
        documents=(int(one.numbers[document]), int(other.numbers[document])),
        token=int(places[0]) if len(places) else same,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Consecutive documents."""

    numbers: NDArray[np.int64]
    """Their numbers in the dataset, shape [D]."""
    tokens: NDArray[Any]
    """Their tokens, one after the other, shape [T]."""
    ends: NDArray[np.int64]
    """Index in `tokens` after each document's last one, shape [D]."""

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, begin: int, end: int) -> _Block:
        before = int(self.ends[begin - 1]) if begin else 0
        after = int(self.ends[end - 1]) if end > begin else before
        return _Block(
            numbers=self.numbers[begin:end], tokens=self.tokens[before:after], ends=self.ends[begin:end] - before
        )


def _read_blocks(documents: TokenStore) -> Iterator[_Block]:
    begin = 0
    while begin < documents.num_documents:
        end = min(begin + BLOCK_DOCUMENTS, documents.num_documents)
        before = documents.end(begin - 1)
        ends = documents.ends(begin, end) - before
        end = begin + max(1, int(np.searchsorted(ends, BLOCK_TOKENS, side="right")))
        ends = ends[: end - begin]
        tokens = documents.tokens[before : before + int(ends[-1])]
        yield _Block(numbers=np.arange(begin, end), tokens=tokens, ends=ends)
        begin = end


def _edge_places(block: _Block, edges: Edges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the tokens at the edges of documents are, and how many tokens each document has without them."""
    begins = np.concatenate([[0], block.ends[:-1]])
    lengths = block.ends - begins
    has_first, has_last = np.zeros((2, len(begins)), np.bool_)
    filled = np.flatnonzero(lengths)
    if edges.first is not None:
        has_first[filled] = block.tokens[begins[filled]] == edges.first
    if edges.last is not None:
        has_last[filled] = block.tokens[block.ends[filled] - 1] == edges.last
    has_last &= ~(has_first & (lengths == 1))  # one token is one edge
    places = np.concatenate([begins[has_first], block.ends[has_last] - 1])
    return places, lengths - has_first - has_last


def _bare_blocks(documents: TokenStore, edges: Edges) -> Iterator[_Block]:
    """Yield documents without the tokens at their edges, and without those that are then empty."""
    for block in _read_blocks(documents):
        places, lengths = _edge_places(block, edges)
        keep = np.ones(len(block.tokens), np.bool_)
        keep[places] = False
        wanted = lengths > 0
        yield _Block(numbers=block.numbers[wanted], tokens=block.tokens[keep], ends=np.cumsum(lengths[wanted]))


def _explain(
    one: NDArray[np.int64], other: NDArray[np.int64]
) -> tuple[int | None, int | None, int | None, int | None] | None:
    """Return the first and last tokens to take off each side so that both are equal; None if none do."""
    for swapped, (long, short) in ((False, (one, other)), (True, (other, one))):
        more = len(long) - len(short)
        if more == 0 and np.array_equal(one, other):
            return (None, None, None, None)
        edge: tuple[int | None, int | None] | None = None
        if more == 1 and np.array_equal(long[:-1], short):
            edge = (None, int(long[-1]))
        elif more == 1 and np.array_equal(long[1:], short):
            edge = (int(long[0]), None)
        elif more == 2 and np.array_equal(long[1:-1], short):
            edge = (int(long[0]), int(long[-1]))
        if edge is not None:
            return (None, None, *edge) if swapped else (*edge, None, None)
    if len(one) == len(other) and np.array_equal(one[1:], other[:-1]):
        return (int(one[0]), None, None, int(other[-1]))
    if len(one) == len(other) and np.array_equal(one[:-1], other[1:]):
        return (None, int(one[-1]), int(other[0]), None)
    return None


def _shared(tokens: Iterable[np.int64]) -> int | None:
    """Return the token that all are; None if they differ, or there are none."""
    found = {int(token) for token in tokens}
    return found.pop() if len(found) == 1 else None


# Compare two tokenized datasets: whether their tokens are the same, where they first differ, and by which rule.
#
# Tools that turn the same texts into tokens mostly differ by a rule for the edges of documents: whether EOD ends them,
# whether BOS begins them, and what becomes of empty texts.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two datasets."""

    same_tokens: bool
    """Whether all tokens are the same, one after the other."""
    same_boundaries: bool
    """Whether documents and sequences have the same tokens, too."""
    edges: tuple[Edges, Edges]
    difference: Difference | None
    """The first difference that the rules do not explain; None if they explain all."""
    empty_sequences: tuple[int, int] | None = None
    """Sequences without tokens, if that is all in which documents with the same tokens differ."""
    surplus: int | None = None
    """Documents that the first one has more than the second at the difference (of 0, one differs), if all others are
    the same; None if not."""
    lacking: tuple[range, ...] = ()
    """Documents of the larger one that the other lacks, in several places, if all others are the same."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return self.same_tokens and self.same_boundaries


def compare_datasets(
    first: TokenStore, second: TokenStore, *, on_progress: Callable[[int], None] | None = None
) -> Comparison:
    """Compare the tokens of two datasets, document by document, in bounded memory.

    Args:
        first: One dataset.
        second: Another one; token types may differ.
        on_progress: Called with the number of documents of the first one that were compared, from time to time.
    """
    plain = Edges(), Edges()
    difference = find_difference(first, second, on_progress=on_progress)
    if difference is None:
        same = _have_same_sequences(first, second)
        return Comparison(
            same_tokens=True,
            same_boundaries=same,
            edges=plain,
            difference=None,
            empty_sequences=None if same else _count_empty_sequences(first, second),
        )
    edges = propose_edges(first, second)
    counted = count_bare(first, edges[0]), count_bare(second, edges[1])
    unexplained = find_bare_difference((first, second), edges)
    surplus = None if unexplained is None else _find_surplus(first, second, difference)
    lacking = () if unexplained is None or surplus is not None else _find_lacking(first, second, difference)
    is_named = surplus is not None or bool(lacking)
    return Comparison(
        same_tokens=len(first.tokens) == len(second.tokens) and first_unequal(first.tokens, second.tokens) is None,
        same_boundaries=False,
        edges=plain if is_named else counted,
        difference=difference if is_named else unexplained,
        surplus=surplus,
        lacking=lacking,
    )


def _find_surplus(first: TokenStore, second: TokenStore, difference: Difference) -> int | None:
    """Return how many documents one has more, if apart from these, or else from one that differs, all are the same."""
    surplus = first.num_documents - second.num_documents
    [number] = {each for each in difference.documents if each is not None}
    rest = number + max(surplus, surplus == 0), number + max(-surplus, surplus == 0)
    begins = first.end(rest[0] - 1), second.end(rest[1] - 1)
    tokens = first.tokens[begins[0] :], second.tokens[begins[1] :]
    if len(tokens[0]) != len(tokens[1]) or first_unequal(*tokens) is not None:
        return None
    for begin in range(0, first.num_documents - rest[0], BLOCK_ENDS):
        one, other = (
            store.ends(after + begin, min(after + begin + BLOCK_ENDS, store.num_documents)) - before
            for store, after, before in zip((first, second), rest, begins, strict=True)
        )
        if not np.array_equal(one, other):
            return None
    return surplus


def _find_lacking(first: TokenStore, second: TokenStore, difference: Difference) -> tuple[range, ...]:
    """Return the documents that only the larger dataset has, if without these both are the same; else nothing."""
    larger, other = (first, second) if first.num_documents > second.num_documents else (second, first)
    [number] = {each for each in difference.documents if each is not None}
    places: list[range] = []
    left = larger.num_documents - other.num_documents
    at, to = number, number
    while left:
        num_same = 0
        begin = at
        while left and not num_same:
            at, left = at + 1, left - 1
            num_same = _count_same(larger, at, other, to)
        places.append(range(begin, at))
        at, to = at + num_same, to + num_same
    return tuple(places) if places and at == larger.num_documents and to == other.num_documents else ()


def _count_same(one: TokenStore, at: int, other: TokenStore, to: int) -> int:
    """Return how many documents are the same from document `at` of one and document `to` of the other on."""
    begins = one.end(at - 1), other.end(to - 1)
    shared = min(one.num_documents - at, other.num_documents - to)
    num_same = num_tokens = 0
    block = FIRST_BLOCK_ENDS
    while num_same < shared:
        end = min(num_same + block, shared)
        ends = one.ends(at + num_same, at + end) - begins[0]
        unequal = np.flatnonzero(ends != other.ends(to + num_same, to + end) - begins[1])
        ends = ends[: unequal[0]] if len(unequal) else ends
        limit = int(ends[-1]) if len(ends) else num_tokens
        tokens = (
            store.tokens[begin + num_tokens : begin + limit] for store, begin in zip((one, other), begins, strict=True)
        )
        token = first_unequal(*tokens)
        if token is not None:
            return num_same + int(np.searchsorted(ends, num_tokens + token, side="right"))
        num_same, num_tokens = num_same + len(ends), limit
        if len(unequal):
            break
        block = min(4 * block, BLOCK_ENDS)
    return num_same


def _have_same_sequences(first: TokenStore, second: TokenStore) -> bool:
    """Whether two datasets with the same documents cut them into the same sequences; a `.pbin` has none."""
    if not isinstance(first, IndexedStore) or not isinstance(second, IndexedStore):
        return True
    one, other = first.dataset, second.dataset
    pairs = (one.sequence_lengths, other.sequence_lengths), (one.document_indices, other.document_indices)
    return all(len(a) == len(b) and first_unequal(a, b) is None for a, b in pairs)


def _count_empty_sequences(first: TokenStore, second: TokenStore) -> tuple[int, int] | None:
    """Return the sequences without tokens of two datasets with the same documents; None if others differ, too."""
    if not isinstance(first, IndexedStore) or not isinstance(second, IndexedStore):
        return None
    a, b = (lengths[lengths > 0] for lengths in (first.dataset.sequence_lengths, second.dataset.sequence_lengths))
    return (first.num_sequences - len(a), second.num_sequences - len(b)) if np.array_equal(a, b) else None


# Compare the loss masks and block layouts of instruction data; its tokens are a dataset like any other.


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskComparison:
    """The result of comparing the loss masks and block layouts of two sets of instruction data."""

    trainable: tuple[int, int]
    difference: Difference | None
    """The first document whose mask differs, and the token; None if there is none."""
    layouts: dict[str, bool | None]
    """Name of each block layout, such as `packing_4096` -> whether it is the same; None if only one side has it."""

    @property
    def is_same(self) -> bool:
        """Whether masks and all layouts that both have are the same; layouts can be made anew from the lengths."""
        return self.difference is None and False not in self.layouts.values()


def compare_masks(first: str, second: str) -> MaskComparison:
    """Compare the loss masks and block layouts beside two prefixes of instruction data.

    Raises:
        FormatError: If a file cannot be read.
    """
    one, other = (IndexedStore(f"{prefix}{MASK_SUFFIX}") for prefix in (first, second))
    return MaskComparison(
        trainable=(_count_trainable(one), _count_trainable(other)),
        difference=find_difference(one, other),
        layouts=_compare_layouts(first, second),
    )


def _count_trainable(masks: TokenStore) -> int:
    tokens = masks.tokens
    return sum(int(np.count_nonzero(tokens[begin : begin + BLOCK])) for begin in range(0, len(tokens), BLOCK))


def _compare_layouts(first: str, second: str) -> dict[str, bool | None]:
    sides = [
        {path[len(prefix) + 1 : -len(".idx")]: path.removesuffix(".idx") for path in _find_layouts(prefix)}
        for prefix in (first, second)
    ]
    one, other = sides
    return {
        name: None
        if name not in one or name not in other
        else find_difference(*(IndexedStore(side[name]) for side in sides)) is None
        for name in sorted(one.keys() | other.keys())
    }


def _find_layouts(prefix: str) -> list[str]:
    return glob.glob(f"{packing_prefix(glob.escape(prefix), 0)[:-1]}*.idx")


PBIN_SUFFIX = ".pbin"
CONTEXT_TOKENS = 8
"""Tokens that are shown before and after the first that differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of two datasets."""

    path: str
    """The prefix, or the path of a `.pbin`."""
    num_documents: int
    num_tokens: int
    dtype: str
    content: Content | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """The first document that differs, in one dataset."""

    document: int
    source: str | None
    """Input and line; None if there is no provenance."""
    before: tuple[int, ...]
    """Ids before the first that differs."""
    ids: tuple[int, ...]
    """Ids from there on."""
    text: str | None
    """Their text; None without a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DatasetComparison(CompareResult):
    """What was found of two datasets."""

    sides: tuple[Side, Side]
    comparison: Comparison
    excerpts: tuple[Excerpt | None, Excerpt | None]
    """The first difference that no rule explains; None where there is no such document."""
    same_text: bool | None
    """Whether the documents that differ have the same text; None if that is not known."""
    settings: tuple[tuple[str, str, str], ...]
    """Names of what the manifests differ in, with both values."""
    masks: MaskComparison | None = None
    mask_sources: tuple[str | None, str | None] = (None, None)
    """Input and line of the first document whose mask differs."""

    @property
    def is_same(self) -> bool:
        """Whether the datasets are the same."""
        return self.comparison.is_same and (self.masks is None or self.masks.is_same)

    def lines(self) -> list[str]:
        """Return the result as text."""
        lines = [
            f"{name}  {side.path}: {count(side.num_documents, 'document')}, {count(side.num_tokens, 'token')} "
            f"of type {side.dtype}"
            for name, side in zip("AB", self.sides, strict=True)
        ]
        lines += ["the same" if self.is_same else "DIFFERENT", *_describe_rules(self)]
        lines += _describe_difference(self)
        lines += _describe_masks(self)
        if self.settings:
            width = max(len(name) for name, _, _ in self.settings)
            lines += ["settings and counts:"]
            lines += [f"  {name:{width}}  A {a} · B {b}" for name, a, b in self.settings]
        return lines


def run_compare(config: CompareConfig, *, reporter: Reporter) -> DatasetComparison | CacheComparison:
    """Compare two datasets or index caches.

    Raises:
        UsageError: If a tokenizer is given for index caches.
        InputError: If one is not there, or they are of different kinds.
        FormatError: If one cannot be read.
        TokenizerError: If the given tokenizer cannot be read.
    """
    if not are_caches(config.first, config.second):
        return compare_prefixes(config.first, config.second, tokenizer=config.tokenizer_model, reporter=reporter)
    if config.tokenizer_model is not None:
        raise UsageError("--tokenizer-model does not apply to index caches, which have no texts")
    return compare_caches(config.first, config.second)


def compare_prefixes(first: str, second: str, *, tokenizer: str | None, reporter: Reporter) -> DatasetComparison:
    """Compare two datasets.

    Args:
        first: A prefix, also of instruction data, one of the files of an MMIDIDX pair, or a `.pbin`.
        second: The same of the other.
        tokenizer: Path or name of the tokenizer that shows texts; None: the one in each manifest.
        reporter: Shows progress.

    Raises:
        InputError: If one is not there.
        FormatError: If one cannot be read.
        TokenizerError: If the given tokenizer cannot be read.
    """
    if tokenizer is not None:
        load_tokenizer(tokenizer)  # before the long work
    prefixes = _instruction_prefixes(first, second)
    given = (first, second)
    paths = [as_prefix(path) for path in given] if prefixes is None else [f"{each}{TEXT_SUFFIX}" for each in prefixes]
    one, other = (_open(path) for path in paths)
    reporter.stage("compare", total=one.num_documents, unit="documents")
    done = 0

    def advance(documents: int) -> None:
        nonlocal done
        reporter.advance(max(0, documents - done))
        done = max(done, documents)

    comparison = compare_datasets(one, other, on_progress=advance)
    reporter.end_stage()
    sides = _describe(paths[0], one), _describe(paths[1], other)
    excerpts: tuple[Excerpt | None, Excerpt | None] = (None, None)
    same_text = None
    if comparison.difference is not None:
        token, numbers = comparison.difference.token, comparison.difference.documents
        shifts = tuple(
            _shift(dataset, number, edges.first)
            for dataset, number, edges in zip((one, other), numbers, comparison.edges, strict=True)
        )
        excerpts = (
            _excerpt(sides[0], one, numbers[0], token + shifts[0], tokenizer),
            _excerpt(sides[1], other, numbers[1], token + shifts[1], tokenizer),
        )
        same_text = _have_same_text(sides, (one, other), numbers, comparison, tokenizer)
    masks = None if prefixes is None else compare_masks(*prefixes)
    numbers = (None, None) if masks is None or masks.difference is None else masks.difference.documents
    return DatasetComparison(
        masks=masks,
        mask_sources=(_find_source(sides[0], numbers[0]), _find_source(sides[1], numbers[1])),
        sides=sides,
        comparison=comparison,
        excerpts=excerpts,
        same_text=same_text,
        settings=tuple(_differing_settings(sides[0].content, sides[1].content)),
    )


def _instruction_prefixes(first: str, second: str) -> tuple[str, str] | None:
    """Return the prefixes of instruction data; None if neither is.

    Raises:
        InputError: If only one of them is.
    """
    found = _is_instruction(first), _is_instruction(second)
    if found[0] != found[1]:
        given, other = (first, second) if found[0] else (second, first)
        raise InputError(
            f"{other}: expected the prefix of instruction data to compare with {given}, got something else; to compare "
            f"tokens alone, give {given}{TEXT_SUFFIX}"
        )
    return (first, second) if found[0] else None


def _is_instruction(prefix: str) -> bool:
    return all(is_stored(f"{prefix}{suffix}.idx") for suffix in (TEXT_SUFFIX, MASK_SUFFIX))


def _open(path: str) -> IndexedStore | PackedStore:
    if path.endswith(PBIN_SUFFIX):
        return PackedStore(path)
    if not is_stored(f"{path}.idx"):
        msg = f"{path}: expected a dataset, found no {path}.idx; give a prefix, one of its files, or a .pbin"
        raise InputError(msg)
    store = IndexedStore(path)
    if store.dataset.dtype.kind not in "iu":
        raise FormatError(f"{path}: expected integer tokens, got {store.dataset.dtype}")
    return store


def _describe(path: str, dataset: IndexedStore | PackedStore) -> Side:
    dtype = str(dataset.dataset.dtype) if isinstance(dataset, IndexedStore) else f"uint{8 * dataset.header.token_bytes}"
    manifest = read_manifest(path.removesuffix(PBIN_SUFFIX))
    return Side(
        path=path,
        num_documents=dataset.num_documents,
        num_tokens=len(dataset.tokens),
        dtype=dtype,
        content=None if manifest is None else manifest.content,
    )


def _shift(dataset: TokenStore, number: int | None, first: int | None) -> int:
    """Return how many tokens at the start of a document are no part of what was compared."""
    if number is None or first is None:
        return 0
    document = dataset.document(number)
    return int(len(document) > 0 and int(document[0]) == first)


def _excerpt(
    side: Side, dataset: IndexedStore | PackedStore, number: int | None, token: int, tokenizer: str | None
) -> Excerpt | None:
    if number is None:
        return None
    document = dataset.document(number)
    shown = document[token : token + CONTEXT_TOKENS]
    return Excerpt(
        document=number,
        source=_find_source(side, number),
        before=tuple(document[max(0, token - CONTEXT_TOKENS) : token].tolist()),
        ids=tuple(shown.tolist()),
        text=_decode(side, shown, tokenizer),
    )


def _find_source(side: Side, number: int | None) -> str | None:
    """Return the input and the line of a document."""
    if number is None or side.content is None:
        return None
    try:
        [origin], _ = find_document_origins(side.path.removesuffix(PBIN_SUFFIX), side.num_documents, [number])
    except FormatError:
        return None  # a damaged file, which `dsindex verify` names, does not matter for the tokens
    return None if origin.source is None else f"{origin.source.path}, line {origin.source.line:,}"


def _decode(side: Side, tokens: ArrayLike, tokenizer: str | None) -> str | None:
    try:
        return decode_tokens(tokens, prefix=side.path.removesuffix(PBIN_SUFFIX), tokenizer=tokenizer)
    except DsindexError:
        if tokenizer is not None:
            raise
        return None


def _have_same_text(
    sides: tuple[Side, Side],
    datasets: tuple[TokenStore, TokenStore],
    numbers: tuple[int | None, int | None],
    comparison: Comparison,
    tokenizer: str | None,
) -> bool | None:
    texts = []
    for side, dataset, number, edges in zip(sides, datasets, numbers, comparison.edges, strict=True):
        if number is None:
            return None
        document = dataset.document(number)
        begin = _shift(dataset, number, edges.first)
        end = len(document) - int(edges.last is not None and len(document) > 0 and int(document[-1]) == edges.last)
        texts.append(_decode(side, document[begin:end], tokenizer))
    return None if None in texts else texts[0] == texts[1]


def _differing_settings(one: Content | None, other: Content | None) -> list[tuple[str, str, str]]:
    """Return what two manifests differ in."""
    if one is None or other is None:
        return []
    rows = [("inputs", _inputs(one), _inputs(other)), ("tokenizer", _tokenizer(one), _tokenizer(other))]
    options, others = (content.options.model_dump(exclude_none=True) for content in (one, other))
    rows += [
        (name.replace("_", "-"), _show(options.get(name)), _show(others.get(name)))
        for name in sorted(options.keys() | others.keys())
    ]
    if one.account is not None and other.account is not None:
        counts, other_counts = one.account.model_dump(), other.account.model_dump()
        rows += [(name.replace("_", " "), f"{counts[name]:,}", f"{other_counts[name]:,}") for name in counts]
    return [row for row in rows if row[1] != row[2]]


def _inputs(content: Content) -> str:
    names = ", ".join(os.path.basename(file.path) for file in content.inputs[:3])
    fingerprints = xxhash.xxh3_64_hexdigest("".join(file.fingerprint or "" for file in content.inputs).encode())[:8]
    more = f" and {len(content.inputs) - 3:,} more" if len(content.inputs) > 3 else ""
    return f"{names}{more} (content {fingerprints})"


def _tokenizer(content: Content) -> str:
    tokenizer = content.tokenizer
    return (
        "none"
        if tokenizer is None
        else f"{tokenizer.name} ({tokenizer.sha256[:12]}, {tokenizer.vocabulary_size:,} ids)"
    )


def _show(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


# What was found, as text.


def _describe_rules(report: DatasetComparison) -> list[str]:
    comparison = report.comparison
    if comparison.is_same:
        return [] if report.is_same else ["  the tokens are the same"]
    lines = []
    if comparison.same_tokens:
        is_of_documents = comparison.difference is not None or comparison.edges[0] != comparison.edges[1]
        what = "documents" if is_of_documents else "sequences within documents"
        lines.append(f"  the tokens are the same one after the other; the boundaries of {what} differ")
    if comparison.empty_sequences is not None:
        found = [count(number, "sequence") for number in comparison.empty_sequences]
        lines.append(f"  rule: empty texts: A has {found[0]} without tokens, B has {found[1]}; that is all")
    a, b = comparison.edges
    lines += [f"  rule: {sentence}" for sentence in _describe_edges(a, b)]
    if comparison.surplus is not None:
        lines.append(_describe_surplus(report, comparison.surplus))
    elif comparison.lacking:
        lines += _describe_lacking(report)
    elif not lines and comparison.difference is not None:
        lines.append("  no rule for the edges of documents explains it")
    elif comparison.difference is None and not comparison.same_tokens:
        lines.append("  that is all: apart from it every document has the same tokens")
    return lines


def _describe_lacking(report: DatasetComparison) -> list[str]:
    places, sizes = report.comparison.lacking, [side.num_documents for side in report.sides]
    has, lacks = "AB" if sizes[0] > sizes[1] else "BA"
    documents = count(sum(map(len, places)), "document")
    lines = [f"  {lacks} lacks {documents} of {has} in {len(places):,} places; all other documents are the same"]
    for place in places[:SHOWN_PLACES]:
        source = _find_source(report.sides["AB".index(has)], place[0])
        numbers = f"document {place[0]:,}" if len(place) == 1 else f"documents {place[0]:,} to {place[-1]:,}"
        lines.append(f"    {numbers}" + ("" if source is None else f", from {source}"))
    return lines + ([f"    and in {len(places) - SHOWN_PLACES:,} more places"] if len(places) > SHOWN_PLACES else [])


def _describe_surplus(report: DatasetComparison, surplus: int) -> str:
    excerpt = next(each for each in (report.excerpts if surplus >= 0 else report.excerpts[::-1]) if each is not None)
    number, source = excerpt.document, "" if excerpt.source is None else f", from {excerpt.source}"
    others = "all other documents are the same"
    if not surplus:
        return f"  only document {number:,} differs; {others}"
    has, lacks = "AB" if surplus > 0 else "BA"
    if abs(surplus) == 1:
        return f"  {lacks} lacks document {number:,} of {has}{source}; {others}"
    return f"  {lacks} lacks documents {number:,} to {number + abs(surplus) - 1:,} of {has}{source}; {others}"


def _describe_edges(a: Edges, b: Edges) -> list[str]:
    sentences = []
    for place, mine, other in (("end", a.last, b.last), ("begin", a.first, b.first)):
        name = {"end": "EOD", "begin": "BOS"}[place]
        if mine != other:
            sentences += [
                f"{side} {place}s documents with token {token} ({name}?), {elsewhere} does not"
                for side, token, elsewhere in (("A", mine, "B"), ("B", other, "A"))
                if token is not None
            ]
    if (a.num_empty, a.num_edges_only) != (b.num_empty, b.num_edges_only):
        sentences.append(f"empty texts: A has {_describe_empty(a)}, B has {_describe_empty(b)}")
    return sentences


def _describe_empty(edges: Edges) -> str:
    parts = []
    if edges.num_empty:
        rule = "" if edges.last is None else " (as --empty-documents keep)"
        parts.append(f"{count(edges.num_empty, 'empty document')}{rule}")
    if edges.num_edges_only:
        is_eod = edges.first is None and edges.last is not None
        rule = " (as --empty-documents eod)" if is_eod else ""
        parts.append(f"{count(edges.num_edges_only, 'document')} of such tokens only{rule}")
    return " and ".join(parts) or "none"


def _describe_difference(report: DatasetComparison) -> list[str]:
    if report.comparison.difference is None:
        return []
    surplus = report.comparison.surplus
    if report.comparison.lacking:
        surplus = report.sides[0].num_documents - report.sides[1].num_documents
    lines = [] if surplus else ["  first difference:" if surplus is None else "  difference:"]
    shown = "AB" if not surplus else "A" if surplus > 0 else "B"
    for name, excerpt in zip("AB", report.excerpts, strict=True):
        lines += _describe_excerpt(name, excerpt) if name in shown else []
    if surplus:
        return lines
    if report.same_text:
        lines.append("    both tokenize the same text: another tokenizer, or special tokens read in another way")
    elif report.same_text is False:
        lines.append("    the texts differ, too")
    return lines


def _describe_excerpt(name: str, excerpt: Excerpt | None) -> list[str]:
    if excerpt is None:
        return [f"    {name}  has no further document"]
    place = f"document {excerpt.document:,}" + ("" if excerpt.source is None else f" ({excerpt.source})")
    ids = f"… {' '.join(map(str, excerpt.before))} | {' '.join(map(str, excerpt.ids)) or 'end'}"
    text = [] if excerpt.text is None else [f"       {excerpt.text!r}"]
    return [f"    {name}  {place}: {ids}", *text]


def _describe_masks(report: DatasetComparison) -> list[str]:
    masks = report.masks
    if masks is None:
        return []
    lines = ["  the loss masks are the same"]
    if masks.difference is not None:
        a, b = masks.trainable
        places = [
            f"{side} document {number:,}" + ("" if source is None else f" ({source})")
            for side, number, source in zip("AB", masks.difference.documents, report.mask_sources, strict=True)
            if number is not None
        ]
        lines = [
            f"  the loss masks differ: A has {count(a, 'trainable token')}, B has {b:,}",
            f"    first in {' and '.join(places)}, at token {masks.difference.token:,}",
        ]
    says = {True: "is the same", False: "differs", None: "is there on one side only"}
    return lines + [f"  the block layout {name} {says[same]}" for name, same in masks.layouts.items()]


def _describe_split(split: SplitComparison) -> list[str]:
    if None in split.paths:
        side = "A" if split.paths[1] is None else "B"
        return [f"  {split.split}: only {side} has a cache of this split"]
    lines = [f"  {split.split}: {_describe_index(each)}" for each in split.differences]
    if not lines:
        lines = [f"  {split.split}: all {split.num_indices} indices are the same"]
    return lines + [f"  {split.split}: {name}  A {a} · B {b}" for name, a, b in split.settings]


def _describe_index(each: IndexDifference) -> str:
    name = each.index if each.dataset is None else f"{each.index} of dataset {each.dataset}"
    a, b = each.lengths
    if each.position is None or each.values is None:
        begins = "" if 0 in each.lengths else ", which begin the same"
        return f"{name}: A has {count(a, 'item')}, B has {b:,}{begins}"
    sizes = f"{a:,} items" if a == b else f"A's {a:,} and B's {b:,} items"
    mine, theirs = ("·".join(map(str, values)) for values in each.values)
    return f"{name} first differs at item {each.position:,} of {sizes}: A {mine}, B {theirs}"
