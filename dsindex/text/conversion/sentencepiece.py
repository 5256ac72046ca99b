"""SentencePiece models: what is in a `.model`, and the tokenizer.json for those that gigatoken can encode.

The format is sentencepiece_model.proto of https://github.com/google/sentencepiece, in the encoding of
https://protobuf.dev/programming-guides/encoding/. The sentencepiece library is the reference for every model; a
conversion is made only of the parts that were compared with it. Its own `sentencepiece_model_pb2` refuses every
protobuf older than the one it was generated with, which Ray and others do not need, so it is not used.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dsindex.text.agreement import Unsuitable
from dsindex.text.conversion.tokenizer_json import bpe_document

if TYPE_CHECKING:
    from collections.abc import Iterator


Fields: TypeAlias = dict[int, int | bytes]
_Value = TypeVar("_Value", int, bytes)

SPACE_MARK = "▁"

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE, _IS_SUFFIX, _BYTE_FALLBACK, _UNKNOWN_PIECE = 3, 24, 35, 45
_CHARSMAP, _ADDS_PREFIX, _REMOVES_SPACES, _ESCAPES_SPACES = 2, 3, 4, 5
_NORMAL, _USER_DEFINED, _UNUSED, _LAST_KIND = 1, 4, 5, 6
_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceModel:
    """The content of a `.model` that determines tokens."""

    pieces: tuple[str, ...]
    """Texts by id."""
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    trainer: Fields = field(repr=False)
    normalizer: Fields = field(repr=False)

    @property
    def user_defined(self) -> tuple[str, ...]:
        """Symbols that become one token wherever they occur in a text; control symbols do not."""
        return tuple(piece for piece, kind in zip(self.pieces, self.kinds, strict=True) if kind == _USER_DEFINED)


@functools.lru_cache(maxsize=2)
def read_sentencepiece(content: bytes) -> SentencePieceModel:
    """Read the bytes of a `.model`.

    Raises:
        ValueError: If they are not a SentencePiece model.
    """
    pieces: list[Fields] = []
    parts: dict[int, Fields] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in _read_fields(content):
        if number in {_PIECES, _TRAINER, _NORMALIZER}:
            fields = dict(_read_fields(_value({number: value}, number, b"")))
            if number == _PIECES:
                pieces.append(fields)
            else:
                parts[number] = fields
    if not pieces:
        raise ValueError("expected a SentencePiece model, got one without pieces")
    scores = b"".join(_value(piece, _SCORE, bytes(4)) for piece in pieces)
    if len(scores) != 4 * len(pieces):
        raise ValueError("expected a score of 4 bytes for each piece of a SentencePiece model, got another size")
    return SentencePieceModel(
        pieces=tuple(_value(piece, _TEXT, b"").decode() for piece in pieces),
        scores=struct.unpack(f"<{len(pieces)}f", scores),
        kinds=tuple(_value(piece, _KIND, _NORMAL) for piece in pieces),
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
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}]
    if model.normalizer.get(_ADDS_PREFIX, 1):
        steps.insert(0, {"type": "Prepend", "prepend": SPACE_MARK})
    return bpe_document(
        vocabulary,
        _merges(model),
        added={piece: vocabulary[piece] for piece in model.user_defined if not _is_marks(piece)},
        special=False,
        normalizer={"type": "Sequence", "normalizers": steps},
        unknown=_value(model.trainer, _UNKNOWN_PIECE, b"<unk>").decode(),
        byte_fallback=True,
    )


def _check_options(model: SentencePieceModel) -> None:
    kind = _MODEL_TYPES.get(_value(model.trainer, _MODEL_TYPE, 1), "unknown")
    unsuitable = {
        f"is of the type {kind}, not BPE": kind != "BPE",
        "has no byte fallback": not model.trainer.get(_BYTE_FALLBACK, 0),
        "puts spaces after words": bool(model.trainer.get(_IS_SUFFIX, 0)),
        "normalizes texts with a table of characters": bool(model.normalizer.get(_CHARSMAP, b"")),
        "removes repeated spaces": bool(model.normalizer.get(_REMOVES_SPACES, 1)),
        "keeps spaces as they are": not model.normalizer.get(_ESCAPES_SPACES, 1),
        "has unused pieces": _UNUSED in model.kinds,
        "has pieces of an unknown kind": not set(model.kinds) <= set(range(_NORMAL, _LAST_KIND + 1)),
    }
    for what, is_so in unsuitable.items():
        if is_so:
            raise Unsuitable(f"its SentencePiece model {what}")


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
        raise Unsuitable("its SentencePiece model gives two pieces the same score")


def _check_user_defined(model: SentencePieceModel) -> None:
    """Refuse user-defined symbols that a tokenizer.json cannot express: SentencePiece looks for them after normalizing.

    Runs of marks are the exception: two marks, three and so on become merges that go before all others.
    """
    marks = sorted(map(len, _mark_runs(model)))
    if marks != list(range(2, len(marks) + 2)):
        raise Unsuitable("its SentencePiece model has user-defined runs of spaces of some lengths only")
    for piece in model.user_defined:
        if _is_marks(piece):
            continue
        if SPACE_MARK in piece or " " in piece:
            raise Unsuitable(f"its SentencePiece model has a user-defined symbol with a space, {piece!r}")
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


def _read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and value of each field of a protobuf message: integers for varints, bytes for all else.

    Raises:
        ValueError: If the message is cut, or has a kind of field that protobuf no longer uses.
    """
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        number, kind = key >> 3, key & 7
        if kind in {_VARINT, _BYTES}:
            size, place = _read_varint(message, place)
            if kind == _VARINT:
                yield number, size
                continue
        elif kind in _FIXED_SIZES:
            size = _FIXED_SIZES[kind]
        else:
            raise ValueError(f"expected a protobuf field of a known kind at byte {place}, got kind {kind}")
        if size > len(message) - place:
            raise ValueError(f"expected {size} bytes at byte {place}, got {len(message) - place}")
        yield number, message[place : place + size]
        place += size


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Return an integer of at most 64 bits and the place after it."""
    value = 0
    for number, byte in enumerate(message[place : place + 10]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, place + number + 1
    raise ValueError(f"expected an integer at byte {place}, got a number that does not end")


def _value(fields: Fields, number: int, default: _Value) -> _Value:
    """Return a field of the type that its default has.

    Raises:
        ValueError: If it has another.
    """
    value = fields.get(number, default)
    if not isinstance(value, type(default)):
        msg = f"expected {type(default).__name__} as field {number} of a SentencePiece model, got {value!r:.20}"
        raise ValueError(msg)
    return value
