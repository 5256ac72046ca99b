"""What a Megatron job draws from each dataset of a blend: samples, tokens and epochs.

A sample has L tokens, and one more that the next sample begins with, all from one dataset. Megatron draws samples, so
a normalised weight is a share of the samples and of the tokens, whatever the sizes of the datasets.

Source: docs/formats.md §2; megatron.core.datasets.blended_megatron_dataset_builder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from dsindex.errors import LimitError
from dsindex.indices.blend import Blend
from dsindex.indices.needed_caches import CacheSettings, find_needed_caches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.indices.epochs import EpochCounts
    from dsindex.indices.needed_caches import PartCounts
    from dsindex.mixing.counting import SourceCounts


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
    """Tokens drawn, in epochs."""
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
        msg = (
            f"expected at least one sample of {settings.sequence_length + 1:,} tokens, got none; the datasets or the "
            "budget are too small for --seq-length"
        )
        raise LimitError(msg)
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
                epochs_shuffled_together=_shuffled_together(caches[number].epochs),
            )
            for number, source in enumerate(counts)
        ),
        num_samples=size,
        sequence_length=settings.sequence_length,
    )


def _shuffled_together(epochs: EpochCounts) -> int:
    return epochs.num_epochs - int(epochs.separate_final_epoch)


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
