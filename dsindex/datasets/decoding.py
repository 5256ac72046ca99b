"""Texts of token ids, by the tokenizer that a dataset's manifest names, or by one that is given.

The manifest (docs/formats.md) names a tokenizer and its SHA-256, by which it is looked for
(dsindex.text.recorded_tokenizer).
"""

from __future__ import annotations

import functools
import os
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
LARGEST_MANIFEST_BYTES = 64 << 20

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
    path = f"{prefix}{MANIFEST_SUFFIX}"
    try:
        with open_stored(with_suffix(prefix, MANIFEST_SUFFIX)) as file:
            size_bytes = file.seek(0, os.SEEK_END)
            if size_bytes > LARGEST_MANIFEST_BYTES:
                raise FormatError(f"{path}: expected a manifest of at most 64 MiB, got {size_bytes} bytes")
            file.seek(0)
            content = file.read()
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read as a manifest ({error.strerror}); restore the file") from error
    import msgspec  # not there in an environment that only reads

    from dsindex.text.recorded_tokenizer import NamedTokenizer

    try:
        manifest = decode_json(content)
        recorded, run = manifest["content"].get("tokenizer"), manifest.get("run") or {}
        if recorded is None:
            return None
        known = {key: recorded.get(key) for key in ("name", "sha256", "revision")}
        known["options"] = encode_json(recorded.get("options") or {})
        known["path"] = run.get("tokenizer_path")
        inputs = (run.get("plan") or {}).get("inputs")
        known["first_input"] = inputs[0][0] if inputs else None
        return msgspec.convert(known, NamedTokenizer)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path}: expected a manifest of dsindex ({error}); restore the file") from error


@functools.lru_cache(maxsize=8)
def _load_recorded(prefix: str, working_folder: str) -> Tokenizer:
    """Load the tokenizer that the manifest of a dataset names.

    Args:
        prefix: The dataset.
        working_folder: The folder from which paths count, which is part of what the result depends on.

    Raises:
        TokenizerError: If none is named or found, or it is another one.
    """
    from dsindex.text.recorded_tokenizer import find_tokenizer

    named = read_named_tokenizer(prefix)
    if named is None:
        raise TokenizerError(
            f"{prefix}{MANIFEST_SUFFIX}: expected a manifest that names the dataset's tokenizer, found none; pass "
            f"tokenizer=, the path of the tokenizer"
        )
    folder = next(map(os.path.dirname, map(os.path.abspath, local_paths([prefix]))), working_folder)
    tokenizer, others = find_tokenizer(named, os.path.join(folder, named.name))
    if tokenizer is not None:
        return tokenizer
    what = [each.error if each.sha256 is None else f"{each.place} has {each.sha256[:16]}…" for each in others]
    found = "; ".join(what) or f"found none where it was, nor by that name in {working_folder} or beside the data"
    raise TokenizerError(
        f"expected the tokenizer {named.name!r} with sha256 {named.sha256[:16]}… that the dataset was made with, "
        f"{found}; pass tokenizer=, its path"
    )


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
