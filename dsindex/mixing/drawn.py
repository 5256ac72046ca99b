"""What the blends in a cache folder really draw from each dataset, compared with a mixture."""

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

    from dsindex.indices.splits import SplitMatrix
    from dsindex.mixing.counting import SourceCounts
    from dsindex.mixing.mixture import Mixture

CHUNK_ITEMS = 1 << 22
ROUNDING = 0.001
"""Counts may miss the intended ones by this share of them, as those of weights with three digits do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnBlend:
    """The samples that one cached blend draws."""

    description: str
    """Path of its description.txt."""
    num_samples: tuple[int, ...]
    """Samples of each dataset, in the order of the mixture."""
    sequence_length: int
    findings: tuple[str, ...]
    """Differences from the mixture as sentences; empty if there is none beyond rounding."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each dataset in the samples."""
        total = sum(self.num_samples)
        return tuple(num / total if total else 0.0 for num in self.num_samples)


def check_drawn(
    folder: str,
    mixture: Mixture,
    counts: Sequence[SourceCounts],
    *,
    matrix: SplitMatrix | None,
    has_length: bool,
) -> list[DrawnBlend]:
    """Compare every blend of these datasets in a cache folder with a mixture.

    Args:
        folder: The cache folder (`--data-cache-path`).
        mixture: What is intended.
        counts: Its datasets.
        matrix: The parts of the splits; None if each split has its own path.
        has_length: Whether the tokens of the run are intended as well, and not only the shares.

    Raises:
        InputError: If there is no folder, or no blend of these datasets for training in it.
        FormatError: If a description of a blend is damaged.
    """
    if not os.path.isdir(folder):
        msg = f"{folder}: expected a folder with index caches, found none; check --data-cache-path"
        raise InputError(msg)
    prefixes = [source.prefix for source in mixture.sources]
    others: list[str] = []
    found: list[DrawnBlend] = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"*-{BLENDED_CLASS}-train-description.txt"))):
        described = read_description(path)
        paths = [str(dataset.get("dataset_path")) for dataset in described["datasets"]]
        order = _match(prefixes, paths)
        if order is None:
            others.append(", ".join(paths))
        else:
            parts = [described["datasets"][number] for number in order]
            found.append(_compare(path, described, order, parts, mixture, counts, matrix, has_length=has_length))
    if not found:
        got = f"blends of other datasets only ({others[0]})" if others else "none"
        msg = (
            f"{folder}: expected the train split of a blend of {', '.join(prefixes)}, got {got}; check "
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
    mixture: Mixture,
    counts: Sequence[SourceCounts],
    matrix: SplitMatrix | None,
    *,
    has_length: bool,
) -> DrawnBlend:
    drawn = _count_drawn(path, len(order), described.get("size"))
    drawn = [drawn[number] for number in order]
    length = parts[0]["sequence_length"]
    if type(length) is not int or length < 1:
        msg = f"{path}: expected a sequence length, got {length!r}; build the cache again"
        raise FormatError(msg)
    findings = _find_other_data(os.path.dirname(path), parts, counts, matrix)
    findings += _find_differences(drawn, length, mixture, has_length=has_length)
    return DrawnBlend(description=path, num_samples=tuple(drawn), sequence_length=length, findings=tuple(findings))


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


def _find_differences(drawn: Sequence[int], length: int, mixture: Mixture, *, has_length: bool) -> list[str]:
    size = sum(drawn)
    findings = []
    for source, num in zip(mixture.sources, drawn, strict=True):
        intended = size * source.share
        if abs(num - intended) > max(len(drawn), ROUNDING * intended):
            findings.append(
                f"{source.prefix}: {num:,} of {size:,} samples, {show_percent(num / size)}, are drawn from it, but "
                f"{show_percent(source.share)} are intended"
            )
    tokens = size * length
    if has_length and abs(tokens - mixture.tokens) > max((len(drawn) + 1) * length, ROUNDING * mixture.tokens):
        findings.append(
            f"the blend has {tokens:,} tokens ({size:,} samples of {length:,}), but {mixture.tokens:,} are intended"
        )
    return findings


def _find_other_data(
    folder: str, parts: Sequence[Mapping[str, Any]], counts: Sequence[SourceCounts], matrix: SplitMatrix | None
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
    for source, described in zip(counts, parts, strict=True):
        files = cache_files(folder, described)
        record = read_record(files.record)
        if record is not None and isinstance(record.get("source"), dict):
            findings += _find_changes(source.prefix, record["source"], files.record)
        elif os.path.isfile(files.array("document_index")):
            documents = open_index_array(files.array("document_index"), what="a document index", shape=(None,))
            sequences = source.part.end - source.part.begin
            if len(documents) % sequences:
                findings.append(
                    f"{source.prefix}: its cache was built from other data: {len(documents):,} entries of the document "
                    f"index are no multiple of {sequences:,} sequences; build it again"
                )
    return findings


def _find_changes(prefix: str, recorded: Mapping[str, Any], path: str) -> list[str]:
    try:
        return [f"{prefix}: {sentence}" for sentence in source_changes(prefix, recorded)]
    except (KeyError, TypeError, ValueError):
        return [f"{path}: expected the record of a cache's data, got something else; build the cache again"]
