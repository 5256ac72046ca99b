"""What a file of ranks does not contain: the patterns and special tokens of published encodings, by name.

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
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

from dsindex.text.agreement import PATTERNS, Unsuitable, byte_characters
from dsindex.text.conversion.tokenizer_json import END_OF_TEXT, bpe_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import tiktoken


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
