"""A build on a real cluster of several raylets: stopped, continued, one node lost and one added, followed to its end.

cluster_configs/local.sh has token authentication on, so every step here is with tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.local_cluster import LocalCluster, local_cluster
from tests.support.processes import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SHARDS = 1500
"""Enough that many are left when the nodes are frozen, on a fast machine too."""


@dataclass
class Commands:
    """dsindex commands and signals for a cluster."""

    cluster: LocalCluster

    @property
    def environment(self):
        return {**self.cluster.environment, **self.cluster.access, "PYTHONPATH": str(ROOT)}

    def signal_workers(self, name, number):
        """Send a signal to the workers of a node, not to the node itself, whose silence would be taken for its end.

        Returns:
            Their titles, in which Ray's workers say what they do.
        """
        group = int((self.cluster.folder / "c" / f"{name}.pid").read_text())
        listed = subprocess.run(["ps", "-ewwo", "pid=,ppid=,pgid=,args="], capture_output=True, text=True, check=True)
        rows = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
        members = {pid for pid, _, pgid, _ in rows if int(pgid) == group}
        workers = {pid: title for pid, parent, _, title in rows if parent in members and title.startswith("ray::")}
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
        return list(workers.values())

    def freeze_at_work(self, name):
        """Freeze a node's worker in the middle of a task, which it will not finish, however fast the machine is."""
        titles = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            self.signal_workers(name, signal.SIGSTOP)
            titles = self.signal_workers(name, signal.SIGSTOP)  # now that all stand still
            if any(title.startswith("ray::tokenize[") for title in titles):
                return
            self.signal_workers(name, signal.SIGCONT)
            time.sleep(0.02)
        raise AssertionError(f"{name} never had a task: {titles}")

    @contextlib.contextmanager
    def start(self, *words):
        """Begin a dsindex command; it is killed if it has not ended when the block ends."""
        command = [sys.executable, "-m", "dsindex", *words]
        with subprocess.Popen(
            command, env=self.environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ray_job(self, verb, *words):
        """Run `ray job`, as docs/cluster.md says, and give its output."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", verb, *words]
        ended = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
        )
        return ended.stdout


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(2) as running:
        yield running


@pytest.fixture
def commands(cluster):
    return Commands(cluster)


def wait_for_shards(path, number, process=None):
    """Wait until progress.json says that so many shards are done; return how many are."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            state = json.loads(path.read_bytes())
        except FileNotFoundError:
            state = {}
        stage = state.get("stage") or {}
        if state.get("state") == "running" and stage.get("stage") == "tokenize" and stage["tasks_done"] >= number:
            return int(stage["tasks_done"])
        has_ended = state.get("state") == "failed" if process is None else process.poll() is not None
        if has_ended:
            break
        time.sleep(0.05)
    shown = ""
    if process is not None:
        process.kill()
        shown = process.communicate()[0]
    raise AssertionError(f"{number} shards were never done: {state} {shown}")


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_build_survives_being_stopped_and_losing_a_node(cluster, commands, tmp_path, make_config):
    text = tmp_path / "docs.jsonl"
    text.write_bytes((OWN.docs.read_bytes() + b"\n") * -(-12_000_000 // OWN.docs.stat().st_size))
    config = tmp_path / "build.yaml"
    prefix, work_dir = tmp_path / "out" / "x", tmp_path / "out" / "x.build"
    progress = Path(f"{prefix}.progress.json")
    options = {
        "input": [str(text)], "tokenizer_model": str(OWN.plain_tokenizer), "append_eod": True, "engine": "tokenizers",
        "shard_size": text.stat().st_size // SHARDS + 1, "output_prefix": str(prefix),
    }  # fmt: skip
    config.write_text(json.dumps(options))  # JSON is YAML

    # As a job, which is stopped.
    build = [sys.executable, "-m", "dsindex", "build", "--config", str(config)]
    commands.ray_job("submit", "--no-wait", "--submission-id", "stopped", "--", *build)
    wait_for_shards(progress, 20)
    for name in ("worker-0", "worker-1"):
        commands.signal_workers(name, signal.SIGSTOP)
    kept = wait_for_shards(progress, 20)
    assert kept < SHARDS - 100
    commands.ray_job("stop", "stopped")
    for name in ("worker-0", "worker-1"):
        commands.signal_workers(name, signal.SIGCONT)
    assert "was stopped" in commands.ray_job("status", "stopped")
    assert not list((tmp_path / "out").glob("*.idx"))

    # The same again, from a node: it continues, loses a node, gets another.
    with commands.start("build", "--config", str(config)) as driver:
        wait_for_shards(progress, kept, driver)
        commands.freeze_at_work("worker-0")
        cluster.script("remove", "worker-0")
        cluster.script("add", "1")
        shown, _ = driver.communicate(timeout=2 * PATIENCE_SECONDS)
    assert driver.returncode == 0, shown
    assert "check: done" in shown  # what the stopped job had made was verified
    run = json.loads((tmp_path / "out" / "x_text_document.manifest.json").read_bytes())["run"]
    assert run["executor"] == "ray"
    assert run["shards"] == SHARDS
    assert run["lost_workers"] >= 1
    assert not work_dir.exists()

    local = make_config(input=(str(text),), output_prefix=str(tmp_path / "local" / "x"), shard_size="64MiB")
    run_config(local)
    for suffix in ("bin", "idx", "provenance.parquet"):
        name = f"x_text_document.{suffix}"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
