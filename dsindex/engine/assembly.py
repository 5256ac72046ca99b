"""From parts to the files of outputs: which ranges can be merged, what is done, what is left.

On a disk, the tokens are merged by ranges, most of them while shards are still being made; the `.bin` of a shard is
removed once the ranges that need it are recorded. In a bucket, an output's objects are written at the end.

A range can be merged as soon as its shards and all shards before them are recorded, because its place is then known. A
plan's ranges have the same bytes whenever they are merged, so one that is recorded is done.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.engine.executors import Call
from dsindex.engine.ledger import FileComplete, Publishing, RangeMerged
from dsindex.engine.merge import make_index, make_provenance, make_quarantine, merge_range, merge_whole
from dsindex.engine.output import PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, Output, ranges_of, withdraw
from dsindex.engine.tasks import MergeRange
from dsindex.store.storage import StoredFile, combine_digests
from dsindex.store.store import replace_file, store_of

if TYPE_CHECKING:
    from dsindex.engine.job import Job

RangeOfOutput: TypeAlias = tuple[Output, MergeRange]


def full_ranges(job: Job, output: Output, *, is_whole: bool = False) -> list[tuple[RangeOfOutput, Call]]:
    """Return the calls for the ranges that became full, but for those that are merged; begin the token file.

    Args:
        job: The job.
        output: One of its outputs.
        is_whole: Whether all parts were added, so that all ranges are as full as they will be.

    Raises:
        OutputError: If the token file cannot be created.
    """
    if output.in_bucket:
        return []
    merged = job.ledger.ranges[output.name]
    numbers = output.take_ranges(is_whole=is_whole)
    tasks = [output.range_of(number) for number in numbers if number not in merged]
    if (tasks or is_whole) and not (merged or output.is_begun):
        replace_file(output.token_file, b"")
        output.is_begun = True
    return [((output, task), _merge_call(task)) for task in tasks]


def _merge_call(task: MergeRange) -> Call:
    return Call(
        name=f"merge[{os.path.basename(task.output).rsplit('.', 2)[0]}:{task.number:05d}]",
        place=f"{task.output}, bytes {task.begin} to {task.begin + task.size_bytes}",
        function=merge_range,
        arguments=(task,),
    )


def record_range(job: Job, output: Output, task: MergeRange, digest: str) -> None:
    """Record a merged range, and remove the tokens of shards that no range needs any more."""
    job.ledger.record(RangeMerged(output.name, task.number, digest))
    merged = job.ledger.ranges[output.name]
    used_up = [
        output.token_files[each].path
        for each in output.files_of(task.number)
        if output.token_files[each].digest is not None
        and all(map(merged.__contains__, ranges_of(*output.begins[each : each + 2])))
    ]
    if used_up and not job.config.keep_shards:
        job.ledger.sync()
        store_of(used_up[0]).delete(used_up)


# Assemble all files.


def assemble(job: Job) -> None:
    """Write all files of all outputs, keeping those that an earlier run completed.

    On a disk they have partial names. In a bucket, an earlier dataset of the same names is withdrawn first, and what
    completes each dataset is written last, so that no reader meets half of one.
    """
    calls: list[tuple[tuple[Output, MergeRange | str], Call]] = []
    last_calls: list[tuple[tuple[Output, str], Call]] = []
    for output in job.outputs:
        calls += full_ranges(job, output, is_whole=True)
        written = [suffix for suffix in output.suffixes if output.in_bucket or suffix != output.token_suffix]
        missing = [suffix for suffix in written if suffix not in job.ledger.files[output.name]]
        own = [((output, suffix), _write_call(output, suffix)) for suffix in missing]
        if output.in_bucket and missing and missing[-1] == output.suffixes[-1]:
            last_calls.insert(0, own.pop())
        calls += own
    job.reporter.stage(
        "merge",
        total=sum(output.begins[-1] for output in job.outputs),
        unit="bytes",
        tasks=sum(isinstance(what, MergeRange) for (_, what), _ in calls),
        task_name="ranges",
    )
    if any(output.in_bucket for output in job.outputs):
        job.require_locks()
        job.ledger.record(Publishing())
    for (output, _), _ in last_calls:
        withdraw(output)
    for part in (calls, last_calls):
        with contextlib.closing(job.dispatch(part).run()) as results:
            for (output, what), value in results:
                if isinstance(what, MergeRange):
                    record_range(job, output, what, value)
                    job.reporter.advance(what.size_bytes)
                else:
                    job.ledger.record(FileComplete(output.name, value))
                    job.reporter.advance(value.size_bytes if what == output.token_suffix else 0, tasks=0)
    for output in job.outputs:
        files = {**job.ledger.files[output.name], **_merged_file(job, output)}
        output.digests = {suffix: files[suffix] for suffix in sorted(output.suffixes)}


def _merged_file(job: Job, output: Output) -> dict[str, StoredFile]:
    """Return the token file on a disk by its suffix, from the digests of its ranges."""
    if output.in_bucket:
        return {}
    digests = [bytes.fromhex(digest) for _, digest in sorted(job.ledger.ranges[output.name].items())]
    name, size_bytes = output.token_suffix, output.begins[-1]
    return {name: StoredFile(name=name, size_bytes=size_bytes, digest=combine_digests(digests))}


def _write_call(output: Output, suffix: str) -> Call:
    """Return the call that writes a file as a whole."""
    functions: dict[str, tuple[Any, Any]] = {
        output.token_suffix: (merge_whole, output.token_files),
        PROVENANCE_SUFFIX: (make_provenance, output.provenance),
        QUARANTINE_SUFFIX: (make_quarantine, output.quarantine),
        "idx": (make_index, output.parts),
    }
    function, parts = functions[suffix]
    name = f"{suffix.partition('.')[0]}[{output.name}]"
    arguments = (parts, output.partial(suffix))
    return Call(name=name, place=output.final(suffix), function=function, arguments=arguments)
