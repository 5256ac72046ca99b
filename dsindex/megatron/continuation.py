"""Plan and build train caches that continue a first job, or whose blend weights change during the run.

The job's flags decide which train caches it needs, as for any job. This module plans their content: the samples that
the first job read come first, then this job's blend of what each dataset has left.

    document index   [ the first job's                  ][ new sequences, once per open epoch ][ epoch ][ epoch ] …
    sample index     [ the first job's, unchanged       ] …
    shuffle index    [ samples already read ][ unread samples of the open epochs ][ epoch ][ epoch ] …

The first job's arrays stay unchanged, so samples that were read keep their numbers. Unread samples follow, epoch by
epoch, so that no sample repeats before its epoch ends and none is lost. A *segment* of the document index has the
documents of one epoch, which begins where its first document begins.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from dsindex.errors import FormatError, InputError, LimitError
from dsindex.megatron.cache import (
    PIECE,
    CacheFiles,
    CacheRecord,
    Phase,
    Settings,
    descriptions_in,
    files_of,
    find_cache,
    find_description,
    read_description,
    read_lengths,
)
from dsindex.megatron.epochs import DOCUMENT_DTYPE, SPLIT_NAMES, EpochCounts, shuffle_dtype
from dsindex.megatron.plan import ContinuedBlend, ContinuedIndex, WeightCurve
from dsindex.messages import THOUSANDS, count, show_value
from dsindex.store.local import path_exists
from dsindex.store.read import digest_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.megatron.plan import BlendedCache, GPTCache, Segment


TRAIN = SPLIT_NAMES[0]
ROUNDING = 1e-6
"""A dataset whose weight adds up to at most this many samples draws none: the sum has rounding errors."""


def plan_over_time(
    datasets: Sequence[GPTCache],
    blends: Sequence[BlendedCache],
    *,
    continue_from: str | None,
    consumed: int,
    schedule: str | None,
    max_epochs: Fraction | None,
) -> tuple[list[GPTCache], list[BlendedCache], list[str]]:
    """Plan the continued or scheduled train caches of a job; return all its caches, and notes for the user.

    Args:
        datasets: The caches of datasets.
        blends: The caches of blends.
        continue_from: Folder of the first job's caches, or the description of its train cache.
        consumed: Samples that the run has already read.
        schedule: How weights change, as typed.
        max_epochs: Most epochs of a dataset; None for 1 with a schedule, and for no limit without one.

    Raises:
        InputError: If the options do not fit the first job.
        LimitError: If a dataset runs out.
        FormatError: If the first job's caches are damaged, or a dataset changed other than by growing.
    """
    flag = "--continue-from" if continue_from is not None else "--blend-schedule"
    members, blend = _caches_of_train(flag, datasets, blends, needs_blend=schedule is not None)
    length = members[0].rule.sequence_length
    size = blend.num_samples if blend is not None else int(members[0].identifiers["num_samples"] or 0)
    requested = size if blend is None else blend.requested or size
    if consumed >= max(requested, 1):
        what = f"{consumed} is not below the {requested} samples of this job, which include the first job's"
        raise InputError(f"--consumed-samples: {what}", hint="request more, counted from the first job on")
    first, olds = (None, []) if continue_from is None else read_first_job(continue_from)
    numbers, taken = ([], [0] * len(members)) if first is None else _match(first, olds, members, consumed)
    curve = constant_curve([1.0] if blend is None else blend.weights, size)
    if schedule is not None:
        curve = draw_curve(schedule, len(members), num_samples=requested, sequence_length=length)
        curve = replace(curve, num_samples=size)
    curve = curve.beginning_at(consumed)
    wanted = curve.integral(0, size - consumed).tolist()

    most = Fraction(1) if max_epochs is None and schedule is not None else max_epochs
    notes, too_often = [], []
    for place, (member, before, more) in enumerate(zip(members, taken, wanted, strict=True)):
        if first is not None and place not in numbers:
            notes.append(f"{member.prefix} is new: the first job did not have it")
        tokens = (before + more) * length
        epochs = tokens / max(1, member.part.tokens)
        said = f"{count(before, 'sample')} before sample {consumed}, " if consumed else ""
        notes.append(
            f"{member.prefix}: {said}{round(more):,} {'after it' if consumed else 'samples'}; by the end "
            f"of the run {round(tokens):,} tokens, {epochs:.2f} epochs"
        )
        if most is not None and tokens - length > most * member.part.tokens:
            too_often.append(f"{member.prefix} would be read {epochs:.2f} times")
    if too_often:
        hint = "lower the weights, shorten the run, or allow repeats with a larger --max-epochs"
        raise LimitError(f"--max-epochs {float(most or 1):g}: {'; '.join(too_often)}", hint=hint)

    planned = [
        _plan_dataset(
            member,
            olds[numbers.index(place)] if place in numbers else None,
            taken=taken[place],
            wanted=wanted[place],
            consumed=consumed,
        )
        for place, member in enumerate(members)
    ]
    by_name = {member.files.stem: member for member in planned}
    changed = [by_name.get(dataset.files.stem, dataset) for dataset in datasets]
    if blend is None:
        return changed, list(blends), notes
    known = (() if first is None else first.record.settings.phases) or (Phase(0, "first job"),)
    phases = [phase for phase in known if phase.begin < consumed]
    what = "schedule" if schedule is not None else "continued"
    phases += [Phase(consumed + int(start), what) for start in curve.starts]
    content = (
        msgspec.to_builtins(phases),
        tuple(taken),
        curve.weights.tolist(),
        curve.slopes.tolist(),
        [own.settings.plan for own in planned],
    )
    replaced = replace(
        blend,
        datasets=tuple(planned),
        continued=ContinuedBlend(
            consumed=consumed,
            old=first.files if first is not None and first is not olds[0] else None,
            numbers=tuple(numbers),
            taken=tuple(taken),
            curve=curve,
        ),
        settings=Settings(plan=_plan_name(consumed, content), consumed_samples=consumed, phases=tuple(phases)),
    )
    return changed, [replaced if each is blend else each for each in blends], notes


def _caches_of_train(
    flag: str, datasets: Sequence[GPTCache], blends: Sequence[BlendedCache], *, needs_blend: bool
) -> tuple[Sequence[GPTCache], BlendedCache | None]:
    """Return the caches of train's datasets, in the order of the blend, and the blend's cache.

    Raises:
        InputError: If train has several caches, or is not blended by weights.
    """
    own = [cache for cache in datasets if cache.split == TRAIN]
    blended = [blend for blend in blends if blend.split == TRAIN]
    if len(blended) > 1 or (not blended and len(own) != 1):
        raise InputError(f"{flag}: train has several caches", hint="leave out --phase-transition-iterations")
    if not blended and not needs_blend:
        return own, None
    members = blended[0].datasets if blended else ()
    if not members or blended[0].requested is None or members[0].identifiers["num_samples"] is None:
        hint = "give a weight before each dataset, here and in the job, as in --data-path 1 PREFIX"
        raise InputError(f"{flag}: without weights, Megatron asks for all samples of each dataset, once", hint=hint)
    if len({member.files.stem for member in members}) < len(members):
        raise InputError(f"{flag}: a dataset is given twice", hint="add the weights up")
    return members, blended[0]


def _plan_name(consumed: int, content: object) -> str:
    """Name a plan, since the names of caches do not tell plans apart."""
    return f"planned after {count(consumed, 'sample')}, {xxhash.xxh3_64_hexdigest(repr(content).encode())[:8]}"


# The first job.


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCache:
    """A train cache of the first job, of a blend or of one dataset."""

    files: CacheFiles
    described: dict[str, Any]
    """The description, with the dataset's path as the job types it."""
    record: CacheRecord
    """dsindex's record; empty for another program's cache."""

    def is_of(self, cache: GPTCache) -> bool:
        """Tell whether both caches are of the same dataset, by the job's path or by the recorded path here."""
        is_here = self.record.source is not None and self.record.source.prefix == os.path.abspath(cache.path)
        return is_here or cache.identifiers["dataset_path"] == self.described["dataset_path"]


def read_first_job(path: str) -> tuple[FirstCache, list[FirstCache]]:
    """Read a train cache, and the caches of its datasets (without a blend, the cache itself).

    Args:
        path: The description, or its folder.

    Raises:
        InputError: If the folder does not have exactly one train cache.
        FormatError: If they are damaged, or were changed after dsindex wrote them.
    """
    if path_exists(os.path.join(path, ".")):  # a folder, or a link to one
        path = find_cache(descriptions_in(path), TRAIN, place=f"--continue-from {path}")
    own = _read_first(path)
    parts = own.described.get("datasets")
    return own, [own] if parts is None else [
        _read_first(find_description(os.path.dirname(path), part)) for part in parts
    ]


def _read_first(path: str) -> FirstCache:
    described, files = read_description(path), files_of(path)
    record = files.read_record() or CacheRecord()
    if record.files and (changed := files.changed(record)):
        what = f"{', '.join(changed)} changed since dsindex wrote it, so what the first job read is unknown"
        raise FormatError(f"{files.stem}: {what}", hint="use the arrays that the job had")
    return FirstCache(files=files, described=described, record=record)


def _match(
    first: FirstCache, olds: Sequence[FirstCache], members: Sequence[GPTCache], consumed: int
) -> tuple[list[int | None], list[int]]:
    """Find the datasets of the first job in this job, which has to cut samples in the same way.

    Returns:
        For each dataset of the first job, its number in this job, or None if it is left out; and for each dataset of
        this job, the number of samples that were read.

    Raises:
        InputError: If sample borders differ, or this job leaves out a dataset that was read.
        FormatError: If the samples that were read are not the first ones of each dataset.
    """
    rule, length, place = members[0].rule, olds[0].described["sequence_length"], first.files.stem
    if length != rule.sequence_length:
        what = f"samples have {length} tokens in {place}, not {rule.sequence_length}"
        raise InputError(f"--continue-from: {what}", hint="continue with the same --seq-length")
    if olds[0].record.settings.extra_token != rule.extra_token:
        raise InputError("--no-extra-token has to be as in the first job: the borders of samples depend on it")
    *datasets, samples = map(first.files.open, first.files.arrays)
    if consumed > len(samples):
        raise InputError(f"--consumed-samples {consumed}: the first job in {place} has only {len(samples)} samples")
    sizes = [consumed]
    if first is not olds[0]:
        drawn = [samples[:consumed][datasets[0][:consumed] == number] for number in range(len(olds))]
        sizes = list(map(len, drawn))
        if sum(sizes) < consumed or any(len(own) and own.max() + 1 != len(own) for own in drawn):
            raise FormatError(f"{place}: the samples of a dataset are not in order")
    numbers: list[int | None] = []
    taken = [0] * len(members)
    for old, size in zip(olds, sizes, strict=True):
        number = next((place for place, member in enumerate(members) if old.is_of(member)), None)
        if number is not None:
            taken[number] = size
        elif size:
            path = old.described["dataset_path"]
            hint = (
                "add it with a weight of 1e-9, which draws nothing, under its path in the first job (--dataset-path-as)"
            )
            what = f"{path}, of which the first job read {count(size, 'sample')}, is missing"
            raise InputError(f"--continue-from: {what}", hint=hint)
        numbers.append(number)
    return numbers, taken


# One dataset.


def _plan_dataset(cache: GPTCache, first: FirstCache | None, *, taken: int, wanted: float, consumed: int) -> GPTCache:
    """Return a dataset's cache with its continuation planned, large enough for all samples that the run draws from it.

    Raises:
        FormatError: If the first job's index is damaged, or draws from sequences outside the part.
        LimitError: If the part has no tokens.
    """
    begin, rule, per_epoch = cache.part.begin, cache.rule, cache.part.tokens
    lengths = read_lengths(cache.path, begin, cache.part.end)
    files = None if first is None else first.files
    documents, samples, shuffle = _open_first(files)
    start, end = (int(documents.min()), int(documents.max()) + 1) if len(documents) else (begin, begin)
    if start < begin or end > cache.part.end:
        what = f"the first job draws from sequences {start} to {end - 1}, not {begin} to {cache.part.end - 1}"
        hint = "keep --split; a dataset may grow at its end, but not shrink"
        raise FormatError(f"{cache.name}: {what}", hint=hint)
    pieces = range(0, len(documents), PIECE)
    tokens = num_old = sum(int(lengths[documents[at : at + PIECE] - begin].sum(dtype=np.int64)) for at in pieces)
    segments = () if first is None else _segments_of(first, len(documents), end - start)
    last = max((epoch for _, epoch in segments), default=0)
    growth, grown = range(0), len(lengths) - (end - start)
    if grown:  # added sequences go into every epoch that has unread samples
        epochs, _ = _epochs_of_samples(samples, segments)
        left = np.ones(len(shuffle), np.bool_)
        left[shuffle[:taken]] = False
        growth = range(int(epochs[left].min()) if left.any() else last + 1, last + 1)
        tokens += len(growth) * (per_epoch - int(lengths[start - begin : end - begin].sum(dtype=np.int64)))
    asked = cache.identifiers["num_samples"] or 0
    needed = max(asked, taken + math.floor(wanted + 1) if wanted > ROUNDING else taken)
    missing = needed * rule.sequence_length + int(rule.extra_token) - tokens
    if missing > 0 and per_epoch == 0:
        raise LimitError(f"{cache.name}: the part has no tokens for {needed} samples", hint="leave the dataset out")
    appended = max(not segments, -(-missing // per_epoch) if per_epoch else 0)
    num_samples = max(0, (tokens + appended * per_epoch - int(rule.extra_token)) // rule.sequence_length)
    own = (
        *segments,
        *((grown, epoch) for epoch in growth),
        *((len(lengths), epoch) for epoch in range(last + 1, last + 1 + appended)),
    )
    content = (own, taken, consumed, cache.seed, () if files is None else tuple(map(digest_file, files.paths[:-1])))
    return replace(
        cache,
        continued=ContinuedIndex(
            files=files,
            begin=start,
            end=end,
            num_tokens=num_old,
            taken=taken,
            consumed=consumed,
            segments=own,
            num_old=len(segments),
            num_grown=len(growth),
        ),
        epochs=EpochCounts(
            tokens_per_epoch=per_epoch,
            num_epochs=max((epoch for _, epoch in own), default=0),
            num_samples=num_samples,
            separate_final_epoch=False,
            shuffled_together=num_samples,
        ),
        settings=msgspec.structs.replace(
            cache.settings, plan=_plan_name(consumed, content), consumed_samples=consumed, taken=taken, segments=own
        ),
    )


def _open_first(files: CacheFiles | None) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Map document, sample and shuffle index of the first job; they are empty for a dataset that is new.

    Raises:
        FormatError: If they are damaged.
    """
    if files is None:
        return np.empty(0, DOCUMENT_DTYPE), np.empty((0, 2), DOCUMENT_DTYPE), np.empty(0, np.uint32)
    documents, samples, shuffle = map(files.open, files.arrays)
    if len(shuffle) != len(samples) - 1 or (len(shuffle) and not 0 <= shuffle.min() <= shuffle.max() < len(shuffle)):
        raise FormatError(f"{files.stem}: the shuffle index is not one of its samples", hint="build the cache again")
    return documents, samples, shuffle


def _segments_of(first: FirstCache, num_positions: int, per_epoch: int) -> tuple[Segment, ...]:
    """Return the recorded segments of a document index; without a record, one segment per epoch.

    Raises:
        FormatError: If the segments do not add up to the document index.
    """
    segments = first.record.settings.segments
    if segments is None:
        segments = tuple((per_epoch, epoch + 1) for epoch in range(num_positions // max(1, per_epoch)))
    if sum(size for size, _ in segments) != num_positions:
        what = f"{num_positions} entries are not whole epochs of {per_epoch} sequences"
        hint = "if this cache was itself continued, put its …-dsindex.json next to it"
        raise FormatError(f"{first.files.stem}: {what}", hint=hint)
    return segments


def _epochs_of_samples(
    samples: NDArray[Any], segments: Sequence[Segment]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the epoch in which each sample begins, and whether it also has tokens of the next segment."""
    ends = np.cumsum([size for size, _ in segments])
    places = np.searchsorted(ends, samples[:, 0], side="right")
    is_first = np.isin(samples[:, 0], ends) & (samples[:, 1] == 0)
    labels = np.array([epoch for _, epoch in segments], np.int64)
    return labels[places[:-1]], (places[1:] > places[:-1]) & ~is_first[1:]


def build_continued_arrays(
    cache: GPTCache, plan: ContinuedIndex, lengths: NDArray[np.int32], *, threads: int
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """Build the document, sample and shuffle index of a continued dataset.

    Args:
        cache: The dataset's cache.
        plan: How its index continues.
        lengths: Tokens of each sequence of the part, as it is now.
        threads: Threads for the sample index.

    Raises:
        FormatError: If the arrays of the first job do not belong to these lengths.
    """
    from dsindex.megatron.arrays import build_sample_index, shuffle_in_place
    from dsindex.megatron.document_order import order_epoch

    begin, rule, order, num_samples = cache.part.begin, cache.rule, cache.order, cache.num_samples
    # The document index: the old one, then the appended segments.
    rng = np.random.RandomState([cache.seed, plan.consumed & 0xFFFFFFFF, plan.consumed >> 32])
    old_documents, old_samples, old_shuffle = _open_first(plan.files)
    everything = np.arange(begin, cache.part.end, dtype=DOCUMENT_DTYPE)
    grown = everything[(everything < plan.begin) | (everything >= plan.end)]
    documents = np.empty(plan.num_positions, DOCUMENT_DTYPE)
    filled = len(old_documents)
    documents[:filled] = old_documents
    room = rule.sequence_length - plan.num_tokens % rule.sequence_length
    for number, (size, epoch) in enumerate(plan.segments[plan.num_old :]):
        chosen = documents[filled : filled + size]
        chosen[:] = grown if number < plan.num_grown else everything
        room = order_epoch(
            chosen, lengths, begin=begin, length=rule.sequence_length, room=room, epoch=epoch, order=order, rng=rng
        )
        filled += size
    samples = build_sample_index(lengths, documents, num_samples, rule=rule, begin=begin, threads=threads)
    if not np.array_equal(samples[: len(old_samples)], old_samples):
        what = "sequences have other lengths than in the first job, so what it read is unknown"
        hint = "continue with the dataset as it was, which may only have grown at its end"
        raise FormatError(f"{cache.name}: {what}", hint=hint)
    # The shuffle index: samples already read, then unread ones, epoch by epoch.
    filled = plan.taken
    shuffle = np.empty(num_samples, shuffle_dtype(num_samples))
    shuffle[:filled] = old_shuffle[:filled]
    left = np.ones(num_samples, np.bool_)
    left[shuffle[:filled]] = False
    epochs, last = _epochs_of_samples(samples, plan.segments)
    for epoch in np.unique(epochs[left]):
        own = left & (epochs == epoch)
        rows = np.flatnonzero(own & ~last).astype(shuffle.dtype)
        if order.samples != "never":
            shuffle_in_place(rows, rng=rng)
        rows = np.concatenate([rows, np.flatnonzero(own & last).astype(shuffle.dtype)])
        shuffle[filled : filled + len(rows)] = rows
        filled += len(rows)
    return documents, samples, shuffle


def build_continued_blend(plan: ContinuedBlend) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Return each sample's dataset and its number in that dataset; samples already read come first."""
    from dsindex.megatron.arrays import blend_by_schedule

    next_datasets, next_samples = blend_by_schedule(plan.curve, plan.taken)
    datasets = np.full(plan.consumed, plan.numbers[0] if plan.numbers else 0, next_datasets.dtype)
    samples = np.arange(plan.consumed, dtype=next_samples.dtype)
    if plan.old is not None:
        old = [plan.old.open(name)[: plan.consumed] for name in plan.old.arrays]
        datasets = np.array([-1 if number is None else number for number in plan.numbers], next_datasets.dtype)[old[0]]
        samples = old[1]
    return np.concatenate([datasets, next_datasets]), np.concatenate([samples, next_samples])


# Blends whose weights change over a run: `--blend-schedule`, and the samples that it draws from each dataset.
#
#     0:90,10 50%:50,50               steps: 90,10 for half of the run, then 50,50
#     linear 0:90,10 200Btokens:1,1   linear from the first weights to the second, then constant
#
# W[d](t) is the integral of the normalised weight of dataset d over the first t samples. `arrays.blend_by_schedule`
# draws samples so that the samples taken from each dataset differ from W[d](t) by less than one at every t.

_POSITION = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)([kmbt]?) ?(%|tokens?|samples?|)", flags=re.ASCII | re.IGNORECASE)
_WEIGHT = re.compile(r"(\d{1,20}(\.\d{0,20})?|\.\d{1,20})(e-?\d{1,2})?", flags=re.ASCII | re.IGNORECASE)
_BEGIN = "give weights from 0 on, as in '0:90,10 50%:50,50'"


def constant_curve(weights: Sequence[float], num_samples: int) -> WeightCurve:
    """Return the curve of weights that do not change."""
    shares = np.array([weights], np.float64) / sum(weights)
    return WeightCurve(starts=np.zeros(1), weights=shares, slopes=np.zeros_like(shares), num_samples=num_samples)


def draw_curve(schedule: str, num_datasets: int, *, num_samples: int, sequence_length: int) -> WeightCurve:
    """Return the weights of datasets over a run.

    Args:
        schedule: The value of --blend-schedule.
        num_datasets: Datasets of the blend.
        num_samples: Samples of the run.
        sequence_length: L, which converts positions in tokens to samples.

    Raises:
        InputError: If it is not a schedule, or does not fit the datasets or the run.

    >>> curve = draw_curve("0:9,1 50%:1,1", 2, num_samples=100, sequence_length=8)
    >>> curve.integral(0, 100).tolist()
    [70.0, 30.0]
    """
    words, starts, rows = schedule.split(), list[int](), list[list[float]]()
    is_linear = words[:1] == ["linear"]
    last = num_samples if is_linear else num_samples - 1
    samples_by_unit = {"t": Fraction(1, sequence_length), "%": Fraction(num_samples, 100)}
    for word in words[1:] if words[:1] in (["steps"], ["linear"]) else words:
        position, _, after = word.partition(":")
        found = _POSITION.fullmatch(position)
        if found is None or (found[2] and found[3] in {"", "%"}):
            hint = "write POSITION:WEIGHT,WEIGHT with a position such as 16000, 250Btokens or 50%"
            raise InputError(f"--blend-schedule: {show_value(word)} is not weights at a position", hint=hint)
        weights = [float(weight) for weight in after.split(",") if _WEIGHT.fullmatch(weight)]
        if len(weights) <= after.count(",") or not any(weights):
            raise InputError(f"--blend-schedule: {show_value(after)} at {position} are not weights above 0")
        if not starts and Fraction(found[1]):
            raise InputError(f"--blend-schedule begins at {position}", hint=_BEGIN)
        number = Fraction(found[1]) * THOUSANDS[found[2].lower()]
        start = int(number * samples_by_unit.get(found[3][:1].lower(), 1))
        if start > last or (starts and start <= starts[-1]):
            raise InputError(f"--blend-schedule: {position} (sample {start}) is not ascending and up to {last}")
        if len(weights) != num_datasets:
            raise InputError(f"--blend-schedule: {position} has {len(weights)} weights of {num_datasets}")
        starts.append(start)
        rows.append(weights)
    if not starts:
        raise InputError("--blend-schedule is empty", hint=_BEGIN)
    places, shares = np.array(starts, np.float64), np.array(rows, np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    slopes = np.zeros_like(shares)
    if is_linear:
        slopes[:-1] = np.diff(shares, axis=0) / np.diff(places)[:, np.newaxis]
    return WeightCurve(starts=places, weights=shares, slopes=slopes, num_samples=num_samples)
