"""Decode token ids with the tokenizer that a dataset's manifest names, or with another one.

The manifest (docs/formats.md) names a tokenizer and its SHA-256. `load_recorded_tokenizer` looks for the tokenizer, and
accepts only one with this hash.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.errors import DsindexError, TokenizerError
from dsindex.formats.manifest import manifest_path, read_manifest
from dsindex.store.urls import local_paths

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dsindex.formats.manifest import Manifest, RecordedTokenizer, Run
    from dsindex.text.tokenizer import Tokenizer


LEVELS_ABOVE = 3
"""Number of folders above a dataset, and above its first input, to search for a tokenizer."""
TokenizerLike: TypeAlias = "Tokenizer | str | os.PathLike[str] | Any"
"""A tokenizer, its path or hub name, or an object with `decode`, such as one of tokenizers or transformers."""


def decode_tokens(tokens: ArrayLike, *, prefix: str, tokenizer: TokenizerLike | None = None) -> str:
    """Return the text of token ids, with special tokens by their names.

    Args:
        tokens: Token ids; negative ones, which pad samples, are left out.
        prefix: Path of the dataset without suffix; its manifest names the tokenizer.
        tokenizer: The tokenizer to use instead of the one that the manifest names.

    Raises:
        TokenizerError: If no tokenizer is named, none with its hash is found, or an id is not in the vocabulary.
        FormatError: If the manifest is damaged.
        TypeError: If the ids are not integers, or the tokenizer has no `decode`.
    """
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu" and ids.size:
        raise TypeError(f"{prefix}: tokens of type {ids.dtype} cannot be decoded")
    token_ids = ids[ids >= 0] if ids.dtype.kind == "i" else ids
    if tokenizer is None:
        tokenizer = _load_recorded_once(prefix, os.getcwd())
    elif isinstance(tokenizer, str | os.PathLike):
        tokenizer = _load_path_once(os.fspath(tokenizer), os.getcwd())
    from dsindex.text.tokenizer import Tokenizer, decode, shared_tokenizer

    if not isinstance(tokenizer, Tokenizer):
        if not hasattr(tokenizer, "decode"):
            raise TypeError(f"tokenizer: {type(tokenizer).__name__} is not a path, and has no decode()")
        return str(tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))
    largest_id = int(token_ids.max()) if token_ids.size else 0
    # A vocabulary may have holes, so an id may be larger than the number of tokens.
    is_known = tokenizer.library == "tokenizers" and shared_tokenizer(tokenizer).id_to_token(largest_id) is not None
    if largest_id >= tokenizer.vocabulary_size and not is_known:
        raise TokenizerError(
            f"{tokenizer.name}: id {largest_id} is not one of its {tokenizer.vocabulary_size:,} tokens",
            hint="the dataset was made with another tokenizer; pass that one as tokenizer=",
        )
    return decode(tokenizer, token_ids.tolist())


def load_recorded_tokenizer(prefix: str, manifest: Manifest | None, *, path: str | None = None) -> Tokenizer:
    """Load the tokenizer that a manifest names.

    A file is looked for at its recorded path, then by name in the working folder and in the folders above the dataset
    and its first input. A tokenizer from the Hugging Face Hub is taken from the local cache, by its commit.

    Args:
        prefix: The dataset's path without suffix.
        manifest: The dataset's manifest.
        path: Path of the tokenizer; None to look for it.

    Raises:
        TokenizerError: If the manifest names no tokenizer, or no tokenizer with the recorded hash was found.
    """
    hint = "give its path with --tokenizer-model, in Python with tokenizer="
    recorded = None if manifest is None else manifest.content.tokenizer
    if manifest is None or recorded is None:
        raise TokenizerError(f"{manifest_path(prefix)}: no manifest names the dataset's tokenizer", hint=hint)
    failures = []
    for candidate in _candidate_paths(prefix, recorded, manifest.run) if path is None else [path]:
        try:
            tokenizer = load_with_options(recorded, candidate, is_user_path=path is not None)
        except (DsindexError, OSError) as error:
            failures.append(error.sentence if isinstance(error, DsindexError) else str(error))
            continue
        if tokenizer.sha256 == recorded.sha256:
            return tokenizer
        failures.append(f"{candidate} has {tokenizer.sha256[:16]}…")
    reasons = "; ".join(failures) or f"it is not where it was, in {os.getcwd()} or near the data"
    problem = f"the tokenizer of the dataset, {recorded.name!r} with sha256 {recorded.sha256[:16]}…, cannot be loaded"
    raise TokenizerError(f"{prefix}: {problem}: {reasons}", hint=hint)


def load_with_options(recorded: RecordedTokenizer | None, path: str, *, is_user_path: bool = True) -> Tokenizer:
    """Load a tokenizer with recorded options, whatever its hash.

    Args:
        recorded: The manifest's entry; None for no options.
        path: Path of the tokenizer, or its name in the hub.
        is_user_path: Whether the user chose the path, which then replaces the two files of GPT-2.

    Raises:
        TokenizerError: If it cannot be read, or the options are damaged.
    """
    import msgspec  # imported here, since reading tokens does not need it

    from dsindex.text.tiktoken_files import TokenizerOptions
    from dsindex.text.tokenizer import load_tokenizer

    options = dict((None if recorded is None else recorded.options) or {})
    if is_user_path:
        options.pop("vocab_file", None)
    try:
        return load_tokenizer(path, options=msgspec.convert(options, TokenizerOptions), fetches=is_user_path)
    except msgspec.ValidationError as error:
        raise TokenizerError(f"{path}: the manifest has damaged options of a tokenizer: {options}") from error


def _candidate_paths(prefix: str, recorded: RecordedTokenizer, run: Run) -> list[str]:
    """Return the paths, or the name in the Hub, where a tokenizer may be, in search order."""
    if recorded.revision is not None:
        return [f"{recorded.name}@{recorded.revision}"]
    if "vocab_file" in (recorded.options or {}):
        return [recorded.name]
    paths = [*([] if run.tokenizer_path is None else [run.tokenizer_path]), recorded.name]
    for start in local_paths([prefix, *(path for path, *_ in run.plan.inputs[:1])]):
        folder = os.path.abspath(start)
        for _ in range(LEVELS_ABOVE):
            folder = os.path.dirname(folder)
            paths.append(os.path.join(folder, recorded.name))
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


@functools.lru_cache(maxsize=8)
def _load_recorded_once(prefix: str, _: str) -> Tokenizer:
    """Load a manifest's tokenizer once per process and working folder, on which relative paths depend."""
    return load_recorded_tokenizer(prefix, read_manifest(prefix))


@functools.lru_cache(maxsize=8)
def _load_path_once(path: str, _: str) -> Tokenizer:
    """Load the tokenizer at a path once per process and working folder."""
    return load_with_options(None, path)
