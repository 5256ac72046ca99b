"""What a tokenizer's folder has beside its tokenizer.json that would give other tokens, and is worth telling.

`dsindex.text.tokenizer_file` refuses folders whose files contradict each other. Here are files that another program
may take instead: a SentencePiece model, or the class of transformers that tokenizer_config.json names. What these
classes do was tried with transformers 5.23.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from dsindex.errors import TokenizerError
from dsindex.text.tokenizer import load_tokenizer, shared_sentencepiece, shared_tokenizer
from dsindex.text.tokenizer_file import find_tokenizer, read_folder_config, token_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.text.tokenizer import Tokenizer

_TEXTS = (
    "The quick brown fox doesn't jump; it jumped.",
    " a space before, and  two spaces",
    "def f(x):\n    return x**2  # ok\n",
    "1234567890 3.14",
    "Grüße, Привет, 你好",
)
"""Ordinary texts, on which formats that hold the same tokenizer agree."""

_BEGINS_WITH_BOS = frozenset({"CodeLlamaTokenizer"})
_ADDS_SPACE = {"LlamaTokenizer": True, "CodeLlamaTokenizer": True, "GemmaTokenizer": False}
"""Classes that set up the space before a text themselves, and whether they add one if the folder does not say."""
_ADDS_SPACE_IF_TOLD = frozenset({"GPT2Tokenizer", "Qwen2Tokenizer"})
_FOLLOWS_THE_FOLDER = frozenset({"LlamaTokenizer", "CodeLlamaTokenizer", *_ADDS_SPACE_IF_TOLD})
"""Classes that heed `add_prefix_space`."""


def describe_folder(path: str, tokenizer: Tokenizer) -> list[str]:
    """Return sentences about what a folder has beside the tokenizer.json that was loaded from it; usually none.

    Args:
        path: What `load_tokenizer` was given.
        tokenizer: What it returned.
    """
    folder = find_tokenizer(path).path if tokenizer.library == "tokenizers" else None
    if folder is None or not os.path.isfile(os.path.join(folder, "tokenizer.json")):
        return []
    return [*_other_models(folder, tokenizer), *_other_class(folder, tokenizer)]


def _other_models(folder: str, tokenizer: Tokenizer) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        file = os.path.join(folder, name)
        if not name.endswith(".model") or not os.path.isfile(file):
            continue
        try:
            other = load_tokenizer(file)
        except TokenizerError:
            continue  # ranks that need an encoding, or a file that nobody asked for
        if other.library != "sentencepiece":
            continue
        for text in _TEXTS:
            ours = shared_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids
            if ours != shared_sentencepiece(other).encode(text):
                yield (
                    f"{folder}: tokenizer.json is used, and {name} beside it gives other tokens, as for {text!r}; to "
                    f"use that one, name it: --tokenizer-model {file}"
                )
                break


def _other_class(folder: str, tokenizer: Tokenizer) -> Iterator[str]:
    config = read_folder_config(folder)
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    beginning = f"{folder}: tokenizer.json is used as it is, and tokenizer_config.json names {name}, with which"
    document = json.loads(tokenizer.json)
    if name in _ADDS_SPACE and _has_byte_level(document):
        return  # such a class leaves a tokenizer.json of another family alone
    loaded = shared_tokenizer(tokenizer)
    bos = loaded.token_to_id(token_text(config.get("bos_token")) or "")
    if name in _BEGINS_WITH_BOS and bos is not None and loaded.encode("a text").ids[:1] != [bos]:
        yield f"{beginning} transformers begins every text with {token_text(config.get('bos_token'))!r}"
    told = config.get("add_prefix_space") if name in _FOLLOWS_THE_FOLDER else None
    wanted = told if isinstance(told, bool) else _ADDS_SPACE.get(name)
    if wanted is not None and wanted != _adds_space(document):
        yield f"{beginning} transformers {'adds a' if wanted else 'adds no'} space before every text"


def _has_byte_level(document: dict[str, Any]) -> bool:
    return any(part.get("type") == "ByteLevel" for part in _parts(document.get("pre_tokenizer")))


def _adds_space(document: dict[str, Any]) -> bool:
    parts = [*_parts(document.get("pre_tokenizer")), *_parts(document.get("normalizer"))]
    return any(
        part.get("add_prefix_space") is True
        or part.get("prepend_scheme") in {"always", "first"}
        or part.get("type") == "Prepend"
        for part in parts
    )


def _parts(part: object) -> Iterator[dict[str, Any]]:
    """Yield a pre-tokenizer or normalizer, or those in a sequence of them."""
    if isinstance(part, dict):
        inner = [*(part.get("pretokenizers") or []), *(part.get("normalizers") or [])]
        yield part
        for entry in inner:
            yield from _parts(entry)
