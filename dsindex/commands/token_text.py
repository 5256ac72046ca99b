"""Decode tokens one by one, so that it is visible where each begins, as text that cannot control a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.text.tokenizer import decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.text.tokenizer import Tokenizer

LONGEST_GROUP = 8
"""Tokens that may make up one character together; a UTF-8 sequence has 4 bytes."""
_REPLACEMENT = "\ufffd"


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
    pieces = cut_pieces(tokenizer, ids)
    return "".join(f"⟨{piece.ids[0]}⟩" if piece.text is None else piece.text for piece in pieces)


def _text_after(tokenizer: Tokenizer, before: tuple[int, ...], ids: tuple[int, ...]) -> str:
    if not before:
        return decode(tokenizer, ids)
    first, both = decode(tokenizer, before), decode(tokenizer, (*before, *ids))
    return both[len(first) :] if both.startswith(first) else decode(tokenizer, ids)


def pieces_of(ids: Sequence[Any], tokenizer: Tokenizer | None, *, before: Sequence[Any] = ()) -> list[Piece]:
    """Return the text of each token; without a tokenizer, or for tokens that are no integers, the bare ids."""
    if tokenizer is None or not all(isinstance(token, int) for token in ids):
        return [Piece(ids=(token,), text=None) for token in ids]
    return cut_pieces(tokenizer, ids, before=before)
