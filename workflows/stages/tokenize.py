"""Make the shards of a plan: keep those that are committed and intact, tokenize the others, count bad records.

Meanwhile, ranges of the output that finished shards fill are merged (workflows.stages.early_merge).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from dsindex.containers.decoding import require_whole
from dsindex.errors import InputError, RecordError
from dsindex.merging.ranges import MergeRange
from dsindex.objects.requests import note_requests
from dsindex.shards.tokenize import tokenize_shard
from workflows.execution.calls import Call
from workflows.execution.cpus import available_cpus
from workflows.execution.dispatch import Dispatch
from workflows.stages.bad_records import BadRecordBudget
from workflows.stages.early_merge import EarlyRanges
from workflows.stages.feeding import StreamFeeder
from workflows.stages.kept_shards import find_kept_shards
from workflows.stages.start import WORKER_MEMORY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dsindex.shards.tasks import ShardResult, ShardTask
    from workflows.stages.early_merge import TokenSource
    from workflows.stages.work import Work


CPUS_PER_STREAM = 8
"""CPUs for each compressed stream that is unpacked at once: one thread decodes as much text as about eight encode."""
PARTS_AHEAD = 16
"""Most parts of a stream that are unpacked and not tokenized yet; more could not be used at the speed of decoding."""


class StageSettings(Protocol):
    """The settings that all shards of a job share; sent to every worker once."""

    @property
    def work_dir(self) -> str:
        """The work folder, in which attempts are written."""
        ...


def make_shards(
    work: Work,
    tasks: Sequence[ShardTask],
    settings: StageSettings,
    *,
    sources: Sequence[TokenSource] = (),
    max_bad_records: str | None = None,
    function: Callable[[ShardTask, Any], ShardResult] | None = None,
    filters: Sequence[str] = ("--where",),
    find_moved: Callable[[Mapping[int, ShardResult]], Collection[int]] | None = None,
) -> list[ShardResult]:
    """Make the shards of a plan that the ledger does not have; return the results of all, in plan order.

    Args:
        work: The job's executor, ledger and reporter.
        tasks: All shards of the plan.
        settings: The settings that all shards share.
        sources: Datasets whose ranges may be merged while shards are made.
        max_bad_records: Largest allowed number of bad records, or share of all such as `0.1%`.
        function: The function that makes a shard; None: `tokenize_shard`.
        filters: Flags that leave out records, for messages.
        find_moved: Returns the kept shards whose documents are in other files by now.

    Raises:
        RecordError: The bad record at the smallest input and offset, with its line number; or the first record for
            which a template or pattern takes too long.
        InputError: If there are more bad records than allowed, or no records at all.
    """
    kept = find_kept_shards(work, tasks, settings.work_dir, find_moved=find_moved)
    work.reporter.stage("tokenize", total=sum(task.stored_bytes for task in tasks), unit="bytes", tasks=len(tasks))
    work.reporter.watch(work.statistics)
    stage = _Stage(work, tasks, sources, max_bad_records=max_bad_records)
    for number, result in kept.items():
        stage.keep(number, result)
    try:
        stage.make_rest(function or tokenize_shard, work.executor.share(settings), work_dir=settings.work_dir)
    except RecordError as error:
        raise stage.with_line_number(error) from error
    finally:
        work.ledger.sync()
    return stage.finish(filters)


class _Stage:
    """The shards of a plan, as they are being made."""

    def __init__(
        self, work: Work, tasks: Sequence[ShardTask], sources: Sequence[TokenSource], *, max_bad_records: str | None
    ) -> None:
        self._work = work
        self._tasks = tasks
        self._results: dict[int, ShardResult] = {}
        self._early = EarlyRanges(sources, work.ledger, num_shards=len(tasks))
        self._ready: list[MergeRange] = []
        """Ranges that kept shards fill."""
        self._budget = BadRecordBudget(max_bad_records)
        self._has_streams = any(task.is_of_stream for task in tasks)

    def keep(self, number: int, result: ShardResult) -> None:
        """Add a shard that an earlier run committed."""
        self._ready += self._take(number, result, fresh=False)

    def make_rest(self, function: Callable[[ShardTask, Any], ShardResult], settings: object, *, work_dir: str) -> None:
        """Make the missing shards, and merge the ranges that they fill."""
        executor = self._work.executor
        threads = max(1, int(available_cpus() / CPUS_PER_STREAM))
        feeder = StreamFeeder(
            self._tasks,
            kept=frozenset(self._results),
            work_dir=work_dir,
            threads=threads,
            ahead=min(executor.slots + executor.backlog, PARTS_AHEAD * threads) + threads,
        )

        def calls() -> Iterator[tuple[int | MergeRange, Call] | None]:
            others = (task for task in self._tasks if task.shard not in self._results and not task.is_of_stream)
            while True:
                fault = dispatch.first_fault
                task = feeder.next_ready() or next(others, None)
                if task is not None and fault is not None and task.shard > fault:
                    feeder.release(task.shard)  # makes room for the parts that are still needed
                elif task is not None:
                    yield task.shard, _shard_call(task, function, settings, self._count_running(task))
                elif feeder.is_done(before=fault):
                    return
                else:
                    yield None

        dispatch: Dispatch[int | MergeRange] = Dispatch(
            executor,
            calls(),
            policy=self._work.policy,
            statistics=self._work.statistics,
            on_idle=self._tick,
            order=_number_of if self._has_streams else None,
        )
        dispatch.release((merge, self._early.call(merge)) for merge in self._ready)
        with contextlib.closing(feeder), contextlib.closing(dispatch.run()) as results:
            for what, value in results:
                if not isinstance(what, MergeRange):
                    feeder.release(what)
                dispatch.release(self._commit(what, value))

    def _commit(self, what: int | MergeRange, value: Any) -> list[tuple[int | MergeRange, Call]]:  # noqa: ANN401 - a ShardResult or a RangeResult
        """Record a finished shard or range; return the calls for ranges that can now be merged."""
        note_requests(value.requests)
        value = replace(value, requests=None)
        if isinstance(what, MergeRange):
            self._work.ledger.record_range(what, value)
            return []
        self._work.ledger.record_shard(self._tasks[what], value)
        return [(task, self._early.call(task)) for task in self._take(what, value, fresh=True)]

    def _take(self, number: int, result: ShardResult, *, fresh: bool) -> list[MergeRange]:
        self._results[number] = result
        task = self._tasks[number]
        self._work.reporter.advance(
            task.stored_bytes,
            documents=result.num_records,
            tokens=sum(key.num_tokens for key in result.keys if not key.is_aligned),
            fresh=fresh,
            task=number,
        )
        self._budget.count(result)
        return self._early.take_shard(number, result)

    def _count_running(self, task: ShardTask) -> Callable[[int, int, int], None] | None:
        """Return a function that counts a shard's text so far as its share of the file, if the size is known."""
        if not task.text_bytes:
            return None
        stored_bytes, all_bytes = task.stored_bytes, task.text_bytes
        count = self._work.reporter.count_running(task.shard)
        return lambda text_bytes, documents, tokens: count(
            min(text_bytes, all_bytes) * stored_bytes // all_bytes, documents, tokens
        )

    def _tick(self) -> None:
        self._work.reporter.tick()
        self._work.ledger.sync_if_due()

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
        if task.form.container != "plain":  # a line that damage made unreadable is none of the user's
            end = None if task.is_of_stream else task.end
            require_whole(task.path, task.form.container, begin=0 if task.is_of_stream else task.begin, end=end)
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
                msg = f"expected a record that {what}, got none of {filtered:,}; {remedy}"
                raise InputError(msg)
            msg = f"{self._tasks[0].path}: expected at least one record in all inputs together, got none"
            bad = sum(result.num_quarantined for result in results)
            if bad:
                msg += (
                    f" but {bad:,} bad ones; leave out --on-bad-record quarantine to see what is wrong with the first"
                )
            raise InputError(msg)
        return results


def _shard_call(
    task: ShardTask,
    function: Callable[[ShardTask, Any], ShardResult],
    settings: object,
    listener: Callable[[int, int, int], None] | None,
) -> Call:
    return Call(
        name=f"tokenize[{task.shard:05d}]",
        place=f"{task.path}, {'row groups' if task.form.is_table else 'bytes'} {task.begin} to {task.end}",
        function=function,
        arguments=(task, settings),
        memory_bytes=WORKER_MEMORY_BYTES,
        listener=listener,
    )


def _number_of(what: int | MergeRange) -> int:
    """Return a shard's number in the plan; ranges are merged only after it."""
    return -1 if isinstance(what, MergeRange) else what
