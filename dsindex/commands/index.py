"""`dsindex index`: count the parts of datasets, plan the caches that a job looks for, and build them in parallel."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np

from dsindex.datasets.lineage import describe_data
from dsindex.errors import InputError, LimitError, OutputError, UsageError
from dsindex.formats.mmididx import read_header
from dsindex.megatron import maxtext
from dsindex.megatron.building import count_parts, make_contents
from dsindex.megatron.cache import (
    BLENDED_CLASS,
    GPT_CLASSES,
    cache_files,
    dataset_parts,
    find_unwritten,
    is_maxtext,
    read_description,
    write_content,
)
from dsindex.megatron.continuation import plan_over_time
from dsindex.megatron.epochs import SPLIT_NAMES, WHOLE, DocumentOrder, parse_split, samples_for_epochs, split_matrix
from dsindex.megatron.explain import MISSED_ORDER, Finding, explain_cache
from dsindex.megatron.flags import FIM_CLASS, TrainingLength, find_identifiers, samples_for_training
from dsindex.megatron.plan import BlendedCache, CacheSettings, GPTCache, find_needed_caches, parse_data_path, read_words
from dsindex.megatron.pretrain_command import job_path, local_path, parse_replacements
from dsindex.messages import count, format_size
from dsindex.options.index import DEFAULT_SPLIT, DOCUMENT_ORDERS
from dsindex.runtime.dispatch import run_in_order
from dsindex.runtime.executors import Call
from dsindex.runtime.plan import make_plan
from dsindex.runtime.progress import Reporter
from dsindex.runtime.publish import Artifact, hold_artifacts, publish, write_new_files
from dsindex.store.config_files import read_object
from dsindex.store.local import free_bytes
from dsindex.store.machine import available_cpus, available_memory
from dsindex.store.protocol import open_output
from dsindex.store.read import digest_file, input_status
from dsindex.store.urls import absolute, local_paths, refuse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsindex.megatron.cache import CacheFiles, CacheRecord, Content
    from dsindex.megatron.epochs import Part, SplitMatrix
    from dsindex.megatron.flags import Sizes
    from dsindex.megatron.plan import Blend, Cache, Counts
    from dsindex.options.index import IndexConfig
    from dsindex.runtime.executors import Executor
    from dsindex.store.local import StoredFile

Words: TypeAlias = str | Annotated[list[str | int | float], msgspec.Meta(min_length=1)]
"""Paths and weights, in one text or as a list."""
NO_IDENTIFIERS = (
    "a Megatron job looks for other names, which depend on its tokenizer: for a job, add --megatron-release and the "
    "flags of its tokenizer"
)
NO_FOLDER = "caches of a dataset in an object store need --data-cache-path, here and in the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCache:
    """A cache that was built or planned."""

    name: str
    prefixes: tuple[str, ...]
    """Absolute prefixes of the cache's datasets."""
    paths: tuple[str, ...]
    """Paths of the description, the record and the arrays."""
    num_samples: int
    num_epochs: int | None
    """None for a blend."""
    tokens_per_epoch: int | None
    file_bytes: int
    memory_bytes: int
    """Peak memory of building the cache."""
    seconds: float | None
    """None if it was only planned."""
    reused: bool
    """Whether the cache existed already, built from the same lengths with the same options."""


def describe_cache(cache: Cache, *, seconds: float | None = None, reused: bool = False) -> BuiltCache:
    """Return the entry of a cache in the result."""
    epochs = cache.epochs if isinstance(cache, GPTCache) else None
    return BuiltCache(
        name=cache.name,
        prefixes=cache.paths,
        paths=(cache.files.description, cache.files.record, *cache.files.paths[:-1]),
        num_samples=cache.num_samples,
        num_epochs=None if epochs is None else epochs.num_epochs,
        tokens_per_epoch=None if epochs is None else epochs.tokens_per_epoch,
        file_bytes=cache.file_bytes,
        memory_bytes=cache.memory_bytes,
        seconds=seconds,
        reused=reused,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexResult:
    """The result of an index job."""

    results: tuple[BuiltCache, ...]
    """The caches; empty with --explain."""
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    """The findings of --explain; otherwise empty."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether --explain found every cache, and every cache sound."""
        return all(finding.found and finding.sound for finding in self.findings)

    @property
    def verdict(self) -> str:
        """A sentence: how many caches are ready or planned, and where."""
        place = f" in {', '.join(self.folders)}" if self.folders else ""
        if any(cache.seconds is None for cache in self.results):
            return f"{count(len(self.results), 'cache')} planned{place}"
        is_ready = [finding.found and finding.sound for finding in self.findings] or [True for _ in self.results]
        return f"{sum(is_ready)} of {count(len(is_ready), 'cache')} ready{place}"

    @property
    def descriptions(self) -> dict[str, tuple[str, ...]]:
        """Description of each cache -> prefixes of its datasets."""
        return {result.paths[0]: result.prefixes for result in self.results}

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the caches, each once."""
        return tuple(dict.fromkeys(os.path.dirname(result.paths[0]) for result in self.results))


def run_index(config: IndexConfig, *, executor: Executor, reporter: Reporter | None = None) -> IndexResult:
    """Build the index caches of a job; only plan them with --dry-run, and only look for them with --explain.

    Raises:
        LimitError: If Megatron would loop forever, stop or overflow, or the caches do not fit in memory.
        DsindexError: If the job cannot be done as asked.
    """
    start = time.monotonic()
    config = _read_paths(config)
    settings, blends = _cache_settings(config), _blends(config)
    if config.explain and not any(blends):
        description = read_description(config.like or "")
        finding = explain_cache(description, cache_files(settings.folder or ".", description))
        return IndexResult(results=(), notes=(), findings=(finding,), seconds=time.monotonic() - start)

    counts = _count_parts(config, blends, settings, executor)
    _check_blends(config, settings, blends)
    train = blends[0].prefixes if blends[0] is not None else ()
    parts = [counts[prefix][0] for prefix in dict.fromkeys(train)]
    sizes = _requested_sizes(config, settings, sum(part.tokens for part in parts if part is not None))
    spell = partial(job_path, replacements=parse_replacements(config.dataset_path_as or ()))
    gpt_caches, blend_caches = find_needed_caches(blends, sizes, settings=settings, counts=counts, job_path=spell)
    notes: list[str] = []
    if config.is_over_time:
        gpt_caches, blend_caches, notes = plan_over_time(
            gpt_caches,
            blend_caches,
            continue_from=config.continue_from and absolute(config.continue_from),
            consumed=config.consumed_samples or 0,
            schedule=config.blend_schedule,
            max_epochs=config.max_epochs,
        )
    notes += _notes(config, settings, gpt_caches, counts, spell)
    caches: list[Cache] = [*gpt_caches, *(blend_caches if settings.folder is not None else ())]
    if blend_caches and settings.folder is None:
        notes.append("blends are not written: Megatron caches blends only with --data-cache-path")

    results: list[BuiltCache] = []
    findings: tuple[Finding, ...] = ()
    path, prefixes = config.per_dataset_sequences_path, {spell(prefix): prefix for prefix in counts}
    if config.explain:
        findings = tuple(map(_explain, caches))
        findings += () if path is None else (_explain_sequence_counts(path, sequence_counts(prefixes)),)
    elif config.dry_run:
        results = [describe_cache(cache) for cache in caches]
    else:
        results = _build(caches, executor, reporter or Reporter())
        if path is not None:
            write_sequence_counts(path, prefixes)
            notes.append(f"{path} has the counts of the datasets: start the job with --per-dataset-sequences-path")
    return IndexResult(results=tuple(results), notes=tuple(notes), findings=findings, seconds=time.monotonic() - start)


def check_index_options(config: IndexConfig) -> None:
    """Refuse index options that are wrong for any dataset, such as a split without shares, before one is built.

    Raises:
        InputError: If an option is wrong, or a file that it names cannot be read.
    """
    _requested_sizes(config, _cache_settings(config), train_tokens=0)


# The options as Megatron's settings.


def _read_paths(config: IndexConfig) -> IndexConfig:
    """Return the options with the paths from the file of --data-args-path or --per-split-data-args-path.

    Raises:
        InputError: If the file cannot be read, or has no paths.
    """
    replacements = parse_replacements(config.dataset_path_as or ())

    def localize(words: Sequence[str] | None) -> tuple[str, ...] | None:
        return None if words is None else tuple(local_path(word, replacements) for word in words)

    if config.data_args_path is not None:
        return config.copy_with(data_path=localize(read_words(config.data_args_path)), data_args_path=None)
    if config.per_split_data_args_path is not None:
        content = read_object(config.per_split_data_args_path)
        try:
            words = msgspec.convert(content, PerSplitPaths)
        except msgspec.ValidationError as error:
            hint = "give the paths of train, valid and test, each as a list, a text or null"
            raise InputError(f"{config.per_split_data_args_path}: {error}", hint=hint) from error
        paths = {f"{split}_data_path": localize(_split_words(getattr(words, split))) for split in SPLIT_NAMES}
        return config.copy_with(**paths, per_split_data_args_path=None)
    return config


class PerSplitPaths(msgspec.Struct):
    """The file of --per-split-data-args-path."""

    train: Words | None
    valid: Words | None
    test: Words | None


def _split_words(words: Words | None) -> list[str] | None:
    return None if words is None else words.split() if isinstance(words, str) else list(map(str, words))


def _blends(config: IndexConfig) -> list[Blend | None]:
    """Return the datasets of train, valid and test.

    Raises:
        InputError: If the paths and weights of a split are not a blend.
        LimitError: If a weight is not positive, or there are too many datasets.
    """
    if config.data_path and config.reader == "maxtext":
        valid = parse_data_path(config.data_path) if config.split is not None else None
        return [parse_data_path(config.data_path), valid, None]
    if config.data_path:
        return [parse_data_path(config.data_path)] * len(SPLIT_NAMES)
    paths = zip(SPLIT_NAMES, config.paths_per_split, strict=True)
    return [parse_data_path(words, flag=f"--{split}-data-path") if words else None for split, words in paths]


def _cache_settings(config: IndexConfig) -> CacheSettings:
    """Return the settings of the description that `--like` names, overridden by options.

    Raises:
        FormatError: If that file is not a description.
        InputError: If the tokenizer's identifiers cannot be read, or the split is not valid.
    """
    description = {} if config.like is None else dataset_parts(read_description(config.like))[0]
    split: str | None = None
    matrix: SplitMatrix | None = None
    if not any(config.paths_per_split):
        split = config.split or description.get("split") or DEFAULT_SPLIT
        matrix = split_matrix(parse_split(split))
    if config.reader == "maxtext":
        split = config.split
        matrix = None if split is None else maxtext.parse_shares(split)
    tokenizer = description.get("tokenizer")
    if config.tokenizer_identifiers is not None:
        tokenizer = read_object(config.tokenizer_identifiers)
        if tokenizer.get("class") in {*GPT_CLASSES, BLENDED_CLASS}:
            problem = "this is a whole description, not the tokenizer's identifiers"
            raise InputError(f"{config.tokenizer_identifiers}: {problem}", hint="use --like for a description")
    elif config.megatron_release is not None and config.job_tokenizer is not None:
        tokenizer = find_identifiers(config.job_tokenizer, config.megatron_release)
    default_seed = maxtext.DEFAULT_SEED if config.reader == "maxtext" else 1234
    return CacheSettings(
        sequence_length=config.seq_length or int(description["sequence_length"]),
        seed=config.seed if config.seed is not None else int(description.get("random_seed", default_seed)),
        extra_token=not config.no_extra_token,
        keep_partial_validation=config.keep_partial_validation,
        surplus=config.mid_level_dataset_surplus,
        split=split,
        matrix=matrix,
        tokenizer=tokenizer,
        class_name=FIM_CLASS if config.fim_data else "GPTDataset",
        multiple_validation_sets=config.multiple_validation_sets,
        order=_document_order(config),
        ordered_splits=config.document_order_splits,
        folder=config.data_cache_path,
        is_maxtext=config.reader == "maxtext",
    )


def _document_order(config: IndexConfig) -> DocumentOrder:
    """Return the order that the options ask for.

    Raises:
        InputError: If the order file cannot be read.
    """
    if config.document_order in DOCUMENT_ORDERS:
        samples = config.shuffle_epochs or DOCUMENT_ORDERS[config.document_order]
        return DocumentOrder(documents=config.document_order, samples=samples)
    path = absolute(config.document_order)
    return DocumentOrder(documents=path, samples=config.shuffle_epochs or "never", digest=digest_file(path))


def _requested_sizes(config: IndexConfig, settings: CacheSettings, train_tokens: int) -> list[Sizes]:
    """Return the samples that are requested from each split in each phase of a job.

    Raises:
        UsageError: If the options give several lengths, or none.
        InputError: If train has no data whose epochs could be counted.
    """
    has_flags = config.train_iters is not None or config.train_samples is not None
    if (config.epochs is not None) + (config.num_samples is not None) + has_flags != 1:
        raise UsageError("give one of --epochs, --num-samples, --train-iters and --train-samples")
    if config.num_samples is not None:
        return [config.num_samples]
    if config.epochs is not None:
        has_train = any(config.train_data_path or ()) if settings.matrix is None else settings.matrix[0] is not None
        if not has_train:
            raise InputError("--epochs counts epochs of train, which has no data", hint="use --num-samples")
        return [(samples_for_epochs(config.epochs, train_tokens, rule=settings.rule(0)), None, None)]
    flags: dict[str, Any] = {field.name: getattr(config, field.name, None) for field in fields(TrainingLength)}
    flags |= {"sequence_length": settings.sequence_length, "release": config.megatron_release}
    length = TrainingLength(**flags)
    return maxtext.samples_for_steps(length) if settings.is_maxtext else samples_for_training(length)


def _check_blends(config: IndexConfig, settings: CacheSettings, blends: Sequence[Blend | None]) -> None:
    """Refuse a file's order for several datasets, and a weighted blend without a number of samples.

    Raises:
        InputError: If an order file is given for several datasets.
        LimitError: If Megatron would stop at the weights.
    """
    prefixes = {prefix for blend in blends if blend is not None for prefix in blend.prefixes}
    if settings.order.digest is not None and len(prefixes) > 1:
        problem = f"the file orders the documents of one dataset, not of {len(prefixes)}"
        hint = "leave the order to `packed`, or index each dataset by itself"
        raise InputError(f"--document-order {config.document_order}: {problem}", hint=hint)
    if config.full_validation and settings.matrix is not None and any(blend and blend.weights for blend in blends):
        problem = "Megatron stops at a weighted --data-path, as one epoch of valid has no number of samples"
        hint = "leave the weights out, or give valid a path of its own"
        raise LimitError(f"--full-validation: {problem}", hint=hint)


# Counting, building and publishing.


def _count_parts(
    config: IndexConfig, blends: Sequence[Blend | None], settings: CacheSettings, executor: Executor
) -> Counts:
    """Count sequences and tokens of every part that a job draws from, datasets in parallel.

    Raises:
        InputError: If there is no such dataset, or cluster nodes do not see the dataset or the cache folder.
        FormatError: If a dataset is damaged.
    """
    parts_by_prefix: dict[str, list[Part | None]] = {}
    for split, blend in enumerate(blends):
        part = WHOLE if settings.matrix is None else settings.matrix[split]
        for prefix in blend.prefixes if blend is not None else ():
            parts_by_prefix.setdefault(prefix, [None] * len(SPLIT_NAMES))[split] = part
    paths = list(map(absolute, parts_by_prefix))
    folders = set(map(os.path.dirname, local_paths(paths))) if settings.folder is None else {settings.folder}
    executor.require_seen((f"{path}.idx" for path in paths), () if config.explain or config.dry_run else folders)
    is_maxtext = settings.is_maxtext
    calls = (
        Call(name=f"count[{number:05}]", place=path, function=count_parts, arguments=(path, parts, is_maxtext))
        for number, (path, parts) in enumerate(zip(paths, parts_by_prefix.values(), strict=True))
    )
    counts = dict(zip(parts_by_prefix, run_in_order(executor, calls), strict=True))
    for prefix in counts if settings.folder is None else ():
        refuse_address(prefix, NO_FOLDER)
    return counts


def _build(caches: Sequence[Cache], executor: Executor, reporter: Reporter) -> list[BuiltCache]:
    """Build the caches in parallel, in groups that fit into memory.

    Raises:
        LimitError: If one does not fit into memory.
        OutputError: If the caches do not fit on the disk.
    """
    available = None if executor.kind == "ray" else available_memory()  # the memory of the nodes is unknown
    threads = 1 if executor.kind == "ray" else available_cpus()
    groups: list[list[Cache]] = [[]]
    bytes_by_folder: Counter[str] = Counter()
    for cache in caches:
        if available is not None and cache.memory_bytes > available:
            memory, limit = format_size(cache.memory_bytes), format_size(available)
            hint = "use a machine with more, request fewer samples, or split the dataset and blend the parts"
            raise LimitError(f"{cache.name}: the index takes {memory} of memory and {limit} are available", hint=hint)
        if available is not None and sum(member.memory_bytes for member in [*groups[-1], cache]) > available:
            groups.append([])
        groups[-1].append(cache)
        bytes_by_folder[os.path.dirname(cache.files.stem)] += 0 if cache.files.exist() else cache.file_bytes
    for folder, size_bytes in bytes_by_folder.items():
        if size_bytes > (free := free_bytes(folder)):
            size, room = format_size(size_bytes), format_size(free)
            hint = "make room, or choose another --data-cache-path"
            raise OutputError(f"{folder}: the caches need {size}, but {room} are free", hint=hint)
    from dsindex.megatron.arrays import are_kernels_compiled  # numba is slow to import

    if caches and not are_kernels_compiled():
        reporter.say("compiling once, about 10 s")
    reporter.stage("index", total=len(caches), unit="caches")
    results: list[BuiltCache] = []
    for group in groups:
        calls = (
            Call(name=f"index[{number:05}]", place=cache.name, function=build_cache, arguments=(cache, threads))
            for number, cache in enumerate(group, len(results))
        )
        for result in run_in_order(executor, calls):
            results.append(result)
            reporter.advance(1)
    return results


def build_cache(cache: Cache, threads: int = 1) -> BuiltCache:
    """Build one cache and publish it, or keep a valid one; wait while another process builds it.

    Raises:
        FormatError: If the `.idx` changed since the cache was planned.
        LimitError: If a blend draws more samples than a dataset has.
        OutputError: If the cache cannot be written, or another program's file has one of its names.
    """
    started = time.monotonic()
    with hold_artifacts([cache.files.stem], [_artifact(cache.files)], waits=True):
        contents_and_record = make_contents(cache, threads)
        reused = contents_and_record is None or write_cache(cache.files, *contents_and_record)
    return describe_cache(cache, seconds=time.monotonic() - started, reused=reused)


def _artifact(files: CacheFiles) -> Artifact:
    """Return a cache's files, ending with the description and dsindex's record, which complete it."""
    finals = tuple(map(absolute, (*files.paths, files.record)))
    return Artifact(finals=finals, plan_id=make_plan({"cache": files.stem}).plan_id)


def write_cache(files: CacheFiles, contents: Sequence[Content], record: CacheRecord) -> bool:
    """Publish a cache whose lock is held, or keep identical files.

    Args:
        files: The paths.
        contents: Contents of the files, in the order of `files.paths`.
        record: What to record besides the files' sizes and digests.

    Returns:
        Whether the files existed already.

    Raises:
        OutputError: If a file exists that differs and that dsindex did not write, or a file cannot be written.
    """
    unwritten_files = find_unwritten(files, contents, record)
    stored_by_path: dict[str, StoredFile | None] = {}
    artifact = replace(_artifact(files), finals=tuple(absolute(path) for path, _ in unwritten_files))
    for final, (_, content) in zip(artifact.finals, unwritten_files, strict=True):
        with open_output(artifact.partial(final)) as file:
            write_content(file, content)
        stored_by_path[final] = file.stored_file(final)
    if stored_by_path:
        publish([artifact], stored_by_path)
    return len(stored_by_path) <= 1


def write_sequence_counts(path: str, prefixes: Mapping[str, str]) -> None:
    """Write the file for Megatron's --per-dataset-sequences-path, or keep an identical one.

    Raises:
        InputError: If tokens are neither uint16 nor int32.
        OutputError: If a file with other counts exists, or this one cannot be written.
    """
    plan = make_plan({"sequences": path}, [input_status(absolute(f"{prefix}.idx")) for prefix in prefixes.values()])
    with write_new_files(path, [path], plan) as files, files.open(path) as file:
        file.write(sequence_counts(prefixes))


def sequence_counts(prefixes: Mapping[str, str]) -> bytes:
    """Return the content of the file for Megatron's --per-dataset-sequences-path.

    Args:
        prefixes: Path as the job types it → path on this machine.

    Raises:
        InputError: If tokens are neither uint16 nor int32: with such a file, Megatron does not look at their type.

    Source: Megatron-LM, tools/build_sequences_per_dataset.py and gpt_dataset.py, `token_dtype_code`.
    """
    headers = {path: read_header(f"{prefix}.idx") for path, prefix in prefixes.items()}
    for path, header in headers.items():
        if header.dtype not in {np.dtype("<u2"), np.dtype("<i4")}:
            problem = f"Megatron cannot read {path} with it: {header.dtype} tokens"
            raise InputError(f"--per-dataset-sequences-path: {problem}")
    return json.dumps({key: [header.num_sequences, header.num_boundaries] for key, header in headers.items()}).encode()


def _explain(cache: Cache) -> Finding:
    if dataset_parts(cache.identifiers)[0]["tokenizer"] is None and not is_maxtext(cache.identifiers):
        return Finding(name=cache.name, found=False, sound=False, sentences=(NO_IDENTIFIERS,))
    prefix = None if isinstance(cache, BlendedCache) else cache.path
    return explain_cache(cache.identifiers, cache.files, prefix=prefix, settings=cache.settings)


def describe_sums(blends: Mapping[str, Blend | None]) -> list[str]:
    """Return a sentence if the weights of the splits' blends have different sums, such as 100 and 1; else nothing."""
    sums = {
        split: round(math.fsum(blend.weights), 6)
        for split, blend in blends.items()
        if blend is not None and blend.weights is not None and len(blend.weights) > 1
    }
    if len(set(sums.values())) < 2:
        return []
    split_sums = ", ".join(f"{total:g} in {split}" for split, total in sums.items())
    return [f"the weights sum to {split_sums}: Megatron divides each split's by their sum"]


def _explain_sequence_counts(path: str, content: bytes) -> Finding:
    is_found = os.path.isfile(path) and os.path.getsize(path) == len(content)
    is_right = is_found and Path(path).read_bytes() == content
    sentences = () if is_right else ("the file is missing or has other counts",)
    return Finding(name=path, found=os.path.isfile(path), sound=is_right, sentences=sentences)


def _notes(
    config: IndexConfig,
    settings: CacheSettings,
    gpt_caches: Sequence[GPTCache],
    counts: Counts,
    spell: Callable[[str], str],
) -> Iterator[str]:
    """Yield notes about likely mistakes, and about settings that the training job needs."""
    if settings.is_maxtext:
        blends = zip(maxtext.SPLITS_READ, _blends(config), strict=False)
        words = {name: (tuple(map(spell, blend.prefixes)), blend.weights or (1.0,)) for name, blend in blends if blend}
        yield f"tell MaxText {maxtext.show_settings(spell(config.data_cache_path or ''), words, config.split)}"
    elif settings.tokenizer is None and not config.plain_names:
        yield f"these caches are named after their datasets, for a reader of your own; {NO_IDENTIFIERS}"
    for start, replacement in parse_replacements(config.dataset_path_as or ()):
        if not any(path.startswith(start) for path in (*counts, config.data_cache_path or "")):
            yield f"--dataset-path-as {start}={replacement} replaces nothing: no dataset begins with {start}"
    yield from describe_sums(dict(zip(SPLIT_NAMES, _blends(config), strict=True)))
    for cache in gpt_caches:
        if not cache.num_samples:
            remedy = "shorten --seq-length, or give it a larger share in --split"
            yield f"{cache.name}: there is no sample, so Megatron would stop; {remedy}"
    valid = {path: parts[1] for path, parts in counts.items()} if settings.matrix is not None else dict.fromkeys(counts)
    yield from describe_data({name: None if part is None else (part.begin, part.end) for name, part in valid.items()})
    settings_by_split = {cache.split: cache.settings for cache in gpt_caches if any(cache.settings.order)}
    if settings_by_split and not config.explain:
        order = next(iter(settings_by_split.values())).show_order()
        yield f"{', '.join(settings_by_split)}: {order}; {MISSED_ORDER}"
