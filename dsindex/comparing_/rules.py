"""Compare two tokenized datasets: whether their tokens are the same, where they first differ, and by which rule.

Tools that turn the same texts into tokens mostly differ by a rule for the edges of documents: whether EOD ends them,
whether BOS begins them, and what becomes of empty texts. Such a rule is proposed from the first documents and then
tested on all of them: with the edges taken off and empty documents left out, both must have the same documents.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.datasets.indexed import IndexedDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.datasets.pbin import PbinDocuments

    Dataset: TypeAlias = IndexedDataset | PbinDocuments

BLOCK_DOCUMENTS = 1 << 14
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
    """Documents without tokens."""
    num_edges_only: int = 0
    """Documents that have only these tokens: texts without tokens of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first document in which two datasets differ."""

    documents: tuple[int | None, int | None]
    """Its number in each; None where there is no such document."""
    token: int
    """Position of the first token that differs, counted without what the rules take off."""


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

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        return self.same_tokens and self.same_boundaries

    @property
    def is_explained(self) -> bool:
        """Whether nothing differs but the rules for the edges and for empty documents."""
        return self.difference is None


def compare_datasets(
    first: Dataset, second: Dataset, *, on_progress: Callable[[int], None] | None = None
) -> Comparison:
    """Compare the tokens of two datasets, document by document, in bounded memory.

    Args:
        first: One dataset.
        second: Another one; token types may differ.
        on_progress: Called with the number of documents of the first one that were compared, from time to time.
    """
    plain = Edges(), Edges()
    difference = _find_difference((first, second), plain, on_progress)
    same_boundaries = difference is None and _have_same_sequences(first, second)
    if difference is None:
        return Comparison(same_tokens=True, same_boundaries=same_boundaries, edges=plain, difference=None)
    edges = _propose_edges(first, second)
    counted = _count_bare(first, edges[0]), _count_bare(second, edges[1])
    return Comparison(
        same_tokens=_have_same_tokens(first, second),
        same_boundaries=False,
        edges=counted,
        difference=_find_difference((first, second), edges, on_progress, drops_empty=True),
    )


def num_documents(dataset: Dataset) -> int:
    """Return the number of documents, including empty ones."""
    return dataset.num_documents if isinstance(dataset, IndexedDataset) else len(dataset)


def read_document(dataset: Dataset, number: int) -> NDArray[Any]:
    """Return the tokens of a document."""
    return dataset.document(number) if isinstance(dataset, IndexedDataset) else dataset[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Consecutive documents."""

    numbers: NDArray[np.int64]
    """Their numbers in the dataset, shape [D]."""
    tokens: NDArray[np.int64]
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


def _read_blocks(dataset: Dataset, *, most: int | None = None) -> Iterator[_Block]:
    """Yield the first documents of a dataset, or all of them."""
    total = num_documents(dataset)
    total = total if most is None else min(most, total)
    begin = 0
    while begin < total:
        end = min(begin + BLOCK_DOCUMENTS, total)
        lengths = _document_lengths(dataset, begin, end)
        fitting = int(np.searchsorted(np.cumsum(lengths), BLOCK_TOKENS, side="right"))
        end = begin + max(1, fitting)
        lengths = lengths[: end - begin]
        yield _Block(numbers=np.arange(begin, end), tokens=_read_tokens(dataset, begin, end), ends=np.cumsum(lengths))
        begin = end


def _document_lengths(dataset: Dataset, begin: int, end: int) -> NDArray[np.int64]:
    if not isinstance(dataset, IndexedDataset):
        return np.array([len(dataset[number]) for number in range(begin, end)], np.int64)
    bounds = np.asarray(dataset.document_indices[begin : end + 1])
    lengths = dataset.sequence_lengths[int(bounds[0]) : int(bounds[-1])].astype(np.int64)
    before = np.concatenate([[0], np.cumsum(lengths)])
    found: NDArray[np.int64] = np.diff(before[bounds - bounds[0]])
    return found


def _read_tokens(dataset: Dataset, begin: int, end: int) -> NDArray[np.int64]:
    if isinstance(dataset, IndexedDataset):
        sequences = np.arange(int(dataset.document_indices[begin]), int(dataset.document_indices[end]))
        return dataset.take(sequences)[0].astype(np.int64)
    return np.concatenate([np.empty(0, np.int64), *dataset[begin:end]]).astype(np.int64)


def _without_edges(block: _Block, edges: Edges, *, drops_empty: bool) -> _Block:
    """Return a block's documents without the tokens at their edges, and without those that are then empty."""
    begins = np.concatenate([[0], block.ends[:-1]])
    keep = np.ones(len(block.tokens), np.bool_)
    ends = block.ends
    if edges.first is not None:
        places = begins[begins < ends]
        keep[places[block.tokens[places] == edges.first]] = False
    if edges.last is not None:
        places = (ends - 1)[begins < ends]
        keep[places[block.tokens[places] == edges.last]] = False
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    lengths = kept_before[ends] - kept_before[begins]
    tokens = block.tokens[keep]
    wanted = lengths > 0 if drops_empty else np.ones(len(lengths), np.bool_)
    return _Block(numbers=block.numbers[wanted], tokens=tokens, ends=np.cumsum(lengths[wanted]))


def _bare_blocks(dataset: Dataset, edges: Edges, *, drops_empty: bool) -> Iterator[_Block]:
    for block in _read_blocks(dataset):
        yield _without_edges(block, edges, drops_empty=drops_empty)


def _find_difference(
    datasets: tuple[Dataset, Dataset],
    edges: tuple[Edges, Edges],
    on_progress: Callable[[int], None] | None,
    *,
    drops_empty: bool = False,
) -> Difference | None:
    """Return the first document that differs, compared without edges."""
    streams = [
        _bare_blocks(dataset, own, drops_empty=drops_empty) for dataset, own in zip(datasets, edges, strict=True)
    ]
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
        if on_progress is not None:
            on_progress(int(one.numbers[number - 1]) + 1)
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


def _have_same_tokens(first: Dataset, second: Dataset) -> bool:
    """Tell whether all tokens are the same one after the other, whatever the documents."""
    if first.num_tokens != second.num_tokens:
        return False
    streams = [(block.tokens for block in _read_blocks(dataset)) for dataset in (first, second)]
    left = [np.empty(0, np.int64), np.empty(0, np.int64)]
    while True:
        for side, stream in enumerate(streams):
            while not len(left[side]):
                more = next(stream, None)
                if more is None:
                    return not any(map(len, left)) and next(streams[1 - side], None) is None
                left[side] = more
        number = min(map(len, left))
        if not np.array_equal(left[0][:number], left[1][:number]):
            return False
        left = [tokens[number:] for tokens in left]


def _have_same_sequences(first: Dataset, second: Dataset) -> bool:
    """Tell whether two datasets with the same documents cut them into the same sequences; a `.pbin` has none."""
    if not isinstance(first, IndexedDataset) or not isinstance(second, IndexedDataset):
        return True
    return np.array_equal(first.sequence_lengths, second.sequence_lengths) and np.array_equal(
        first.document_indices, second.document_indices
    )


def _propose_edges(first: Dataset, second: Dataset) -> tuple[Edges, Edges]:
    """Return the tokens that one dataset has around each text and the other has not, as the first documents suggest."""
    texts = [
        [
            read_document(dataset, number).astype(np.int64)
            for number in range(min(PROPOSING_DOCUMENTS, num_documents(dataset)))
        ]
        for dataset in (first, second)
    ]
    # If one has fewer documents it may leave out empty texts, for which another tool may write one token.
    shortest = (0,) if num_documents(first) == num_documents(second) else (1, 2)
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


def _count_bare(dataset: Dataset, edges: Edges) -> Edges:
    """Return the edges with the numbers of documents that are empty, or have nothing else."""
    num_empty = num_edges_only = 0
    for block in _read_blocks(dataset):
        lengths = np.diff(np.concatenate([[0], block.ends]))
        bare = np.diff(np.concatenate([[0], _without_edges(block, edges, drops_empty=False).ends]))
        num_empty += int((lengths == 0).sum())
        num_edges_only += int(((bare == 0) & (lengths > 0)).sum())
    return Edges(first=edges.first, last=edges.last, num_empty=num_empty, num_edges_only=num_edges_only)
