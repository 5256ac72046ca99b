"""Assemble a job's outputs: which calls are to be made, and what follows from their answers.

On a disk, a token file is merged by ranges, each as soon as the files that it needs are recorded, so most ranges are
merged while shards are still made; the tokens of a shard are removed once the ranges that need them are recorded and
synced. In a bucket, and for all other files, one task writes a file from its start to its end.

Everything that a run of the same plan recorded before is checked first: a range or a file that is not what was recorded
is made again. If a worker finds a file of a shard damaged, the shard is made again, and what needed it after that.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.formats.provenance import PROVENANCE_SUFFIX
from dsindex.formats.quarantine import QUARANTINE_SUFFIX
from dsindex.runtime.executors import Call
from dsindex.runtime.merge import (
    check_file,
    check_range,
    make_index,
    make_provenance,
    make_quarantine,
    merge_range,
    merge_whole,
)
from dsindex.runtime.output import Output, begin_of, ranges_of
from dsindex.runtime.publish import begin_in_bucket
from dsindex.runtime.tasks import Damaged
from dsindex.runtime.work_folder import FileComplete, RangeMerged
from dsindex.store.local import StoredFile, combine_digests
from dsindex.store.protocol import find, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsindex.runtime.job import Job

Work: TypeAlias = tuple[Output, int | str]
"""A range of an output's token file by its number, or another file by its suffix."""
Key: TypeAlias = Work | int
"""Work, or the number of a shard."""
Calls: TypeAlias = "Iterable[tuple[Key, Call]]"


class Assembly:
    """The work on a job's outputs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.waiting: list[Work] = []
        """Work that failed for a damaged shard."""
        self._check_kept()

    def _ranges(self, output: Output) -> dict[int, RangeMerged]:
        return self.job.journal.ranges(self.job.plan.plan_id, output.name)

    def _files(self, output: Output) -> dict[str, StoredFile]:
        return self.job.journal.files(self.job.plan.plan_id, output.name)

    def _check_kept(self) -> None:
        """Forget the ranges and files of earlier runs that are not what was recorded."""
        calls: list[tuple[Work, Call]] = []
        for output in self.job.outputs:
            for number, merged in self._ranges(output).items():
                path, begin = output.token_path, begin_of(number)
                arguments = (path, begin, begin + merged.size_bytes, merged.digest)
                name = f"check[{output.name}.{output.token_suffix}:{number:05d}]"
                call = Call(name=name, place=path, function=check_range, arguments=arguments)
                calls.append(((output, number), call))
            for suffix, file in self._files(output).items():
                name, path = f"check[{output.name}.{suffix}]", output.partial(suffix)
                calls.append(
                    ((output, suffix), Call(name=name, place=path, function=check_file, arguments=(path, file)))
                )
        with contextlib.closing(self.job.dispatch(calls).run()) as results:
            for (output, what), is_kept in results:
                if not is_kept and isinstance(what, int):
                    del self._ranges(output)[what]
                elif not is_kept:
                    del self._files(output)[str(what)]

    # Calls.

    def range_calls(self, output: Output, numbers: Iterable[int]) -> Iterator[tuple[Key, Call]]:
        """Yield the calls that merge ranges of an output on a disk, but for those that are merged."""
        merged = self._ranges(output)
        for number in () if output.in_bucket else numbers:
            if number not in merged:
                yield self._call(output, number)

    def _call(self, output: Output, what: int | str) -> tuple[Key, Call]:
        if isinstance(what, int):
            task = output.range_task(what)
            if find(task.output) is None:
                replace_file(task.output, b"")
            name = f"merge[{output.name}.{output.token_suffix}:{what:05d}]"
            place = f"{task.output}, bytes {task.begin} to {task.begin + task.size_bytes}"
            return (output, what), Call(name=name, place=place, function=merge_range, arguments=(task,))
        functions: dict[str, tuple[Any, Any]] = {
            output.token_suffix: (merge_whole, output.sources),
            PROVENANCE_SUFFIX: (make_provenance, output.segments),
            QUARANTINE_SUFFIX: (make_quarantine, [segment for segment in output.segments if segment.quarantine]),
            "idx": (make_index, output.segments),
        }
        function, sources = functions[what]
        name, arguments = f"{what.partition('.')[0]}[{output.name}]", (sources, output.partial(what))
        return (output, what), Call(name=name, place=output.final(what), function=function, arguments=arguments)

    def run(self, calls: Calls, first: Calls = (), *, merges: bool = False) -> None:
        """Make calls, and those that follow from their answers.

        Args:
            calls: The calls, in the order of the job.
            first: Calls that follow from an earlier run.
            merges: Whether the stage counts merged bytes.
        """
        dispatch = self.job.dispatch(calls)
        dispatch.release(first)
        with contextlib.closing(dispatch.run()) as results:
            for key, answer in results:
                dispatch.release(self.take(key, answer))
                if merges and not isinstance(key, int) and not isinstance(answer, Damaged):
                    self._advance(*key)

    def take(self, key: Key, answer: Any) -> Calls:  # noqa: ANN401 - of the functions above
        """Record the answer of a call; return the calls that follow from it."""
        if isinstance(key, int):
            raise TypeError("shards are taken by the job that makes them")
        output, what = key
        if isinstance(answer, Damaged):
            self.waiting.append(key)
            return self.make_again(answer)
        plan_id, journal = self.job.plan.plan_id, self.job.journal
        if isinstance(what, int):
            size_bytes = output.range_task(what).size_bytes
            journal.record(RangeMerged(plan_id, output.name, what, size_bytes, answer))
            self._remove_used_up(output, what)
        else:
            journal.record(FileComplete(plan_id, output.name, answer))
        return ()

    def _advance(self, output: Output, what: int | str) -> None:
        if isinstance(what, int):
            self.job.reporter.advance(output.range_task(what).size_bytes)
        elif what == output.token_suffix:
            self.job.reporter.advance(output.size_bytes, tasks=0)

    def make_again(self, damaged: Damaged) -> Calls:
        """Return the calls that make the shard of a damaged file again. Only shards can be."""
        raise NotImplementedError

    def release_waiting(self) -> list[tuple[Key, Call]]:
        """Return the calls for work that waited for shards, all of which are made now."""
        waiting, self.waiting = self.waiting, []
        return [self._call(*work) for work in waiting]

    def _remove_used_up(self, output: Output, number: int) -> None:
        """Remove the tokens of shards that no range needs any more, once the record of this one is synced."""
        if self.job.config.keep_shards:
            return
        merged, used_up = self._ranges(output), []
        for source in output.sources_of(number):
            needed = ranges_of(*output.begins[source : source + 2])
            if output.sources[source].blocks is not None and all(map(merged.__contains__, needed)):
                used_up.append(output.sources[source].path)
        if used_up:
            self.job.journal.log.remove_when_synced(used_up)

    # From sources to files.

    def complete(self) -> list[dict[str, StoredFile]]:
        """Write all that is missing of all outputs; return the files of each, by suffix.

        In a bucket, an earlier dataset of the same names is withdrawn first, and what completes each dataset is
        written last, so that no reader meets half of one.
        """
        outputs = self.job.outputs
        work, last = list[Work](), list[Work]()
        for output in outputs:
            if not output.in_bucket:
                work += [(output, number) for number in output.ranges if number not in self._ranges(output)]
            whole = [suffix for suffix in output.suffixes if output.in_bucket or suffix != output.token_suffix]
            missing = [suffix for suffix in whole if suffix not in self._files(output)]
            if output.in_bucket and output.suffixes[-1] in missing:
                last.insert(0, (output, missing.pop()))
            work += [(output, suffix) for suffix in missing]
        ranges = [output.range_task(what).size_bytes for output, what in work if isinstance(what, int)]
        total = sum(ranges) + sum(output.size_bytes for output, what in work if what == output.token_suffix)
        self.job.reporter.stage("merge", total=total, unit="bytes", tasks=len(ranges), task_name="ranges")
        if last:
            self.job.require_locks()
            present = [output.final(suffix) for output in outputs for suffix in output.suffixes]
            begin_in_bucket(outputs[0].artifact, [output.artifact for output, _ in last], present)
        self.run((self._call(*each) for each in work), merges=True)
        self.run((self._call(*each) for each in last), merges=True)
        return [output.digests({**self._files(output), **self._token_file(output)}) for output in outputs]

    def _token_file(self, output: Output) -> dict[str, StoredFile]:
        """Return the token file on a disk by its suffix, from the digests of its ranges."""
        if output.in_bucket:
            return {}
        size_bytes, name = output.size_bytes, output.token_suffix
        status = find(output.token_path)
        if status is None and not size_bytes:
            replace_file(output.token_path, b"")
        elif status is not None and status.size_bytes > size_bytes:
            os.truncate(output.token_path, size_bytes)
        digests = [bytes.fromhex(merged.digest) for _, merged in sorted(self._ranges(output).items())]
        return {name: StoredFile(name=name, size_bytes=size_bytes, digest=combine_digests(digests))}
