"""Tokenizers of tiktoken, SentencePiece and GPT-2's files, and the tokenizer.json that each becomes for gigatoken.

A file of ranks does not contain patterns and special tokens; those of published encodings are here by name.

Sources: tiktoken_ext/openai_public.py of tiktoken; llama3/tokenizer.py and llama4/tokenizer.py of
meta-llama/llama-models, and tokenizer.py of meta-llama/llama3; tokenization_qwen.py of Qwen; tekken.py of
mistral-common; tiktoken_tokenizer.py of Megatron-LM.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import os
import struct
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import orjson

from dsindex.text.agreement import PATTERNS, Unsuitable, byte_characters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import tiktoken


# Write tokenizer.json: the file of a byte-pair encoding, and that of GPT-2's vocab.json and merges.txt.
#
# `--vocab-file` and `--merge-file` name GPT-2's files, an older form of byte-level BPE. Source: encoder.py of
# https://github.com/openai/gpt-2, and its counterpart in transformers.

END_OF_TEXT = "<|endoftext|>"


def bpe_document(
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    *,
    added: Mapping[str, int],
    special: bool,
    normalizer: object = None,
    pre_tokenizer: object = None,
    decoder: object = None,
    unknown: str | None = None,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> dict[str, Any]:
    """Return the content of the tokenizer.json of a byte-pair encoding.

    Args:
        vocabulary: Id by token.
        merges: Pairs of tokens, in the order in which they are joined.
        added: Id by added token; they are looked for in the raw text.
        special: Whether the added tokens are special.
        normalizer: As in the file, like the next two.
        pre_tokenizer: Splits the text.
        decoder: Joins tokens to text.
        unknown: The unknown token.
        byte_fallback: Unknown characters become tokens of bytes, and adjacent unknown tokens one.
        ignore_merges: A word of the vocabulary is not split.
    """
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": content, **flags} for content, number in added.items()],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": byte_fallback,
            "byte_fallback": byte_fallback,
            "ignore_merges": ignore_merges,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def convert_gpt2_files(vocabulary: object, merges: bytes) -> bytes:
    """Return the tokenizer.json of GPT-2's two files.

    Args:
        vocabulary: The content of vocab.json: id by token.
        merges: The bytes of merges.txt, whose first line may name a version.

    Raises:
        ValueError: Naming the file that is not as expected.
    """
    if not isinstance(vocabulary, dict) or not vocabulary or not all(map(_is_id, vocabulary.values())):
        raise ValueError("expected a JSON object with an id for each token")
    pairs = []
    for number, line in enumerate(merges.decode().split("\n"), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise ValueError(
                f"line {number} of the merges: expected two tokens that make a third of the vocabulary, got {line!r}"
            )
        pairs.append(pair)
    added = {END_OF_TEXT: vocabulary[END_OF_TEXT]} if END_OF_TEXT in vocabulary else {}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    document = bpe_document(vocabulary, pairs, added=added, special=True, pre_tokenizer=byte_level, decoder=byte_level)
    return orjson.dumps(document)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


# SentencePiece models: what is in a `.model`, and the tokenizer.json for those that gigatoken can encode.
#
# The format is sentencepiece_model.proto of https://github.com/google/sentencepiece, in the encoding of
# https://protobuf.dev/programming-guides/encoding/. The sentencepiece library is the reference for every model; a
# conversion is made only of the parts that were compared with it. Its own `sentencepiece_model_pb2` refuses every
# protobuf older than the one it was generated with, which Ray and others do not need, so it is not used.

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
        _sentencepiece_merges(model),
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


def _sentencepiece_merges(model: SentencePieceModel) -> list[list[str]]:
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


# Byte-pair ranks of tiktoken: a file with ranks, and the encoding that it becomes with a pattern and special tokens.
#
# Three kinds of files hold ranks: tiktoken's own (a line per token: base64, space, rank), Mistral's tekken.json and the
# JSON list that Megatron-LM's TikTokenizer reads. The tiktoken library is the reference for all of them.

R50K_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""How tiktoken writes GPT-2's pattern."""

LARGEST_ID = 2**31 - 1

_DEFINITION = "dsindex tiktoken 1"
_PATTERN_NAMES = {
    R50K_PATTERN: "gpt2",
    **{patterns[0]: name for name, patterns in PATTERNS.items() if len(patterns) == 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TiktokenEncoding:
    """Everything that determines the tokens of a text."""

    pattern: str
    """The regular expression that splits a text, in tiktoken's syntax."""
    ranks: Mapping[bytes, int] = field(repr=False)
    """Id by bytes; the pair with the smallest id is merged first."""
    special_tokens: Mapping[str, int]
    """Strings that become one token wherever they occur in a text, and their ids."""
    control_tokens: Mapping[str, int]
    """Names of further ids, which no text becomes."""
    vocabulary_size: int
    normalizer: Literal["NFC"] | None = None

    def token_id(self, token: str) -> int | None:
        """Return the id of a special token, a control token or an ordinary one."""
        named = self.special_tokens.get(token, self.control_tokens.get(token))
        return named if named is not None else self.ranks.get(token.encode())

    def write(self) -> bytes:
        """Return the definition as bytes, the same for the same encoding."""
        named = {base64.b64encode(token).decode(): number for token, number in self.ranks.items()}
        parts = {
            "definition": _DEFINITION,
            "pattern": self.pattern,
            "normalizer": self.normalizer,
            "special_tokens": dict(self.special_tokens),
            "control_tokens": dict(self.control_tokens),
            "vocabulary_size": self.vocabulary_size,
            "ranks": named,
        }
        return orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)


@functools.lru_cache(maxsize=2)
def read_definition(content: bytes) -> TiktokenEncoding:
    """Read what `TiktokenEncoding.write` returned."""
    parts = orjson.loads(content)
    del parts["definition"]
    parts["ranks"] = {base64.b64decode(token): number for token, number in parts["ranks"].items()}
    return TiktokenEncoding(**parts)


def check_encoding(encoding: TiktokenEncoding) -> None:
    """Refuse encodings in which a text has no tokens, or tokens that depend on chance.

    Raises:
        ValueError: Saying what is wrong.
    """
    missing = next((byte for byte in range(256) if bytes([byte]) not in encoding.ranks), None)
    if missing is not None:
        raise ValueError(f"expected a token for every byte, got none for 0x{missing:02X}")
    numbers = [*encoding.ranks.values(), *encoding.special_tokens.values()]
    if min(numbers) < 0 or max(numbers) >= encoding.vocabulary_size or encoding.vocabulary_size > LARGEST_ID:
        raise ValueError(
            f"expected ids from 0 to {encoding.vocabulary_size - 1}, the last of the vocabulary, got ids from "
            f"{min(numbers)} to {max(numbers)}"
        )
    if len(set(numbers)) < len(numbers):
        repeated = next(number for number in sorted(numbers) if numbers.count(number) > 1)
        raise ValueError(f"expected each id once, got {repeated} for two tokens")
    ordered = sorted(encoding.special_tokens)
    for first, second in itertools.pairwise(ordered):
        if not first or second.startswith(first):
            raise ValueError(f"expected special tokens of which none begins with another, got {first!r} and {second!r}")


def read_rank_lines(content: bytes) -> dict[bytes, int]:
    """Read a tiktoken file.

    Raises:
        ValueError: Naming the first line that is none.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        if not rank.isdigit() or len(rank) > 10:
            raise ValueError(f"line {number}: expected a token in base64, a space and a rank, got {line[:40]!r}")
        _add_rank(ranks, token, int(rank), place=f"line {number}")
    return ranks


def read_rank_list(entries: object) -> dict[bytes, int]:
    """Read a list of objects with `rank` and `token_bytes`, as in tekken.json and Megatron's files.

    Raises:
        ValueError: Naming the first entry that is not as expected.
    """
    if not isinstance(entries, list):
        raise ValueError(f"expected a list of tokens, got {type(entries).__name__}")
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(entries):
        place = f"token {number}"
        rank, token = (entry.get("rank"), entry.get("token_bytes")) if isinstance(entry, dict) else (None, None)
        if rank != number or isinstance(rank, bool) or not isinstance(token, str):
            raise ValueError(f"{place}: expected an object with rank {number} and token_bytes, got {str(entry)[:60]}")
        _add_rank(ranks, token.encode(), number, place=place)
    return ranks


def make_tiktoken(encoding: TiktokenEncoding) -> tiktoken.Encoding:
    """Return the library's object, which finds special tokens in texts and knows no control tokens."""
    import tiktoken

    return tiktoken.Encoding(
        name="dsindex",
        pat_str=encoding.pattern,
        mergeable_ranks=dict(encoding.ranks),
        special_tokens=dict(encoding.special_tokens),
    )


def convert_tiktoken(encoding: TiktokenEncoding) -> dict[str, Any]:
    """Return the content of a tokenizer.json that gigatoken encodes as tiktoken encodes the ranks.

    Raises:
        Unsuitable: If there is no such tokenizer.json.
    """
    name = _PATTERN_NAMES.get(encoding.pattern)
    if name is None:
        raise Unsuitable("its pattern is not among those that were compared with tiktoken")
    if encoding.normalizer is not None:
        reason = f"its texts are normalized by Python's {encoding.normalizer} of Unicode {unicodedata.unidata_version}"
        raise Unsuitable(reason)
    characters = byte_characters()
    spelt = {token: "".join(characters[byte] for byte in token) for token in encoding.ranks}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in PATTERNS[name]
    ]
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return bpe_document(
        {spelt[token]: number for token, number in encoding.ranks.items()},
        [[spelt[first], spelt[second]] for first, second in _merges(encoding.ranks)],
        added=dict(sorted(encoding.special_tokens.items(), key=lambda item: item[1])),
        special=True,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*splits, last]},
        ignore_merges=True,
    )


def _merges(ranks: Mapping[bytes, int]) -> Iterable[tuple[bytes, bytes]]:
    """Return all pairs that tiktoken joins, in the order of what they become."""
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        for cut in range(len(token) - 1, 0, -1):
            first, second = token[:cut], token[cut:]
            if first in ranks and second in ranks:
                yield first, second


def _add_rank(ranks: dict[bytes, int], token: bytes, rank: int, *, place: str) -> None:
    try:
        spelt = base64.b64decode(token, validate=True)
    except (binascii.Error, ValueError):
        spelt = b""
    if not spelt:
        raise ValueError(f"{place}: expected a token in base64, got {token[:40]!r}")
    if spelt in ranks:
        raise ValueError(f"{place}: expected each token once, got {spelt[:40]!r} again")
    ranks[spelt] = rank


CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
MEGATRON_PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": PATTERNS["nemotron"][0],
}
MEGATRON_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
MEGATRON_VOCABULARY_SIZE = 1 << 17

_O200K = {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}
_HARMONY = {
    "startoftext": 199998, "endoftext": 199999, "reserved_200000": 200000, "reserved_200001": 200001, "return": 200002,
    "constrain": 200003, "reserved_200004": 200004, "channel": 200005, "start": 200006, "end": 200007,
    "message": 200008, "reserved_200009": 200009, "reserved_200010": 200010, "reserved_200011": 200011, "call": 200012,
}  # fmt: skip
_LLAMA3_PATTERN, _QWEN_PATTERN, _O200K_PATTERN = (PATTERNS[name][0] for name in ("llama3", "qwen2", "o200k"))
_FIXED: dict[str, tuple[str, dict[str, int], int | None]] = {
    "gpt2": (R50K_PATTERN, {END_OF_TEXT: 50256}, 50257),
    "r50k_base": (R50K_PATTERN, {END_OF_TEXT: 50256}, 50257),
    "p50k_base": (R50K_PATTERN, {END_OF_TEXT: 50256}, 50281),
    "p50k_edit": (
        R50K_PATTERN,
        {END_OF_TEXT: 50256, "<|fim_prefix|>": 50281, "<|fim_middle|>": 50282, "<|fim_suffix|>": 50283},
        None,
    ),
    "cl100k_base": (
        CL100K_PATTERN,
        {
            END_OF_TEXT: 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        None,
    ),
    "o200k_base": (_O200K_PATTERN, _O200K, None),
    "o200k_harmony": (
        _O200K_PATTERN,
        {
            "<|endofprompt|>": 200018,
            **{f"<|{name}|>": number for name, number in _HARMONY.items()},
            **{f"<|reserved_{number}|>": number for number in range(200013, 201088) if number != 200018},
        },
        None,
    ),
}
"""Pattern, special tokens and their ids, and the size of the vocabulary where it is more than the largest id."""

FAMILIES = (*_FIXED, "llama3", "llama3.1", "llama4", "qwen")
"""Names of all encodings, as the option takes them."""
SIZES = {
    50256: "gpt2",
    100256: "cl100k_base",
    199998: "o200k_base",
    128000: "llama3 or llama3.1",
    200000: "llama4",
    151643: "qwen",
}
"""Encodings by the number of ranks, for hints."""


def family_of_file(name: str) -> str | None:
    """Return the encoding that the name of a published file stands for, such as `cl100k_base.tiktoken`."""
    stem = os.path.basename(name).removesuffix(".tiktoken")
    return stem if stem in FAMILIES and name.endswith(".tiktoken") else None


def make_encoding(family: str, ranks: Mapping[bytes, int]) -> TiktokenEncoding:
    """Return the encoding of a family with the ranks of its file.

    Args:
        family: One of FAMILIES.
        ranks: Rank by bytes.
    """
    normalizer: Literal["NFC"] | None = None
    size = None
    if family in _FIXED:
        pattern, special, size = _FIXED[family]
    else:
        pattern, names = _NAMED[family]
        special = {name: len(ranks) + number for number, name in enumerate(names)}
        normalizer = "NFC" if family == "qwen" else None
    largest = max([*ranks.values(), *special.values()], default=0)
    return TiktokenEncoding(
        pattern=pattern,
        ranks=ranks,
        special_tokens=special,
        control_tokens={},
        vocabulary_size=max(largest + 1, size or 0),
        normalizer=normalizer,
    )


def eod_of_family(family: str) -> str:
    """Return the token that ends documents in an encoding."""
    return "<|end_of_text|>" if family.startswith("llama") else END_OF_TEXT


def _llama_names(family: str) -> list[str]:
    reserved = iter(f"<|reserved_special_token_{number}|>" for number in range(256))
    named = {
        "llama3": {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"},
        "llama3.1": {
            0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 5: "step_id", 6: "start_header_id",
            7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag", 11: "image",
        },
    }[family]  # fmt: skip
    return [f"<|{named[number]}|>" if number in named else next(reserved) for number in range(256)]


def _llama4_names() -> list[str]:
    trained = [
        "header_start", "header_end", "eom", "eot", "step", *_reserved("text_post_train_", 6), "python_start",
        "python_end", "finetune_right_pad", *_reserved("text_post_train_", 61, first=8),
    ]  # fmt: skip
    vision = [
        "image_start", "image_end", *_reserved("vision_", 2), "tile_x_separator", "tile_y_separator",
        *_reserved("vision_", 4, first=2), "image", "vision_reserved_special_token_6", "patch",
        *_reserved("vision_", 1041, first=7),
    ]  # fmt: skip
    reasoning = [*_reserved("reasoning_", 8), "reasoning_thinking_start", "reasoning_thinking_end"]
    begin = ["begin_of_text", "end_of_text", "fim_prefix", "fim_middle", "fim_suffix"]
    named = [*begin, *trained, *vision, *reasoning]
    return [f"<|{name}|>" for name in [*named, *_reserved("", 2048 - len(named))]]


def _reserved(kind: str, count: int, *, first: int = 0) -> list[str]:
    return [f"{kind}reserved_special_token_{number}" for number in range(first, first + count)]


_NAMED = {
    "llama3": (_LLAMA3_PATTERN, _llama_names("llama3")),
    "llama3.1": (_LLAMA3_PATTERN, _llama_names("llama3.1")),
    "llama4": (_O200K_PATTERN, _llama4_names()),
    "qwen": (
        _QWEN_PATTERN,
        [END_OF_TEXT, "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))],
    ),
}
"""Pattern and special tokens of the families whose special tokens follow the ranks."""


def read_tekken(document: Mapping[str, Any]) -> TiktokenEncoding:
    """Return the encoding in the content of Mistral's tekken.json.

    Its special tokens have the first ids. As in mistral-common, no text becomes one.

    Raises:
        ValueError: If a part is missing or not as expected.
    """
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    size, num_special = (_count(config, name) for name in ("default_vocab_size", "default_num_special_tokens"))
    pattern = config.get("pattern")
    if not isinstance(pattern, str):
        raise ValueError(f"expected a pattern in its config, got {pattern!r}")
    ranks = read_rank_list(document.get("vocab"))
    named = document.get("special_tokens") or [
        {"rank": rank, "token_str": token} for rank, token in enumerate(MEGATRON_SPECIAL_TOKENS[:3])
    ]
    return TiktokenEncoding(
        pattern=pattern,
        ranks=_shifted(ranks, size=size, num_special=num_special),
        special_tokens={},
        control_tokens={str(entry["token_str"]): int(entry["rank"]) for entry in named},
        vocabulary_size=size,
    )


def read_megatron_ranks(
    entries: object,
    *,
    pattern: str,
    special_tokens: Sequence[str],
    num_special: int,
    size: int,
) -> TiktokenEncoding:
    """Return the encoding that Megatron-LM's TikTokenizer makes of its JSON list of ranks.

    Args:
        entries: The content of the file.
        pattern: A name in MEGATRON_PATTERNS.
        special_tokens: The first special tokens; the others are named `<SPECIAL_n>`.
        num_special: Number of special tokens, which have the first ids.
        size: Size of the vocabulary with special tokens; further ranks are left out.

    Raises:
        ValueError: If Megatron would refuse it.
    """
    missing = [token for token in MEGATRON_SPECIAL_TOKENS if token not in special_tokens]
    if missing or len(set(special_tokens)) < len(special_tokens) or not len(special_tokens) <= num_special < size:
        raise ValueError(
            f"expected at most {num_special} different special tokens with {' '.join(MEGATRON_SPECIAL_TOKENS)} among "
            f"them, fewer than the {size} of the vocabulary, got {' '.join(special_tokens)}"
        )
    filler = (f"<SPECIAL_{number}>" for number in range(len(special_tokens), num_special))
    return TiktokenEncoding(
        pattern=MEGATRON_PATTERNS[pattern],
        ranks=_shifted(read_rank_list(entries), size=size, num_special=num_special),
        special_tokens={token: number for number, token in enumerate([*special_tokens, *filler])},
        control_tokens={},
        vocabulary_size=size,
    )


def _shifted(ranks: Mapping[bytes, int], *, size: int, num_special: int) -> dict[bytes, int]:
    """Return the ids of the first ranks after the special tokens."""
    if len(ranks) < size - num_special:
        raise ValueError(f"expected {size - num_special} ranks for a vocabulary of {size}, got {len(ranks)}")
    return {token: rank + num_special for token, rank in ranks.items() if rank < size - num_special}


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"expected a number {name} in its config, got {value!r}")
    return value
