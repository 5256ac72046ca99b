"""Choose the engine that encodes: once, in the driver, from the tokenizer and the installed versions.

An engine is a package that encodes texts. The library that defines a tokenizer's format is its reference: `tokenizers`,
`sentencepiece` or `tiktoken`. `gigatoken` is up to 50 times as fast, but its tokens can differ: it runs no
post-processor, ignores parts of tokenizer.json (a Split's behavior, other steps between splits, and `use_regex`), and
has a different version of Unicode. It is used only for versions and parts of tokenizers that `python -m
tests.agreement` has compared, and never for a text with a code point on which the two differ. Probes and a sample of
the build's own text catch the remaining differences.

To allow a new release of any of these packages, run that command with it; if the tables are unchanged, add the version.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np

from dsindex.errors import TokenizerError
from dsindex.text.encoders import (
    PREPEND_SPACE,
    REPLACE_SPACES,
    SPACE_MARK,
    Engine,
    FastEngine,
    Unsuitable,
    check_ranks,
    convert_sentencepiece,
    encode_leniently,
    make_encoder,
    require_dense,
)
from dsindex.text.tiktoken_files import PATTERNS, read_definition
from dsindex.text.tokenizer import flat_steps, shared_tokenizer, tokens_around

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tokenizers

    from dsindex.text.encoders import Separator
    from dsindex.text.tokenizer import LibraryName, Tokenizer

__all__ = ["Engine", "Unsuitable"]

EngineChoice = Literal["auto", "gigatoken", "reference", "tokenizers"]
"""Values of the engine option; `tokenizers` names the reference of a tokenizer.json."""


def choose_engine(tokenizer: Tokenizer, choice: EngineChoice, *, add_special_tokens: bool) -> Engine:
    """Choose the engine for a tokenizer.

    Args:
        tokenizer: The tokenizer.
        choice: `auto` chooses gigatoken if it is known to return the same ids as the reference.
        add_special_tokens: Run the post-processor, as Megatron does without --tokenizer-hf-no-include-special-tokens.

    Raises:
        TokenizerError: If the requested engine does not support this tokenizer.
    """
    library = tokenizer.library
    if choice not in get_args(EngineChoice):
        raise ValueError(f"the engine is {choice!r}, not one of {', '.join(get_args(EngineChoice))}")
    if choice == "tokenizers" != library:
        raise _refusal(tokenizer, f"--engine tokenizers needs a tokenizer.json, and this is a tokenizer of {library}")
    version = importlib.metadata.version(library)
    reference = Engine(reference=library, reference_version=version, add_special_tokens=add_special_tokens)
    if choice in {"reference", "tokenizers"}:
        return reference
    try:
        return _try_gigatoken(tokenizer, reference)
    except (Unsuitable, TokenizerError) as error:
        message = str(error.__cause__).partition("Location:")[0].strip()
        reason = str(error) if isinstance(error, Unsuitable) else f"gigatoken says: {message}"
        if choice == "gigatoken":
            raise _refusal(tokenizer, f"gigatoken cannot encode for this tokenizer: {reason}") from error
        return replace(reference, reason=reason)


def _try_gigatoken(tokenizer: Tokenizer, reference: Engine) -> Engine:
    """Return an engine that uses gigatoken instead of the reference, after comparing the two on probes.

    Raises:
        Unsuitable: If it is not known to return the same ids.
        TokenizerError: If it cannot load the tokenizer.
    """
    library, version = tokenizer.library, importlib.metadata.version("gigatoken")
    if version not in GIGATOKEN_VERSIONS or reference.version not in COMPARED_VERSIONS[library]:
        pairs = f"gigatoken {', '.join(GIGATOKEN_VERSIONS)} with {library} {', '.join(COMPARED_VERSIONS[library])}"
        raise Unsuitable(f"gigatoken {version} was not compared with {library} {reference.version} (what was: {pairs})")
    fast = FastEngine(version=version)
    if library == "tokenizers":
        document = msgspec.json.decode(tokenizer.content)
        parts = compared_parts(document)
        check_added_tokens(document, shared_tokenizer(tokenizer))
        affixes = tokens_around(shared_tokenizer(tokenizer)) if reference.add_special_tokens else ((), ())
        if affixes is None:
            raise Unsuitable("its post-processor does more than to add tokens around a text")
        fast = replace(fast, prefix=affixes[0], suffix=affixes[1])
    elif library == "sentencepiece":
        content, strings = convert_sentencepiece(tokenizer)
        document, parts, fast = msgspec.json.decode(content), ("sentencepiece",), replace(fast, unsafe_strings=strings)
        document["added_tokens"].reverse()  # so that the separator is tried first
    else:
        encoding = read_definition(tokenizer.content)
        parts = (f"tiktoken {check_ranks(encoding)}",)
        special_tokens = [{"content": token, "id": number} for token, number in encoding.special_tokens.items()]
        document = {"added_tokens": special_tokens}
    ranges = tuple(ends for part in parts for ends in read_ranges(DIFFERING[part]))
    engine = replace(reference, fast=replace(fast, unsafe_ranges=ranges, separator=choose_separator(document)))
    probes = probes_of([token["content"] for token in document.get("added_tokens") or []])
    del document  # it may be large, and gigatoken parses a copy of its own
    if (different_text := _find_difference(tokenizer, engine, probes)) is not None:
        raise Unsuitable(f"gigatoken gives other ids than {library} for {different_text[:40]!r}")
    return engine


def audit(tokenizer: Tokenizer, engine: Engine, texts: Sequence[str]) -> None:
    """Compare an engine with its reference on a sample of the build's text; does nothing if they are the same.

    Raises:
        TokenizerError: At the first text that they encode differently.
    """
    if engine.fast is not None and (text := _find_difference(tokenizer, engine, texts)) is not None:
        raise difference_error(tokenizer, engine, text)


def difference_error(tokenizer: Tokenizer, engine: Engine, text: str) -> TokenizerError:
    """Return the error about a text that an engine encodes differently from the reference."""
    text_excerpt = repr(text) if len(text) <= 120 else f"{text[:60]!r} … {text[-60:]!r}"
    return _refusal(tokenizer, f"{engine.name} and {engine.reference} return different tokens for {text_excerpt}")


def _refusal(tokenizer: Tokenizer, problem: str) -> TokenizerError:
    return TokenizerError(f"{tokenizer.name}: {problem}", hint="use --engine reference")


def _find_difference(tokenizer: Tokenizer, engine: Engine, texts: Sequence[str]) -> str | None:
    """Return the first text that an engine encodes differently from the reference, if there is one.

    Texts on which the reference fails are skipped, since there is nothing to compare.
    """
    reference = make_encoder(tokenizer, replace(engine, fast=None))
    reference_batch, texts = encode_leniently(reference, texts)
    engine_batch = make_encoder(tokenizer, engine).encode(texts)
    triples = zip(texts, engine_batch.split(), reference_batch.split(), strict=True)
    return next((text for text, ids, reference_ids in triples if not np.array_equal(ids, reference_ids)), None)


def clip_texts(texts: Sequence[str], *, max_characters: int, max_total: int) -> list[str]:
    """Cut each text to `max_characters`, then drop texts from the end until all together have at most `max_total`."""
    sizes = itertools.accumulate(min(len(text), max_characters) for text in texts)
    return [text[:max_characters] for text, size in zip(texts, sizes, strict=True) if size <= max_total]


# The compared versions, and the code points on which the libraries differ: they have different versions of Unicode, so
# a letter in one is unassigned in the other.

GIGATOKEN_VERSIONS = ("0.10.0",)
COMPARED_VERSIONS: dict[LibraryName, tuple[str, ...]] = {
    "tokenizers": ("0.22.0", "0.22.1", "0.22.2", "0.23.1", "0.23.2", "0.23.3"),
    "tiktoken": ("0.11.0", "0.12.0", "0.13.0", "0.14.0"),
    "sentencepiece": ("0.2.0", "0.2.1", "0.2.2", "0.2.3"),
}
"""Versions of the references; all pairs give the tables below."""

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
    "sentencepiece": "2581",
    "tiktoken gpt2": _LETTERS,
    "tiktoken gpt4": _LETTERS,
    "tiktoken olmo3": _LETTERS,
    "tiktoken o200k": f"{_LETTERS} {_MARKS}",
    "tiktoken nemotron": f"{_LETTERS} {_MARKS}",
}
"""Part of a tokenizer → code points on which gigatoken differs from the reference, in hexadecimal."""


def read_ranges(text: str) -> list[tuple[int, int]]:
    """Parse ranges in the notation of the tables.

    >>> read_ranges("88F 10940-10959")
    [(2191, 2191), (67904, 67929)]
    """
    pairs = (entry.partition("-") for entry in text.split())
    return [(int(first, 16), int(last or first, 16)) for first, _, last in pairs]


# The parts that were compared.

_MODEL_OPTIONS = {"type", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}


def compared_parts(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the compared parts that make up a tokenizer.json.

    Args:
        document: The content of the file, which `tokenizers` must be able to load.

    Returns:
        Names of parts, as in DIFFERING.

    Raises:
        Unsuitable: If a part was not compared.
    """
    model, added_texts = document["model"], {token["content"] for token in document.get("added_tokens") or []}
    _check_model(model)
    steps, normalizers = flat_steps(document.get("pre_tokenizer")), flat_steps(document.get("normalizer"))
    if model.get("byte_fallback"):
        _check_space_marks(steps, normalizers)
        return ("space-marks",)
    characters = set(byte_characters())
    for token in model["vocab"]:
        if not characters.issuperset(token) and token not in added_texts:
            raise Unsuitable(f"its token {token!r} is not written in byte characters")
    kinds = [step.get("type") for step in normalizers]
    if any(kind != "NFC" for kind in kinds):
        raise _unsuitable_steps("normalizer", normalizers)
    return (_name_splits(steps), *(["nfc"] if kinds else []))


def _check_model(model: dict[str, Any]) -> None:
    """Refuse a model that is not plain BPE or lacks the token of a byte; for an ASCII byte, the character will do."""
    kind, vocabulary, has_fallback = model.get("type"), model["vocab"], model.get("byte_fallback")
    if kind not in ("BPE", None):  # files from before 2020 have no type
        raise Unsuitable(f"its model is of the type {kind!r}, not BPE")
    for option, value in model.items():
        if value and (option not in _MODEL_OPTIONS or (option == "ignore_merges" and has_fallback)):
            raise Unsuitable(f"its model has the option {option} = {str(value)[:40]!r}")
    merges = model.get("merges") or []
    if len({merge if isinstance(merge, str) else tuple(merge) for merge in merges}) < len(merges):
        raise Unsuitable("its model lists a merge twice")
    require_dense(max(vocabulary.values(), default=0), len(vocabulary))
    for byte, character in enumerate(byte_characters()):
        token = f"<0x{byte:02X}>" if has_fallback else character
        if token not in vocabulary and not (byte < 0x80 and chr(byte) in vocabulary):
            raise Unsuitable(f"its vocabulary has no token for the byte 0x{byte:02X}")


def byte_characters() -> list[str]:
    """Return the character that represents each byte in a byte-level vocabulary, as defined by GPT-2.

    >>> byte_characters()[ord(" ")], byte_characters()[ord("a")]
    ('Ġ', 'a')
    """
    visible_bytes = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden_bytes = [byte for byte in range(256) if byte not in visible_bytes]
    return [chr(byte) if byte in visible_bytes else chr(256 + hidden_bytes.index(byte)) for byte in range(256)]


def _name_splits(steps: list[dict[str, Any]]) -> str:
    """Return the name of the patterns by which text is split before a byte-level model.

    Several published tokenizers remove the text between matches; it is empty if the only pattern matches all text.
    """
    splits, last = steps[:-1], steps[-1] if steps else {}
    if last.get("type") == "ByteLevel":
        uses_regex = last.get("use_regex", True)
        if uses_regex and not splits:
            return "gpt2"
        if not uses_regex and not last.get("add_prefix_space"):
            for name, patterns in PATTERNS.items():
                removing_splits = _splits(patterns, behavior="Removed", invert=True)
                if splits == _splits(patterns) or (len(patterns) == 1 and splits == removing_splits):
                    return name
    raise _unsuitable_steps("pre-tokenizer", steps)


def _splits(patterns: Sequence[str], *, behavior: str = "Isolated", invert: bool = False) -> list[dict[str, Any]]:
    options = {"behavior": behavior, "invert": invert}
    return [{"type": "Split", "pattern": {"Regex": pattern}, **options} for pattern in patterns]


def _check_space_marks(steps: list[dict[str, Any]], normalizers: list[dict[str, Any]]) -> None:
    """Check how spaces become marks before a model with byte fallback."""
    if normalizers not in ([], [REPLACE_SPACES], [PREPEND_SPACE, REPLACE_SPACES]):
        raise _unsuitable_steps("normalizer", normalizers)
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    metaspaces = (
        [{"type": "Metaspace", "replacement": SPACE_MARK, "prepend_scheme": scheme, "split": flag}]
        for scheme in ("always", "first", "never")
        for flag in (True, False)
    )
    if steps and not (steps == [split] and normalizers) and steps not in metaspaces:
        raise _unsuitable_steps("pre-tokenizer", steps)


def adds_prefix_space(document: dict[str, Any]) -> bool:
    """Tell whether a byte-level pre-tokenizer adds a space before the text."""
    return any(step.get("add_prefix_space") for step in flat_steps(document.get("pre_tokenizer")))


def _unsuitable_steps(part: str, steps: Sequence[dict[str, Any]]) -> Unsuitable:
    step_types = ", ".join(str(step.get("type")) for step in steps) or "none"
    return Unsuitable(f"its {part} is not among those that were compared ({step_types})")


# Added tokens: `tokenizers` first finds tokens with normalized=false in the raw text, then other tokens in the
# normalized rest. gigatoken makes one pass over the raw text, ignores single_word, and treats added tokens as words.


def check_added_tokens(document: dict[str, Any], loaded: tokenizers.Tokenizer) -> None:
    """Refuse added tokens on which the engines can differ.

    Args:
        document: The content of a tokenizer.json whose parts were all compared.
        loaded: The same tokenizer, loaded by `tokenizers`.

    Raises:
        Unsuitable: If there is such a token.
    """
    added_tokens = document.get("added_tokens") or []
    normalizes, prefixes = document.get("normalizer") is not None, adds_prefix_space(document)
    is_byte_level = not document["model"].get("byte_fallback")
    strip_token = next((token["content"] for token in added_tokens if _strips_spaces(token)), None)
    for token in added_tokens:
        content = token["content"]
        # The only ASCII characters that NFC produces are `;`, `` ` `` and `K`.
        is_normalized = normalizes and not (content.isascii() and content.islower())
        may_result = is_byte_level and (is_normalized or (prefixes and content.startswith(" ")))
        is_word = may_result and len(loaded.pre_tokenizer.pre_tokenize_str(content)) == 1
        for has_fault, fault in (
            (loaded.token_to_id(content) != token["id"], "has another id than the file says"),
            (token.get("single_word"), "counts as a whole word only"),
            (token.get("normalized") and normalizes, "is looked for after the normalizer"),
            (strip_token is not None and content != content.strip(), f"has spaces that {strip_token!r} strips"),
            (is_word, "can come out of another text"),
        ):
            if has_fault:
                raise Unsuitable(f"its added token {content!r} {fault}")
    late_tokens = [token["content"] for token in added_tokens if token.get("normalized")]
    raw_tokens = [token["content"] for token in added_tokens if not token.get("normalized")]
    if late_tokens and raw_tokens and strip_token is not None:
        raise Unsuitable(f"its added token {strip_token!r} strips spaces, and other added tokens are looked for later")
    if late_tokens and raw_tokens and (pair := find_overlap(raw_tokens, late_tokens)) is not None:
        raise Unsuitable(f"its added tokens {pair[0]!r} and {pair[1]!r} can overlap")


_TRIED_SEPARATORS = 8
"""Added tokens to try, each against all other added tokens; in published tokenizers the first one works."""
_MAX_SQUARED_LENGTHS = 1 << 24


def find_overlap(raw_tokens: Sequence[str], late_tokens: Sequence[str]) -> tuple[str, str] | None:
    """Return two strings, one from each list, whose occurrences can overlap in a text; None if no two can.

    Time and memory grow with the sum of the squared lengths, not with the number of pairs.

    >>> find_overlap(["<a>", "bc"], ["x<", "cd"])
    ('bc', 'cd')

    Raises:
        Unsuitable: If the comparison would take seconds.
    """
    if sum(len(content) ** 2 for content in (*raw_tokens, *late_tokens)) > _MAX_SQUARED_LENGTHS:
        raise Unsuitable(f"its {len(raw_tokens) + len(late_tokens)} added tokens are too many to compare")
    for first, second in ((raw_tokens, late_tokens), (late_tokens, raw_tokens)):
        strings = set(second)
        begins = {content[:end]: content for content in second for end in range(1, len(content) + 1)}
        for content in first:
            for begin, end in itertools.combinations(range(len(content) + 1), 2):
                piece = content[begin:end]
                if piece in strings or (end == len(content) and piece in begins):
                    return content, piece if piece in strings else begins[piece]
    return None


def choose_separator(document: dict[str, Any]) -> Separator | None:
    """Return an added token that can separate texts: it overlaps no added token, not even itself, and strips no space.

    A tokenizer that adds a space only before the first text has no separator.
    """
    if any(step.get("prepend_scheme") == "first" for step in flat_steps(document.get("pre_tokenizer"))):
        return None
    added_tokens = document.get("added_tokens") or []
    for token in added_tokens[:_TRIED_SEPARATORS]:
        content = token["content"]
        overlaps = any(_can_overlap(content, other_token["content"]) for other_token in added_tokens)
        if content == content.strip() and not _strips_spaces(token) and not overlaps:
            return content, token["id"]
    return None


def _strips_spaces(token: dict[str, Any]) -> bool:
    return bool(token.get("lstrip") or token.get("rstrip"))


def _can_overlap(first: str, second: str) -> bool:
    """Tell whether occurrences of two strings, or two occurrences of one string, can overlap in a text."""
    if first != second and (first in second or second in first):
        return True
    min_length = min(len(first), len(second))
    return any(first.endswith(second[:n]) or second.endswith(first[:n]) for n in range(1, min_length))


# Texts that both engines must encode alike before gigatoken is used; they exercise every option of tokenizers.

PROBED_ADDED_TOKENS = 64
"""Limit on the added tokens to probe, so that probing takes at most 0.1 s."""

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

_SNIPPETS = ("a", "B", "'s", "1", " ", "\n", "\t", ".", "/", "é", "中", "\u0301", "▁")
"""All sequences of up to three of these are probes, to show where a pre-tokenizer splits."""


def probes_of(added_tokens: Sequence[str]) -> list[str]:
    """Return all probes for a tokenizer.

    Args:
        added_tokens: The strings of its added tokens.
    """
    short_texts = ("".join(letters) for length in (1, 2, 3) for letters in itertools.product(_SNIPPETS, repeat=length))
    probes = [*FIXED_PROBES, *short_texts]
    for content in added_tokens[:PROBED_ADDED_TOKENS]:
        probes += (content, f" {content} ", f"a{content}b", f"{content * 2}\n{content}")
        probes += (f"é {content[:-1]}{content}\u3000x", unicodedata.normalize("NFD", content))
        probes += (content.lower(), content.upper())
    return probes
