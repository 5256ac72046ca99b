"""Make the shards of a plan: keep those that the ledger has, make the others, count records.

Meanwhile, ranges of the output that finished shards fill are merged (dsindex.engine.assembly). What is made is then
described: datasets to assemble, and the counts for their manifests.
"""

from __future__ import annotations

import contextlib
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.amounts import count
from dsindex.engine.assembly import TokenFile, merge_call
from dsindex.engine.executors import Call
from dsindex.engine.ledger import ShardMade
from dsindex.engine.output import Dataset
from dsindex.engine.tasks import MergeRange, PartFile, ShardRows
from dsindex.engine.work_folder import SHARDS_FOLDER
from dsindex.engine.worker import tokenize_shard
from dsindex.errors import BadRecordError, InputError, RecordError
from dsindex.formats.manifest import Content, RecordCounts, RecordedInput
from dsindex.store.store import store_of
from dsindex.store.urls import joined
from dsindex.text.compressed import measure_compression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.engine.dispatch import Dispatch
    from dsindex.engine.job import Job
    from dsindex.engine.output import Output
    from dsindex.engine.source import TextSource
    from dsindex.engine.tasks import KeyResult, ShardResult, ShardTask
    from dsindex.store.storage import StoredFile

Key: TypeAlias = int | MergeRange
"""Number of a shard, or a range of an output."""


def make_shards(
    job: Job,
    source: TextSource,
    settings: object,
    outputs: Sequence[Output],
    *,
    function: Callable[[ShardTask, Any], ShardResult] = tokenize_shard,
    filters: Sequence[str] = (),
) -> Shards:
    """Make the shards of a source that the ledger does not have, and merge ranges of the outputs meanwhile.

    Args:
        job: The job.
        source: The inputs.
        settings: The settings that all shards share; sent to every worker once.
        outputs: The datasets that are made of the shards.
        function: The function that makes a shard.
        filters: Flags that leave out records, for messages.

    Raises:
        RecordError: The bad record at the smallest input and offset, with its line number; or the first record for
            which a template or pattern takes too long.
        InputError: If there are more bad records than allowed, or no records at all.
    """
    tasks = source.tasks()
    kept = _find_kept(job, tasks, outputs)
    if job.ledger.shards:
        job.reporter.say(f"{len(kept):,} of {count(len(tasks), 'shard')} kept, {len(tasks) - len(kept):,} to be made")
    job.reporter.stage("tokenize", total=sum(task.stored_bytes for task in tasks), unit="bytes", tasks=len(tasks))
    shards = Shards(job, source, tasks, outputs)
    ready = [call for number, result in kept.items() for call in shards.take(number, result, fresh=False)]
    missing, shared = [task for task in tasks if task.shard not in kept], job.executor.share(settings)
    calls = (
        (
            task.shard,
            Call(name=f"tokenize[{task.shard:05d}]", place=task.place, function=function, arguments=(task, shared)),
        )
        for task in missing
    )
    dispatch: Dispatch[Key] = job.dispatch(calls)
    dispatch.release(ready)
    try:
        with contextlib.closing(dispatch.run()) as results:
            for what, value in results:
                dispatch.release(shards.commit(what, value))
    except RecordError as error:
        raise shards.explain(error) from error
    finally:
        job.ledger.sync()
    job.made_bytes = sum(task.stored_bytes for task in missing)
    shards.require_records(filters)
    return shards


def _find_kept(job: Job, tasks: Sequence[ShardTask], outputs: Sequence[Output]) -> dict[int, ShardResult]:
    """Return the shards of the ledger whose files have the recorded sizes, by number in the plan.

    Their bytes are compared by the merge, which reads them anyway. A file of tokens may be gone if ranges have them.
    """
    made = job.ledger.shards
    known = {number: made[task.key] for number, task in enumerate(tasks) if task.key in made}
    if not known:
        return {}
    folder = joined(job.work_dir, SHARDS_FOLDER)
    there = {each.path: each.size_bytes for each in store_of(folder).list(folder)}
    for output in outputs:
        tokens = TokenFile(output, job)
        placed = known if tokens.is_complete else takewhile(known.__contains__, range(len(tasks)))
        files = [output.part_of(known[number], job.work_dir).bin for number in placed]
        for file in files:
            tokens.add(file)
        there |= {file.path: file.size_bytes for number, file in enumerate(files, 1) if not tokens.needs(number)}
    return {number: result for number, result in known.items() if _is_whole(result, job.work_dir, there)}


def _is_whole(result: ShardResult, work_dir: str, there: dict[str, int]) -> bool:
    files = [result.quarantine, *(file for key in result.keys for file in (key.bin, key.idx, key.provenance))]
    return all(there.get(joined(work_dir, file.name)) == file.size_bytes for file in files if file is not None)


class Shards:
    """The shards of a plan, as they are being made, and what of them becomes part of its datasets."""

    def __init__(self, job: Job, source: TextSource, tasks: Sequence[ShardTask], outputs: Sequence[Output]) -> None:
        self.job = job
        self.source = source
        self._tasks = tasks
        self._results: dict[int, ShardResult] = {}
        self._files = {output.token_file: TokenFile(output, job) for output in outputs}
        self._num_in_order = 0
        """Number of leading shards that are recorded."""
        self._num_bad = 0

    def commit(self, what: Key, value: Any) -> list[tuple[Key, Call]]:  # noqa: ANN401 - a ShardResult or a digest
        """Record a finished shard or range; return the calls for ranges that can now be merged."""
        if isinstance(what, MergeRange):
            self._files[what.output].record(what, value)
            return []
        self.job.ledger.record(ShardMade(self._tasks[what].key, value))
        return self.take(what, value, fresh=True)

    def take(self, number: int, result: ShardResult, *, fresh: bool) -> list[tuple[Key, Call]]:
        """Count a shard; return the calls for ranges that can now be merged.

        For the last shard none is returned: `assemble` merges the rest.
        """
        self._results[number] = result
        outputs = (file.output for file in self._files.values())
        tokens = sum(result.find_part(output.key).num_tokens for output in outputs if not output.is_mask)
        stored_bytes = self._tasks[number].stored_bytes
        self.job.reporter.advance(stored_bytes, documents=result.num_records, tokens=tokens, fresh=fresh)
        self._num_bad += sum(file.quarantined for file in result.files)
        limit = self.source.config.max_bad_records
        if limit is not None and not limit.endswith("%") and self._num_bad > int(limit):
            raise _too_many_bad(self._num_bad, limit)
        while (following := self._results.get(self._num_in_order)) is not None:
            self._num_in_order += 1
            for file in self._files.values():
                file.add(file.output.part_of(following, self.job.work_dir).bin)
        if self._num_in_order == len(self._tasks):
            return []
        return [(task, merge_call(task)) for file in self._files.values() for task in file.take_ranges()]

    @property
    def results(self) -> list[tuple[ShardTask, ShardResult]]:
        """Every shard with its task, in plan order."""
        return [(task, self._results[number]) for number, task in enumerate(self._tasks)]

    def explain(self, error: RecordError) -> RecordError:
        """Return the error of a record with its place in the input, what is kept, and how the job goes on.

        All shards before it are made.

        Raises:
            InputError: If the input is damaged there, so that the record is not what was written.
        """
        if error.part is not None:
            begin, line = error.part
            task = next(task for task in self._tasks if (task.path, task.begin) == (error.path, begin))
            if task.form.container != "plain":  # raises if it is damaged: then the record is not a bad one
                measure_compression(task.path, task.form.container)
            before = [
                self._results[other.shard].files[0]
                for other in self._tasks[: task.shard]
                if other.input == task.input and other.shard in self._results
            ]
            error = error.at(line=sum(file.lines for file in before) + line + 1)
        if isinstance(error, BadRecordError):
            way_on = (
                "mend it and run the same command again, or add --on-bad-record quarantine to set such records aside"
            )
            if error.line == 1 and error.reason.startswith("expected the key"):
                way_on = f"name another key, or {way_on}"
            error.args = (f"{error}; {len(self._results):,} of {len(self._tasks):,} shards are kept: {way_on}",)
        return error

    def require_records(self, filters: Sequence[str]) -> None:
        """Check that there are records, and not too many bad ones for a limit that is a share."""
        limit = self.source.config.max_bad_records or ""
        files = [file for result in self._results.values() for file in result.files]
        bad, records = self._num_bad, sum(file.lines - file.blank for file in files)
        if limit.endswith("%") and bad > float(limit[:-1]) / 100 * records:
            raise _too_many_bad(bad, limit)
        if any(result.num_records for result in self._results.values()):
            return
        remedy = "take a larger share, or check the condition" if filters else "check --input"
        lost = [f"{bad:,} are bad"] if bad else []
        lost += [f"{records - bad:,} are left out by {' and '.join(filters)}"] if filters else []
        got = f"none of {records:,}: {' and '.join(lost)}" if lost else "none"
        msg = f"{self._tasks[0].path}: expected at least one record in all inputs together, got {got}; {remedy}"
        raise InputError(msg)

    def parts(self, key: str) -> list[KeyResult]:
        """Return a key's part of each shard."""
        return [result.find_part(key) for _, result in self.results]

    def dataset(self, output: Output, **own: Any) -> Dataset:  # noqa: ANN401 - fields of Dataset
        """Return a dataset; one of tokens, not of masks, has provenance and bad records."""
        if not output.is_mask:
            if not self.source.config.no_provenance:
                own["provenance"] = tuple(self._rows(part.provenance for part in self.parts(output.key)))
            quarantine = (result.quarantine for _, result in self.results)
            own["quarantine"] = tuple(self._rows(quarantine, named=True))
        made = (output.part_of(result, self.job.work_dir) for _, result in self.results)
        return Dataset(output=output, parts=tuple(made), **own)

    def _rows(self, files: Iterable[StoredFile | None], *, named: bool = False) -> Iterator[ShardRows]:
        """Yield a file of each shard that has one, with the place of the shard's first line in its input."""
        at, line = -1, 1
        for (task, result), file in zip(self.results, files, strict=True):
            if task.input != at:
                at, line = task.input, 1
            if file is not None:
                names = (self.source.inputs[number].path for number in task.inputs) if named else ()
                made = PartFile.of(file, self.job.work_dir)
                yield ShardRows(file=made, input=task.input, line=line, names=tuple(names))
            line += result.files[0].lines

    def content(self, key: str, *, group: int = 0, **own: Any) -> Content:  # noqa: ANN401 - fields of Content
        """Return the content of a manifest of texts.

        Args:
            key: The dataset's key.
            group: Number of its sample or split among those whose records are counted.
            own: Fields of Content that only this kind of job has.
        """
        parts = self.parts(key)
        number = [part.key for part in self._results[0].keys].index(key)
        inputs = list(self._describe_inputs(number, group))
        counts = {name: sum(getattr(file, name) or 0 for file in inputs) for name in _COUNTS}
        empty = sum(part.num_empty_documents for part in parts)
        return Content(
            inputs=inputs,
            account=RecordCounts(**counts, documents_with_tokens=counts["kept"] - empty, empty_documents=empty),
            documents=sum(part.num_documents for part in parts),
            sequences=sum(part.num_sequences for part in parts),
            tokens=sum(part.num_tokens for part in parts),
            eod_in_text=sum(part.eod_in_text for part in parts),
            tokenizer=self.source.describe_tokenizer(),
            **own,
        )

    def _describe_inputs(self, key: int, group: int) -> Iterator[RecordedInput]:
        """Yield the manifest's `inputs`, with fingerprints and record counts; records of other groups are filtered."""
        numbered = (pair for task, result in self.results for pair in zip(task.inputs, result.files, strict=True))
        for number, found in groupby(numbered, key=lambda pair: pair[0]):
            files, given = [file for _, file in found], self.source.inputs[number]
            container, format = given.form.container, given.form.format
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


def _too_many_bad(number: int, limit: str) -> InputError:
    """Return the error of too many bad records."""
    return InputError(
        f"{count(number, 'bad record')} set aside, more than the {limit} of --max-bad-records; look at the "
        f"*.quarantine files in the work folder, then fix the input or raise the limit"
    )
