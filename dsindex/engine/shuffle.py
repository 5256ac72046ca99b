"""Shuffle the documents of all shards: sort runs of shards by key, then gather the buckets of the output.

dsindex.engine.shards.shuffle has the tasks. Each finished task is recorded in the ledger by what it was made from.
Files are removed as soon as no task needs them: a run's shards when it is recorded (unless shards are to be kept),
and all runs when the last bucket is. So a shuffle needs no more disk space than a build without one. A later run of
the job takes such shards for made if the runs that have their documents are intact, or all buckets.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import xxhash

from dsindex.datasets.provenance import ShardProvenance
from dsindex.engine.merge import Part
from dsindex.engine.publishing import shard_part, shard_provenance, stored_path
from dsindex.engine.shards.shuffle import (
    DocumentSource,
    GatherSettings,
    GatherTask,
    SortedDocuments,
    SortSettings,
    choose_run_bytes,
    count_buckets,
    cut_key_range,
    gather_documents,
    plan_groups,
    sort_documents,
)
from dsindex.engine.tokenize import find_whole_groups
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import run_calls
from dsindex.formats.mmididx import IndexHeader
from dsindex.json_text import encode_json
from dsindex.store.ownership import read_folder_id, remove_owned_files
from dsindex.store.requests import note_requests
from dsindex.store.storage import holds_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from dsindex.engine.shards.shuffle import SortResult, SortTask
    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.engine.start import Work

BASE_MEMORY_BYTES = 200 << 20
"""Memory of a worker besides its run or bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledDocuments:
    """The shuffled documents as parts to be assembled."""

    parts: tuple[tuple[Part, ...], ...]
    """For each key, its parts in output order."""
    provenance: tuple[ShardProvenance, ...] | None


Shards = list[tuple["ShardTask", "ShardResult"]]


@dataclass(slots=True, kw_only=True)
class DocumentShuffle:
    """The shuffle of one build."""

    seed: int
    keys: tuple[str, ...]
    """The parts of shards that have the documents."""
    dtype: np.dtype[Any]
    """Token type on disk."""
    has_provenance: bool
    """Whether the shards have provenance."""
    work_dir: str
    """The marked work folder."""
    keep_shards: bool
    _whole: dict[str, SortResult] = field(default_factory=dict)
    """Results of tasks whose files are intact, by identity."""
    _buckets: list[SortedDocuments] = field(default_factory=list)

    def find_moved(self, work: Work, tasks: Sequence[ShardTask], known: Mapping[int, ShardResult]) -> set[int]:
        """Return the shards whose documents an earlier run has moved to runs or buckets that are intact.

        Args:
            work: The job's executor, ledger and reporter.
            tasks: All shards of the plan.
            known: The shards of the ledger, by number in the plan.
        """
        first_unknown = next((number for number in range(len(tasks)) if number not in known), len(tasks))
        if not first_unknown:
            return set()
        plan = _Plan(self, [(task, known[task.shard]) for task in tasks[:first_unknown]])
        recorded = {plan.run_id(task): work.ledger.sorted(plan.run_id(task)) for task in plan.tasks}
        runs = {identity: result for identity, result in recorded.items() if result is not None}
        if len(runs) == len(recorded) and first_unknown == len(tasks):
            ids = [identity for identity, _ in _bucket_ids(plan, [runs[plan.run_id(task)] for task in plan.tasks])]
            buckets = {identity: work.ledger.sorted(identity) for identity in ids}
            recorded_buckets = {identity: result for identity, result in buckets.items() if result is not None}
            if len(self._keep_whole(work, recorded_buckets, unit="buckets")) == len(ids):
                self._whole |= runs  # their files are not needed any more
                return set(range(len(tasks)))
        whole = self._keep_whole(work, runs, unit="runs")
        return {shard for task in plan.tasks if plan.run_id(task) in whole for shard in plan.shards_of(task)}

    def run(self, work: Work, shards: Shards) -> ShuffledDocuments:
        """Sort and gather what no earlier run did.

        Args:
            work: The job's executor, ledger and reporter.
            shards: All shards of the plan, with their results.
        """
        plan = _Plan(self, shards)
        runs = self._sort(work, plan)
        sources = tuple(self._source(run) for result in runs for run in result.groups)
        if len(sources) == 1:
            self._buckets = [run for result in runs for run in result.groups]
        else:
            self._buckets = self._gather(work, plan, runs, sources)
            self._remove(work, [file.name for result in runs for file in result.files])
        buckets = [self._source(bucket) for bucket in self._buckets]
        return ShuffledDocuments(
            parts=tuple(tuple(bucket.parts[number] for bucket in buckets) for number in range(len(self.keys))),
            provenance=tuple(bucket.provenance for bucket in buckets if bucket.provenance is not None)
            if self.has_provenance
            else None,
        )

    def remove_buckets(self) -> None:
        """Remove the buckets of this run from a work folder that is kept, once the output is published."""
        self._remove_names([file.name for bucket in self._buckets for file in bucket.files])

    def _sort(self, work: Work, plan: _Plan) -> list[SortResult]:
        """Sort the runs that are missing; return the results of all."""
        settings = work.executor.share(
            SortSettings(seed=self.seed, run_bytes=plan.run_bytes, dtype=self.dtype.str, work_dir=self.work_dir)
        )
        uses = Counter(name for task in plan.tasks for name in plan.file_names(task))
        work.reporter.stage("sort", total=plan.total_bytes, unit="bytes", tasks=len(plan.tasks), task_name="runs")

        def finish(number: int, *, fresh: bool) -> None:
            task = plan.tasks[number]
            work.reporter.advance(sum(source.bin_bytes for source in task.sources), fresh=fresh)
            if self.keep_shards:
                return
            names = plan.file_names(task)
            uses.subtract(names)  # a shard of an input that is given twice may be in two runs
            self._remove(work, [name for name in names if not uses[name]])

        calls = [
            (plan.run_id(task), self._call(plan, f"sort[{task.number:05d}]", sort_documents, (task, settings)))
            for task in plan.tasks
        ]
        return self._run_missing(work, calls, finish)

    def _gather(
        self, work: Work, plan: _Plan, runs: Sequence[SortResult], sources: tuple[DocumentSource, ...]
    ) -> list[SortedDocuments]:
        """Gather the buckets that are missing; return all, in order."""
        shared = GatherSettings(runs=sources, dtype=self.dtype.str, work_dir=self.work_dir)
        settings = work.executor.share(shared)
        buckets = _bucket_ids(plan, runs)
        work.reporter.stage("shuffle", total=len(buckets), unit="buckets")

        def finish(_: int, *, fresh: bool) -> None:
            work.reporter.advance(1, fresh=fresh)

        calls = []
        for number, (identity, (low, high)) in enumerate(buckets):
            task = GatherTask(number=number, low=low, high=high)
            calls.append((identity, self._call(plan, f"shuffle[{number:05d}]", gather_documents, (task, settings))))
        return [result.groups[0] for result in self._run_missing(work, calls, finish)]

    def _call(self, plan: _Plan, name: str, function: Callable[..., SortResult], arguments: tuple[Any, ...]) -> Call:
        memory_bytes = BASE_MEMORY_BYTES + plan.run_bytes
        return Call(name=name, place=self.work_dir, function=function, arguments=arguments, memory_bytes=memory_bytes)

    def _run_missing(
        self, work: Work, calls: Sequence[tuple[str, Call]], finish: Callable[..., None]
    ) -> list[SortResult]:
        """Run the calls whose results no earlier run has left; return the results of all.

        Args:
            work: The job's executor, ledger and reporter.
            calls: The identity of each task, and its call.
            finish: Called with the number of each task that is done, and whether it was done now.
        """
        work.reporter.watch(work.statistics)
        done = {number: self._whole[identity] for number, (identity, _) in enumerate(calls) if identity in self._whole}
        missing = [(number, call) for number, (_, call) in enumerate(calls) if number not in done]
        for number in list(done):
            finish(number, fresh=False)

        def on_result(number: int, result: SortResult) -> None:
            note_requests(result.requests)
            done[number] = replace(result, requests=None)
            work.ledger.record_sorted(calls[number][0], done[number])
            finish(number, fresh=True)

        run_calls(
            work.executor,
            iter(missing),
            on_result=on_result,
            policy=work.policy,
            statistics=work.statistics,
            on_idle=work.reporter.tick,
        )
        return [done[number] for number in range(len(calls))]

    def _keep_whole(self, work: Work, results: Mapping[str, SortResult], *, unit: str) -> set[str]:
        """Remember the results whose files are intact; return their identities."""
        if not results:
            return set()
        identities = list(results)
        found = find_whole_groups(
            {number: results[identity].files for number, identity in enumerate(identities)},
            self.work_dir,
            executor=work.executor,
            reporter=work.reporter,
            policy=work.policy,
            unit=unit,
        )
        whole = {identities[number] for number in found}
        self._whole |= {identity: results[identity] for identity in whole}
        return whole

    def _source(self, documents: SortedDocuments) -> DocumentSource:
        """Return a run or a bucket as a source."""
        stored = documents.provenance
        return DocumentSource(
            parts=tuple(
                Part(
                    bin_path=stored_path(self.work_dir, part.bin),
                    idx_path=stored_path(self.work_dir, part.idx),
                    identity=part.bin.name,
                    bin_bytes=part.bin.size_bytes,
                    header=IndexHeader(
                        dtype=self.dtype,
                        num_sequences=part.num_sequences,
                        num_boundaries=documents.num_documents + 1,
                        has_modes=False,
                    ),
                )
                for part in documents.parts
            ),
            provenance=None if stored is None else ShardProvenance(path=stored_path(self.work_dir, stored), input=None),
            keys_path=None if documents.order is None else stored_path(self.work_dir, documents.order),
        )

    def shard_source(self, result: ShardResult, provenance: ShardProvenance | None) -> DocumentSource:
        """Return a shard as a source."""
        return DocumentSource(
            parts=tuple(shard_part(result.find_part(key), self.work_dir, self.dtype) for key in self.keys),
            provenance=provenance,
        )

    def list_provenance(self, shards: Shards) -> list[ShardProvenance | None]:
        """Return the provenance of each shard; None for each if there is none."""
        if not self.has_provenance:
            return [None] * len(shards)
        parts = [result.find_part(self.keys[0]) for _, result in shards]
        return list(shard_provenance(shards, self.work_dir, parts))

    def _remove(self, work: Work, names: Iterable[str]) -> None:
        """Remove files that the ledger does not need any more, once it is on disk."""
        work.ledger.sync()
        self._remove_names(names)

    def _remove_names(self, names: Iterable[str]) -> None:
        folder_id = read_folder_id(self.work_dir)
        if folder_id is not None:
            remove_owned_files(self.work_dir, folder_id, names)


class _Plan:
    """The sort tasks for shards, and the identities by which the ledger knows their results."""

    def __init__(self, shuffle: DocumentShuffle, shards: Shards) -> None:
        provenance = shuffle.list_provenance(shards)
        sources = [shuffle.shard_source(result, rows) for (_, result), rows in zip(shards, provenance, strict=True)]
        self.seed = shuffle.seed
        self._keys = shuffle.keys
        self.total_bytes = sum(source.bin_bytes for source in sources)
        self.num_documents = sum(source.num_documents for source in sources)
        self.run_bytes = choose_run_bytes(self.total_bytes, in_store=holds_writes(shuffle.work_dir))
        self.tasks = plan_groups(sources, self.run_bytes)
        self._results = [result for _, result in shards]
        self._first_shards: list[int] = []
        self._ids: list[str] = []
        first = 0
        for task in self.tasks:
            self._first_shards.append(first)
            first += len(task.sources)
            self._ids.append(self._identify(task))

    def run_id(self, task: SortTask) -> str:
        """Return the identity of a task."""
        return self._ids[task.number]

    def shards_of(self, task: SortTask) -> range:
        """Return the numbers of a task's shards."""
        first = self._first_shards[task.number]
        return range(first, first + len(task.sources))

    def file_names(self, task: SortTask) -> list[str]:
        """Return the files of a task's shards that nothing needs after it."""
        names = []
        for number in self.shards_of(task):
            result = self._results[number]
            files = [result.provenance]
            for part in result.keys:
                files += [part.bin, part.idx, part.provenance] if part.key in self._keys else []
            names += [file.name for file in files if file is not None]
        return names

    def _identify(self, task: SortTask) -> str:
        """Return an id of everything that a task's result depends on; files of each attempt have names of their own."""
        made_of: list[Any] = [self.seed, self.run_bytes, task.first_document]
        for source in task.sources:
            rows = source.provenance
            made_of.append([part.identity for part in source.parts])
            made_of.append(None if rows is None else [rows.input, rows.first_line, rows.first_offset])
        return f"run {xxhash.xxh3_128_hexdigest(encode_json(made_of))}"


def _bucket_ids(plan: _Plan, runs: Sequence[SortResult]) -> list[tuple[str, tuple[int, int]]]:
    """Return the identity and the range of keys of each bucket."""
    names = encode_json([file.name for result in runs for file in result.files])
    base = xxhash.xxh3_128_hexdigest(names)
    num_buckets = count_buckets(
        total_bytes=plan.total_bytes, num_documents=plan.num_documents, run_bytes=plan.run_bytes
    )
    return [(f"bucket {base} {low} {high}", (low, high)) for low, high in cut_key_range(num_buckets)]
