import contextlib
import multiprocessing
import os
import signal
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest

from dsindex.errors import BadRecordError, TaskError
from dsindex.execution.calls import Call
from dsindex.execution.choice import make_executor
from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy, run_calls
from dsindex.execution.local import ProcessExecutor, ThreadExecutor, available_cpus
from dsindex.options.config import ExecutorConfig
from dsindex.store.requests import release_slot
from tests.support.processes import is_running, wait_until

FAST = RetryPolicy(first_pause_seconds=0.01)


def square(number):
    return number * number


def process_id(_number):
    return os.getpid()


class Large:
    """A value that says how often a process has unpickled it."""

    times = 0

    def __init__(self):
        self.content = b"x" * (1 << 20)

    def __setstate__(self, state):
        Large.times += 1
        self.__dict__.update(state)


def times_unpickled(_number, first, second):
    return first is second, len(first.content), Large.times


def prepare(path):
    with open(path, "a") as file:
        file.write("x")


def wait_for(path):
    with release_slot():
        wait_until(lambda: os.path.exists(path))
    return "there"


def hang_once(path):
    if not os.path.exists(path):
        prepare(path)
        time.sleep(3600)
    return "ended"


def fail(_number):
    raise BadRecordError("f.jsonl", 7, "broken")


class Panic(BaseException):
    """As a library in Rust raises it."""


class Unpicklable(Exception):
    """Takes more than what it is raised with again."""

    def __init__(self, one, two):
        super().__init__(one + two)


def panic(_number):
    raise Panic("over")


def leave(_number):
    sys.exit(3)


def fail_twice(_number):
    raise Unpicklable("an", "error")


def die(_number):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(number, folder):
    if first_time(number, folder):
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def hang(_number):
    time.sleep(3600)


def first_time(number, folder):
    try:
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def call(function, *arguments):
    return Call(name=f"{function.__name__}[{arguments[0]}]", place="f.jsonl", function=function, arguments=arguments)


def run(executor, *calls, policy=FAST):
    results = {}
    statistics = DispatchStatistics()
    run_calls(executor, enumerate(calls), on_result=results.__setitem__, policy=policy, statistics=statistics)
    return results, statistics


@pytest.fixture
def processes():
    executor = ProcessExecutor(2)
    yield executor
    executor.close()


SHARED_BY_TWO = partial(ProcessExecutor, threads=2)
KINDS = {"threads": ThreadExecutor, "processes": ProcessExecutor, "two threads each": SHARED_BY_TWO}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_executor_runs_calls_and_reports_errors(make):
    with contextlib.closing(make(3)) as executor:
        results, _ = run(executor, *[call(square, number) for number in range(20)])
        assert results == {number: number * number for number in range(20)}
        with pytest.raises(BadRecordError, match=r"f\.jsonl, line at byte 7: broken"):
            run(executor, call(square, 1), call(fail, 2))
        assert run(executor, call(square, 3))[0] == {0: 9}


@pytest.mark.quick(2)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("function", "message"), [(panic, "Panic: over"), (leave, "SystemExit: 3"), (fail_twice, "anerror")]
)
def test_whatever_a_call_raises_reaches_the_driver(make, function, message):
    """A thread was lost by it, and a process could not send it, so the driver waited or blamed the worker."""
    with contextlib.closing(make(2)) as executor, pytest.raises(Exception, match=message):
        run(executor, call(square, 1), call(function, 2))


def test_threads_share_processes():
    with contextlib.closing(ProcessExecutor(5, threads=4)) as executor:
        pids = run(executor, *[call(process_id, number) for number in range(40)])[0].values()
        assert len(set(pids)) == 2
        assert executor.most_waiting == 2


@pytest.mark.parametrize("make", [ThreadExecutor, SHARED_BY_TWO])
def test_call_that_waits_for_another_one_lets_it_begin(make, tmp_path):
    path = str(tmp_path / "there")
    with contextlib.closing(make(2)) as executor:
        assert run(executor, *[call(wait_for, path)] * 2, call(prepare, path))[0] == {0: "there", 1: "there", 2: None}


def test_calls_beside_one_that_hangs_are_tried_again(tmp_path):
    policy = RetryPolicy(deadline_seconds=2.0, first_pause_seconds=0.01)
    with contextlib.closing(ProcessExecutor(2, threads=2)) as executor:
        calls = [call(hang_once, str(tmp_path / "hung")), call(hang_once, str(tmp_path / "also hung"))]
        results, statistics = run(executor, *calls, policy=policy)
    assert results == {0: "ended", 1: "ended"}
    assert statistics.lost_workers <= 1  # the second one either was lost with the first, or hung as long


def test_shared_value_reaches_each_process_once(processes):
    shared = processes.share(Large())
    calls = [call(times_unpickled, number, shared, shared) for number in range(20)]
    assert set(run(processes, *calls)[0].values()) == {(True, 1 << 20, 1)}


def test_process_is_prepared_before_its_first_call(tmp_path):
    with contextlib.closing(ProcessExecutor(1, prepare=partial(prepare, tmp_path / "prepared"))) as executor:
        assert run(executor, *[call(os.path.getsize, str(tmp_path / "prepared"))] * 3)[0] == {0: 1, 1: 1, 2: 1}


def test_large_call_does_not_wait_for_a_process_that_starts():
    with contextlib.closing(ProcessExecutor(2, prepare=partial(time.sleep, 3600))) as executor:
        for _ in range(2):
            executor.start(call(square, b"x" * (4 << 20)))  # more than a pipe holds
        assert executor.wait(0.01) == []


def test_killed_worker_is_replaced_and_its_call_tried_again(processes, tmp_path):
    results, statistics = run(processes, *[call(die_once, number, str(tmp_path)) for number in range(3)])
    assert results == {0: 0, 1: 1, 2: 2}
    assert statistics.lost_workers == 3
    assert statistics.retries == 3


def test_calls_of_a_killed_worker_are_all_tried_again(tmp_path):
    with contextlib.closing(ProcessExecutor(2, threads=2)) as executor:
        results, _ = run(executor, *[call(die_once, number, str(tmp_path)) for number in range(2)])
    assert results == {0: 0, 1: 1}


def test_call_that_kills_its_worker_three_times_is_named(processes):
    with pytest.raises(TaskError, match=r"die\[1\] \(f\.jsonl\): given up after 3 attempts.*signal 9"):
        run(processes, call(square, 0), call(die, 1))


def test_worker_that_died_idle_is_nobodys_fault(processes):
    pids = set(run(processes, call(process_id, 0), call(process_id, 1))[0].values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    # Not before all of their threads have ended are their pipes closed, and are they reaped.
    wait_until(lambda: not pids & {process.pid for process in multiprocessing.active_children()})
    results, statistics = run(processes, call(square, 2), call(square, 3))
    assert results == {0: 4, 1: 9}
    assert statistics.lost_workers == 0


def test_call_that_always_hangs_is_named():
    named = r"hang\[0\] \(f\.jsonl\): did not end in 3 attempts of at least 0\.2 s"
    with contextlib.closing(ProcessExecutor(1)) as executor, pytest.raises(TaskError, match=named):
        run(executor, call(hang, 0), policy=RetryPolicy(deadline_seconds=0.2))


def test_closing_kills_what_runs():
    executor = ProcessExecutor(2)
    for number in range(3):
        executor.start(call(hang, number))
    children = [process.pid for process in multiprocessing.active_children()]
    assert len(children) >= 2
    executor.close()
    wait_until(lambda: not any(map(is_running, children)))
    assert executor.wait(0.01) == []


@pytest.mark.parametrize(("options", "kind", "slots"), [
    ({"executor": "auto", "workers": 3}, "local", 3),
    ({"executor": "local"}, "local", available_cpus()),
    ({"executor": "processes", "workers": 1}, "processes", 1),
], ids=["auto", "local", "processes"])  # fmt: skip
def test_executor_is_chosen_by_options(options, kind, slots, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    executor = make_executor(ExecutorConfig(**options))
    executor.close()
    assert (executor.kind, executor.slots) == (kind, slots)


@pytest.mark.parametrize(("executor", "kind"), [("auto", "local"), ("processes", "processes")])
def test_worker_of_a_pool_starts_no_processes_unasked(executor, kind, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = ExecutorConfig(executor=executor, workers=1)
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    executor = make_executor(config, holds_gil=True)
    executor.close()
    assert executor.kind == kind
