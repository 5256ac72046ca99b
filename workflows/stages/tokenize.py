"""Make the shards of a plan: verify and keep what is committed, tokenize the rest, count bad records.

Ranges of the output that finished shards fill are merged along the way (workflows.stages.early_merge).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from dsindex.errors import InputError, PlanError, RecordError
from dsindex.shards.tokenize import ShardResult, ShardTask, tokenize_shard
from dsindex.storage import digest_file
from workflows.execution.calls import Call
from workflows.execution.dispatch import run_calls
from workflows.stages.early_merge import EarlyRanges
from workflows.stages.source import require_same_inputs
from workflows.state.ledger import stored_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from workflows.stages.early_merge import TokenSource
    from workflows.stages.work import Work


WORKER_MEMORY_BYTES = 460 << 20
"""What a worker process needs at its peak: 451 MB were measured on Ray after 600 MB of text. A very long document costs
its own size on top."""


class StageSettings(Protocol):
    """What shards of one kind have in common; sent to every worker once."""

    @property
    def work_dir(self) -> str:
        """The folder that attempts are written below."""
        ...


class TokenizeStage:
    """Makes every shard of a plan that the ledger does not have."""

    def __init__(
        self,
        work: Work,
        *,
        max_bad_records: str | None,
        function: Callable[[ShardTask, Any], ShardResult] | None = None,
    ) -> None:
        self._executor = work.executor
        self._ledger = work.ledger
        self._reporter = work.reporter
        self._policy = work.policy
        self._statistics = work.statistics
        self._budget = BadRecordBudget(max_bad_records)
        self._function = function or tokenize_shard

    def run(
        self, tasks: Sequence[ShardTask], settings: StageSettings, sources: Sequence[TokenSource] = ()
    ) -> list[ShardResult]:
        """Return the result of every shard, in plan order.

        Args:
            tasks: All shards of the plan.
            settings: What they have in common.
            sources: Of datasets, ranges of which may be merged already while shards are made.

        Raises:
            RecordError: The first bad record of the smallest input and offset, with its line number; or the first
                that takes a template or pattern too long.
            InputError: If there are more bad records than allowed, or no records at all.
        """
        results: list[ShardResult | None] = self._verified(tasks, settings.work_dir)
        total = sum(task.end - task.begin for task in tasks)
        self._reporter.stage("tokenize", total=total, unit="bytes", tasks=len(tasks))
        self._reporter.watch(self._statistics)
        for task, kept in zip(tasks, results, strict=True):
            if kept is not None:
                self._tell(task, kept, fresh=False)
                self._budget.count(kept)
        self._make(tasks, self._executor.share(settings), results, sources)
        finished = [result for result in results if result is not None]
        self._budget.check_share(finished)
        if not any(result.num_records for result in finished):
            msg = f"{tasks[0].path}: expected at least one record in all inputs together, got none"
            raise InputError(msg)
        return finished

    def _make(
        self,
        tasks: Sequence[ShardTask],
        settings: object,
        results: list[ShardResult | None],
        sources: Sequence[TokenSource],
    ) -> None:
        """Make the shards whose result is missing, and on the way the ranges that they fill."""
        early = EarlyRanges(sources, self._ledger)

        def calls() -> Iterator[tuple[int, Call] | None]:
            todo = (number for number, kept in enumerate(results) if kept is None)
            while not early.has_all(results):
                if (merge := early.next_call()) is not None:
                    # After all shards: a fault of theirs, which has the smaller number, is the one that is told.
                    yield len(tasks) + merge[0], merge[1]
                elif (number := next(todo, None)) is not None:
                    yield number, self._call(tasks[number], settings)
                else:
                    yield None

        def on_result(number: int, value: Any) -> None:  # noqa: ANN401 - a ShardResult or a RangeResult
            if number < len(tasks):
                results[number] = value
                self._commit(tasks[number], value)
            else:
                early.take(number - len(tasks), value)

        try:
            self._run(calls(), on_result)
        except RecordError as error:
            raise _with_line_number(error) from error
        finally:
            self._ledger.sync()

    def _call(self, task: ShardTask, settings: object) -> Call:
        return Call(
            name=f"tokenize[{task.shard:05d}]",
            place=f"{task.path}, bytes {task.begin} to {task.end}",
            function=self._function,
            arguments=(task, settings),
            memory_bytes=WORKER_MEMORY_BYTES,
        )

    def _run(self, calls: Iterator[tuple[int, Call] | None], on_result: Callable[[int, Any], None]) -> None:
        run_calls(
            self._executor,
            calls,
            on_result=on_result,
            policy=self._policy,
            statistics=self._statistics,
            on_idle=self._tick,
        )

    def _tick(self) -> None:
        self._reporter.tick()
        self._ledger.sync_if_due()

    def _commit(self, task: ShardTask, result: ShardResult) -> None:
        self._ledger.record_shard(task, result)
        self._tell(task, result, fresh=True)
        self._budget.count(result)

    def _tell(self, task: ShardTask, result: ShardResult, *, fresh: bool) -> None:
        self._reporter.advance(
            task.end - task.begin,
            documents=result.num_records,
            tokens=sum(key.num_tokens for key in result.keys if not key.is_aligned),
            fresh=fresh,
        )

    def _require_same_inputs(self, tasks: Sequence[ShardTask], known: dict[int, ShardResult]) -> None:
        """Refuse shards of inputs whose bytes have changed although their sizes and times have not."""
        by_input: dict[str, list[ShardResult]] = {}
        for number, result in known.items():
            by_input.setdefault(tasks[number].path, []).append(result)
        require_same_inputs({path: _require_one_input(path, results) for path, results in by_input.items()})

    def _verified(self, tasks: Sequence[ShardTask], work_dir: str) -> list[ShardResult | None]:
        """Verify the shards that the ledger knows; those that are not what it says are made again."""
        known = {
            number: result for number, task in enumerate(tasks) if (result := self._ledger.shard(task)) is not None
        }
        kept: list[ShardResult | None] = [None] * len(tasks)
        if not known:
            return kept
        self._require_same_inputs(tasks, known)
        self._reporter.stage("check", total=len(known), unit="shards")

        def on_result(number: int, whole: bool) -> None:
            self._reporter.advance(1)
            if whole:
                kept[number] = known[number]

        self._run((_check_call(result, work_dir, number) for number, result in known.items()), on_result)
        return kept


def _require_one_input(path: str, results: Iterable[ShardResult]) -> str | None:
    """Return the fingerprint of the input that all these shards were made of; None where none was recorded.

    Raises:
        PlanError: If they were made of different ones.
    """
    fingerprints = {result.input_fingerprint for result in results} - {None}
    if len(fingerprints) > 1:
        msg = f"{path}: expected all shards to be made of the same bytes, got shards of others; start over with --fresh"
        raise PlanError(msg)
    return next(iter(fingerprints), None)


def _check_call(result: ShardResult, work_dir: str, number: int) -> tuple[int, Call]:
    call = Call(name=f"check[{number:05d}]", place=work_dir, function=shard_is_whole, arguments=(work_dir, result))
    return number, call


def _with_line_number(error: RecordError) -> RecordError:
    """Count lines up to the record: ranges do not know where in the file they begin."""
    from dsindex.text.lines import count_lines

    return error.with_line(count_lines(error.path, error.offset))


class BadRecordBudget:
    """Counts quarantined records against `--max-bad-records`."""

    def __init__(self, limit: str | None) -> None:
        self._number = int(limit) if limit is not None and not limit.endswith("%") else None
        self._share = float(limit[:-1]) / 100 if limit is not None and limit.endswith("%") else None
        self._limit = limit
        self._bad = 0

    def count(self, result: ShardResult) -> None:
        """Take a shard's bad records; a number is enforced at once, a share at the end, when the whole is known."""
        self._bad += result.num_quarantined
        if self._number is not None and self._bad > self._number:
            self._refuse()

    def check_share(self, results: Sequence[ShardResult]) -> None:
        """Enforce a share of all records."""
        records = sum(result.num_records + result.num_quarantined for result in results)
        if self._share is not None and self._bad > self._share * records:
            self._refuse()

    def _refuse(self) -> None:
        msg = (
            f"{self._bad} bad records were set aside, more than the {self._limit} of --max-bad-records; "
            f"look at the *.quarantine files below the work folder, then mend the input or raise the limit"
        )
        raise InputError(msg)


def shard_is_whole(work_dir: str, result: ShardResult) -> bool:
    """Compare the files of a committed shard with what the ledger says of them."""
    for file in stored_files(result):
        path = os.path.join(work_dir, file.name)
        try:
            if os.path.getsize(path) != file.size_bytes or digest_file(path) != file.digest:
                return False
        except (OSError, InputError):
            return False
    return True
