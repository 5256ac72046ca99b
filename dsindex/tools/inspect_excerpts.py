"""Excerpts of a dataset: the tokens of a document, sequence or match, their text, and the line they come from."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.errors import FormatError
from dsindex.execution.local import map_ahead
from dsindex.json_text import show_name
from dsindex.text.conversion.tiktoken import read_definition
from dsindex.text.tokenizer import decode
from dsindex.tools.inspect_kinds import IndexedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.datasets.origins import PartDocument
    from dsindex.formats.token_copy import Tokens
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tools.inspect_kinds import PackedStore, TokenStore
    from dsindex.tools.inspect_origin import DocumentSource, Origin


# Decode tokens one by one, so that it is visible where each begins.

LONGEST_GROUP = 8
"""Tokens that may make up one character together; a UTF-8 sequence has 4 bytes."""
_REPLACEMENT = "\ufffd"
# Besides what show_name escapes: marks without width, and characters that stand for tags.
_INVISIBLE = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u2060-\u2065\u206a-\u206f\ufeff\U000e0000-\U000e007f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The text of a token, or of several tokens that make up a character only together."""

    ids: tuple[int, ...]
    text: str | None
    """None for an id that is not in the tokenizer's vocabulary."""


def cut_pieces(tokenizer: Tokenizer, ids: Sequence[int], *, before: Sequence[int] = ()) -> list[Piece]:
    """Return the text of each token, as it is within the text of all.

    Tokens are decoded after the piece before them, since the text of many depends on whether something precedes it.

    Args:
        tokenizer: The tokenizer of the ids.
        ids: Tokens.
        before: Some tokens that precede them.
    """
    pieces: list[Piece] = []
    before = tuple(token for token in before if 0 <= token < tokenizer.vocabulary_size)
    group: tuple[int, ...] = ()
    for number, token in enumerate(ids):
        if not 0 <= token < tokenizer.vocabulary_size:
            if group:
                pieces.append(Piece(ids=group, text=_text_after(tokenizer, before, group)))
            pieces.append(Piece(ids=(token,), text=None))
            before = group = ()
            continue
        group = (*group, token)
        text = _text_after(tokenizer, before, group)
        if text.endswith(_REPLACEMENT) and len(group) < LONGEST_GROUP and number + 1 < len(ids):
            continue
        pieces.append(Piece(ids=group, text=text))
        before, group = group, ()
    if group:
        pieces.append(Piece(ids=group, text=_text_after(tokenizer, before, group)))
    return pieces


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens, in which an id that is not in the tokenizer's vocabulary is shown as ⟨id⟩."""
    texts: list[str] = []
    known: list[int] = []
    for token in ids:
        if 0 <= token < tokenizer.vocabulary_size:
            known.append(token)
        else:
            texts += [_decode(tokenizer, tuple(known)) if known else "", f"⟨{token}⟩"]
            known = []
    return "".join([*texts, _decode(tokenizer, tuple(known)) if known else ""])


def show_text(text: str) -> str:
    r"""Return a text with control characters and invisible ones escaped, so that it cannot control a terminal.

    >>> print(show_text("a\x1b[2J\u200bb"))
    a\x1b[2J\u200bb
    """
    return _INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), show_name(text))


def _text_after(tokenizer: Tokenizer, before: tuple[int, ...], ids: tuple[int, ...]) -> str:
    if not before:
        return _decode(tokenizer, ids)
    first, both = _decode(tokenizer, before), _decode(tokenizer, (*before, *ids))
    return both[len(first) :] if both.startswith(first) else _decode(tokenizer, ids)


def _decode(tokenizer: Tokenizer, ids: tuple[int, ...]) -> str:
    if tokenizer.library == "tiktoken":  # `decode` spells the whole vocabulary at each call
        spelt = _spelling(tokenizer.model)
        return b"".join(spelt.get(number, b"") for number in ids).decode(errors="replace")
    return decode(tokenizer, ids)


@functools.lru_cache(maxsize=2)
def _spelling(model: bytes) -> dict[int, bytes]:
    encoding = read_definition(model)
    spelt = {number: token for token, number in encoding.ranks.items()}
    named = {**encoding.control_tokens, **encoding.special_tokens}
    spelt.update((number, token.encode()) for token, number in named.items())
    return spelt


# Find runs of token ids in the tokens of a dataset, in parallel over ranges that overlap.

if TYPE_CHECKING:
    Slots = tuple[NDArray[np.int64], NDArray[np.int64]]
    """Tokens at which a pattern begins, ascending, and the number of the pattern."""

RANGE_TOKENS = 1 << 20
"""Tokens searched by one task."""
LOOKED_UP = 64
"""Slots whose documents are looked up at once, at least."""


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
        raise ValueError("expected token ids to look for, got none")
    matches: list[Match] = []
    step = max(limit, LOOKED_UP)
    for tokens, numbers in _search(store.tokens, patterns, threads=threads, range_tokens=range_tokens):
        for begin in range(0, len(tokens), step):
            some = zip(tokens[begin : begin + step].tolist(), numbers[begin : begin + step].tolist(), strict=True)
            for token, number in some:
                document = store.document_at(token)
                first, end = store.document_span(document)
                if token + len(patterns[number]) <= end:
                    inside, size = token - first, end - first
                    matches.append(
                        Match(document=document, position=inside, num_tokens=size, token=token, pattern=number)
                    )
                if len(matches) == limit:
                    return matches
    return matches


def _search(tokens: Tokens, patterns: Sequence[Sequence[int]], *, threads: int, range_tokens: int) -> Iterator[Slots]:
    """Yield the places of each range in order, while the next ranges are searched."""
    largest = np.iinfo(tokens.dtype)
    known = [
        (number, np.array(ids, tokens.dtype))
        for number, ids in enumerate(patterns)
        if min(ids) >= largest.min and max(ids) <= largest.max
    ]

    def search(begin: int) -> Slots:
        return _search_range(tokens, known, begin, begin + range_tokens)

    begins = range(0, len(tokens), range_tokens)
    return (slots for _, slots in map_ahead(search, begins, threads=threads, ahead=threads))


def _search_range(tokens: Tokens, patterns: Sequence[tuple[int, NDArray[Any]]], begin: int, end: int) -> Slots:
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


Found = TypeVar("Found")

FIRST_TOKENS = 64
"""Tokens shown of each document in an overview."""
CHOSEN_TOKENS = 2000
"""Tokens shown of a document that was asked for."""
BEFORE = 2
"""Tokens before an excerpt on which its first token's text may depend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A run of tokens."""

    title: str
    num_tokens: int
    """Tokens of the whole document, sequence or part."""
    begin: int = 0
    pieces: tuple[Piece, ...] = ()
    """Shown tokens with their text, which is None without a tokenizer."""
    marked: tuple[int, int] | None = None
    """The tokens of a match: the first, and one past the last, counted as `begin`."""
    document: int | None = None
    source: DocumentSource | None = None
    part: PartDocument | None = None
    """The document in the dataset that was merged into this one."""
    mask: tuple[int, ...] | None = None
    """Of instruction data: 1 for each token shown that is trainable, else 0."""
    text: str | None = None
    """The line of a raw index, instead of tokens."""

    @property
    def end(self) -> int:
        """One past the last token shown."""
        return self.begin + sum(len(piece.ids) for piece in self.pieces)


class Excerpts:
    """Takes excerpts from one dataset.

    Args:
        store: Its tokens.
        origin: Its manifest, tokenizer and provenance.
        max_tokens: Tokens shown of a document; None for a default.
        masks: The loss mask of each token, for instruction data.
    """

    def __init__(
        self,
        store: IndexedStore | PackedStore,
        origin: Origin,
        max_tokens: int | None,
        *,
        masks: Tokens | None = None,
    ) -> None:
        self._store = store
        self._origin = origin
        self._max_tokens = max_tokens
        self._masks = masks
        self.findings: list[str] = []
        """Sentences about provenance that cannot be read."""

    def document(self, number: int, *, first_only: bool = False) -> Excerpt:
        """Return the beginning of a document.

        Raises:
            IndexError: If there is no such document.
            FormatError: If the index points outside the tokens.
        """
        begin, end = self._store.document_span(number)
        return self._excerpt(f"document {number:,}", number, begin, end, first_only=first_only)

    def sequence(self, number: int) -> Excerpt:
        """Return the beginning of a sequence of an MMIDIDX dataset.

        Raises:
            IndexError: If there is no such sequence.
            FormatError: If the index points outside the tokens.
        """
        store = self._store
        if not isinstance(store, IndexedStore):
            raise IndexError(f"{store.paths[0]}: a .pbin has no sequences")
        begin, end = store.sequence_span(number)
        document = store.document_of(number)
        return self._excerpt(f"sequence {number:,} of document {document:,}", document, begin, end)

    def match(self, match: Match, length: int, *, around: int) -> Excerpt:
        """Return a match with tokens before and after it from the same document."""
        first = match.token - match.position
        end = first + match.num_tokens
        shown_begin = max(first, match.token - around)
        shown_end = min(end, match.token + length + around)
        # One piece each, so that a match is never part of a group with its neighbours.
        parts = [(shown_begin, match.token), (match.token, match.token + length), (match.token + length, shown_end)]
        pieces = [piece for part in parts for piece in self._pieces(*part, first)]
        return Excerpt(
            title=f"document {match.document:,}, token {match.position:,}",
            num_tokens=end - first,
            begin=shown_begin - first,
            pieces=tuple(pieces),
            marked=(match.position, match.position + length),
            document=match.document,
            source=self._look_up(self._origin.source_of, match.document),
            part=self._look_up(self._origin.part_of, match.document),
        )

    def _excerpt(self, title: str, document: int, begin: int, end: int, *, first_only: bool = False) -> Excerpt:
        total = len(self._store.tokens)
        if not 0 <= begin <= end <= total:
            msg = f"{self._store.paths[-1]}: expected {title} within {total:,} tokens, got {begin:,} to {end:,}"
            raise FormatError(msg)
        shown = self._max_tokens if self._max_tokens is not None else FIRST_TOKENS if first_only else CHOSEN_TOKENS
        return Excerpt(
            title=title,
            num_tokens=end - begin,
            pieces=tuple(
                pieces_of(self._store.tokens[begin : min(end, begin + shown)].tolist(), self._origin.tokenizer)
            ),
            document=document,
            source=self._look_up(self._origin.source_of, document),
            part=self._look_up(self._origin.part_of, document),
            mask=self._mask(begin, min(end, begin + shown)),
        )

    def _pieces(self, begin: int, end: int, first: int) -> list[Piece]:
        """Return tokens of a document that begins at the token `first`."""
        tokens = self._store.tokens
        return pieces_of(
            tokens[begin:end].tolist(),
            self._origin.tokenizer,
            before=tokens[max(begin - BEFORE, first) : begin].tolist(),
        )

    def _mask(self, begin: int, end: int) -> tuple[int, ...] | None:
        if self._masks is None or len(self._masks) != len(self._store.tokens):
            return None
        return tuple(int(value != 0) for value in self._masks[begin:end].tolist())

    def _look_up(self, find: Callable[[int], Found | None], document: int) -> Found | None:
        try:
            return find(document)
        except FormatError as error:
            if str(error) not in self.findings:
                self.findings.append(str(error))
            return None


def pieces_of(ids: Sequence[Any], tokenizer: Tokenizer | None, *, before: Sequence[Any] = ()) -> list[Piece]:
    """Return the text of each token; without a tokenizer, or for tokens that are no integers, the bare ids."""
    if tokenizer is None or not all(isinstance(token, int) for token in ids):
        return [Piece(ids=(token,), text=None) for token in ids]
    return cut_pieces(tokenizer, ids, before=before)
