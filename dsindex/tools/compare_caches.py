"""Compare index caches."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dsindex.datasets.gpt import open_index_array
from dsindex.datasets.opening import DESCRIPTION_SUFFIX, caches_by_split
from dsindex.errors import InputError
from dsindex.execution.local import map_ahead
from dsindex.index.cache import BLENDED_ARRAYS, GPT_ARRAYS, GPT_CLASS, find_description, read_description

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from dsindex.formats.token_copy import Tokens


# The first item in which two large arrays differ, block by block on all CPUs.

BLOCK = 1 << 21
"""Items that are compared at once."""
BLOCKS_AHEAD = 4
"""Blocks that are compared before it is known whether an earlier one differs, for each CPU."""


def first_unequal(one: Tokens, other: Tokens, *, on_progress: Callable[[int], None] | None = None) -> int | None:
    """Return the first position at which two arrays differ, within the shorter one; None if there is none.

    Args:
        one: An array of any integer type, which may be mapped; shape [n], or [n, m] to compare rows.
        other: Another one; types may differ.
        on_progress: Called with the number of items that are the same, from time to time.
    """
    size = min(len(one), len(other))

    def compare(begin: int) -> int | None:
        end = min(begin + BLOCK, size)
        unequal = one[begin:end] != other[begin:end]
        if not unequal.any():
            return None
        return begin + int(np.argmax(unequal if unequal.ndim == 1 else unequal.any(axis=1)))

    cpus = os.cpu_count() or 1
    for begin, found in map_ahead(compare, range(0, size, BLOCK), threads=cpus, ahead=BLOCKS_AHEAD * cpus):
        if found is not None:
            return found
        if on_progress is not None:
            on_progress(min(begin + BLOCK, size))
    return None


# Compare index caches of dsindex or Megatron: the first item of each index that differs, and the settings that do.

SPLITS = ["train", "valid", "test"]
"""In the order in which they are compared."""
SHAPES: dict[str, tuple[int | None, ...]] = {"sample_index": (None, 2)}
"""Shapes of the 2-D indices."""


Key: TypeAlias = "tuple[int | None, str]"
"""Number of the dataset in a blend, None for the blend itself, and the name of the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDifference:
    """An index that differs."""

    dataset: int | None
    """Number of the dataset in a blend, from 0; None for the blend's own indices and without a blend."""
    index: str
    lengths: tuple[int, int]
    position: int | None
    """The first item that differs; None if the shorter one is the beginning of the longer."""
    values: tuple[list[int], list[int]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitComparison:
    """The caches of one split on both sides."""

    split: str
    paths: tuple[str | None, str | None]
    """Their descriptions; None where there is no cache of the split."""
    num_indices: int
    differences: tuple[IndexDifference, ...]
    settings: tuple[tuple[str, str, str], ...]
    """Names of what the descriptions differ in, with both values."""

    @property
    def is_same(self) -> bool:
        """Whether all indices are the same, whatever the settings."""
        return None not in self.paths and not self.differences


def is_cache(path: str) -> bool:
    """Tell whether a path is the description of an index cache, or a folder with one."""
    return path.endswith(DESCRIPTION_SUFFIX) or (os.path.isdir(path) and bool(_descriptions(path)))


def compare_caches(first: str, second: str) -> tuple[SplitComparison, ...]:
    """Compare the index caches of two folders split by split, or those of two descriptions.

    Raises:
        InputError: If a folder has several caches of a split.
        FormatError: If a file is missing or damaged.
    """
    one, other = _by_split(first), _by_split(second)
    if len(one) == len(other) == 1 and one.keys() != other.keys():  # two descriptions, each of another split
        [path], [path_there] = one.values(), other.values()
        return (_compare(f"{next(iter(one))} and {next(iter(other))}", path, path_there),)
    splits = sorted(
        one.keys() | other.keys(), key=lambda split: (SPLITS.index(split) if split in SPLITS else len(SPLITS), split)
    )
    return tuple(_compare(split, one.get(split), other.get(split)) for split in splits)


def _descriptions(folder: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), f"*{DESCRIPTION_SUFFIX}")))


def _by_split(path: str) -> dict[str, str]:
    """Return the description of each split's cache.

    Raises:
        InputError: If there are several of a split.
        FormatError: If a description is damaged.
    """
    known = {each: read_description(each) for each in (_descriptions(path) if os.path.isdir(path) else [path])}
    found = {}
    for split, paths in caches_by_split(known).items():
        if len(paths) > 1:
            msg = f"{path}: expected one index cache of the split {split}, got {len(paths)}: {', '.join(paths)}; "
            raise InputError(f"{msg}give the path of one")
        found[split] = paths[0]
    return found


def _compare(split: str, first: str | None, second: str | None) -> SplitComparison:
    if first is None or second is None:
        return SplitComparison(split=split, paths=(first, second), num_indices=0, differences=(), settings=())
    descriptions = read_description(first), read_description(second)
    sides = [dict(_indices(path, description)) for path, description in zip((first, second), descriptions, strict=True)]
    one, other = sides
    found = [_difference(*key, one.get(key), other.get(key)) for key in dict.fromkeys((*one, *other))]
    return SplitComparison(
        split=split,
        paths=(first, second),
        num_indices=len(found),
        differences=tuple(each for each in found if each is not None),
        settings=tuple(_settings(*descriptions)),
    )


def _indices(path: str, description: Mapping[str, Any]) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Yield each index of a cache, and those of a blend's datasets."""
    yield from (((None, name), array) for name, array in _arrays(path, description))
    for number, part in enumerate(description.get("datasets", ())):
        own = find_description(os.path.dirname(path), part)
        yield from (((number, name), array) for name, array in _arrays(own, part))


def _arrays(path: str, description: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the indices beside a description, whose name need not be its hash."""
    for name in GPT_ARRAYS if description["class"] == GPT_CLASS else BLENDED_ARRAYS:
        array = f"{path.removesuffix(DESCRIPTION_SUFFIX)}-{name}.npy"
        yield name, open_index_array(array, what=f"a {name.replace('_', ' ')}", shape=SHAPES.get(name, (None,)))


def _difference(
    dataset: int | None, name: str, one: NDArray[Any] | None, other: NDArray[Any] | None
) -> IndexDifference | None:
    lengths = (0 if one is None else len(one), 0 if other is None else len(other))
    position = None if one is None or other is None else first_unequal(one, other)
    if position is None or one is None or other is None:
        same = one is not None and other is not None and lengths[0] == lengths[1]
        return (
            None if same else IndexDifference(dataset=dataset, index=name, lengths=lengths, position=None, values=None)
        )
    values = (one[position].reshape(-1).tolist(), other[position].reshape(-1).tolist())
    return IndexDifference(dataset=dataset, index=name, lengths=lengths, position=position, values=values)


def _settings(one: Mapping[str, Any], other: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what two descriptions differ in; the datasets of blends are compared one by one."""
    for name in dict.fromkeys((*one, *other)):
        mine, theirs = one.get(name), other.get(name)
        if mine == theirs:
            continue
        if name != "datasets" or not isinstance(mine, list) or not isinstance(theirs, list):
            yield f"{before}{name}", str(mine), str(theirs)
            continue
        if len(mine) != len(theirs):
            yield f"{before}datasets", str(len(mine)), str(len(theirs))
        for number, (part, other_part) in enumerate(zip(mine, theirs, strict=False)):
            yield from _settings(part, other_part, f"dataset {number}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """What was found."""

    paths: tuple[str, str]
    splits: tuple[SplitComparison, ...]

    @property
    def is_same(self) -> bool:
        """Whether all splits have the same indices."""
        return all(split.is_same for split in self.splits)


def are_caches(first: str, second: str) -> bool:
    """Tell whether two paths are index caches.

    Raises:
        InputError: If only one of them is.
    """
    found = is_cache(first), is_cache(second)
    if found[0] != found[1]:
        cache, other = (first, second) if found[0] else (second, first)
        msg = f"{other}: expected an index cache to compare with {cache}, got something else; give two of one kind"
        raise InputError(msg)
    return found[0]


def run_compare_caches(first: str, second: str) -> CacheReport:
    """Compare two folders of index caches, or two descriptions.

    Raises:
        InputError: If a folder has several caches of a split.
        FormatError: If a file is missing or damaged.
    """
    return CacheReport(paths=(first, second), splits=compare_caches(first, second))
