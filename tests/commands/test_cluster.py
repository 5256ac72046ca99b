"""A build on a real cluster of several raylets: stopped, continued, one node lost and one added, followed to its end.

cluster_configs/local.sh has token authentication on, so every step here is with tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.golden import OWN, ROOT
from tests.support.jobs import run_config
from tests.support.local_cluster import local_cluster
from tests.support.processes import PATIENCE_SECONDS, wait_until

SHARDS = 3000
"""Enough that many are left when the job is stopped and when a node is lost."""


def shards_done(path):
    """How many shards progress.json says are done, while the build runs."""
    state = json.loads(path.read_bytes()) if path.exists() else {}
    stage = state.get("stage") or {}
    is_running = state.get("state") == "running" and stage.get("stage") == "tokenize"
    return int(stage["tasks_done"]) if is_running else 0


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_build_survives_being_stopped_and_losing_a_node(tmp_path, make_config):
    text, config, progress = tmp_path / "docs.jsonl", tmp_path / "build.yaml", tmp_path / "out" / "x.progress.json"
    text.write_bytes((OWN.docs.read_bytes() + b"\n") * -(-24_000_000 // OWN.docs.stat().st_size))
    options = {"input": [str(text)], "tokenizer_model": str(OWN.plain_tokenizer), "append_eod": True}
    options |= {"engine": "tokenizers", "output_prefix": str(tmp_path / "out" / "x")}
    options["shard_size"] = text.stat().st_size // SHARDS + 1
    config.write_text(json.dumps(options))  # JSON is YAML
    build = [sys.executable, "-m", "dsindex", "build", "--config", str(config)]
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with local_cluster(2) as cluster:
        environment = {**cluster.environment, **cluster.access, "PYTHONPATH": str(ROOT)}

        def ray_job(verb, *words):
            command = [sys.executable, "-m", "ray.scripts.scripts", "job", verb, *words]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

        ray_job("submit", "--no-wait", "--submission-id", "stopped", "--", *build)
        wait_until(lambda: shards_done(progress) >= 20)
        ray_job("stop", "stopped")
        assert "was stopped" in ray_job("status", "stopped")
        assert not list((tmp_path / "out").glob("*.idx"))

        # The same again, from a node: it continues, loses a node, gets another.
        with subprocess.Popen(build, env=environment, cwd=ROOT, text=True, **streams) as driver:
            wait_until(lambda: shards_done(progress) >= 20)
            num_kept = shards_done(progress)
            wait_until(lambda: shards_done(progress) >= num_kept + 20)
            cluster.script("remove", "worker-0")
            cluster.script("add", "1")
            _, errors = driver.communicate(timeout=2 * PATIENCE_SECONDS)
        assert driver.returncode == 0, errors
    assert "of 3,000 shards kept" in errors
    run = json.loads((tmp_path / "out" / "x_text_document.manifest.json").read_bytes())["run"]
    assert (run["executor"], run["shards"]) == ("ray", SHARDS)
    assert run["lost_workers"] >= 1
    assert not (tmp_path / "out" / "x.build").exists()

    # It is the output of one machine.
    run_config(make_config(input=(str(text),), output_prefix=str(tmp_path / "local" / "x"), shard_size="64MiB"))
    for suffix in ("bin", "idx", "provenance.parquet"):
        name = f"x_text_document.{suffix}"
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
