"""Blends: their datasets, the samples requested from each, and the limits of Megatron's blending.

Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_builder, `_get_size_per_split_per_dataset`;
megatron.core.datasets.utils, `get_blend_from_list`; megatron.core.datasets.blended_dataset. The order of the samples of
a blend is dsindex.index.arrays's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import LimitError
from dsindex.index.epochs import normalise

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

MAX_DATASETS = np.iinfo(np.int16).max - 1
"""Megatron asserts fewer than 32767 datasets, since the dataset index is int16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blend:
    """The datasets of a split, or of all splits."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None
    """As typed, one for each prefix; None to blend in proportion to the datasets' lengths."""


def parse_data_path(words: Sequence[str], *, flag: str = "--data-path") -> Blend:
    """Parse `W1 P1 W2 P2 …` or `P1 P2 …` as Megatron does: an even number of words may be pairs.

    Raises:
        ValueError: If there is no prefix, or some weights are numbers and others are not.
        LimitError: If a weight is not a positive number, or there are too many datasets.

    >>> parse_data_path(["30", "web", "70", "books"])
    Blend(prefixes=('web', 'books'), weights=(30.0, 70.0))
    >>> parse_data_path(["web", "books"]).weights is None
    True
    """
    if not words:
        raise ValueError(f"{flag}: expected at least one prefix")
    prefixes, weights = [word.strip() for word in words], None
    if len(words) % 2 == 0:
        parsed = [as_number(word) for word in words[::2]]
        numbers = [weight for weight in parsed if weight is not None]
        if numbers and len(numbers) < len(parsed):
            word = words[2 * parsed.index(None)]
            msg = f"{flag}: expected a weight before each prefix or before none, got {word!r} instead of a weight"
            raise ValueError(msg)
        if numbers:
            prefixes, weights = prefixes[1::2], tuple(numbers)
    if len(prefixes) > MAX_DATASETS:
        raise LimitError(
            f"{flag}: expected at most {MAX_DATASETS} datasets in a blend, got {len(prefixes)}: Megatron's dataset "
            "index is int16; merge some of them"
        )
    for prefix, weight in zip(prefixes, weights or (), strict=bool(weights)):
        if not 0 < weight < math.inf:
            raise LimitError(
                f"{flag}: expected a positive weight for {prefix}, got {weight:g}, which Megatron refuses; leave the "
                "dataset out, or change its weight"
            )
    return Blend(prefixes=tuple(prefixes), weights=weights)


def describe_sums(blends: Mapping[str, Blend | None]) -> list[str]:
    """Return a sentence if the weights of the splits' blends have different sums, such as 100 and 1; else nothing."""
    sums = {
        split: round(math.fsum(blend.weights), 6)
        for split, blend in blends.items()
        if blend is not None and blend.weights is not None and len(blend.weights) > 1
    }
    if len(set(sums.values())) < 2:
        return []
    shown = ", ".join(f"{total:g} in {split}" for split, total in sums.items())
    return [f"the weights sum to {shown}: Megatron divides each split's by their sum"]


def as_number(word: str) -> float | None:
    """Return what a word is worth as a weight; None for a prefix."""
    try:
        return float(word)
    except ValueError:
        return None


def samples_wanted(weights: Sequence[float], num_samples: int, *, surplus: float = 0.0) -> list[int]:
    """Return the samples of each dataset of a blend, rounded up, and rounded up again with the surplus.

    Args:
        weights: As typed; normalised here, once.
        num_samples: Samples of the blend.
        surplus: 0 for the samples that the blend draws, MID_LEVEL_SURPLUS for those requested from each dataset.

    >>> samples_wanted([0.9, 0.1], 900), samples_wanted([0.9, 0.1], 900, surplus=0.005)
    ([810, 90], [815, 91])
    """
    return [math.ceil(math.ceil(num_samples * weight) * (1 + surplus)) for weight in normalise(list(weights))]


def check_draws(
    drawn: Counter[int], lengths: Sequence[int], prefixes: Sequence[str], *, place: str, surplus: float
) -> None:
    """Refuse a blend that draws more samples from a dataset than its index has.

    Raises:
        LimitError: Naming the first such dataset; Megatron would fail only after building all indices.
    """
    for dataset in sorted(drawn):
        if drawn[dataset] > lengths[dataset]:
            raise LimitError(
                f"{place}: the blend draws {drawn[dataset]} samples from {prefixes[dataset]}, which has only "
                f"{lengths[dataset]}; raise --mid-level-dataset-surplus from {surplus:g}, here and in the job"
            )
