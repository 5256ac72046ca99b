"""The driver under many shards: memory per shard from plan to publishing; slow calls and failing storage.

DSINDEX_SCALE_SHARDS=1000000 runs the large form, which takes some minutes and prints what it measured.
"""

import json
import os
import subprocess
import sys

import pytest

from dsindex.execution.calls import Call, Outcome
from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy, run_calls
from tests.support.golden import OWN, ROOT

NUM_SHARDS = int(os.environ.get("DSINDEX_SCALE_SHARDS", "20000"))


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_inputs", [100, NUM_SHARDS], ids=["few inputs", "one shard each"])
def test_driver_takes_a_few_kilobytes_per_shard(num_inputs, tmp_path):
    """A whole build whose tasks are played, each time in a process of its own."""
    peaks = []
    for count, shards in ((1, 1), (num_inputs, NUM_SHARDS)):
        folder = tmp_path / str(shards)
        folder.mkdir()
        for number in range(count):
            (folder / f"{number:07}.jsonl").write_bytes(b'{"text": "one of many"}\n' * (shards // count))
        command = [sys.executable, "-m", "tests.benchmarks.driver", "build", f"{folder}/*.jsonl", "--slots", "256"]
        command += ["--shards", str(shards), "--tokenizer", str(OWN.plain_tokenizer)]
        ended = subprocess.check_output([*command, "--output-prefix", f"{folder}-out/x"], cwd=ROOT)
        measured = json.loads(ended.splitlines()[-1])
        print(measured)  # noqa: T201 - shown with -s
        peaks.append(measured["peak_bytes"])
    assert measured["shards"] == NUM_SHARDS
    assert (peaks[1] - peaks[0]) / NUM_SHARDS < 6144


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
