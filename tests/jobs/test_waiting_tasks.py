"""Tasks in threads that wait for a store, and give their place to others until the answer is there."""

import threading
from concurrent.futures import Future

from dsindex.execution.calls import Call
from dsindex.execution.local import ThreadExecutor
from dsindex.store.requests import leave_slot, release_slot, result_of

PATIENCE_SECONDS = 60


def call(function, *arguments):
    return Call(name="task", place="here", function=function, arguments=arguments)  # type: ignore[arg-type]


def outcomes_of(executor, number):
    """Wait until so many tasks have ended."""
    ended = []
    while len(ended) < number:
        ended += executor.wait(PATIENCE_SECONDS)
    executor.close()
    return ended


def test_other_task_computes_while_one_waits():
    """The one place is free as long as the first waits; what it waits for is made by the second."""
    executor, answer = ThreadExecutor(1), Future[int]()
    executor.start(call(result_of, answer))
    executor.start(call(answer.set_result, 7))
    outcomes = outcomes_of(executor, 2)
    assert sorted(outcome.value for outcome in outcomes if outcome.value is not None) == [7]
    assert [outcome.error for outcome in outcomes] == [None, None]


def test_tasks_begin_in_their_order_and_those_that_come_back_go_first():
    """One place: the first gives it up, and stands in line for it while the second is at work."""
    executor, answer, order = ThreadExecutor(1), Future[None](), list[str]()
    waits_again = threading.Event()

    def first():
        order.append("first")
        with release_slot():
            waits_again.set()
            answer.result()
        order.append("first again")

    def second():
        assert waits_again.wait(PATIENCE_SECONDS)
        order.append("second")
        answer.set_result(None)
        while not executor._places._returning:  # until the first stands in line
            threading.Event().wait(0.001)

    for function in (first, second, lambda: order.append("third"), lambda: order.append("fourth")):
        executor.start(call(function))
    outcomes_of(executor, 4)
    assert order == ["first", "second", "first again", "third", "fourth"]


def test_a_task_that_leaves_its_place_ends_beside_others():
    """One place, which is free once: the first ends while the second is at work, and the others one by one."""
    executor, begun, ended = ThreadExecutor(1), threading.Event(), threading.Event()
    computing, most = set[int](), [0]

    def first():
        leave_slot()
        assert begun.wait(PATIENCE_SECONDS)
        ended.set()

    def second():
        begun.set()
        assert ended.wait(PATIENCE_SECONDS)

    def other(number):
        computing.add(number)
        most[0] = max(most[0], len(computing))
        threading.Event().wait(0.01)
        computing.discard(number)

    executor.start(call(first))
    executor.start(call(second))
    for number in range(4):
        executor.start(call(other, number))
    assert [outcome.error for outcome in outcomes_of(executor, 6)] == [None] * 6
    assert most == [1]


def test_no_more_tasks_compute_than_there_are_places():
    """Each notes how many compute beside it, before it waits and after."""
    executor, lock = ThreadExecutor(2), threading.Lock()
    computing, most = set[int](), [0]

    def note(number):
        with lock:
            computing.add(number)
            most[0] = max(most[0], len(computing))

    def work(number):
        for _ in range(20):
            note(number)
            threading.Event().wait(0.001)
            computing.discard(number)
            with release_slot():
                threading.Event().wait(0.001)
        return number

    for number in range(6):
        executor.start(call(work, number))
    assert sorted(outcome.value for outcome in outcomes_of(executor, 6)) == list(range(6))
    assert most == [2]
