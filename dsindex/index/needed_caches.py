"""Determine the caches that a job will look for: Megatron's dataset builder as a pure function of flags and counts.

First the numbers of samples that a training requests. Releases differ: 0.16 and 0.17 ramp the batch size up, which
later ones ignore in favour of a schedule of steps. Then the caches of datasets and blends with these samples.

Source: docs/formats.md §2; megatron/training/training.py, `get_train_valid_test_num_samples` and `update_train_iters`;
megatron/core/num_microbatches_calculator.py; megatron.core.datasets.blended_megatron_dataset_builder,
`_build_blended_dataset_splits`.
"""

from __future__ import annotations

import bisect
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import LimitError
from dsindex.index.blend import samples_wanted
from dsindex.index.cache import GPT_CLASS, BlendedDescription, GPTDescription
from dsindex.index.defaults import MID_LEVEL_SURPLUS
from dsindex.index.epochs import (
    DOCUMENT_DTYPE,
    SPLIT_NAMES,
    STOCK_ORDER,
    DocumentOrder,
    EpochCounts,
    SampleRule,
    SplitMatrix,
    count_epochs,
    normalise,
)
from dsindex.index.job_tokenizer import is_before

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from dsindex.index.blend import Blend

_SINCE_18 = ("start_eval_at_iter", "eval_global_batch_size", "step_batch_size_schedule")
_SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_MAX_STEPS = 10**6


# How long a job runs: epochs of train, numbers of samples, or the flags of a training job.


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsOfTrain:
    """So many epochs of train, and one of valid and test."""

    epochs: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCounts:
    """The samples that are requested from train, valid and test; None for one epoch."""

    counts: tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLength:
    """The length of a training job, in terms of Megatron's flags."""

    train_iters: int | None = None
    train_samples: int | None = None
    global_batch_size: int | None = None
    eval_interval: int | None = None
    eval_iters: int = 100
    full_validation: bool = False
    skip_train: bool = False
    start_eval_at_iter: int | None = None
    eval_global_batch_size: int | None = None
    phase_transition_iterations: tuple[int, ...] = ()
    rampup_batch_size: tuple[int, int, int] | None = None
    """First batch size, increment, and the samples over which it grows."""
    step_batch_size_schedule: str | None = None
    sequence_length: int | None = None
    """By which the tokens of a schedule become samples."""
    release: str | None = None
    """The job's release of Megatron; None if it is not known."""


RunLength = EpochsOfTrain | SampleCounts | TrainingLength


def samples_for_training(length: TrainingLength) -> tuple[int, int | None, int]:
    """Return the numbers of samples that a job requests from train, valid and test.

    Returns:
        Three counts; None for valid means one epoch. With phases, train's is that of the first one.

    Raises:
        ValueError: If the length or the validation interval is missing, or Megatron stops at these flags.

    >>> samples_for_training(TrainingLength(train_iters=1000, global_batch_size=8, eval_interval=100, eval_iters=10))
    (8000, 880, 80)
    """
    batch = _check(length)
    eval_batch = length.eval_global_batch_size or batch
    test = length.eval_iters * eval_batch
    if length.full_validation:
        return phases_of_training(length)[0], None, test
    if length.skip_train:
        return phases_of_training(length)[0], test, test
    if length.eval_interval is None:
        raise ValueError("--train-iters and --train-samples need --eval-interval, or --full-validation")
    validations = _count_iterations(length, batch) // length.eval_interval + 1
    if length.start_eval_at_iter is not None:
        validations = max(0, validations - length.start_eval_at_iter // length.eval_interval)
    return phases_of_training(length)[0], validations * length.eval_iters * eval_batch, test


def phases_of_training(length: TrainingLength) -> tuple[int, ...]:
    """Return the samples that a job requests from train in each of its phases, in order.

    >>> phases_of_training(TrainingLength(train_samples=90, global_batch_size=8, phase_transition_iterations=(5, 10)))
    (40, 40, 10)
    """
    batch = _check(length)
    samples = length.train_samples
    if samples is None:
        samples = (length.train_iters or 0) * batch
    ends = {iteration * batch for iteration in length.phase_transition_iterations}
    borders = [0, *sorted(end for end in ends if 0 < end < samples), samples]
    return tuple(end - begin for begin, end in itertools.pairwise(borders))


def _check(length: TrainingLength) -> int:
    """Refuse what Megatron refuses; return the batch size."""
    iterations, samples = length.train_iters, length.train_samples
    if iterations is None and samples is None:
        raise ValueError("expected either --train-iters or --train-samples")
    if (
        iterations is not None
        and samples is not None
        and not (length.skip_train and not is_before(length.release, "0.17"))
    ):
        msg = "expected either --train-iters or --train-samples, not both, as Megatron does unless it has --skip-train"
        raise ValueError(msg)
    if length.global_batch_size is None:
        raise ValueError("--train-iters and --train-samples need --global-batch-size")
    if is_before(length.release, "0.18"):
        for name in _SINCE_18:
            if getattr(length, name) is not None:
                msg = f"--{name.replace('_', '-')}: Megatron {length.release} has no such flag; leave it out"
                raise ValueError(msg)
    if length.phase_transition_iterations and samples is None:
        msg = "--phase-transition-iterations: Megatron needs --train-samples with it, and stops at --train-iters"
        raise ValueError(msg)
    if length.step_batch_size_schedule is not None:
        parse_schedule(length.step_batch_size_schedule, length.sequence_length)
    if length.rampup_batch_size is not None:
        _check_ramp(length, length.rampup_batch_size, length.global_batch_size)
    return length.global_batch_size


def _check_ramp(length: TrainingLength, ramp: tuple[int, int, int], batch: int) -> None:
    if length.release is None and length.train_samples is not None:
        msg = "--rampup-batch-size needs --megatron-release: it counts up to 0.17, and is ignored from 0.18 on"
        raise ValueError(msg)
    if not is_before(length.release, "0.18"):
        return
    if length.train_samples is None or length.phase_transition_iterations:
        msg = "--rampup-batch-size: Megatron needs --train-samples with it, and no --phase-transition-iterations"
        raise ValueError(msg)
    first, increment, samples = ramp
    growth = batch - first
    if min(first, increment, samples, growth) < 1 or growth % increment or growth // increment > _MAX_STEPS:
        raise ValueError(
            "--rampup-batch-size: expected a first batch size that is smaller than --global-batch-size "
            f"{batch} by a multiple of the increment, and samples above 0, got {first} {increment} "
            f"{samples}, at which Megatron stops"
        )


def _count_iterations(length: TrainingLength, batch: int) -> int:
    """Return the iterations of a job, by Megatron's `update_train_iters` if it counts samples."""
    if length.train_iters is not None:
        return length.train_iters
    samples = length.train_samples or 0
    if length.step_batch_size_schedule is not None:
        return _count_scheduled(samples, parse_schedule(length.step_batch_size_schedule, length.sequence_length))
    if length.rampup_batch_size is not None and is_before(length.release, "0.18"):
        return _count_ramped(samples, batch, length.rampup_batch_size)
    return samples // batch


def parse_schedule(text: str, sequence_length: int | None) -> list[tuple[int, int]]:
    """Return the steps of a `--step-batch-size-schedule` as samples and the batch size from there on.

    Raises:
        ValueError: If it is not valid.

    >>> parse_schedule("0:768 250B:1536", 4096)
    [(0, 768), (61035156, 1536)]
    """
    steps = []
    for entry in text.replace(",", " ").split():
        threshold, colon, size = entry.partition(":")
        if not colon:
            msg = f"--step-batch-size-schedule: expected THRESHOLD:SIZE, as in '0:768 250B:1536', got {entry!r}"
            raise ValueError(msg)
        steps.append((_number(threshold) // (sequence_length or 1), _number(size)))
    steps.sort(key=lambda step: step[0])
    thresholds = [threshold for threshold, _ in steps]
    if (
        thresholds[:1] != [0]
        or len(set(thresholds)) < len(thresholds)
        or min((size for _, size in steps), default=0) < 1
    ):
        raise ValueError(
            "--step-batch-size-schedule: expected different thresholds, the first one 0, and sizes above 0, got "
            f"{text!r}, at which Megatron stops"
        )
    return steps


def _number(text: str) -> int:
    word = text.strip().upper()
    factor = _SUFFIXES.get(word[-1:], 1)
    digits = word if factor == 1 else word[:-1]
    if not re.fullmatch(r"\d{1,30}(\.\d{1,30})?|\.\d{1,30}", digits):
        raise ValueError(f"--step-batch-size-schedule: expected a number such as 768 or 250B, got {text!r}")
    return int(float(digits) * factor)  # in floating point, as in Megatron


def _count_scheduled(samples: int, steps: list[tuple[int, int]]) -> int:
    """Count iterations until all samples are consumed, a step of the schedule at a time."""
    iterations = consumed = 0
    ends = [*(threshold for threshold, _ in steps[1:]), samples]
    for (_, size), end in zip(steps, ends, strict=True):
        missing = min(end, samples) - consumed
        if missing > 0:
            count = -(-missing // size)
            iterations, consumed = iterations + count, consumed + count * size
    return iterations


def _count_ramped(samples: int, final_size: int, ramp: tuple[int, int, int]) -> int:
    """Count iterations of a batch size that grows, an increment at a time, and then of the final one."""
    first, increment, ramp_samples = ramp
    per_increment = ramp_samples / ((final_size - first) // increment)
    last = min(ramp_samples, samples)
    iterations = consumed = 0
    while consumed <= last:
        count, size = _count_alike(consumed, first, increment, per_increment, most=last - consumed)
        iterations, consumed = iterations + count, consumed + count * size
    return iterations + max(0, samples - consumed) // final_size


def _count_alike(consumed: int, first: int, increment: int, per_increment: float, *, most: int) -> tuple[int, int]:
    """Count the next iterations of one batch size in a ramp, and return them with that size."""
    grown = int(consumed / per_increment)  # in floating point, as in Megatron
    size = first + grown * increment
    candidates = range(1, most // size + 2)
    alike = bisect.bisect_left(candidates, grown + 1, key=lambda count: int((consumed + count * size) / per_increment))
    return min(alike + 1, len(candidates)), size


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
    surplus: float = MID_LEVEL_SURPLUS
    split: str | None = None
    """As typed; None if each split has its own path."""
    matrix: SplitMatrix | None = None
    tokenizer: Mapping[str, Any] | str | None = None
    class_name: str = GPT_CLASS
    """Megatron's class of a dataset."""
    multiple_validation_sets: bool = False
    """Whether valid's datasets stay apart; only with a path for each split."""
    order: DocumentOrder = STOCK_ORDER
    ordered_splits: tuple[str, ...] = ("train",)
    """The splits whose documents are in `order`; the others are in Megatron's."""

    @property
    def is_automodel(self) -> bool:
        """Whether the job is one of NeMo Automodel, whose descriptions have the tokenizer's name alone."""
        return isinstance(self.tokenizer, str)

    def order_of(self, split: int) -> DocumentOrder:
        """Return the order of a split's documents."""
        return self.order if SPLIT_NAMES[split] in self.ordered_splits else STOCK_ORDER

    def rule(self, split: int) -> SampleRule:
        """Return the rule by which a split's tokens are cut into samples."""
        return SampleRule(
            sequence_length=self.sequence_length,
            extra_token=self.extra_token,
            keep_partial=self.keep_partial_validation and split == VALID,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendedCache:
    """The cache of one split of a blend."""

    split: int
    description: BlendedDescription
    datasets: tuple[GPTCache, ...]
    requested: int | None
    """Samples that the job reads; rounding makes the blend a little larger. None for all."""


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
        raise LimitError(
            f"{prefix}: expected at most {MAX_SEQUENCES} sequences in one dataset, got {part.end}: Megatron's document "
            "index is int32; split the dataset and blend the parts"
        )
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
        epochs=count_epochs(part.tokens, num_samples, rule=settings.rule(split), place=_place(prefix, split)),
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
    return _blended(caches, split, tuple(normalise(normalise(list(weights)))), sum(wanted), requested=size)


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
            raise LimitError(
                f"{_place(prefix, split)}: expected at least one sample, got none, at which Megatron stops in a blend; "
                "leave the dataset out, or give the split a larger share"
            )
    total = sum(lengths)
    if size is None:
        return _blended(caches, split, tuple(lengths), None, requested=None)
    if size > total:
        raise LimitError(
            f"split {SPLIT_NAMES[split]}: {size} samples were requested and the datasets have {total}, each drawn once "
            "in a blend without weights, so the job would run out of data; request at most that many, or use weights"
        )
    return _blended(caches, split, tuple(normalise(list(lengths))), size, requested=size)


def _blended(
    caches: tuple[GPTCache, ...],
    split: int,
    weights: tuple[float, ...] | tuple[int, ...],
    size: int | None,
    *,
    requested: int | None,
) -> BlendedCache:
    description = BlendedDescription(
        datasets=tuple(cache.description for cache in caches), split=SPLIT_NAMES[split], weights=weights, size=size
    )
    return BlendedCache(split=split, description=description, datasets=caches, requested=requested)


def _place(prefix: str, split: int) -> str:
    return f"{prefix}, split {SPLIT_NAMES[split]}"


def _no_size(split: int) -> str:
    return (
        f"split {SPLIT_NAMES[split]}: a weighted blend needs a number of samples, got none; set --num-samples "
        "TRAIN,VALID,TEST (0 for a split that the job does not use), or leave the split out with --split"
    )
