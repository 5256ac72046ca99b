"""Make the shards of a plan: keep those that the ledger has, tokenize the others, count bad records.

Meanwhile, ranges of the output that finished shards fill are merged (dsindex.engine.output).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeAlias

from dsindex.amounts import count
from dsindex.engine.dispatch import Dispatch
from dsindex.engine.executors import Call
from dsindex.engine.output import EarlyRanges, find_merged, merge_call, shard_quarantine
from dsindex.engine.tasks import MergeRange
from dsindex.engine.work_folder import SHARDS_FOLDER
from dsindex.engine.worker import first_entry, tokenize_shard
from dsindex.errors import BadRecordError, InputError, RecordError
from dsindex.store.store import store_of
from dsindex.store.urls import joined
from dsindex.text.compressed import require_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.engine.output import TokenSource
    from dsindex.engine.tasks import ShardResult, ShardTask
    from dsindex.engine.work import Work

Key: TypeAlias = int | MergeRange
"""Number of a shard, or a range of an output."""


class BadRecordBudget:
    """Counts quarantined records against a limit.

    Args:
        limit: A number, a share of all records such as `0.1%`, or None.
    """

    def __init__(self, limit: str | None) -> None:
        self._number = int(limit) if limit is not None and not limit.endswith("%") else None
        self._share = float(limit[:-1]) / 100 if limit is not None and limit.endswith("%") else None
        self._limit = limit
        self._bad = 0

    def count(self, result: ShardResult) -> None:
        """Count a shard's bad records. A number is enforced at once, a share by `check_share` at the end.

        Raises:
            InputError: If there are more than the limit.
        """
        self._bad += result.num_quarantined
        if self._number is not None and self._bad > self._number:
            self._refuse()

    def check_share(self, results: Sequence[ShardResult]) -> None:
        """Enforce a share of all records.

        Raises:
            InputError: If there are more than the limit.
        """
        records = sum(result.num_records + result.num_filtered + result.num_quarantined for result in results)
        if self._share is not None and self._bad > self._share * records:
            self._refuse()

    def _refuse(self) -> None:
        raise InputError(
            f"{count(self._bad, 'bad record')} set aside, more than the {self._limit} of --max-bad-records; "
            f"look at the *.quarantine files in the work folder, then fix the input or raise the limit"
        )


def find_kept_shards(work: Work, tasks: Sequence[ShardTask], sources: Sequence[TokenSource]) -> dict[int, ShardResult]:
    """Return the shards of the ledger whose files have the recorded sizes, by number in the plan.

    Their bytes are compared by the merge, which reads them anyway. A file of tokens may be gone if ranges have them.
    """
    known = {number: result for number, task in enumerate(tasks) if (result := work.ledger.shard(task)) is not None}
    if not known:
        return {}
    folder = joined(work.work_dir, SHARDS_FOLDER)
    sizes = {each.path: each.size_bytes for each in store_of(folder).list(folder)}
    merged = find_merged(sources, known, len(tasks), work)
    kept = {}
    for number, result in known.items():
        tokens = [key.bin for key in result.keys if key.bin.name not in merged]
        files = [*result.stored_files, *tokens]
        if all(sizes.get(joined(work.work_dir, file.name)) == file.size_bytes for file in files):
            kept[number] = result
    return kept


def make_shards(
    work: Work,
    tasks: Sequence[ShardTask],
    settings: object,
    *,
    sources: Sequence[TokenSource] = (),
    max_bad_records: str | None = None,
    function: Callable[[ShardTask, Any], ShardResult] | None = None,
    filters: Sequence[str] = ("--where",),
) -> list[ShardResult]:
    """Make the shards of a plan that the ledger does not have; return the receipts of all, in plan order.

    Args:
        work: The job's executor, ledger and reporter.
        tasks: All shards of the plan.
        settings: The settings that all shards share; sent to every worker once.
        sources: Datasets whose ranges may be merged while shards are made.
        max_bad_records: Largest allowed number of bad records, or share of all such as `0.1%`.
        function: The function that makes a shard; None: `tokenize_shard`.
        filters: Flags that leave out records, for messages.

    Raises:
        RecordError: The bad record at the smallest input and offset, with its line number; or the first record for
            which a template or pattern takes too long.
        InputError: If there are more bad records than allowed, or no records at all.
    """
    kept = find_kept_shards(work, tasks, sources)
    if work.ledger.shards:
        work.reporter.say(f"{len(kept):,} of {count(len(tasks), 'shard')} kept, {len(tasks) - len(kept):,} to be made")
    work.reporter.stage("tokenize", total=sum(task.stored_bytes for task in tasks), unit="bytes", tasks=len(tasks))
    work.reporter.watch(work.statistics)
    stage = _Stage(work, tasks, EarlyRanges(sources, work, num_shards=len(tasks)), BadRecordBudget(max_bad_records))
    ready = [task for number, result in kept.items() for task in stage.take(number, result, fresh=False)]
    shared = work.executor.share(settings)
    make = function or tokenize_shard
    calls = ((task.shard, _shard_call(task, make, shared)) for task in tasks if task.shard not in kept)
    dispatch: Dispatch[Key] = Dispatch(
        work.executor, calls, policy=work.policy, statistics=work.statistics, on_idle=work.reporter.tick
    )
    dispatch.release(map(stage.merge, ready))
    try:
        with contextlib.closing(dispatch.run()) as results:
            for what, value in results:
                dispatch.release(stage.commit(what, value))
    except RecordError as error:
        raise stage.with_way_on(stage.with_line_number(error), dispatch.faults) from error
    finally:
        work.ledger.sync()
    return stage.finish(filters)


def _shard_call(task: ShardTask, function: Callable[[ShardTask, Any], ShardResult], settings: object) -> Call:
    return Call(name=f"tokenize[{task.shard:05d}]", place=task.place, function=function, arguments=(task, settings))


class _Stage:
    """The shards of a plan, as they are being made."""

    def __init__(self, work: Work, tasks: Sequence[ShardTask], early: EarlyRanges, budget: BadRecordBudget) -> None:
        self._work = work
        self._tasks = tasks
        self._early = early
        self._budget = budget
        self._results: dict[int, ShardResult] = {}

    def commit(self, what: Key, value: Any) -> Iterator[tuple[Key, Call]]:  # noqa: ANN401 - a ShardResult or digests
        """Record a finished shard or range; return the calls for ranges that can now be merged."""
        if isinstance(what, MergeRange):
            self._early.take_range(what, value)
            return iter(())
        self._work.ledger.record_shard(self._tasks[what], value)
        return map(self.merge, self.take(what, value, fresh=True))

    def take(self, number: int, result: ShardResult, *, fresh: bool) -> list[MergeRange]:
        """Count a shard; return the ranges that can now be merged."""
        self._results[number] = result
        self._work.reporter.advance(
            self._tasks[number].stored_bytes,
            documents=result.num_records,
            tokens=sum(key.num_tokens for key in result.keys if not key.is_aligned),
            fresh=fresh,
        )
        self._budget.count(result)
        return self._early.take_shard(number, result)

    def merge(self, task: MergeRange) -> tuple[Key, Call]:
        """Return a range and the call that merges it."""
        return task, merge_call(task)

    def with_way_on(self, error: RecordError, faults: Sequence[BaseException]) -> RecordError:
        """Return the error of a bad record with what is kept, and how the job goes on."""
        if isinstance(error, BadRecordError):
            kept = f"{len(self._results):,} of {len(self._tasks):,} shards are kept"
            way_on = (
                "mend it and run the same command again, or add --on-bad-record quarantine to set such records aside"
            )
            if error.line == 1 and error.reason.startswith("expected the key"):
                way_on = f"name another key, or {way_on}"
            more = sum(1 + bad.num_more for bad in faults if isinstance(bad, BadRecordError)) - 1
            met = f", and {count(more, 'more bad record')} {'was' if more == 1 else 'were'} met" if more > 0 else ""
            error.args = (f"{error}; {kept}{met}: {way_on}",)
        return error

    def with_line_number(self, error: RecordError) -> RecordError:
        """Return the error with its place in the input; all shards before it are made.

        Raises:
            InputError: If the input is damaged there, so that the record is not what was written.
        """
        if error.part is None:
            return error
        begin, line = error.part
        task = next(task for task in self._tasks if (task.path, task.begin) == (error.path, begin))
        before = [
            (other, self._results[other.shard])
            for other in self._tasks[: task.shard]
            if other.input == task.input and other.shard in self._results
        ]
        lines = sum(result.num_lines for _, result in before)
        if task.form.container != "plain":  # corrupt archive, not a bad record
            require_whole(task.path, task.form.container)
        first_offset = 0 if task.form.has_absolute_offsets else sum(result.text_bytes for _, result in before)
        return error.at(line=lines + line + 1, offset=first_offset + error.offset)

    def finish(self, filters: Sequence[str]) -> list[ShardResult]:
        """Return all results in plan order."""
        results = [self._results[number] for number in range(len(self._tasks))]
        self._budget.check_share(results)
        if not any(result.num_records for result in results):
            filtered = sum(result.num_filtered for result in results)
            if filtered:
                what = f"{' and '.join(filters)} {'keeps' if len(filters) == 1 else 'keep'}"
                remedy = "check the condition" if "--where" in filters else "take a larger share"
                raise InputError(f"expected a record that {what}, got none of {filtered:,}; {remedy}")
            msg = f"{self._tasks[0].path}: expected at least one record in all inputs together, got none"
            bad = sum(result.num_quarantined for result in results)
            detail = f" but {bad:,} bad ones; the first is {self._first_bad(results)}" if bad else "; check --input"
            raise InputError(msg + detail)
        return results

    def _first_bad(self, results: Sequence[ShardResult]) -> BadRecordError:
        made = list(zip(self._tasks, results, strict=True))
        paths = {number: path for task in self._tasks for number, path in zip(task.inputs, task.paths, strict=True)}
        shards = shard_quarantine(made, self._work.work_dir, paths)
        entry = first_entry(shards)
        is_row = self._tasks[0].form.is_table
        return BadRecordError(entry["file"], entry["offset"], entry["reason"], entry["line"], is_row=is_row)
