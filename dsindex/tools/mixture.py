"""What the blends in a cache folder really draw from each dataset, compared with what is intended."""

from __future__ import annotations

import glob
import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.gpt import open_index_array
from dsindex.errors import FormatError, InputError, LimitError
from dsindex.formats.mmididx import read_header
from dsindex.index.blend import Blend
from dsindex.index.cache import BLENDED_CLASS, cache_files, read_description, source_changes
from dsindex.index.epochs import SPLIT_NAMES, WHOLE
from dsindex.index.needed_caches import CacheSettings, find_needed_caches
from dsindex.index.slot import read_record
from dsindex.index.task import PartTask, count_parts
from dsindex.options.mix_amounts import show_percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.index.epochs import SplitMatrix
    from dsindex.index.needed_caches import PartCounts


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
    prefixes: tuple[str, ...]
    num_samples: tuple[int, ...]
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
        raise InputError(f"{folder}: expected a folder with index caches, found none; check --data-cache-path")
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
        raise InputError(
            f"{folder}: expected the train split of a blend of {', '.join(intended.prefixes)}, got {got}; check "
            "--data-cache-path, or build it with dsindex index"
        )
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
        raise FormatError(f"{path}: expected a sequence length, got {length!r}; build the cache again")
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


# Count what a mixture can draw from: the tokens of each dataset's part in the train split.

MASK_SUFFIX = "_loss_mask"
TEXT_SUFFIX = "_text_document"
WHOLE_IN_TRAIN: SplitMatrix = (WHOLE, None, None)
"""The parts of a dataset that only train draws from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCounts:
    """The size of a dataset of a mixture."""

    prefix: str
    """As typed."""
    num_documents: int
    part: PartCounts
    empty_splits: tuple[str, ...]
    """Splits other than train that have a share of the dataset, but none of its tokens."""
    has_mask: bool
    """Whether it is instruction data, whose loss mask lies beside it."""


def count_source(prefix: str, matrix: SplitMatrix) -> SourceCounts:
    """Count a dataset and its part in the train split.

    Raises:
        InputError: If there is no such dataset, it has no tokens in the part, or it is no dataset of tokens.
        FormatError: If its `.idx` is damaged.
    """
    idx = f"{prefix}.idx"
    if not os.path.isfile(idx):
        near = [found.removesuffix(".idx") for found in sorted(glob.glob(f"{glob.escape(prefix)}_*.idx"))]
        hint = f"did you mean {', '.join(near[:4])}?" if near else "use a path without .bin and .idx"
        raise InputError(f"{idx}: no such file; {hint}")
    header = read_header(idx)
    stem = prefix.removesuffix(MASK_SUFFIX)
    if stem != prefix and os.path.isfile(f"{stem}{TEXT_SUFFIX}.idx"):
        raise InputError(f"{idx}: expected tokens, got the loss mask of instruction data; use {stem}{TEXT_SUFFIX}")
    if header.dtype.kind not in "iu":
        raise InputError(f"{idx}: expected a dataset of tokens, which are integers, got {header.dtype}; leave it out")
    train, *others = count_parts(PartTask(prefix=prefix, parts=matrix))
    if train is None or train.tokens <= 0:
        where = "" if matrix == WHOLE_IN_TRAIN else f" in the train split of its {header.num_sequences:,} sequences"
        raise InputError(f"{idx}: expected tokens to draw, got a dataset without any{where}; leave it out")
    stem = prefix.removesuffix(TEXT_SUFFIX)
    return SourceCounts(
        prefix=prefix,
        num_documents=header.num_documents,
        part=train,
        empty_splits=tuple(
            name
            for name, counts in zip(SPLIT_NAMES[1:], others, strict=True)
            if counts is not None and counts.tokens == 0
        ),
        has_mask=stem != prefix and os.path.isfile(f"{stem}{MASK_SUFFIX}.idx"),
    )


# What a Megatron job draws from each dataset of a blend: samples, tokens and epochs.
#
# A sample has L tokens, and one more that the next sample begins with, all from one dataset. Megatron draws samples, so
# a normalised weight is a share of the samples and of the tokens, whatever the sizes of the datasets.
#
# Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_builder.


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSource:
    """What a mixture draws from one dataset."""

    prefix: str
    tokens: int
    """Tokens of one epoch: of its part in the train split."""
    share_of_all: float
    """Its share of the tokens of all datasets."""
    weight: str | None
    """As written for Megatron; None in a blend without weights."""
    share: float
    """Its share of the samples, and so of the tokens that are drawn."""
    num_samples: int
    tokens_drawn: int
    epochs: float
    index_epochs: int
    """Whole epochs that Megatron's index holds, of which the samples are drawn."""
    epochs_shuffled_together: int
    """Epochs whose samples are permuted among each other; if there are several, tokens repeat before all are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A blend and what it draws."""

    sources: tuple[MixedSource, ...]
    num_samples: int
    sequence_length: int

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.num_samples * self.sequence_length

    @property
    def first_to_run_out(self) -> MixedSource:
        """The dataset whose tokens last for the shortest part of the run."""
        return max(self.sources, key=lambda source: source.epochs)

    def tokens_until_read_once(self, source: MixedSource) -> int:
        """Return the tokens of the run, of all datasets, after which one has been drawn once."""
        return int(self.tokens / source.epochs) if source.epochs else self.tokens

    @property
    def data_path(self) -> tuple[str, ...]:
        """The words of Megatron's `--data-path`; a single dataset needs no weight."""
        if len(self.sources) == 1:
            return (self.sources[0].prefix,)
        return tuple(word for source in self.sources for word in (source.weight, source.prefix) if word is not None)


def write_weights(shares: Sequence[Fraction], num_samples: int) -> tuple[str, ...]:
    """Return weights with as many decimals as it takes to draw within one sample of the shares.

    >>> write_weights([Fraction(2, 5), Fraction(1, 3), Fraction(4, 15)], 1000)
    ('0.4', '0.33333', '0.26667')
    """
    digits = max(5, len(str(num_samples)) + 1)
    rounded = [f"{float(share):.{digits}f}".rstrip("0").rstrip(".") for share in shares]
    return tuple(
        text if float(text) > 0 else f"{float(share):.3g}" for text, share in zip(rounded, shares, strict=True)
    )


def mix(
    counts: Sequence[SourceCounts],
    weights: Sequence[str] | None,
    num_samples: int | None,
    *,
    settings: CacheSettings,
) -> Mixture:
    """Return what a job draws.

    Args:
        counts: The datasets.
        weights: As written for Megatron; None for a blend without weights, which draws every dataset at most once.
        num_samples: Samples of the run; None for all of a blend without weights.
        settings: Sequence length and split of the job.

    Raises:
        LimitError: If Megatron would stop or loop forever.
    """
    parts = {source.prefix: source.part for source in counts}
    blend = Blend(
        prefixes=tuple(source.prefix for source in counts),
        weights=None if weights is None or len(counts) == 1 else tuple(map(float, weights)),
    )

    def part_of(prefix: str, _: int) -> PartCounts:
        return parts[prefix]

    needed = find_needed_caches((blend, None, None), (num_samples, None, None), settings=settings, count_part=part_of)
    if needed.blends:
        blended = needed.blends[0]
        caches = blended.datasets
        shares = [Fraction(weight) for weight in blended.description.weights]
        size = num_samples if num_samples is not None else sum(cache.epochs.num_samples for cache in caches)
    else:
        caches = needed.datasets
        shares = [Fraction(1)]
        size = num_samples if num_samples is not None else caches[0].epochs.num_samples
    if size == 0:
        raise LimitError(
            f"expected at least one sample of {settings.sequence_length + 1:,} tokens, got none; the datasets or the "
            "budget are too small for --seq-length"
        )
    drawn = apportion(shares, size)
    all_tokens = sum(source.part.tokens for source in counts)
    return Mixture(
        sources=tuple(
            MixedSource(
                prefix=source.prefix,
                tokens=source.part.tokens,
                share_of_all=source.part.tokens / all_tokens,
                weight=None if weights is None else weights[number],
                share=float(shares[number] / sum(shares)),
                num_samples=drawn[number],
                tokens_drawn=drawn[number] * settings.sequence_length,
                epochs=drawn[number] * settings.sequence_length / source.part.tokens,
                index_epochs=caches[number].epochs.num_epochs,
                epochs_shuffled_together=caches[number].epochs.num_epochs - caches[number].epochs.separate_final_epoch,
            )
            for number, source in enumerate(counts)
        ),
        num_samples=size,
        sequence_length=settings.sequence_length,
    )


def apportion(shares: Sequence[Fraction], num_samples: int) -> list[int]:
    """Divide samples by shares, by the largest remainders, so that their sum is exact.

    >>> apportion([Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)], 10)
    [4, 3, 3]
    """
    total = sum(shares, Fraction(0))
    exact = [num_samples * share / total for share in shares]
    drawn = [math.floor(count) for count in exact]
    order = sorted(range(len(exact)), key=lambda number: drawn[number] - exact[number])
    for number in order[: num_samples - sum(drawn)]:
        drawn[number] += 1
    return drawn
