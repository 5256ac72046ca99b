"""Load a tokenizer of any kind into gigatoken: a tokenizer.json, ranks of tiktoken, or a SentencePiece model.

gigatoken's own loaders read the last two. What they leave out is added here: ids that do not begin at 0, symbols of
SentencePiece that mean nothing in a text, and a separator for texts that are encoded as one.
"""

from __future__ import annotations

import base64
import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from dsindex.text.tiktoken_files import CL100K_PATTERN, PATTERNS, R50K_PATTERN, TiktokenEncoding, read_definition
from dsindex.text.tokenizer import LibraryError, flat_steps, library_errors, open_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer

Separator: TypeAlias = tuple[str, int]
"""A special token and its id."""


class Unsuitable(Exception):
    """The reason why gigatoken does not support a tokenizer."""


def require_dense(num_ids: int, num_tokens: int) -> None:
    """Refuse ids far beyond the number of tokens, since gigatoken allocates by the largest id.

    Raises:
        Unsuitable: If there are more than 2**18 ids, and 16 for each token.
    """
    if num_ids > max(1 << 18, 16 * num_tokens):
        raise Unsuitable(f"its ids have holes: {num_ids:,} ids for {num_tokens:,} tokens")


@dataclass(frozen=True, slots=True)
class Backend:
    """gigatoken's object for a tokenizer, whose ids are rotated: the tokenizer's id is (id + offset) % size."""

    encoder: Any
    offset: int = 0
    size: int = 0

    def rotate(self, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the tokenizer's ids for those of gigatoken."""
        return (ids + np.uint32(self.offset)) % np.uint32(self.size) if self.offset else ids


def load_gigatoken(tokenizer: Tokenizer) -> Backend:
    """Return gigatoken's object for a tokenizer that `choose_engine` has found suitable."""
    import gigatoken

    if tokenizer.library == "tiktoken":
        return _load_ranks(read_definition(tokenizer.content))
    is_model = tokenizer.library == "sentencepiece"
    content = convert_sentencepiece(tokenizer)[0] if is_model else tokenizer.content
    return Backend(gigatoken.Tokenizer.from_json(content).backend)


# Ranks of tiktoken: gigatoken wants them from 0 on, without holes, and knows the patterns by name.

SCHEMES = {
    R50K_PATTERN: "gpt2",
    CL100K_PATTERN: "gpt4",
    PATTERNS["o200k"][0]: "o200k",
    PATTERNS["llama3"][0]: "olmo3",
    PATTERNS["nemotron"][0]: "nemotron",
}
"""gigatoken's names of the patterns that were compared."""


def check_ranks(encoding: TiktokenEncoding) -> str:
    """Return gigatoken's name of the pattern of an encoding.

    Raises:
        Unsuitable: If gigatoken cannot load it.
    """
    if encoding.pattern not in SCHEMES:
        raise Unsuitable("its pattern is not among those that were compared")
    numbers = sorted(encoding.ranks.values())
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise Unsuitable("its ranks have holes")
    require_dense(encoding.vocabulary_size, len(numbers))
    return SCHEMES[encoding.pattern]


def _load_ranks(encoding: TiktokenEncoding) -> Backend:
    import gigatoken

    offset, size = min(encoding.ranks.values()), encoding.vocabulary_size
    tokens = sorted(encoding.ranks, key=encoding.ranks.__getitem__)
    special = {token: (number - offset) % size for token, number in encoding.special_tokens.items()}
    descriptor = os.memfd_create("ranks.tiktoken")
    with open(descriptor, "wb") as file:
        file.writelines(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
        file.flush()
        loaded = gigatoken.Tokenizer.from_tiktoken(f"/proc/self/fd/{descriptor}", check_ranks(encoding), special)
    return Backend(loaded.backend, offset, size)


# SentencePiece models of BPE with byte fallback: gigatoken makes a tokenizer.json of them.

TEXT_SEPARATOR = "\U000fd51d<between two texts>\U000fd51e"
"""A string that no text has; if one does, the reference encodes it."""
_SPACE_MARK = "▁"
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
_PREPEND = {"type": "Prepend", "prepend": _SPACE_MARK}
_MOST_COMPARED = 1 << 26
_MOST_APART = 64


@functools.lru_cache(maxsize=2)
def convert_sentencepiece(tokenizer: Tokenizer) -> tuple[bytes, tuple[str, ...]]:
    """Return the tokenizer.json by which gigatoken encodes as sentencepiece does, with TEXT_SEPARATOR as its last id.

    Control symbols mean nothing in a text. User-defined symbols are found in it, marks for spaces among them; but
    gigatoken would add a space after each if it adds one before a text.

    Returns:
        The tokenizer.json, and the strings whose texts are left to the reference.

    Raises:
        Unsuitable: If there is none.
    """
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    processor = open_library(tokenizer)
    numbers = range(processor.get_piece_size())
    pieces: list[str] = [processor.id_to_piece(number) for number in numbers]
    if sum(len(piece) ** 2 for piece in pieces) > _MOST_COMPARED or len(set(pieces)) < len(pieces):
        raise Unsuitable("its pieces are too long, or repeated")
    try:
        with library_errors():
            document = msgspec.json.decode(sentencepiece_to_tokenizer_json(tokenizer.content))
    except LibraryError as error:
        raise Unsuitable(f"gigatoken says: {error}") from error
    steps = flat_steps(document["normalizer"])
    if steps not in ([_REPLACE], [_PREPEND, _REPLACE]):
        raise Unsuitable(f"its normalizer was not compared ({', '.join(step['type'] for step in steps)})")
    symbols = {token["content"]: token["id"] for token in document["added_tokens"] if not token["special"]}
    apart = [*symbols] if steps[0] == _PREPEND else []
    if len(apart) > _MOST_APART or any(_SPACE_MARK in symbol for symbol in apart):
        raise Unsuitable("it adds a space before a text, and has many user-defined symbols, or some of spaces")
    if any(map(processor.is_unused, numbers)):
        raise Unsuitable("it has unused pieces")
    kinds = (processor.is_control, processor.is_unknown, processor.is_byte)
    normal = {pieces[number] for number in numbers if not any(kind(number) for kind in kinds)}.difference(symbols)
    merged = [number for number in numbers if len(pieces[number]) > 1 and pieces[number] in normal]
    scores = [processor.get_score(number) for number in merged if pieces[number].strip(_SPACE_MARK)]
    scores += {processor.get_score(number) for number in merged if not pieces[number].strip(_SPACE_MARK)}
    if len(set(scores)) < len(scores):  # of runs of marks the longest is merged first, with equal scores as well
        raise Unsuitable("two of its pieces have the same score")
    merges = document["model"]["merges"]
    document["model"]["merges"] = [pair for pair in merges if {*pair, "".join(pair)} <= normal]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    contents = [(content.replace(_SPACE_MARK, " "), number) for content, number in symbols.items() if not apart]
    document["added_tokens"] = [
        {"id": number, "content": content, **flags} for content, number in [*contents, (TEXT_SEPARATOR, len(pieces))]
    ]
    return msgspec.json.encode(document), (TEXT_SEPARATOR, *apart)
