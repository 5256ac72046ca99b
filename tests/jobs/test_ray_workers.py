"""Workers on a Ray cluster: they keep their processes, and give up their CPUs when others wait for them."""

import contextlib
import os
import re
import time
from functools import partial
from pathlib import Path

import pytest

from dsindex.errors import BadRecordError, TaskError
from dsindex.execution.calls import Call, EarlyStart
from dsindex.execution.dispatch import DispatchStatistics, RetryPolicy, run_calls
from tests.jobs.test_executors import die, fail, process_id
from tests.support.processes import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_instance")]


def wait_for(path):
    """Return this process's id once the file exists; until then, another one shows that the call runs."""
    Path(f"{path}.{os.getpid()}").touch()
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


def call(function, *arguments, memory_bytes=0):
    name = f"{function.__name__}[{arguments[0]}]"
    return Call(name=name, place="f.jsonl", function=function, arguments=arguments, memory_bytes=memory_bytes)


def run(executor, *calls):
    results = {}
    policy = RetryPolicy(first_pause_seconds=0.01)
    run_calls(executor, enumerate(calls), on_result=results.__setitem__, policy=policy)
    return results


@pytest.fixture
def executor():
    from dsindex.execution.ray_executor import RayExecutor

    made = RayExecutor(address=None, workers=2)
    yield made
    made.close()


def test_workers_keep_their_processes(executor):
    results = run(executor, *[call(process_id, number) for number in range(20)])
    later = run(executor, *[call(process_id, number) for number in range(20)])
    assert sorted(results) == list(range(20))
    assert len({*results.values(), *later.values()}) <= 2


def test_error_is_reported_and_dead_worker_replaced(executor):
    with pytest.raises(BadRecordError, match=r"f\.jsonl, line at byte 7: broken"):
        run(executor, call(process_id, 1), call(fail, 2))
    statistics = DispatchStatistics()
    with pytest.raises(TaskError, match=r"die\[0\] \(f\.jsonl\): given up after 3 attempts.*its Ray worker was lost"):
        run_calls(
            executor,
            [(0, call(die, 0))],
            on_result=lambda *_: None,
            policy=RetryPolicy(first_pause_seconds=0.01),
            statistics=statistics,
        )
    assert statistics.lost_workers == 3
    assert len(run(executor, call(process_id, 3))) == 1


def die_once(path):
    """End the process, but for the second time."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(1)


@pytest.mark.exhaustive
def test_worker_that_is_lost_before_it_begins_costs_no_call_its_budget(monkeypatch, tmp_path):
    """As on a lost node, on which Ray places workers until it has noticed the loss."""
    from dsindex.execution.ray_executor import RayExecutor

    monkeypatch.setattr("dsindex.execution.ray_executor.LOOK_SECONDS", 0.1)
    early = EarlyStart(num_calls=1, memory_bytes=0, prepare=partial(die_once, str(tmp_path / "died")))
    results = {}
    with contextlib.closing(RayExecutor(address=None, workers=1, early=early)) as executor:
        calls = [(0, call(process_id, 0))]
        run_calls(executor, calls, on_result=results.__setitem__, policy=RetryPolicy(lost_workers=1))
    assert (tmp_path / "died").exists()
    assert len(results) == 1


def test_call_that_needs_more_memory_gets_a_worker_that_reserves_it(executor):
    first = run(executor, call(process_id, 0))
    more = run(executor, call(process_id, 0, memory_bytes=1 << 20), call(process_id, 1, memory_bytes=1 << 60))
    assert first[0] not in more.values()
    assert len(more) == 2  # what no node has is not asked for


def test_attempt_begins_when_a_worker_has_it(executor, tmp_path):
    gate = str(tmp_path / "gate")
    attempts = [executor.start(call(wait_for, gate)) for _ in range(3)]
    wait_until(lambda: executor.wait(0.1) or len(list(tmp_path.iterdir())) == 2)
    begun = [attempt for attempt in attempts if executor.running_since(attempt) is not None]
    assert begun == attempts[:2]
    Path(gate).touch()
    ended = {outcome.attempt_id for _ in wait_for_all(executor, 3) for outcome in _}
    assert ended == set(attempts)


def wait_for_all(executor, number):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while number > 0:
        assert time.monotonic() < deadline
        outcomes = executor.wait(0.1)
        number -= len(outcomes)
        yield outcomes


@pytest.mark.parametrize("is_busy", [True, False], ids=["held for long", "idle"])
def test_worker_gives_up_its_cpu_if_another_job_waits(executor, monkeypatch, is_busy):
    import ray

    monkeypatch.setattr("dsindex.execution.ray_executor.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("dsindex.execution.ray_executor.HOLD_SECONDS", 0.2)
    own = set(run(executor, *[call(process_id, number) for number in range(8)]).values())
    others = [ray.remote(num_cpus=1)(process_id).remote(number) for number in range(2)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    in_flight = 0
    while len(ray.wait(others, num_returns=2, timeout=0)[0]) < 2:
        assert time.monotonic() < deadline
        while is_busy and in_flight < 4:
            executor.start(call(process_id, in_flight))
            in_flight += 1
        in_flight -= len(executor.wait(0.1))
    assert not own & set(ray.get(others))


def test_build_without_a_cpu_says_that_others_have_them(executor, monkeypatch, tmp_path):
    import ray

    monkeypatch.setattr("dsindex.execution.ray_executor.BUSY_SECONDS", 0.0)
    gate = str(tmp_path / "gate")
    others = [ray.remote(num_cpus=1)(wait_for).remote(gate) for _ in range(2)]
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    assert executor.waiting is None
    executor.start(call(process_id, 0))
    assert executor.wait(0.1) == []
    assert re.match(r"waiting for CPUs: other jobs use all 2, for \d s; builds take turns", executor.waiting or "")
    Path(gate).touch()
    assert len([outcome for outcomes in wait_for_all(executor, 1) for outcome in outcomes]) == 1
    assert executor.waiting is None
    ray.get(others)
