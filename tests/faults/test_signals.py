"""Ctrl-C and SIGTERM: a clean stop that says what is kept, no process left over, and the same command continues."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.corpus import command, committed_shards
from tests.support.processes import PATIENCE_SECONDS, is_running, wait_until
from tests.support.published import published

ROOT = Path(__file__).parents[2]


SLOW_CALLS = """\
import os, time
from dataclasses import replace

def run(function, task, *rest):
    if task.shard > 2:
        open(os.environ["SLOW_PIDS"], "a").write(f"{os.getpid()}\\n")
        time.sleep(3600)
    return function(task, *rest)

def slowed(start):
    def started(executor, call, **options):
        if call.name.startswith("tokenize["):
            call = replace(call, function=run, arguments=(call.function, *call.arguments))
        return start(executor, call, **options)
    return started
"""
SLOW = """\
import sys
from slow_calls import slowed
from dsindex.cli.main import main
from dsindex.runtime.executors import ProcessExecutor, ThreadExecutor

if __name__ == "__main__":
    for kind in (ProcessExecutor, ThreadExecutor):
        kind.start = slowed(kind.start)
    sys.exit(main(sys.argv[1:]))
"""
"""Shards after the third hang, so that a signal surely meets work that runs."""


def start_slow(folder, arguments):
    (folder / "slow_calls.py").write_text(SLOW_CALLS)
    (folder / "slow.py").write_text(SLOW)
    return subprocess.Popen(
        [sys.executable, str(folder / "slow.py"), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "SLOW_PIDS": str(folder / "pids")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def hanging(folder):
    path = folder / "pids"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", ["Ctrl-C", "SIGKILL"])
def test_no_worker_outlives_its_driver(how, corpus, expected, zygote, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    driver = start_slow(tmp_path, command(corpus, out, "--executor", "processes", "--workers", "2"))
    wait_until(lambda: len(hanging(tmp_path)) >= 2)
    workers = hanging(tmp_path)
    assert all(map(is_running, workers))
    assert driver.pid not in workers
    if how == "Ctrl-C":
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the workers too
    else:
        driver.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
    errors = driver.communicate(timeout=PATIENCE_SECONDS)[1]
    assert driver.returncode == {"Ctrl-C": 130, "SIGTERM": 143, "SIGKILL": -9}[how], errors
    wait_until(lambda: not any(map(is_running, workers)))
    assert "Traceback" not in errors
    if how != "SIGKILL":
        assert "3 finished shards are kept" in errors
        assert "finished shards are kept" in errors
    committed = committed_shards(out / "x.build")
    assert len(committed) == 3
    again = zygote.run(tmp_path / "run", command(corpus, out))
    assert again.code == 0, again.errors
    assert not committed & set(again.tokenized)
    assert published(out) == expected


def test_second_interrupt_stops_at_once(corpus, expected, zygote, tmp_path):
    """Threads end the shard they are at; whoever does not want to wait says it again."""
    out = tmp_path / "out"
    out.mkdir()
    driver = start_slow(tmp_path, command(corpus, out, "--workers", "1"))
    wait_until(lambda: hanging(tmp_path) and len(committed_shards(out / "x.build")) == 3)
    driver.send_signal(signal.SIGINT)
    assert driver.stderr is not None
    assert any("stopping; a second signal stops it at once" in line for line in driver.stderr)  # the first was taken
    assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    errors = driver.communicate(timeout=PATIENCE_SECONDS)[1]
    assert driver.returncode == 130
    assert "stopped; rerun the command to continue" in errors
    committed = committed_shards(out / "x.build")
    assert len(committed) == 3
    again = zygote.run(tmp_path / "run", command(corpus, out))
    assert again.code == 0, again.errors
    assert not committed & set(again.tokenized)
    assert published(out) == expected
