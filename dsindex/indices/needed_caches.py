"""Determine the caches that a job will look for: Megatron's dataset builder as a pure function of counts.

Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_builder, `_build_blended_dataset_splits`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import LimitError
from dsindex.indices.blend import MID_LEVEL_SURPLUS, samples_wanted
from dsindex.indices.cache import GPT_CLASS, BlendedDescription, GPTDescription
from dsindex.indices.dtypes import DOCUMENT_DTYPE
from dsindex.indices.epochs import EpochCounts, SampleRule, count_epochs
from dsindex.indices.splits import SPLIT_NAMES, SplitMatrix, normalise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsindex.indices.blend import Blend

MAX_SEQUENCES = np.iinfo(DOCUMENT_DTYPE).max
VALID = SPLIT_NAMES.index("valid")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """The sequences and tokens of a dataset that a split draws from."""

    begin: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The settings that all caches of a job share."""

    sequence_length: int
    seed: int = 1234
    extra_token: bool = True
    keep_partial_validation: bool = False
    threshold: float = 0.80
    surplus: float = MID_LEVEL_SURPLUS
    split: str | None = None
    """As typed; None if each split has its own path."""
    matrix: SplitMatrix | None = None
    tokenizer: Mapping[str, Any] | str | None = None
    class_name: str = GPT_CLASS
    """Megatron's class of a dataset."""
    multiple_validation_sets: bool = False
    """Whether valid's datasets stay apart; only with a path for each split."""

    @property
    def is_automodel(self) -> bool:
        """Whether the job is one of NeMo Automodel, whose descriptions have the tokenizer's name alone."""
        return isinstance(self.tokenizer, str)

    def rule(self, split: int) -> SampleRule:
        """Return the rule by which a split's tokens are cut into samples."""
        return SampleRule(
            sequence_length=self.sequence_length,
            extra_token=self.extra_token,
            keep_partial=self.keep_partial_validation and split == VALID,
            threshold=self.threshold,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTCache:
    """The cache of one split of one dataset."""

    prefix: str
    """Prefix of the dataset on this machine."""
    split: int
    part: PartCounts
    description: GPTDescription
    epochs: EpochCounts
    rule: SampleRule


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendedCache:
    """The cache of one split of a blend."""

    split: int
    description: BlendedDescription
    datasets: tuple[GPTCache, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededCaches:
    """All caches that a job will look for."""

    datasets: tuple[GPTCache, ...] = ()
    blends: tuple[BlendedCache, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Sentences about the caches for the user."""


def find_needed_caches(
    blends: Sequence[Blend | None],
    sizes: Sequence[int | None],
    *,
    settings: CacheSettings,
    count_part: Callable[[str, int], PartCounts],
    job_path: Callable[[str], str] = str,
) -> NeededCaches:
    """Return the caches of train, valid and test.

    Args:
        blends: The datasets of each split; None for a split without any. With `settings.matrix` they are the same.
        sizes: Samples requested from each split; None for one epoch.
        settings: Settings of all caches.
        count_part: Returns the counts of a prefix's part in a split.
        job_path: Turns a prefix into the path that the job will type.

    Raises:
        LimitError: If Megatron would loop forever, stop, or run past the data.
    """
    datasets: dict[str, GPTCache] = {}
    blended: list[BlendedCache] = []
    notes: list[str] = []

    def plan_dataset(prefix: str, split: int, num_samples: int | None) -> GPTCache:
        cache = _plan_dataset(prefix, split, num_samples, settings, count_part(prefix, split), job_path(prefix))
        if cache.part.tokens == 0:
            notes.append(f"{_place(prefix, split)}: the part has no tokens, so its index has no samples")
        return datasets.setdefault(repr(cache.description.identifiers()), cache)

    for split, (blend, size) in enumerate(zip(blends, sizes, strict=True)):
        if blend is None:
            continue
        is_single = len(blend.prefixes) == 1
        if blend.weights is not None and size is None and not (is_single and settings.is_automodel):
            raise LimitError(_no_size(split))
        # Megatron treats a single weighted prefix as a blend with --data-path, but not with a path for each split, and
        # NeMo Automodel never does.
        if is_single and (blend.weights is None or settings.matrix is None or settings.is_automodel):
            plan_dataset(blend.prefixes[0], split, size)
        elif settings.multiple_validation_sets and settings.matrix is None and split == VALID:
            for prefix in blend.prefixes:
                plan_dataset(prefix, split, size)
        elif blend.weights is not None and size is not None:
            blended.append(_plan_weighted(blend.prefixes, blend.weights, size, split, settings, plan_dataset))
        else:
            blended.append(_plan_unweighted(blend.prefixes, size, split, plan_dataset))
    return NeededCaches(datasets=tuple(datasets.values()), blends=tuple(blended), notes=tuple(dict.fromkeys(notes)))


def _plan_dataset(
    prefix: str, split: int, num_samples: int | None, settings: CacheSettings, part: PartCounts, path: str
) -> GPTCache:
    if part.end > MAX_SEQUENCES:
        msg = (
            f"{prefix}: expected at most {MAX_SEQUENCES} sequences in one dataset, got {part.end}: Megatron's document "
            "index is int32; split the dataset and blend the parts"
        )
        raise LimitError(msg)
    rule = settings.rule(split)
    return GPTCache(
        prefix=prefix,
        split=split,
        part=part,
        description=GPTDescription(
            dataset_path=path,
            num_samples=num_samples,
            index_split=SPLIT_NAMES[split],
            random_seed=settings.seed,
            sequence_length=settings.sequence_length,
            split=settings.split,
            split_matrix=settings.matrix,
            tokenizer=settings.tokenizer,
            class_name=settings.class_name,
        ),
        epochs=count_epochs(part.tokens, num_samples, rule=rule, place=_place(prefix, split)),
        rule=rule,
    )


def _plan_weighted(
    prefixes: tuple[str, ...],
    weights: tuple[float, ...],
    size: int,
    split: int,
    settings: CacheSettings,
    plan_dataset: Callable[[str, int, int | None], GPTCache],
) -> BlendedCache:
    wanted = samples_wanted(weights, size)
    asked = samples_wanted(weights, size, surplus=settings.surplus)
    caches = tuple(plan_dataset(prefix, split, count) for prefix, count in zip(prefixes, asked, strict=True))
    return _blended(caches, split, tuple(normalise(normalise(list(weights)))), sum(wanted))


def _plan_unweighted(
    prefixes: tuple[str, ...],
    size: int | None,
    split: int,
    plan_dataset: Callable[[str, int, int | None], GPTCache],
) -> BlendedCache:
    caches = tuple(plan_dataset(prefix, split, None) for prefix in prefixes)
    lengths = [cache.epochs.num_samples for cache in caches]
    for prefix, length in zip(prefixes, lengths, strict=True):
        if length == 0:
            msg = (
                f"{_place(prefix, split)}: expected at least one sample, got none, at which Megatron stops in a blend; "
                "leave the dataset out, or give the split a larger share"
            )
            raise LimitError(msg)
    total = sum(lengths)
    if size is None:
        return _blended(caches, split, tuple(lengths), None)
    if size > total:
        msg = (
            f"split {SPLIT_NAMES[split]}: {size} samples were requested and the datasets have {total}, each drawn once "
            "in a blend without weights, so the job would run out of data; request at most that many, or use weights"
        )
        raise LimitError(msg)
    return _blended(caches, split, tuple(normalise(list(lengths))), size)


def _blended(
    caches: tuple[GPTCache, ...], split: int, weights: tuple[float, ...] | tuple[int, ...], size: int | None
) -> BlendedCache:
    description = BlendedDescription(
        datasets=tuple(cache.description for cache in caches), split=SPLIT_NAMES[split], weights=weights, size=size
    )
    return BlendedCache(split=split, description=description, datasets=caches)


def _place(prefix: str, split: int) -> str:
    return f"{prefix}, split {SPLIT_NAMES[split]}"


def _no_size(split: int) -> str:
    return (
        f"split {SPLIT_NAMES[split]}: a weighted blend needs a number of samples, got none; set --num-samples "
        "TRAIN,VALID,TEST (0 for a split that the job does not use), or leave the split out with --split"
    )
