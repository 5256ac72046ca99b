"""What names a dataset: a path, or the result of a function that made one; and `dsindex.open`, which opens it.

Nothing here loads more than readers of datasets need.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from dsindex.errors import UsageError
from dsindex.store.urls import as_prefix, located

if TYPE_CHECKING:
    import tokenizers

    from dsindex.datasets.gpt import SampleOptions
    from dsindex.datasets.opening import Dataset

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
        """The folders of its caches."""
        ...


AnyDataset: TypeAlias = AnyPath | Result


def list_prefixes(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - anything the caller passed
    """Return the prefixes of datasets, all of each result, as paths or addresses."""
    subjects = [value] if isinstance(value, str | os.PathLike | Result | Caches) else list(value)
    names: list[str] = []
    for subject in subjects:
        if isinstance(subject, Caches):
            raise ValueError("expected a dataset, got index caches; pass the dataset that they were built for")
        names += subject.prefixes if isinstance(subject, Result) else [os.fspath(subject)]
    if not names:
        raise ValueError("expected at least one dataset, got none")
    return tuple(map(located, names))


def one_prefix(value: Any) -> str:  # noqa: ANN401 - anything the caller passed
    """Return the prefix of a single dataset."""
    found = list_prefixes(value)
    if len(found) > 1:
        raise ValueError(f"expected one dataset, got {len(found)} ({', '.join(found)}); choose one")
    return found[0]


def list_text_prefixes(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - anything the caller passed
    """Return the prefixes of datasets of .bin and .idx."""
    if hasattr(value, "splits"):
        raise ValueError("expected datasets of texts, got instruction data, whose tokens and masks belong together")
    found = list_prefixes(value)
    packed = next((prefix for prefix in found if prefix.endswith(PBIN_SUFFIX)), None)
    if packed is not None:
        raise ValueError(f"expected datasets of .bin and .idx, got {packed}; convert it: dsindex convert")
    return tuple(as_prefix(prefix) for prefix in found)


def cache_folder(value: Any) -> str:  # noqa: ANN401 - anything the caller passed
    """Return the folder of index caches, or the path of a dataset."""
    if not isinstance(value, Caches):
        return one_prefix(value)
    if len(value.folders) != 1:
        where = ", ".join(value.folders) or "none, since nothing was built"
        raise ValueError(f"expected caches in one folder, got {where}; pass one folder")
    return value.folders[0]


OBJECT_NAME = "tokenizers.Tokenizer"
"""Name of a tokenizer object in the manifest, which identifies it by its `sha256`."""
_objects: list[Any] = []
"""Temporary folders, which last as long as the process."""


def tokenizer_path(value: Any) -> Any:  # noqa: ANN401 - anything the caller passed
    """Return the path of a tokenizer; an object of `tokenizers` is written to a temporary file."""
    library = sys.modules.get("tokenizers")
    if library is None or not isinstance(value, library.Tokenizer):
        if hasattr(value, "backend_tokenizer"):
            raise ValueError("expected a path or a tokenizers.Tokenizer; pass its backend_tokenizer")
        return value
    import tempfile

    _objects.append(tempfile.TemporaryDirectory(prefix="dsindex-tokenizer-"))
    path = os.path.join(_objects[-1].name, OBJECT_NAME)
    value.save(path, pretty=False)
    return path


def open(
    path: AnyDataset | Caches,
    *,
    block_size: int | None = None,
    sequence_length: int | None = None,
    pad_id: int | None = None,
    pad_to_multiple: int | None = None,
    split: str | None = None,
    prefix: AnyDataset | list[AnyDataset] | None = None,
    options: SampleOptions | None = None,
    tokenizer: AnyPath | tokenizers.Tokenizer | None = None,
    check: bool = True,
    torch: bool = False,
) -> Dataset:
    """Open a dataset; its format is detected from the files.

    A `.bin`/`.idx` pair opens as an IndexedDataset, a `.pbin` as its documents or blocks, a JSONL file with a raw index
    as its lines, instruction data as packed blocks, and an index cache as a GPTDataset or BlendedDataset.

    Args:
        path: A prefix or one of a dataset's files, here or in an object store; the folder of an index cache, or a
            result.
        block_size: For a `.pbin`: return blocks of this many tokens instead of documents.
        sequence_length: For instruction data: tokens per block; may be None if only one block layout is stored.
        pad_id: For instruction data: token that fills up blocks; 0 if None. Loss is masked on padding.
        pad_to_multiple: For instruction data: each conversation takes a multiple of so many tokens of its block.
        split: For index caches or instruction data: train, valid or test, if there are several; train if None.
        prefix: For an index cache: the dataset, if its path differs from the description's; a list for a blend.
        options: For an index cache: how masks and positions of samples are made.
        tokenizer: For a JSONL file: tokenizes lines, which are bytes otherwise.
        check: Check every entry of an MMIDIDX index; without it, even a very large dataset opens at once.
        torch: Return tensors instead of arrays.

    Raises:
        InputError: If there is no dataset, or this kind of dataset does not take an option.
        FormatError: If a file is damaged or in none of these formats.
        MissingPackageError: If `torch` is set and torch is not installed.
    """
    from dsindex.datasets.opening import open_cache, open_dataset  # loads what naming a dataset does not need

    given: dict[str, Any] = {"block_size": block_size, "sequence_length": sequence_length, "pad_id": pad_id}
    given |= {"pad_to_multiple": pad_to_multiple, "split": split, "options": options}
    given |= {"check": None if check else False, "torch": torch or None}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        if prefix is not None:
            given["prefix"] = list(list_text_prefixes(prefix))
        descriptions = getattr(path, "descriptions", None)
        if descriptions and not given.keys() - {"split", "options", "check", "torch"}:
            return open_cache(descriptions, place="path", **given)
        found = _split_of(path, given) or cache_folder(path)
        return open_dataset(found, **given, tokenizer=tokenizer if tokenizer is None else tokenizer_path(tokenizer))
    except ValueError as error:
        raise UsageError(f"open: {error}") from error


def _split_of(path: object, given: dict[str, Any]) -> str | None:
    """Return the prefix of the wanted split of a result of `instruct`, and remove the option."""
    splits = getattr(path, "splits", None)
    if not isinstance(path, Result) or not splits:
        return None
    known = {each.prefix.rpartition("_")[2]: each.prefix for each in splits}
    if len(splits) == 1:
        return str(splits[0].prefix)
    split = given.pop("split", "train")
    if split not in known:
        raise ValueError(f"expected a split of {', '.join(known)}, got {split!r}")
    return str(known[split])
