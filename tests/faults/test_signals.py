"""Ctrl-C and SIGTERM: a clean stop that says what is kept, no process left over, and the same command continues."""

import os
import signal
import subprocess
import sys

import pytest

from tests.faults.corpus import assert_continues, command, committed_shards
from tests.faults.waiting import FREE_SHARDS, RUN, waiting_shards
from tests.support.golden import ROOT
from tests.support.processes import PATIENCE_SECONDS, is_running, wait_until


def start_waiting(folder, arguments):
    """Start a build whose shards wait, all but the first few, so that a signal surely meets work that runs."""
    folder.mkdir()
    words = [sys.executable, "-c", RUN, str(folder), *arguments]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("how", "code"), [("Ctrl-C", 130), ("SIGKILL", -9)])
def test_no_worker_outlives_its_driver(how, code, corpus, expected, zygote, tmp_path, out):
    folder = tmp_path / "waiting"
    driver = start_waiting(folder, command(corpus, out, "--executor", "processes", "--workers", "2"))
    wait_until(lambda: len(waiting_shards(folder)) >= 2)
    workers = waiting_shards(folder)
    assert all(map(is_running, workers))
    assert driver.pid not in workers
    if how == "Ctrl-C":
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the workers too
    else:
        driver.kill()
    errors = driver.communicate(timeout=PATIENCE_SECONDS)[1]
    assert driver.returncode == code, errors
    wait_until(lambda: not any(map(is_running, workers)))
    assert "Traceback" not in errors
    assert (f"{FREE_SHARDS} finished shards are kept" in errors) == (how == "Ctrl-C")
    assert len(assert_continues(zygote, command(corpus, out), out, tmp_path, expected)) == FREE_SHARDS


def test_second_interrupt_stops_at_once(corpus, expected, zygote, tmp_path, out):
    """Threads end the shard they are at; whoever does not want to wait says it again."""
    driver = start_waiting(tmp_path / "waiting", command(corpus, out, "--workers", "1"))
    wait_until(lambda: waiting_shards(tmp_path / "waiting") and len(committed_shards(out / "x.build")) == FREE_SHARDS)
    driver.send_signal(signal.SIGINT)
    assert any("stopping; a second signal stops it at once" in line for line in driver.stderr)  # the first was taken
    assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    errors = driver.communicate(timeout=PATIENCE_SECONDS)[1]
    assert driver.returncode == 130
    assert "stopped; rerun the command to continue" in errors
    assert len(assert_continues(zygote, command(corpus, out), out, tmp_path, expected)) == FREE_SHARDS
