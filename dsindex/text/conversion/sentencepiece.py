"""SentencePiece models: what is in a `.model`, and the tokenizer.json for those that gigatoken can encode.

The format is sentencepiece_model.proto of https://github.com/google/sentencepiece. The sentencepiece library is the
reference for every model; a conversion is made only of the parts that were compared with it.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import Any

from dsindex.text.conversion.protobuf import read_fields, read_scalars
from dsindex.text.structures import Unsuitable

SPACE_MARK = "▁"

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE, _IS_SUFFIX, _BYTE_FALLBACK, _UNKNOWN_PIECE = 3, 24, 35, 45
_CHARSMAP, _ADDS_PREFIX, _REMOVES_SPACES, _ESCAPES_SPACES = 2, 3, 4, 5
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The content of a `.model` that determines tokens."""

    pieces: tuple[str, ...]
    """Texts by id."""
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    trainer: dict[int, int | bytes] = field(repr=False)
    normalizer: dict[int, int | bytes] = field(repr=False)

    def of_kind(self, kind: int) -> list[str]:
        """Return the pieces of a kind, in order."""
        return [piece for piece, own in zip(self.pieces, self.kinds, strict=True) if own == kind]

    @property
    def user_defined(self) -> tuple[str, ...]:
        """Symbols that become one token wherever they occur in a text; control symbols do not."""
        return tuple(self.of_kind(_USER_DEFINED))

    @property
    def control(self) -> tuple[str, ...]:
        """Symbols such as `<s>`, which no text becomes."""
        return tuple(self.of_kind(_CONTROL))


@functools.lru_cache(maxsize=2)
def read_sentencepiece(content: bytes) -> SentencePieceModel:
    """Read the bytes of a `.model`.

    Raises:
        ValueError: If they are not a SentencePiece model.
    """
    pieces: list[dict[int, int | bytes]] = []
    parts: dict[int, dict[int, int | bytes]] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in read_fields(content):
        if number == _PIECES:
            pieces.append(read_scalars(_as_bytes(value)))
        elif number in parts:
            parts[number] = read_scalars(_as_bytes(value))
    if not pieces:
        msg = "expected a SentencePiece model, got one without pieces"
        raise ValueError(msg)
    return SentencePieceModel(
        pieces=tuple(_as_bytes(piece.get(_TEXT, b"")).decode() for piece in pieces),
        scores=tuple(_as_float(piece.get(_SCORE, bytes(4))) for piece in pieces),
        kinds=tuple(_as_integer(piece.get(_KIND, _NORMAL)) for piece in pieces),
        trainer=parts[_TRAINER],
        normalizer=parts[_NORMALIZER],
    )


def convert_sentencepiece(model: SentencePieceModel) -> dict[str, Any]:
    """Return the content of a tokenizer.json that gigatoken encodes as the sentencepiece library encodes the model.

    Control symbols stay in the vocabulary but are no added tokens, since sentencepiece does not look for them in texts.

    Raises:
        Unsuitable: If there is no such tokenizer.json.
    """
    _check_options(model)
    _check_scores(model)
    _check_user_defined(model)
    vocabulary = {piece: number for number, piece in enumerate(model.pieces)}
    marks = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}]
    prefix = [{"type": "Prepend", "prepend": SPACE_MARK}] if model.normalizer.get(_ADDS_PREFIX, 1) else []
    steps: list[dict[str, Any]] = [*prefix, *marks]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            _added_token(vocabulary[piece], piece) for piece in model.user_defined if not _is_marks(piece)
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _as_bytes(model.trainer.get(_UNKNOWN_PIECE, b"<unk>")).decode(),
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(model),
        },
    }


def _check_options(model: SentencePieceModel) -> None:
    kind = _MODEL_TYPES.get(_as_integer(model.trainer.get(_MODEL_TYPE, 1)), "unknown")
    unsuitable = {
        f"is of the type {kind}, not BPE": kind != "BPE",
        "has no byte fallback": not model.trainer.get(_BYTE_FALLBACK, 0),
        "puts spaces after words": bool(model.trainer.get(_IS_SUFFIX, 0)),
        "normalizes texts with a table of characters": bool(model.normalizer.get(_CHARSMAP, b"")),
        "removes repeated spaces": bool(model.normalizer.get(_REMOVES_SPACES, 1)),
        "keeps spaces as they are": not model.normalizer.get(_ESCAPES_SPACES, 1),
        "has unused pieces": _UNUSED in model.kinds,
        "has pieces of an unknown kind": not set(model.kinds) <= set(range(1, 7)),
    }
    for what, is_so in unsuitable.items():
        if is_so:
            reason = f"its SentencePiece model {what}"
            raise Unsuitable(reason)


def _check_scores(model: SentencePieceModel) -> None:
    """Refuse equal scores: sentencepiece takes the leftmost of two pairs then, but merges in a file have an order.

    Runs of marks may share the lowest score, as in Llama 2, so that they are joined last: from the left, one part grows
    until it is as long as it can be, and then the next. Merges in which the longer first part goes first do the same.
    """
    learned = {
        piece: score
        for piece, score, kind in zip(model.pieces, model.scores, model.kinds, strict=True)
        if kind == _NORMAL
    }
    lowest = min(learned.values(), default=0.0)
    last = [piece for piece, score in learned.items() if score == lowest]
    others = [score for score in learned.values() if score != lowest]
    is_regular = len(last) == 1 or all(map(_is_run, last))
    if not is_regular or len(set(others)) < len(others) or any(score != score for score in learned.values()):
        reason = "its SentencePiece model gives two pieces the same score"
        raise Unsuitable(reason)


def _check_user_defined(model: SentencePieceModel) -> None:
    """Refuse user-defined symbols that a tokenizer.json cannot express: SentencePiece looks for them after normalizing.

    Runs of marks are the exception: two marks, three and so on become merges that go before all others.
    """
    marks = sorted(map(len, _mark_runs(model)))
    if marks != list(range(2, len(marks) + 2)):
        reason = "its SentencePiece model has user-defined runs of spaces of some lengths only"
        raise Unsuitable(reason)
    for piece in model.user_defined:
        if _is_marks(piece):
            continue
        if SPACE_MARK in piece or " " in piece:
            reason = f"its SentencePiece model has a user-defined symbol with a space, {piece!r}"
            raise Unsuitable(reason)
        if model.normalizer.get(_ADDS_PREFIX, 1):
            reason = f"its SentencePiece model has a user-defined symbol, {piece!r}, and adds a space before texts"
            raise Unsuitable(reason)


def _merges(model: SentencePieceModel) -> list[list[str]]:
    """Return all pairs that SentencePiece joins, by the score of what they become; user-defined runs of marks first."""
    symbols = {
        piece: score
        for piece, score, kind in zip(model.pieces, model.scores, model.kinds, strict=True)
        if kind == _NORMAL or (kind == _USER_DEFINED and _is_marks(piece))
    }
    fixed = _mark_runs(model)
    pairs = [
        (piece in fixed, score, cut, len(piece) - cut, piece)
        for piece, score in symbols.items()
        for cut in range(1, len(piece))
        if piece[:cut] in symbols and piece[cut:] in symbols
        if piece in fixed or fixed.isdisjoint((piece[:cut], piece[cut:]))
    ]
    pairs.sort(reverse=True)
    return [[piece[:cut], piece[cut:]] for _, _, cut, _, piece in pairs]


def _mark_runs(model: SentencePieceModel) -> frozenset[str]:
    return frozenset(piece for piece in model.user_defined if _is_marks(piece))


def _is_run(piece: str) -> bool:
    return set(piece) == {SPACE_MARK}


def _is_marks(piece: str) -> bool:
    return len(piece) > 1 and _is_run(piece)


def _added_token(number: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": number, "content": content, **flags}


def _as_bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        msg = f"expected text or a message in a SentencePiece model, got the number {value}"
        raise ValueError(msg)
    return value


def _as_integer(value: int | bytes) -> int:
    if not isinstance(value, int):
        msg = "expected a number in a SentencePiece model, got bytes"
        raise ValueError(msg)
    return value


def _as_float(value: int | bytes) -> float:
    if not isinstance(value, bytes) or len(value) != 4:
        msg = "expected a score in a SentencePiece model, got something else"
        raise ValueError(msg)
    return float(struct.unpack("<f", value)[0])
