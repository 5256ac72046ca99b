"""The ordered map: order, bounded memory, lazily consumed calls, and what a fault leaves."""

import pytest

from dsindex.errors import FormatError
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import WINDOW, DispatchStatistics, run_in_order
from tests.jobs.test_dispatch import FAST, FakeExecutor


def call(number, function=lambda number: number):
    return Call(name=f"call[{number}]", place="test", function=function, arguments=(number,))


@pytest.mark.parametrize("num_calls", [0, 1, 100])
@pytest.mark.parametrize("last_first", [False, True])
def test_results_come_in_the_order_of_the_calls(num_calls, last_first):
    executor = FakeExecutor(slots=2, backlog=40, last_first=last_first)
    assert list(run_in_order(executor, map(call, range(num_calls)))) == list(range(num_calls))


def test_a_slow_first_call_holds_up_a_bounded_number_of_others():
    executor = FakeExecutor(slots=2, backlog=1, last_first=True, hang={"call[0]"})
    begun = []

    def calls():
        for number in range(10**6):
            begun.append(number)
            yield call(number)

    idle = []

    def give_up():
        idle.append(len(begun))
        if len(idle) > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_in_order(executor, calls(), on_idle=give_up))
    assert len(begun) == WINDOW * executor.slots
    assert executor.running == {}


def test_calls_are_made_as_results_are_taken():
    begun = []

    def calls():
        for number in range(1000):
            begun.append(number)
            yield call(number)

    executor = FakeExecutor(slots=2, backlog=1)
    results = run_in_order(executor, calls())
    assert begun == []
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(begun) < 5 + WINDOW * executor.slots
    results.close()
    assert executor.running == {}


def test_fault_of_the_first_call_that_has_one_follows_the_results_before_it():
    def fail_from_five(number):
        if number >= 5:
            raise FormatError(f"record {number}")
        return number

    taken = []
    results = run_in_order(FakeExecutor(last_first=True), (call(number, fail_from_five) for number in range(20)))
    with pytest.raises(FormatError, match="record 5"):
        taken.extend(results)
    assert taken == [0, 1, 2, 3, 4]


def test_machine_faults_are_tried_again_in_their_place():
    failed = set()

    def fail_once(number):
        if number % 3 == 0 and number not in failed:
            failed.add(number)
            raise OSError(5, "Input/output error")
        return number

    statistics = DispatchStatistics()
    results = run_in_order(
        FakeExecutor(), (call(number, fail_once) for number in range(10)), policy=FAST, statistics=statistics
    )
    assert list(results) == list(range(10))
    assert statistics.retries == 4
