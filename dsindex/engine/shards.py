"""Make the shards of a plan: keep those that the ledger has, make the others, count records.

Meanwhile, ranges of the output that finished shards fill are merged (dsindex.engine.assembly). What is made is then
described: datasets to assemble, and the counts for their manifests.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.amounts import count, format_size
from dsindex.engine.assembly import TokenFile, merge_call
from dsindex.engine.executors import Call
from dsindex.engine.ledger import ShardMade
from dsindex.engine.merge import read_bad_records
from dsindex.engine.output import Dataset
from dsindex.engine.report import Report
from dsindex.engine.tasks import MergeRange, Piece, ShardRows
from dsindex.engine.work_folder import SHARDS_FOLDER
from dsindex.engine.worker import tokenize_shard
from dsindex.errors import BadRecordError, InputError, RecordError
from dsindex.formats.manifest import Content, RecordCounts, RecordedInput
from dsindex.store.store import store_of
from dsindex.store.urls import joined
from dsindex.text.compressed import require_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.engine.dispatch import Dispatch
    from dsindex.engine.job import Job
    from dsindex.engine.output import Output
    from dsindex.engine.source import TextSource
    from dsindex.engine.tasks import FileCounts, KeyResult, ShardResult, ShardTask
    from dsindex.formats.manifest import Run
    from dsindex.store.storage import StoredFile

Key: TypeAlias = int | MergeRange
"""Number of a shard, or a range of an output."""


def make_shards(
    job: Job,
    source: TextSource,
    settings: object,
    outputs: Sequence[Output],
    *,
    function: Callable[[ShardTask, Any], ShardResult] | None = None,
    filters: Sequence[str] = (),
) -> Shards:
    """Make the shards of a source that the ledger does not have, and merge ranges of the outputs meanwhile.

    Args:
        job: The job.
        source: The inputs.
        settings: The settings that all shards share; sent to every worker once.
        outputs: The datasets that are made of the shards.
        function: The function that makes a shard; None: `tokenize_shard`.
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
    stage = _Stage(job, source, tasks, outputs)
    ready = [call for number, result in kept.items() for call in stage.take(number, result, fresh=False)]
    make, shared = function or tokenize_shard, job.executor.share(settings)
    calls = (
        (
            task.shard,
            Call(name=f"tokenize[{task.shard:05d}]", place=task.place, function=make, arguments=(task, shared)),
        )
        for task in tasks
        if task.shard not in kept
    )
    dispatch: Dispatch[Key] = job.dispatch(calls)
    dispatch.release(ready)
    try:
        with contextlib.closing(dispatch.run()) as results:
            for what, value in results:
                dispatch.release(stage.commit(what, value))
    except RecordError as error:
        raise stage.explain(error) from error
    finally:
        job.ledger.sync()
    job.made_bytes = sum(task.stored_bytes for task in tasks if task.shard not in kept)
    shards = Shards(job=job, source=source, results=stage.results())
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
    sizes = {each.path: each.size_bytes for each in store_of(folder).list(folder)}
    merged: set[str] = set()
    for output in outputs:
        parts = {number: output.part_of(result, job.work_dir) for number, result in known.items()}
        if output.token_suffix in output.complete_files(job.ledger):
            merged.update(part.bin_path for part in parts.values())
        elif not output.in_bucket:
            file = _begin_tokens(output, job, removes=False)
            leading = [parts[number] for number in takewhile(parts.__contains__, range(len(tasks)))]
            for part in leading:
                file.add(output.piece(part))
            if len(leading) == len(tasks):
                file.rest()
            merged.update(part.bin_path for part in leading if not file.needed[part.bin_path])
    return {number: result for number, result in known.items() if _is_whole(result, job.work_dir, sizes, merged)}


def _is_whole(result: ShardResult, work_dir: str, sizes: dict[str, int], merged: set[str]) -> bool:
    files = [result.quarantine, *(file for key in result.keys for file in (key.bin, key.idx, key.provenance))]
    paths = ((joined(work_dir, file.name), file.size_bytes) for file in files if file is not None)
    return all(path in merged or sizes.get(path) == size_bytes for path, size_bytes in paths)


def _begin_tokens(output: Output, job: Job, *, removes: bool) -> TokenFile:
    """Return an output's token file after its header, which is not known yet."""
    file = TokenFile(output, job.ledger, removes=removes)
    file.add(Piece(path="", offset=0, size_bytes=output.header_bytes))
    return file


class _Stage:
    """The shards of a plan, as they are being made."""

    def __init__(self, job: Job, source: TextSource, tasks: Sequence[ShardTask], outputs: Sequence[Output]) -> None:
        self._job = job
        self._source = source
        self._tasks = tasks
        self._results: dict[int, ShardResult] = {}
        self._files = {
            output.token_file: _begin_tokens(output, job, removes=not job.config.keep_shards)
            for output in outputs
            if not output.in_bucket and output.token_suffix not in output.complete_files(job.ledger)
        }
        self._num_in_order = 0
        """Number of leading shards that are recorded."""
        self._num_bad = 0

    def commit(self, what: Key, value: Any) -> list[tuple[Key, Call]]:  # noqa: ANN401 - a ShardResult or a digest
        """Record a finished shard or range; return the calls for ranges that can now be merged."""
        if isinstance(what, MergeRange):
            self._files[what.output].record(what, value)
            return []
        self._job.ledger.record(ShardMade(self._tasks[what].key, value))
        return self.take(what, value, fresh=True)

    def take(self, number: int, result: ShardResult, *, fresh: bool) -> list[tuple[Key, Call]]:
        """Count a shard; return the calls for ranges that can now be merged.

        For the last shard none is returned: `assemble` merges the rest.
        """
        self._results[number] = result
        tokens = sum(key.num_tokens for key in result.keys if not key.is_aligned)
        self._job.reporter.advance(
            self._tasks[number].stored_bytes, documents=result.num_records, tokens=tokens, fresh=fresh
        )
        self._num_bad += result.num_quarantined
        limit = self._source.config.max_bad_records
        if limit is not None and not limit.endswith("%") and self._num_bad > int(limit):
            raise too_many_bad(self._num_bad, limit)
        full: list[MergeRange] = []
        while (following := self._results.get(self._num_in_order)) is not None:
            self._num_in_order += 1
            for file in self._files.values():
                full += file.add(file.output.piece(file.output.part_of(following, self._job.work_dir)))
        if self._num_in_order == len(self._tasks):
            return []
        return [(task, merge_call(task)) for task in full if all(piece.path for piece in task.pieces)]

    def results(self) -> list[tuple[ShardTask, ShardResult]]:
        """Return every shard with its task, in plan order."""
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
            if task.form.container != "plain":  # corrupt archive, not a bad record
                require_whole(task.path, task.form.container)
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


def too_many_bad(number: int, limit: str) -> InputError:
    """Return the error of too many bad records."""
    return InputError(
        f"{count(number, 'bad record')} set aside, more than the {limit} of --max-bad-records; look at the "
        f"*.quarantine files in the work folder, then fix the input or raise the limit"
    )


# What is made.


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Every shard of a job, and what of them becomes part of its datasets."""

    job: Job
    source: TextSource
    results: list[tuple[ShardTask, ShardResult]]
    """Every shard with its task, in plan order."""

    def require_records(self, filters: Sequence[str]) -> None:
        """Check that there are records, and not too many bad ones for a limit that is a share."""
        limit = self.source.config.max_bad_records or ""
        counts = [file for _, result in self.results for file in result.files]
        bad, records = sum(file.quarantined for file in counts), sum(file.lines - file.blank for file in counts)
        if limit.endswith("%") and bad > float(limit[:-1]) / 100 * records:
            raise too_many_bad(bad, limit)
        if any(result.num_records for _, result in self.results):
            return
        if filters and records > bad:
            what = f"{' and '.join(filters)} {'keeps' if len(filters) == 1 else 'keep'}"
            remedy = "check the condition" if "--where" in filters else "take a larger share"
            raise InputError(f"expected a record that {what}, got none of {records - bad:,}; {remedy}")
        msg = f"{self.results[0][0].path}: expected at least one record in all inputs together, got none"
        if not bad:
            raise InputError(f"{msg}; check --input")
        entry, is_row = next(read_bad_records(self.quarantine())), self.results[0][0].form.is_table
        first = BadRecordError(entry["file"], entry["offset"], entry["reason"], entry["line"], is_row=is_row)
        raise InputError(f"{msg} but {bad:,} bad ones; the first is {first}")

    def parts(self, key: str) -> list[KeyResult]:
        """Return a key's part of each shard."""
        return [result.find_part(key) for _, result in self.results]

    def dataset(self, output: Output, **own: Any) -> Dataset:  # noqa: ANN401 - fields of Dataset
        """Return a dataset of texts, with provenance and bad records."""
        provenance = None
        if not self.source.config.no_provenance:
            provenance = tuple(self._rows(part.provenance for part in self.parts(output.key)))
        return Dataset(
            output=output,
            parts=tuple(output.part_of(result, self.job.work_dir) for _, result in self.results),
            provenance=provenance,
            quarantine=self.quarantine(),
            **own,
        )

    def quarantine(self) -> tuple[ShardRows, ...]:
        """Return the bad records of all shards."""
        return tuple(self._rows((result.quarantine for _, result in self.results), named=True))

    def _rows(self, files: Iterable[StoredFile | None], *, named: bool = False) -> Iterator[ShardRows]:
        """Yield a file of each shard that has one, with the place of the shard's first line in its input."""
        at, line = -1, 1
        for (task, result), file in zip(self.results, files, strict=True):
            if task.input != at:
                at, line = task.input, 1
            if file is not None:
                yield ShardRows(
                    path=joined(self.job.work_dir, file.name),
                    size_bytes=file.size_bytes,
                    digest=file.digest,
                    input=task.input,
                    line=line,
                    names=tuple(self.source.inputs[number].path for number in task.inputs) if named else (),
                )
            line += result.files[0].lines

    def content(self, key: str, *, group: int = 0, **own: Any) -> Content:  # noqa: ANN401 - fields of Content
        """Return the content of a manifest of texts.

        Args:
            key: The dataset's key.
            group: Number of its sample or split among those whose records are counted.
            own: Fields of Content that only this kind of job has.
        """
        parts = self.parts(key)
        number = next(number for number, part in enumerate(self.results[0][1].keys) if part.key == key)
        empty = sum(part.num_empty_documents for part in parts)
        counts = _count_records([file for _, result in self.results for file in result.files], group)
        return Content(
            inputs=list(self._describe_inputs(number, group)),
            account=RecordCounts(**counts, documents_with_tokens=counts["kept"] - empty, empty_documents=empty),
            documents=sum(part.num_documents for part in parts),
            sequences=sum(part.num_sequences for part in parts),
            tokens=sum(part.num_tokens for part in parts),
            eod_in_text=sum(part.eod_in_text for part in parts),
            tokenizer=self.source.describe_tokenizer(),
            **own,
        )

    def _describe_inputs(self, key: int, group: int) -> Iterator[RecordedInput]:
        """Yield the manifest's `inputs`, with fingerprints and record counts."""
        numbered = (
            (number, file)
            for task, result in self.results
            for number, file in zip(task.inputs, result.files, strict=True)
        )
        for number, found in groupby(numbered, key=lambda pair: pair[0]):
            files, given = [file for _, file in found], self.source.inputs[number]
            container, format = given.form.container, given.form.format
            tokenized = [file.tokenized_bytes[key] for file in files if file.tokenized_bytes]
            yield RecordedInput(
                path=given.path,
                size_bytes=given.size_bytes,
                fingerprint=files[0].fingerprint,
                compression=None if container == "plain" else container,
                format=None if format == "jsonl" else format,
                text_bytes=None if container == "plain" else sum(file.text_bytes for file in files),
                tokenized_bytes=sum(tokenized) if tokenized else None,
                **_count_records(files, group),
            )


def _count_records(files: Sequence[FileCounts], group: int) -> dict[str, int]:
    """Return record counts: lines = records + blank; records = kept + filtered + quarantined.

    Records of other groups count as filtered.
    """
    lines, blank, quarantined, kept = (
        sum(numbers)
        for numbers in zip(
            *((file.lines, file.blank, file.quarantined, file.kept[group]) for file in files), strict=True
        )
    )
    counts = {"lines": lines, "blank": blank, "records": lines - blank, "kept": kept, "quarantined": quarantined}
    filtered = lines - blank - quarantined - kept
    return counts | ({"filtered": filtered} if filtered else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class TextResult(Report):
    """What the results of every job have that reads records."""

    already_complete: bool
    counts: RecordCounts
    """Record counts of all datasets together."""
    input_bytes: int
    made_bytes: int
    """The part of the inputs whose shards this run made."""
    seconds: float
    run: Run
    input_notes: tuple[str, ...]
    """Sentences about inputs that are given more than once."""

    def first_lines(self, *, complete: str, engine: str | None = None, quarantined: Sequence[str] = ()) -> list[str]:
        """Return what was read, how fast, and what became of the records.

        Args:
            complete: The first line if nothing was done.
            engine: Name of the engine.
            quarantined: Lines about bad records.
        """
        run, counts = self.run, self.counts
        made = f" ({format_size(self.made_bytes)} in this run)" if 0 < self.made_bytes < self.input_bytes else ""
        facts = [
            f"done in {self.seconds:.1f} s: {format_size(self.input_bytes)} of input{made}",
            *([f"{format_size(self.made_bytes / max(self.seconds, 1e-6))}/s"] if self.made_bytes else []),
            count(run.shards, "shard"),
            f"{run.executor} executor",
            count(run.workers, "worker"),
            *filter(None, [engine]),
        ]
        filtered = [f"{counts.filtered:,} filtered"] if counts.filtered else []
        parts = [f"{counts.kept:,} kept", *filtered, f"{counts.quarantined:,} quarantined", f"{counts.blank:,} blank"]
        return [
            complete if self.already_complete else ", ".join(facts),
            f"{count(counts.lines, 'line')} = {' + '.join(parts)}",
            *quarantined,
            *self.input_notes,
        ]


def outcome_fields(source: TextSource, job: Job) -> dict[str, Any]:
    """Return the fields of TextResult but the counts."""
    return {
        "already_complete": job.already_complete,
        "input_bytes": source.total_bytes,
        "made_bytes": job.made_bytes,
        "seconds": job.seconds,
        "run": job.manifests[0].run,
        "input_notes": source.notes,
    }
