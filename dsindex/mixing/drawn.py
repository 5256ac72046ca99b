"""What the blends in a cache folder really draw from each dataset, compared with what is intended."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.index_files import open_index_array
from dsindex.errors import FormatError, InputError
from dsindex.indices.cache import BLENDED_CLASS, cache_files, read_description
from dsindex.indices.slot import read_record
from dsindex.indices.source import source_changes
from dsindex.indices.splits import WHOLE
from dsindex.mixing.amounts import show_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.indices.needed_caches import PartCounts
    from dsindex.indices.splits import SplitMatrix

CHUNK_ITEMS = 1 << 22
ROUNDING = 0.001
"""Counts may miss the intended ones by this share of them, as those of weights with three digits do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntendedBlend:
    """What a split should draw."""

    split: str
    """train, valid or test."""
    prefixes: tuple[str, ...]
    shares: tuple[float, ...] | None
    """The share of each dataset in the samples; None if that is left to Megatron."""
    tokens: int | None = None
    """Tokens of the run; None if only the shares are intended."""
    parts: tuple[PartCounts, ...] | None = None
    """The part of each dataset in the split, if it was counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBlend:
    """The samples that one cached blend draws."""

    split: str
    description: str
    """Path of its description.txt."""
    prefixes: tuple[str, ...]
    num_samples: tuple[int, ...]
    """Samples of each dataset."""
    sequence_length: int
    findings: tuple[str, ...]
    """Differences from what is intended as sentences; empty if there is none beyond rounding."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each dataset in the samples."""
        total = sum(self.num_samples)
        return tuple(num / total if total else 0.0 for num in self.num_samples)


def check_drawn(folder: str, intended: IntendedBlend, *, matrix: SplitMatrix | None) -> list[DrawnBlend]:
    """Compare every blend of a split's datasets in a cache folder with what is intended.

    Args:
        folder: The cache folder (`--data-cache-path`).
        intended: What the split should draw.
        matrix: The parts of the splits; None if each split has its own path.

    Raises:
        InputError: If there is no folder, or no blend of these datasets for training in it; those of valid and test
            need not be there.
        FormatError: If a description of a blend is damaged.
    """
    if not os.path.isdir(folder):
        msg = f"{folder}: expected a folder with index caches, found none; check --data-cache-path"
        raise InputError(msg)
    others: list[str] = []
    found: list[DrawnBlend] = []
    pattern = f"*-{BLENDED_CLASS}-{intended.split}-description.txt"
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), pattern))):
        described = read_description(path)
        paths = [str(dataset.get("dataset_path")) for dataset in described["datasets"]]
        order = _match(intended.prefixes, paths)
        if order is None:
            others.append(", ".join(paths))
        else:
            parts = [described["datasets"][number] for number in order]
            found.append(_compare(path, described, order, parts, intended, matrix))
    if not found and intended.split == "train":
        got = f"blends of other datasets only ({others[0]})" if others else "none"
        msg = (
            f"{folder}: expected the train split of a blend of {', '.join(intended.prefixes)}, got {got}; check "
            "--data-cache-path, or build it with dsindex index"
        )
        raise InputError(msg)
    return found


def _match(prefixes: Sequence[str], paths: Sequence[str]) -> list[int] | None:
    """Return the number in a blend of each dataset; None if the blend is of others."""
    if len(prefixes) != len(paths):
        return None
    if all(map(_leads_to, paths, prefixes)):
        return list(range(len(paths)))
    order = [[number for number, path in enumerate(paths) if _leads_to(path, prefix)] for prefix in prefixes]
    numbers = [found[0] for found in order if len(found) == 1]
    return numbers if len(set(numbers)) == len(prefixes) else None


def _leads_to(path: str, prefix: str) -> bool:
    """Tell whether a path of a description is this dataset's; data of another machine is known by its name."""
    if os.path.abspath(path) == os.path.abspath(prefix):
        return True
    try:
        return os.path.samefile(f"{path}.idx", f"{prefix}.idx")
    except OSError:
        return os.path.basename(path) == os.path.basename(prefix)


def _compare(
    path: str,
    described: Mapping[str, Any],
    order: Sequence[int],
    parts: Sequence[Mapping[str, Any]],
    intended: IntendedBlend,
    matrix: SplitMatrix | None,
) -> DrawnBlend:
    drawn = _count_drawn(path, len(order), described.get("size"))
    drawn = [drawn[number] for number in order]
    length = parts[0]["sequence_length"]
    if type(length) is not int or length < 1:
        msg = f"{path}: expected a sequence length, got {length!r}; build the cache again"
        raise FormatError(msg)
    findings = _find_other_data(os.path.dirname(path), parts, intended, matrix)
    findings += _find_differences(drawn, length, intended)
    return DrawnBlend(
        split=intended.split,
        description=path,
        prefixes=intended.prefixes,
        num_samples=tuple(drawn),
        sequence_length=length,
        findings=tuple(findings),
    )


def _count_drawn(path: str, num_datasets: int, size: object) -> list[int]:
    """Return the samples of each dataset in the dataset index beside a description.

    Raises:
        FormatError: If the index cannot be read, has another size or other datasets.
    """
    name = path.removesuffix("description.txt") + "dataset_index.npy"
    index = open_index_array(name, what="a dataset index", shape=(None,))
    if isinstance(size, int) and size != len(index):
        msg = f"{name}: expected {size:,} samples, as its description says, got {len(index):,}; build the cache again"
        raise FormatError(msg)
    drawn = np.zeros(num_datasets, np.int64)
    for begin in range(0, len(index), CHUNK_ITEMS):
        chunk = index[begin : begin + CHUNK_ITEMS]
        if chunk.min() < 0 or chunk.max() >= num_datasets:
            msg = f"{name}: expected datasets below {num_datasets}, got {chunk.max()}; build the cache again"
            raise FormatError(msg)
        drawn += np.bincount(chunk, minlength=num_datasets)
    return [int(num) for num in drawn]


def _find_differences(drawn: Sequence[int], length: int, intended: IntendedBlend) -> list[str]:
    size = sum(drawn)
    findings = []
    for prefix, share, num in zip(intended.prefixes, intended.shares or (), drawn, strict=intended.shares is not None):
        wanted = size * share
        if abs(num - wanted) > max(len(drawn), ROUNDING * wanted):
            findings.append(
                f"{prefix}: {num:,} of {size:,} samples, {show_percent(num / size)}, are drawn from it, but "
                f"{show_percent(share)} are intended"
            )
    tokens, wanted_tokens = size * length, intended.tokens
    if wanted_tokens is not None and abs(tokens - wanted_tokens) > max(
        (len(drawn) + 1) * length, ROUNDING * wanted_tokens
    ):
        findings.append(
            f"the blend has {tokens:,} tokens ({size:,} samples of {length:,}), but {wanted_tokens:,} are intended"
        )
    return findings


def _find_other_data(
    folder: str, parts: Sequence[Mapping[str, Any]], intended: IntendedBlend, matrix: SplitMatrix | None
) -> list[str]:
    """Return sentences about caches that were built from other data or another part of it."""
    expected = [None if matrix is None else [None if part is None else list(part) for part in matrix]]
    if matrix is None or matrix[0] == WHOLE:
        expected += [None, [list(WHOLE), None, None]]  # all of a dataset, by a path for each split or by --split 1
    other = next((described for described in parts if described.get("split_matrix") not in expected), None)
    if other is not None:
        built = other.get("split")
        how = "datasets for each split" if built is None else f"the split {built!r}"
        remedy = f"pass --split {'1' if built is None else repr(built)}"
        return [f"the caches were built with {how}, and so from another part of the data; {remedy}"]
    findings = []
    for number, (prefix, described) in enumerate(zip(intended.prefixes, parts, strict=True)):
        files = cache_files(folder, described)
        record = read_record(files.record)
        if record is not None and isinstance(record.get("source"), dict):
            findings += _find_changes(prefix, record["source"], files.record)
        elif intended.parts is not None and os.path.isfile(files.array("document_index")):
            documents = open_index_array(files.array("document_index"), what="a document index", shape=(None,))
            sequences = intended.parts[number].end - intended.parts[number].begin
            if len(documents) % sequences:
                findings.append(
                    f"{prefix}: its cache was built from other data: {len(documents):,} entries of the document "
                    f"index are no multiple of {sequences:,} sequences; build it again"
                )
    return findings


def _find_changes(prefix: str, recorded: Mapping[str, Any], path: str) -> list[str]:
    try:
        return [f"{prefix}: {sentence}" for sentence in source_changes(prefix, recorded)]
    except (KeyError, TypeError, ValueError):
        return [f"{path}: expected the record of a cache's data, got something else; build the cache again"]
