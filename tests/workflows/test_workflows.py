"""The runnable workflows, each on this machine and as a submitted job of a cluster."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsindex.store.reading import open_stored
from tests.support.buckets import ACCESS_KEY, ENVIRONMENT, SECRET_KEY, serving_buckets
from tests.support.golden import ROOT
from tests.support.local_cluster import local_cluster
from workflows.demo_text import write_demo_conversations, write_demo_jsonl
from workflows.pretraining import train_tokenizer

SCRIPTS = sorted(path.stem for path in (ROOT / "workflows").glob("*.py") if path.stem != "demo_text")
DATASETS = {
    "instruction": ["out/instruction_text_document"],
    "mixture": [f"out/mixture/{name}_document" for name in ("web_text", "german_text", "titles_title")],
    "pretraining": ["pretraining/demo_text_document"],
}
"""Some of what each workflow writes."""


@pytest.fixture(scope="module")
def store_url(demo):
    with pytest.MonkeyPatch.context() as patch, serving_buckets("bucket") as store:
        store.put("bucket/text", demo / "text")
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": store.url}.items():
            patch.setenv(name, value)
        yield store.url


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """What `make demo` leaves for the workflows to read."""
    folder = tmp_path_factory.mktemp("demo")
    texts = write_demo_jsonl(folder / "text", num_documents=2000)
    train_tokenizer(texts, folder / "tokenizer")
    write_demo_conversations(folder / "conversations.jsonl", num_conversations=60)
    return folder


def write_options(name, folder, demo):
    """Write a workflow's own file of options with the paths of a test, or its folder of texts."""
    if name == "pretraining":
        shutil.copytree(demo, folder / name)
        return folder / name
    text = (ROOT / "workflows" / f"{name}.yaml").read_text(encoding="utf-8")
    text = (
        text.replace("demo-output", str(demo))
        .replace("out/", f"{folder}/out/")
        .replace("BUCKET/data", f"bucket/{folder.name}")
    )
    text = text.replace("BUCKET", "bucket")
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def tokens_of(name, folder):
    """Return the tokens of the datasets, which do not depend on how the workflow was run."""
    if name != "bucket_to_bucket":
        return [(folder / f"{prefix}.bin").read_bytes() for prefix in DATASETS[name]]
    with open_stored(f"s3://bucket/{folder.name}/corpus_text_document.bin") as file:
        return [file.read()]


def run_locally(name, options):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    command = [sys.executable, str(ROOT / "workflows" / f"{name}.py"), str(options)]
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.usefixtures("store_url")
def test_workflow_runs_on_this_machine_and_continues(name, tmp_path, demo):
    options = write_options(name, tmp_path, demo)
    for attempt in range(2):
        ended = run_locally(name, options)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert re.search(r"^intact |: intact$", ended.stdout, re.MULTILINE)
        assert ("already complete" in ended.stdout) == bool(attempt), ended.stdout


@pytest.fixture(scope="module")
def cluster(store_url):
    """A cluster with tokens, which only other processes join."""
    store = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_ENDPOINT_URL": store_url}
    with local_cluster(2, variables=store) as running:
        yield running


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.parametrize("name", SCRIPTS)
def test_workflow_runs_as_a_submitted_job(name, cluster, tmp_path, demo):
    here = tmp_path / "here"
    here.mkdir()
    assert run_locally(name, write_options(name, here, demo)).returncode == 0
    expected = tokens_of(name, here)
    there = tmp_path / "there"
    there.mkdir()
    options = write_options(name, there, demo)
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "workflow.py").write_bytes((ROOT / "workflows" / f"{name}.py").read_bytes())
    if name != "pretraining":
        options = options.rename(shipped / "options.yaml")
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "job", "submit", "--working-dir", str(shipped), "--", sys.executable, "workflow.py"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")} | cluster.access
    ended = subprocess.run(
        [*command, str(options)], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^intact |: intact$", ended.stdout, re.MULTILINE)
    assert "ray executor" in ended.stdout or name == "mixture"
    assert tokens_of(name, there) == expected
