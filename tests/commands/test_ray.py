"""Workers on a Ray cluster, addresses of clusters, and what is said of those that cannot be joined."""

import contextlib
import os
import re
import socket
import time
from pathlib import Path

import pytest

from dsindex.errors import BadRecordError, InputError, TaskError
from dsindex.options.common import ExecutorConfig
from dsindex.options.datasets import MergeConfig
from dsindex.runtime.dispatch import JOB_VARIABLE, cluster_address, wants_ray
from dsindex.runtime.executors import ClusterLostError
from tests.commands.test_executors import Large, call, die, fail, hang_once, place_of, process_id, run
from tests.support.conversations import CONVERSATIONS
from tests.support.golden import OWN
from tests.support.processes import wait_until

pytestmark = pytest.mark.ray
RAY_VARIABLES = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", JOB_VARIABLE)
MERGE = {"input": ("a",), "output_prefix": "b"}


@pytest.mark.parametrize(("config", "environment", "expected"), [
    (ExecutorConfig(), {"RAY_ADDRESS": "gone:1"}, None),
    (ExecutorConfig(address="head"), {"RAY_ADDRESS": "gone:1"}, "head"),
    (ExecutorConfig(address="auto"), {"RAY_ADDRESS": "head:1"}, "head:1"),
    (ExecutorConfig(address="auto"), {}, "auto"),
    (ExecutorConfig(), {"RAY_ADDRESS": "head:1", JOB_VARIABLE: "{}"}, "head:1"),
    (MergeConfig(**MERGE), {"RAY_ADDRESS": "head:1"}, "head:1"),
    (MergeConfig(**MERGE, address="local"), {"RAY_ADDRESS": "head:1"}, None),
])  # fmt: skip
def test_environment_names_the_cluster_of_jobs_that_are_for_one(config, environment, expected, monkeypatch):
    for name in RAY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cluster_address(config) == expected
    assert wants_ray(config) == (expected is not None)


@contextlib.contextmanager
def unused_port():
    """Bind a port without listening, so that nobody else can answer there."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reserved.getsockname()[1]}"


def test_address_where_nobody_listens_and_other_addresses_fail_at_once():
    from dsindex.runtime.ray import require_listener

    began = time.monotonic()
    with unused_port() as address, pytest.raises(TaskError, match=rf"{address}: no head .* there \(Connection ref"):
        require_listener(address)
    for text in ("http://head:8265", "ray://head:10001", "head:65536", "me@head:1", "[::1"):
        with pytest.raises(TaskError, match="no head of a Ray cluster answers there"):
            require_listener(text)
    assert time.monotonic() - began < 20


# Workers.


@pytest.fixture
def executor(ray_instance):  # noqa: ARG001 - the connection is used
    from dsindex.runtime.ray import RayExecutor

    ray_executor = RayExecutor(address=None, workers=2)
    yield ray_executor
    ray_executor.close()


def test_workers_keep_their_processes_and_a_shared_value(executor):
    shared = executor.share(Large())
    results = [run(executor, *[call(place_of, number, shared) for number in range(12)]) for _ in range(2)]
    assert [sorted(result) for result in results] == [list(range(12))] * 2
    places = {place for result in results for place in result.values()}
    assert {content for *_, content in places} == {"as sent"}
    assert len(places) == len({pid for pid, *_ in places}) <= 2


def test_joined_cluster_is_introduced_and_gets_few_pending_actors(executor):
    from dsindex.runtime.ray import RayExecutor

    assert re.fullmatch(r"joined the Ray cluster at [\d.]+:\d+: 1 node, 2 CPUs", executor.introduction)
    assert executor.max_workers == 2
    with contextlib.closing(RayExecutor(address=None, workers=None)) as unlimited:
        assert (unlimited.slots, unlimited.max_workers) == (2, 4)  # an autoscaler adds nodes for the other two


def test_error_is_reported_and_dead_worker_replaced(executor):
    with pytest.raises(BadRecordError, match=r"f\.jsonl, line at byte 7: broken"):
        run(executor, call(process_id, 1), call(fail, 2))
    before = executor.lost_workers
    with pytest.raises(TaskError, match=r"die\[0\] \(f\.jsonl\): given up after 3 attempts.*its worker was lost"):
        run(executor, call(die, 0))
    assert executor.lost_workers == before + 3
    assert len(run(executor, call(process_id, 3))) == 1


def test_worker_of_a_call_past_its_deadline_is_replaced(executor, tmp_path):
    before, executor.deadline_seconds = executor.lost_workers, 3.0
    assert run(executor, call(hang_once, str(tmp_path / "x"))) == {0: "ended"}
    assert executor.lost_workers > before  # a busy machine may take longer than its second deadline, too


def test_worker_that_does_not_see_what_the_driver_sees_is_named(executor, tmp_path):
    """One machine plays two nodes: the file changes before the workers look."""
    (tmp_path / "seen").write_text("abc")
    executor.require_seen([str(tmp_path / "seen")], [str(tmp_path)])
    assert len(run(executor, call(process_id, 0))) == 1
    executor.require_seen([str(tmp_path / "seen")])
    (tmp_path / "seen").write_text("abcd")
    with pytest.raises(InputError, match=r"\(\d+\.\d+\.\d+\.\d+\): .*seen: 4 bytes here, 3 bytes on the driver's node"):
        run(executor, call(process_id, 0))


def wait_for(path):
    Path(f"{path}.{os.getpid()}").touch()
    while not Path(path).exists():
        time.sleep(0.01)


def test_build_without_a_cpu_says_that_others_have_them(executor, monkeypatch, tmp_path):
    import ray

    monkeypatch.setattr("dsindex.runtime.ray.BUSY_SECONDS", 0.0)
    monkeypatch.setattr("dsindex.runtime.ray.LOOK_SECONDS", 0.0)
    gate = str(tmp_path / "gate")
    tasks = [ray.remote(num_cpus=1)(wait_for).remote(gate) for _ in range(2)]
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        executor.start(call(process_id, 0))
        executor.wait(0.1)
        executor.wait(0.1)
        assert re.match(r"waiting for \d+ s: other jobs use all 2 CPUs; `ray status`", executor.waiting or "")
    finally:
        Path(gate).touch()  # later tests need the CPUs
    outcomes = []
    wait_until(lambda: bool(outcomes.extend(executor.wait(0.1)) or outcomes))
    executor.wait(0.0)
    assert executor.waiting is None
    ray.get(tasks)


def test_lost_head_ends_the_job_before_ray_ends_the_process(executor, monkeypatch):
    monkeypatch.setattr("dsindex.runtime.ray.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("dsindex.runtime.ray.LOST_SECONDS", 0.0)
    head = executor._head
    with unused_port() as address:
        executor._head = address
        with pytest.raises(ClusterLostError, match="has not answered for 0 s and is lost"):
            executor.wait(0.0)
    executor._head = head


@pytest.mark.usefixtures("ray_instance", "in_folder")
def test_relative_paths_are_the_drivers_in_every_command(cli):
    """Workers run in another folder than the driver, which has moved since Ray started."""
    os.symlink(OWN.docs, "docs.jsonl")
    os.symlink(OWN.plain_tokenizer, "model")
    os.symlink(CONVERSATIONS, "chats.jsonl")
    Path("chat.yaml").write_text("chat_template: chatml\ncontrol_tokens: allow\n")
    text, ray = ["--input", "docs.jsonl", "--tokenizer-model", "model"], ["--executor", "ray"]
    chats = ["--input", "chats.jsonl", "--tokenizer-model", "model", "--on-bad-record", "quarantine"]
    packs = ["--seq-length", "999", "--export", "parquet"]
    caches = ["--data-path", "1", "both", "--seq-length", "64", "--split", "1,0,0", "--global-batch-size", "2"]
    grown = ["--continue-from", "caches", "--consumed-samples", "20", "--num-samples", "60"]
    for words in (
        ["build", *text, "--append-eod", "--output-prefix", "x", "--shard-size", "9kB", *ray],
        ["build", *text, "--append-eod", "--output-prefix", "y", "--work-dir", "work", "--keep-shards", *ray],
        ["merge", "--input", "x_text_document", "y_text_document", "--output-prefix", "both", *ray],
        ["pack", *text, "--output", "x.pbin", "--eod-token", "<|endoftext|>", *ray],
        ["instruct", "chat.yaml", *chats, "--output-prefix", "chat", *packs, *ray],
        ["index", *caches, "--data-cache-path", "caches", "--num-samples", "40", *ray],
        ["index", *caches, "--data-cache-path", "grown", *grown, *ray],
        ["verify", "both", "--cache", "caches", *ray],
        ["verify", "x_text_document", "--against-source", *ray],
        ["verify", "x_text_document", "--same-as", "y_text_document", *ray],
    ):
        output = cli(words).out
        assert words[0] != "verify" or ": intact\n" in output
