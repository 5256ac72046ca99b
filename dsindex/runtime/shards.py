"""Make the shards of a plan: keep those that the ledger has, make the others, count records.

Meanwhile, ranges of the output that finished shards fill are merged (dsindex.runtime.job). What is made is then
described: datasets to assemble, and the counts for their manifests.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from dsindex.errors import BadRecordError, InputError
from dsindex.formats.manifest import Content, RecordCounts, RecordedInput
from dsindex.formats.mmididx import IndexHeader
from dsindex.messages import count
from dsindex.runtime.executors import Call
from dsindex.runtime.output import ranges_of
from dsindex.runtime.tasks import Part, PartFile, ShardRows
from dsindex.runtime.work_folder import SHARDS_FOLDER, ShardMade
from dsindex.runtime.worker import tokenize_shard
from dsindex.store.protocol import store_of
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsindex.runtime.job import Job, RangeOfOutput
    from dsindex.runtime.source import TextSource
    from dsindex.runtime.tasks import ShardResult, ShardTask


def make_shards(
    job: Job,
    source: TextSource,
    settings: object,
    *,
    function: Callable[[ShardTask, Any], ShardResult] = tokenize_shard,
) -> Shards:
    """Make the shards of a source that the ledger does not have, and merge ranges of the outputs meanwhile.

    Args:
        job: The job.
        source: The inputs.
        settings: The settings that all shards share; sent to every worker once.
        function: The function that makes a shard.

    Raises:
        BadRecordError: The bad record at the smallest input and offset, with its line number.
        InputError: If there are more bad records than allowed, or no records at all.
    """
    tasks = source.tasks()
    kept = _find_kept(job, tasks)
    if job.ledger.shards:
        job.reporter.say(f"{len(kept):,} of {count(len(tasks), 'shard')} kept, {len(tasks) - len(kept):,} to be made")
    job.reporter.stage("tokenize", total=sum(task.stored_bytes for task in tasks), unit="bytes", tasks=len(tasks))
    shards = Shards(job, source, tasks)
    ready = [call for number, result in kept.items() for call in shards.take(number, result, fresh=False)]
    missing, shared = [task for task in tasks if task.shard not in kept], job.executor.share(settings)

    def call(task: ShardTask) -> tuple[int | RangeOfOutput, Call]:
        name = f"tokenize[{task.shard:05d}]"
        return task.shard, Call(name=name, place=task.place, function=function, arguments=(task, shared))

    dispatch = job.dispatch(map(call, missing))
    dispatch.release(ready)
    try:
        with contextlib.closing(dispatch.run()) as results:
            for what, value in results:
                if isinstance(what, int):
                    job.ledger.record(ShardMade(tasks[what].key, value))
                    dispatch.release(shards.take(what, value, fresh=True))
                else:
                    job.record_range(*what, value)
    except BadRecordError as error:
        raise shards.explain(error) from error
    finally:
        job.ledger.sync()
    job.made_bytes = sum(task.stored_bytes for task in missing)
    shards.require_records()
    return shards


def _find_kept(job: Job, tasks: Sequence[ShardTask]) -> dict[int, ShardResult]:
    """Return the shards of the ledger whose files have the recorded sizes, by number in the plan.

    Their bytes are compared by the merge, which reads them anyway. A file of tokens may be gone if ranges have them.
    """
    made = job.ledger.shards
    known = {number: made[task.key] for number, task in enumerate(tasks) if task.key in made}
    folder = joined(job.work_dir, SHARDS_FOLDER)
    there = {each.path: each.size_bytes for each in store_of(folder).list(folder)}
    for place, output in enumerate(job.outputs):
        merged, end = job.ledger.ranges[output.name], output.begins[-1]
        for number in takewhile(known.__contains__, range(len(tasks))):
            tokens = known[number].keys[place].bin
            begin, end = end, end + tokens.size_bytes
            if all(map(merged.__contains__, ranges_of(begin, end))):
                there[joined(job.work_dir, tokens.name)] = tokens.size_bytes
    return {number: result for number, result in known.items() if _is_whole(result, job.work_dir, there)}


def _is_whole(result: ShardResult, work_dir: str, there: dict[str, int]) -> bool:
    files = [result.quarantine, *(file for key in result.keys for file in (key.bin, key.idx, key.provenance))]
    return all(there.get(joined(work_dir, file.name)) == file.size_bytes for file in files if file is not None)


class Shards:
    """The shards of a plan, as they are being made, and what of them becomes part of its datasets."""

    def __init__(self, job: Job, source: TextSource, tasks: Sequence[ShardTask]) -> None:
        self.job = job
        self.source = source
        self._tasks = tasks
        self._results: dict[int, ShardResult] = {}
        self._num_in_order = 0
        """Number of leading shards, whose parts the outputs have."""
        self._line = 1
        """1-based number of the next shard's first line in its input, if it has the same input as the last one."""
        self._num_bad = 0

    def take(self, number: int, result: ShardResult, *, fresh: bool) -> list[tuple[RangeOfOutput, Call]]:
        """Count a shard; return the calls for ranges that can now be merged."""
        self._results[number] = result
        parts = zip(self.job.outputs, result.keys, strict=True)
        tokens = sum(made.num_tokens for output, made in parts if not output.is_mask)
        stored_bytes = self._tasks[number].stored_bytes
        self.job.reporter.advance(stored_bytes, documents=result.num_records, tokens=tokens, fresh=fresh)
        self._num_bad += sum(file.quarantined for file in result.files)
        limit = self.source.config.max_bad_records or ""
        if limit.isdigit():
            self._refuse_more_bad(int(limit))
        while (following := self._results.get(self._num_in_order)) is not None:
            self._add_parts(self._tasks[self._num_in_order], following)
            self._num_in_order += 1
        return [call for output in self.job.outputs for call in self.job.full_ranges(output)]

    def _add_parts(self, task: ShardTask, result: ShardResult) -> None:
        """Add the next shard's parts to the outputs, and the places of its rows of provenance and bad records."""
        work_dir = self.job.work_dir
        if task.shard and self._tasks[task.shard - 1].input != task.input:
            self._line = 1
        for output, made in zip(self.job.outputs, result.keys, strict=True):
            header = IndexHeader(
                dtype=output.dtype,
                num_sequences=made.num_sequences,
                num_boundaries=made.num_documents + 1,
                has_modes=False,
            )
            output.add(Part(bin=PartFile.of(made.bin, work_dir), idx=PartFile.of(made.idx, work_dir), header=header))
            place = partial(ShardRows, input=task.input, line=self._line)
            if made.provenance is not None and not output.is_mask:
                output.provenance.append(place(file=PartFile.of(made.provenance, work_dir)))
            if result.quarantine is not None and not output.is_mask:
                names = tuple(self.source.inputs[number].path for number in task.inputs)
                output.quarantine.append(place(file=PartFile.of(result.quarantine, work_dir), names=names))
        self._line += result.files[0].lines

    @property
    def counts(self) -> Counter[str]:
        """The sums of the named counts of all shards."""
        counts: Counter[str] = Counter()
        for result in self._results.values():
            counts.update(dict(result.counts))
        return counts

    def explain(self, error: BadRecordError) -> BadRecordError:
        """Return the error of a record with its line in the input, what is kept, and how the job goes on.

        All shards before it are made.
        """
        shard, line = error.part or (0, 0)
        before = [other.shard for other in self._tasks[:shard] if other.input == self._tasks[shard].input]
        line += sum(self._results[number].files[0].lines for number in before) + 1
        kept = f"{len(self._results):,} of {len(self._tasks):,} shards are kept"
        way_on = "mend it and run the same command again, or add --on-bad-record quarantine to set such records aside"
        return BadRecordError(error.path, error.offset, f"{error.reason}; {kept}: {way_on}", line, is_row=error.is_row)

    def require_records(self) -> None:
        """Check that there are records, and not too many bad ones for a limit that is a share."""
        limit = self.source.config.max_bad_records or ""
        files = [file for result in self._results.values() for file in result.files]
        bad, records = self._num_bad, sum(file.lines - file.blank for file in files)
        if limit.endswith("%"):
            self._refuse_more_bad(float(limit[:-1]) / 100 * records)
        if not any(result.num_records for result in self._results.values()):
            raise InputError(
                f"{self._tasks[0].parts[0].path}: expected at least one record in all inputs together, got none: of "
                f"{records:,}, {bad:,} are bad and {records - bad:,} are left out; check --input and conditions"
            )

    def _refuse_more_bad(self, most: float) -> None:
        if self._num_bad > most:
            raise InputError(
                f"{count(self._num_bad, 'bad record')} set aside, more than the {self.source.config.max_bad_records} "
                "of --max-bad-records; look at the *.quarantine files in the work folder, then fix the input or raise "
                "the limit"
            )

    def publish(self, own: Sequence[Mapping[str, Any]], *, encodes: bool = True) -> None:
        """Assemble and publish the outputs.

        Args:
            own: For each output, the fields of Content that only this kind of job has.
            encodes: Whether texts were encoded.
        """
        self.job.assemble()
        contents = [self._content(number, fields) for number, fields in enumerate(own)]
        engine, name = self.source.engine if encodes else None, self.source.config.tokenizer_model
        self.job.publish(contents, engine=engine, tokenizer_path=name)

    def _content(self, number: int, own: Mapping[str, Any]) -> Content:
        """Return the content of the manifest of an output, by its number."""
        output = self.job.outputs[number]
        parts = [result.keys[number] for result in self._results.values()]
        inputs = list(self._describe_inputs(number))
        text: dict[str, Any] = {}
        if not output.is_mask:
            counts = {name: sum(getattr(file, name) or 0 for file in inputs) for name in _COUNTS}
            empty = sum(part.num_empty_documents for part in parts)
            full = counts["kept"] - empty
            text["account"] = RecordCounts(**counts, documents_with_tokens=full, empty_documents=empty)
            text["eod_in_text"] = sum(part.eod_in_text for part in parts)
            text["tokenizer"] = self.source.describe_tokenizer()
        fields = {"token_dtype": output.dtype.name, **text, **own}
        return Content(
            inputs=inputs,
            documents=sum(part.num_documents for part in parts),
            sequences=sum(part.num_sequences for part in parts),
            tokens=sum(part.num_tokens for part in parts),
            digests=output.digests,
            **fields,
        )

    def _describe_inputs(self, key: int) -> Iterator[RecordedInput]:
        """Yield an output's `inputs`, with fingerprints and record counts; records of other groups are filtered."""
        group = key * len(self._results[0].files[0].kept) // len(self.job.outputs)
        numbered = (
            pair for task in self._tasks for pair in zip(task.inputs, self._results[task.shard].files, strict=True)
        )
        for number, found in groupby(numbered, key=lambda pair: pair[0]):
            files, given = [file for _, file in found], self.source.inputs[number]
            form = given.parts[0].form
            container, format = form.container, form.format
            lines, blank = sum(file.lines for file in files), sum(file.blank for file in files)
            bad, kept = sum(file.quarantined for file in files), sum(file.kept[group] for file in files)
            tokenized = [file.tokenized_bytes[key] for file in files if file.tokenized_bytes]
            yield RecordedInput(
                path=given.path,
                size_bytes=given.size_bytes,
                fingerprint=files[0].fingerprint,
                compression=None if container == "plain" else container,
                format=None if format == "jsonl" else format,
                text_bytes=None if container == "plain" else sum(file.text_bytes for file in files),
                lines=lines,
                blank=blank,
                records=lines - blank,
                kept=kept,
                quarantined=bad,
                filtered=lines - blank - bad - kept or None,
                tokenized_bytes=sum(tokenized) if tokenized else None,
            )


_COUNTS = ("lines", "blank", "records", "kept", "quarantined", "filtered")
