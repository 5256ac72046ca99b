"""Choose the engine that encodes: once, in the driver, from the tokenizer and the installed versions.

The library that defines a tokenizer's format is its reference: `tokenizers`, `sentencepiece` or `tiktoken`. `gigatoken`
is up to 50 times faster but not always the same: it runs no post-processor, accepts some tokenizers that it gets wrong,
and uses another version of Unicode. So it is used only for versions and tokenizer parts that were compared completely
(see `agreement`), and never for a text with a code point on which the two differ. Probes, and later
the audit, catch remaining differences.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.agreement import (
    FIXED_PROBES,
    GIGATOKEN_VERSIONS,
    TOKENIZERS_VERSIONS,
    Unsuitable,
    adds_prefix_space,
    compared_parts,
    differing_ranges,
    probes_of,
)
from dsindex.text.fast_tokenizers import fast_tokenizer
from dsindex.text.tokenizer import LibraryError, library_errors, reference_of, shared_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tokenizers
    from numpy.typing import NDArray

    from dsindex.text.fast_tokenizers import Separator
    from dsindex.text.tokenizer import LibraryName, Tokenizer


# Check that gigatoken 0.10 matches a tokenizer's added tokens as `tokenizers` does.
#
# `tokenizers` first looks for tokens with normalized=false in the raw text, then for the others in the normalized rest.
# gigatoken makes one pass over the raw text and ignores single_word. It also treats added tokens as words of the
# vocabulary.

if TYPE_CHECKING:
    Added = list[dict[str, Any]]


def check_added_tokens(document: dict[str, Any], loaded: tokenizers.Tokenizer) -> None:
    """Refuse added tokens on which the engines can differ.

    Args:
        document: The content of a tokenizer.json, all of whose parts were compared.
        loaded: The same tokenizer, loaded by `tokenizers`.

    Raises:
        Unsuitable: If there is such a token.
    """
    added = document.get("added_tokens") or []
    normalizes = document.get("normalizer") is not None
    contents = [token["content"] for token in added]
    if "" in contents or len(set(contents)) < len(contents):
        raise Unsuitable("its added tokens are empty or equal")
    for token in added:
        if loaded.token_to_id(token["content"]) != token["id"]:
            raise Unsuitable(f"its added token {token['content']!r} has another id than the file says")
    _check_options(added, normalizes=normalizes)
    _check_overlaps(added)
    if not document["model"].get("byte_fallback"):
        _check_words(added, loaded, normalizes=normalizes, prefixes=adds_prefix_space(document))


def _check_options(added: Added, *, normalizes: bool) -> None:
    single = next((token["content"] for token in added if token.get("single_word")), None)
    if single is not None:
        raise Unsuitable(f"its added token {single!r} counts as a whole word only")
    late = next((token["content"] for token in added if token.get("normalized")), None)
    if late is not None and normalizes:
        raise Unsuitable(f"its added token {late!r} is looked for after the normalizer")


def _check_overlaps(added: Added) -> None:
    strips = next((token["content"] for token in added if _strips(token)), None)
    spaced = next((token["content"] for token in added if token["content"] != token["content"].strip()), None)
    if strips is not None and spaced is not None:
        raise Unsuitable(f"its added token {strips!r} strips the spaces that {spaced!r} has")
    raw = [token for token in added if not token.get("normalized")]
    late = [token for token in added if token.get("normalized")]
    for first, second in itertools.product(raw, late):
        if _strips(first) or _strips(second) or _overlap(first["content"], second["content"]):
            raise Unsuitable(f"its added tokens {first['content']!r} and {second['content']!r} can overlap")


def choose_separator(document: dict[str, Any]) -> Separator | None:
    """Return an added token that can be between texts: no other can overlap it, and it takes no space beside it.

    A model with byte fallback adds a space before the first text alone, or before each, and so has none.
    """
    added = document.get("added_tokens") or []
    if document["model"].get("byte_fallback"):
        return None
    for token in added:
        content = token["content"]
        others = (other["content"] for other in added if other is not token)
        if content == content.strip() and not _strips(token) and not any(_overlap(content, each) for each in others):
            return content, token["id"]
    return None


def _strips(token: dict[str, Any]) -> bool:
    return bool(token.get("lstrip") or token.get("rstrip"))


def _overlap(first: str, second: str) -> bool:
    """Tell whether occurrences of two strings can overlap in a text."""
    if first in second or second in first:
        return True
    shorter = min(len(first), len(second))
    return any(first.endswith(second[:n]) or second.endswith(first[:n]) for n in range(1, shorter))


def _check_words(added: Added, loaded: tokenizers.Tokenizer, *, normalizes: bool, prefixes: bool) -> None:
    """Refuse added tokens of one word that NFC or a prefix space can produce from another text.

    The only ASCII characters that NFC produces are `;`, `` ` `` and `K`.
    """
    for token in added:
        content = token["content"]
        by_normalizer = normalizes and not (content.isascii() and content.islower())
        by_prefix = prefixes and content.startswith(" ")
        if (by_normalizer or by_prefix) and len(loaded.pre_tokenizer.pre_tokenize_str(content)) == 1:
            raise Unsuitable(f"its added token {content!r} can come out of another text")


EngineName = Literal["gigatoken", "tokenizers", "sentencepiece", "tiktoken"]
EngineChoice = Literal["auto", "gigatoken", "reference", "tokenizers"]
"""What can be asked for; `tokenizers` is the reference of a tokenizer.json, by its name."""

ASKED_FOR = "asked for"
"""Why a reference encodes that was chosen by name."""
_COSTS: dict[LibraryName, str] = {
    "tokenizers": "about fifty times as long as",
    "tiktoken": "about ten times as long as",
    "sentencepiece": "about twice as long as",
}
"""How long a reference takes beside gigatoken."""

LARGEST_ID_FACTOR = 16
"""Largest id per token of the vocabulary: gigatoken allocates by the largest id, and a huge one takes all memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The chosen engine and its settings; part of a build's fingerprint."""

    name: EngineName
    version: str
    """Version of the engine's package."""
    add_special_tokens: bool
    """Whether the tokenizer's post-processor is applied."""
    prefix: tuple[int, ...] = ()
    """Tokens added before every text, since gigatoken runs no post-processor; empty for a reference."""
    suffix: tuple[int, ...] = ()
    """Tokens added after every text; empty for a reference."""
    reason: str = ""
    """Why gigatoken is not used; empty if it is."""
    reference_version: str
    """Version of the reference, which encodes the texts on which gigatoken can differ."""
    differing: tuple[tuple[int, int], ...] = ()
    """Ranges of code points, first and last: a text that contains one is encoded by the reference."""
    reference: LibraryName = "tokenizers"
    """The library that defines the tokenizer's format."""
    separator: Separator | None = None
    """A token between texts that gigatoken encodes as one; None to encode each by itself."""

    def describe(self) -> str:
        """Return a description of the engine for reports."""
        if self.name == self.reference:
            return f"{self.name} {self.version}, the reference"
        return f"gigatoken {self.version}, and with {self.reference} {self.reference_version} where the two can differ"

    def describe_fallback(self) -> str | None:
        """Return why the fast engine is not used and what that costs; None if it is used, or another was asked for."""
        if self.name != self.reference or self.reason in {"", ASKED_FOR}:
            return None
        return f"{self.name} encodes, which takes {_COSTS[self.reference]} gigatoken: {self.reason}"


def choose_engine(
    tokenizer: Tokenizer,
    requested: EngineChoice,
    *,
    add_special_tokens: bool,
) -> Engine:
    """Choose between the engines.

    Args:
        tokenizer: The tokenizer.
        requested: `auto` chooses gigatoken if it is known to return the same ids as the reference.
        add_special_tokens: Run the post-processor, as Megatron does without --tokenizer-hf-no-include-special-tokens.

    Raises:
        TokenizerError: If the engine requested does not support this tokenizer.
    """
    library = tokenizer.library
    if requested == "tokenizers" != library:
        msg = f"{tokenizer.name}: expected a tokenizer.json for --engine tokenizers; use --engine reference: {library}"
        raise TokenizerError(msg)
    if requested in {"reference", "tokenizers"}:
        return _reference_engine(tokenizer, ASKED_FOR, add_special_tokens=add_special_tokens)
    if requested not in {"auto", "gigatoken"}:
        raise ValueError(f"expected an engine auto, gigatoken, reference or tokenizers, got {requested!r}")
    version, reference_version = importlib.metadata.version("gigatoken"), importlib.metadata.version(library)
    try:
        if library != "tokenizers":
            raise Unsuitable("it is no tokenizer.json")
        _check_versions(version)
        document = json.loads(tokenizer.json)
        prefix, suffix = _added_around(tokenizer, document.get("post_processor")) if add_special_tokens else ((), ())
        separator = choose_separator(document)
        differing = _check_gigatoken(tokenizer, document, separator)
    except Unsuitable as unsuitable:
        if requested == "gigatoken":
            remedy = f"use --engine {'tokenizers' if library == 'tokenizers' else 'reference'}"
            msg = f"{tokenizer.name}: expected a tokenizer that gigatoken supports, but {unsuitable}; {remedy}"
            raise TokenizerError(msg) from unsuitable
        return _reference_engine(tokenizer, str(unsuitable), add_special_tokens=add_special_tokens)
    return Engine(
        name="gigatoken",
        version=version,
        add_special_tokens=add_special_tokens,
        prefix=prefix,
        suffix=suffix,
        reference_version=reference_version,
        differing=differing,
        reference=library,
        separator=separator,
    )


def _reference_engine(tokenizer: Tokenizer, reason: str, *, add_special_tokens: bool) -> Engine:
    version = importlib.metadata.version(tokenizer.library)
    return Engine(
        name=tokenizer.library,
        version=version,
        add_special_tokens=add_special_tokens,
        reason=reason,
        reference_version=version,
        reference=tokenizer.library,
    )


def _check_versions(version: str) -> None:
    reference_version = importlib.metadata.version("tokenizers")
    if version not in GIGATOKEN_VERSIONS or reference_version not in TOKENIZERS_VERSIONS:
        known = f"gigatoken {', '.join(GIGATOKEN_VERSIONS)} with tokenizers {', '.join(TOKENIZERS_VERSIONS)}"
        raise Unsuitable(
            f"gigatoken {version} was not compared with tokenizers {reference_version} (what was: {known})"
        )


def _added_around(tokenizer: Tokenizer, processor: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the fixed tokens that the post-processor adds around a text, from its description, checked by a trial."""
    prefix, suffix = _fixed_tokens(processor)
    plain, processed = (_encode_probes(tokenizer, FIXED_PROBES, add_special_tokens=flag) for flag in (False, True))
    for before, after in zip(plain, processed, strict=True):
        if after.tolist() != [*prefix, *before.tolist(), *suffix]:
            raise Unsuitable("its post-processor does more than to add fixed tokens")
    return prefix, suffix


def _encode_probes(
    tokenizer: Tokenizer, probes: Sequence[str], *, add_special_tokens: bool
) -> list[NDArray[np.uint32]]:
    try:
        tokens, counts = reference_of(tokenizer).encode(probes, add_special_tokens=add_special_tokens)
    except UnencodableError as error:
        raise Unsuitable(f"{tokenizer.library} fails on a text: {next(iter(error.reasons.values()))}") from error
    return np.split(tokens, np.cumsum(counts)[:-1])


def _fixed_tokens(processor: dict[str, Any] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kind = processor.get("type") if isinstance(processor, dict) else None
    if not isinstance(kind, str) and processor is not None:
        raise Unsuitable("its post-processor is written without a type")
    if processor is None or kind == "ByteLevel":  # ByteLevel moves offsets, not ids
        return (), ()
    if kind in {"BertProcessing", "RobertaProcessing"}:
        return (processor["cls"][1],), (processor["sep"][1],)
    if kind == "Sequence":
        # Of two processors that add tokens, the later has no effect; should that change, the trial fails.
        adding = [fixed for fixed in map(_fixed_tokens, processor["processors"]) if fixed != ((), ())]
        return adding[0] if adding else ((), ())
    if kind == "TemplateProcessing":
        return _template_tokens(processor)
    raise Unsuitable(f"its post-processor is of the kind {kind!r}")


def _template_tokens(template: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    around: list[list[int]] = [[]]
    for piece in template["single"]:
        if "Sequence" in piece:
            around.append([])
        else:
            around[-1].extend(template["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    if len(around) != 2:
        raise Unsuitable(f"its post-processor's template holds the text {len(around) - 1} times")
    return tuple(around[0]), tuple(around[1])


def _check_gigatoken(
    tokenizer: Tokenizer, document: dict[str, Any], separator: Separator | None
) -> tuple[tuple[int, int], ...]:
    """Return the code points on which gigatoken can differ, after trying it.

    Args:
        tokenizer: The tokenizer.
        document: The content of its tokenizer.json.
        separator: A token that is between texts.

    Raises:
        Unsuitable: If gigatoken does not support this tokenizer.
    """
    parts = compared_parts(document)
    _check_largest_id(document, tokenizer.vocabulary_size)
    check_added_tokens(document, shared_tokenizer(tokenizer))
    probes = probes_of([token["content"] for token in document.get("added_tokens") or []])
    try:
        with library_errors():
            tokens, lengths = fast_tokenizer(tokenizer).encode(list(map(str.encode, probes)), separator)
    except LibraryError as error:
        summary = " ".join(str(error).partition("Location:")[0].split())
        raise Unsuitable(f"gigatoken says: {summary}") from error
    expected = _encode_probes(tokenizer, probes, add_special_tokens=False)
    for text, got, wanted in zip(probes, np.split(tokens, np.cumsum(lengths)[:-1]), expected, strict=True):
        if not np.array_equal(got, wanted):
            raise Unsuitable(f"gigatoken gives other ids than {tokenizer.library} for {text[:40]!r}")
    return differing_ranges(parts)


def _check_largest_id(document: dict[str, Any], vocabulary_size: int) -> None:
    """Refuse a file with an id so large that gigatoken would take all memory.

    `tokenizers` renumbers an added token if the file does not give it the next id; gigatoken trusts the file.
    """
    numbered = [*document["model"]["vocab"].values(), *(token["id"] for token in document.get("added_tokens") or [])]
    largest = max(numbered, default=0)
    if largest > LARGEST_ID_FACTOR * vocabulary_size:
        raise Unsuitable(f"its ids have holes: {largest} among {vocabulary_size} tokens")
