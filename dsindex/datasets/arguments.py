"""Arguments that name a dataset: a path, or the result of a function that made one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dsindex.errors import UsageError
from dsindex.store.urls import locate_dataset, prefix_of

PBIN_SUFFIX = ".pbin"
AnyPath: TypeAlias = str | os.PathLike[str]


@runtime_checkable
class Result(Protocol):
    """The result of a function that made datasets, which can be passed where a dataset is expected."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The datasets: prefixes, or paths of `.pbin` files."""
        ...


@runtime_checkable
class Caches(Protocol):
    """The result of `build_index`."""

    @property
    def folders(self) -> tuple[str, ...]:
        """The cache folders."""
        ...


AnyDataset: TypeAlias = AnyPath | Result


def list_prefixes(datasets: AnyDataset | Iterable[AnyDataset]) -> tuple[str, ...]:
    """Return the prefixes of datasets as paths or addresses; results and list files stand for all their datasets."""
    from dsindex.megatron.plan import read_list  # slow to import

    members = (blend.prefixes if (blend := read_list(path)) else (path,) for path in _names(datasets))
    return tuple(chain.from_iterable(members))


def _names(datasets: AnyDataset | Caches | Iterable[AnyDataset]) -> tuple[str, ...]:
    is_single = isinstance(datasets, str | os.PathLike | Result | Caches)
    subjects: list[Any] = list(datasets) if isinstance(datasets, Iterable) and not is_single else [datasets]
    names: list[str] = []
    for subject in subjects:
        if isinstance(subject, Caches):
            raise UsageError("these are index caches", hint="pass the dataset that they were built for")
        names += subject.prefixes if isinstance(subject, Result) else [os.fspath(subject)]
    if not names:
        raise ValueError("no dataset was given")
    return tuple(map(locate_dataset, names))


def single_prefix(dataset: AnyDataset | Iterable[AnyDataset]) -> str:
    """Return the prefix of a single dataset."""
    prefixes = _names(dataset)
    if len(prefixes) > 1:
        raise UsageError(f"{len(prefixes)} datasets were given ({', '.join(prefixes)})", hint="choose one")
    return prefixes[0]


def list_text_prefixes(datasets: AnyDataset | Iterable[AnyDataset]) -> tuple[str, ...]:
    """Return the prefixes of .bin/.idx datasets."""
    if hasattr(datasets, "splits"):
        raise ValueError("instruction data is no dataset of texts: its tokens and masks belong together")
    prefixes = _names(datasets)
    pbin_path = next((prefix for prefix in prefixes if prefix.endswith(PBIN_SUFFIX)), None)
    if pbin_path is not None:
        raise UsageError(f"{pbin_path} is not a .bin and .idx", hint="convert it: dsindex convert")
    return tuple(prefix_of(prefix) for prefix in prefixes)


def cache_folder(caches: AnyDataset | Caches) -> str:
    """Return the folder of index caches, or the path of a dataset."""
    if not isinstance(caches, Caches):
        return single_prefix(caches)
    if len(caches.folders) != 1:
        folders = ", ".join(caches.folders) or "no folder"
        raise UsageError(f"the result has caches in {folders}", hint="pass one folder")
    return caches.folders[0]


OBJECT_NAME = "tokenizers.Tokenizer"
"""Name of a tokenizer object in the manifest, which identifies it by its `sha256`."""
_tokenizer_folders: list[Any] = []
"""Temporary folders of tokenizer objects; they last as long as the process."""


def tokenizer_path(tokenizer: Any) -> Any:  # noqa: ANN401 - anything the caller passed
    """Return the path of a tokenizer; an object of `tokenizers` is written to a temporary file."""
    library = sys.modules.get("tokenizers")
    if library is None or not isinstance(tokenizer, library.Tokenizer):
        if hasattr(tokenizer, "backend_tokenizer"):
            raise UsageError("this is not a tokenizers.Tokenizer", hint="pass its backend_tokenizer")
        return tokenizer
    import tempfile

    _tokenizer_folders.append(tempfile.TemporaryDirectory(prefix="dsindex-tokenizer-"))
    path = os.path.join(_tokenizer_folders[-1].name, OBJECT_NAME)
    tokenizer.save(path, pretty=False)
    return path
