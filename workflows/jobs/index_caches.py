"""Plan an index job as a pure function of its options and of counts: settings, caches, tasks, file names."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError, LimitError
from dsindex.indices import bigscience
from dsindex.indices.cache import (
    GPT_ARRAYS,
    BlendedDescription,
    CacheFiles,
    GPTDescription,
    cache_files,
    default_folder,
    description_text,
)
from dsindex.indices.epochs import count_epochs, samples_for_epochs
from dsindex.indices.needed_caches import CacheSettings, GPTCache, NeededCaches, PartCounts, find_needed_caches
from dsindex.indices.splits import SPLIT_NAMES
from dsindex.indices.task import BlendIndexTask, GPTIndexTask, IndexTask
from dsindex.indices.training import TrainingLength, phases_of_training, samples_for_training
from dsindex.objects.urls import absolute, is_url
from workflows.jobs.index_settings import NO_IDENTIFIERS
from workflows.jobs.index_sources import sources
from workflows.options.index_paths import job_path, parse_replacements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dsindex.indices.blend import Blend
    from dsindex.indices.epochs import SampleRule
    from workflows.options.index import IndexConfig

Counts = dict[str, list[PartCounts | None]]
"""Prefix → its parts in train, valid and test."""


def find_index_caches(
    config: IndexConfig, settings: CacheSettings, counts: Counts, *, threads: int = 1
) -> tuple[list[IndexTask], list[str]]:
    """Plan the tasks of a job; nothing is read or built.

    Args:
        config: The options.
        settings: The result of `cache_settings`.
        counts: The result of `count_all`.
        threads: Threads per task.

    Returns:
        Tasks, one per cache, and notes for the user.

    Raises:
        LimitError: If Megatron would loop forever, stop, or overflow.
    """
    blends = sources(config)
    if config.layout == "bigscience":
        return _plan_bigscience(config, settings, counts, threads)
    if settings.matrix is not None:
        blends = [blend if part is not None else None for blend, part in zip(blends, settings.matrix, strict=True)]
    as_typed = job_paths(config, list(counts))

    def count_part(prefix: str, split: int) -> PartCounts:
        part = counts[prefix][split]
        if part is None:
            msg = f"{prefix}: split {SPLIT_NAMES[split]} was not counted"
            raise KeyError(msg)
        return part

    plans = [
        find_needed_caches(blends, sizes, settings=settings, count_part=count_part, job_path=as_typed)
        for sizes in _sizes_of_phases(config, settings, blends, counts)
    ]
    return _name_tasks(config, settings, _united(plans), threads)


def _united(plans: Sequence[NeededCaches]) -> NeededCaches:
    """Return the caches of all phases, each once."""
    return NeededCaches(
        datasets=tuple({repr(c.description.identifiers()): c for plan in plans for c in plan.datasets}.values()),
        blends=tuple({repr(c.description.identifiers()): c for plan in plans for c in plan.blends}.values()),
        notes=tuple(dict.fromkeys(note for plan in plans for note in plan.notes)),
    )


def _sizes_of_phases(
    config: IndexConfig, settings: CacheSettings, blends: Sequence[Blend | None], counts: Counts
) -> list[tuple[int | None, int | None, int | None]]:
    """Return the requested numbers of samples of train, valid and test in each phase; None for one epoch."""
    if config.num_samples is not None:
        return [config.num_samples]
    if config.epochs is not None:
        train = blends[0]
        if train is None:
            msg = "--epochs counts epochs of train, which has no data; use --num-samples"
            raise InputError(msg)
        parts = [counts[prefix][0] for prefix in dict.fromkeys(train.prefixes)]
        tokens = sum(part.tokens for part in parts if part is not None)
        return [(samples_for_epochs(config.epochs, tokens, rule=settings.rule(0)), None, None)]
    if config.full_validation and settings.matrix is not None and any(blend and blend.weights for blend in blends):
        msg = (
            "--full-validation: Megatron stops at a weighted --data-path, as one epoch of valid has no number of "
            "samples; leave the weights out, or give valid a path of its own"
        )
        raise LimitError(msg)
    length = TrainingLength(
        train_iters=config.train_iters,
        train_samples=config.train_samples,
        global_batch_size=config.global_batch_size or 1,
        eval_interval=config.eval_interval,
        eval_iters=config.eval_iters,
        full_validation=config.full_validation,
        skip_train=config.skip_train,
        start_eval_at_iter=config.start_eval_at_iter,
        eval_global_batch_size=config.eval_global_batch_size,
        phase_transition_iterations=config.phase_transition_iterations,
        rampup_batch_size=config.rampup_batch_size,
        step_batch_size_schedule=config.step_batch_size_schedule,
        sequence_length=settings.sequence_length,
        release=config.megatron_release,
    )
    try:
        _, valid, test = samples_for_training(length)
        return [(train, valid, test) for train in phases_of_training(length)]
    except ValueError as error:
        raise InputError(str(error)) from error


def job_paths(config: IndexConfig, prefixes: list[str]) -> Callable[[str], str]:
    """Return the function of `--dataset-path-as`: one path for each prefix, or HERE=THERE for beginnings of paths.

    Raises:
        InputError: If the number of paths is not the number of prefixes.
    """
    given = config.dataset_path_as or ()
    replaced = parse_replacements(given)
    if len(replaced) < len(given):
        if replaced or len(given) != len(prefixes):
            msg = (
                f"--dataset-path-as: expected a path for each of the {len(prefixes)} prefixes ({' '.join(prefixes)}), "
                f"or HERE=THERE, got {' '.join(given)}"
            )
            raise InputError(msg)
        return dict(zip(prefixes, given, strict=True)).__getitem__

    return lambda prefix: job_path(prefix, replaced)


def _name_tasks(
    config: IndexConfig, settings: CacheSettings, plan: NeededCaches, threads: int
) -> tuple[list[IndexTask], list[str]]:
    """Return a task for each planned cache, with its file names, and notes for the user."""
    notes = list(plan.notes)
    plain = settings.tokenizer is None
    if plain:
        notes.append(f"{NO_IDENTIFIERS}: a job will not find these caches, whose names are not Megatron's hashes")
    repeated = Counter(os.path.basename(prefix) for prefix in {cache.prefix for cache in plan.datasets})
    tasks: list[IndexTask] = []
    for number, cache in enumerate(plan.datasets):
        base = os.path.basename(cache.prefix)
        name = f"{number}-{base}" if repeated[base] > 1 else base
        if config.data_cache_path is None and is_url(cache.prefix):
            msg = (
                f"{cache.prefix}: expected --data-cache-path with a dataset in an object store, got none; name a "
                f"folder for the caches, which the job is told, too"
            )
            raise InputError(msg)
        folder = config.data_cache_path or default_folder(cache.prefix, class_name=settings.class_name)
        files, text = _named(folder, cache.description, name if plain else None)
        tasks.append(_dataset_task(settings, cache, files, text, threads))
    for blend in plan.blends:
        if config.data_cache_path is None:
            notes.append(
                f"the blend of split {SPLIT_NAMES[blend.split]} is not written: Megatron caches blends only with "
                "--data-cache-path"
            )
            continue
        files, text = _named(config.data_cache_path, blend.description, "blend" if plain else None)
        tasks.append(
            BlendIndexTask(
                split=blend.description.split,
                prefixes=tuple(cache.prefix for cache in blend.datasets),
                lengths=tuple(cache.epochs.num_samples for cache in blend.datasets),
                weights=blend.description.weights,
                size=blend.description.size,
                files=files,
                description=text,
                surplus=settings.surplus,
            )
        )
    return tasks, notes


def _named(folder: str, description: GPTDescription | BlendedDescription, name: str | None) -> tuple[CacheFiles, str]:
    identifiers = description.identifiers()
    return cache_files(os.path.abspath(folder), identifiers, name=name), description_text(identifiers)


def _dataset_task(settings: CacheSettings, cache: GPTCache, files: CacheFiles, text: str, threads: int) -> GPTIndexTask:
    rule = cache.rule
    documents, samples, shuffle = map(files.array, GPT_ARRAYS)
    return GPTIndexTask(
        name=f"{cache.prefix}, split {cache.description.index_split}",
        prefix=absolute(cache.prefix),
        begin=cache.part.begin,
        end=cache.part.end,
        seed=settings.seed,
        epochs=cache.epochs,
        rule=rule,
        array_paths=(documents, samples, shuffle),
        files=files,
        description=text,
        settings=_unhashed(rule),
        threads=threads,
    )


def _unhashed(rule: SampleRule) -> dict[str, Any]:
    """Return the settings that are not part of a cache's name."""
    return {"extra_token": rule.extra_token, "keep_partial": rule.keep_partial, "threshold": rule.threshold}


def _plan_bigscience(
    config: IndexConfig, settings: CacheSettings, counts: Counts, threads: int
) -> tuple[list[IndexTask], list[str]]:
    """Plan the files that Megatron-DeepSpeed looks for; its blends are not cached."""
    blend = sources(config)[0]
    if blend is None or (blend.weights is None and len(blend.prefixes) > 1):
        msg = "--layout bigscience: expected one prefix, or a weight before each of several, as Megatron-DeepSpeed does"
        raise InputError(msg)
    sizes = _sizes_of_phases(config, settings, [blend], counts)[0]
    tasks: list[IndexTask] = []
    for split, size in enumerate(sizes):
        rule = settings.rule(split)
        asked: list[int | None] = [size] * len(blend.prefixes)
        if size is not None and len(blend.prefixes) > 1:
            asked = list(bigscience.samples_wanted(blend.weights or (), size))
        for prefix, wanted in zip(blend.prefixes, asked, strict=True):
            part = counts[prefix][split]
            if part is None or part.end == part.begin:
                continue  # Megatron-DeepSpeed makes no dataset from an empty part
            # These names need a number: `none` means the samples of one epoch.
            count = wanted if wanted is not None else (part.tokens - 1) // rule.sequence_length
            place = f"{prefix}, split {SPLIT_NAMES[split]}"
            documents, samples, shuffle = (
                bigscience.index_path(
                    absolute(prefix),
                    split=SPLIT_NAMES[split],
                    num_samples=count,
                    sequence_length=rule.sequence_length,
                    seed=settings.seed,
                    array=array,
                )
                for array in GPT_ARRAYS
            )
            tasks.append(
                GPTIndexTask(
                    name=place,
                    prefix=absolute(prefix),
                    begin=part.begin,
                    end=part.end,
                    seed=settings.seed,
                    epochs=count_epochs(part.tokens, count, rule=rule, place=place),
                    rule=rule,
                    array_paths=(documents, samples, shuffle),
                    files=None,
                    description=None,
                    settings=_unhashed(rule),
                    threads=threads,
                )
            )
    return tasks, []
