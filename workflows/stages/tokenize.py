"""Make the shards of a plan: keep those that are committed and intact, tokenize the others, count bad records.

Meanwhile, ranges of the output that finished shards fill are merged (workflows.stages.early_merge).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from dsindex.errors import InputError, RecordError
from dsindex.merging import MergeRange
from dsindex.shards.tokenize import ShardResult, ShardTask, tokenize_shard
from workflows.execution.calls import Call
from workflows.execution.dispatch import run_calls
from workflows.stages.bad_records import BadRecordBudget
from workflows.stages.early_merge import EarlyRanges
from workflows.stages.kept_shards import find_kept_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from workflows.stages.early_merge import TokenSource
    from workflows.stages.work import Work


WORKER_MEMORY_BYTES = 460 << 20
"""A worker process's peak memory, measured on Ray after 600 MB of text. A very long document adds its own size."""


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
) -> list[ShardResult]:
    """Make the shards of a plan that the ledger does not have; return the results of all, in plan order.

    Args:
        work: The job's executor, ledger and reporter.
        tasks: All shards of the plan.
        settings: The settings that all shards share.
        sources: Datasets whose ranges may be merged while shards are made.
        max_bad_records: Largest allowed number of bad records, or share of all such as `0.1%`.
        function: The function that makes a shard; None: `tokenize_shard`.

    Raises:
        RecordError: The bad record at the smallest input and offset, with its line number; or the first record for
            which a template or pattern takes too long.
        InputError: If there are more bad records than allowed, or no records at all.
    """
    kept = find_kept_shards(work, tasks, settings.work_dir)
    work.reporter.stage("tokenize", total=sum(task.end - task.begin for task in tasks), unit="bytes", tasks=len(tasks))
    work.reporter.watch(work.statistics)
    stage = _Stage(work, tasks, sources, max_bad_records=max_bad_records)
    for number, result in kept.items():
        stage.keep(number, result)
    try:
        stage.make_rest(function or tokenize_shard, work.executor.share(settings))
    except RecordError as error:
        raise _with_line_number(error) from error
    finally:
        work.ledger.sync()
    return stage.finish()


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

    def keep(self, number: int, result: ShardResult) -> None:
        """Add a shard that an earlier run committed."""
        self._ready += self._take(number, result, fresh=False)

    def make_rest(self, function: Callable[[ShardTask, Any], ShardResult], settings: object) -> None:
        """Make the missing shards, and merge the ranges that they fill."""

        def calls() -> Iterator[tuple[int | MergeRange, Call]]:
            for merge in self._ready:
                yield merge, self._early.call(merge)
            for number, task in enumerate(self._tasks):
                if number not in self._results:
                    yield number, _shard_call(task, function, settings)

        run_calls(
            self._work.executor,
            calls(),
            on_result=self._commit,
            policy=self._work.policy,
            statistics=self._work.statistics,
            on_idle=self._tick,
        )

    def _commit(self, what: int | MergeRange, value: Any) -> list[tuple[int | MergeRange, Call]]:  # noqa: ANN401
        """Record a finished shard or range; return the calls for ranges that can now be merged."""
        if isinstance(what, MergeRange):
            self._work.ledger.record_range(what, value)
            return []
        self._work.ledger.record_shard(self._tasks[what], value)
        return [(task, self._early.call(task)) for task in self._take(what, value, fresh=True)]

    def _take(self, number: int, result: ShardResult, *, fresh: bool) -> list[MergeRange]:
        self._results[number] = result
        task = self._tasks[number]
        self._work.reporter.advance(
            task.end - task.begin,
            documents=result.num_records,
            tokens=sum(key.num_tokens for key in result.keys if not key.is_aligned),
            fresh=fresh,
        )
        self._budget.count(result)
        return self._early.take_shard(number, result)

    def _tick(self) -> None:
        self._work.reporter.tick()
        self._work.ledger.sync_if_due()

    def finish(self) -> list[ShardResult]:
        """Return all results in plan order."""
        results = [self._results[number] for number in range(len(self._tasks))]
        self._budget.check_share(results)
        if not any(result.num_records for result in results):
            filtered = sum(result.num_filtered for result in results)
            if filtered:
                msg = f"expected a record that --where keeps, got none: it leaves out all {filtered:,}; change it"
                raise InputError(msg)
            msg = f"{self._tasks[0].path}: expected at least one record in all inputs together, got none"
            raise InputError(msg)
        return results


def _shard_call(task: ShardTask, function: Callable[[ShardTask, Any], ShardResult], settings: object) -> Call:
    return Call(
        name=f"tokenize[{task.shard:05d}]",
        place=f"{task.path}, bytes {task.begin} to {task.end}",
        function=function,
        arguments=(task, settings),
        memory_bytes=WORKER_MEMORY_BYTES,
    )


def _with_line_number(error: RecordError) -> RecordError:
    """Return the error with its line number; ranges do not know the number of their first line."""
    from dsindex.text.lines import count_lines

    return error.with_line(count_lines(error.path, error.offset))
