"""Plan an index job as a pure function of its options and of counts: settings, caches, tasks, file names."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from dsindex.indices import bigscience
from dsindex.indices.blend import Blend, parse_data_path
from dsindex.indices.cache import (
    GPT_ARRAYS,
    GPT_CLASS,
    BlendedDescription,
    CacheFiles,
    GPTDescription,
    cache_files,
    default_folder,
    description_text,
    read_description,
)
from dsindex.indices.epochs import TrainingLength, count_epochs, samples_for_epochs, samples_for_training
from dsindex.indices.job_tokenizer import tokenizer_identifiers
from dsindex.indices.needed_caches import CacheSettings, GPTCache, NeededCaches, PartCounts, find_needed_caches
from dsindex.indices.releases import name_releases, possible_releases
from dsindex.indices.splits import SPLIT_NAMES, SplitMatrix, parse_split, split_matrix
from dsindex.indices.task import BlendIndexTask, GPTIndexTask, IndexTask
from dsindex.regular_files import open_file
from workflows.options.index import DEFAULT_SPLIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsindex.indices.epochs import SampleRule
    from workflows.options.index import IndexConfig

Counts = dict[str, list[PartCounts | None]]
"""Prefix → its parts in train, valid and test."""

NO_IDENTIFIERS = "the tokenizer's identifiers are not known (--tokenizer-identifiers or --like)"


def sources(config: IndexConfig) -> list[Blend | None]:
    """Return the datasets of train, valid and test.

    Raises:
        LimitError: If a weight is not positive, or there are too many datasets.
    """
    if config.data_path:
        try:
            return [parse_data_path(config.data_path)] * len(SPLIT_NAMES)
        except ValueError as error:
            raise InputError(str(error)) from error
    paths = zip(SPLIT_NAMES, config.paths_per_split, strict=True)
    return [parse_data_path(words, flag=f"--{split}-data-path") if words else None for split, words in paths]


def cache_settings(config: IndexConfig) -> CacheSettings:
    """Return the settings of the description that `--like` names, overridden by options.

    Raises:
        FormatError: If that file is not a description.
        InputError: If the tokenizer's identifiers cannot be read, or the split is not valid.
    """
    like: Mapping[str, Any] = {}
    if config.like is not None:
        like = read_description(config.like)
        like = like if like["class"] == GPT_CLASS else like["datasets"][0]
    tokenizer = job_identifiers(config, like.get("tokenizer"))
    split: str | None = None
    matrix: SplitMatrix | None = None
    if not any(config.paths_per_split):
        split = config.split or like.get("split") or DEFAULT_SPLIT
        try:
            matrix = split_matrix(parse_split(split))
        except ValueError as error:
            msg = f"--split: {error}"
            raise InputError(msg) from error
    return CacheSettings(
        sequence_length=config.seq_length or int(like["sequence_length"]),
        seed=config.seed if config.seed is not None else int(like.get("random_seed", 1234)),
        extra_token=not config.no_extra_token,
        keep_partial_validation=config.keep_partial_validation,
        threshold=config.final_epoch_threshold,
        surplus=config.mid_level_dataset_surplus,
        split=split,
        matrix=matrix,
        tokenizer=tokenizer,
    )


def job_identifiers(config: IndexConfig, described: Any) -> Any:  # noqa: ANN401 - whatever a description says
    """Return the identifiers of the job's tokenizer; None if they are not known.

    Args:
        config: The options.
        described: The identifiers in the description that `--like` names.

    Raises:
        InputError: If they cannot be read, or are not those of the job's release.
    """
    release = config.megatron_release
    if config.tokenizer_identifiers is not None:
        return _read_identifiers(config.tokenizer_identifiers)
    if release is None:
        return described
    if config.job_tokenizer is not None:
        metadata = config.job_tokenizer.tokenizer_metadata
        try:
            return tokenizer_identifiers(
                config.job_tokenizer, release, metadata=None if metadata is None else _read_object(metadata)
            )
        except ValueError as error:
            raise InputError(str(error)) from error
    written_by = possible_releases(described)
    if written_by and release not in written_by:
        msg = (
            f"{config.like}: expected a description that Megatron {release} wrote (--megatron-release), got one of "
            f"{name_releases(written_by)}, whose tokenizer has other identifiers; give the job's --tokenizer-type and "
            "its other flags of the tokenizer as well"
        )
        raise InputError(msg)
    return described


def _read_object(path: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: If the file cannot be read, or has something else.
    """
    try:
        with open_file(path) as file:
            content = json.load(file)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise InputError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path}: expected a JSON object, got a file that is not JSON ({error})"
        raise InputError(msg) from error
    if not isinstance(content, dict):
        msg = f"{path}: expected a JSON object, got another JSON value"
        raise InputError(msg)
    return content


def _read_identifiers(path: str) -> dict[str, Any]:
    identifiers = _read_object(path)
    if identifiers.get("class") == GPT_CLASS:
        msg = f"{path}: expected the tokenizer's identifiers as a JSON object; for a whole description use --like"
        raise InputError(msg)
    return identifiers


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
    job_path = _job_paths(config, list(counts))

    def count_part(prefix: str, split: int) -> PartCounts:
        part = counts[prefix][split]
        if part is None:
            msg = f"{prefix}: split {SPLIT_NAMES[split]} was not counted"
            raise KeyError(msg)
        return part

    plan = find_needed_caches(
        blends, _sizes(config, settings, blends, counts), settings=settings, count_part=count_part, job_path=job_path
    )
    return _name_tasks(config, settings, plan, threads)


def _sizes(
    config: IndexConfig, settings: CacheSettings, blends: Sequence[Blend | None], counts: Counts
) -> tuple[int | None, int | None, int | None]:
    """Return the requested numbers of samples of train, valid and test; None for one epoch."""
    if config.num_samples is not None:
        return config.num_samples
    if config.epochs is not None:
        train = blends[0]
        if train is None:
            msg = "--epochs counts epochs of train, which has no data; use --num-samples"
            raise InputError(msg)
        parts = [counts[prefix][0] for prefix in dict.fromkeys(train.prefixes)]
        tokens = sum(part.tokens for part in parts if part is not None)
        return samples_for_epochs(config.epochs, tokens, rule=settings.rule(0)), None, None
    return samples_for_training(
        TrainingLength(
            train_iters=config.train_iters,
            train_samples=config.train_samples,
            global_batch_size=config.global_batch_size or 1,
            eval_interval=config.eval_interval,
            eval_iters=config.eval_iters,
            full_validation=config.full_validation,
        )
    )


def _job_paths(config: IndexConfig, prefixes: list[str]) -> Callable[[str], str]:
    """Return the function of `--dataset-path-as`: one path for each prefix, or HERE=THERE for beginnings of paths.

    Raises:
        InputError: If the number of paths is not the number of prefixes.
    """
    given = config.dataset_path_as or ()
    replaced = [word.partition("=") for word in given if "=" in word]
    if len(replaced) < len(given):
        if replaced or len(given) != len(prefixes):
            msg = (
                f"--dataset-path-as: expected a path for each of the {len(prefixes)} prefixes ({' '.join(prefixes)}), "
                f"or HERE=THERE, got {' '.join(given)}"
            )
            raise InputError(msg)
        return dict(zip(prefixes, given, strict=True)).__getitem__

    def job_path(prefix: str) -> str:
        # The longest beginning wins, so that /data=/a and /data/web=/b can be combined.
        for here, _, there in sorted(replaced, key=lambda pair: -len(pair[0])):
            if prefix.startswith(here):
                return there + prefix.removeprefix(here)
        return prefix

    return job_path


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
        folder = config.data_cache_path or default_folder(cache.prefix)
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
        prefix=os.path.abspath(cache.prefix),
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
    sizes = _sizes(config, settings, [blend], counts)
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
                    os.path.abspath(prefix),
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
                    prefix=os.path.abspath(prefix),
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
