"""Texts of token ids, by the tokenizer that a dataset's manifest names, or by one that is given.

The manifest (docs/formats.md) names a tokenizer and its SHA-256, by which it is looked for
(dsindex.text.recorded_tokenizer).
"""

from __future__ import annotations

import functools
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.errors import FormatError, MissingObjectError, MissingPackageError, TokenizerError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.reading import open_stored
from dsindex.store.urls import local_paths, with_suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from dsindex.text.recorded_tokenizer import NamedTokenizer
    from dsindex.text.tokenizer import Tokenizer


MANIFEST_SUFFIX = ".manifest.json"
LARGEST_MANIFEST_BYTES = 1 << 30

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
        return _decode_known(_recorded_tokenizer(prefix), kept)
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
    path = f"{prefix}{MANIFEST_SUFFIX}"
    try:
        with open_stored(with_suffix(prefix, MANIFEST_SUFFIX)) as file:
            content = file.read(LARGEST_MANIFEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read as a manifest ({error.strerror}); restore the file") from error
    try:
        if len(content) > LARGEST_MANIFEST_BYTES:
            raise ValueError(f"more than {LARGEST_MANIFEST_BYTES} bytes")
        return _parse(decode_json(content))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected a manifest of dsindex ({error}); restore the file") from error


def _parse(manifest: object) -> NamedTokenizer | None:
    """Return the tokenizer in a parsed manifest.

    Raises:
        ValueError: If a field that it needs is of another kind.
    """
    from dsindex.text.recorded_tokenizer import NamedTokenizer
    from dsindex.text.tokenizer import TokenizerOptions

    content = manifest.get("content") if isinstance(manifest, dict) else None
    if not isinstance(content, dict):
        raise ValueError("there is no content")
    recorded = content.get("tokenizer")
    if recorded is None:
        return None
    known = recorded if isinstance(recorded, dict) else {}
    name, sha256, revision, options = (known.get(key) for key in ("name", "sha256", "revision", "options"))
    if not isinstance(name, str) or not isinstance(sha256, str) or not isinstance(revision, str | None):
        raise ValueError("its tokenizer has no name and sha256")
    options = {} if options is None else options
    if not isinstance(options, dict) or not options.keys() <= {field.name for field in fields(TokenizerOptions)}:
        raise ValueError("its tokenizer has unknown options")
    run = manifest.get("run") if isinstance(manifest, dict) else None
    run = run if isinstance(run, dict) else {}
    path = run.get("tokenizer_path")
    return NamedTokenizer(
        name=name,
        sha256=sha256,
        revision=revision,
        options=encode_json(options),
        path=path if isinstance(path, str) else None,
        first_input=_first_input(run),
    )


def _first_input(run: dict[str, Any]) -> str | None:
    try:
        path = run["plan"]["inputs"][0][0]
    except (LookupError, TypeError):
        return None
    return path if isinstance(path, str) else None


def _recorded_tokenizer(prefix: str) -> Tokenizer:
    named = read_named_tokenizer(prefix)
    if named is None:
        raise TokenizerError(
            f"{prefix}{MANIFEST_SUFFIX}: expected a manifest that names the dataset's tokenizer, found none; pass "
            f"tokenizer=, the path of the tokenizer"
        )
    folder = next(map(os.path.dirname, map(os.path.abspath, local_paths([prefix]))), os.getcwd())
    return _load_named(named, folder, os.getcwd())


@functools.lru_cache(maxsize=8)
def _load_named(named: NamedTokenizer, folder: str, working_folder: str) -> Tokenizer:
    """Load the tokenizer that a manifest names.

    Args:
        named: The tokenizer.
        folder: The folder of the dataset.
        working_folder: The folder from which paths count, which is part of what the result depends on.

    Raises:
        TokenizerError: If there is none of that name, or it is another one.
    """
    from dsindex.text.recorded_tokenizer import find_tokenizer

    tokenizer, others = find_tokenizer(named, os.path.join(folder, named.name))
    if tokenizer is not None:
        return tokenizer
    what = [each.error if each.sha256 is None else f"{each.place} has {each.sha256[:16]}…" for each in others]
    found = "; ".join(what) or f"found none where it was, nor by that name in {working_folder} or beside the data"
    raise TokenizerError(
        f"expected the tokenizer {named.name!r} with sha256 {named.sha256[:16]}… that the dataset was made with, "
        f"{found}; pass tokenizer=, its path"
    )


def _load_given(path: str) -> Tokenizer:
    """Load a tokenizer, or return the one that was loaded from the same files before."""
    try:
        files = [path]
        if os.path.isdir(path):  # its own time says nothing of its files
            files = sorted(entry.path for entry in os.scandir(path) if entry.is_file())
        found = [(file, os.stat(file)) for file in files]
    except (OSError, ValueError):  # a name in the hub, or what cannot be read
        return _load_once(path, ())
    return _load_once(os.path.abspath(path), tuple((file, each.st_mtime_ns, each.st_size) for file, each in found))


@functools.lru_cache(maxsize=8)
def _load_once(path: str, state: tuple[tuple[str, int, int], ...]) -> Tokenizer:  # noqa: ARG001 - part of the key
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


# Convert arrays to tensors for datasets with `torch=True`. torch is an optional package, imported on first use.


def tensor_maker(wanted: bool) -> Callable[[NDArray[Any]], Any] | None:
    """Return a function that turns an array into a tensor; None if arrays are wanted.

    Integers become int64, the type of token ids in models. Only the memory of writeable arrays is shared.

    Raises:
        MissingPackageError: If tensors are wanted and torch is not installed.
    """
    if not wanted:
        return None
    try:
        import torch
    except ImportError as error:
        msg = f"torch=True needs torch, which cannot be imported ({error}); install it: pip install 'dsindex[torch]'"
        raise MissingPackageError(msg) from error

    def make(array: NDArray[Any]) -> Any:  # noqa: ANN401 - torch may not be installed
        if array.dtype.kind in "iu":
            array = array.astype(np.int64, copy=not array.flags.writeable)
        elif not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array)

    return make


def convert_arrays(sample: Mapping[str, Any], make: Callable[[NDArray[Any]], Any]) -> dict[str, Any]:
    """Return a sample with its arrays replaced by tensors."""
    return {name: make(value) if isinstance(value, np.ndarray) else value for name, value in sample.items()}
