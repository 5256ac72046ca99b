"""Make the shards of a plan: keep those in the journal, make the rest, count records, describe the datasets.

While shards are made, the output ranges that they complete are merged (dsindex.runtime.assembly).
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

from dsindex.errors import BadRecordError, InputError, OutputError
from dsindex.formats.manifest import Content, RecordCounts, RecordedInput
from dsindex.formats.mmididx import IndexHeader
from dsindex.messages import count
from dsindex.runtime.assembly import Assembly
from dsindex.runtime.executors import Call
from dsindex.runtime.job import ranges_of
from dsindex.runtime.tasks import Damaged, Segment, SourceFile
from dsindex.runtime.tokenize import tokenize_shard
from dsindex.runtime.work_folder import SHARDS_FOLDER, ShardMade, record_shard_size
from dsindex.store.protocol import store_of
from dsindex.store.urls import join_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from dsindex.runtime.assembly import Calls, Key
    from dsindex.runtime.job import Job, Output
    from dsindex.runtime.source import TextSource
    from dsindex.runtime.tasks import ShardFile, ShardResult, ShardTask
    from dsindex.store.local import StoredFile

SLOWEST_BYTES_PER_SECOND = 5e6
"""Least speed at which a worker reads and encodes stored input: a seventh of the slowest that was measured."""
MAX_DAMAGES = 3
"""How often one shard may be found damaged in a run before the disk is considered faulty."""


class Shards(Assembly):
    """The shards of a plan, and the outputs that are assembled from them.

    Args:
        job: The job.
        source: The inputs.
        settings: The settings that all shards share; sent to every worker once.
        dataset_begins: Number of the first input of each dataset; the outputs are in the order of the datasets.
        function: Makes a shard.
    """

    def __init__(
        self,
        job: Job,
        source: TextSource,
        settings: object,
        *,
        dataset_begins: Sequence[int] = (0,),
        function: Callable[[ShardTask, Any], ShardResult] = tokenize_shard,
    ) -> None:
        super().__init__(job)
        self.source = source
        record_shard_size(job.work_dir, source.smallest_shard)
        self._tasks = source.tasks(dataset_begins)
        self._dataset_begins = dataset_begins
        self._first_shards = [
            next(task.shard for task in self._tasks if task.dataset == dataset)
            for dataset in range(len(dataset_begins))
        ]
        self._per_dataset = len(job.outputs) // len(dataset_begins)
        """Number of outputs per dataset: one for each key of each sample or split."""
        self._function, self._settings = function, job.executor.share(settings)
        self._results: dict[int, ShardResult] = {}
        self._first_lines: list[int] = []
        """1-based number of each leading shard's first line in its input; the outputs contain these shards."""
        self._damaged: set[int] = set()
        """Shards that are being made again because a file was damaged."""
        self._replaced_paths: set[str] = set()
        """Files of damaged attempts."""
        self._num_damages: Counter[int] = Counter()
        self._num_bad = 0

    def tokenize_and_merge(self) -> None:
        """Make the shards that the journal lacks, and merge the output ranges that they complete.

        Raises:
            BadRecordError: For the first bad record, in the order of inputs and offsets, with its line number.
            InputError: If there are more bad records than allowed, or no records at all.
        """
        job, tasks, results = self.job, self._tasks, self._find_kept_shards()
        if job.journal.shards:
            note = f"{len(results):,} of {count(len(tasks), 'shard')} kept, {len(tasks) - len(results):,} to be made"
            job.reporter.say(note)
        job.reporter.stage("tokenize", total=sum(task.stored_bytes for task in tasks), unit="bytes", tasks=len(tasks))
        ready = [call for number, result in results.items() for call in self._take_shard(number, result, fresh=False)]
        missing = [task for task in tasks if task.shard not in results]
        try:
            self.run(map(self._shard_call, missing), ready)
        except BadRecordError as error:
            raise self._explain(error) from error
        job.made_bytes = sum(task.stored_bytes for task in missing)
        self._require_records()

    def _shards_of(self, dataset: int) -> range:
        return range(*[*self._first_shards, len(self._tasks)][dataset : dataset + 2])

    def _outputs_of(self, task: ShardTask) -> Sequence[Output]:
        return self.job.outputs[task.dataset * self._per_dataset : (task.dataset + 1) * self._per_dataset]

    def _shard_call(self, task: ShardTask) -> tuple[Key, Call]:
        call = Call(
            name=f"tokenize[{task.shard:05d}]",
            place=task.place,
            function=self._function,
            arguments=(task, self._settings),
            seconds=task.stored_bytes / SLOWEST_BYTES_PER_SECOND,
        )
        return task.shard, call

    def _find_kept_shards(self) -> dict[int, ShardResult]:
        """Return the shards of the journal whose files have the recorded sizes, by number in the plan.

        Merging checks their bytes. A shard's token file may be deleted already if all its ranges are merged.
        """
        job, receipts = self.job, self.job.journal.shards
        wants_provenance = not self.source.config.no_provenance
        results = {number: receipts[task.key] for number, task in enumerate(self._tasks) if task.key in receipts}
        folder = join_path(job.work_dir, SHARDS_FOLDER)
        sizes = {status.path: status.size_bytes for status in store_of(folder).list(folder)}
        for output_number, output in enumerate(job.outputs):
            dataset, key = divmod(output_number, self._per_dataset)
            merged, end = self._records_of(output), output.size_bytes
            for number in takewhile(results.__contains__, self._shards_of(dataset)):
                tokens = results[number].keys[key].bin
                begin, end = end, end + tokens.size_bytes
                if all(map(merged.__contains__, ranges_of(begin, end))):
                    sizes[join_path(job.work_dir, tokens.name)] = tokens.size_bytes

        def is_whole(result: ShardResult) -> bool:
            has_rows = all((key.provenance is not None) == wants_provenance for key in result.keys)
            files = result.stored_files
            return has_rows and all(sizes.get(join_path(job.work_dir, file.name)) == file.size_bytes for file in files)

        return {number: result for number, result in results.items() if is_whole(result)}

    def take(self, key: Key, result: Any) -> Calls:  # noqa: ANN401 - of any function
        """Record a call's result; return the calls that it releases."""
        if not isinstance(key, int):
            return super().take(key, result)
        self.job.journal.record(ShardMade(self._tasks[key].key, result))
        return self._replace_shard(key, result) if key in self._damaged else self._take_shard(key, result, fresh=True)

    def _take_shard(self, number: int, result: ShardResult, *, fresh: bool) -> Calls:
        """Count a shard; return the calls for ranges that can now be merged."""
        self._results[number] = result
        outputs_and_keys = zip(self._outputs_of(self._tasks[number]), result.keys, strict=True)
        tokens = sum(key.num_tokens for output, key in outputs_and_keys if not output.is_mask)
        stored_bytes = self._tasks[number].stored_bytes
        self.job.reporter.advance(stored_bytes, documents=result.num_records, tokens=tokens, fresh=fresh)
        self._num_bad += sum(file.quarantined for file in result.files)
        self._refuse_more_bad()
        calls: list[tuple[Key, Call]] = []
        while (next_result := self._results.get(len(self._first_lines))) is not None:
            task = self._tasks[len(self._first_lines)]
            self._first_lines.append(self._find_line(task))
            for output, segment in self._segments(task, next_result):
                calls += self.range_calls(output, output.append(segment))
        return calls

    def _find_line(self, task: ShardTask) -> int:
        """Return the 1-based number of a shard's first line in its input, once the shard before it is made."""
        previous = task.shard - 1
        if previous < 0 or self._tasks[previous].input != task.input:
            return 1
        return self._first_lines[previous] + self._results[previous].files[0].lines

    def _segments(self, task: ShardTask, result: ShardResult) -> Iterator[tuple[Output, Segment]]:
        """Yield each output of a shard, and the segment that the shard adds to it."""
        work_dir = self.job.work_dir

        def source_file(file: ShardFile) -> SourceFile:
            return SourceFile(join_path(work_dir, file.name), file.size_bytes, file.blocks)

        for output, key_result in zip(self._outputs_of(task), result.keys, strict=True):
            bad = None if output.is_mask else result.quarantine
            rows = None if output.is_mask else key_result.provenance
            yield (
                output,
                Segment(
                    bin=source_file(key_result.bin),
                    idx=source_file(key_result.idx),
                    header=IndexHeader(
                        dtype=output.dtype,
                        num_sequences=key_result.num_sequences,
                        num_boundaries=key_result.num_documents + 1,
                        has_modes=False,
                    ),
                    provenance=source_file(rows) if rows else None,
                    quarantine=source_file(bad) if bad else None,
                    input=task.input - self._dataset_begins[task.dataset],
                    line=self._first_lines[task.shard],
                    names=tuple(self.source.inputs[number].path for number in task.inputs) if bad else (),
                ),
            )

    # Damage.

    def remake_shard(self, damaged: Damaged) -> Calls:
        """Return the call that remakes the shard of a damaged file.

        Raises:
            OutputError: If no shard has the file, or the shard was damaged too often.
        """
        if damaged.path in self._replaced_paths:  # reported again by work that began earlier
            return () if self._damaged else self.release_waiting()
        name = damaged.path[len(self.job.work_dir) :].lstrip("/")
        keys = (key for key, result in self._results.items() if name in {file.name for file in result.stored_files})
        number = next(keys, None)
        if number is None or self._num_damages[number] == MAX_DAMAGES:
            problem = "other bytes are read back than were written"
            raise OutputError(f"{damaged.path}: {problem}", hint="check the disk, and run the same command again")
        self._replaced_paths |= {join_path(self.job.work_dir, file.name) for file in self._results[number].stored_files}
        self._num_damages[number] += 1
        self._damaged.add(number)
        self.job.reporter.say(f"{damaged.path}: damaged since it was written; its shard is made again: check the disk")
        return [self._shard_call(self._tasks[number])]

    def _replace_shard(self, number: int, result: ShardResult) -> Calls:
        """Replace a damaged shard by its new attempt; return the calls that waited for it."""
        task, old_result = self._tasks[number], self._results[number]
        if [file.size_bytes for file in old_result.stored_files] != [file.size_bytes for file in result.stored_files]:
            problem = "read again, it gives other tokens"
            raise InputError(f"{task.place}: {problem}", hint="leave inputs alone while they are read")
        self._results[number] = result
        self._damaged.discard(number)
        position = number - self._first_shards[task.dataset]
        for output, segment in self._segments(task, result):
            output.replace(position, segment)
        return () if self._damaged else self.release_waiting()

    # Manifests.

    @property
    def counts(self) -> Counter[str]:
        """Named counts, summed over all shards."""
        counts: Counter[str] = Counter()
        for result in self._results.values():
            counts.update(dict(result.counts))
        return counts

    def _explain(self, error: BadRecordError) -> BadRecordError:
        """Add to a bad record's error its line in the input, the number of kept shards, and how to continue.

        The line is known because all shards before it are made.
        """
        shard, offset = error.part or (0, 0)
        line = self._find_line(self._tasks[shard]) + offset
        reason = f"{error.reason}; {len(self._results):,} of {len(self._tasks):,} shards are kept"
        hint = "fix it and run the same command again, or leave bad records out with --on-bad-record quarantine"
        return BadRecordError(error.path, error.offset, reason, line, is_row=error.is_row, hint=hint)

    def _require_records(self) -> None:
        """Check that there are records, and not more bad ones than a limit in percent allows."""
        files = [file for result in self._results.values() for file in result.files]
        num_bad, total = self._num_bad, sum(file.lines - file.blank for file in files)
        self._refuse_more_bad(total)
        if not any(result.num_records for result in self._results.values()):
            reason = f"no record is left: of {total:,}, {num_bad:,} are bad and {total - num_bad:,} are left out"
            problem = reason if total else "the inputs have no record"
            raise InputError(f"{self._tasks[0].parts[0].path}: {problem}", hint="check --input and the conditions")

    def _refuse_more_bad(self, num_records: int | None = None) -> None:
        """Refuse more bad records than are allowed; a limit in percent needs the number of all records."""
        limit = self.source.config.max_bad_records or "inf"
        if limit.endswith("%"):
            max_bad = math.inf if num_records is None else float(limit[:-1]) / 100 * num_records
        else:
            max_bad = float(limit)
        if self._num_bad > max_bad:
            raise InputError(
                f"{count(self._num_bad, 'bad record')} quarantined, more than the {limit} of --max-bad-records",
                hint="look at the *.quarantine files in the work folder, then fix the input or raise the limit",
            )

    def publish(self, job_fields: Sequence[Mapping[str, Any]], *, encodes: bool = True) -> None:
        """Assemble and publish the outputs.

        Args:
            job_fields: For each output, the fields of Content that only this kind of job has.
            encodes: Whether the job encodes texts.
        """
        files = self.complete()
        contents = [self._make_content(number, files[number], fields) for number, fields in enumerate(job_fields)]
        engine, name = self.source.engine if encodes else None, self.source.config.tokenizer_model
        lines = [
            f"{content.tokens} {output.prefix}\n" if content.tokens else ""
            for output, content in zip(self.job.outputs, contents, strict=True)
        ]
        texts = {  # in the form of Megatron's --data-args-path
            output.list_path: "".join(lines[number :: self._per_dataset])
            for number, output in enumerate(self.job.outputs)
            if output.list_path is not None
        }
        num_shards = len(self._tasks)
        self.job.publish(contents, texts, num_shards=num_shards, engine=engine, tokenizer_path=name)

    def _make_content(self, number: int, files: dict[str, StoredFile], job_fields: Mapping[str, Any]) -> Content:
        """Return the content of an output's manifest, given the output's number."""
        output = self.job.outputs[number]
        dataset, key = divmod(number, self._per_dataset)
        parts = [self._results[shard].keys[key] for shard in self._shards_of(dataset)]
        inputs = list(self._describe_inputs(dataset, key))
        text_fields: dict[str, Any] = {}
        if not output.is_mask:
            counts = {name: sum(getattr(file, name) or 0 for file in inputs) for name in _COUNTS}
            num_empty = sum(part.num_empty_documents for part in parts)
            num_full = counts["kept"] - num_empty
            text_fields["account"] = RecordCounts(**counts, documents_with_tokens=num_full, empty_documents=num_empty)
            text_fields["eod_in_text"] = sum(part.eod_in_text for part in parts)
            text_fields["tokenizer"] = self.source.describe_tokenizer()
        fields = {"token_dtype": output.dtype.name, **text_fields, **job_fields}
        return Content(
            inputs=inputs,
            documents=sum(part.num_documents for part in parts),
            sequences=sum(part.num_sequences for part in parts),
            tokens=sum(part.num_tokens for part in parts),
            digests=files,
            **fields,
        )

    def _describe_inputs(self, dataset: int, key: int) -> Iterator[RecordedInput]:
        """Yield an output's inputs with counts; records of other samples or splits count as filtered."""
        group = key * len(self._results[0].files[0].num_kept) // self._per_dataset
        tasks = (self._tasks[shard] for shard in self._shards_of(dataset))
        all_pairs = (pair for task in tasks for pair in zip(task.inputs, self._results[task.shard].files, strict=True))
        for number, pairs in groupby(all_pairs, key=lambda pair: pair[0]):
            files, input_file = [file for _, file in pairs], self.source.inputs[number]
            form = input_file.parts[0].form
            container, format = form.container, form.format
            num_lines, num_blank = sum(file.lines for file in files), sum(file.blank for file in files)
            num_bad, num_kept = sum(file.quarantined for file in files), sum(file.num_kept[group] for file in files)
            tokenized_bytes = [file.tokenized_bytes[key] for file in files if file.tokenized_bytes]
            yield RecordedInput(
                path=input_file.path,
                size_bytes=input_file.size_bytes,
                fingerprint=files[0].fingerprint,
                compression=None if container == "plain" else container,
                format=None if format == "jsonl" else format,
                text_bytes=None if container == "plain" else sum(file.text_bytes for file in files),
                lines=num_lines,
                blank=num_blank,
                records=num_lines - num_blank,
                kept=num_kept,
                quarantined=num_bad,
                filtered=num_lines - num_blank - num_bad - num_kept or None,
                tokenized_bytes=sum(tokenized_bytes) if tokenized_bytes else None,
            )


_COUNTS = ("lines", "blank", "records", "kept", "quarantined", "filtered")
