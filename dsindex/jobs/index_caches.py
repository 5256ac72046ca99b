"""Plan an index job as a pure function of its options and of counts: settings, caches, tasks, file names."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count
from dsindex.errors import InputError, LimitError
from dsindex.index.blend import Blend, describe_sums, parse_data_path
from dsindex.index.cache import (
    BLENDED_CLASS,
    GPT_CLASSES,
    BlendedDescription,
    CacheFiles,
    GPTDescription,
    cache_files,
    default_folder,
    description_text,
    read_description,
)
from dsindex.index.epochs import (
    SPLIT_NAMES,
    DocumentOrder,
    SplitMatrix,
    parse_split,
    samples_for_epochs,
    split_matrix,
)
from dsindex.index.job_tokenizer import find_identifiers, name_releases, possible_releases
from dsindex.index.needed_caches import (
    CacheSettings,
    EpochsOfTrain,
    GPTCache,
    NeededCaches,
    PartCounts,
    SampleCounts,
    TrainingLength,
    find_needed_caches,
    phases_of_training,
    samples_for_training,
)
from dsindex.index.task import BlendIndexTask, GPTIndexTask, IndexTask
from dsindex.options.index import DEFAULT_SPLIT, DOCUMENT_ORDERS, job_path, local_path, parse_replacements
from dsindex.store.config_files import read_object
from dsindex.store.reading import digest_file
from dsindex.store.storage import open_file
from dsindex.store.urls import absolute, refuse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsindex.index.needed_caches import RunLength
    from dsindex.options.index import IndexConfig


def with_given_paths(config: IndexConfig) -> IndexConfig:
    """Return options with the paths that --data-args-path or --per-split-data-args-path has.

    Raises:
        InputError: If such a file cannot be read, or has something else.
    """
    replacements = parse_replacements(config.dataset_path_as or ())

    def here(words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if words is None else tuple(local_path(word, replacements) for word in words)

    if config.data_args_path is not None:
        return config.replaced(data_path=here(_read_words(config.data_args_path)), data_args_path=None)
    if config.per_split_data_args_path is not None:
        words = _read_words_per_split(config.per_split_data_args_path)
        paths = {f"{split}_data_path": here(words[split]) for split in SPLIT_NAMES}
        return config.replaced(**paths, per_split_data_args_path=None)
    return config


def _read_words(path: str) -> tuple[str, ...]:
    try:
        with open_file(path) as file:
            words = tuple(file.read().decode().split())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        msg = f"{path}: expected the words of --data-path in UTF-8, got {error.reason} at byte {error.start}"
        raise InputError(msg) from error
    if not words:
        raise InputError(f"{path}: expected the words of --data-path, got an empty file")
    return words


def _read_words_per_split(path: str) -> dict[str, tuple[str, ...] | None]:
    """Read `{"train": […] or "words", "valid": …, "test": …}`; null is a split without data."""
    content = read_object(path)
    words: dict[str, tuple[str, ...] | None] = {}
    for split in SPLIT_NAMES:
        if split not in content:
            msg = f"{path}: expected the keys train, valid and test, which Megatron reads, got none called {split}"
            raise InputError(msg)
        value = content[split]
        if isinstance(value, str):
            value = value.split()
        if value is not None and not (isinstance(value, list) and value and all(map(_is_word, value))):
            raise InputError(f"{path}: expected paths of {split} as a list or a text, or null, got {content[split]!r}")
        words[split] = None if value is None else tuple(map(str, value))
    return words


def _is_word(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


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


MANY_EPOCHS = 100
"""A dataset that is read more often is likely to be a mistake."""
NO_IDENTIFIERS = "the tokenizer's identifiers are not known (--tokenizer-identifiers or --like)"


def cache_settings(config: IndexConfig) -> CacheSettings:
    """Return the settings of the description that `--like` names, overridden by options.

    Raises:
        FormatError: If that file is not a description.
        InputError: If the tokenizer's identifiers cannot be read, or the split is not valid.
    """
    like: Mapping[str, Any] = {}
    if config.like is not None:
        like = read_description(config.like)
        like = like if like["class"] != BLENDED_CLASS else like["datasets"][0]
    tokenizer = _job_identifiers(config, like.get("tokenizer"))
    split: str | None = None
    matrix: SplitMatrix | None = None
    if not any(config.paths_per_split):
        split = config.split or like.get("split") or DEFAULT_SPLIT
        try:
            matrix = split_matrix(parse_split(split))
        except ValueError as error:
            raise InputError(f"--split: {error}") from error
    return CacheSettings(
        sequence_length=config.seq_length or int(like["sequence_length"]),
        seed=config.seed if config.seed is not None else int(like.get("random_seed", 1234)),
        extra_token=not config.no_extra_token,
        keep_partial_validation=config.keep_partial_validation,
        surplus=config.mid_level_dataset_surplus,
        split=split,
        matrix=matrix,
        tokenizer=tokenizer,
        class_name=config.dataset_class,
        multiple_validation_sets=config.multiple_validation_sets,
        order=_document_order(config),
        ordered_splits=config.document_order_splits,
    )


def _document_order(config: IndexConfig) -> DocumentOrder:
    """Return the order that the options ask for.

    Raises:
        InputError: If its file cannot be read.
    """
    if config.document_order in DOCUMENT_ORDERS:
        samples = config.shuffle_epochs or ("never" if config.document_order == "length" else "together")
        return DocumentOrder(documents=config.document_order, samples=samples)
    path = absolute(config.document_order)
    return DocumentOrder(documents=path, samples=config.shuffle_epochs or "never", digest=digest_file(path))


def _job_identifiers(config: IndexConfig, described: Any) -> Any:  # noqa: ANN401 - whatever a description says
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
        return find_identifiers(config.job_tokenizer, release)
    written_by = possible_releases(described)
    if written_by and release not in written_by:
        raise InputError(
            f"{config.like}: expected a description that Megatron {release} wrote (--megatron-release), got one of "
            f"{name_releases(written_by)}, whose tokenizer has other identifiers; give the job's --tokenizer-type and "
            "its other flags of the tokenizer as well"
        )
    return described


def _read_identifiers(path: str) -> dict[str, Any]:
    identifiers = read_object(path)
    if identifiers.get("class") in {*GPT_CLASSES, BLENDED_CLASS}:
        msg = f"{path}: expected the tokenizer's identifiers as a JSON object; for a whole description use --like"
        raise InputError(msg)
    return identifiers


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
    if settings.order.digest is not None and len(counts) > 1:
        raise InputError(
            f"--document-order {config.document_order}: expected one dataset, whose documents the file lists, got "
            f"{len(counts)}; leave the order to `packed`, or index each dataset by itself"
        )
    if settings.matrix is not None:
        blends = [blend if part is not None else None for blend, part in zip(blends, settings.matrix, strict=True)]
    as_typed = job_paths(config, list(counts))

    def count_part(prefix: str, split: int) -> PartCounts:
        part = counts[prefix][split]
        if part is None:
            raise KeyError(f"{prefix}: split {SPLIT_NAMES[split]} was not counted")
        return part

    plans = [
        find_needed_caches(blends, sizes, settings=settings, count_part=count_part, job_path=as_typed)
        for sizes in _sizes_of_phases(config, settings, blends, counts)
    ]
    return _name_tasks(config, settings, _united(plans), threads)


def check_index_options(config: IndexConfig) -> None:
    """Refuse options of indices that no dataset fits, such as a split without shares, before there is one.

    Raises:
        InputError: If there are such options, or a file that they name cannot be read.
    """
    settings = cache_settings(config)
    match run_length(config, settings):
        case EpochsOfTrain() if settings.matrix is not None and settings.matrix[0] is None:
            raise InputError(_NO_TRAIN)
        case TrainingLength() as length:
            _sizes_of_training(length)


_NO_TRAIN = "--epochs counts epochs of train, which has no data; use --num-samples"


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
    match run_length(config, settings):
        case SampleCounts(counts=sizes):
            return [sizes]
        case EpochsOfTrain(epochs=epochs):
            train = blends[0]
            if train is None:
                raise InputError(_NO_TRAIN)
            parts = [counts[prefix][0] for prefix in dict.fromkeys(train.prefixes)]
            tokens = sum(part.tokens for part in parts if part is not None)
            return [(samples_for_epochs(epochs, tokens, rule=settings.rule(0)), None, None)]
        case length:
            if length.full_validation and settings.matrix and any(blend and blend.weights for blend in blends):
                raise LimitError(
                    "--full-validation: Megatron stops at a weighted --data-path, as one epoch of valid has no number "
                    "of samples; leave the weights out, or give valid a path of its own"
                )
            return _sizes_of_training(length)


def run_length(config: IndexConfig, settings: CacheSettings) -> RunLength:
    """Return the one length that the options give.

    Raises:
        InputError: If there are several, or none.
    """
    found: list[RunLength] = []
    if config.epochs is not None:
        found.append(EpochsOfTrain(epochs=config.epochs))
    if config.num_samples is not None:
        found.append(SampleCounts(counts=config.num_samples))
    if config.train_iters is not None or config.train_samples is not None:
        flags: dict[str, Any] = {field.name: getattr(config, field.name, None) for field in fields(TrainingLength)}
        flags |= {"sequence_length": settings.sequence_length, "release": config.megatron_release}
        found.append(TrainingLength(**flags))
    if len(found) != 1:
        raise InputError("give one of --epochs, --num-samples, --train-iters and --train-samples")
    return found[0]


def _sizes_of_training(length: TrainingLength) -> list[tuple[int | None, int | None, int | None]]:
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
            raise InputError(
                f"--dataset-path-as: expected a path for each of the {len(prefixes)} prefixes ({' '.join(prefixes)}), "
                f"or HERE=THERE, got {' '.join(given)}"
            )
        return dict(zip(prefixes, given, strict=True)).__getitem__

    return lambda prefix: job_path(prefix, replaced)


def _name_tasks(
    config: IndexConfig, settings: CacheSettings, plan: NeededCaches, threads: int
) -> tuple[list[IndexTask], list[str]]:
    """Return a task for each planned cache, with its file names, and notes for the user."""
    notes = list(plan.notes)
    plain = settings.tokenizer is None
    if plain and not config.plain_names:
        notes.append(f"{NO_IDENTIFIERS}: a job will not find these caches, whose names are not Megatron's hashes")
    most = max(plan.datasets, key=lambda cache: cache.epochs.num_epochs, default=None)
    if most is not None and most.epochs.num_epochs > MANY_EPOCHS:
        many = f"{SPLIT_NAMES[most.split]} reads {most.prefix} {most.epochs.num_epochs:,} times"
        notes.append(f"{many}, which has {count(most.epochs.tokens_per_epoch, 'token')} there; is that meant?")
    notes += describe_sums(dict(zip(SPLIT_NAMES, sources(config), strict=True)))
    repeated = Counter(os.path.basename(prefix) for prefix in {cache.prefix for cache in plan.datasets})
    tasks: list[IndexTask] = []
    for number, cache in enumerate(plan.datasets):
        base = os.path.basename(cache.prefix)
        name = f"{number}-{base}" if repeated[base] > 1 else base
        if config.data_cache_path is None:
            expected = (
                "expected --data-cache-path with a dataset in an object store, got none; name a folder for the caches, "
                "which the job is told, too"
            )
            refuse_address(cache.prefix, expected)
        folder = config.data_cache_path or default_folder(cache.prefix, class_name=settings.class_name)
        files, text = _named(folder, cache.description, name if plain else None)
        tasks.append(_dataset_task(settings, cache, files, text, threads=threads))
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
                requested=blend.requested,
            )
        )
    return tasks, notes


def _named(folder: str, description: GPTDescription | BlendedDescription, name: str | None) -> tuple[CacheFiles, str]:
    identifiers = description.identifiers()
    return cache_files(os.path.abspath(folder), identifiers, name=name), description_text(identifiers)


def _dataset_task(
    settings: CacheSettings, cache: GPTCache, files: CacheFiles, text: str, *, threads: int
) -> GPTIndexTask:
    """Return the task of one split of a prefix."""
    rule, order = settings.rule(cache.split), settings.order_of(cache.split)
    return GPTIndexTask(
        name=f"{cache.prefix}, split {SPLIT_NAMES[cache.split]}",
        prefix=absolute(cache.prefix),
        begin=cache.part.begin,
        end=cache.part.end,
        seed=settings.seed,
        epochs=cache.epochs,
        rule=rule,
        files=files,
        description=text,
        # What is not part of a cache's name.
        settings={"extra_token": rule.extra_token, "keep_partial": rule.keep_partial, **order.as_settings()},
        threads=threads,
        order=order,
    )
