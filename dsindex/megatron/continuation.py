"""Plan and build train caches that continue a first job, or whose blend weights change during the run.

The job's flags decide which train caches it needs, as for any job. This module plans their content: the samples that
the first job read come first, then this job's blend of unread samples.

    document index   [ the first job's                  ][ new sequences, once per open epoch ][ epoch ][ epoch ] …
    sample index     [ the first job's, unchanged       ] …
    shuffle index    [ samples already read ][ unread samples of the open epochs ][ epoch ][ epoch ] …

The first job's arrays stay unchanged, so samples that were read keep their numbers. Unread samples follow, epoch by
epoch, so that no sample repeats before its epoch ends and none is lost. A *segment* of the document index has the
documents of one epoch; the epoch begins where the first of them begins.
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
    members, blend = _find_train_caches(flag, datasets, blends, needs_blend=schedule is not None)
    length = members[0].rule.sequence_length
    size = blend.num_samples if blend is not None else int(members[0].identifiers["num_samples"] or 0)
    requested = size if blend is None else blend.requested or size
    if consumed >= max(requested, 1):
        problem = f"{consumed} is not below the {requested} samples of this job, which include the first job's"
        raise InputError(f"--consumed-samples: {problem}", hint="request more, counted from the first job on")
    first, old_caches = (None, []) if continue_from is None else read_first_job(continue_from)
    numbers, taken = ([], [0] * len(members)) if first is None else _find_members(first, old_caches, members, consumed)
    curve = constant_curve([1.0] if blend is None else blend.weights, size)
    if schedule is not None:
        curve = parse_schedule(schedule, len(members), num_samples=requested, sequence_length=length)
        curve = replace(curve, num_samples=size)
    curve = curve.tail_from(consumed)
    nums_new = curve.integral(0, size - consumed).tolist()

    epoch_limit = Fraction(1) if max_epochs is None and schedule is not None else max_epochs
    notes, problems = [], []
    for number, (member, num_read, num_new) in enumerate(zip(members, taken, nums_new, strict=True)):
        if first is not None and number not in numbers:
            notes.append(f"{member.prefix} is new: the first job did not have it")
        tokens = (num_read + num_new) * length
        epochs = tokens / max(1, member.part.tokens)
        history = f"{count(num_read, 'sample')} before sample {consumed}, " if consumed else ""
        notes.append(
            f"{member.prefix}: {history}{round(num_new):,} {'after it' if consumed else 'samples'}; by the end "
            f"of the run {round(tokens):,} tokens, {epochs:.2f} epochs"
        )
        if epoch_limit is not None and tokens - length > epoch_limit * member.part.tokens:
            problems.append(f"{member.prefix} would be read {epochs:.2f} times")
    if problems:
        hint = "lower the weights, shorten the run, or allow repeats with a larger --max-epochs"
        raise LimitError(f"--max-epochs {float(epoch_limit or 1):g}: {'; '.join(problems)}", hint=hint)

    new_members = [
        _plan_dataset(
            member,
            old_caches[numbers.index(number)] if number in numbers else None,
            taken=taken[number],
            num_new=nums_new[number],
            consumed=consumed,
        )
        for number, member in enumerate(members)
    ]
    members_by_stem = {member.files.stem: member for member in new_members}
    new_datasets = [members_by_stem.get(dataset.files.stem, dataset) for dataset in datasets]
    if blend is None:
        return new_datasets, list(blends), notes
    old_phases = (() if first is None else first.record.settings.phases) or (Phase(0, "first job"),)
    phases = [phase for phase in old_phases if phase.begin < consumed]
    kind = "schedule" if schedule is not None else "continued"
    phases += [Phase(consumed + int(start), kind) for start in curve.starts]
    content = (
        msgspec.to_builtins(phases),
        tuple(taken),
        curve.weights.tolist(),
        curve.slopes.tolist(),
        [cache.settings.plan for cache in new_members],
    )
    new_blend = replace(
        blend,
        datasets=tuple(new_members),
        continued=ContinuedBlend(
            consumed=consumed,
            old=first.files if first is not None and first is not old_caches[0] else None,
            numbers=tuple(numbers),
            taken=tuple(taken),
            curve=curve,
        ),
        settings=Settings(plan=_plan_name(consumed, content), consumed_samples=consumed, phases=tuple(phases)),
    )
    return new_datasets, [new_blend if old_blend is blend else old_blend for old_blend in blends], notes


def _find_train_caches(
    flag: str, datasets: Sequence[GPTCache], blends: Sequence[BlendedCache], *, needs_blend: bool
) -> tuple[Sequence[GPTCache], BlendedCache | None]:
    """Return the caches of train's datasets, in the order of the blend, and the blend's cache.

    Raises:
        InputError: If train has several caches, or is not blended by weights.
    """
    caches = [cache for cache in datasets if cache.split == TRAIN]
    blended = [blend for blend in blends if blend.split == TRAIN]
    if len(blended) > 1 or (not blended and len(caches) != 1):
        raise InputError(f"{flag}: train has several caches", hint="leave out --phase-transition-iterations")
    if not blended and not needs_blend:
        return caches, None
    members = blended[0].datasets if blended else ()
    if not members or blended[0].requested is None or members[0].identifiers["num_samples"] is None:
        hint = "give a weight before each dataset, here and in the job, as in --data-path 1 PREFIX"
        raise InputError(f"{flag}: without weights, Megatron asks for all samples of each dataset, once", hint=hint)
    if len({member.files.stem for member in members}) < len(members):
        raise InputError(f"{flag}: a dataset is given twice", hint="add the weights up")
    return members, blended[0]


def _plan_name(consumed: int, content: object) -> str:
    """Return a name for a plan; the names of caches are the same for all plans."""
    return f"planned after {count(consumed, 'sample')}, {xxhash.xxh3_64_hexdigest(repr(content).encode())[:8]}"


# The first job.


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCache:
    """A train cache of the first job, of a blend or of one dataset."""

    files: CacheFiles
    identifiers: dict[str, Any]
    """The description, with the dataset's path as the job types it."""
    record: CacheRecord
    """dsindex's record; empty for another program's cache."""

    def has_same_dataset(self, cache: GPTCache) -> bool:
        """Tell whether both caches are of the same dataset: its path in the job, or its path here, is the same."""
        is_here = self.record.source is not None and self.record.source.prefix == os.path.abspath(cache.path)
        return is_here or cache.identifiers["dataset_path"] == self.identifiers["dataset_path"]


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
    cache = _read_first_cache(path)
    parts = cache.identifiers.get("datasets")
    return cache, [cache] if parts is None else [
        _read_first_cache(find_description(os.path.dirname(path), part)) for part in parts
    ]


def _read_first_cache(path: str) -> FirstCache:
    identifiers, files = read_description(path), files_of(path)
    record = files.read_record() or CacheRecord()
    if record.files and (changed_names := files.find_changed(record)):
        problem = f"{', '.join(changed_names)} changed since dsindex wrote it, so what the first job read is unknown"
        raise FormatError(f"{files.stem}: {problem}", hint="use the arrays that the job had")
    return FirstCache(files=files, identifiers=identifiers, record=record)


def _find_members(
    first: FirstCache, old_caches: Sequence[FirstCache], members: Sequence[GPTCache], consumed: int
) -> tuple[list[int | None], list[int]]:
    """Find the datasets of the first job in this job, which has to cut samples in the same way.

    Returns:
        For each dataset of the first job, its number in this job, or None if it is left out; and for each dataset of
        this job, the number of samples that were read.

    Raises:
        InputError: If sample borders differ, or this job leaves out a dataset that was read.
        FormatError: If the samples that were read are not the first ones of each dataset.
    """
    rule, length, place = members[0].rule, old_caches[0].identifiers["sequence_length"], first.files.stem
    if length != rule.sequence_length:
        problem = f"samples have {length} tokens in {place}, not {rule.sequence_length}"
        raise InputError(f"--continue-from: {problem}", hint="continue with the same --seq-length")
    if old_caches[0].record.settings.extra_token != rule.extra_token:
        raise InputError("--no-extra-token has to be as in the first job: the borders of samples depend on it")
    *datasets, samples = map(first.files.open, first.files.arrays)
    if consumed > len(samples):
        raise InputError(f"--consumed-samples {consumed}: the first job in {place} has only {len(samples)} samples")
    sizes = [consumed]
    if first is not old_caches[0]:
        ids_by_dataset = [samples[:consumed][datasets[0][:consumed] == number] for number in range(len(old_caches))]
        sizes = list(map(len, ids_by_dataset))
        if sum(sizes) < consumed or any(len(ids) and ids.max() + 1 != len(ids) for ids in ids_by_dataset):
            raise FormatError(f"{place}: the samples of a dataset are not in order")
    numbers: list[int | None] = []
    taken = [0] * len(members)
    for old_cache, num_read in zip(old_caches, sizes, strict=True):
        number = next((position for position, member in enumerate(members) if old_cache.has_same_dataset(member)), None)
        if number is not None:
            taken[number] = num_read
        elif num_read:
            path = old_cache.identifiers["dataset_path"]
            hint = (
                "add it with a weight of 1e-9, which draws nothing, under its path in the first job (--dataset-path-as)"
            )
            problem = f"{path}, of which the first job read {count(num_read, 'sample')}, is missing"
            raise InputError(f"--continue-from: {problem}", hint=hint)
        numbers.append(number)
    return numbers, taken


# One dataset.


def _plan_dataset(cache: GPTCache, first: FirstCache | None, *, taken: int, num_new: float, consumed: int) -> GPTCache:
    """Return a dataset's cache with its continuation planned, large enough for all samples that the run draws from it.

    Raises:
        FormatError: If the first job's index is damaged, or draws from sequences outside the part.
        LimitError: If the part has no tokens.
    """
    begin, rule, per_epoch = cache.part.begin, cache.rule, cache.part.tokens
    lengths = read_lengths(cache.path, begin, cache.part.end)
    files = None if first is None else first.files
    documents, samples, shuffle = _open_first_arrays(files)
    start, end = (int(documents.min()), int(documents.max()) + 1) if len(documents) else (begin, begin)
    if start < begin or end > cache.part.end:
        problem = f"the first job draws from sequences {start} to {end - 1}, not {begin} to {cache.part.end - 1}"
        hint = "keep --split; a dataset may grow at its end, but not shrink"
        raise FormatError(f"{cache.name}: {problem}", hint=hint)
    pieces = range(0, len(documents), PIECE)
    tokens = old_tokens = sum(int(lengths[documents[at : at + PIECE] - begin].sum(dtype=np.int64)) for at in pieces)
    old_segments = () if first is None else _segments_of(first, len(documents), end - start)
    last = max((epoch for _, epoch in old_segments), default=0)
    open_epochs, num_added = range(0), len(lengths) - (end - start)
    if num_added:  # added sequences go into every epoch that has unread samples
        epochs, _ = _epochs_of_samples(samples, old_segments)
        is_unread = np.ones(len(shuffle), np.bool_)
        is_unread[shuffle[:taken]] = False
        open_epochs = range(int(epochs[is_unread].min()) if is_unread.any() else last + 1, last + 1)
        tokens += len(open_epochs) * (per_epoch - int(lengths[start - begin : end - begin].sum(dtype=np.int64)))
    requested = cache.identifiers["num_samples"] or 0
    num_needed = max(requested, taken + math.floor(num_new + 1) if num_new > ROUNDING else taken)
    missing_tokens = num_needed * rule.sequence_length + int(rule.extra_token) - tokens
    if missing_tokens > 0 and per_epoch == 0:
        raise LimitError(f"{cache.name}: the part has no tokens for {num_needed} samples", hint="leave the dataset out")
    num_appended = max(not old_segments, -(-missing_tokens // per_epoch) if per_epoch else 0)
    num_samples = max(0, (tokens + num_appended * per_epoch - int(rule.extra_token)) // rule.sequence_length)
    segments = (
        *old_segments,
        *((num_added, epoch) for epoch in open_epochs),
        *((len(lengths), epoch) for epoch in range(last + 1, last + 1 + num_appended)),
    )
    inputs = (segments, taken, consumed, cache.seed, () if files is None else tuple(map(digest_file, files.paths[:-1])))
    return replace(
        cache,
        continued=ContinuedIndex(
            files=files,
            begin=start,
            end=end,
            num_tokens=old_tokens,
            taken=taken,
            consumed=consumed,
            segments=segments,
            num_old=len(old_segments),
            num_grown=len(open_epochs),
        ),
        epochs=EpochCounts(
            tokens_per_epoch=per_epoch,
            num_epochs=max((epoch for _, epoch in segments), default=0),
            num_samples=num_samples,
            separate_final_epoch=False,
            shuffled_together=num_samples,
        ),
        settings=msgspec.structs.replace(
            cache.settings, plan=_plan_name(consumed, inputs), consumed_samples=consumed, taken=taken, segments=segments
        ),
    )


def _open_first_arrays(files: CacheFiles | None) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
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
        problem = f"{num_positions} entries are not whole epochs of {per_epoch} sequences"
        hint = "if this cache was itself continued, put its …-dsindex.json next to it"
        raise FormatError(f"{first.files.stem}: {problem}", hint=hint)
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
    old_documents, old_samples, old_shuffle = _open_first_arrays(plan.files)
    all_ids = np.arange(begin, cache.part.end, dtype=DOCUMENT_DTYPE)
    added_ids = all_ids[(all_ids < plan.begin) | (all_ids >= plan.end)]
    documents = np.empty(plan.num_positions, DOCUMENT_DTYPE)
    num_filled = len(old_documents)
    documents[:num_filled] = old_documents
    room = rule.sequence_length - plan.num_tokens % rule.sequence_length
    for number, (size, epoch) in enumerate(plan.segments[plan.num_old :]):
        segment_ids = documents[num_filled : num_filled + size]
        segment_ids[:] = added_ids if number < plan.num_grown else all_ids
        room = order_epoch(
            segment_ids, lengths, begin=begin, length=rule.sequence_length, room=room, epoch=epoch, order=order, rng=rng
        )
        num_filled += size
    samples = build_sample_index(lengths, documents, num_samples, rule=rule, begin=begin, threads=threads)
    if not np.array_equal(samples[: len(old_samples)], old_samples):
        problem = "sequences have other lengths than in the first job, so what it read is unknown"
        hint = "continue with the dataset as it was, which may only have grown at its end"
        raise FormatError(f"{cache.name}: {problem}", hint=hint)
    # The shuffle index: samples already read, then unread ones, epoch by epoch.
    num_filled = plan.taken
    shuffle = np.empty(num_samples, shuffle_dtype(num_samples))
    shuffle[:num_filled] = old_shuffle[:num_filled]
    is_unread = np.ones(num_samples, np.bool_)
    is_unread[shuffle[:num_filled]] = False
    epochs, is_crossing = _epochs_of_samples(samples, plan.segments)
    for epoch in np.unique(epochs[is_unread]):
        is_in_epoch = is_unread & (epochs == epoch)
        rows = np.flatnonzero(is_in_epoch & ~is_crossing).astype(shuffle.dtype)
        if order.samples != "never":
            shuffle_in_place(rows, rng=rng)
        rows = np.concatenate([rows, np.flatnonzero(is_in_epoch & is_crossing).astype(shuffle.dtype)])
        shuffle[num_filled : num_filled + len(rows)] = rows
        num_filled += len(rows)
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


def parse_schedule(schedule: str, num_datasets: int, *, num_samples: int, sequence_length: int) -> WeightCurve:
    """Return the weights of datasets over a run.

    Args:
        schedule: The value of --blend-schedule.
        num_datasets: Datasets of the blend.
        num_samples: Samples of the run.
        sequence_length: L, which converts positions in tokens to samples.

    Raises:
        InputError: If the text is not a schedule, or does not fit the datasets or the run.

    >>> curve = parse_schedule("0:9,1 50%:1,1", 2, num_samples=100, sequence_length=8)
    >>> curve.integral(0, 100).tolist()
    [70.0, 30.0]
    """
    words, starts, rows = schedule.split(), list[int](), list[list[float]]()
    is_linear = words[:1] == ["linear"]
    last = num_samples if is_linear else num_samples - 1
    samples_by_unit = {"t": Fraction(1, sequence_length), "%": Fraction(num_samples, 100)}
    for word in words[1:] if words[:1] in (["steps"], ["linear"]) else words:
        position, _, weight_text = word.partition(":")
        match = _POSITION.fullmatch(position)
        if match is None or (match[2] and match[3] in {"", "%"}):
            hint = "write POSITION:WEIGHT,WEIGHT with a position such as 16000, 250Btokens or 50%"
            raise InputError(f"--blend-schedule: {show_value(word)} is not weights at a position", hint=hint)
        weights = [float(weight) for weight in weight_text.split(",") if _WEIGHT.fullmatch(weight)]
        if len(weights) <= weight_text.count(",") or not any(weights):
            raise InputError(f"--blend-schedule: {show_value(weight_text)} at {position} are not weights above 0")
        if not starts and Fraction(match[1]):
            raise InputError(f"--blend-schedule begins at {position}", hint=_BEGIN)
        number = Fraction(match[1]) * THOUSANDS[match[2].lower()]
        start = int(number * samples_by_unit.get(match[3][:1].lower(), 1))
        if start > last or (starts and start <= starts[-1]):
            raise InputError(f"--blend-schedule: {position} (sample {start}) is not ascending and up to {last}")
        if len(weights) != num_datasets:
            raise InputError(f"--blend-schedule: {position} has {len(weights)} weights of {num_datasets}")
        starts.append(start)
        rows.append(weights)
    if not starts:
        raise InputError("--blend-schedule is empty", hint=_BEGIN)
    start_array, shares = np.array(starts, np.float64), np.array(rows, np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    slopes = np.zeros_like(shares)
    if is_linear:
        slopes[:-1] = np.diff(shares, axis=0) / np.diff(start_array)[:, np.newaxis]
    return WeightCurve(starts=start_array, weights=shares, slopes=slopes, num_samples=num_samples)
