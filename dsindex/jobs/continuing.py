"""Plan caches over time: what continues the caches of a first job, and blends whose weights change.

The caches of train are found as for any job, by its flags. Here their content is planned: the first job's samples come
first, then the blend of this job, with what each dataset has left. Everything else about the job stays as it is.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.amounts import count
from dsindex.datasets.gpt import open_index_array
from dsindex.datasets.opening import caches_by_split
from dsindex.errors import FormatError, InputError, LimitError
from dsindex.index.cache import (
    BLENDED_ARRAYS,
    BLENDED_CLASS,
    GPT_ARRAYS,
    CacheFiles,
    descriptions_in,
    files_beside,
    find_description,
    read_description,
    read_lengths,
)
from dsindex.index.continuing import (
    ContinuedBlend,
    OldIndex,
    count_indexed_tokens,
    divide_into_segments,
    plan_continued_index,
    segments_of,
)
from dsindex.index.epochs import PLAN, SPLIT_NAMES, EpochCounts
from dsindex.index.schedule import WeightCurve, constant_curve, draw_curve, read_blend_schedule
from dsindex.index.slot import changed_files, read_record
from dsindex.index.task import BlendIndexTask, GPTIndexTask, IndexTask, recorded_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.index.needed_caches import CacheSettings
    from dsindex.options.index import IndexConfig

TRAIN = SPLIT_NAMES[0]
ROUNDING = 1e-6
"""Samples that a weight may add up to and draw none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstJob:
    """The train caches of a job, as they are on disk."""

    description: str
    """Path of the description."""
    sequence_length: int
    members: tuple[CacheFiles, ...]
    """The caches of its datasets."""
    paths: tuple[str, ...]
    """The datasets, as the job types them."""
    prefixes: tuple[str, ...]
    """The datasets on the machine that built the caches, as far as it is recorded."""
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
        if len(datasets) and not 0 <= int(datasets.min()) <= int(datasets.max()) < len(self.members):
            raise FormatError(f"{self.blend[0]}: expected datasets below {len(self.members)}, got {datasets.max()}")
        taken: list[int] = np.bincount(datasets, minlength=len(self.members)).tolist()
        for dataset, size in enumerate(taken):
            if size and int(samples[datasets == dataset].max()) + 1 != size:
                raise FormatError(
                    f"{self.blend[1]}: expected the samples of dataset {dataset} in order; build it again"
                )
        return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begin:
    """What was read before a run goes on."""

    first: FirstJob | None
    numbers: tuple[int | None, ...]
    """The datasets of the first job → those of this one."""
    taken: tuple[int, ...]
    """Samples of each dataset that were read."""
    notes: tuple[str, ...]


def read_first_job(path: str, *, flag: str) -> FirstJob:
    """Read the train caches in a folder, or those of one description.

    Raises:
        InputError: If there are none, or several.
        FormatError: If they are damaged, or were changed after dsindex wrote them.
    """
    if os.path.isdir(path):
        found = caches_by_split({each: read_description(each) for each in descriptions_in(path)}).get(TRAIN, [])
        if len(found) != 1:
            got = ", ".join(map(os.path.basename, found)) or "none"
            raise InputError(f"{flag}: expected the caches of one job's train split in {path}, got {got}")
        path = found[0]
    described = read_description(path)
    is_blend = described["class"] == BLENDED_CLASS
    parts = described["datasets"] if is_blend else [described]
    folder = os.path.dirname(path)
    members = [files_beside(find_description(folder, part), part) for part in parts]
    records = [_sound_record(files) for files in members]
    for files, record in zip(members, records, strict=True):
        if "document_order_entries" in (recorded_order(record) or {}):
            raise InputError(
                f"{flag}: expected each document once per epoch, got {files.stem}, whose order states repeats, so that "
                "what is unread is not known; a run with such an order cannot change on the way"
            )
    sources = [record.get("source") for record in records]
    blend, num_samples, phases = None, 0, []
    own = files_beside(path, described) if is_blend else members[0]
    if is_blend:
        phases = _settings(_sound_record(own)).get("phases", [])
        blend = (own.array(BLENDED_ARRAYS[0]), own.array(BLENDED_ARRAYS[1]))
        num_samples = len(open_index_array(blend[0], what="a dataset index", shape=(None,)))
        open_index_array(blend[1], what="the dataset index's sample index", shape=(num_samples,))
        if not phases:
            weights = described.get("weights")
            phases = [{"begin": 0, "what": "first job", "weights": _normal(weights), "until": _normal(weights)}]
    else:
        num_samples = len(open_index_array(own.array(GPT_ARRAYS[2]), what="a shuffle index", shape=(None,)))
    return FirstJob(
        description=path,
        sequence_length=int(parts[0]["sequence_length"]),
        members=tuple(members),
        paths=tuple(str(part["dataset_path"]) for part in parts),
        prefixes=tuple(str(source.get("prefix")) if isinstance(source, dict) else "" for source in sources),
        extra_token=_settings(records[0]).get("extra_token") is not False,
        blend=blend,
        num_samples=num_samples,
        phases=tuple(phases),
    )


def _normal(weights: Sequence[float] | None) -> list[float] | None:
    return None if not weights else [weight / math.fsum(weights) for weight in weights]


def _settings(record: dict[str, Any]) -> dict[str, Any]:
    settings = record.get("settings")
    return settings if isinstance(settings, dict) else {}


def _sound_record(files: CacheFiles) -> dict[str, Any]:
    """Return the record of a cache, if it has one, after a comparison of its digests.

    Raises:
        FormatError: If the files changed.
    """
    record = read_record(files.record)
    if record is None:
        return {}
    if "building" in record:
        raise FormatError(f"{files.record}: dsindex was stopped while it built this cache; build it again first")
    if changed := changed_files(files.slot, record):
        raise FormatError(
            f"{files.stem}: {', '.join(changed)} changed since dsindex wrote it, so what the first job read is not "
            "known; use the arrays that the job had"
        )
    return record


def read_old_index(files: CacheFiles, lengths: NDArray[np.int32], *, begin: int, place: str) -> OldIndex:
    """Read the index of a dataset of the first job.

    Args:
        files: Its cache.
        lengths: Tokens of the sequences of the part, now.
        begin: The sequence id of lengths[0].
        place: Name of the part in messages.

    Raises:
        FormatError: If it is damaged, or draws from other sequences.
    """
    documents = open_index_array(files.array(GPT_ARRAYS[0]), what="a document index", shape=(None,))
    samples = open_index_array(files.array(GPT_ARRAYS[1]), what="a sample index", shape=(None, 2))
    shuffle = open_index_array(files.array(GPT_ARRAYS[2]), what="a shuffle index", shape=(len(samples) - 1,))
    first, last = (int(documents.min()), int(documents.max())) if len(documents) else (begin, begin - 1)
    if first < begin or last >= begin + len(lengths):
        raise FormatError(
            f"{place}: expected the sequences {first} to {last} that {files.stem} draws from, got {begin} to "
            f"{begin + len(lengths) - 1}; a dataset may grow at its end, but not shrink, and --split has to stay"
        )
    if len(shuffle) and not 0 <= int(shuffle.min()) <= int(shuffle.max()) < len(shuffle):
        raise FormatError(f"{files.stem}: expected samples below {len(shuffle)} in the shuffle index; build it again")
    recorded = _settings(read_record(files.record) or {}).get("segments")
    paths = files.array(GPT_ARRAYS[0]), files.array(GPT_ARRAYS[1]), files.array(GPT_ARRAYS[2])
    return OldIndex(
        paths=paths,
        segments=divide_into_segments(documents, recorded, place=files.stem),
        begin=first,
        end=last + 1,
        num_tokens=count_indexed_tokens(documents, lengths, begin),
        num_samples=len(shuffle),
    )


def plan_over_time(
    config: IndexConfig, settings: CacheSettings, tasks: list[IndexTask], notes: list[str]
) -> tuple[list[IndexTask], list[str]]:
    """Return the tasks of a job with those of train planned over time if that is asked for, and notes for the user.

    Raises:
        InputError: If the options do not fit the first job.
        LimitError: If a dataset runs out.
        FormatError: If the first job's caches are damaged, or a dataset changed in another way than by growing.
    """
    if not config.is_over_time:
        return tasks, notes
    members, blend = _tasks_of_train(config, tasks)
    consumed, length = config.consumed_samples or 0, settings.sequence_length
    prefixes = [task.name.removesuffix(f", split {TRAIN}") for task in members]
    size = blend.num_samples if blend is not None else int(json.loads(members[0].description)["num_samples"] or 0)
    if config.continue_from is None:
        begin = _Begin(first=None, numbers=(), taken=(0,) * len(prefixes), notes=())
    else:
        first = read_first_job(config.continue_from, flag="--continue-from")
        _check_first_job(config, settings, first, consumed)
        begin = _match(first, members, consumed, is_blend=blend is not None)
    requested = size if blend is None else blend.requested or size
    if not consumed < max(requested, 1):
        raise InputError(
            f"--consumed-samples: expected less than the {requested} samples of this job, which count from the begin "
            f"of the first one, got {consumed}; request more with --train-samples or --train-iters"
        )
    if config.blend_schedule is not None:
        schedule = read_blend_schedule(config.blend_schedule)
        curve = replace(draw_curve(schedule, prefixes, num_samples=requested, sequence_length=length), num_samples=size)
    else:
        curve = constant_curve([1.0] if blend is None else blend.weights, size)
    curve = curve.beginning_at(consumed)
    wanted = curve.integral(0, size - consumed).tolist()
    planned = [
        _planned(task, place, begin, wanted=wanted[place], consumed=consumed) for place, task in enumerate(members)
    ]
    _refuse_running_out(config, members, prefixes, begin.taken, curve, length)
    by_task: dict[int, IndexTask] = dict(zip(map(id, members), planned, strict=True))
    if blend is not None:
        what = "schedule" if config.blend_schedule is not None else "continued"
        by_task[id(blend)] = _planned_blend(blend, planned, begin, curve, consumed, what=what)
    notes = [*notes, *begin.notes]
    for place, task in enumerate(members):
        tokens = (begin.taken[place] + wanted[place]) * length
        before = f"{count(begin.taken[place], 'sample')} before sample {consumed}, " if consumed else ""
        notes.append(
            f"{prefixes[place]}: {before}{round(wanted[place]):,} {'after it' if consumed else 'samples'}; by the end "
            f"of the run {round(tokens):,} tokens, {tokens / max(1, task.epochs.tokens_per_epoch):.2f} epochs"
        )
    if settings.matrix is not None and settings.matrix[1] is not None and begin.first is not None:
        notes.append("valid has the datasets of this job: its loss does not continue that of the first job")
    return [by_task.get(id(task), task) for task in tasks], notes


def _tasks_of_train(
    config: IndexConfig, tasks: Sequence[IndexTask]
) -> tuple[list[GPTIndexTask], BlendIndexTask | None]:
    """Return the tasks of the datasets, in the order of the blend, and that of the blend.

    Raises:
        InputError: If train is no single cache, or is not blended by weights.
    """
    own = {
        task.description: task
        for task in tasks
        if isinstance(task, GPTIndexTask) and json.loads(task.description).get("index_split") == TRAIN
    }
    blends = [task for task in tasks if isinstance(task, BlendIndexTask) and task.split == TRAIN]
    flag = "--continue-from" if config.continue_from is not None else "--blend-schedule"
    if len(blends) > 1 or (not blends and len(own) != 1):
        raise InputError(
            f"{flag}: expected one train split, got {len(blends)}; leave out --phase-transition-iterations"
        )
    if not blends:
        if config.continue_from is None or config.blend_schedule is not None:
            raise InputError(
                f"{flag}: expected a blend, in which a sample can be of any dataset, got one dataset; write "
                "--data-path 1 PREFIX, here and in the job"
            )
        return list(own.values()), None
    described = json.loads(blends[0].description)
    words = config.train_data_path or config.data_path or ()
    if described["size"] is None or len(words) != 2 * len(described["datasets"]):
        raise InputError(
            f"{flag}: expected a weight before each dataset, here and in the job: without weights, Megatron asks for "
            "all samples of each dataset, once"
        )
    texts = [json.dumps(part, indent=4) for part in described["datasets"]]
    paths = [str(part["dataset_path"]) for part in described["datasets"]]
    if len(set(paths)) < len(paths):
        raise InputError(f"{flag}: expected every dataset once, got one twice; add the weights up")
    return [own[text] for text in texts], blends[0]


def _check_first_job(config: IndexConfig, settings: CacheSettings, first: FirstJob, consumed: int) -> None:
    """Refuse settings on which the borders of samples depend, if they are not the first job's.

    Raises:
        InputError: If there are such settings.
    """
    if first.sequence_length != settings.sequence_length:
        raise InputError(
            f"--continue-from: expected samples of {first.sequence_length} tokens as in {first.description}, got "
            f"--seq-length {settings.sequence_length}; go on with the same length"
        )
    if first.extra_token == config.no_extra_token:
        raise InputError("--no-extra-token: expected it as in the first job, on which the borders of samples depend")
    if consumed > first.num_samples:
        raise InputError(
            f"--consumed-samples: expected at most the {first.num_samples} samples of the first job in "
            f"{first.description}, got {consumed}"
        )


def _match(first: FirstJob, members: Sequence[GPTIndexTask], consumed: int, *, is_blend: bool) -> _Begin:
    """Find the datasets of the first job among those of this one.

    Raises:
        InputError: If none is there, or one may be there in another spelling.
    """
    notes: list[str] = []
    typed = [str(json.loads(task.description)["dataset_path"]) for task in members]
    here = [os.path.abspath(task.prefix) for task in members]
    numbers: list[int | None] = []
    for path, known in zip(first.paths, first.prefixes, strict=True):
        same = [place for place in range(len(members)) if typed[place] == path or here[place] == known]
        numbers.append(same[0] if same else None)
    if set(numbers) == {None}:
        raise InputError(
            f"--continue-from: expected a dataset of the first job ({', '.join(first.paths)}), got {', '.join(typed)}; "
            "if one is the same, spell it as the first job did, with --dataset-path-as"
        )
    taken = [0] * len(members)
    for number, size, path in zip(numbers, first.taken(consumed), first.paths, strict=True):
        if number is not None:
            taken[number] = size
            continue
        added = [each for place, each in enumerate(typed) if place not in numbers]
        alike = [each for each in added if os.path.basename(each) == os.path.basename(path)]
        if size and is_blend and not alike:
            raise InputError(
                f"--continue-from: expected {path}, of which the first job read {count(size, 'sample')} before "
                f"{consumed}; leave it in --data-path with a weight of 1e-9, which draws nothing more"
            )
        if alike or not is_blend:
            raise InputError(
                f"--continue-from: expected {path}, which the first job reads, got {' '.join(alike or typed)}; "
                + (
                    "spell it as the first job did, with --dataset-path-as"
                    if alike
                    else "blend them: --data-path 1 PREFIX"
                )
            )
    notes += [
        f"{each} is new: the first job did not have it" for place, each in enumerate(typed) if place not in numbers
    ]
    return _Begin(first=first, numbers=tuple(numbers), taken=tuple(taken), notes=tuple(notes))


def _planned(task: GPTIndexTask, place: int, begin: _Begin, *, wanted: float, consumed: int) -> GPTIndexTask:
    """Return a task of a dataset with what it continues, and with all samples that the run draws from it."""
    lengths = read_lengths(task.prefix, task.begin, task.end)
    old, taken = None, begin.taken[place]
    if begin.first is not None and place in begin.numbers:
        files = begin.first.members[begin.numbers.index(place)]
        old = read_old_index(files, lengths, begin=task.begin, place=task.name)
    asked = json.loads(task.description).get("num_samples") or 0
    plan = plan_continued_index(
        old,
        lengths,
        begin=task.begin,
        taken=taken,
        consumed=consumed,
        needed=max(asked, taken + math.floor(wanted + 1) if wanted > ROUNDING else taken),
        rule=task.rule,
        place=task.name,
    )
    segments = segments_of(plan, len(lengths))
    digest = xxhash.xxh3_64(repr((segments, taken, consumed, task.seed)).encode())
    for path in () if old is None else old.paths:
        with open(path, "rb") as file:
            while piece := file.read(1 << 24):
                digest.update(piece)
    words = f"planned after {count(consumed, 'sample')}, {digest.hexdigest()[:8]}"
    return replace(
        task,
        continued=plan,
        epochs=EpochCounts(
            tokens_per_epoch=task.epochs.tokens_per_epoch,
            num_epochs=plan.num_epochs,
            num_samples=plan.num_samples,
            separate_final_epoch=False,
            shuffled_together=plan.num_samples,
        ),
        settings={
            **task.settings,
            PLAN: words,
            "consumed_samples": consumed,
            "taken": taken,
            "segments": [list(segment) for segment in segments],
        },
    )


def _planned_blend(
    blend: BlendIndexTask,
    members: Sequence[GPTIndexTask],
    begin: _Begin,
    curve: WeightCurve,
    consumed: int,
    *,
    what: str,
) -> BlendIndexTask:
    """Return the task of a blend with what it continues and the phases of the run."""
    first, numbers = begin.first, begin.numbers
    phases: list[dict[str, Any]] = []
    if first is not None:
        keys = ("weights", "until")
        phases += [
            {**phase, **{key: _renumbered(phase[key], numbers, len(members)) for key in keys}}
            for phase in first.phases
            if phase["begin"] < consumed
        ]
    if first is not None and not phases and consumed:
        only = _renumbered([1.0], numbers, len(members))
        phases.append({"begin": 0, "what": "first job", "weights": only, "until": only})
    ends = [*curve.starts[1:].tolist(), float(curve.num_samples)]
    for start, end, weights, slopes in zip(curve.starts, ends, curve.weights, curve.slopes, strict=True):
        phases.append(
            {
                "begin": consumed + int(start),
                "end": consumed + int(end),
                "what": what,
                "weights": weights.tolist(),
                "until": (weights + slopes * (end - start)).tolist(),
            }
        )
    plan = ContinuedBlend(
        consumed=consumed,
        old=None if first is None else first.blend,
        numbers=numbers,
        taken=begin.taken,
        curve=curve,
    )
    digest = xxhash.xxh3_64_hexdigest(repr((phases, begin.taken, [task.settings[PLAN] for task in members])).encode())
    return replace(
        blend,
        continued=plan,
        lengths=tuple(task.epochs.num_samples for task in members),
        settings={
            PLAN: f"planned after {count(consumed, 'sample')}, {digest[:8]}",
            "consumed_samples": consumed,
            "phases": phases,
        },
    )


def _renumbered(weights: Sequence[float] | None, numbers: Sequence[int | None], size: int) -> list[float] | None:
    """Return weights by the datasets of the first job as weights by those of this one."""
    if weights is None or len(weights) != len(numbers):
        return None
    renumbered = [0.0] * size
    for weight, number in zip(weights, numbers, strict=True):
        if number is not None:
            renumbered[number] = float(weight)
    return renumbered


def _refuse_running_out(
    config: IndexConfig,
    members: Sequence[GPTIndexTask],
    prefixes: Sequence[str],
    taken: Sequence[int],
    curve: WeightCurve,
    length: int,
) -> None:
    """Refuse a run that reads a dataset more often than it may.

    Raises:
        LimitError: Naming all such datasets, and the samples at which they run out.
    """
    if config.max_epochs is None and config.blend_schedule is None:
        return
    most = config.max_epochs or Fraction(1)
    found = []
    for place, task in enumerate(members):
        last = float(most * task.epochs.tokens_per_epoch) / length - taken[place]

        def drawn(sample: int, place: int = place) -> float:
            return float(curve.integral(0, sample)[place])

        if drawn(curve.num_samples) > last + 1:
            low, high = 0, curve.num_samples
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if drawn(middle) > last else (middle + 1, high)
            epochs = (drawn(curve.num_samples) + taken[place]) * length / max(1, task.epochs.tokens_per_epoch)
            at = (config.consumed_samples or 0) + low
            found.append(f"{prefixes[place]} runs out at sample {at:,} and would be read {epochs:.2f} times")
    if found:
        raise LimitError(
            f"--max-epochs {float(most):g}: {'; '.join(found)}; lower the weights, shorten the run, or ask for repeats "
            "with a larger --max-epochs"
        )
