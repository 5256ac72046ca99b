"""Texts of token ids, by the tokenizer that a dataset's manifest names, or by one that is given.

The manifest (docs/formats.md) names a tokenizer and its SHA-256, by which it is looked for
(dsindex.text.recorded_tokenizer).
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.errors import TokenizerError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.json_text import encode_json
from dsindex.store.urls import local_paths

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from dsindex.text.recorded_tokenizer import NamedTokenizer
    from dsindex.text.tokenizer import Tokenizer


TokenizerLike: TypeAlias = "Tokenizer | str | os.PathLike[str] | Any"
"""A tokenizer, the path of one or its name in the hub; or an object with `decode`, as of tokenizers or transformers."""


def decode_tokens(tokens: ArrayLike, *, prefix: str, tokenizer: TokenizerLike | None = None) -> str:
    """Return the text of token ids, with special tokens by their names.

    Args:
        tokens: Token ids; negative ones, which pad samples, are left out.
        prefix: Path of the dataset without suffix; its manifest names the tokenizer.
        tokenizer: The tokenizer to use, whatever the manifest names.

    Raises:
        TokenizerError: If no tokenizer is named or found, it is another one, or it does not have an id.
        FormatError: If the manifest is damaged.
        TypeError: If the ids are not integers, or the tokenizer is something else.
    """
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"{prefix}: expected integer tokens to decode, got {ids.dtype}")
    kept = ids[ids >= 0] if ids.dtype.kind == "i" else ids
    if tokenizer is None:
        return _decode_known(_load_recorded(prefix, os.getcwd()), kept)
    if isinstance(tokenizer, str | os.PathLike):
        return _decode_known(_load_given(os.fspath(tokenizer)), kept)
    from dsindex.text.tokenizer import Tokenizer

    if isinstance(tokenizer, Tokenizer):
        return _decode_known(tokenizer, kept)
    if not hasattr(tokenizer, "decode"):
        raise TypeError(f"tokenizer: expected a path or a tokenizer with decode(), got {type(tokenizer).__name__}")
    return str(tokenizer.decode(kept.tolist(), skip_special_tokens=False))


def read_named_tokenizer(prefix: str) -> NamedTokenizer | None:
    """Return the tokenizer in the manifest of a dataset; None if there is no manifest, or it names none.

    Raises:
        FormatError: If the manifest is damaged.
    """
    recorded = read_manifest(prefix)
    if recorded is None or recorded.content.tokenizer is None:
        return None
    from dsindex.text.recorded_tokenizer import NamedTokenizer  # not needed to read tokens

    tokenizer, run = recorded.content.tokenizer, recorded.run
    return NamedTokenizer(
        name=tokenizer.name,
        sha256=tokenizer.sha256,
        revision=tokenizer.revision,
        options=encode_json(tokenizer.options or {}),
        path=run.tokenizer_path,
        first_input=next((path for path, *_ in run.plan.inputs), None),
    )


@functools.lru_cache(maxsize=8)
def _load_recorded(prefix: str, working_folder: str) -> Tokenizer:
    """Load the tokenizer that the manifest of a dataset names.

    Args:
        prefix: The dataset.
        working_folder: The folder from which paths count, which is part of what the result depends on.

    Raises:
        TokenizerError: If none is named or found, or it is another one.
    """
    from dsindex.text.recorded_tokenizer import load_recorded

    named = read_named_tokenizer(prefix)
    if named is None:
        raise TokenizerError(
            f"{manifest_path(prefix)}: expected a manifest that names the dataset's tokenizer, found none; pass "
            f"tokenizer=, the path of the tokenizer"
        )
    return load_recorded(named, prefix if local_paths([prefix]) else os.path.join(working_folder, named.name))


@functools.lru_cache(maxsize=8)
def _load_given(path: str) -> Tokenizer:
    """Load a tokenizer once for a process."""
    from dsindex.text.tokenizer import load_tokenizer

    return load_tokenizer(path)


def _decode_known(tokenizer: Tokenizer, ids: NDArray[Any]) -> str:
    """Return the text of ids, all of which the tokenizer must have."""
    from dsindex.text.tokenizer import decode

    largest = int(ids.max()) if ids.size else 0
    if largest >= tokenizer.vocabulary_size and not has_id(tokenizer, largest):
        raise TokenizerError(
            f"{tokenizer.name}: expected ids below its {tokenizer.vocabulary_size:,} tokens, got {largest}; the "
            f"dataset was made with another tokenizer: pass that one as tokenizer="
        )
    return decode(tokenizer, ids.tolist())


def has_id(tokenizer: Tokenizer, number: int) -> bool:
    """Tell whether a tokenizer whose ids have holes has an id."""
    from dsindex.text.tokenizer import shared_tokenizer

    return tokenizer.library == "tokenizers" and shared_tokenizer(tokenizer).id_to_token(number) is not None
