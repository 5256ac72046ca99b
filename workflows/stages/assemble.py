"""Assemble the files of datasets from their parts, under partial names.

Some ranges of the tokens may already be merged (workflows.stages.early_merge); the others are merged here. A `.pbin`
consists of the same parts between a header and an index, which are files in the work folder.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsindex.merging.index import write_merged_index
from dsindex.merging.ranges import MergeRange, RangeResult, plan_merge
from dsindex.objects.requests import note_requests
from dsindex.objects.uploads import Upload, open_output
from dsindex.objects.urls import ObjectUrl
from dsindex.shards.provenance import ShardProvenance, write_provenance
from dsindex.shards.quarantine import ShardQuarantine, write_quarantine
from dsindex.storage import StoredFile, combine_digests, make_folder
from workflows.execution.calls import Call
from workflows.execution.dispatch import run_calls
from workflows.stages.early_merge import begin_token_file, range_call, resize
from workflows.state.publishing import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, Dataset, identify_parts, record_partials
from workflows.state.uploads import current_upload, live_upload, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.merging.parts import Part
    from workflows.stages.work import Work
    from workflows.state.ledger import Ledger


def assemble(datasets: Sequence[Dataset], work: Work) -> list[dict[str, StoredFile]]:
    """Write all files of all datasets under their partial names, keeping those that an earlier run finished.

    Returns:
        For each dataset, its files by suffix.
    """
    reporter = work.reporter
    assemblies = [_Assembly(dataset, work.ledger) for dataset in datasets]
    num_ranges = sum(len(assembly.ranges) for assembly in assemblies)
    total = sum(dataset.bin_bytes for dataset in datasets)
    reporter.stage("merge", total=total, unit="bytes", tasks=num_ranges, task_name="ranges")
    reporter.watch(work.statistics)
    for assembly in assemblies:
        reporter.advance(assembly.bytes_done, tasks=assembly.num_ranges_done, fresh=False)

    def on_result(key: tuple[_Assembly, MergeRange | str], value: Any) -> None:  # noqa: ANN401 - as `take`
        assembly, what = key
        reporter.advance(assembly.take(what, value), tasks=0 if isinstance(what, str) else 1)

    run_calls(
        work.executor,
        (((assembly, what), call) for assembly in assemblies for what, call in assembly.calls()),
        on_result=on_result,
        policy=work.policy,
        statistics=work.statistics,
        on_idle=reporter.tick,
    )
    return [assembly.finish() for assembly in assemblies]


class _Assembly:
    """One dataset that is being assembled."""

    def __init__(self, dataset: Dataset, ledger: Ledger) -> None:
        self._dataset = dataset
        self._target = dataset.target
        self._merge_id = identify_parts(dataset.parts)
        self._ledger = ledger
        self._files: dict[str, StoredFile] = {}
        self.ranges: list[MergeRange] = []
        self._results: dict[int, RangeResult] = {}
        self.num_ranges_done = 0
        self._complete = self._resume_complete()
        if self._complete:
            self.bytes_done = dataset.bin_bytes
            return
        path = self._target.token_file
        record_partials(dataset, ledger)
        if not self._target.is_remote:
            make_folder(os.path.dirname(path))
        upload = begin_token_file(self._target, ledger)
        if upload is None:
            resize(path, dataset.bin_bytes)  # early merging may have left it shorter
        self.ranges = plan_merge(dataset.pieces, path, bound_bytes=self._target.bound_bytes, upload=upload)
        for task in self.ranges:
            result = ledger.range(task)
            if result is not None:
                self._results[task.number] = result
        self.num_ranges_done = len(self._results)
        self.bytes_done = sum(task.end - task.begin for task in self.ranges if task.number in self._results)

    def _resume_complete(self) -> bool:
        """Tell whether an earlier run completed all files; some of them may be published already."""
        recorded = self._ledger.assembled(self._target.token_file, self._merge_id)
        if recorded is None:
            return False
        files = {suffix: StoredFile(name=suffix, **entry) for suffix, entry in recorded.items()}
        if files.keys() != self._dataset.suffixes:
            return False
        for suffix, file in files.items():
            if self._stored_bytes(suffix) != file.size_bytes:
                return False
        self._files = files
        return True

    def _stored_bytes(self, suffix: str) -> int | None:
        """Return the size of a file under its partial or its final name; None if it is under neither."""
        if self._target.is_remote:
            upload = current_upload(self._target.final(suffix), self._target.partial(suffix), self._ledger)
            return None if upload is None else stored_bytes(upload)
        size_bytes = _size(self._target.partial(suffix))
        return _size(self._target.final(suffix)) if size_bytes is None else size_bytes

    def _place(self, suffix: str) -> str | Upload:
        """Return where a file is written that is written as a whole."""
        final, partial = self._target.final(suffix), self._target.partial(suffix)
        return live_upload(final, partial, self._ledger) if isinstance(final, ObjectUrl) else partial

    def calls(self) -> Iterator[tuple[MergeRange | str, Call]]:
        """Yield the calls that are still to be made, by range or suffix."""
        if self._complete:
            return
        dataset, target = self._dataset, self._target
        name = os.path.basename(target.prefix)
        if dataset.pbin is None:
            yield (
                "idx",
                Call(
                    name=f"index[{name}]",
                    place=target.final("idx"),
                    function=make_index,
                    arguments=(dataset.parts, self._place("idx")),
                ),
            )
        if dataset.provenance is not None:
            yield (
                PROVENANCE_SUFFIX,
                Call(
                    name=f"provenance[{name}]",
                    place=target.final(PROVENANCE_SUFFIX),
                    function=make_provenance,
                    arguments=(dataset.provenance, self._place(PROVENANCE_SUFFIX)),
                ),
            )
        if dataset.quarantine:
            yield (
                QUARANTINE_SUFFIX,
                Call(
                    name=f"quarantine[{name}]",
                    place=target.final(QUARANTINE_SUFFIX),
                    function=make_quarantine,
                    arguments=(dataset.quarantine, self._place(QUARANTINE_SUFFIX)),
                ),
            )
        for task in self.ranges:
            if task.number not in self._results:
                yield task, range_call(task, target)

    def take(self, what: MergeRange | str, value: Any) -> int:  # noqa: ANN401 - a RangeResult or a StoredFile
        """Take one call's result; return the number of bytes that it merged."""
        if isinstance(what, str):
            self._files[what] = value
            return 0
        note_requests(value.requests)
        self._results[what.number] = value = replace(value, requests=None)
        self._ledger.record_range(what, value)
        return what.end - what.begin

    def finish(self) -> dict[str, StoredFile]:
        if not self._complete:
            digests = [
                bytes.fromhex(digest) for task in self.ranges for digest in self._results[task.number].block_digests
            ]
            suffix = self._target.token_suffix
            self._files[suffix] = StoredFile(
                name=suffix, size_bytes=self._dataset.bin_bytes, digest=combine_digests(digests)
            )
            recorded = {
                suffix: {"size_bytes": file.size_bytes, "digest": file.digest} for suffix, file in self._files.items()
            }
            self._ledger.record_assembled(self._target.token_file, self._merge_id, recorded)
        return self._files


def make_index(parts: Sequence[Part], place: str | Upload) -> StoredFile:
    """Write the merged `.idx`, which is complete or absent."""
    with open_output(place) as file:
        write_merged_index(file, parts)
    return file.as_stored("idx")


def make_provenance(shards: Sequence[ShardProvenance], place: str | Upload) -> StoredFile:
    """Write the merged provenance, which is complete or absent."""
    with open_output(place) as file:
        write_provenance(file, shards)
    return file.as_stored(PROVENANCE_SUFFIX)


def make_quarantine(shards: Sequence[ShardQuarantine], place: str | Upload) -> StoredFile:
    """Write the merged quarantine, which is complete or absent."""
    with open_output(place) as file:
        write_quarantine(file, shards)
    return file.as_stored(QUARANTINE_SUFFIX)


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None
