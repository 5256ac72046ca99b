"""Ranks of tiktoken's encodings, and the tokenizer.json of GPT-2's two files.

A file of ranks does not contain patterns and special tokens; those of published encodings are here by name. Two kinds
of files hold ranks: tiktoken's own (a line per token: base64, space, rank), and the JSON list of Megatron-LM's
TikTokenizer.

Sources: tiktoken_ext/openai_public.py of tiktoken; llama3/tokenizer.py of meta-llama/llama-models, and tokenizer.py of
meta-llama/llama3; tiktoken_tokenizer.py of Megatron-LM.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import tiktoken


END_OF_TEXT = "<|endoftext|>"

# The patterns of published tokenizers.

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_O200K = (
    rf"{_FIRST}{_UPPER}*{_LOWER}+{_SHORT_FORMS}?|{_FIRST}{_UPPER}+{_LOWER}*{_SHORT_FORMS}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_ENDS}"
)
_DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt2": (GPT2_PATTERN,),
    "llama3": (rf"{_SHORT_FORMS}|{_FIRST}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHERS}|{_ENDS}",),
    "qwen2": (rf"{_SHORT_FORMS}|{_FIRST}\p{{L}}+|\p{{N}}|{_OTHERS}|{_ENDS}",),
    "qwen3.5": (rf"{_SHORT_FORMS}|{_FIRST}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}",),
    "o200k": (_O200K,),
    "nemotron": (rf"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*|\p{{N}}|{_SYMBOLS}|{_ENDS}",),
    "deepseek": (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK),
}
"""Patterns of the Splits that were compared, in order, by name. cl100k's `\\s*[\\r\\n]` is missing because gigatoken
joins the spaces after a text's last newline to it, and `{1,3}+` because gigatoken reads it as `{1,3}`."""


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
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": content, **flags} for content, number in added.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": pairs,
        },
    }
    return _dump(document)


def _dump(value: Any, *, sort_keys: bool = False) -> bytes:  # noqa: ANN401 - JSON holds anything
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=sort_keys).encode()


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


R50K_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""How tiktoken writes GPT-2's pattern."""

LARGEST_ID = 2**31 - 1

_DEFINITION = "dsindex tiktoken 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TiktokenEncoding:
    """Everything that determines the tokens of a text."""

    pattern: str
    """The regular expression that splits a text, in tiktoken's syntax."""
    ranks: Mapping[bytes, int] = field(repr=False)
    """Id by bytes; the pair with the smallest id is merged first."""
    special_tokens: Mapping[str, int]
    """Strings that become one token wherever they occur in a text, and their ids."""
    vocabulary_size: int

    def token_id(self, token: str) -> int | None:
        """Return the id of a special token or an ordinary one."""
        named = self.special_tokens.get(token)
        return named if named is not None else self.ranks.get(token.encode())

    def write(self) -> bytes:
        """Return the definition as bytes, the same for the same encoding."""
        named = {base64.b64encode(token).decode(): number for token, number in self.ranks.items()}
        parts = {
            "definition": _DEFINITION,
            "pattern": self.pattern,
            "normalizer": None,
            "special_tokens": dict(self.special_tokens),
            "control_tokens": {},
            "vocabulary_size": self.vocabulary_size,
            "ranks": named,
        }
        return _dump(parts, sort_keys=True)


@functools.lru_cache(maxsize=2)
def read_definition(content: bytes) -> TiktokenEncoding:
    """Read what `TiktokenEncoding.write` returned."""
    parts = json.loads(content)
    return TiktokenEncoding(
        pattern=parts["pattern"],
        ranks={base64.b64decode(token): number for token, number in parts["ranks"].items()},
        special_tokens=parts["special_tokens"],
        vocabulary_size=parts["vocabulary_size"],
    )


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
    """Read a list of objects with `rank` and `token_bytes`, as in Megatron's files.

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
    """Return the library's object, which finds special tokens in texts."""
    import tiktoken

    return tiktoken.Encoding(
        name="dsindex",
        pat_str=encoding.pattern,
        mergeable_ranks=dict(encoding.ranks),
        special_tokens=dict(encoding.special_tokens),
    )


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

_LLAMA3_PATTERN, _O200K_PATTERN = (PATTERNS[name][0] for name in ("llama3", "o200k"))
_FIXED: dict[str, tuple[str, dict[str, int], int | None]] = {
    "gpt2": (R50K_PATTERN, {END_OF_TEXT: 50256}, 50257),
    "r50k_base": (R50K_PATTERN, {END_OF_TEXT: 50256}, 50257),
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
    "o200k_base": (_O200K_PATTERN, {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}, None),
}
"""Pattern, special tokens and their ids, and the size of the vocabulary where it is more than the largest id."""

FAMILIES = (*_FIXED, "llama3", "llama3.1")
"""Names of all encodings, as the option takes them."""
SIZES = {
    50256: "gpt2",
    100256: "cl100k_base",
    199998: "o200k_base",
    128000: "llama3 or llama3.1",
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
    size = None
    if family in _FIXED:
        pattern, special, size = _FIXED[family]
    else:
        pattern = _LLAMA3_PATTERN
        special = {name: len(ranks) + number for number, name in enumerate(_llama_names(family))}
    largest = max([*ranks.values(), *special.values()], default=0)
    return TiktokenEncoding(
        pattern=pattern,
        ranks=ranks,
        special_tokens=special,
        vocabulary_size=max(largest + 1, size or 0),
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
        vocabulary_size=size,
    )


def _shifted(ranks: Mapping[bytes, int], *, size: int, num_special: int) -> dict[bytes, int]:
    """Return the ids of the first ranks after the special tokens."""
    if len(ranks) < size - num_special:
        raise ValueError(f"expected {size - num_special} ranks for a vocabulary of {size}, got {len(ranks)}")
    return {token: rank + num_special for token, rank in ranks.items() if rank < size - num_special}
