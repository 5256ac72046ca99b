"""The driver of `dsindex mix`: count the datasets, divide the tokens, and compare with caches."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from dsindex.amounts import align, count, short_number, shorten, split_names
from dsindex.datasets.gpt import open_cached_index, open_index_array
from dsindex.datasets.origins import tell_tokenizers_apart
from dsindex.datasets.tails import describe_tails
from dsindex.engine.manifest import read_manifest
from dsindex.engine.report import Report
from dsindex.engine.standard_streams import shown_columns
from dsindex.errors import FormatError, InputError, LimitError, OutputError
from dsindex.formats.mmididx import read_header, read_index
from dsindex.index.blend import Blend, describe_sums, parse_data_path
from dsindex.index.cache import (
    BLENDED_CLASS,
    GPT_CLASSES,
    cache_files,
    descriptions_in,
    files_beside,
    find_description,
    leads_to,
    read_description,
    source_changes,
)
from dsindex.index.cuts import Cuts, count_cuts
from dsindex.index.epochs import SPLIT_NAMES, WHOLE, parse_split, split_matrix
from dsindex.index.needed_caches import CacheSettings, find_needed_caches
from dsindex.index.slot import read_record
from dsindex.index.task import PartTask, count_parts
from dsindex.machine import available_cpus
from dsindex.options.index import DEFAULT_SPLIT
from dsindex.options.mix import read_source
from dsindex.options.mix_amounts import Amount, Kind, divide, show_epochs, show_percent
from dsindex.store.storage import atomic_writer, make_folder, open_file
from dsindex.tools.phases import Phase, count_drawn, read_phases

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsindex.index.epochs import SplitMatrix
    from dsindex.index.needed_caches import PartCounts
    from dsindex.options.mix import MixConfig


# What the blends in a cache folder really draw from each dataset, compared with what is intended.

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
    cuts: tuple[Cuts | None, ...]
    """The documents that each dataset's samples cut; None where its cache is not there or does not fit."""
    phases: tuple[Phase, ...] = ()
    """Of a blend that was planned over time, each compared with its own plan."""

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
    for path, described in _train_caches(folder, intended):
        members = described["datasets"] if described["class"] == BLENDED_CLASS else [described]
        paths = [str(dataset.get("dataset_path")) for dataset in members]
        order = _match(intended.prefixes, paths)
        if order is None:
            others.append(", ".join(paths))
        else:
            found.append(_compare(path, described, order, [members[number] for number in order], intended, matrix))
    if not found and intended.split == "train":
        got = f"those of other datasets only ({others[0]})" if others else "none"
        what = "a blend of " if len(intended.prefixes) > 1 else ""
        raise InputError(
            f"{folder}: expected the caches of {what}{', '.join(intended.prefixes)}, split train, got {got}; check "
            "--data-cache-path, or build them with dsindex index"
        )
    return found


def _train_caches(folder: str, intended: IntendedBlend) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the descriptions of a split's blends, and for one dataset, those of datasets that are in none."""

    def read(kind: str) -> dict[str, dict[str, Any]]:
        return {path: read_description(path) for path in descriptions_in(folder, f"*-{kind}-{intended.split}")}

    blends = read(BLENDED_CLASS)
    yield from blends.items()
    members = {path for blend in blends.values() for path in map(partial(find_description, folder), blend["datasets"])}
    if len(intended.prefixes) == 1:
        yield from ((path, own) for kind in GPT_CLASSES for path, own in read(kind).items() if path not in members)


def _match(prefixes: Sequence[str], paths: Sequence[str]) -> list[int] | None:
    """Return the number in a blend of each dataset; None if the blend is of others."""
    if len(prefixes) != len(paths):
        return None
    if all(map(leads_to, paths, prefixes)):
        return list(range(len(paths)))
    order = [[number for number, path in enumerate(paths) if leads_to(path, prefix)] for prefix in prefixes]
    numbers = [found[0] for found in order if len(found) == 1]
    return numbers if len(set(numbers)) == len(prefixes) else None


def _compare(
    path: str,
    described: Mapping[str, Any],
    order: Sequence[int],
    parts: Sequence[Mapping[str, Any]],
    intended: IntendedBlend,
    matrix: SplitMatrix | None,
) -> DrawnBlend:
    is_blend = described["class"] == BLENDED_CLASS
    index = open_cached_index(path, "dataset_index" if is_blend else "shuffle_index")
    asked, there = described.get("size" if is_blend else "num_samples"), len(index)
    if isinstance(asked, int) and (asked != there if is_blend else asked > there):
        msg = f"{path}: expected {asked:,} samples, as its description says, got {there:,}; build the cache again"
        raise FormatError(msg)
    drawn = count_drawn(path, index, len(order)).tolist() if is_blend else [there if asked is None else asked]
    drawn = [drawn[number] for number in order]
    length = parts[0]["sequence_length"]
    findings = _find_other_data(os.path.dirname(path), parts, intended, matrix)
    phases = [
        replace(
            phase,
            drawn=tuple(phase.drawn[number] for number in order),
            intended=None if phase.intended is None else tuple(phase.intended[number] for number in order),
        )
        for phase in (read_phases(path, index, len(order)) if is_blend else ())
    ]
    if not phases:
        findings += _find_differences(drawn, length, intended)
    for phase in phases:
        findings += phase.findings
    if phases:
        drawn = [sum(column) for column in zip(*(phase.drawn for phase in phases), strict=True)]
    if phases and phases[-1].what == "continued":
        said = _find_differences(phases[-1].drawn, length, replace(intended, tokens=None))
        findings += [f"from sample {phases[-1].begin:,} on, {sentence}" for sentence in said]
    return DrawnBlend(
        split=intended.split,
        description=path,
        prefixes=intended.prefixes,
        num_samples=tuple(drawn),
        sequence_length=length,
        findings=tuple(findings),
        cuts=tuple(map(partial(_cuts_of, os.path.dirname(path)), intended.prefixes, parts)),
        phases=tuple(phases),
    )


def _cuts_of(folder: str, prefix: str, described: Mapping[str, Any]) -> Cuts | None:
    path = find_description(folder, described)
    files = files_beside(path, described)
    if not all(os.path.isfile(files.array(name)) for name in ("document_index", "shuffle_index")):
        return None
    documents, samples = open_cached_index(path, "document_index"), open_cached_index(path, "shuffle_index")
    lengths = read_index(f"{prefix}.idx").sequence_lengths
    try:
        return count_cuts(lengths, documents, sequence_length=described["sequence_length"], num_samples=len(samples))
    except IndexError:  # of other data, as the findings say
        return None


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
        what = "blend" if len(drawn) > 1 else "cache"
        findings.append(
            f"the {what} has {tokens:,} tokens ({size:,} samples of {length:,}), but {wanted_tokens:,} are intended"
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
    valid: PartCounts | None = None
    """Its part in the valid split; None if there is none."""


def count_source(prefix: str, matrix: SplitMatrix) -> SourceCounts:
    """Count a dataset and its part in the train split.

    Raises:
        InputError: If there is no such dataset, it has no tokens in the part, or it is no dataset of tokens.
        FormatError: If its `.idx` is damaged.
    """
    idx = f"{prefix}.idx"
    if not os.path.isfile(idx):
        near = [found.removesuffix(".idx") for found in sorted(glob.glob(f"{glob.escape(prefix)}_*.idx"))]
        hint = f"did you mean {', '.join(near[:4])}?" if near else "check the path"
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
        valid=others[0],
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


# What is probably not meant in a mixture, as sentences.

MANY_EPOCHS = 4
"""Up to about four epochs, repeated tokens are nearly worth as much as new ones (Muennighoff et al., 2023)."""


def find_warnings(mixture: Mixture, counts: Sequence[SourceCounts]) -> list[str]:
    """Return sentences about datasets that are repeated often, too small, or made for another loss."""
    sentences = []
    for source, counted in zip(mixture.sources, counts, strict=True):
        sample = mixture.sequence_length + 1
        if source.tokens < sample:
            sentences.append(
                f"{source.prefix} has {source.tokens:,} tokens, less than one sample of {sample:,}, so each sample "
                "repeats them; leave it out, or merge it with another dataset"
            )
        elif source.epochs > MANY_EPOCHS:
            sentences.append(
                f"{source.prefix} is read {show_epochs(source.epochs)} times; repeating a dataset more than "
                f"{MANY_EPOCHS} times gains little"
            )
        if source.num_samples < 1:
            sentences.append(
                f"{source.prefix} gives no sample: {show_percent(source.share)} of "
                f"{count(mixture.num_samples, 'sample')} is {source.share * mixture.num_samples:.2g}; raise its share "
                "or the budget, or leave it out"
            )
        if counted.has_mask:
            sentences.append(
                f"{source.prefix} is instruction data; Megatron's blend ignores its loss mask and trains on all tokens"
            )
    parts = [(each.prefix, each.valid) for each in counts]
    tails = describe_tails([(prefix, part.begin, part.end) for prefix, part in parts if part is not None])
    tokenizers = tell_tokenizers_apart(each.prefix for each in counts)
    return sentences + _find_empty_splits(counts) + [said for said in (tails, tokenizers) if said is not None]


def _find_empty_splits(counts: Sequence[SourceCounts]) -> list[str]:
    sentences = []
    for split in SPLIT_NAMES:
        prefixes = [counted.prefix for counted in counts if split in counted.empty_splits]
        if prefixes:
            sentences.append(
                f"{split} has no tokens of {', '.join(prefixes)}; a job that requests samples of {split} loops "
                "forever: give it a larger share with --split, or datasets of its own with --per-split-data-args-path"
            )
    return sentences


def find_weight_warnings(weights: Sequence[float], mixture: Mixture, counts: Sequence[SourceCounts]) -> list[str]:
    """Return sentences about weights that look like something else than shares of tokens."""
    total = math.fsum(weights)
    largest = max(range(len(weights)), key=lambda number: weights[number])
    source = mixture.sources[largest]
    sentences = []
    if len(weights) > 1 and not any(math.isclose(total, whole, rel_tol=1e-3) for whole in (1, 100)):
        sentences.append(
            f"the weights are not shares: their sum is {total:g}, by which Megatron divides them, so "
            f"{weights[largest]:g} for {source.prefix} is {show_percent(source.share)} of the tokens, or "
            f"{show_epochs(source.epochs)} epochs"
        )
    documents = [counted.num_documents for counted in counts]
    if (
        len(set(weights)) > 1
        and _proportional(weights, documents)
        and not _proportional(weights, [source.tokens for source in mixture.sources])
    ):
        sentences.append(
            "the weights are in proportion to the datasets' numbers of documents; they are shares of tokens, and one "
            f"epoch of each would be {' '.join(show_percent(source.share_of_all) for source in mixture.sources)}"
        )
    return sentences


def _proportional(weights: Sequence[float], sizes: Sequence[int]) -> bool:
    return all(
        math.isclose(weight * sum(sizes), size * math.fsum(weights), rel_tol=0.01)
        for weight, size in zip(weights, sizes, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult(Report):
    """A mixture, and what there is to say about it."""

    mixture: Mixture
    split: str | None
    """As the job has it; None if each split has its own datasets."""
    global_batch_size: int | None
    warnings: tuple[str, ...]
    drawn: tuple[DrawnBlend, ...]
    """What the caches draw; empty without --check."""
    per_split_data_args_path: str | None
    """The file that was written."""
    flags: tuple[str, ...] = ()
    """The flags of the datasets for the training script."""
    held_out: tuple[str, ...] = ()
    """The validation sets beside the datasets, if valid has these."""

    @property
    def num_iterations(self) -> int | None:
        """Iterations of the run, if the batch size is known."""
        return None if self.global_batch_size is None else self.mixture.num_samples // self.global_batch_size

    @property
    def ok(self) -> bool:
        """Whether no cache differs from the mixture."""
        return not any(blend.findings for blend in self.drawn)

    @property
    def data_path(self) -> tuple[str, ...]:
        """The words of Megatron's `--data-path`: weights and prefixes."""
        return self.mixture.data_path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' '.join(self.data_path)}: {count(self.mixture.tokens, 'token')})"

    def lines(self) -> list[str]:
        """Return a report as text: the table, the length of the run, warnings, and what to give to Megatron."""
        mixture = self.mixture
        lines = [*_show_table(mixture), "", *_describe_run(self), *_describe_first(self)]
        lines += [f"warning: {warning}" for warning in self.warnings]
        for blend in self.drawn:
            lines += _describe_drawn(self, blend)
        return [*lines, "", *self.flags]


def run_mix(config: MixConfig) -> MixResult:
    """Plan a mixture, or explain a blend; write its file, and compare it with caches, if asked.

    Raises:
        InputError: If a dataset is missing or has no tokens, or the amounts contradict each other.
        DsindexError: If Megatron would refuse the blend, or a file cannot be read or written.
    """
    prefixes, amounts, weights = _read_sources(config)
    held = [] if config.has_splits_of_their_own else list(filter(None, map(find_hold_out, prefixes)))
    is_held = len(held) == len(prefixes) and config.split is None
    split = None if config.has_splits_of_their_own or is_held else config.split or DEFAULT_SPLIT
    settings = _settings(config, split)
    matrix = WHOLE_IN_TRAIN if settings.matrix is None else settings.matrix
    if matrix[0] is None:
        raise InputError(f"--split: expected a share for train, got {split!r}; a mixture is of the train split")
    counts = _count(prefixes, matrix)
    budget = _tokens_asked(config)
    has_length = budget is not None
    if amounts is not None or weights is not None:
        asked = amounts if amounts is not None else _as_amounts(weights or ())
        has_length = has_length or any(amount.kind is not Kind.SHARE for amount in asked)
        division = divide(asked, [source.part.tokens for source in counts], budget, names=prefixes)
        budget = division.tokens
    batch = config.global_batch_size or 1
    num_samples = None if budget is None else max(1, budget // config.seq_length // batch) * batch
    if amounts is not None:
        weights = write_weights(division.shares, num_samples or 1)
    mixture = mix(counts, weights, num_samples, settings=settings)
    warnings = find_warnings(mixture, counts)
    if is_held:
        config = config.model_copy(update={"valid_data_path": _with_weights(held, mixture)})
    elif held:
        warnings.append(
            f"{', '.join(held[:3])}: held out of its dataset, but valid is by --split; give --valid-data-path in place "
            "of --split"
        )
    if amounts is None and weights is not None:
        warnings += find_weight_warnings([float(weight) for weight in weights], mixture, counts)
    drawn: list[DrawnBlend] = []
    if config.check:
        folder = config.data_cache_path or ""
        blends = _intended(
            config, mixture, counts, settings.matrix, has_length=has_length, has_weights=weights is not None
        )
        drawn = [each for blend in blends for each in check_drawn(folder, blend, matrix=settings.matrix)]
    others = {"valid": config.valid_data_path, "test": config.test_data_path}
    warnings += _check_others(others, mixture)
    return MixResult(
        mixture=mixture,
        split=split,
        global_batch_size=config.global_batch_size,
        warnings=tuple(warnings),
        drawn=tuple(drawn),
        per_split_data_args_path=config.per_split_data_args_path,
        flags=tuple(_write_files(config, mixture, split, others)),
        held_out=tuple(held) if is_held else (),
    )


def _write_files(
    config: MixConfig, mixture: Mixture, split: str | None, others: Mapping[str, Sequence[str] | None]
) -> list[str]:
    """Write what the options ask for, and return the flags for the training script."""
    flags = [f"--data-path {shlex.join(mixture.data_path)}"]
    if config.per_split_data_args_path is not None:
        _write_per_split(config.per_split_data_args_path, mixture, others)
        flags = [f"--per-split-data-args-path {shlex.quote(config.per_split_data_args_path)}"]
    elif split is None:
        words = {"train": mixture.data_path, **others}
        flags = [f"--{name}-data-path {shlex.join(given)}" for name, given in words.items() if given]
    return flags


def _with_weights(held: Sequence[str], mixture: Mixture) -> tuple[str, ...]:
    """Return the blend of the validation sets with the weights of their datasets, if those have any."""
    words = mixture.data_path
    has_weights = len(words) > len(held)
    return tuple(word for pair in zip(words[::2], held, strict=True) for word in pair) if has_weights else tuple(held)


def find_hold_out(prefix: str) -> str | None:
    """Return the validation set that `dsindex build --hold-out` wrote beside a dataset; None if there is none."""
    manifest = read_manifest(prefix)
    share = None if manifest is None else manifest.content.options.leave_out
    if manifest is None or share is None:
        return None
    folder, name = os.path.split(prefix)
    for place in (place for place, letter in enumerate(name) if letter == "_"):
        other = os.path.join(folder, f"{name[:place]}_valid{name[place:]}")
        beside = read_manifest(other)
        if beside is None or beside.content.options.sample != share:
            continue
        inputs = [[each.fingerprint for each in each_manifest.content.inputs] for each_manifest in (manifest, beside)]
        if inputs[0] == inputs[1] and os.path.isfile(f"{other}.idx"):
            return other
    return None


def _check_others(others: Mapping[str, Sequence[str] | None], mixture: Mixture) -> list[str]:
    """Return warnings about the datasets of valid and test.

    Raises:
        InputError: If one is missing or empty.
    """
    trained = {_real(source.prefix) for source in mixture.sources}
    blends = {split: _parse_blend(given, split) for split, given in others.items() if given}
    warnings = describe_sums({"train": parse_data_path(mixture.data_path), **blends})
    for split, blend in blends.items():
        prefixes = blend.prefixes
        _count(prefixes, WHOLE_IN_TRAIN)
        warnings += [
            f"{prefix} is in {split} and in train, so the job is evaluated on what it was trained on"
            for prefix in prefixes
            if _real(prefix) in trained
        ]
    return warnings


def _intended(
    config: MixConfig,
    mixture: Mixture,
    counts: Sequence[SourceCounts],
    matrix: SplitMatrix | None,
    *,
    has_length: bool,
    has_weights: bool,
) -> Iterator[IntendedBlend]:
    """Yield what each split should draw: valid and test have the weights of train, or datasets of their own."""
    prefixes = tuple(source.prefix for source in mixture.sources)
    shares = tuple(source.share for source in mixture.sources)
    yield IntendedBlend(
        split="train",
        prefixes=prefixes,
        shares=shares,
        tokens=mixture.tokens if has_length else None,
        parts=tuple(source.part for source in counts),
    )
    for number, (split, given) in enumerate((("valid", config.valid_data_path), ("test", config.test_data_path)), 1):
        if given:
            blend = _parse_blend(given, split)
            total = sum(blend.weights or ())
            own = None if blend.weights is None else tuple(weight / total for weight in blend.weights)
            yield IntendedBlend(split=split, prefixes=blend.prefixes, shares=own)
        elif matrix is not None and matrix[number] is not None:
            yield IntendedBlend(split=split, prefixes=prefixes, shares=shares if has_weights else None)


def _settings(config: MixConfig, split: str | None) -> CacheSettings:
    try:
        matrix = None if split is None else split_matrix(parse_split(split))
    except ValueError as error:
        raise InputError(f"--split: {error}") from error
    return CacheSettings(sequence_length=config.seq_length, split=split, matrix=matrix)


def _read_sources(config: MixConfig) -> tuple[tuple[str, ...], tuple[Amount, ...] | None, tuple[str, ...] | None]:
    """Return the prefixes, with amounts or else with weights as typed; a blend may have no weights.

    Raises:
        InputError: If an amount is not one, or a dataset is there twice.
        LimitError: If Megatron would refuse a weight.
    """
    amounts: tuple[Amount, ...] | None = None
    weights: tuple[str, ...] | None = None
    try:
        if config.data_path:
            blend = parse_data_path(config.data_path)
            prefixes = blend.prefixes
            weights = None if blend.weights is None else config.data_path[::2]
            if weights is None:
                _check_no_weights(prefixes)
            elif not math.isfinite(sum(blend.weights or ())):
                raise ValueError("--data-path: expected weights with a finite sum; make them smaller")
        else:
            pairs = [read_source(word) for word in config.source]
            prefixes, amounts = tuple(prefix for prefix, _ in pairs), tuple(amount for _, amount in pairs)
    except ValueError as error:
        raise InputError(str(error)) from error
    files: set[str] = set()
    for prefix in prefixes:
        if _real(prefix) in files:
            raise InputError(
                f"{prefix}: expected every dataset once, got it twice; Megatron would draw the same samples for both, "
                "so add the amounts up"
            )
        files.add(_real(prefix))
    return prefixes, amounts, weights


def _real(prefix: str) -> str:
    """Return a dataset's file, whatever links lead to it."""
    return os.path.realpath(f"{prefix}.idx")


def _check_no_weights(prefixes: Sequence[str]) -> None:
    """Refuse weights that Megatron would take for datasets, since they are not before every dataset.

    Raises:
        ValueError: Naming the first.
    """
    for prefix in prefixes:
        if re.fullmatch(r"\d+(\.\d*)?|\.\d+", prefix) and not os.path.isfile(f"{prefix}.idx"):
            msg = f"--data-path: expected a weight before each dataset or before none, got {prefix} and no other pairs"
            raise ValueError(msg)


def _as_amounts(weights: Sequence[str]) -> tuple[Amount, ...]:
    numbers = [Fraction(float(weight)) for weight in weights]
    return tuple(Amount(kind=Kind.SHARE, value=number / sum(numbers)) for number in numbers)


def _count(prefixes: Sequence[str], matrix: SplitMatrix) -> list[SourceCounts]:
    """Count the datasets side by side."""
    with ThreadPoolExecutor(max_workers=available_cpus()) as threads:
        return list(threads.map(lambda prefix: count_source(prefix, matrix), prefixes))


def _tokens_asked(config: MixConfig) -> int | None:
    """Return the tokens of the run, if the options say them.

    Raises:
        InputError: If they are fewer than those of one iteration.
    """
    samples = config.train_samples
    if config.train_iters is not None and config.global_batch_size is not None:
        samples = config.train_iters * config.global_batch_size
    tokens = config.tokens if samples is None else samples * config.seq_length
    least = config.seq_length * (config.global_batch_size or 1)
    if tokens is not None and tokens < least:
        what = "one sample" if config.global_batch_size is None else "one iteration"
        raise InputError(f"expected a run of at least {what}, {least:,} tokens, got {tokens:,}; make it longer")
    return tokens


def _write_per_split(path: str, mixture: Mixture, others: Mapping[str, Sequence[str] | None]) -> None:
    """Write the file of Megatron's `--per-split-data-args-path`.

    Raises:
        OutputError: If the file exists with other content, or cannot be written.
    """
    words = {
        "train": list(mixture.data_path),
        **{name: list(given) if given else None for name, given in others.items()},
    }
    text = json.dumps(words, indent=2, ensure_ascii=False) + "\n"
    if os.path.lexists(path) and not (os.path.isfile(path) and _read(path) == text.encode()):
        raise OutputError(f"{path}: exists already with other content; remove it, or choose another path")
    make_folder(os.path.dirname(path) or ".")
    with atomic_writer(path) as file:
        file.write(text.encode())


def _parse_blend(given: Sequence[str], split: str) -> Blend:
    try:
        return parse_data_path(given, flag=f"--{split}-data-path")
    except ValueError as error:
        raise InputError(str(error)) from error


def _read(path: str) -> bytes:
    try:
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        msg = f"{path}: exists already and cannot be read ({error.strerror}); choose another path"
        raise OutputError(msg) from error


_HEADINGS = ("tokens", "of all", "weight", "drawn", "of drawn", "epochs")


def _show_table(mixture: Mixture) -> list[str]:
    """Return the table; what names have in common is shown once, and where it is too wide, tokens have a unit."""
    begin, names, end = split_names([source.prefix for source in mixture.sources])
    total = sum(source.tokens for source in mixture.sources)
    columns = shown_columns()
    for show in (lambda tokens: f"{tokens:,}", short_number):
        rows = [(f"dataset {begin}…{end}" if begin or end else "dataset", *_HEADINGS)]
        rows += [
            (
                name,
                show(source.tokens),
                show_percent(source.share_of_all),
                source.weight or "-",
                show(source.tokens_drawn),
                show_percent(source.share),
                show_epochs(source.epochs),
            )
            for name, source in zip(names, mixture.sources, strict=True)
        ]
        rows.append(
            ("total", show(total), "100%", "", show(mixture.tokens), "100%", show_epochs(mixture.tokens / total))
        )
        lines = align(rows)
        if columns is None or max(map(len, lines)) <= columns:
            return lines
    rows[0] = ("dataset", *_HEADINGS)
    lines, above = align(rows), [f"{begin}…{end}:"] if begin or end else []
    room = max(12, (columns or 0) - max(map(len, lines)) + max(len(row[0]) for row in rows))
    return above + align((shorten(first, room), *others) for first, *others in rows)


def _describe_run(report: MixResult) -> Iterator[str]:
    mixture = report.mixture
    part = "all of each dataset" if report.split is None else f"the train split of {report.split!r}"
    iterations = ""
    if report.num_iterations is not None:
        iterations = f", {count(report.num_iterations, 'iteration')} of {report.global_batch_size:,}"
    yield (
        f"draws {count(mixture.num_samples, 'sample')} of {mixture.sequence_length:,} tokens from {part}{iterations}: "
        f"--train-samples {mixture.num_samples}"
    )
    if report.held_out:
        yield f"valid is what --hold-out set aside of {'it' if len(report.held_out) == 1 else 'them'}"


def _describe_first(report: MixResult) -> Iterator[str]:
    mixture = report.mixture
    source = mixture.first_to_run_out
    after = mixture.tokens_until_read_once(source)
    if source.tokens_drawn > source.tokens + mixture.sequence_length:
        at = f", at iteration {_iteration(report, after):,}" if report.global_batch_size else ""
        yield f"first to run out: {source.prefix}, after {after:,} of {mixture.tokens:,} tokens{at}"
        if source.epochs_shuffled_together > 1:
            together = f"{source.epochs_shuffled_together:,} epochs are shuffled together"
            yield f"  its {together}, so some of its tokens come again before all have come once"
    else:
        yield f"nothing runs out before the end; {source.prefix} would be the first, after {after:,} tokens"


def _iteration(report: MixResult, tokens: int) -> int:
    return tokens // (report.mixture.sequence_length * (report.global_batch_size or 1))


def _describe_drawn(report: MixResult, blend: DrawnBlend) -> Iterator[str]:
    size = sum(blend.num_samples)
    yield f"{blend.description}: draws {'something else' if blend.findings else 'what is intended'}"
    epoch = {source.prefix: source.tokens for source in report.mixture.sources} if blend.split == "train" else {}
    for prefix, num, share, cuts in zip(blend.prefixes, blend.num_samples, blend.shares, blend.cuts, strict=True):
        tokens = num * blend.sequence_length
        epochs = f", {show_epochs(tokens / epoch[prefix])} epochs" if prefix in epoch else ""
        yield f"  {prefix}: {num:,} of {count(size, 'sample')}, {show_percent(share)}; {tokens:,} tokens{epochs}"
        if cuts is not None:
            yield f"    documents cut: {'; '.join(cuts.lines())}"
    names = [os.path.basename(prefix) for prefix in blend.prefixes]
    for phase in blend.phases:
        yield f"  samples {phase.line(names)}"
    for finding in blend.findings:
        yield f"  FOUND: {finding}"
