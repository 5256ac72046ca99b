import contextlib
import errno
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dsindex.errors import BadRecordError, TaskError
from dsindex.runtime.dispatch import Dispatch
from dsindex.runtime.executors import Call, ProcessExecutor, ThreadExecutor
from dsindex.runtime.merge import make_index
from dsindex.store.machine import available_cpus, available_memory
from dsindex.store.protocol import open_output
from tests.support.jobs import run_config
from tests.support.processes import is_running, wait_until


def square(number):
    return number * number


def process_id(_number):
    return os.getpid()


def prepare(path):
    with open(path, "a") as file:
        file.write("x")


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

    def __init__(self, first, second):
        super().__init__(first + second)


def panic(_number):
    raise Panic("over")


def leave(_number):
    sys.exit(3)


def fail_twice(_number):
    raise Unpicklable("an", "error")


def die(_number):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(number, folder):
    if not os.path.exists(path := f"{folder}/{number}"):
        prepare(path)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def call(function, *arguments):
    return Call(name=f"{function.__name__}[{arguments[0]}]", place="f.jsonl", function=function, arguments=arguments)


def run(executor, *calls):
    return dict(Dispatch(executor, enumerate(calls)).run())


@pytest.fixture
def processes():
    executor = ProcessExecutor(2)
    yield executor
    executor.close()


KINDS = {"threads": ThreadExecutor, "processes": ProcessExecutor}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_executor_runs_calls_and_reports_errors(make):
    with contextlib.closing(make(3)) as executor:
        results = run(executor, *[call(square, number) for number in range(20)])
        assert results == {number: number * number for number in range(20)}
        with pytest.raises(BadRecordError, match=r"f\.jsonl, line at byte 7: broken"):
            run(executor, call(square, 1), call(fail, 2))
        assert run(executor, call(square, 3)) == {0: 9}


@pytest.mark.quick(2)
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("function", "message"), [
    (panic, "Panic: over"), (leave, "SystemExit: 3"), (fail_twice, "anerror"),
])  # fmt: skip
def test_whatever_a_call_raises_reaches_the_driver(make, function, message):
    """A thread was lost by it, and a process could not send it, so the driver waited or blamed the worker."""
    with contextlib.closing(make(2)) as executor, pytest.raises(Exception, match=message):
        run(executor, call(square, 1), call(function, 2))


class Large:
    """Counts how often it is pickled."""

    pickled = 0

    def __getstate__(self):
        Large.pickled += 1
        return {"content": "as sent"}


def place_of(_number, large):
    return os.getpid(), id(large), large.content


def test_shared_value_travels_once_per_process(processes, monkeypatch):
    monkeypatch.setattr(Large, "pickled", 0)
    shared = processes.share(Large())
    places = set(run(processes, *[call(place_of, number, shared) for number in range(12)]).values())
    assert {content for *_, content in places} == {"as sent"}
    assert len(places) == len({pid for pid, *_ in places}) == Large.pickled


def test_killed_worker_is_replaced_and_its_call_tried_again(processes, tmp_path):
    results = run(processes, *[call(die_once, number, str(tmp_path)) for number in range(3)])
    assert results == {0: 0, 1: 1, 2: 2}
    assert (processes.lost_workers, processes.retries) == (3, 3)


def test_worker_that_died_idle_is_replaced(processes):
    pids = set(run(processes, call(process_id, 0), call(process_id, 1)).values())
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert run(processes, call(square, 2), call(square, 3)) == {0: 4, 1: 9}


def test_call_beside_one_that_hangs_is_left_alone(processes, tmp_path):
    run(processes, call(time.sleep, 1), call(time.sleep, 1))  # both have begun
    calls = [call(hang_once, str(tmp_path / "hung")), *[call(process_id, number) for number in range(20)]]
    processes.deadline_seconds = 3.0
    results = run(processes, *calls)
    assert results[0] == "ended"
    # Of the one that hung, or is slow: none beside it is charged.
    assert processes.lost_workers == processes.retries >= 1


def test_abandoned_call_that_waits_for_a_thread_never_runs(tmp_path):
    with contextlib.closing(ThreadExecutor(1)) as executor:
        attempts = [executor.start(call(time.sleep, 0.2)), executor.start(call(prepare, str(tmp_path / "ran")))]
        executor.abandon({attempts[1]})
        while not (outcomes := executor.wait(1.0)):
            pass
    assert [outcome.attempt_id for outcome in outcomes] == attempts[:1]
    assert not (tmp_path / "ran").exists()


def test_closing_kills_what_runs():
    executor = ProcessExecutor(2)
    for _ in range(3):
        executor.start(call(time.sleep, 3600))
    assert executor.wait(0.01) == []
    children = [process.pid for process in multiprocessing.active_children()]
    assert len(children) >= 2
    executor.close()
    wait_until(lambda: not any(map(is_running, children)))
    assert executor.wait(0.01) == []


@pytest.mark.parametrize(("line", "folder", "limit", "usage"), [
    ("0::/pod/box", "pod/box", "memory.max", "memory.current"),
    ("0::/pod/box", "pod", "memory.max", "memory.current"),
    ("4:cpu,cpuacct:/x\n3:memory:/pod/box", "memory/pod", "memory.limit_in_bytes", "memory.usage_in_bytes"),
], ids=["own group", "group above", "version 1"])  # fmt: skip
def test_memory_is_that_of_the_control_groups(line, folder, limit, usage, tmp_path, monkeypatch):
    group = tmp_path / folder
    group.mkdir(parents=True)
    (group / limit).write_text("1000\n")
    (group / usage).write_text("700\n")
    (group / "memory.stat").write_text("inactive_file 50\ntotal_inactive_file 50\n")
    machine = sys.modules["dsindex.store.machine"]
    read = machine._read
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.setattr(machine, "_read", lambda path: line if str(path) == "/proc/self/cgroup" else read(path))
    assert available_memory() == 350
    (group / ("cpu.max" if "memory.max" in limit else "x")).write_text("150000 100000")
    assert available_cpus() == (1 if "memory.max" in limit else len(os.sched_getaffinity(0)))


def make_index_in_a_worker_that_dies_once(parts, path):
    """Stands in for `make_index`, in a process of its own."""
    died = Path(path).parents[1] / "died"
    if not died.exists():
        died.touch()
        with open_output(path) as file:
            file.write(b"x")
            os.kill(os.getpid(), signal.SIGKILL)
    return make_index(parts, path)


def test_worker_that_dies_while_it_writes_leaves_nothing(tmp_path, make_config, monkeypatch):
    monkeypatch.setattr("dsindex.runtime.assembly.make_index", make_index_in_a_worker_that_dies_once)
    run_config(make_config(executor="processes"))
    assert (tmp_path / "died").exists()
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".bin", ".idx", ".json", ".parquet"}


def test_limits_of_the_system_leave_fewer_workers_or_say_so(processes, monkeypatch):
    hire, room = processes.hire, [0]

    def refuse():
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return hire()

    monkeypatch.setattr(processes, "hire", refuse)
    with pytest.raises(TaskError, match=r"no worker can start \(Too many open files\)\nhint: raise the limits"):
        run(processes, call(square, 3))
    room[0] = 1
    assert run(processes, *[call(square, number) for number in range(4)]) == {0: 0, 1: 1, 2: 4, 3: 9}
