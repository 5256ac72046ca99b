"""What index caches draw from datasets: the tokens and epochs of each split, and the datasets of each blend."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.index_files import open_index_array
from dsindex.errors import DsindexError, FormatError, InputError
from dsindex.indices.cache import BLENDED_CLASS, read_description
from dsindex.indices.splits import SPLIT_NAMES, split_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHUNK_ITEMS = 1 << 22
ROUNDING = 1e-9
"""How far running sums of shares may exceed 1."""
DESCRIPTION_SUFFIX = "-description.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnSplit:
    """What the cache of one split draws from one dataset."""

    prefix: str
    """As in the description."""
    split: str
    sequence_length: int
    num_samples: int
    intended: float | None
    """Share of the dataset's sequences that the split was to have; None if it has its own dataset."""
    part_tokens: int
    """Tokens of the split's part."""
    dataset_tokens: int

    @property
    def tokens_drawn(self) -> int:
        """Tokens that training sees in all samples."""
        return self.num_samples * self.sequence_length

    @property
    def epochs(self) -> float:
        """How often each token of the part is seen, on average."""
        return self.tokens_drawn / self.part_tokens if self.part_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOfSplit:
    """What the cache of a blend draws from its datasets."""

    split: str
    sequence_length: int
    prefixes: tuple[str, ...]
    intended: tuple[float, ...]
    """Share of each dataset by the weights."""
    num_samples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCaches:
    """What the caches of a folder draw."""

    splits: tuple[DrawnSplit, ...]
    blends: tuple[BlendOfSplit, ...]
    findings: tuple[str, ...]
    """Sentences about caches that cannot be read."""


def read_drawn(folder: str, lengths_of: Callable[[str], Any]) -> DrawnCaches:
    """Read the caches of a folder that are of known datasets.

    Args:
        folder: The cache folder (`--data-cache-path`).
        lengths_of: Returns the tokens of each sequence of the dataset that a description names; None if it is not one
            of those that are looked at.

    Raises:
        InputError: If there is no folder, or no cache of these datasets.
    """
    if not os.path.isdir(folder):
        msg = f"{folder}: expected a folder with index caches, found none; check --cache"
        raise InputError(msg)
    splits: list[DrawnSplit] = []
    blends: list[BlendOfSplit] = []
    findings: list[str] = []
    others = 0
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"*{DESCRIPTION_SUFFIX}"))):
        try:
            described = read_description(path)
            if described["class"] == BLENDED_CLASS:
                if any(lengths_of(str(part.get("dataset_path"))) is not None for part in described["datasets"]):
                    blends.append(_read_blend(path, described))
                else:
                    others += 1
                continue
            lengths = lengths_of(str(described["dataset_path"]))
            if lengths is None:
                others += 1
            else:
                splits.append(_read_split(path, described, lengths))
        except DsindexError as error:
            findings.append(str(error))
    if not (splits or blends or findings):
        got = "caches of other datasets only" if others else "none"
        msg = f"{folder}: expected index caches of the datasets, got {got}; check --cache"
        raise InputError(msg)
    order = {name: place for place, name in enumerate(SPLIT_NAMES)}
    splits.sort(key=lambda each: (each.prefix, order.get(each.split, len(order)), each.sequence_length))
    blends.sort(key=lambda each: (order.get(each.split, len(order)), each.prefixes))
    return DrawnCaches(splits=tuple(splits), blends=tuple(blends), findings=tuple(findings))


def _read_split(path: str, described: Mapping[str, Any], lengths: Any) -> DrawnSplit:  # noqa: ANN401 - mapped
    split, sequence_length = str(described["index_split"]), _length(path, described)
    samples = open_index_array(_array(path, "shuffle_index"), what="a shuffle index", shape=(None,))
    part = _part(path, split, described.get("split_matrix"))
    begin, end = (0, len(lengths)) if part is None else split_bounds(part, len(lengths))
    return DrawnSplit(
        prefix=str(described["dataset_path"]),
        split=split,
        sequence_length=sequence_length,
        num_samples=len(samples),
        intended=None if part is None else part[1] - part[0],
        part_tokens=int(lengths[begin:end].sum(dtype=np.int64)),
        dataset_tokens=int(lengths.sum(dtype=np.int64)),
    )


def _part(path: str, split: str, matrix: object) -> tuple[float, float] | None:
    """Return the part of a split in a description; None if the split has its own dataset.

    Raises:
        FormatError: If it is something else.
    """
    if matrix is None:
        return None
    place = SPLIT_NAMES.index(split) if split in SPLIT_NAMES else len(SPLIT_NAMES)
    part = matrix[place] if isinstance(matrix, list) and place < len(matrix) else None
    if isinstance(part, list) and len(part) == 2 and all(isinstance(bound, int | float) for bound in part):
        begin, end = map(float, part)
        if 0 <= begin <= end <= 1 + ROUNDING:
            return begin, min(end, 1.0)
    msg = f"{path}: expected the part of {split} as two shares, got {part!r}; build the cache again"
    raise FormatError(msg)


def _read_blend(path: str, described: Mapping[str, Any]) -> BlendOfSplit:
    parts, weights = described["datasets"], described.get("weights")
    is_number = isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights)
    if not is_number or weights is None or len(weights) != len(parts) or not 0 < sum(weights) < float("inf"):
        msg = f"{path}: expected a weight for each of {len(parts)} datasets, got {weights!r}; build the cache again"
        raise FormatError(msg)
    name = _array(path, "dataset_index")
    index = open_index_array(name, what="a dataset index", shape=(None,))
    drawn = np.zeros(len(parts), np.int64)
    for begin in range(0, len(index), CHUNK_ITEMS):
        chunk = index[begin : begin + CHUNK_ITEMS]
        if chunk.min() < 0 or chunk.max() >= len(parts):
            msg = f"{name}: expected datasets below {len(parts)}, got {chunk.max()}; build the cache again"
            raise FormatError(msg)
        drawn += np.bincount(chunk, minlength=len(parts))
    return BlendOfSplit(
        split=str(described["split"]),
        sequence_length=_length(path, parts[0]),
        prefixes=tuple(str(part.get("dataset_path")) for part in parts),
        intended=tuple(weight / sum(weights) for weight in weights),
        num_samples=tuple(drawn.tolist()),
    )


def _length(path: str, described: Mapping[str, Any]) -> int:
    length = described.get("sequence_length")
    if type(length) is not int or length < 1:
        msg = f"{path}: expected a sequence length, got {length!r}; build the cache again"
        raise FormatError(msg)
    return length


def _array(path: str, name: str) -> str:
    return f"{path.removesuffix(DESCRIPTION_SUFFIX)}-{name}.npy"
