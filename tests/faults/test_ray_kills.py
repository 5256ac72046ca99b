"""A Ray cluster that loses workers, nodes and drivers: the output is that of a build that nothing disturbed."""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.corpus import assert_continues, command
from tests.faults.waiting import waiting_shards
from tests.faults.zygote import Strike
from tests.support.processes import PATIENCE_SECONDS, start_ray, wait_until
from tests.support.published import published

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

SYSTEM_CONFIG = {f"health_check_{name}_ms": 1000 for name in ("initial_delay", "period", "timeout")}
SYSTEM_CONFIG["health_check_failure_threshold"] = 3


@pytest.fixture(scope="module")
def cluster():
    """A head with one CPU, in folders of its own; tests add nodes."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="rk", dir="/tmp")  # sockets have short names only
    os.mkdir(f"{folder}/ray")
    with pytest.MonkeyPatch.context() as patch:
        # Cluster notes its address below RAY_TMPDIR, which it does not make: on a fresh machine /tmp/ray is not there.
        patch.setenv("RAY_TMPDIR", folder)
        head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": f"{folder}/ray", "_system_config": SYSTEM_CONFIG}
        head["object_store_memory"] = 80 << 20
        started = start_ray(lambda: Cluster(initialize_head=True, head_node_args=head))
        yield started
        started.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(cluster):
    """A second node with one CPU; that of the test before, if it is still there."""
    old_node = next(iter(cluster.worker_nodes), None)
    return old_node or start_ray(lambda: cluster.add_node(num_cpus=1, object_store_memory=80 << 20))


@pytest.fixture
def on_ray(cluster):
    return ["--executor", "ray", "--address", cluster.address]


def children(pid):
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            pids.append(int(path.parent.name))
    return pids


def raylet(node):
    [process] = node.all_processes["raylet"]
    return int(process.process.pid)


class Running:
    """A build on Ray whose shards wait, all but the first two."""

    def __init__(self, zygote, arguments, folder):
        self.waiting = folder / "waiting"
        self.waiting.mkdir()
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(zygote.run, folder / "run", arguments, waiting=self.waiting)

    def workers(self):
        return waiting_shards(self.waiting)

    def go_on(self):
        (self.waiting / "go").touch()

    def end(self, out, expected):
        """Let the build run to its end, which publishes what is expected; return how many workers it lost."""
        self.go_on()
        ended = self._ended.result(2 * PATIENCE_SECONDS)
        self._pool.shutdown()
        assert ended.code == 0, ended.errors
        assert published(out) == expected
        return json.loads((out / "x_text_document.manifest.json").read_bytes())["run"]["lost_workers"]


@pytest.mark.usefixtures("node")
def test_killed_worker_is_replaced(corpus, expected, on_ray, zygote, tmp_path, out):
    running = Running(zygote, command(corpus, out, *on_ray), tmp_path)
    wait_until(lambda: len(running.workers()) >= 2)
    os.kill(next(iter(running.workers())), signal.SIGKILL)
    assert running.end(out, expected) == 1


@pytest.mark.usefixtures("node")
def test_killed_or_terminated_driver_continues(corpus, expected, on_ray, zygote, tmp_path):
    strikes = [Strike(at=at, action=action, place="journal.jsonl") for at, action in ((3, "tear"), (4, "SIGTERM"))]
    for number, strike in enumerate(strikes):
        out = tmp_path / str(number)
        out.mkdir()
        killed = zygote.run(tmp_path / f"run{number}", command(corpus, out, *on_ray), strike)
        assert killed.code == (143 if strike.action == "SIGTERM" else -9), killed.errors
        # The same work folder, now on the local executor, which says what it tokenizes.
        words = command(corpus, out, *(["--workers", "2"] if number % 2 else on_ray))
        assert_continues(zygote, words, out, tmp_path, expected)


@pytest.mark.exhaustive
def test_removed_node_takes_nothing_with_it(corpus, expected, on_ray, zygote, tmp_path, out, cluster, node):
    running = Running(zygote, command(corpus, out, *on_ray), tmp_path)
    wait_until(lambda: bool(set(running.workers()) & set(children(raylet(node)))))
    # Workers outlive their raylet by seconds, in which they would end the build.
    os.kill(raylet(node), signal.SIGSTOP)
    workers = children(raylet(node))
    cluster.remove_node(node, allow_graceful=False)
    send_to_all(workers, signal.SIGKILL)
    assert running.end(out, expected) >= 1


@pytest.fixture
def late_node(cluster, is_long):
    """A node that is frozen and then removed."""
    if not is_long:
        pytest.skip("long: --long-faults")
    added = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    yield added
    cluster.remove_node(added, allow_graceful=False)


@pytest.mark.exhaustive
@pytest.mark.parametrize("thawed", ["while the build runs", "after its end"])
def test_frozen_nodes_late_commits_are_harmless(thawed, corpus, expected, on_ray, zygote, tmp_path, out, late_node):
    running = Running(zygote, command(corpus, out, *on_ray, "--shard-deadline", "3"), tmp_path)
    wait_until(lambda: bool(set(running.workers()) & set(children(raylet(late_node)))))
    frozen = [raylet(late_node), *children(raylet(late_node))]
    send_to_all(frozen, signal.SIGSTOP)
    try:
        if thawed == "while the build runs":
            time.sleep(5)
            running.go_on()
            time.sleep(1)
            send_to_all(frozen, signal.SIGCONT)
        assert running.end(out, expected) >= 1
    finally:
        send_to_all(frozen, signal.SIGCONT)
    time.sleep(3)  # what was thawed writes, and finds no work folder
    assert published(out) == expected
    assert not (out / "x.build").exists()
    again = zygote.run(tmp_path / "run", command(corpus, out))
    assert "already complete" in again.output


def send_to_all(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
