"""Which engine encodes: decided once, by the driver, from the tokenizer alone.

`tokenizers` is the reference. `gigatoken` is 50 times faster and not the same in every case: it runs no post-processor,
and it takes some tokenizers that it gets wrong. What we know of that is decided from tokenizer.json; what we do not
know is caught by probes, and later by the audit.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from dsindex.errors import TokenizerError
from dsindex.text.fast_tokenizers import fast_tokenizer
from dsindex.text.tokenizer import shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.text.tokenizer import Tokenizer

EngineName = Literal["gigatoken", "tokenizers"]

PROBED_ADDED_TOKENS = 64
"""Probes are written for so many added tokens: 0.1 s at most, whatever the tokenizer."""
LARGEST_ID_FACTOR = 16
"""gigatoken allocates by the largest id: one of a billion among 50,000 tokens takes all memory."""

_PROBES = (
    "", " ", "  ", "\n", "\r\n", "\t \t", "\0", "a\0b", "\u00a0x\u2003y\u3000z", " leading", "trailing ", "a" * 300,
    "The quick brown fox doesn't jump; it'll've JUMPED.\n\n  Twice!\n", "I'M HE'LL we'd ſ's",
    "1234567890 3.14 1,000,000 ٣٤٥ ½ ²", "def f(x):\n    return x**2  # ok\n\n\n\tend", "https://a.example/?q=%20&x=[1]{2}",
    "Ünïcödé e\u0301 n\u0303 ﬁ Å Å ẞ", "Привет, мир! Ёж", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "你好，世界。", "こんにちは 안녕",
    "ไทยไม่มีเว้นวรรค", "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃️", "\ufeffbom", "\ufffd\ud7ff\U0010ffff", "\u0301\u0302 only marks",
    "▁under▁score▁", "<0x41><0xFF>",
    "<unk><s></s><|endoftext|>[CLS][SEP][UNK]", "Ġword Ċ", "x" + "\u200d" * 5 + "y", "a\x1c\x85\u2028\u2029b",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How texts become tokens; part of a build's fingerprint."""

    name: EngineName
    version: str
    """Of the engine's package."""
    add_special_tokens: bool
    """Whether the tokenizer's post-processor has its say."""
    prefix: tuple[int, ...]
    """Tokens that we put before every text, since gigatoken runs no post-processor; empty for `tokenizers`."""
    suffix: tuple[int, ...]
    """The same after every text."""
    reason: str
    """Why not gigatoken; empty where nothing speaks against it."""


def choose_engine(
    tokenizer: Tokenizer,
    requested: Literal["auto", "gigatoken", "tokenizers"],
    *,
    add_special_tokens: bool,
) -> Engine:
    """Decide between the engines.

    Args:
        tokenizer: As loaded.
        requested: `auto` takes gigatoken where it gives the ids of `tokenizers`.
        add_special_tokens: Run the post-processor, as Megatron does without --tokenizer-hf-no-include-special-tokens.

    Raises:
        TokenizerError: If gigatoken is demanded and cannot do this tokenizer.
    """
    if requested == "tokenizers":
        return _tokenizers_engine("asked for", add_special_tokens=add_special_tokens)
    if requested not in {"auto", "gigatoken"}:
        msg = f"expected an engine auto, gigatoken or tokenizers, got {requested!r}"
        raise ValueError(msg)
    try:
        prefix, suffix = _added_around(tokenizer) if add_special_tokens else ((), ())
        _check_gigatoken(tokenizer)
    except _Unsuitable as unsuitable:
        if requested == "gigatoken":
            remedy = "use --engine tokenizers"
            msg = f"{tokenizer.name}: expected a tokenizer that gigatoken can do, and {unsuitable}; {remedy}"
            raise TokenizerError(msg) from unsuitable
        return _tokenizers_engine(str(unsuitable), add_special_tokens=add_special_tokens)
    return Engine(
        name="gigatoken",
        version=importlib.metadata.version("gigatoken"),
        add_special_tokens=add_special_tokens,
        prefix=prefix,
        suffix=suffix,
        reason="",
    )


class _Unsuitable(Exception):
    """Why gigatoken cannot do a tokenizer."""


def _tokenizers_engine(reason: str, *, add_special_tokens: bool) -> Engine:
    return Engine(
        name="tokenizers",
        version=importlib.metadata.version("tokenizers"),
        add_special_tokens=add_special_tokens,
        prefix=(),
        suffix=(),
        reason=reason,
    )


def _added_around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the fixed tokens that the post-processor puts around a text: by its description, then by trying."""
    prefix, suffix = _fixed_tokens(orjson.loads(tokenizer.json).get("post_processor"))
    loaded = shared_tokenizer(tokenizer)
    plain = loaded.encode_batch_fast(list(_PROBES), add_special_tokens=False)
    processed = loaded.encode_batch_fast(list(_PROBES), add_special_tokens=True)
    for before, after in zip(plain, processed, strict=True):
        if after.ids != [*prefix, *before.ids, *suffix]:
            reason = "its post-processor does more than to add fixed tokens"
            raise _Unsuitable(reason)
    return prefix, suffix


def _fixed_tokens(processor: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kind = None if processor is None else processor.get("type")
    if processor is None or kind == "ByteLevel":  # ByteLevel moves offsets, not ids
        return (), ()
    if kind in {"BertProcessing", "RobertaProcessing"}:
        return (processor["cls"][1],), (processor["sep"][1],)
    if kind == "Sequence":
        # Of two processors that add tokens the later has no effect; should that change, the trial tells.
        adding = [fixed for fixed in map(_fixed_tokens, processor["processors"]) if fixed != ((), ())]
        return adding[0] if adding else ((), ())
    if kind == "TemplateProcessing":
        return _template_tokens(processor)
    reason = f"its post-processor is of the kind {kind!r}"
    raise _Unsuitable(reason)


def _template_tokens(template: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    around: list[list[int]] = [[]]
    for piece in template["single"]:
        if "Sequence" in piece:
            around.append([])
        else:
            around[-1].extend(template["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    if len(around) != 2:
        reason = f"its post-processor's template holds the text {len(around) - 1} times"
        raise _Unsuitable(reason)
    return tuple(around[0]), tuple(around[1])


def _check_gigatoken(tokenizer: Tokenizer) -> None:
    document = orjson.loads(tokenizer.json)
    added = document.get("added_tokens") or []
    _check_added_tokens(added, normalizes=document.get("normalizer") is not None)
    loaded = shared_tokenizer(tokenizer)
    # `tokenizers` numbers an added token itself where the file does not give the next id; gigatoken believes the file.
    vocabulary = document["model"].get("vocab")
    numbered = vocabulary.values() if isinstance(vocabulary, dict) else ()
    largest = max([*numbered, *(token["id"] for token in added)], default=0)
    if largest > LARGEST_ID_FACTOR * tokenizer.vocabulary_size:
        reason = f"its ids have holes: {largest} among {tokenizer.vocabulary_size} tokens"
        raise _Unsuitable(reason)

    probes = [*_PROBES, *_added_token_probes([token["content"] for token in added])]
    spelt = [probe.encode() for probe in probes]
    offsets = np.cumsum([0, *map(len, spelt)], dtype=np.int64)
    try:
        tokens, lengths = fast_tokenizer(tokenizer).encode(offsets, np.frombuffer(b"".join(spelt), np.uint8))
    except (RuntimeError, ValueError, TypeError) as error:
        summary = " ".join(str(error).partition("Location:")[0].split())
        reason = f"gigatoken says: {summary}"
        raise _Unsuitable(reason) from error
    reference = loaded.encode_batch_fast(probes, add_special_tokens=False)
    for text, got, expected in zip(probes, np.split(tokens, np.cumsum(lengths)[:-1]), reference, strict=True):
        if got.tolist() != expected.ids:
            reason = f"gigatoken gives other ids than tokenizers for {text[:40]!r}"
            raise _Unsuitable(reason)


def _check_added_tokens(added: list[dict[str, Any]], *, normalizes: bool) -> None:
    """Refuse the added tokens that gigatoken 0.10 was seen to match otherwise than `tokenizers`.

    `tokenizers` looks for tokens with normalized=false in the raw text first, and then for the others in what the
    normalizer makes of the rest; gigatoken makes one pass over the raw text, and knows no single_word.
    """
    raw = [token for token in added if not token.get("normalized")]
    late = [token for token in added if token.get("normalized")]
    single = next((token["content"] for token in added if token.get("single_word")), None)
    if single is not None:
        reason = f"its added token {single!r} counts as a whole word only"
        raise _Unsuitable(reason)
    if late and normalizes:
        reason = f"its added token {late[0]['content']!r} is looked for after the normalizer"
        raise _Unsuitable(reason)
    for first, second in itertools.product(raw, late):
        strips = any(token.get(side) for token in (first, second) for side in ("lstrip", "rstrip"))
        if strips or _overlap(first["content"], second["content"]):
            reason = f"its added tokens {first['content']!r} and {second['content']!r} can overlap"
            raise _Unsuitable(reason)


def _overlap(first: str, second: str) -> bool:
    """Whether two strings can share characters in some text."""
    if first in second or second in first:
        return True
    shorter = min(len(first), len(second))
    return any(first.endswith(second[:n]) or second.endswith(first[:n]) for n in range(1, shorter))


def _added_token_probes(contents: list[str]) -> Iterator[str]:
    for content in contents[:PROBED_ADDED_TOKENS]:
        yield from (
            content,
            f" {content} ",
            f"a{content}b",
            f"{content * 2}\n{content}",
            f"é {content[:-1]}{content}\u3000x",
        )
        yield from (unicodedata.normalize("NFD", content), content.lower(), content.upper())
