"""Code points on which gigatoken and `tokenizers` differ, found by `python -m tests.agreement`, which tries all.

The two use different versions of Unicode: a code point that is a letter for one is unassigned for the other. The
command prints these tables from the texts in `tests/agreement/texts.py`. To allow a new release of either package, run
the command with it, and add the version here if the tables are the same.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


GIGATOKEN_VERSIONS = ("0.10.0",)
TOKENIZERS_VERSIONS = ("0.22.0", "0.22.1", "0.22.2", "0.23.1", "0.23.2", "0.23.3")
"""Versions of which all pairs give the tables below."""

_LETTERS = (
    "88F C5C CDC A7CE-A7CF A7D2 A7D4 A7F1 10940-10959 10EC5-10EC7 11DB0-11DDB 11DE0-11DE9 16EA0-16EB8 16EBB-16ED3 "
    "16FF2-16FF6 187F8-187FF 18D09-18D1E 18D80-18DF2 1E6C0-1E6DE 1E6E0-1E6E2 1E6E4-1E6E5 1E6E7-1E6ED 1E6F0-1E6F4 "
    "1E6FE-1E6FF 2B73A-2B73F 2CEA2-2CEAD 323B0-33479"
)
"""The 4,657 letters and numbers of Unicode 17 that are unassigned for the reference."""
_MARKS = "1ACF-1ADD 1AE0-1AEB 10EFA-10EFB 11B60-11B67 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"
"""The 42 combining marks of Unicode 17 that are unassigned for the reference."""
_SIGNS = (
    "20C1 2B96 FBC3-FBD2 FD90-FD91 FDC8-FDCE 10ED0-10ED8 1CCFA-1CCFC 1CEBA-1CED0 1CEE0-1CEF0 1F6D8 1F777-1F77A "
    "1F8D0-1F8D8 1FA54-1FA57 1FA8A 1FA8E 1FAC8 1FACD 1FAEA 1FAEF 1FBFA"
)
"""The 104 symbols of Unicode 17 that are unassigned for the reference."""
_COMPOSING = (
    "7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1ADD 1AE0-1AEB 1DF6-1DFA A82C 105D2 105DA 10D24-10D27 "
    "10D69-10D6D 10EAB-10EAC 10EFA-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11382 11384 1138B 11390 "
    "113BB 113C2 113C5 113C7-113C9 113CE-113D0 1145E 11839-1183A 11930 11935 1193D-1193E 11943 119E0 11A34 11A47 "
    "11A99 11D42 11D44-11D45 11D97 11F41-11F42 1611E-16122 16129 1612F 16D63 16D67-16D69 16FF0-16FF1 1E08F "
    "1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5"
)
"""178 characters of Unicode 10 to 17 that NFC moves or composes; the reference normalizes by Unicode 9."""

DIFFERING: dict[str, str] = {
    "gpt2": _LETTERS,
    "llama3": _LETTERS,
    "qwen2": _LETTERS,
    "qwen3.5": f"{_LETTERS} {_MARKS}",
    "o200k": f"{_LETTERS} {_MARKS}",
    "nemotron": f"{_LETTERS} {_MARKS}",
    "deepseek": f"{_LETTERS} {_MARKS} {_SIGNS}",
    "nfc": f"{_LETTERS} {_COMPOSING}",
    "space-marks": "",
}
"""Code points and ranges, in hexadecimal, by part of a tokenizer."""


@functools.cache
def differing_ranges(parts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return the code points on which the engines can differ.

    Args:
        parts: Names of the tokenizer's parts, as returned by `compared_parts`.

    Returns:
        First and last code point of each range, ascending.
    """
    points = sorted(
        point for part in parts for first, last in read_ranges(DIFFERING[part]) for point in range(first, last + 1)
    )
    return join_points(points)


def read_ranges(text: str) -> list[tuple[int, int]]:
    """Parse ranges in the notation of the tables.

    >>> read_ranges("88F 10940-10959")
    [(2191, 2191), (67904, 67929)]
    """
    pairs = (entry.partition("-") for entry in text.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in pairs]


def join_points(points: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Join adjacent code points into ranges.

    >>> join_points([1, 2, 3, 7])
    ((1, 3), (7, 7))
    """
    ranges: list[tuple[int, int]] = []
    for point in sorted(set(points)):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return tuple(ranges)


# Recognise tokenizers that gigatoken encodes as `tokenizers` does: only parts that were compared are accepted.
#
# gigatoken reads less of tokenizer.json than `tokenizers` does: it ignores a Split's behavior, other steps between
# splits, and `use_regex`. So every part that affects tokens must be one that `python -m tests.agreement` compares; it
# uses the same names for the parts. The patterns are those of published tokenizers.

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

_MODEL_OPTIONS = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges", "vocab", "merges"}  # fmt: skip
_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class Unsuitable(Exception):
    """The reason why gigatoken does not support a tokenizer."""


def compared_parts(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the compared parts that make up a tokenizer.json.

    Args:
        document: The content of the file, which `tokenizers` must be able to load.

    Returns:
        Names of parts, as in DIFFERING.

    Raises:
        Unsuitable: If there is a part that was not compared.
    """
    model = document["model"]
    _check_model_options(model)
    steps, normalizers = _flat(document.get("pre_tokenizer")), _flat(document.get("normalizer"))
    if model.get("byte_fallback"):
        _check_byte_fallback(model)
        return (_space_marks(steps, normalizers),)
    _check_byte_level(model, {token["content"] for token in document.get("added_tokens") or []})
    kinds = [step.get("type") for step in normalizers]
    if set(kinds) - {"NFC"}:
        raise Unsuitable(_not_compared("normalizer", normalizers))
    return (_byte_level_splits(steps), *(["nfc"] if kinds else []))


def adds_prefix_space(document: dict[str, Any]) -> bool:
    """Tell whether a byte-level pre-tokenizer adds a space before the text."""
    return any(step.get("add_prefix_space") for step in _flat(document.get("pre_tokenizer")))


def byte_characters() -> list[str]:
    """Return the character that represents each byte in a byte-level vocabulary, as defined by GPT-2.

    >>> byte_characters()[ord(" ")], byte_characters()[ord("a")]
    ('Ġ', 'a')
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def merge_pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of a BPE model in order; older files write each pair as one string."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or [])
    return [(first, second) for first, second in pairs]


def _check_model_options(model: dict[str, Any]) -> None:
    kind = model.get("type")
    if kind not in {"BPE", None}:  # files from before 2020 have no type
        raise Unsuitable(f"its model is of the type {kind!r}, not BPE")
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(option):
            raise Unsuitable(f"its model has the option {option} = {model[option]!r}")
    unknown = sorted(set(model) - _MODEL_OPTIONS)
    if unknown:
        raise Unsuitable(f"its model has the option {unknown[0]!r}")
    merges = model.get("merges") or []
    if len({merge if isinstance(merge, str) else tuple(merge) for merge in merges}) < len(merges):
        raise Unsuitable("its model lists a merge twice")


def _check_byte_level(model: dict[str, Any], added: set[str]) -> None:
    """Refuse vocabularies that lack bytes, or in which tokens are not written in byte characters."""
    vocabulary = model["vocab"]
    characters = byte_characters()
    missing = next((byte for byte, character in enumerate(characters) if character not in vocabulary), None)
    if missing is not None:
        raise Unsuitable(f"its vocabulary has no token for the byte 0x{missing:02X}")
    if set("".join(vocabulary)) <= set(characters):
        return
    is_byte_level = re.compile(f"[{re.escape(''.join(characters))}]*").fullmatch
    others = [token for token in vocabulary if not is_byte_level(token)]
    for token in others:
        spelt = "".join(characters[byte] for byte in token.encode())
        if token not in added or spelt in vocabulary:
            raise Unsuitable(f"its token {token!r} is not written in byte characters")
    if not set(others).isdisjoint(first + second for first, second in merge_pairs(model)):
        raise Unsuitable("its model merges to tokens that are not written in byte characters")


def _byte_level_splits(steps: Sequence[dict[str, Any]]) -> str:
    """Return the name of the way in which text is split before a byte-level model."""
    splits, last = list(steps[:-1]), steps[-1] if steps else {}
    if last.get("type") == "ByteLevel":
        if not splits and last.get("use_regex", True):
            return "gpt2"
        patterns = tuple((step.get("pattern") or {}).get("Regex") for step in splits)
        name = next((name for name, compared in PATTERNS.items() if patterns == compared), None)
        keeps = [_keeps_all(step, alone=len(splits) == 1) for step in splits]
        if name is not None and all(keeps) and not last.get("use_regex", True) and not last.get("add_prefix_space"):
            return name
    raise Unsuitable(_not_compared("pre-tokenizer", steps))


def _keeps_all(step: dict[str, Any], *, alone: bool) -> bool:
    """Tell whether a Split keeps each match, and the text between matches, as separate pieces.

    Several published tokenizers remove the text between matches, which is empty if the only pattern matches any text.
    """
    if step.get("type") != "Split":
        return False
    behavior = step.get("behavior")
    return behavior == "Isolated" or (alone and behavior == "Removed" and step.get("invert") is True)


def _check_byte_fallback(model: dict[str, Any]) -> None:
    vocabulary = model["vocab"]
    if model.get("ignore_merges"):
        raise Unsuitable("its model has the options byte_fallback and ignore_merges")
    for byte in range(256):
        if f"<0x{byte:02X}>" not in vocabulary and not (byte < 0x80 and chr(byte) in vocabulary):
            raise Unsuitable(f"its vocabulary has no token for the byte 0x{byte:02X}")
    if any(_BYTE_TOKEN.fullmatch(token) for pair in merge_pairs(model) for token in (*pair, "".join(pair))):
        raise Unsuitable("its model merges tokens of single bytes")


def _space_marks(steps: Sequence[dict[str, Any]], normalizers: Sequence[dict[str, Any]]) -> str:
    """Return the name of the way in which spaces become marks before a model with byte fallback."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    prepend = {"type": "Prepend", "prepend": _SPACE_MARK}
    if list(normalizers) not in ([], [replace], [prepend, replace]):
        raise Unsuitable(_not_compared("normalizer", normalizers))
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if not steps or (list(steps) == [split] and normalizers) or (len(steps) == 1 and _is_metaspace(steps[0])):
        return "space-marks"
    raise Unsuitable(_not_compared("pre-tokenizer", steps))


def _is_metaspace(step: dict[str, Any]) -> bool:
    """Tell whether a step is a Metaspace with all options, as `tokenizers` has written it since 0.15."""
    return (
        set(step) == {"type", "replacement", "prepend_scheme", "split"}
        and (step["type"], step["replacement"]) == ("Metaspace", _SPACE_MARK)
        and step["prepend_scheme"] in {"always", "first", "never"}
        and isinstance(step["split"], bool)
    )


def _flat(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer or normalizer in order, with sequences flattened."""
    return [] if step is None else list(_unfolded(step))


def _unfolded(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not isinstance(step, dict):
        raise Unsuitable(f"its parts are written as {type(step).__name__}, not as objects")
    if step.get("type") != "Sequence":
        yield step
        return
    for part in step.get("pretokenizers") or step.get("normalizers") or []:
        yield from _unfolded(part)


def _not_compared(what: str, steps: Sequence[dict[str, Any]]) -> str:
    shown = ", ".join(_shown(step) for step in steps) or "none"
    return f"its {what} is not among those that were compared ({shown})"


@functools.cache
def _pattern_names() -> dict[str, str]:
    return {pattern: name for name, patterns in PATTERNS.items() for pattern in patterns}


def _shown(step: dict[str, Any]) -> str:
    """Return a step in Python's notation, with a known pattern replaced by its name."""
    options = {key: value for key, value in step.items() if key != "type"}
    pattern = options.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(regex, str):
        options["pattern"] = _pattern_names().get(regex, regex if len(regex) <= 40 else f"{regex[:40]}…")
    return f"{step.get('type')}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


# Texts that both engines must encode alike before the fast one is used; they expose every option of tokenizers.

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

_SHORT = ("a", "B", "'s", "1", " ", "\n", "\t", ".", "/", "é", "中", "\u0301", "▁")
"""Every sequence of up to three of these is a probe, which shows where a pre-tokenizer splits."""


def probes_of(added_tokens: Sequence[str]) -> list[str]:
    """Return all probes for a tokenizer.

    Args:
        added_tokens: The strings of its added tokens.
    """
    return [*FIXED_PROBES, *_short_probes(), *_added_token_probes(added_tokens)]


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
