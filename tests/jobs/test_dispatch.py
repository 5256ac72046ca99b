from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from dsindex.errors import BadRecordError, InputError, OutputError, TaskError
from dsindex.execution.calls import Call, Outcome, Shortage
from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy, is_machine_fault, run_calls

FAST = RetryPolicy(first_pause_seconds=0.0)


@dataclass
class FakeExecutor:
    """Runs calls when asked for outcomes, in a chosen order; knows how many were in flight at once."""

    slots: int = 3
    backlog: int = 2
    kind: str = "fake"
    last_first: bool = False
    hang: set[str] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    most_in_flight: int = 0
    running: dict[int, Call] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    closed: bool = False
    shortage: Shortage | None = None
    note: str | None = None
    waiting: str | None = None

    def share(self, value):
        return value

    def start(self, call, *, beyond_slots=False):  # noqa: ARG002
        self.started.append(call.name)
        self.running[len(self.started)] = call
        self.since[len(self.started)] = time.monotonic()
        self.most_in_flight = max(self.most_in_flight, len(self.running))
        return len(self.started)

    def running_since(self, attempt_id):
        return self.since[attempt_id]

    def wait(self, timeout):  # noqa: ARG002
        for attempt_id in sorted(self.running, reverse=self.last_first):
            call = self.running[attempt_id]
            if call.name in self.hang:
                self.hang.discard(call.name)  # the next attempt is well
                self.running[attempt_id] = Call(name="stuck", place="", function=_stuck, arguments=())
                continue
            if call.name == "stuck":
                continue
            del self.running[attempt_id]
            try:
                return [Outcome(attempt_id=attempt_id, value=call.function(*call.arguments))]
            except ConnectionError as error:
                return [Outcome(attempt_id=attempt_id, error=TaskError(str(error)), worker_lost=True)]
            except Exception as error:  # noqa: BLE001
                return [Outcome(attempt_id=attempt_id, error=error)]
        return []

    def abandon(self, attempt_id):
        self.abandoned.append(attempt_id)
        self.running.pop(attempt_id, None)

    def close(self):
        self.closed = True


def _stuck():
    raise AssertionError("never runs")


class Flaky:
    """Fails a few times, then succeeds."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self, value):
        if self.errors:
            raise self.errors.pop(0)
        return value


def calls_of(*functions):
    return [
        (n, Call(name=f"call[{n}]", place=f"file {n}", function=function, arguments=(n,)))
        for n, function in enumerate(functions)
    ]


def run(executor, calls, **options):
    results = {}

    def take(number, value):
        assert number not in results
        results[number] = value

    run_calls(executor, iter(calls), on_result=take, **{"policy": FAST, **options})
    return results


@pytest.mark.parametrize("last_first", [False, True])
def test_every_call_gives_one_result_with_few_in_flight(last_first):
    executor = FakeExecutor(last_first=last_first)
    results = run(executor, calls_of(*[lambda n: n * n] * 100))
    assert results == {n: n * n for n in range(100)}
    assert executor.most_in_flight == 5


def test_calls_are_taken_only_when_slots_are_free():
    executor = FakeExecutor()
    taken = []

    def numbered():
        for number in range(50):
            taken.append(number)
            yield number, Call(name=str(number), place="", function=lambda: None, arguments=())

    most_ahead = 0
    done = 0

    def on_result(_number, _value):
        nonlocal most_ahead, done
        done += 1
        most_ahead = max(most_ahead, len(taken) - done)

    run_calls(executor, numbered(), on_result=on_result)
    assert most_ahead <= executor.slots + executor.backlog


def test_calls_that_follow_a_result_are_begun_before_the_rest():
    """The sum is made of the results of 0 and 1; it is begun as soon as both are there."""
    executor = FakeExecutor(slots=1, backlog=0)
    results = {}

    def on_result(key, value):
        results[key] = value
        return [("sum", Call(name="sum", place="", function=lambda: 0 + 1, arguments=()))] if key == 1 else []

    run_calls(executor, calls_of(*[lambda n: n] * 4), on_result=on_result)
    assert results == {0: 0, 1: 1, "sum": 1, 2: 2, 3: 3}
    assert executor.started == ["call[0]", "call[1]", "sum", "call[2]", "call[3]"]


def test_calls_that_follow_the_last_result_are_run():
    results = {}

    def on_result(number, value):
        results[number] = value
        return (
            [(number + 1, Call(name="next", place="", function=lambda: number, arguments=()))] if number < 3 else None
        )

    run_calls(FakeExecutor(), calls_of(lambda n: n), on_result=on_result)
    assert results == {0: 0, 1: 0, 2: 1, 3: 2}


def test_fault_of_a_call_that_follows_comes_after_all_others():
    """Call 0's successor fails at once, call 1 fails later: the fault of call 1 is the one that is told."""

    def fail(message):
        raise InputError(message)

    def on_result(_, __):
        return [(7, Call(name="next", place="", function=fail, arguments=("of the next",)))]

    calls = calls_of(lambda n: n, lambda _: fail("of call 1"))
    with pytest.raises(InputError, match="of call 1"):
        run_calls(FakeExecutor(slots=2, backlog=0), calls, on_result=on_result)


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), ConnectionError("worker died")], ids=["I/O error", "lost worker"]
)
def test_machine_faults_are_retried(error):
    statistics = DispatchStatistics()
    flaky = Flaky(error, error)
    results = run(FakeExecutor(), calls_of(lambda n: n, flaky), statistics=statistics)
    assert results == {0: 0, 1: 1}
    assert statistics.retries == 2


def test_call_that_kills_its_worker_three_times_is_named():
    with pytest.raises(TaskError, match=r"call\[1\] \(file 1\): given up after 3 attempts.*worker died"):
        run(FakeExecutor(), calls_of(lambda n: n, Flaky(*[ConnectionError("worker died")] * 3)))


def test_data_fault_is_final_at_once():
    executor = FakeExecutor()
    with pytest.raises(BadRecordError, match="broken"):
        run(executor, calls_of(Flaky(BadRecordError("f", 1, "broken"))))
    assert executor.started == ["call[0]"]


@pytest.mark.parametrize("last_first", [False, True])
def test_data_fault_of_the_smallest_call_is_raised_whatever_came_first(last_first):
    functions = [lambda n: n] * 20
    for number in (7, 8, 9, 15):
        functions[number] = Flaky(BadRecordError(f"input {number}", number, "broken"))
    executor = FakeExecutor(slots=8, last_first=last_first)
    with pytest.raises(BadRecordError, match="input 7"):
        run(executor, calls_of(*functions))
    assert not executor.running


def test_full_disk_is_not_retried():
    executor = FakeExecutor()
    with pytest.raises(OSError, match="No space left"):
        run(executor, calls_of(Flaky(OSError(28, "No space left on device"))))
    assert len(executor.started) == 1


def test_overdue_call_is_dispatched_again_and_counted_once():
    executor = FakeExecutor(hang={"call[1]"})
    statistics = DispatchStatistics()
    policy = RetryPolicy(deadline_seconds=0.01)
    results = run(executor, calls_of(*[lambda n: n] * 3), policy=policy, statistics=statistics)
    assert results == {0: 0, 1: 1, 2: 2}
    assert statistics.stragglers == 1
    assert executor.started.count("call[1]") == 2
    assert len(executor.abandoned) == 1


def test_interrupt_abandons_what_runs():
    executor = FakeExecutor()

    def on_result(_number, _value):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_calls(executor, iter(calls_of(*[lambda n: n] * 9)), on_result=on_result)
    assert not executor.running


def test_transient_errors_of_our_own_are_machine_faults():
    refused = OutputError("full")
    assert not is_machine_fault(refused)
    refused.transient = True
    assert is_machine_fault(refused)


def test_no_second_attempt_while_a_cluster_has_no_nodes(monkeypatch):
    monkeypatch.setattr("dsindex.execution.dispatch.POLL_SECONDS", 0.0)
    executor = FakeExecutor(hang={"call[0]"}, shortage=Shortage(num_wanted=1, since=0.0, reason="none"))
    rounds = 0

    def on_idle():
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            assert executor.started == ["call[0]"]
            executor.shortage = None

    call = Call(name="call[0]", place="", function=int, arguments=())
    policy = RetryPolicy(deadline_seconds=0.0)
    run_calls(executor, [(0, call)], on_result=lambda *_: None, policy=policy, on_idle=on_idle)
    assert executor.started == ["call[0]", "call[0]"]
    assert rounds >= 5  # the second attempt, which ended the call, came after that
