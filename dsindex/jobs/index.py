"""The driver of `dsindex index`: count the parts, plan the caches, build them side by side.

The plan is a pure function of the options and the counts. Each cache is one task.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dsindex.amounts import count, format_room
from dsindex.datasets.kinds import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.datasets.origins import tell_tokenizers_apart
from dsindex.datasets.tails import describe_tails
from dsindex.engine.dispatch import run_in_order
from dsindex.engine.executors import Call
from dsindex.engine.report import Report
from dsindex.errors import FormatError, OutputError
from dsindex.index.cache import (
    BLENDED_CLASS,
    CacheFiles,
    cache_files,
    descriptions_in,
    read_description,
    read_lengths,
    source_changes,
)
from dsindex.index.epochs import SPLIT_NAMES, WHOLE, Part
from dsindex.index.job_tokenizer import describe_tokenizers
from dsindex.index.slot import changed_files, read_record
from dsindex.index.task import (
    BlendIndexTask,
    BuiltCache,
    GPTIndexTask,
    IndexTask,
    PartTask,
    build_index_cache,
    check_memory,
    count_parts,
    recorded_order,
    show_bytes,
    show_order,
)
from dsindex.jobs.continuing import plan_over_time
from dsindex.jobs.index_caches import (
    NO_IDENTIFIERS,
    Counts,
    cache_settings,
    find_index_caches,
    sources,
    with_given_paths,
)
from dsindex.machine import available_cpus
from dsindex.store.reading import is_stored
from dsindex.store.storage import free_bytes
from dsindex.store.urls import absolute, local_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dsindex.engine.executors import Executor
    from dsindex.index.needed_caches import CacheSettings
    from dsindex.options.index import IndexConfig


# Explain why a job would not find its cache: which settings differ, or what changed since the cache was built.
#
# Megatron looks for a file named by a hash, and builds everything again if it is missing. This module compares the
# existing descriptions with the wanted one, setting by setting.

MEANINGS = {
    "dataset_path": "the path, exactly as the job types it (--dataset-path-as)",
    "num_samples": "the number of samples, from the job's iterations and batch size",
    "random_seed": "--seed",
    "sequence_length": "--seq-length",
    "split": "--split, as typed: spaces change the hash",
    "split_matrix": "the shares computed from --split",
    "tokenizer": "the tokenizer's identifiers (--tokenizer-identifiers or --like); they change with Megatron's version",
    "weights": "the blend's normalised weights",
    "size": "the number of samples of the blend",
}
UNHASHED = {
    "extra_token": "add_extra_token_to_sequence (--no-extra-token)",
    "keep_partial": "whether the last partial validation sample is kept (--keep-partial-validation)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one cache that a job would look for."""

    name: str
    """Name such as `web_text_document, split train, 5898ffc3…`."""
    found: bool
    """Whether a job would use the cache."""
    sound: bool
    """Whether the cache has no known fault."""
    sentences: tuple[str, ...]


def explain_cache(
    wanted: Mapping[str, Any],
    folder: str,
    *,
    prefix: str | None = None,
    settings: Mapping[str, Any] | None = None,
    release: str | None = None,
) -> Finding:
    """Find out whether a job finds its cache in a folder, and if not, why.

    Args:
        wanted: The job's description.
        folder: The cache folder.
        prefix: The dataset's files on this machine, which are checked for changes; None to skip the check.
        settings: The job's options that the hash does not cover, named as in the record; None to skip the comparison.
        release: The job's release of Megatron, if it is known.
    """
    files = cache_files(folder, wanted)
    what = wanted["dataset_path"] if wanted["class"] != BLENDED_CLASS else f"blend of {len(wanted['datasets'])}"
    name = f"{what}, split {_split_of(wanted)}, {os.path.basename(files.stem)[:8]}…"
    if not os.path.isdir(folder):
        return Finding(name=name, found=False, sound=False, sentences=(f"there is no folder {folder}",))
    if files.exist():
        record = read_record(files.record)
        faults = _faults(files, record, wanted, prefix, settings)
        said = faults or ["the job finds this cache and builds nothing"]
        if order := recorded_order(record):
            said.append(
                f"this name holds {show_order(order)}: a job that misses it trains on another order without a word; "
                "start the job with --dataloader-defer-npy-index-mmap, with which a missing file is an error"
            )
        return Finding(name=name, found=True, sound=not faults, sentences=tuple(said))
    missing = [path for path in (files.description, *map(files.array, files.arrays)) if not os.path.isfile(path)]
    if len(missing) <= len(files.arrays):
        names = ", ".join(os.path.basename(path) for path in missing)
        said = [f"the cache is incomplete, so the job builds it again: {names} is missing"]
    else:
        said = _compare_with_nearest(wanted, folder, release)
    return Finding(name=name, found=False, sound=False, sentences=tuple(said))


def _faults(
    files: CacheFiles,
    record: Mapping[str, Any] | None,
    wanted: Mapping[str, Any],
    prefix: str | None,
    settings: Mapping[str, Any] | None,
) -> list[str]:
    """Return sentences about changes that Megatron's hash does not cover."""
    if record is None and (asked := recorded_order({"settings": settings or {}})):
        doubt = f"no {os.path.basename(files.record)} says that it has {show_order(asked)}"
        return [f"the job finds this cache, but {doubt}: choose another --data-cache-path for that"]
    if record is None and wanted["class"] == BLENDED_CLASS:
        return []
    if record is None:
        # Without a record, all that can be detected is that the data are newer.
        idx = f"{prefix}.idx"
        if prefix is not None and os.path.isfile(idx) and os.path.getmtime(idx) > os.path.getmtime(files.description):
            doubt = f"{idx} is newer than the cache, which was not built by dsindex and may not fit"
            return [f"{doubt}; move it away and build it again"]
        return []
    if "building" in record:
        return ["dsindex was stopped while building this cache; build it again"]
    if changed := changed_files(files.slot, record):
        what = f"the job finds this cache, but {', '.join(changed)} changed since dsindex wrote it"
        return [f"{what}; move it away and build it again"]
    faults = _other_settings(record, settings or {})
    if prefix is not None and isinstance(record.get("source"), dict):
        faults += source_changes(prefix, record["source"])
    return faults


def _other_settings(record: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return sentences about options of the job with which its cache was not built."""
    faults = []
    for key in settings.keys() & UNHASHED.keys():
        value = settings[key]
        built = record.get("settings", {}).get(key)
        if built != value:
            faults.append(
                f"the job finds this cache, but {UNHASHED[key]} was {built} when it was built and is {value} "
                "now; the hash does not cover that: build it again, or change the job"
            )
    there, asked = recorded_order(record), recorded_order({"settings": settings})
    if there is not None and asked and there != asked:
        faults.append(
            f"the job finds this cache, but it has {show_order(there)}, not {show_order(asked)}; choose another "
            "--data-cache-path for that"
        )
    return faults


def _compare_with_nearest(wanted: Mapping[str, Any], folder: str, release: str | None) -> list[str]:
    """Return sentences about the settings in which the most similar description of the same kind differs."""
    nearest: tuple[int, str, list[str]] | None = None
    count = 0
    for path in descriptions_in(folder, f"*-{wanted['class']}-*"):
        try:
            there = read_description(path)
        except FormatError:
            continue
        if _split_of(there) != _split_of(wanted):
            continue
        count += 1
        differences = describe_differences(there, wanted, release=release)
        if nearest is None or len(differences) < nearest[0]:
            nearest = (len(differences), path, differences)
    if nearest is None:
        return [f"{folder} contains no cache of a {wanted['class']} for split {_split_of(wanted)}"]
    _, path, differences = nearest
    if not differences:
        name = os.path.basename(path)
        return [f"{name} is the same, but its name is not its hash: it was renamed or edited, so the job builds again"]
    nearby = f"the most similar of {count} differs" if count > 1 else "the only one in the folder differs"
    return [f"no cache with this hash; {nearby} ({os.path.basename(path)}):", *differences]


def describe_differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], *, release: str | None = None
) -> list[str]:
    """Return sentences about the settings in which two descriptions differ; `release` is the job's, if known.

    >>> describe_differences({"class": "GPTDataset", "split": "9,1"}, {"class": "GPTDataset", "split": "9, 1"})
    ["split is '9,1' in the cache and '9, 1' in the job: --split, as typed: spaces change the hash"]
    """
    if wanted.get("class") == BLENDED_CLASS and there.get("class") == BLENDED_CLASS:
        return _blend_differences(there, wanted, release)
    keys = list(dict.fromkeys([*wanted, *there]))
    sentences = []
    for key in keys:
        # Compared as written, since the hash depends on the order of keys and tells 1 from 1.0.
        if key in there and key in wanted and json.dumps(there[key]) == json.dumps(wanted[key]):
            continue
        if key == "split_matrix" and there.get("split") != wanted.get("split"):
            continue  # follows from split
        if key == "tokenizer" and (said := describe_tokenizers(there.get(key), wanted.get(key), release=release)):
            sentences += said
            continue
        meaning = f": {MEANINGS[key]}" if key in MEANINGS else ""
        sentences.append(f"{key} is {_show(there, key)} in the cache and {_show(wanted, key)} in the job{meaning}")
    return sentences


def _blend_differences(there: Mapping[str, Any], wanted: Mapping[str, Any], release: str | None) -> list[str]:
    theirs, ours = there["datasets"], wanted["datasets"]
    if len(theirs) != len(ours):
        return [f"the cached blend has {len(theirs)} datasets and the job's has {len(ours)}"]
    sentences = [
        f"{key} is {_show(there, key)} in the cache and {_show(wanted, key)} in the job: {MEANINGS[key]}"
        for key in ("weights", "size")
        if there.get(key) != wanted.get(key)
    ]
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        sentences += [f"dataset {number}: {sentence}" for sentence in describe_differences(their, our, release=release)]
    # A difference that all datasets share is reported once.
    shared = {sentence.partition(": ")[2] for sentence in sentences if sentence.startswith("dataset 0: ")}
    for common in sorted(shared):
        same = [f"dataset {number}: {common}" for number in range(len(ours))]
        if len(same) > 1 and all(sentence in sentences for sentence in same):
            sentences = [f"in every dataset, {common}", *(s for s in sentences if s not in same)]
    return sentences


def _split_of(identifiers: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever a file says
    return identifiers.get("index_split") if identifiers["class"] != BLENDED_CLASS else identifiers.get("split")


def _show(identifiers: Mapping[str, Any], key: str) -> str:
    text = repr(identifiers[key]) if key in identifiers else "absent"
    return text if len(text) <= 200 else text[:200] + "…"


Task = TypeVar("Task", PartTask, GPTIndexTask, BlendIndexTask, IndexTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexResult(Report):
    """The result of an index job."""

    tasks: tuple[IndexTask, ...]
    results: tuple[BuiltCache, ...]
    """Results in the order of the tasks; empty if nothing was to be built."""
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    """The findings of --explain; otherwise empty."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether --explain found every cache, and every cache sound."""
        return all(finding.found and finding.sound for finding in self.findings)

    @property
    def descriptions(self) -> dict[str, tuple[str, ...]]:
        """Description of each cache -> prefixes of its datasets."""
        return {
            task.files.description: task.prefixes if isinstance(task, BlendIndexTask) else (task.prefix,)
            for task in self.tasks
        }

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the caches."""
        return tuple(dict.fromkeys(os.path.dirname(result.paths[0]) for result in self.results))

    def __repr__(self) -> str:
        caches = ", ".join(f"{result.name}: {count(result.num_samples, 'sample')}" for result in self.results)
        return f"{type(self).__name__}({caches or 'nothing was built'})"

    def lines(self) -> list[str]:
        """Return the closing summary for people."""
        lines = []
        results = dict(enumerate(self.results))
        for number, task in enumerate(self.tasks if not self.findings else ()):
            epochs = ""
            if isinstance(task, GPTIndexTask):
                samples = task.epochs.num_samples
                final = ", the last shuffled by itself" if task.epochs.separate_final_epoch else ""
                tokens = count(task.epochs.tokens_per_epoch, "token")
                epochs = f" of {count(task.epochs.num_epochs, 'epoch')} of {tokens}{final}"
            else:
                samples = task.num_samples
            result = results.get(number)
            done = f"takes {show_bytes(task.file_bytes)} on disk and {show_bytes(task.memory_bytes)} of memory"
            if result is not None:
                done = (
                    "was there already" if result.reused else f"{show_bytes(result.file_bytes)}, {result.seconds:.1f} s"
                )
            lines += [f"{task.name}: {count(samples, 'sample')}{epochs}; {done}", f"  {task.files.stem}"]
        for finding in self.findings:
            lines.append(f"{finding.name}: {'found' if finding.found else 'NOT found'}")
            lines += [f"  {sentence}" for sentence in finding.sentences]
        lines += [f"note: {note}" for note in self.notes]
        return lines


def run_index(config: IndexConfig, *, executor: Executor) -> IndexResult:
    """Build the index caches of a job, or only examine them with --check and --explain.

    Raises:
        LimitError: If Megatron would loop forever, stop or overflow, or the caches do not fit in memory.
        DsindexError: If the job cannot be done as asked.
    """
    began = time.monotonic()
    config = with_given_paths(config)
    settings = cache_settings(config)
    if config.explain and not any(sources(config)):
        finding = explain_cache(read_description(config.like or ""), config.data_cache_path or ".")
        return IndexResult(tasks=(), results=(), notes=(), findings=(finding,), seconds=time.monotonic() - began)
    _require_shared(config, executor)
    settings, counts = _with_repeats(settings, count_all(config, settings, executor))
    threads = 1 if executor.kind == "ray" else available_cpus()
    tasks, notes = plan_over_time(config, settings, *find_index_caches(config, settings, counts, threads=threads))
    results: list[BuiltCache] = []
    findings: tuple[Finding, ...] = ()
    if config.explain:
        findings = tuple(_explain(task, config.megatron_release) for task in tasks)
    elif not config.dry_run:
        if executor.kind != "ray":  # Ray's nodes check their own memory
            for task in tasks:
                check_memory(task.memory_bytes, place=task.name, what="the index")
        _check_room(tasks)
        _check_order(tasks)
        results = _run(executor, build_index_cache, tasks)
    return IndexResult(
        tasks=tuple(tasks),
        results=tuple(results),
        notes=(*notes, *_too_small(tasks), *_tails(settings, counts), *_masked(counts), *_ordered(config, settings)),
        findings=findings,
        seconds=time.monotonic() - began,
    )


def _with_repeats(settings: CacheSettings, counts: Counts) -> tuple[CacheSettings, Counts]:
    """Let an epoch of an order that states repeats have the tokens of its entries."""
    order = settings.order
    if order.digest is None or len(counts) > 1:
        return settings, counts
    from dsindex.index.document_order import read_repeats  # loads numba

    for prefix, parts in counts.items():
        for split in map(SPLIT_NAMES.index, settings.ordered_splits):
            part = parts[split]
            times = None if part is None else read_repeats(order.documents, part.begin, part.end - part.begin)
            if part is not None and times is not None:
                lengths = read_lengths(absolute(prefix), part.begin, part.end)
                parts[split] = replace(part, tokens=int(lengths.astype(np.int64) @ times))
                order = replace(order, entries=int(times.sum()))
    return replace(settings, order=order), counts


def _ordered(config: IndexConfig, settings: CacheSettings) -> Iterator[str]:
    """Yield a note about caches that a job must not miss."""
    if config.explain:
        return
    if not settings.order.is_stock or config.is_over_time:
        said = show_order(settings.order.as_settings()) if not settings.order.is_stock else "planned over time"
        splits = settings.ordered_splits if not settings.order.is_stock else SPLIT_NAMES[:1]
        yield (
            f"{', '.join(splits)}: {said}; start the job with "
            "--dataloader-defer-npy-index-mmap, or it builds Megatron's own without a word if it misses these caches"
        )


def _tails(settings: CacheSettings, counts: Counts) -> Iterator[str]:
    """Yield notes if validation is of other inputs than training, as it is the end of datasets, and on tokenizers."""
    parts = [(prefix, own[1]) for prefix, own in counts.items()] if settings.matrix is not None else []
    tails = describe_tails([(name, part.begin, part.end) for name, part in parts if part is not None])
    yield from filter(None, (tails, tell_tokenizers_apart(counts)))


def _too_small(tasks: Iterable[IndexTask]) -> Iterator[str]:
    """Yield a note for each split that is too small for a sample."""
    for task in tasks:
        if isinstance(task, GPTIndexTask) and task.continued is None and not task.epochs.num_samples:
            yield (
                f"{task.name}: expected at least one sample, got none, at which Megatron stops; shorten --seq-length, "
                "or give it a larger share in --split"
            )


def _masked(prefixes: Iterable[str]) -> Iterator[str]:
    """Yield a note for each dataset whose loss mask a pre-training job would not read."""
    for prefix in prefixes:
        stem = prefix.removesuffix(TEXT_SUFFIX)
        if stem != prefix and is_stored(f"{stem}{MASK_SUFFIX}.idx"):
            yield (
                f"{prefix} is instruction data: a job that reads it as --data-path learns all its tokens, as it does "
                f"not read {os.path.basename(stem)}{MASK_SUFFIX}; for the mask, see the exports of `dsindex instruct`"
            )


def _require_shared(config: IndexConfig, executor: Executor) -> None:
    """Refuse a cluster whose nodes would each write their caches into a folder of their own.

    Raises:
        InputError: Naming nodes and paths.
    """
    prefixes = {absolute(prefix) for blend in sources(config) if blend is not None for prefix in blend.prefixes}
    beside = set(map(os.path.dirname, local_paths(prefixes)))
    folders = beside if config.data_cache_path is None else {config.data_cache_path}
    is_asking = config.explain or config.dry_run
    executor.require_seen((f"{prefix}.idx" for prefix in prefixes), () if is_asking else folders)


def count_all(config: IndexConfig, settings: CacheSettings, executor: Executor) -> Counts:
    """Count sequences and tokens of every part that a job draws from, prefixes side by side.

    Raises:
        InputError: If there is no such dataset.
        FormatError: If one is damaged.
    """
    wanted: dict[str, list[Part | None]] = {}
    for split, blend in enumerate(sources(config)):
        part = WHOLE if settings.matrix is None else settings.matrix[split]
        for prefix in blend.prefixes if blend is not None else ():
            wanted.setdefault(prefix, [None] * len(SPLIT_NAMES))[split] = part
    tasks = [PartTask(prefix=absolute(prefix), parts=tuple(parts)) for prefix, parts in wanted.items()]
    return dict(zip(wanted, _run(executor, count_parts, tasks), strict=True))


def _check_order(tasks: Sequence[IndexTask]) -> None:
    """Refuse a file that is no order of the documents, before the first cache is built."""
    for task in tasks:
        if isinstance(task, GPTIndexTask) and task.order.digest is not None:
            from dsindex.index.document_order import read_order  # loads numba

            read_order(task.order.documents, task.begin, task.end - task.begin, task.epochs.num_epochs)


def _check_room(tasks: Sequence[IndexTask]) -> None:
    """Refuse caches that do not fit on the disk, before the first is built."""
    needed: Counter[str] = Counter()
    for task in tasks:
        paths = tuple(map(task.files.array, task.files.arrays))
        if not all(map(os.path.isfile, paths)):
            needed[os.path.abspath(os.path.dirname(paths[0]))] += task.file_bytes
    for folder, size_bytes in needed.items():
        free = free_bytes(folder)
        if size_bytes > free:
            wanted, there = format_room(size_bytes, free)
            remedy = "make room, or choose another --data-cache-path"
            raise OutputError(f"{folder}: the caches need {wanted}, but {there} are free; {remedy}")


def _explain(task: IndexTask, release: str | None) -> Finding:
    wanted = json.loads(task.description)
    if (wanted.get("tokenizer") or wanted.get("datasets", [{}])[0].get("tokenizer")) is None:
        return Finding(name=task.name, found=False, sound=False, sentences=(f"{NO_IDENTIFIERS}, so no hash is known",))
    folder = os.path.dirname(task.files.stem)
    if isinstance(task, GPTIndexTask):
        return explain_cache(wanted, folder, prefix=task.prefix, settings=task.settings, release=release)
    return explain_cache(wanted, folder, settings=task.settings, release=release)


def _run(executor: Executor, function: Callable[[Task], Any], tasks: Sequence[Task]) -> list[Any]:
    """Run tasks side by side and return their results in order."""
    calls = (
        Call(
            name=f"{function.__name__}[{number:05}]",
            place=task.prefix if isinstance(task, PartTask) else task.name,
            function=function,
            arguments=(task,),
        )
        for number, task in enumerate(tasks)
    )
    return list(run_in_order(executor, calls))
