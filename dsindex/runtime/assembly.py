"""Assemble a job's outputs: schedule the merge calls, record their results, and redo what is damaged.

On a local disk, a token file is merged in byte ranges, each as soon as its shards are recorded, so most ranges are
merged while other shards are still being made. A shard's tokens are deleted once the ranges that need them are recorded
and synced. In a bucket, for documents in a random order, and for all other files, one task writes the whole file.

What an earlier run of the same plan recorded is checked first: a range or file that differs from its record is written
again. If a worker finds a damaged shard, the shard is made again, and then the ranges or files that needed it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.formats.provenance import PROVENANCE_SUFFIX
from dsindex.formats.quarantine import QUARANTINE_SUFFIX
from dsindex.runtime.dispatch import Dispatch
from dsindex.runtime.executors import Call
from dsindex.runtime.job import RANGE_BYTES, Output, ranges_of
from dsindex.runtime.merge import (
    check_merged,
    make_index,
    make_provenance,
    make_quarantine,
    merge_range,
    merge_shuffled,
    merge_whole,
)
from dsindex.runtime.publish import claim_names
from dsindex.runtime.tasks import Damaged
from dsindex.runtime.work_folder import FileComplete, RangeMerged
from dsindex.store.local import StoredFile, combine_digests
from dsindex.store.protocol import find, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.runtime.job import Job

Work: TypeAlias = tuple[Output, int | str]
"""An output and one of its parts: the number of a range of its token file, or the suffix of a whole file."""
Key: TypeAlias = Work | int
"""Work, or a shard's number."""
Calls: TypeAlias = "Iterable[tuple[Key, Call]]"


class Assembly:
    """Schedules, records and completes the outputs of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.waiting: list[Work] = []
        """Work that failed on a damaged shard; it runs again once the shard is remade."""
        self.is_completing = False
        """Whether the shards are made and the stage `merge` counts the merged bytes."""
        self._check_records()

    def _records_of(self, output: Output) -> dict[int | str, RangeMerged | FileComplete]:
        return self.job.journal.records[self.job.plan.plan_id, output.name]

    def _check_records(self) -> None:
        """Forget ranges and files of earlier runs that differ from their records."""
        calls: list[tuple[Work, Call]] = []
        for output in self.job.outputs:
            for part, line in self._records_of(output).items():
                path = output.token_path if isinstance(part, int) else output.partial(part)
                arguments = (path, part * RANGE_BYTES if isinstance(part, int) else 0, line)
                name = f"check[{output.name}:{part}]"
                calls.append(((output, part), Call(name=name, place=path, function=check_merged, arguments=arguments)))
        with contextlib.closing(Dispatch(self.job.executor, calls).run()) as results:
            for (output, part), is_kept in results:
                if not is_kept:
                    del self._records_of(output)[part]

    def range_calls(self, output: Output, numbers: Iterable[int]) -> Iterator[tuple[Key, Call]]:
        """Yield the calls that merge ranges of an output on a disk, skipping merged ranges."""
        for number in numbers if output.has_ranges else ():
            if number not in self._records_of(output):
                yield self._make_call(output, number)

    def _make_call(self, output: Output, part: int | str) -> tuple[Key, Call]:
        if isinstance(part, int):
            task = output.range_task(part)
            if find(task.output) is None:
                replace_file(task.output, b"")
            name = f"merge[{output.name}.{output.token_suffix}:{part:05d}]"
            place = f"{task.output}, bytes {task.begin} to {task.begin + task.size_bytes}"
            return (output, part), Call(name=name, place=place, function=merge_range, arguments=(task,))
        merge_tokens = (merge_whole, output.sources)
        shuffle_tokens = (merge_shuffled, output.sources, output.segments, output.seed)
        functions: dict[str, tuple[Any, ...]] = {
            output.token_suffix: merge_tokens if output.seed is None else shuffle_tokens,
            PROVENANCE_SUFFIX: (make_provenance, output.segments, output.seed),
            QUARANTINE_SUFFIX: (make_quarantine, [segment for segment in output.segments if segment.quarantine]),
            "idx": (make_index, output.segments),
        }
        function, sources, *order = functions[part]
        name, arguments = f"{part.partition('.')[0]}[{output.name}]", (sources, output.partial(part), *order)
        return (output, part), Call(name=name, place=output.final(part), function=function, arguments=arguments)

    def run(self, calls: Calls, first: Calls = ()) -> None:
        """Run calls, and the calls that their results release.

        Args:
            calls: The calls, in the order of the job.
            first: Calls that an earlier run's results release; they start first.
        """
        dispatch = Dispatch(self.job.executor, calls)
        dispatch.release(first)
        with contextlib.closing(dispatch.run()) as results:
            for key, result in results:
                dispatch.release(self.take(key, result))

    def take(self, key: Key, result: Any) -> Calls:  # noqa: ANN401 - of the functions above
        """Record a call's result; return the calls that it releases."""
        if isinstance(key, int):
            raise TypeError("shards are taken by the job that makes them")
        output, part = key
        if isinstance(result, Damaged):
            self.waiting.append(key)
            return self.remake_shard(result)
        journal, output_id, num_bytes = self.job.journal, (self.job.plan.plan_id, output.name), 0
        if isinstance(part, int):
            num_bytes = output.range_task(part).size_bytes
            journal.record(RangeMerged(*output_id, part, num_bytes, result))
            self._remove_merged_tokens(output, part)
        else:
            num_bytes = result.size_bytes if part == output.token_suffix else 0
            journal.record(FileComplete(*output_id, result))
        if self.is_completing and num_bytes:
            self.job.reporter.advance(num_bytes, tasks=int(isinstance(part, int)))
        return ()

    def remake_shard(self, damaged: Damaged) -> Calls:
        """Return the calls that remake the shard of a damaged file; implemented by jobs that make shards."""
        raise NotImplementedError

    def release_waiting(self) -> list[tuple[Key, Call]]:
        """Return the calls for work that waited for damaged shards, which are remade by now."""
        waiting, self.waiting = self.waiting, []
        return [self._make_call(*work) for work in waiting]

    def _remove_merged_tokens(self, output: Output, number: int) -> None:
        """Delete shard tokens that no unmerged range needs, once this range's record is synced."""
        if self.job.config.keep_shards:
            return
        records, paths = self._records_of(output), []
        for source in output.sources_of(number):
            numbers = ranges_of(*output.begins[source : source + 2])
            if output.sources[source].blocks is not None and all(map(records.__contains__, numbers)):
                paths.append(output.sources[source].path)
        if paths:
            self.job.journal.log.remove_when_synced(paths)

    def complete(self) -> list[dict[str, StoredFile]]:
        """Write all missing files of all outputs; return each output's files by suffix.

        In a bucket, an earlier dataset with the same names is withdrawn first, and the file that completes a dataset is
        written last, so that no reader finds half a dataset.
        """
        outputs = self.job.outputs
        work, last = list[Work](), list[Work]()
        for output in outputs:
            if output.has_ranges:
                work += [(output, number) for number in output.ranges if number not in self._records_of(output)]
            suffixes = [suffix for suffix in output.suffixes if suffix != output.token_suffix or not output.has_ranges]
            missing = [suffix for suffix in suffixes if suffix not in self._records_of(output)]
            if output.artifact.is_in_place and output.suffixes[-1] in missing:
                last.insert(0, (output, missing.pop()))
            work += [(output, suffix) for suffix in missing]
        ranges = [output.range_task(part).size_bytes for output, part in work if isinstance(part, int)]
        total = sum(ranges) + sum(output.size_bytes for output, part in work if part == output.token_suffix)
        self.job.reporter.stage("merge", total=total, unit="bytes", tasks=len(ranges), task_name="ranges")
        if last:
            self.job.require_locks()
            present = [output.final(suffix) for output in outputs for suffix in output.suffixes]
            claim_names(outputs[0].artifact, [output.artifact for output, _ in last], present)
        self.is_completing = True
        self.run(self._make_call(*output_and_part) for output_and_part in work)
        self.run(self._make_call(*output_and_part) for output_and_part in last)
        return [self._files_of(output) for output in outputs]

    def _files_of(self, output: Output) -> dict[str, StoredFile]:
        """Return an output's files by suffix, sorted as in manifests; finish a token file that was merged in ranges."""
        lines = self._records_of(output).values()
        files = {line.file.name: line.file for line in lines if isinstance(line, FileComplete)}
        if output.has_ranges:
            files[output.token_suffix] = self._finish_token_file(output)
        return {suffix: files[suffix] for suffix in sorted(output.suffixes)}

    def _finish_token_file(self, output: Output) -> StoredFile:
        """Create an empty token file, or truncate one that was longer; combine the digests of its ranges."""
        size_bytes, name = output.size_bytes, output.token_suffix
        status = find(output.token_path)
        if status is None and not size_bytes:
            replace_file(output.token_path, b"")
        elif status is not None and status.size_bytes > size_bytes:
            os.truncate(output.token_path, size_bytes)
        lines = self._records_of(output).values()
        ranges = sorted((line.number, line.digest) for line in lines if isinstance(line, RangeMerged))
        digest = combine_digests([bytes.fromhex(digest) for _, digest in ranges])
        return StoredFile(name=name, size_bytes=size_bytes, digest=digest)
