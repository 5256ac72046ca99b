"""Arguments that name a dataset: a path, or the result of a function that made one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any, Protocol, TypeAlias, runtime_checkable

from dsindex.errors import UsageError
from dsindex.store.urls import as_prefix, locate_dataset

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


def list_prefixes(value: AnyDataset | Iterable[AnyDataset]) -> tuple[str, ...]:
    """Return the prefixes of datasets as paths or addresses; results and list files stand for all their datasets."""
    from dsindex.megatron.plan import read_list  # slow to import

    members = (blend.prefixes if (blend := read_list(path)) else (path,) for path in _names(value))
    return tuple(chain.from_iterable(members))


def _names(value: AnyDataset | Caches | Iterable[AnyDataset]) -> tuple[str, ...]:
    is_one = isinstance(value, str | os.PathLike | Result | Caches)
    subjects: list[Any] = list(value) if isinstance(value, Iterable) and not is_one else [value]
    names: list[str] = []
    for subject in subjects:
        if isinstance(subject, Caches):
            raise UsageError("these are index caches", hint="pass the dataset that they were built for")
        names += subject.prefixes if isinstance(subject, Result) else [os.fspath(subject)]
    if not names:
        raise ValueError("no dataset was given")
    return tuple(map(locate_dataset, names))


def one_prefix(value: AnyDataset | Iterable[AnyDataset]) -> str:
    """Return the prefix of a single dataset."""
    found = _names(value)
    if len(found) > 1:
        raise UsageError(f"{len(found)} datasets were given ({', '.join(found)})", hint="choose one")
    return found[0]


def list_text_prefixes(value: AnyDataset | Iterable[AnyDataset]) -> tuple[str, ...]:
    """Return the prefixes of .bin/.idx datasets."""
    if hasattr(value, "splits"):
        raise ValueError("instruction data is no dataset of texts: its tokens and masks belong together")
    found = _names(value)
    packed = next((prefix for prefix in found if prefix.endswith(PBIN_SUFFIX)), None)
    if packed is not None:
        raise UsageError(f"{packed} is not a .bin and .idx", hint="convert it: dsindex convert")
    return tuple(as_prefix(prefix) for prefix in found)


def cache_folder(value: AnyDataset | Caches) -> str:
    """Return the folder of index caches, or the path of a dataset."""
    if not isinstance(value, Caches):
        return one_prefix(value)
    if len(value.folders) != 1:
        folders = ", ".join(value.folders) or "no folder"
        raise UsageError(f"the result has caches in {folders}", hint="pass one folder")
    return value.folders[0]


OBJECT_NAME = "tokenizers.Tokenizer"
"""Name of a tokenizer object in the manifest, which identifies it by its `sha256`."""
_objects: list[Any] = []
"""Temporary folders of tokenizer objects; they last as long as the process."""


def tokenizer_path(value: Any) -> Any:  # noqa: ANN401 - anything the caller passed
    """Return the path of a tokenizer; an object of `tokenizers` is written to a temporary file."""
    library = sys.modules.get("tokenizers")
    if library is None or not isinstance(value, library.Tokenizer):
        if hasattr(value, "backend_tokenizer"):
            raise UsageError("this is not a tokenizers.Tokenizer", hint="pass its backend_tokenizer")
        return value
    import tempfile

    _objects.append(tempfile.TemporaryDirectory(prefix="dsindex-tokenizer-"))
    path = os.path.join(_objects[-1].name, OBJECT_NAME)
    value.save(path, pretty=False)
    return path
