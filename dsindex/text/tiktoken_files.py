"""Ranks of tiktoken's encodings, and the patterns of published tokenizers.

A file of ranks has no pattern and no special tokens; for published encodings, this module lists them by name. Two kinds
of files hold ranks: tiktoken's own (a line per token: base64, space, rank), and the JSON list of Megatron-LM's
TikTokenizer.

Sources: tiktoken_ext/openai_public.py of tiktoken; llama3/tokenizer.py of meta-llama/llama-models, and tokenizer.py of
meta-llama/llama3; tiktoken_tokenizer.py of Megatron-LM.
"""

from __future__ import annotations

import base64
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from dsindex.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

END_OF_TEXT = "<|endoftext|>"

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHER_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
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
    "llama3": (rf"{_SHORT_FORMS}|{_FIRST}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHER_SYMBOLS}|{_ENDS}",),
    "qwen2": (rf"{_SHORT_FORMS}|{_FIRST}\p{{L}}+|\p{{N}}|{_OTHER_SYMBOLS}|{_ENDS}",),
    "qwen3.5": (rf"{_SHORT_FORMS}|{_FIRST}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}",),
    "o200k": (_O200K,),
    "nemotron": (rf"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*|\p{{N}}|{_SYMBOLS}|{_ENDS}",),
    "deepseek": (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK),
}
"""Patterns of the compared Splits, in order, by name. cl100k's `\\s*[\\r\\n]` is left out because gigatoken joins the
spaces after a text's last newline to it, and `{1,3}+` because gigatoken reads it as `{1,3}`."""
R50K_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""GPT-2's pattern, as written in tiktoken."""
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
MEGATRON_PATTERNS = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": PATTERNS["nemotron"][0],
}
"""Patterns of Megatron-LM's TikTokenizer."""
MEGATRON_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
MEGATRON_VOCABULARY_SIZE = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """Facts that a tokenizer's file lacks, named like the options of Megatron-LM that set them."""

    tokenizer_type: str | None = None
    """Megatron's name for the type that the file must have; None to accept any."""
    vocab_file: str | None = None
    """GPT-2's vocab.json, which is read with `merge_file` instead of the tokenizer's path."""
    merge_file: str | None = None
    tiktoken_encoding: str | None = None
    """Name of the pattern and special tokens of a tiktoken file; None to take it from the file's name."""
    tiktoken_pattern: Literal["v1", "v2"] = "v2"
    """Megatron's pattern for ranks in JSON."""
    tiktoken_num_special_tokens: int = 1000
    vocab_size: int | None = None
    """Size of the vocabulary for ranks in JSON; None for Megatron's 131,072."""
    tokenizer_special_tokens: tuple[str, ...] = MEGATRON_SPECIAL_TOKENS
    """The first special tokens for ranks in JSON."""


class TiktokenEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines the tokens of a text; its JSON is the definition that tokenizers carry.

    Raises:
        ValueError: If some text would have no tokens, or no unique tokens.
    """

    pattern: str
    """The regular expression that splits a text, in tiktoken's syntax."""
    ranks: dict[bytes, int]
    """Id by bytes; the pair with the smallest id is merged first."""
    special_tokens: dict[str, int]
    """Strings that become one token wherever they occur in a text, and their ids."""
    vocabulary_size: int

    def __post_init__(self) -> None:
        missing_byte = next((byte for byte in range(256) if bytes([byte]) not in self.ranks), None)
        if missing_byte is not None:
            raise ValueError(f"no token for the byte 0x{missing_byte:02X}")
        numbers = [*self.ranks.values(), *set(self.special_tokens.values())]  # o200k_harmony gives one id two names
        if min(numbers) < 0 or max(numbers) >= self.vocabulary_size or len(set(numbers)) < len(numbers):
            ids = f"{len(set(numbers))} different ids from {min(numbers)} to {max(numbers)}"
            raise ValueError(f"{len(numbers)} tokens have {ids}, in a vocabulary of {self.vocabulary_size}")
        for first, second in itertools.pairwise(sorted(self.special_tokens)):
            if not first or second.startswith(first):
                raise ValueError(f"its special token {second!r} begins with another, {first!r}")


def read_definition(content: bytes) -> TiktokenEncoding:
    """Read the definition of an encoding."""
    return msgspec.json.decode(content, type=TiktokenEncoding)


# tiktoken's own files: encodings by name.

_O200K_SPECIAL = {END_OF_TEXT: 199999, "<|endofprompt|>": 200018}
_HARMONY = {
    199998: "startoftext", 200002: "return", 200003: "constrain", 200005: "channel", 200006: "start", 200007: "end",
    200008: "message", 200012: "call",
}  # fmt: skip
_HARMONY_SPECIAL = {
    f"<|{_HARMONY.get(number, f'reserved_{number}')}|>": number for number in (199998, *range(200000, 201088))
}
_ENCODINGS: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": (R50K_PATTERN, {END_OF_TEXT: 50256}),
    "r50k_base": (R50K_PATTERN, {END_OF_TEXT: 50256}),
    "cl100k_base": (CL100K_PATTERN, {
        END_OF_TEXT: 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    }),
    "o200k_base": (PATTERNS["o200k"][0], _O200K_SPECIAL),
    "o200k_harmony": (PATTERNS["o200k"][0], _O200K_SPECIAL | _HARMONY_SPECIAL),
}  # fmt: skip
"""Pattern, special tokens and their ids."""
_LLAMA3 = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"}
_LLAMA31 = {4: "finetune_right_pad_id", 5: "step_id", 8: "eom_id", 10: "python_tag", 11: "image"}
_LLAMA_NAMES = {"llama3": _LLAMA3, "llama3.1": _LLAMA3 | _LLAMA31}
"""Names of some of the 256 special tokens, whose ids follow the ranks; all other special tokens are reserved."""
_FAMILIES = (*_ENCODINGS, *_LLAMA_NAMES)


def read_rank_file(file: str, content: bytes, family: str | None) -> tuple[TiktokenEncoding, str | None]:
    """Return the encoding in one of tiktoken's files, and its end-of-document token, if it has one.

    Args:
        file: Path of the file.
        content: Content of the file.
        family: Name of the encoding; None to take it from the file's name, such as `cl100k_base.tiktoken`.

    Raises:
        TokenizerError: If the encoding is not known.
        ValueError: If the content is damaged.
    """
    stem, suffix = os.path.splitext(os.path.basename(file))
    if family is None and suffix == ".tiktoken" and stem in _FAMILIES:
        family = stem
    if family not in _FAMILIES:
        families = ", ".join(_FAMILIES)
        problem = "it has no pattern and special tokens" if family is None else f"unknown encoding {family!r}"
        raise TokenizerError(f"{file}: {problem}", hint=f"choose with `dsindex build --tiktoken-encoding`: {families}")
    ranks = _collect_ranks(line.split(b" ") for line in content.splitlines() if line)
    if family in _ENCODINGS:
        pattern, special_tokens = _ENCODINGS[family]
        eod = END_OF_TEXT
    else:
        pattern, eod = PATTERNS["llama3"][0], "<|end_of_text|>"
        names_by_number, reserved_ids = _LLAMA_NAMES[family], itertools.count()
        names = (names_by_number.get(number) or f"reserved_special_token_{next(reserved_ids)}" for number in range(256))
        special_tokens = {f"<|{name}|>": len(ranks) + number for number, name in enumerate(names)}
    size = max([*ranks.values(), *special_tokens.values()]) + 1
    return TiktokenEncoding(pattern=pattern, ranks=ranks, special_tokens=special_tokens, vocabulary_size=size), eod


def _collect_ranks(entries: Iterable[Sequence[bytes | str | int]]) -> dict[bytes, int]:
    """Return the rank of each token, given pairs of a base64 token and its rank.

    Raises:
        ValueError: Naming the first invalid entry.
    """
    ranks: dict[bytes, int] = {}
    for number, entry in enumerate(entries):
        try:
            token, rank = entry
            token_bytes = base64.b64decode(token, validate=True)  # type: ignore[arg-type]  # raises a ValueError
            if not token_bytes or token_bytes in ranks:
                raise ValueError("it is empty or repeated")
            ranks[token_bytes] = int(rank)
        except (TypeError, ValueError) as error:
            problem = f"entry {number} is not a token in base64 and its rank: {str(entry)[:60]} ({error})"
            raise ValueError(problem) from error
    return ranks


class RankEntry(msgspec.Struct):
    """An object in Megatron-LM's JSON list of ranks."""

    rank: int
    token_bytes: str


def read_megatron_ranks(content: bytes, options: TokenizerOptions) -> tuple[TiktokenEncoding, str]:
    """Return the encoding that Megatron-LM's TikTokenizer makes of its JSON list of ranks, and its EOD token.

    Args:
        content: The bytes of the file.
        options: Pattern, special tokens and size of the vocabulary.

    Raises:
        ValueError: If Megatron would refuse it.
    """
    specials, num_special = options.tokenizer_special_tokens, options.tiktoken_num_special_tokens
    size = MEGATRON_VOCABULARY_SIZE if options.vocab_size is None else options.vocab_size
    missing_tokens = set(MEGATRON_SPECIAL_TOKENS) - set(specials)
    if missing_tokens or len(set(specials)) < len(specials) or not len(specials) <= num_special < size:
        requirement = f"{' '.join(MEGATRON_SPECIAL_TOKENS)} among at most {num_special} different special tokens"
        raise ValueError(f"Megatron needs {requirement}, and a vocabulary of more; it has {size}")
    entries = msgspec.json.decode(content, type=list[RankEntry])
    for number, entry in enumerate(entries):
        if entry.rank != number:
            raise ValueError(f"entry {number} of the list has rank {entry.rank}")
    ranks, num_kept = _collect_ranks((entry.token_bytes, entry.rank) for entry in entries), size - num_special
    if len(ranks) < num_kept:
        raise ValueError(f"{len(ranks)} ranks, and a vocabulary of {size} needs {num_kept}")
    filler = (f"<SPECIAL_{number}>" for number in range(len(specials), num_special))
    encoding = TiktokenEncoding(
        pattern=MEGATRON_PATTERNS[options.tiktoken_pattern],
        ranks={token: rank + num_special for token, rank in ranks.items() if rank < num_kept},
        special_tokens={token: number for number, token in enumerate([*specials, *filler])},
        vocabulary_size=size,
    )
    return encoding, "</s>"
