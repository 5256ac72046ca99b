"""Excerpts of a dataset: the tokens of a document, sequence or match, their text, and the line they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.errors import FormatError
from dsindex.inspection.borders import Piece, cut_pieces
from dsindex.inspection.stores import IndexedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.formats.token_array import Tokens
    from dsindex.inspection.finding import Match
    from dsindex.inspection.stores import PackedStore
    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tracing.merged import PartDocument
    from workflows.jobs.inspect_origin import DocumentSource, Origin

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
    """First token shown."""
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
            msg = f"{store.paths[0]}: a .pbin has no sequences"
            raise IndexError(msg)
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
            source=self._source(match.document),
            part=self._part(match.document),
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
            source=self._source(document),
            part=self._part(document),
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

    def _source(self, document: int) -> DocumentSource | None:
        return self._look_up(self._origin.source_of, document)

    def _part(self, document: int) -> PartDocument | None:
        return self._look_up(self._origin.part_of, document)

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
