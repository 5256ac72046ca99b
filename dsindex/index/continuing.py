"""Continue the index of a dataset after a number of samples that were read, with other weights or more sequences.

    document index   [ the first job's                  ][ new sequences, once per open epoch ][ epoch ][ epoch ] …
    sample index     [ the first job's, unchanged       ] …
    shuffle index    [ what was read ][ what the open epochs have left ][ epoch ][ epoch ] …

The arrays of the first job stay as they are, so the samples that were read keep their numbers. After them come the
samples that were not read, epoch by epoch, so that nothing comes again before its epoch ends and nothing is lost.
An epoch begins where its first document does: a *segment* of the document index has the documents of one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError, LimitError
from dsindex.index.epochs import DOCUMENT_DTYPE, shuffle_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.index.epochs import DocumentOrder, SampleRule
    from dsindex.index.schedule import WeightCurve

Segment = tuple[int, int]
"""Positions of the document index, and the number of their epoch, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldIndex:
    """The index of a dataset in the first job."""

    paths: tuple[str, str, str]
    """Document, sample and shuffle index."""
    segments: tuple[Segment, ...]
    begin: int
    """First sequence that it draws from."""
    end: int
    num_tokens: int
    """Tokens of the document index."""

    def open(self) -> list[NDArray[Any]]:
        """Map the three arrays."""
        return [np.load(path, mmap_mode="r", allow_pickle=False) for path in self.paths]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedIndex:
    """How the index of a dataset goes on."""

    old: OldIndex | None
    """None for a dataset that the first job did not have."""
    taken: int
    """Samples of it that were read."""
    consumed: int
    """Samples of the run that were read; each number has orders of its own."""
    segments: tuple[Segment, ...]
    """Those of the whole document index: the old ones, new sequences for each open epoch, and new epochs."""
    num_grown: int
    """Segments after the old ones that have the new sequences alone."""
    num_samples: int

    @property
    def num_positions(self) -> int:
        """Entries of the document index."""
        return sum(count for count, _ in self.segments)

    @property
    def num_epochs(self) -> int:
        """Number of the last epoch."""
        return max((epoch for _, epoch in self.segments), default=0)


def divide_into_segments(
    documents: NDArray[Any], recorded: Sequence[Sequence[int]] | None, *, place: str
) -> tuple[Segment, ...]:
    """Return the segments of a document index: those in its record, or equal epochs.

    Raises:
        FormatError: If the document index has others.
    """
    if recorded is not None:
        segments = tuple((int(count), int(epoch)) for count, epoch in recorded)
        if sum(count for count, _ in segments) == len(documents):
            return segments
    count = int(documents.max()) - int(documents.min()) + 1 if len(documents) else 0
    if recorded is None and count and len(documents) % count == 0:
        return tuple((count, epoch) for epoch in range(1, len(documents) // count + 1))
    raise FormatError(
        f"{place}: expected whole epochs of {count} sequences, got {len(documents)} entries; if the cache was "
        "continued itself, its …-dsindex.json has to be beside it"
    )


def count_indexed_tokens(documents: NDArray[Any], lengths: NDArray[np.int32], begin: int) -> int:
    """Return the sum of the lengths of the documents, whose ids begin at `begin`."""
    pieces = range(0, len(documents), 1 << 22)
    return sum(int(lengths[documents[at : at + (1 << 22)] - begin].sum(dtype=np.int64)) for at in pieces)


def plan_continued_index(
    old: OldIndex | None,
    lengths: NDArray[np.int32],
    *,
    begin: int,
    taken: int,
    consumed: int,
    needed: int,
    rule: SampleRule,
    place: str,
) -> ContinuedIndex:
    """Count what has to be appended to an index.

    Args:
        old: The first job's index, of sequences that the part still has; None if it had no such dataset.
        lengths: Tokens of the sequences of the part, now.
        begin: The sequence id of lengths[0].
        taken: Samples that were read.
        consumed: Samples of the run that were read.
        needed: Samples that the index needs, those that were read included.
        rule: How tokens are cut into samples.
        place: Name of the part in messages.

    Raises:
        LimitError: If the part has no tokens.
    """
    per_epoch = int(lengths.sum(dtype=np.int64))
    tokens, last, growth = 0, 0, range(0)
    if old is not None:
        tokens, last = old.num_tokens, max((epoch for _, epoch in old.segments), default=0)
        if old.end - old.begin < len(lengths):
            growth = range(_open_epoch(old, taken), last + 1)
            before = lengths[old.begin - begin : old.end - begin]
            tokens += len(growth) * (per_epoch - int(before.sum(dtype=np.int64)))
    missing = needed * rule.sequence_length + int(rule.extra_token) - tokens
    if missing > 0 and per_epoch == 0:
        raise LimitError(f"{place}: {needed} samples are needed, but the part has no tokens; leave the dataset out")
    appended = max(0 if old is not None else 1, -(-missing // per_epoch) if per_epoch else 0)
    grown = len(lengths) - (old.end - old.begin if old is not None else 0)
    return ContinuedIndex(
        old=old,
        taken=taken,
        consumed=consumed,
        segments=(
            *(old.segments if old is not None else ()),
            *((grown, epoch) for epoch in growth),
            *((len(lengths), epoch) for epoch in range(last + 1, last + 1 + appended)),
        ),
        num_grown=len(growth),
        num_samples=max(0, (tokens + appended * per_epoch - int(rule.extra_token)) // rule.sequence_length),
    )


def _open_epoch(old: OldIndex, taken: int) -> int:
    """Return the first epoch of which not everything was read."""
    _, samples, shuffle = old.open()
    epochs, _ = _epochs_of_samples(samples, old.segments)
    left = np.ones(len(shuffle), np.bool_)
    left[shuffle[:taken]] = False
    return int(epochs[left].min()) if left.any() else max(epoch for _, epoch in old.segments) + 1


def _epochs_of_samples(
    samples: NDArray[Any], segments: Sequence[Segment]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the epoch in which each sample begins, and whether it has tokens of the next segment, which come early."""
    ends = np.cumsum([size for size, _ in segments])
    places = np.searchsorted(ends, samples[:, 0], side="right")
    is_first = np.isin(samples[:, 0], ends) & (samples[:, 1] == 0)
    labels = np.array([epoch for _, epoch in segments], np.int64)
    return labels[places[:-1]], (places[1:] > places[:-1]) & ~is_first[1:]


def build_continued_arrays(
    plan: ContinuedIndex,
    lengths: NDArray[np.int32],
    *,
    begin: int,
    rule: SampleRule,
    seed: int,
    order: DocumentOrder,
    threads: int,
    place: str,
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """Build document, sample and shuffle index.

    Args:
        plan: What they have.
        lengths: Tokens of the sequences of the part, now.
        begin: The sequence id of lengths[0].
        rule: How tokens are cut into samples.
        seed: Seed of the job.
        order: How the documents that are appended are ordered.
        threads: Threads for the sample index.
        place: Name of the part in messages.

    Raises:
        FormatError: If the arrays of the first job are not those of these lengths.
    """
    from dsindex.index.arrays import build_sample_index, shuffle_in_place
    from dsindex.index.document_order import order_epoch

    # The document index: the old one, then the segments that are appended.
    rng = np.random.RandomState([seed, plan.consumed & 0xFFFFFFFF, plan.consumed >> 32])
    end, room = begin + len(lengths), rule.sequence_length
    everything = grown = np.arange(begin, end, dtype=DOCUMENT_DTYPE)
    documents = np.empty(plan.num_positions, DOCUMENT_DTYPE)
    old, filled = plan.old, 0
    if old is not None:
        old_documents, old_samples, old_shuffle = old.open()
        filled = len(old_documents)
        documents[:filled] = old_documents
        room -= old.num_tokens % rule.sequence_length
        grown = everything[(everything < old.begin) | (everything >= old.end)]
    for number, (count, epoch) in enumerate(plan.segments[len(old.segments) if old is not None else 0 :]):
        chosen = documents[filled : filled + count]
        chosen[:] = grown if number < plan.num_grown else everything
        room = order_epoch(
            chosen, lengths, begin=begin, length=rule.sequence_length, room=room, epoch=epoch, order=order, rng=rng
        )
        filled += count
    samples = build_sample_index(lengths, documents, plan.num_samples, rule=rule, begin=begin, threads=threads)
    # The shuffle index: what was read, then what is left, epoch by epoch.
    shuffle = np.empty(plan.num_samples, shuffle_dtype(plan.num_samples))
    left = np.ones(plan.num_samples, np.bool_)
    if old is not None:
        if not np.array_equal(samples[: len(old_samples)], old_samples):
            raise FormatError(
                f"{place}: the sequences have other lengths than when {old.paths[1]} was built, so what was read "
                "is not known; continue with the dataset as it was, which may only have grown at its end"
            )
        shuffle[: plan.taken] = old_shuffle[: plan.taken]
        left[shuffle[: plan.taken]] = False
    epochs, last = _epochs_of_samples(samples, plan.segments)
    filled = plan.taken
    for epoch in np.unique(epochs[left]):
        own = left & (epochs == epoch)
        rows = np.flatnonzero(own & ~last).astype(shuffle.dtype)
        if order.samples != "never":
            shuffle_in_place(rows, rng=rng)
        rows = np.concatenate([rows, np.flatnonzero(own & last).astype(shuffle.dtype)])
        shuffle[filled : filled + len(rows)] = rows
        filled += len(rows)
    return documents, samples, shuffle


# The order in which the datasets of a continued blend take turns.


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedBlend:
    """How the blend of a run goes on."""

    consumed: int
    """Samples that were read; 0 for a schedule from the beginning."""
    old: tuple[str, str] | None
    """Dataset index and dataset sample index of the first job; None if it had one dataset, or there is none."""
    numbers: tuple[int | None, ...]
    """The datasets of the first job → those of this one; None for those that it leaves out, of which nothing was read.
    """
    taken: tuple[int, ...]
    """Samples that were read of each dataset."""
    curve: WeightCurve
    """The weights after what was read."""


def build_continued_blend(plan: ContinuedBlend) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return the dataset of each sample and its number in that dataset, those that were read first."""
    from dsindex.index.arrays import blend_by_schedule

    next_datasets, next_samples = blend_by_schedule(plan.curve, plan.taken)
    datasets = np.full(plan.consumed, plan.numbers[0] if plan.numbers else 0, next_datasets.dtype)
    samples = np.arange(plan.consumed, dtype=next_samples.dtype)
    if plan.old is not None:
        old = [np.load(path, mmap_mode="r", allow_pickle=False)[: plan.consumed] for path in plan.old]
        datasets = np.array([-1 if number is None else number for number in plan.numbers], next_datasets.dtype)[old[0]]
        samples = old[1]
    return np.concatenate([datasets, next_datasets]), np.concatenate([samples, next_samples])
