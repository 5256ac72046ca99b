"""The runnable workflows, each on this machine and as a submitted job of a cluster."""

import os
import re
import shutil
import subprocess
import sys
from unittest.mock import patch

import pytest

from tests.support.buckets import ENVIRONMENT, serving_buckets
from tests.support.golden import ROOT
from workflows.demo_text import write_demo_conversations, write_demo_jsonl
from workflows.pretraining import train_tokenizer

SCRIPTS = sorted(path.stem for path in (ROOT / "workflows").glob("*.py") if path.stem != "demo_text")


@pytest.fixture(scope="module")
def store_url(demo):
    with serving_buckets("bucket") as store, patch.dict(os.environ, ENVIRONMENT, AWS_ENDPOINT_URL=store.url):
        store.put("bucket/text", demo / "text")
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
    text = text.replace("demo-output", str(demo)).replace("out/", f"{folder}/out/")
    text = text.replace("BUCKET/data", f"bucket/{folder.name}").replace("BUCKET", "bucket")
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


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
        process = run_locally(name, options)
        assert process.returncode == 0, process.stdout + process.stderr
        assert re.search(r"^intact |: intact$", process.stdout, re.MULTILINE)
        assert ("already complete" in process.stdout) == bool(attempt), process.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_workflow_explains_itself(name):
    process = run_locally(name, "--help")
    assert (process.returncode, process.stdout) == (1, "")
    assert f"python workflows/{name}.py" in process.stderr
    assert "Traceback" not in process.stderr
