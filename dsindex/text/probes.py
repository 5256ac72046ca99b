"""Texts that both engines must encode alike before the fast one is used; they expose every option of tokenizers."""

from __future__ import annotations

import itertools
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROBED_ADDED_TOKENS = 64
"""Added tokens that are probed, so that probing takes at most 0.1 s."""

FIXED_PROBES = (
    "", " ", "  ", "\n", "\r\n", "\t \t", "\0", "a\0b", "\u00a0x\u2003y\u3000z", " leading", "trailing ", "a" * 300,
    "The quick brown fox doesn't jump; it'll've JUMPED.\n\n  Twice!\n", "I'M HE'LL we'd ſ's",
    "1234567890 3.14 1,000,000 ٣٤٥ ½ ²", "def f(x):\n    return x**2  # ok\n\n\n\tend", "https://a.example/?q=%20&x=[1]{2}",
    "Ünïcödé e\u0301 n\u0303 ﬁ Å Å ẞ", "Привет, мир! Ёж", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "你好，世界。", "こんにちは 안녕",
    "ไทยไม่มีเว้นวรรค", "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃️", "\ufeffbom", "\ufffd\ud7ff\U0010ffff", "\u0301\u0302 only marks",
    "▁under▁score▁", "<0x41><0xFF>",
    "<unk><s></s><|endoftext|>[CLS][SEP][UNK]", "Ġword Ċ", "x" + "\u200d" * 5 + "y", "a\x1c\x85\u2028\u2029b",
)  # fmt: skip
"""Texts in many scripts and of many kinds."""

_RUNS = (*range(1, 20), 31, 32, 33, 64, 65, 129)
_SHORT = ("a", "B", "'s", "1", " ", "\n", "\t", ".", "/", "é", "中", "\u0301", "▁")
"""Every sequence of up to three of these is a probe, which shows where a pre-tokenizer splits."""


def probes_of(added_tokens: Sequence[str]) -> list[str]:
    """Return all probes for a tokenizer.

    Args:
        added_tokens: The strings of its added tokens.
    """
    return [*FIXED_PROBES, *_short_probes(), *_added_token_probes(added_tokens)]


def probes_of_vocabulary(tokens: Sequence[str]) -> list[str]:
    """Return probes for a vocabulary of another format: all of its tokens, and runs of the characters that repeat.

    Args:
        tokens: The texts of the tokens.
    """
    repeated = sorted({token[0] for token in tokens if len(token) > 1 and len(set(token)) == 1})
    runs = (f"{before}{character * length}x" for character in repeated for length in _RUNS for before in ("", "x"))
    return [*filter(None, tokens), *runs]


def _short_probes() -> Iterator[str]:
    for length in (1, 2, 3):
        yield from map("".join, itertools.product(_SHORT, repeat=length))


def _added_token_probes(contents: Sequence[str]) -> Iterator[str]:
    for content in contents[:PROBED_ADDED_TOKENS]:
        yield from (
            content,
            f" {content} ",
            f"a{content}b",
            f"{content * 2}\n{content}",
            f"é {content[:-1]}{content}\u3000x",
        )
        yield from (unicodedata.normalize("NFD", content), content.lower(), content.upper())
