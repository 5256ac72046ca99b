"""Make the shards of a plan: keep those that are committed and intact, tokenize the others, count bad records.

Meanwhile, ranges of the output that finished shards fill are merged (dsindex.engine.assemble).
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from dsindex.amounts import count
from dsindex.engine.assemble import EarlyRanges, shards_in_place
from dsindex.engine.dispatch import Dispatch, run_calls
from dsindex.engine.executors import Call, as_exception
from dsindex.engine.ledger import stored_files
from dsindex.engine.merge import MergeRange
from dsindex.engine.publishing import shard_quarantine
from dsindex.engine.shards.attempt import shard_folder
from dsindex.engine.shards.tokenize import ShardSettings, UnpackedText, first_entry, tokenize_shard
from dsindex.engine.source import fingerprint_all
from dsindex.errors import BadRecordError, InputError, OutputError, RecordError
from dsindex.machine import available_cpus
from dsindex.store.ownership import SHARDS_FOLDER, new_file_id, read_folder_id, sizes_below
from dsindex.store.reading import digest_file, stored_size
from dsindex.store.requests import note_requests
from dsindex.store.storage import StoredSection, create_file, holds_writes, output_error, remove_if_present
from dsindex.store.urls import joined, pin_object
from dsindex.text.compressed import decoder_version, require_whole
from dsindex.text.streams import split_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from dsindex.engine.assemble import TokenSource
    from dsindex.engine.dispatch import RetryPolicy
    from dsindex.engine.executors import Executor
    from dsindex.engine.progress import Reporter
    from dsindex.engine.shards.tokenize import ShardResult, ShardTask
    from dsindex.engine.start import Work
    from dsindex.store.storage import StoredFile


# Count bad records against `--max-bad-records`.


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


# The shards that an earlier run committed: intact ones are kept, the others are made again.


def find_kept_shards(work: Work, tasks: Sequence[ShardTask], work_dir: str) -> dict[int, ShardResult]:
    """Return the intact shards of the ledger, by number in the plan.

    Args:
        work: The job's executor, ledger and reporter.
        tasks: All shards of the plan.
        work_dir: The work folder.

    Raises:
        InputError: If an input cannot be read.
    """
    known = {
        number: result
        for number, task in enumerate(tasks)
        if (result := work.ledger.shard(task)) is not None and _ends_where_it_would(task, result)
    }
    if not known:
        return {}
    _forget_changed(work, tasks, known)
    whole = find_whole_shards(known, work_dir, executor=work.executor, reporter=work.reporter, policy=work.policy)
    return {number: result for number, result in known.items() if number in whole}


def find_whole_shards(
    known: Mapping[int, ShardResult],
    work_dir: str,
    *,
    executor: Executor,
    reporter: Reporter,
    policy: RetryPolicy | None = None,
) -> set[int]:
    """Return the numbers of the shards whose files have the recorded sizes and digests."""
    groups = {number: stored_files(result) for number, result in known.items()}
    return find_whole_groups(groups, work_dir, executor=executor, reporter=reporter, policy=policy)


def find_whole_groups(
    groups: Mapping[int, Sequence[StoredFile]],
    work_dir: str,
    *,
    executor: Executor,
    reporter: Reporter,
    policy: RetryPolicy | None = None,
    unit: str = "shards",
) -> set[int]:
    """Return the numbers of the groups of files that all have the recorded sizes and digests.

    The store of a work folder in one has checked their digests as they were sent, and is asked for their sizes.
    """
    reporter.stage("check", total=len(groups), unit=unit)
    if holds_writes(work_dir):  # their digests were checked as they arrived
        sizes = sizes_below(joined(work_dir, SHARDS_FOLDER))
        reporter.advance(len(groups))
        return {
            number
            for number, files in groups.items()
            if all(sizes.get(joined(work_dir, file.name)) == file.size_bytes for file in files)
        }
    whole = set()

    def on_result(number: int, is_whole: bool) -> None:
        reporter.advance(1)
        if is_whole:
            whole.add(number)

    def calls() -> Iterator[tuple[int, Call]]:
        for number, files in groups.items():
            name = f"check[{number:05d}]"
            yield number, Call(name=name, place=work_dir, function=are_whole, arguments=(work_dir, tuple(files)))

    run_calls(executor, calls(), on_result=on_result, policy=policy, on_idle=reporter.tick)
    return whole


def are_whole(work_dir: str, files: Sequence[StoredFile]) -> bool:
    """Tell whether committed files have the recorded sizes and digests."""
    for file in files:
        path = joined(work_dir, file.name)
        try:
            if isinstance(file, StoredSection):
                if digest_file(path, begin=file.begin, end=file.begin + file.size_bytes) != file.digest:
                    return False
                continue
            is_checked = holds_writes(work_dir)  # by the store, as it arrived
            if stored_size(path) != file.size_bytes or not (is_checked or digest_file(path) == file.digest):
                return False
        except (OSError, InputError):
            return False
    return True


def _ends_where_it_would(task: ShardTask, result: ShardResult) -> bool:
    """Tell whether a part of a stream was unpacked by the decompressor that would unpack the parts beside it now."""
    return not task.is_of_stream or result.decoder == decoder_version(task.form.container)


def _forget_changed(work: Work, tasks: Sequence[ShardTask], known: dict[int, ShardResult]) -> None:
    """Leave out the shards of inputs whose content changed while their sizes and times did not."""
    by_input: dict[tuple[str, ...], list[int]] = {}
    for number, result in known.items():
        if result.input_fingerprint is not None:
            by_input.setdefault(tasks[number].paths, []).append(number)
    for paths, fingerprint in fingerprint_all(by_input):
        others = [number for number in by_input[paths] if known[number].input_fingerprint != fingerprint]
        if others:
            beside = f" or one of the {len(paths) - 1:,} files after it" if len(paths) > 1 else ""
            work.reporter.say(f"{paths[0]}{beside}: has other bytes of the same size and time, and is read again")
        for number in others:
            del known[number]


# Unpack compressed files that can only be decoded from their start, for workers that cannot begin in the middle.
#
# Threads of the driver decode such streams, one each, and write the text of each part to a file under `shards/` of the
# work folder. A part is tokenized as soon as it is there, and its file is removed with the result. No more than a few
# parts are unpacked ahead of the workers.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """One input and its parts that are needed."""

    tasks: tuple[ShardTask, ...]
    """All parts, in order."""
    needed: frozenset[int]
    """Numbers of the shards to make."""


class StreamFeeder:
    """Unpacks the streams among a job's inputs, the first ones first.

    Args:
        tasks: All shards of the plan.
        kept: Numbers of shards that are made already.
        work_dir: The marked work folder.
        threads: Number of streams that are decoded at once.
        ahead: Number of parts that may wait for workers, at least `threads`.
    """

    def __init__(
        self, tasks: Sequence[ShardTask], *, kept: Container[int], work_dir: str, threads: int, ahead: int
    ) -> None:
        self._work_dir = work_dir
        self._room = threading.Semaphore(max(threads, ahead))
        self._ready: queue.SimpleQueue[ShardTask | Exception] = queue.SimpleQueue()
        self._is_stopped = False
        self._files: dict[int, str] = {}
        """Shard → the file that holds its text."""
        self._missing: set[int] = set()
        """Parts that `next_ready` has not returned yet."""
        streams: queue.SimpleQueue[_Stream] = queue.SimpleQueue()
        for _, group in groupby((task for task in tasks if task.is_of_stream), key=lambda task: task.input):
            parts = tuple(group)
            needed = frozenset(part.shard for part in parts if part.shard not in kept)
            if needed:
                streams.put(_Stream(tasks=parts, needed=needed))
                self._missing |= needed
        self._threads = [
            threading.Thread(target=self._unpack_all, args=(streams,), name=f"dsindex-unpack-{number}", daemon=True)
            for number in range(min(threads, streams.qsize()))
        ]
        for thread in self._threads:
            thread.start()

    def is_done(self, *, before: int | None = None) -> bool:
        """Tell whether all parts were returned, or all before a shard."""
        return not self._missing or (before is not None and min(self._missing) >= before)

    def next_ready(self) -> ShardTask | None:
        """Return a part that was unpacked, as a task that reads it; None if none is ready.

        Raises:
            OutputError: If the work folder cannot be written.
        """
        try:
            found = self._ready.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        self._missing.remove(found.shard)
        return found

    def release(self, shard: int) -> None:
        """Remove the text of a part that was tokenized; nothing happens for other shards."""
        path = self._files.pop(shard, None)
        if path is not None:
            with contextlib.suppress(OSError, OutputError):
                remove_if_present(path)
            self._room.release()

    def close(self) -> None:
        """Stop unpacking, and remove the text of parts that are left."""
        self._is_stopped = True
        for _ in self._threads:
            self._room.release()
        for thread in self._threads:
            thread.join()
        for shard in list(self._files):
            self.release(shard)

    def _unpack_all(self, streams: queue.SimpleQueue[_Stream]) -> None:
        try:
            while not self._is_stopped:
                try:
                    stream = streams.get_nowait()
                except queue.Empty:
                    return
                self._unpack(stream)
        except OSError as error:
            self._ready.put(output_error(self._work_dir, error))
        except BaseException as error:  # noqa: BLE001 - the driver raises it
            self._ready.put(as_exception(error))

    def _unpack(self, stream: _Stream) -> None:
        """Write the text of each needed part; if the input is damaged, the first one that is not whole says why."""
        first = stream.tasks[0]
        bounds = (*(task.begin for task in stream.tasks), stream.tasks[-1].end)
        due = deque(task for task in stream.tasks if task.shard in stream.needed)
        pieces = split_stream(first.path, first.form.container, bounds, expected_size=first.input_size_bytes)
        with contextlib.closing(pieces):
            try:
                for number, texts in groupby(pieces, key=itemgetter(0)):
                    while due and due[0].shard < first.shard + number:
                        self._hand_over(due.popleft(), ())  # it is inside one long line
                    if self._is_stopped or not due:
                        return
                    if due[0].shard == first.shard + number and not self._hand_over(due.popleft(), texts):
                        return
            except InputError as error:
                if due:
                    self._hand_over(due.popleft(), (), error=error)
                return
        for task in due:
            self._hand_over(task, ())

    def _hand_over(
        self, task: ShardTask, texts: Iterable[tuple[int, bytes]], *, error: InputError | None = None
    ) -> bool:
        """Write a part's text to a file and make it ready; return False if the input is damaged in it."""
        self._room.acquire()
        folder_id = read_folder_id(self._work_dir)
        if self._is_stopped or folder_id is None:
            self._room.release()  # for the parts that follow, which end here as well
            return False
        name = f"{shard_folder(task.shard)}/{task.shard:08d}.{new_file_id(folder_id)}.text"
        path = joined(self._work_dir, name)
        self._files[task.shard] = path
        with create_file(path) as file:
            try:
                for _, text in texts:
                    if self._is_stopped:
                        return False
                    file.write(text)
            except InputError as damage:
                error = damage
            size_bytes = file.tell()
        unpacked = UnpackedText(
            path=pin_object(path, size_bytes),
            size_bytes=size_bytes,
            decoder=decoder_version(task.form.container),
            error=None if error is None else str(error),
        )
        self._ready.put(replace(task, unpacked=unpacked))
        return error is None


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
    keep: bool = False,
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
        keep: Whether the files of shards are kept after the job, so that each shard has its own.

    Raises:
        RecordError: The bad record at the smallest input and offset, with its line number; or the first record for
            which a template or pattern takes too long.
        InputError: If there are more bad records than allowed, or no records at all.
    """
    kept = find_kept_shards(work, tasks, settings.work_dir)
    if keep:
        kept = {number: result for number, result in kept.items() if not _is_in_place(result)}
    if work.ledger.history.has_work:
        work.reporter.say(f"{len(kept):,} of {count(len(tasks), 'shard')} kept, {len(tasks) - len(kept):,} to be made")
    work.reporter.stage("tokenize", total=sum(task.stored_bytes for task in tasks), unit="bytes", tasks=len(tasks))
    work.reporter.watch(work.statistics)
    stage = _Stage(work, tasks, sources, work_dir=settings.work_dir, max_bad_records=max_bad_records)
    with contextlib.ExitStack() as opened:
        if len(kept) < len(tasks) and isinstance(settings, ShardSettings):
            in_place = shards_in_place(sources, work, settings.work_dir, kept=kept, num_shards=len(tasks), keep=keep)
            settings = replace(settings, places=opened.enter_context(in_place))
        for number, result in kept.items():
            stage.keep(number, result)
        try:
            stage.make_rest(function or tokenize_shard, work.executor.share(settings))
        except RecordError as error:
            raise stage.with_way_on(stage.with_line_number(error)) from error
        finally:
            work.ledger.sync()
        return stage.finish(filters)


def _is_in_place(result: ShardResult) -> bool:
    return any(isinstance(part.bin, StoredSection) for part in result.keys)


class _Stage:
    """The shards of a plan, as they are being made."""

    def __init__(
        self,
        work: Work,
        tasks: Sequence[ShardTask],
        sources: Sequence[TokenSource],
        *,
        work_dir: str,
        max_bad_records: str | None,
    ) -> None:
        self._work = work
        self._work_dir = work_dir
        self._tasks = tasks
        self._results: dict[int, ShardResult] = {}
        self._early = EarlyRanges(sources, work.ledger, num_shards=len(tasks))
        self._unrecorded: dict[int, ShardResult] = {}
        self._num_leading = 0
        """Number of shards, from the first, that are there and recorded."""
        self._ready: list[MergeRange] = []
        """Ranges that kept shards fill."""
        self._budget = BadRecordBudget(max_bad_records)
        self._faults: Sequence[BaseException] = ()
        """What stopped shards so far."""
        self._has_streams = any(task.is_of_stream for task in tasks)

    def keep(self, number: int, result: ShardResult) -> None:
        """Add a shard that an earlier run committed."""
        self._ready += self._take(number, result, fresh=False)

    def make_rest(self, function: Callable[[ShardTask, Any], ShardResult], settings: object) -> None:
        """Make the missing shards, and merge the ranges that they fill."""
        executor = self._work.executor
        threads = max(1, int(available_cpus() / CPUS_PER_STREAM))
        feeder = StreamFeeder(
            self._tasks,
            kept=frozenset(self._results),
            work_dir=self._work_dir,
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
                    yield task.shard, _shard_call(task, function, settings)
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
        self._faults = dispatch.faults
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
        self._record(what, value)
        return [(task, self._early.call(task)) for task in self._take(what, value, fresh=True)]

    def _record(self, number: int, result: ShardResult) -> None:
        """Record a shard; one whose tokens are in place, after all before it, since another run may go on there."""
        if _is_in_place(result):
            self._unrecorded[number] = result
        else:
            self._work.ledger.record_shard(self._tasks[number], result)
        while self._num_leading in self._results or self._num_leading == number:
            waiting = self._unrecorded.pop(self._num_leading, None)
            if waiting is not None:
                self._work.ledger.record_shard(self._tasks[self._num_leading], waiting)
            self._num_leading += 1

    def _take(self, number: int, result: ShardResult, *, fresh: bool) -> list[MergeRange]:
        self._results[number] = result
        task = self._tasks[number]
        self._work.reporter.advance(
            task.stored_bytes,
            documents=result.num_records,
            tokens=sum(key.num_tokens for key in result.keys if not key.is_aligned),
            fresh=fresh,
        )
        self._budget.count(result)
        return self._early.take_shard(number, result)

    def _tick(self) -> None:
        self._work.reporter.tick()
        self._work.ledger.sync_if_due()

    def with_way_on(self, error: RecordError) -> RecordError:
        """Return the error of a bad record with what is kept, and how the job goes on."""
        if isinstance(error, BadRecordError):
            kept = f"{len(self._results):,} of {len(self._tasks):,} shards are kept"
            way_on = (
                "mend it and run the same command again, or add --on-bad-record quarantine to set such records aside"
            )
            if error.line == 1 and error.reason.startswith("expected the key"):
                way_on = f"name another key, or {way_on}"
            more = sum(1 + bad.num_more for bad in self._faults if isinstance(bad, BadRecordError)) - 1
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
                raise InputError(f"expected a record that {what}, got none of {filtered:,}; {remedy}")
            msg = f"{self._tasks[0].path}: expected at least one record in all inputs together, got none"
            bad = sum(result.num_quarantined for result in results)
            detail = f" but {bad:,} bad ones; the first is {self._first_bad(results)}" if bad else "; check --input"
            raise InputError(msg + detail)
        return results

    def _first_bad(self, results: Sequence[ShardResult]) -> BadRecordError:
        made = list(zip(self._tasks, results, strict=True))
        shards = shard_quarantine(made, self._work_dir, _paths(self._tasks))
        entry = first_entry(shards)
        is_row = self._tasks[0].form.is_table
        return BadRecordError(entry["file"], entry["offset"], entry["reason"], entry["line"], is_row=is_row)


def _paths(tasks: Iterable[ShardTask]) -> dict[int, str]:
    """Return the paths of all inputs of tasks by their numbers."""
    return {number: path for task in tasks for number, path in zip(task.inputs, task.paths, strict=True)}


def _shard_call(
    task: ShardTask,
    function: Callable[[ShardTask, Any], ShardResult],
    settings: object,
) -> Call:
    return Call(
        name=f"tokenize[{task.shard:05d}]",
        place=task.place,
        function=function,
        arguments=(task, settings),
    )


def _number_of(what: int | MergeRange) -> int:
    """Return a shard's number in the plan; ranges are merged only after it."""
    return -1 if isinstance(what, MergeRange) else what
