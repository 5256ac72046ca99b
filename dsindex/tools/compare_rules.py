"""Rules by which tools differ at the edges of documents: what begins and ends them, and what becomes of empty texts.

A rule is proposed from the first documents and then tested on all of them: with the edges taken off and empty documents
left out, both datasets must have the same documents.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.datasets.indexed import IndexedDataset
from dsindex.tools.compare_caches import first_unequal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.datasets.pbin import PbinDocuments
    from dsindex.formats.token_copy import Tokens


# The documents of a dataset of any format as one array of tokens and the ends of documents, and where two differ.

if TYPE_CHECKING:
    Dataset: TypeAlias = IndexedDataset | PbinDocuments

BLOCK_ENDS = 1 << 20
"""Documents whose ends are compared at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first document in which two datasets differ."""

    documents: tuple[int | None, int | None]
    """Its number in each; None where there is no such document."""
    token: int
    """Position of the first token that differs, counted without what the rules take off."""


class Documents:
    """Tokens and ends of documents, as they are mapped from a dataset's files."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.tokens: Tokens = dataset.token_columns()[0] if isinstance(dataset, IndexedDataset) else dataset.tokens
        """All tokens, one document after the other."""

    def __len__(self) -> int:
        """Return the number of documents, including empty ones."""
        return num_documents(self._dataset)

    def ends(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return where the documents [begin, end) end in `tokens`."""
        dataset = self._dataset
        if not isinstance(dataset, IndexedDataset):
            return dataset.document_ends[begin:end]
        _, lengths, pointers, shift = dataset.token_columns()
        following = np.asarray(dataset.document_indices[begin + 1 : end + 1])
        found = np.full(len(following), len(self.tokens), np.int64)  # where no sequence follows
        inside = following < len(lengths)
        found[inside] = pointers[following[inside]] >> shift
        return found

    def end(self, document: int) -> int:
        """Return where a document ends in `tokens`; 0 for -1, which ends before the first."""
        return int(self.ends(document, document + 1)[0]) if document >= 0 else 0

    def document_at(self, position: int) -> int:
        """Return the document that has a token."""
        return bisect_right(range(len(self)), position, key=self.end)


def num_documents(dataset: Dataset) -> int:
    """Return the number of documents, including empty ones."""
    return dataset.num_documents if isinstance(dataset, IndexedDataset) else len(dataset)


def read_document(dataset: Dataset, number: int) -> NDArray[Any]:
    """Return the tokens of a document."""
    return dataset.document(number) if isinstance(dataset, IndexedDataset) else dataset[number]


def find_difference(
    one: Documents, other: Documents, *, on_progress: Callable[[int], None] | None = None
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

    shared = min(len(one), len(other))
    by_end = _first_unequal_end(one, other, shared)
    # Up to there both have the same boundaries, so the first token that differs is in a document with one number.
    limit = min(one.end(min(by_end, shared - 1)), other.end(min(by_end, shared - 1)))
    token = first_unequal(one.tokens[:limit], other.tokens[:limit], on_progress=advance)
    if token is not None:
        document = one.document_at(token)
        return Difference(documents=(document, document), token=token - one.end(document - 1))
    if by_end < shared:
        return Difference(documents=(by_end, by_end), token=limit - one.end(by_end - 1))
    if len(one) == len(other):
        return None
    return Difference(documents=(shared, None) if len(one) > shared else (None, shared), token=0)


def _first_unequal_end(one: Documents, other: Documents, shared: int) -> int:
    """Return the first of the shared documents that ends elsewhere in the other dataset; their number if none does."""
    for begin in range(0, shared, BLOCK_ENDS):
        end = min(begin + BLOCK_ENDS, shared)
        unequal = np.flatnonzero(one.ends(begin, end) != other.ends(begin, end))
        if len(unequal):
            return begin + int(unequal[0])
    return shared


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


def propose_edges(first: Dataset, second: Dataset) -> tuple[Edges, Edges]:
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


def count_bare(documents: Documents, edges: Edges) -> Edges:
    """Return the edges with the numbers of documents that are empty, or have nothing else."""
    num_empty = num_edges_only = 0
    for block in _read_blocks(documents):
        lengths = np.diff(np.concatenate([[0], block.ends]))
        _, bare = _edge_places(block, edges)
        num_empty += int((lengths == 0).sum())
        num_edges_only += int(((bare == 0) & (lengths > 0)).sum())
    return Edges(first=edges.first, last=edges.last, num_empty=num_empty, num_edges_only=num_edges_only)


def find_bare_difference(documents: tuple[Documents, Documents], edges: tuple[Edges, Edges]) -> Difference | None:
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


def _read_blocks(documents: Documents) -> Iterator[_Block]:
    begin = 0
    while begin < len(documents):
        end = min(begin + BLOCK_DOCUMENTS, len(documents))
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
    has_first = has_last = np.zeros(len(begins), np.bool_)
    filled = np.flatnonzero(lengths)
    if edges.first is not None:
        has_first = has_first.copy()
        has_first[filled] = block.tokens[begins[filled]] == edges.first
    if edges.last is not None:
        has_last = has_last.copy()
        has_last[filled] = block.tokens[block.ends[filled] - 1] == edges.last
    has_last &= ~(has_first & (lengths == 1))  # one token is one edge
    places = np.concatenate([begins[has_first], block.ends[has_last] - 1])
    return places, lengths - has_first - has_last


def _without_edges(block: _Block, edges: Edges) -> _Block:
    """Return a block's documents without the tokens at their edges, and without those that are then empty."""
    places, lengths = _edge_places(block, edges)
    tokens = block.tokens
    if len(places):
        keep = np.ones(len(tokens), np.bool_)
        keep[places] = False
        tokens = tokens[keep]
    wanted = lengths > 0
    return _Block(numbers=block.numbers[wanted], tokens=tokens, ends=np.cumsum(lengths[wanted]))


def _bare_blocks(documents: Documents, edges: Edges) -> Iterator[_Block]:
    for block in _read_blocks(documents):
        yield _without_edges(block, edges)


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
