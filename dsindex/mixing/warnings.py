"""What is probably not meant in a mixture, as sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.indices.splits import SPLIT_NAMES
from dsindex.mixing.amounts import show_epochs, show_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.mixing.counting import SourceCounts
    from dsindex.mixing.mixture import Mixture

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
    return sentences + _find_empty_splits(counts)


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
        len(weights) > 1
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
