"""The driver under many shards: memory and time per shard, from plan to publishing, on an executor that plays work.

DSINDEX_SCALE_SHARDS=1000000 runs the large form, which takes some minutes and prints what it measured.
"""

import gc
import multiprocessing
import os
import pickle
import tempfile
import time
import uuid
from types import SimpleNamespace

import numpy as np
import pytest

from dsindex.engine.assemble import TokenSource
from dsindex.engine.inputs import InputFile, plan_shards
from dsindex.engine.ledger import Ledger
from dsindex.engine.merge import MergeRange, RangeResult, plan_merge
from dsindex.engine.publishing import Dataset, Target, shard_part, shard_provenance, shard_quarantine
from dsindex.engine.shards.tokenize import KeyResult, ShardResult
from dsindex.engine.start import Work
from dsindex.engine.tokenize import make_shards
from dsindex.execution.calls import Call, Outcome
from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy, run_calls
from dsindex.execution.progress.displays import displays_of_job
from dsindex.execution.progress.reporter import Reporter
from dsindex.store.storage import StoredFile

NUM_SHARDS = int(os.environ.get("DSINDEX_SCALE_SHARDS", "20000"))
SHARD_BYTES = 1000


class Simulated:
    """Ends every call at the next wait, and gives results as a cluster does: unpickled, sharing nothing."""

    kind = "simulated"
    slots = backlog = 256
    is_cluster = False
    shortage = None
    waiting = None

    def __init__(self):
        self.running = []
        self.num_attempts = self.most_in_flight = 0
        self.seconds = 0.0
        """Of CPU, spent on playing."""

    def share(self, value):
        return value

    def start(self, call, *, beyond_slots=False):  # noqa: ARG002
        self.num_attempts += 1
        self.running.append((self.num_attempts, call))
        self.most_in_flight = max(self.most_in_flight, len(self.running))
        return self.num_attempts

    def running_since(self, attempt_id):
        raise AssertionError(attempt_id)  # nothing is overdue

    def wait(self, timeout):  # noqa: ARG002
        began = time.process_time()
        ended = [
            Outcome(attempt_id=attempt_id, value=pickle.loads(pickle.dumps(play(call.arguments[0]))))  # noqa: S301 - our own
            for attempt_id, call in self.running
        ]
        self.running = []
        self.seconds += time.process_time() - began
        return ended

    def abandon(self, attempt_id):
        raise AssertionError(attempt_id)


def play(task):
    """What a shard of the default size gives: every number and name its own object, as long as real ones."""
    if isinstance(task, MergeRange):
        return RangeResult(number=task.number, block_digests=(uuid.uuid4().hex, uuid.uuid4().hex))
    stem = f"shards/{task.shard // 10_000:04d}/{task.shard:08d}.{uuid.uuid4().hex}"

    def stored(suffix):
        return StoredFile(name=f"{stem}.{suffix}", size_bytes=40_000_000 + task.shard, digest=uuid.uuid4().hex)

    number = 60_000 + task.shard
    of_key = {"num_sequences": number, "num_documents": number, "num_tokens": 20_000_000 + task.shard}
    of_key |= {"num_empty_documents": 0, "eod_in_text": 0}
    counts = {"num_lines": number, "num_blank": 0, "num_records": number, "num_quarantined": 0}
    keys = (KeyResult(key="text", bin=stored("0.bin"), idx=stored("0.idx"), **of_key),)
    own = {"provenance": stored("prov"), "quarantine": None, "input_fingerprint": uuid.uuid4().hex}
    return ShardResult(shard=task.shard, keys=keys, **counts, **own)


def inputs_of(num_inputs, num_shards):
    size = num_shards // num_inputs * SHARD_BYTES
    paths = [f"/shared/data/corpus/part-{number:07}.jsonl" for number in range(num_inputs)]
    return [InputFile(path=path, absolute_path=path, size_bytes=size, version="1790000000000000000") for path in paths]


def resident_bytes():
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drive(num_inputs, num_shards):
    """Run a build's driver over played shards, all but the writing, and say what it took."""
    inputs = inputs_of(num_inputs, num_shards)
    before, began = resident_bytes(), time.process_time()
    executor = Simulated()
    with tempfile.TemporaryDirectory() as folder:
        tasks = list(plan_shards(inputs, SHARD_BYTES))
        ledger = Ledger(os.path.join(folder, "ledger.jsonl"))
        reporter = Reporter()
        work = Work(
            executor=executor, ledger=ledger, reporter=reporter, policy=RetryPolicy(), statistics=DispatchStatistics()
        )

        def part_of(result):
            return shard_part(result.keys[0], folder, np.dtype("<u2"))

        prefix = os.path.join(folder, "x_text_document")
        target = Target(prefix=prefix, plan_id="plan", bound_bytes=num_shards * 2 * (64 << 20))
        source = TokenSource(target=target, part_of=part_of)
        settings = SimpleNamespace(work_dir=folder)
        with reporter.showing(*displays_of_job(folder, executor)):
            results = list(zip(tasks, make_shards(work, tasks, settings, sources=[source]), strict=True))
        dataset = Dataset(
            target=target,
            parts=tuple(part_of(result) for _, result in results),
            provenance=shard_provenance(results, folder),
            quarantine=shard_quarantine(results, folder, [file.path for file in inputs]),
        )
        ranges = plan_merge(dataset.pieces, target.token_file, bound_bytes=target.bound_bytes)
        early = sum(ledger.range(task) is not None for task in ranges)
        seconds = time.process_time() - began
        ledger_bytes = os.path.getsize(os.path.join(folder, "ledger.jsonl"))
        used = resident_bytes() - before
        ledger.close()
        began = time.process_time()
        again = Ledger(os.path.join(folder, "ledger.jsonl"))
        resume_seconds = time.process_time() - began
        found = sum(again.shard(task) is not None for task in tasks)
        again.close()
    return {
        "shards": len(results),
        "found_again": found,
        "ranges": len(ranges),
        "early_ranges": early,
        "most_in_flight": executor.most_in_flight,
        "bytes_per_shard": used / num_shards,
        "ledger_bytes_per_shard": ledger_bytes / num_shards,
        "driver_us_per_shard": (seconds - executor.seconds) / num_shards * 1e6,
        "resume_us_per_shard": resume_seconds / num_shards * 1e6,
    }


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_inputs", [100, NUM_SHARDS], ids=["few inputs", "one shard each"])
def test_driver_takes_a_few_kilobytes_and_little_time_per_shard(num_inputs):
    # In a process of its own: what tests before this one left behind would be counted, or used again.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(drive, (num_inputs, NUM_SHARDS))
    print(measured)  # noqa: T201 - shown with -s
    assert measured["shards"] == measured["found_again"] == NUM_SHARDS
    assert measured["most_in_flight"] == Simulated.slots + Simulated.backlog
    assert measured["ranges"] <= 9000
    # All but those of the shards that were made last.
    assert measured["ranges"] - measured["early_ranges"] <= 2 + 2 * Simulated.slots
    assert measured["bytes_per_shard"] < 4096


# Fewer calls at once where storage fails; second attempts where it is the one call that is slow.


class Scripted:
    """Calls end when the clock of the test says so; a call that raises OSError failed on its storage."""

    kind = "processes"
    is_cluster = False
    shortage = None
    waiting = None

    def __init__(self, slots, clock):
        self.slots = slots
        self.backlog = 0
        self.clock = clock
        self.running = {}
        self.since = {}
        self.num_attempts = 0
        self.in_flight = []

    def share(self, value):
        return value

    def start(self, call, *, beyond_slots=False):  # noqa: ARG002
        self.num_attempts += 1
        seconds = call.arguments[0].pop(0)
        self.running[self.num_attempts] = (self.clock[0] + seconds, call)
        self.since[self.num_attempts] = self.clock[0]
        return self.num_attempts

    def running_since(self, attempt_id):
        return self.since[attempt_id]

    def wait(self, timeout):
        self.in_flight.append(len(self.running))
        now = self.clock[0] = max(
            self.clock[0], min([self.clock[0] + max(timeout, 0.01), *(end for end, _ in self.running.values())])
        )
        outcomes = []
        for attempt_id, (end, call) in list(self.running.items()):
            if end <= now:
                self.running.pop(attempt_id, None)  # it may have ended at the same moment as another attempt
                try:
                    outcomes.append(Outcome(attempt_id=attempt_id, value=call.function()))
                except OSError as error:
                    outcomes.append(Outcome(attempt_id=attempt_id, error=error))
        return outcomes

    def abandon(self, attempt_id):
        self.running.pop(attempt_id, None)  # it may have ended at the same moment as another attempt


@pytest.fixture
def clock(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("dsindex.execution.dispatch.time.monotonic", lambda: clock[0])
    return clock


def scripted(durations, function=lambda: None):
    for number, seconds in enumerate(durations):
        yield number, Call(name=str(number), place="", function=function, arguments=(list(seconds),))


@pytest.mark.parametrize(
    ("kind", "seconds", "stragglers"),
    [("processes", 100.0, 1), ("ray", 100.0, 1), ("local", 100.0, 0), ("processes", 50.0, 0)],
    ids=["processes", "Ray", "a second thread would be of no use", "short of a minute"],
)
def test_call_of_many_medians_is_dispatched_again(kind, seconds, stragglers, clock):
    """Medians of 1 s, so the least deadline of 60 s counts; the second attempt takes 1 s."""
    executor = Scripted(4, clock)
    executor.kind = kind
    statistics = DispatchStatistics()
    durations = [[1.0, 1.0] for _ in range(40)]
    durations[30] = [seconds, 1.0]
    run_calls(executor, scripted(durations), on_result=lambda _n, _v: None, statistics=statistics)
    assert statistics.stragglers == stragglers
    assert clock[0] == pytest.approx(71 - 2 if stragglers else seconds + 7, abs=5)


def test_deadline_grows_with_the_calls_themselves(clock):
    """Medians of 100 s: 500 s are no straggler, 900 s are."""
    for slow, expected in ((500.0, 0), (900.0, 1)):
        executor, statistics = Scripted(4, clock), DispatchStatistics()
        durations = [[100.0] for _ in range(20)] + [[slow, 100.0]]
        run_calls(executor, scripted(durations), on_result=lambda _n, _v: None, statistics=statistics)
        assert statistics.stragglers == expected


def test_short_calls_say_nothing_of_how_long_others_take(clock):
    """Merging a range takes a second, tokenizing a large shard 100."""

    def merge():
        pass

    def tokenize():
        pass

    statistics = DispatchStatistics()
    calls = [*scripted([[1.0]] * 30, merge), *scripted([[100.0, 100.0]] * 30, tokenize)]
    numbered = enumerate(call for _, call in calls)
    run_calls(Scripted(4, clock), numbered, on_result=lambda _n, _v: None, statistics=statistics)
    assert statistics.stragglers == 0


def test_slow_storage_does_not_get_everything_twice(clock):
    """From one moment on all calls are slow: only a few of them are tried a second time at once."""
    executor, statistics = Scripted(16, clock), DispatchStatistics()
    durations = [[1.0] for _ in range(64)] + [[70.0, 70.0, 70.0] for _ in range(16)]
    run_calls(executor, scripted(durations), on_result=lambda _n, _v: None, statistics=statistics)
    assert 1 <= statistics.stragglers <= 4


def test_failing_storage_gets_fewer_calls_at_once_until_it_is_well(clock):
    executor, statistics = Scripted(16, clock), DispatchStatistics()
    failures = [OSError(5, "Input/output error") for _ in range(4)]

    def function():
        if clock[0] >= 3 and failures:
            raise failures.pop()

    run_calls(
        executor,
        scripted([[1.0] * 5 for _ in range(400)], function),
        on_result=lambda _n, _v: None,
        policy=RetryPolicy(first_pause_seconds=0.5),
        statistics=statistics,
    )
    assert statistics.retries == 4
    first = executor.in_flight.index(16)
    lowest = min(executor.in_flight[first : len(executor.in_flight) // 2])
    assert lowest <= 2
    assert max(executor.in_flight[len(executor.in_flight) // 2 :]) == 16
