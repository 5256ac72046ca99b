"""Check that gigatoken 0.10 matches a tokenizer's added tokens as `tokenizers` does.

`tokenizers` first looks for tokens with normalized=false in the raw text, then for the others in the normalized rest.
gigatoken makes one pass over the raw text and ignores single_word. It also treats added tokens as words of the
vocabulary.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dsindex.text.structures import Unsuitable, adds_prefix_space

if TYPE_CHECKING:
    import tokenizers

    Added = list[dict[str, Any]]


def check_added_tokens(document: dict[str, Any], loaded: tokenizers.Tokenizer | None) -> None:
    """Refuse added tokens on which the engines can differ.

    Args:
        document: The content of a tokenizer.json, all of whose parts were compared.
        loaded: The same tokenizer, loaded by `tokenizers`; None for one that was converted from another format, in
            which ids can have holes that `tokenizers` would close.

    Raises:
        Unsuitable: If there is such a token.
    """
    added = document.get("added_tokens") or []
    normalizes = document.get("normalizer") is not None
    _check_contents(added)
    if loaded is not None:
        _check_ids(added, loaded)
    _check_options(added, normalizes=normalizes)
    _check_overlaps(added)
    if loaded is not None and not document["model"].get("byte_fallback"):
        _check_words(added, loaded, normalizes=normalizes, prefixes=adds_prefix_space(document))


def _check_contents(added: Added) -> None:
    contents = [token["content"] for token in added]
    if "" in contents or len(set(contents)) < len(contents):
        reason = "its added tokens are empty or equal"
        raise Unsuitable(reason)


def _check_ids(added: Added, loaded: tokenizers.Tokenizer) -> None:
    for token in added:
        if loaded.token_to_id(token["content"]) != token["id"]:
            reason = f"its added token {token['content']!r} has another id than the file says"
            raise Unsuitable(reason)


def _check_options(added: Added, *, normalizes: bool) -> None:
    single = next((token["content"] for token in added if token.get("single_word")), None)
    if single is not None:
        reason = f"its added token {single!r} counts as a whole word only"
        raise Unsuitable(reason)
    late = next((token["content"] for token in added if token.get("normalized")), None)
    if late is not None and normalizes:
        reason = f"its added token {late!r} is looked for after the normalizer"
        raise Unsuitable(reason)


def _check_overlaps(added: Added) -> None:
    strips = next((token["content"] for token in added if _strips(token)), None)
    spaced = next((token["content"] for token in added if token["content"] != token["content"].strip()), None)
    if strips is not None and spaced is not None:
        reason = f"its added token {strips!r} strips the spaces that {spaced!r} has"
        raise Unsuitable(reason)
    raw = [token for token in added if not token.get("normalized")]
    late = [token for token in added if token.get("normalized")]
    for first, second in itertools.product(raw, late):
        if _strips(first) or _strips(second) or _overlap(first["content"], second["content"]):
            reason = f"its added tokens {first['content']!r} and {second['content']!r} can overlap"
            raise Unsuitable(reason)


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
            reason = f"its added token {content!r} can come out of another text"
            raise Unsuitable(reason)
