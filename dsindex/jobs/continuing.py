"""Plan caches over time: what continues the caches of a first job, and blends whose weights change.

The caches of train are found as for any job, by its flags. Here their content is planned: the first job's samples come
first, then the blend of this job, with what each dataset has left. Everything else about the job stays as it is.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.amounts import count
from dsindex.datasets.gpt import open_index_array
from dsindex.datasets.opening import find_cache
from dsindex.errors import FormatError, InputError, LimitError
from dsindex.index.cache import (
    BLENDED_CLASS,
    CacheFiles,
    changed_files,
    dataset_parts,
    descriptions_in,
    files_beside,
    find_description,
    read_description,
    read_lengths,
    read_record,
    recorded_settings,
)
from dsindex.index.continuing import (
    ContinuedBlend,
    OldIndex,
    count_indexed_tokens,
    divide_into_segments,
    plan_continued_index,
)
from dsindex.index.epochs import PLAN, SPLIT_NAMES, EpochCounts
from dsindex.index.schedule import constant_curve, draw_curve, parse_blend_schedule
from dsindex.store.reading import digest_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.index.plan import BlendedCache, CacheSettings, GPTCache
    from dsindex.options.index import IndexConfig

TRAIN = SPLIT_NAMES[0]
ROUNDING = 1e-6
"""Samples that a weight may add up to and draw none."""


def plan_over_time(
    config: IndexConfig, settings: CacheSettings, datasets: Sequence[GPTCache], blends: Sequence[BlendedCache]
) -> tuple[list[GPTCache], list[BlendedCache], list[str]]:
    """Return the caches of a job with those of train planned over time, and notes for the user.

    Raises:
        InputError: If the options do not fit the first job.
        LimitError: If a dataset runs out.
        FormatError: If the first job's caches are damaged, or a dataset changed in another way than by growing.
    """
    members, blend = _caches_of_train(config, datasets, blends)
    consumed, length = config.consumed_samples or 0, settings.sequence_length
    size = blend.num_samples if blend is not None else int(members[0].identifiers["num_samples"] or 0)
    requested = size if blend is None else blend.requested or size
    if consumed >= max(requested, 1):
        raise InputError(
            f"--consumed-samples: expected less than the {requested} samples of this job, which count from the begin "
            f"of the first one, got {consumed}; request more with --train-samples or --train-iters"
        )
    first = None if config.continue_from is None else read_first_job(config.continue_from)
    numbers, taken = ([], [0] * len(members)) if first is None else _match(config, first, members, consumed)
    curve = constant_curve([1.0] if blend is None else blend.weights, size)
    if config.blend_schedule is not None:
        schedule = parse_blend_schedule(config.blend_schedule)
        curve = draw_curve(schedule, len(members), num_samples=requested, sequence_length=length)
        curve = replace(curve, num_samples=size)
    curve = curve.beginning_at(consumed)
    wanted = curve.integral(0, size - consumed).tolist()
    _refuse_running_out(config, members, [own + more for own, more in zip(taken, wanted, strict=True)])

    planned: list[GPTCache] = []
    notes = []
    for place, (member, before, more) in enumerate(zip(members, taken, wanted, strict=True)):
        old = first.members[numbers.index(place)] if first is not None and place in numbers else None
        planned.append(_plan_dataset(member, old, taken=before, wanted=more, consumed=consumed))
        if first is not None and old is None:
            notes.append(f"{member.prefix} is new: the first job did not have it")
        tokens = (before + more) * length
        said = f"{count(before, 'sample')} before sample {consumed}, " if consumed else ""
        notes.append(
            f"{member.prefix}: {said}{round(more):,} {'after it' if consumed else 'samples'}; by the end "
            f"of the run {round(tokens):,} tokens, {tokens / max(1, member.part.tokens):.2f} epochs"
        )
    if first is not None and settings.matrix is not None and settings.matrix[1] is not None:
        notes.append("valid has the datasets of this job: its loss does not continue that of the first job")
    by_name = {member.files.stem: each for member, each in zip(members, planned, strict=True)}
    changed = [by_name.get(dataset.files.stem, dataset) for dataset in datasets]
    if blend is None:
        return changed, list(blends), notes
    how = ContinuedBlend(
        consumed=consumed,
        old=None if first is None else first.blend,
        numbers=tuple(numbers),
        taken=tuple(taken),
        curve=curve,
    )
    what = "schedule" if config.blend_schedule is not None else "continued"
    replaced = _plan_blend(blend, planned, how, first.phases if first is not None else (), what=what)
    return changed, [replaced if each is blend else each for each in blends], notes


def _caches_of_train(
    config: IndexConfig, datasets: Sequence[GPTCache], blends: Sequence[BlendedCache]
) -> tuple[Sequence[GPTCache], BlendedCache | None]:
    """Return the caches of the datasets of train, in the order of the blend, and that of the blend.

    Raises:
        InputError: If train is no single cache, or is not blended by weights.
    """
    flag = "--continue-from" if config.continue_from is not None else "--blend-schedule"
    own = [cache for cache in datasets if cache.split == TRAIN]
    blended = [blend for blend in blends if blend.split == TRAIN]
    if len(blended) > 1 or (not blended and len(own) != 1):
        raise InputError(f"{flag}: expected one train split, got several; leave out --phase-transition-iterations")
    if not blended and config.blend_schedule is None:
        return own, None
    members = blended[0].datasets if blended else ()
    if not members or blended[0].requested is None or members[0].identifiers["num_samples"] is None:
        raise InputError(
            f"{flag}: expected a weight before each dataset, here and in the job, as in --data-path 1 PREFIX: without "
            "weights, Megatron asks for all samples of each dataset, once"
        )
    if len({member.files.stem for member in members}) < len(members):
        raise InputError(f"{flag}: expected every dataset once, got one twice; add the weights up")
    return members, blended[0]


# The first job.


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstJob:
    """The train caches of a job, as they are on disk."""

    description: str
    """Path of the description."""
    members: tuple[FirstDataset, ...]
    sequence_length: int
    extra_token: bool
    blend: tuple[str, str] | None
    """Dataset index and dataset sample index; None for one dataset without a blend."""
    num_samples: int
    phases: tuple[dict[str, Any], ...]
    """What its record tells of the run."""

    def taken(self, consumed: int) -> list[int]:
        """Count the first samples of the run by dataset.

        Raises:
            FormatError: If they are not the first ones of each dataset.
        """
        if self.blend is None:
            return [consumed]
        datasets, samples = (np.load(path, mmap_mode="r", allow_pickle=False)[:consumed] for path in self.blend)
        taken = [samples[datasets == dataset] for dataset in range(len(self.members))]
        if sum(map(len, taken)) < len(datasets) or any(len(own) and own.max() + 1 != len(own) for own in taken):
            raise FormatError(f"{self.blend[1]}: expected the samples of each dataset in order, got others")
        return list(map(len, taken))


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDataset:
    """The cache of a dataset in the first job."""

    files: CacheFiles
    path: str
    """The dataset, as the job types it."""
    record: dict[str, Any]
    """dsindex's record; empty for another program's cache."""

    def is_of(self, cache: GPTCache) -> bool:
        """Tell whether it is of the same dataset as a cache: by the job's path, or by the one here where recorded."""
        prefix = (self.record.get("source") or {}).get("prefix")
        return cache.identifiers["dataset_path"] == self.path or os.path.abspath(cache.path) == prefix


def read_first_job(path: str) -> FirstJob:
    """Read the train caches in a folder, or those of one description.

    Raises:
        InputError: If there are none, or several.
        FormatError: If they are damaged, or were changed after dsindex wrote them.
    """
    if os.path.isdir(path):
        path = find_cache(descriptions_in(path), TRAIN, place=f"--continue-from {path}")
    described, folder = read_description(path), os.path.dirname(path)
    parts, own = dataset_parts(described), files_beside(path, described)
    is_blend = described["class"] == BLENDED_CLASS
    found = [files_beside(find_description(folder, part), part) if is_blend else own for part in parts]
    members = [
        FirstDataset(files=files, path=str(part["dataset_path"]), record=_read_sound_record(files))
        for files, part in zip(found, parts, strict=True)
    ]
    last = own.array(own.arrays[-1])
    return FirstJob(
        description=path,
        members=tuple(members),
        sequence_length=int(parts[0]["sequence_length"]),
        extra_token=recorded_settings(members[0].record).get("extra_token") is not False,
        blend=(own.array(own.arrays[0]), last) if is_blend else None,
        num_samples=len(open_index_array(last, what="the samples of a job", shape=(None,))),
        phases=tuple(recorded_settings(_read_sound_record(own)).get("phases", ())),
    )


def _read_sound_record(files: CacheFiles) -> dict[str, Any]:
    """Return the record of a cache, if it has one, after a comparison of its digests.

    Raises:
        FormatError: If the files changed.
    """
    record = read_record(files.record) or {}
    if "building" in record:
        raise FormatError(f"{files.record}: dsindex was stopped while it built this cache; build it again first")
    if record and (changed := changed_files(files, record)):
        raise FormatError(
            f"{files.stem}: {', '.join(changed)} changed since dsindex wrote it, so what the first job read is not "
            "known; use the arrays that the job had"
        )
    return record


def _match(
    config: IndexConfig, first: FirstJob, members: Sequence[GPTCache], consumed: int
) -> tuple[list[int | None], list[int]]:
    """Find the datasets of the first job among those of this one, which cuts samples as the first one did.

    Returns:
        The datasets of the first job → those of this one, None for those that it leaves out; and the samples of each
        dataset of this job that were read.

    Raises:
        InputError: If samples have other borders, or a dataset of which something was read is not there.
    """
    length = members[0].rule.sequence_length
    if first.sequence_length != length:
        raise InputError(
            f"--continue-from: expected samples of {first.sequence_length} tokens as in {first.description}, got "
            f"--seq-length {length}; go on with the same length"
        )
    if first.extra_token == config.no_extra_token:
        raise InputError("--no-extra-token: expected it as in the first job, on which the borders of samples depend")
    if consumed > first.num_samples:
        raise InputError(
            f"--consumed-samples: expected at most the {first.num_samples} samples of the first job in "
            f"{first.description}, got {consumed}"
        )
    numbers: list[int | None] = []
    taken = [0] * len(members)
    for old, size in zip(first.members, first.taken(consumed), strict=True):
        number = next((place for place, member in enumerate(members) if old.is_of(member)), None)
        if number is not None:
            taken[number] = size
        elif size:
            raise InputError(
                f"--continue-from: expected {old.path}, of which the first job read {count(size, 'sample')} before "
                f"{consumed}; leave it in --data-path with a weight of 1e-9, which draws nothing more, and spell it as "
                "the first job did, with --dataset-path-as"
            )
        numbers.append(number)
    return numbers, taken


# What comes after it.


def _plan_dataset(cache: GPTCache, first: FirstDataset | None, *, taken: int, wanted: float, consumed: int) -> GPTCache:
    """Return the cache of a dataset with what it continues, and with all samples that the run draws from it."""
    lengths = read_lengths(cache.path, cache.part.begin, cache.part.end)
    old = None if first is None else _read_old_index(first, lengths, begin=cache.part.begin, place=cache.name)
    asked = cache.identifiers["num_samples"] or 0
    plan = plan_continued_index(
        old,
        lengths,
        begin=cache.part.begin,
        taken=taken,
        consumed=consumed,
        needed=max(asked, taken + math.floor(wanted + 1) if wanted > ROUNDING else taken),
        rule=cache.rule,
        place=cache.name,
    )
    before = () if old is None else tuple(map(digest_file, old.paths))
    return replace(
        cache,
        continued=plan,
        epochs=EpochCounts(
            tokens_per_epoch=cache.part.tokens,
            num_epochs=plan.num_epochs,
            num_samples=plan.num_samples,
            separate_final_epoch=False,
            shuffled_together=plan.num_samples,
        ),
        planned={
            PLAN: _plan_name(consumed, (plan.segments, taken, consumed, cache.seed, before)),
            "consumed_samples": consumed,
            "taken": taken,
            "segments": [list(segment) for segment in plan.segments],
        },
    )


def _plan_name(consumed: int, content: object) -> str:
    """Return what tells caches of one name apart that were planned over time."""
    return f"planned after {count(consumed, 'sample')}, {xxhash.xxh3_64_hexdigest(repr(content).encode())[:8]}"


def _read_old_index(first: FirstDataset, lengths: NDArray[np.int32], *, begin: int, place: str) -> OldIndex:
    """Read the index of a dataset of the first job.

    Args:
        first: Its cache.
        lengths: Tokens of the sequences of the part, now.
        begin: The sequence id of lengths[0].
        place: Name of the part in messages.

    Raises:
        FormatError: If it is damaged, or draws from other sequences.
    """
    files = first.files
    paths = files.paths[0], files.paths[1], files.paths[2]
    documents = open_index_array(paths[0], what="a document index", shape=(None,))
    samples = open_index_array(paths[1], what="a sample index", shape=(None, 2))
    shuffle = open_index_array(paths[2], what="a shuffle index", shape=(len(samples) - 1,))
    start, last = (int(documents.min()), int(documents.max())) if len(documents) else (begin, begin - 1)
    if start < begin or last >= begin + len(lengths):
        raise FormatError(
            f"{place}: expected the sequences {start} to {last} that {files.stem} draws from, got {begin} to "
            f"{begin + len(lengths) - 1}; a dataset may grow at its end, but not shrink, and --split has to stay"
        )
    if len(shuffle) and not 0 <= int(shuffle.min()) <= int(shuffle.max()) < len(shuffle):
        raise FormatError(f"{files.stem}: expected samples below {len(shuffle)} in the shuffle index; build it again")
    segments = recorded_settings(first.record).get("segments")
    return OldIndex(
        paths=paths,
        segments=divide_into_segments(documents, segments, place=files.stem),
        begin=start,
        end=last + 1,
        num_tokens=count_indexed_tokens(documents, lengths, begin),
    )


def _plan_blend(
    blend: BlendedCache,
    members: Sequence[GPTCache],
    continued: ContinuedBlend,
    before: Sequence[dict[str, Any]],
    *,
    what: str,
) -> BlendedCache:
    """Return the cache of a blend with what it continues, and the phases of the run."""
    consumed, curve = continued.consumed, continued.curve
    phases = [phase for phase in before or ({"begin": 0, "what": "first job"},) if phase["begin"] < consumed]
    phases += [{"begin": consumed + int(start), "what": what} for start in curve.starts]
    plans = [each.planned[PLAN] for each in members]
    content = (phases, continued.taken, curve.weights.tolist(), curve.slopes.tolist(), plans)
    return replace(
        blend,
        datasets=tuple(members),
        continued=continued,
        planned={PLAN: _plan_name(consumed, content), "consumed_samples": consumed, "phases": phases},
    )


def _refuse_running_out(config: IndexConfig, members: Sequence[GPTCache], drawn: Sequence[float]) -> None:
    """Refuse a run that reads a dataset more often than it may.

    Raises:
        LimitError: Naming all such datasets.
    """
    if config.max_epochs is None and config.blend_schedule is None:
        return
    most = config.max_epochs or Fraction(1)
    found = []
    for member, samples in zip(members, drawn, strict=True):
        epochs = samples * member.rule.sequence_length / max(1, member.part.tokens)
        if (samples - 1) * member.rule.sequence_length > most * member.part.tokens:
            found.append(f"{member.prefix} would be read {epochs:.2f} times")
    if found:
        raise LimitError(
            f"--max-epochs {float(most):g}: {'; '.join(found)}; lower the weights, shorten the run, or ask for repeats "
            "with a larger --max-epochs"
        )
