"""Calls on any executor: order, retries, deadline, bounded memory, and many shards."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dsindex.errors import BadRecordError, FormatError, InputError, OutputError
from dsindex.runtime.dispatch import Dispatch, is_machine_fault, run_in_order
from dsindex.runtime.executors import Call, Outcome


@dataclass
class FakeExecutor:
    """Runs calls when asked for outcomes, in a chosen order; knows how many were in flight at once."""

    slots: int = 3
    backlog: int = 2
    deadline_seconds = 3600.0
    on_idle = staticmethod(lambda: None)
    last_first: bool = False
    started: list[str] = field(default_factory=list)
    most_in_flight: int = 0
    running_calls: dict[int, Call] = field(default_factory=dict)

    def start(self, call, **_):
        self.started.append(call.name)
        self.running_calls[len(self.started)] = call
        self.most_in_flight = max(self.most_in_flight, len(self.running_calls))
        return len(self.started)

    def wait(self, timeout):  # noqa: ARG002
        for attempt_id in sorted(self.running_calls, reverse=self.last_first):
            call = self.running_calls[attempt_id]
            del self.running_calls[attempt_id]
            try:
                return [Outcome(attempt_id=attempt_id, value=call.function(*call.arguments))]
            except Exception as error:  # noqa: BLE001
                return [Outcome(attempt_id=attempt_id, error=error)]
        return []

    def abandon(self, attempt_ids):
        for attempt_id in attempt_ids:
            self.running_calls.pop(attempt_id, None)


def call(number, function=lambda number: number):
    return Call(name=f"call[{number}]", place="test", function=function, arguments=(number,))


def calls_of(*functions):
    return [(number, call(number, function)) for number, function in enumerate(functions)]


def run(executor, calls):
    results = list(Dispatch(executor, iter(calls)).run())
    assert len(dict(results)) == len(results)
    return dict(results)


@pytest.mark.parametrize("last_first", [False, True])
def test_every_call_gives_one_result_with_few_in_flight(last_first):
    executor = FakeExecutor(last_first=last_first)
    results = run(executor, calls_of(*[lambda n: n * n] * 100))
    assert results == {n: n * n for n in range(100)}
    assert executor.most_in_flight == 5


def test_fault_of_a_call_that_follows_comes_after_all_others():
    """Call 0's successor fails at once, call 1 fails later: the fault of call 1 is the one that is told."""

    def fail(message):
        raise InputError(message)

    dispatch = Dispatch(FakeExecutor(slots=2, backlog=0), calls_of(lambda n: n, lambda _: fail("of call 1")))
    results = dispatch.run()
    assert next(results) == (0, 0)
    dispatch.release([(7, Call(name="next", place="", function=fail, arguments=("of the next",)))])
    with pytest.raises(InputError, match="of call 1"):
        next(results)


@pytest.mark.parametrize("last_first", [False, True])
def test_data_fault_of_the_smallest_call_is_raised_whatever_came_first(last_first):
    def fail(number):
        raise BadRecordError(f"input {number}", number, "broken")

    functions = [fail if number in {7, 8, 9, 15} else lambda n: n for number in range(20)]
    executor = FakeExecutor(slots=8, last_first=last_first)
    with pytest.raises(BadRecordError, match="input 7"):
        run(executor, calls_of(*functions))
    assert not executor.running_calls
    assert len(executor.started) < len(functions)  # none is begun after a fault


def test_errors_that_may_pass_are_machine_faults():
    error = OutputError("full")
    assert not is_machine_fault(error)
    assert not is_machine_fault(OSError(28, "No space left on device"))
    error.transient = True
    assert is_machine_fault(error)


@pytest.mark.parametrize("num_calls", [0, 1, 100])
@pytest.mark.parametrize("last_first", [False, True])
def test_results_come_in_the_order_of_the_calls(num_calls, last_first):
    executor = FakeExecutor(slots=2, backlog=40, last_first=last_first)
    assert list(run_in_order(executor, map(call, range(num_calls)))) == list(range(num_calls))


def test_fault_of_the_first_call_that_has_one_follows_the_results_before_it():
    def fail_from_five(number):
        if number >= 5:
            raise FormatError(f"record {number}")
        return number

    values = []
    results = run_in_order(FakeExecutor(last_first=True), (call(number, fail_from_five) for number in range(20)))
    with pytest.raises(FormatError, match="record 5"):
        values.extend(results)
    assert values == [0, 1, 2, 3, 4]
