"""Recognise tokenizers that gigatoken encodes as `tokenizers` does: only parts that were compared are accepted.

gigatoken reads less of tokenizer.json than `tokenizers` does: it ignores a Split's behavior, other steps between
splits, and `use_regex`. So every part that affects tokens must be one that `python -m tests.agreement` compares, which
uses the same names for the parts. The patterns are those of published tokenizers.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        Names of parts in `dsindex.text.agreement`.

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
        reason = f"its model is of the type {kind!r}, not BPE"
        raise Unsuitable(reason)
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(option):
            reason = f"its model has the option {option} = {model[option]!r}"
            raise Unsuitable(reason)
    unknown = sorted(set(model) - _MODEL_OPTIONS)
    if unknown:
        reason = f"its model has the option {unknown[0]!r}"
        raise Unsuitable(reason)
    merges = model.get("merges") or []
    if len({merge if isinstance(merge, str) else tuple(merge) for merge in merges}) < len(merges):
        reason = "its model lists a merge twice"
        raise Unsuitable(reason)


def _check_byte_level(model: dict[str, Any], added: set[str]) -> None:
    """Refuse vocabularies that lack bytes, or in which tokens are not written in byte characters."""
    vocabulary = model["vocab"]
    characters = byte_characters()
    missing = next((byte for byte, character in enumerate(characters) if character not in vocabulary), None)
    if missing is not None:
        reason = f"its vocabulary has no token for the byte 0x{missing:02X}"
        raise Unsuitable(reason)
    if set("".join(vocabulary)) <= set(characters):
        return
    is_byte_level = re.compile(f"[{re.escape(''.join(characters))}]*").fullmatch
    others = [token for token in vocabulary if not is_byte_level(token)]
    for token in others:
        spelt = "".join(characters[byte] for byte in token.encode())
        if token not in added or spelt in vocabulary:
            reason = f"its token {token!r} is not written in byte characters"
            raise Unsuitable(reason)
    if not set(others).isdisjoint(first + second for first, second in merge_pairs(model)):
        reason = "its model merges to tokens that are not written in byte characters"
        raise Unsuitable(reason)


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
        reason = "its model has the options byte_fallback and ignore_merges"
        raise Unsuitable(reason)
    for byte in range(256):
        if f"<0x{byte:02X}>" not in vocabulary and not (byte < 0x80 and chr(byte) in vocabulary):
            reason = f"its vocabulary has no token for the byte 0x{byte:02X}"
            raise Unsuitable(reason)
    if any(_BYTE_TOKEN.fullmatch(token) for pair in merge_pairs(model) for token in (*pair, "".join(pair))):
        reason = "its model merges tokens of single bytes"
        raise Unsuitable(reason)


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
