"""Byte-pair ranks of tiktoken: a file with ranks, and the encoding that it becomes with a pattern and special tokens.

Three kinds of files hold ranks: tiktoken's own (a line per token: base64, space, rank), Mistral's tekken.json, and the
JSON list that Megatron-LM's TikTokenizer reads. The tiktoken library is the reference for all of them.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from dsindex.text.structures import PATTERNS, Unsuitable, byte_characters

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import tiktoken

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
        msg = f"expected a token for every byte, got none for 0x{missing:02X}"
        raise ValueError(msg)
    numbers = [*encoding.ranks.values(), *encoding.special_tokens.values()]
    if min(numbers) < 0 or max(numbers) >= encoding.vocabulary_size or encoding.vocabulary_size > LARGEST_ID:
        msg = (
            f"expected ids from 0 to {encoding.vocabulary_size - 1}, the last of the vocabulary, got ids from "
            f"{min(numbers)} to {max(numbers)}"
        )
        raise ValueError(msg)
    if len(set(numbers)) < len(numbers):
        repeated = next(number for number in sorted(numbers) if numbers.count(number) > 1)
        msg = f"expected each id once, got {repeated} for two tokens"
        raise ValueError(msg)
    ordered = sorted(encoding.special_tokens)
    for first, second in itertools.pairwise(ordered):
        if not first or second.startswith(first):
            msg = f"expected special tokens of which none begins with another, got {first!r} and {second!r}"
            raise ValueError(msg)


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
            msg = f"line {number}: expected a token in base64, a space and a rank, got {line[:40]!r}"
            raise ValueError(msg)
        _add_rank(ranks, token, int(rank), place=f"line {number}")
    return ranks


def read_rank_list(entries: object) -> dict[bytes, int]:
    """Read a list of objects with `rank` and `token_bytes`, as in tekken.json and Megatron's files.

    Raises:
        ValueError: Naming the first entry that is not as expected.
    """
    if not isinstance(entries, list):
        msg = f"expected a list of tokens, got {type(entries).__name__}"
        raise ValueError(msg)
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(entries):
        place = f"token {number}"
        rank, token = (entry.get("rank"), entry.get("token_bytes")) if isinstance(entry, dict) else (None, None)
        if rank != number or isinstance(rank, bool) or not isinstance(token, str):
            msg = f"{place}: expected an object with rank {number} and token_bytes, got {str(entry)[:60]}"
            raise ValueError(msg)
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
        reason = "its pattern is not among those that were compared with tiktoken"
        raise Unsuitable(reason)
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
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = sorted(encoding.special_tokens.items(), key=lambda item: item[1])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": content, **flags} for content, number in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, last]},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {spelt[token]: number for token, number in encoding.ranks.items()},
            "merges": [[spelt[first], spelt[second]] for first, second in _merges(encoding.ranks)],
        },
    }


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
        msg = f"{place}: expected a token in base64, got {token[:40]!r}"
        raise ValueError(msg)
    if spelt in ranks:
        msg = f"{place}: expected each token once, got {spelt[:40]!r} again"
        raise ValueError(msg)
    ranks[spelt] = rank
