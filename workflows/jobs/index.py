"""The driver of `dsindex index`: count the parts, plan the caches, build them side by side.

The plan is a pure function of the options and the counts. Each cache is one task.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.amounts import count
from dsindex.datasets.opening import MASK_SUFFIX, TEXT_SUFFIX
from dsindex.errors import InputError, OutputError
from dsindex.indices.cache import (
    read_description,
)
from dsindex.indices.explain import Finding, explain_cache
from dsindex.indices.memory import check_memory, show_bytes
from dsindex.indices.splits import SPLIT_NAMES, WHOLE, Part
from dsindex.indices.task import (
    BlendIndexTask,
    GPTIndexTask,
    IndexResult,
    IndexTask,
    PartTask,
    build_index_cache,
    count_parts,
)
from dsindex.objects.urls import absolute, is_url
from dsindex.readable import is_stored
from dsindex.storage import free_bytes
from workflows.execution.calls import Call
from workflows.execution.cpus import available_cpus
from workflows.execution.ordered import run_in_order
from workflows.jobs.index_caches import Counts, find_index_caches, job_paths
from workflows.jobs.index_settings import NO_IDENTIFIERS, cache_settings
from workflows.jobs.index_sources import sources, with_given_paths
from workflows.jobs.index_start_up import explain_sequences, find_type_faults, write_sequences
from workflows.stages.shared_files import require_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.indices.needed_caches import CacheSettings
    from workflows.execution.calls import Executor
    from workflows.options.index import IndexConfig

Task = TypeVar("Task", PartTask, GPTIndexTask, BlendIndexTask, IndexTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexReport:
    """The result of an index job."""

    tasks: tuple[IndexTask, ...]
    results: tuple[IndexResult, ...]
    """Results in the order of the tasks; empty if nothing was to be built."""
    notes: tuple[str, ...]
    findings: tuple[Finding, ...]
    """The findings of --explain; otherwise empty."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether --explain found every cache, and every cache sound."""
        return all(finding.found and finding.sound for finding in self.findings)


def run_index(config: IndexConfig, *, executor: Executor) -> IndexReport:
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
        return IndexReport(tasks=(), results=(), notes=(), findings=(finding,), seconds=time.monotonic() - began)
    _require_shared(config, executor)
    counts = count_all(config, settings, executor)
    threads = 1 if executor.kind == "ray" else available_cpus()
    tasks, notes = find_index_caches(config, settings, counts, threads=threads)
    results: list[IndexResult] = []
    findings: tuple[Finding, ...] = ()
    if config.explain:
        findings = tuple(_explain(task, config.megatron_release) for task in tasks)
        if config.per_dataset_sequences_path is not None:
            prefixes = _prefixes_of_job(config, counts)
            findings += (explain_sequences(config, config.per_dataset_sequences_path, prefixes),)
    elif not config.check:
        if config.per_dataset_sequences_path is not None:
            for fault in find_type_faults(config, _prefixes_of_job(config, counts)):
                raise InputError(fault)
        if executor.kind != "ray":  # Ray's nodes check their own memory
            for task in tasks:
                check_memory(task.memory_bytes, place=task.name, what="the index")
        _check_room(tasks)
        results = _run(executor, build_index_cache, tasks)
        if config.per_dataset_sequences_path is not None:
            notes.append(write_sequences(config.per_dataset_sequences_path, _prefixes_of_job(config, counts)))
    return IndexReport(
        tasks=tuple(tasks),
        results=tuple(results),
        notes=(*notes, *_masked(counts)),
        findings=findings,
        seconds=time.monotonic() - began,
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


def _prefixes_of_job(config: IndexConfig, counts: Counts) -> dict[str, str]:
    """Return the prefixes as the job types them → those on this machine."""
    as_typed = job_paths(config, list(counts))
    return {as_typed(prefix): prefix for prefix in counts}


def _require_shared(config: IndexConfig, executor: Executor) -> None:
    """Refuse a cluster whose nodes would each write their caches into a folder of their own.

    Raises:
        InputError: Naming nodes and paths.
    """
    prefixes = {absolute(prefix) for blend in sources(config) if blend is not None for prefix in blend.prefixes}
    beside = {os.path.dirname(prefix) for prefix in prefixes if not is_url(prefix)}
    folders = beside if config.data_cache_path is None else {config.data_cache_path}
    is_asking = config.explain or config.check
    require_shared(executor, files=(f"{prefix}.idx" for prefix in prefixes), folders=() if is_asking else folders)


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
    bigscience_split = settings.split if config.layout == "bigscience" else None
    tasks = [
        PartTask(prefix=absolute(prefix), parts=tuple(parts), bigscience_split=bigscience_split)
        for prefix, parts in wanted.items()
    ]
    return dict(zip(wanted, _run(executor, count_parts, tasks), strict=True))


def _check_room(tasks: Sequence[IndexTask]) -> None:
    """Refuse caches that do not fit on the disk, before the first is built."""
    needed: Counter[str] = Counter()
    for task in tasks:
        paths = task.array_paths if isinstance(task, GPTIndexTask) else tuple(map(task.files.array, task.files.arrays))
        if not all(map(os.path.isfile, paths)):
            needed[os.path.abspath(os.path.dirname(paths[0]))] += task.file_bytes
    for folder, size_bytes in needed.items():
        free = free_bytes(folder)
        if size_bytes > free:
            msg = (
                f"{folder}: the caches need {show_bytes(size_bytes)}, but {show_bytes(free)} are free; make room, "
                "or choose another --data-cache-path"
            )
            raise OutputError(msg)


def _explain(task: IndexTask, release: str | None) -> Finding:
    if task.files is None or task.description is None:
        return Finding(name=task.name, found=False, sound=False, sentences=("this layout has no descriptions",))
    wanted = json.loads(task.description)
    if (wanted.get("tokenizer") or wanted.get("datasets", [{}])[0].get("tokenizer")) is None:
        return Finding(name=task.name, found=False, sound=False, sentences=(f"{NO_IDENTIFIERS}, so no hash is known",))
    folder = os.path.dirname(task.files.stem)
    if isinstance(task, GPTIndexTask):
        return explain_cache(wanted, folder, prefix=task.prefix, settings=task.settings, release=release)
    return explain_cache(wanted, folder, release=release)


def _run(executor: Executor, function: Callable[[Task], Any], tasks: Sequence[Task]) -> list[Any]:
    """Run tasks side by side and return their results in order."""
    calls = (
        Call(
            name=f"{function.__name__}[{number:05}]",
            place=task.prefix if isinstance(task, PartTask) else task.name,
            function=function,
            arguments=(task,),
            memory_bytes=0 if isinstance(task, PartTask) else task.memory_bytes,
        )
        for number, task in enumerate(tasks)
    )
    return list(run_in_order(executor, calls))


def describe_index(report: IndexReport) -> str:
    """Return the closing summary for people."""
    lines = []
    results = dict(enumerate(report.results))
    for number, task in enumerate(report.tasks if not report.findings else ()):
        epochs = ""
        if isinstance(task, GPTIndexTask):
            samples = task.epochs.num_samples
            final = ", the last shuffled by itself" if task.epochs.separate_final_epoch else ""
            epochs = (
                f" of {count(task.epochs.num_epochs, 'epoch')} of {count(task.epochs.tokens_per_epoch, 'token')}{final}"
            )
            stem = task.array_paths[0].removesuffix("-document_index.npy")
        else:
            samples, stem = task.num_samples, task.files.stem
        result = results.get(number)
        done = f"takes {show_bytes(task.file_bytes)} on disk and {show_bytes(task.memory_bytes)} of memory"
        if result is not None:
            done = "was there already" if result.reused else f"{show_bytes(result.file_bytes)}, {result.seconds:.1f} s"
        lines += [f"{task.name}: {count(samples, 'sample')}{epochs}; {done}", f"  {stem}"]
    for finding in report.findings:
        lines.append(f"{finding.name}: {'found' if finding.found else 'NOT found'}")
        lines += [f"  {sentence}" for sentence in finding.sentences]
    lines += [f"note: {note}" for note in report.notes]
    return "\n".join(lines) + "\n"
