"""Clusters that have no nodes until they are asked for some, and nodes that join or leave while a job runs."""

import json
import re
import subprocess
import sys
from functools import partial

import pytest
from ray.autoscaler.v2.schema import ClusterStatus, LaunchRequest, NodeInfo, Stats

from dsindex.engine.nodes import require_sound_here, versions
from dsindex.engine.start import wait_for_nodes
from dsindex.errors import InputError, TaskError
from dsindex.execution.calls import Shortage
from dsindex.execution.local import ThreadExecutor
from dsindex.execution.progress.displays import PlainDisplay
from dsindex.execution.progress.reporter import Reporter
from tests.support.autoscaling_cluster import autoscaling_cluster, read_shape
from tests.support.golden import OWN, ROOT
from tests.support.jobs import run_config
from tests.support.processes import PATIENCE_SECONDS

SHAPES = ("aws.yaml", "gcp.yaml", "kuberay_raycluster.yaml", "kuberay_rayjob.yaml")


# From zero


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "second_version"), [(name, name.startswith("kuberay")) for name in SHAPES])
def test_build_starts_the_first_nodes(name, second_version, tmp_path, make_config):
    half = OWN.docs.stat().st_size // 2 + 1
    with autoscaling_cluster(read_shape(name), second_version=second_version) as cluster:
        words = ["--input", str(OWN.docs), "--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod"]
        words += ["--output-prefix", str(tmp_path / "ray" / "x"), "--shard-size", f"{half}B", "--installed"]
        ended = subprocess.run(
            [sys.executable, "-m", "dsindex", "build", *words, "--address", cluster.address],
            env={**cluster.environment, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert "nodes: done in" in ended.stdout
    assert "2/2 CPUs" in ended.stdout
    assert "infeasible" not in ended.stdout
    run_config(make_config(output_prefix=str(tmp_path / "local" / "x")))
    for suffix in ("bin", "idx"):
        made, expected = (tmp_path / where / f"x_text_document.{suffix}" for where in ("ray", "local"))
        assert made.read_bytes() == expected.read_bytes()


# Waiting


class Starved(ThreadExecutor):
    """An executor without nodes until it has been waited for a few times."""

    is_cluster = True

    def __init__(self, num_waits):
        super().__init__(2)
        self.missing = Shortage(num_wanted=2, since=0.0, reason="2 × worker starting")
        self.num_waits = num_waits
        self.requested = 0

    @property
    def shortage(self):
        return self.missing

    @property
    def waiting(self):
        return None if self.missing is None else self.missing.describe()

    def request_cpus(self, number):
        self.requested = number
        return number

    def wait(self, timeout):
        if self.shortage is None:
            return super().wait(timeout)
        self.num_waits -= 1
        if not self.num_waits:
            self.missing = None
        return []


def test_waiting_is_shown_without_a_percentage(capsys):
    executor = Starved(4)
    with Reporter(PlainDisplay(seconds=0.0)) as reporter:
        wait_for_nodes(ThreadExecutor(2), reporter, lambda: 7)
        assert capsys.readouterr().err == "", "nothing is said where nodes are there"
        reporter.follow(executor)
        wait_for_nodes(executor, reporter, lambda: 7)
    first, second, *_, last = capsys.readouterr().err.splitlines()
    assert "waiting" not in second  # the same reason is not repeated every time
    assert first.startswith("nodes: waiting for nodes: 0 of 2 CPUs, for ")
    assert first.endswith(" s; 2 × worker starting")
    assert last.startswith("nodes: done in")
    assert last.endswith("2/7 CPUs")
    assert executor.requested == 7


@pytest.fixture
def cluster(monkeypatch):
    """The module that looks at clusters, without one: no nodes, a clock of its own, and no autoscaler."""
    from dsindex.execution import ray_cluster

    state = {"now": 1000.0, "adds_nodes": False, "nodes": []}
    monkeypatch.setattr(ray_cluster, "state", state, raising=False)
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(ray_cluster, "living_nodes", lambda: state["nodes"])
    monkeypatch.setattr(ray_cluster, "ask_autoscaler", lambda: (state["adds_nodes"], "why"))
    return ray_cluster


NODE = {"Resources": {"CPU": 4.0, "memory": 100.0}}


@pytest.mark.parametrize(
    ("nodes", "adds_nodes", "seconds", "fault"),
    [
        ([], False, 2.0, "has no node with CPUs: why"),
        ([], None, 60.0, None),
        ([], None, 180.0, "has no node with CPUs: why"),
        ([], True, 86400.0, None),
        ([NODE], False, 300.0, None),
        ([NODE], False, 900.0, "lost all its nodes with CPUs: why"),
        ([NODE], True, 86400.0, None),
    ],
    ids=["static", "silent", "silent for long", "autoscaled", "lost", "lost for long", "autoscaled and lost"],
)
def test_wait_ends_where_nobody_adds_nodes(cluster, nodes, adds_nodes, seconds, fault):
    cluster.state["nodes"] = nodes
    size = cluster.ClusterSize("h:1")
    assert (size.shortage is None) == bool(nodes)
    cluster.state.update(nodes=[], adds_nodes=adds_nodes, now=cluster.state["now"] + 10)
    size.look()
    cluster.state["now"] += seconds
    if fault is None:
        assert size.look_if_due()
        assert size.shortage.describe().endswith(f"CPUs, for {seconds + (0 if nodes else 10):.0f} s; why")
    else:
        with pytest.raises(TaskError, match=f"^the Ray cluster at h:1 {fault}; start a node that joins"):
            size.look_if_due()
    cluster.state["nodes"] = [NODE]
    size.look()
    assert (size.shortage, size.num_cpus, size.largest_memory) == (None, 4, 100.0)


# What the autoscaler says

NONE_LEFT = {"unavailable_node_information": {"category": "NoSpot", "description": "none\nleft"}}
NO_SPOT = {"node_availabilities": {"worker": NONE_LEFT, "other": {"unavailable_node_information": None}}}


def status_of(version: str) -> ClusterStatus:
    return ClusterStatus(stats=Stats(gcs_request_time_s=0.0, autoscaler_version=version))


@pytest.mark.parametrize(("report", "error", "adds_nodes", "reason"), [
    ({"node_type_mapping": {"ab": "node_ab"}}, None, False, "no autoscaler"),
    ({"node_type_mapping": {"ab": "head"}}, None, True, "starts no node yet; `ray status`"),
    ({"pending_launches": {"worker": 2}, "pending_nodes": [["1.2.3.4", "worker", "up"]]}, None, True, "3 × worker"),
    ({}, b"Traceback\n KeyError", True, "the autoscaler failed: Traceback KeyError"),
    ({}, None, None, "no autoscaler has reported yet"),
    ({"node_availability_summary": NO_SPOT}, None, True, r"^worker not available \(NoSpot: none left\)$"),
], ids=["none", "idle", "starting", "crashed", "silent", "no capacity"])  # fmt: skip
def test_status_of_the_first_version(report, error, adds_nodes, reason, monkeypatch):
    from dsindex.execution import ray_cluster

    stored = {"__autoscaling_status": json.dumps({"autoscaler_report": report}), "__autoscaling_error": error}
    monkeypatch.setattr(ray_cluster, "_cluster_status", lambda: status_of("0"))
    monkeypatch.setattr(ray_cluster, "_internal_kv_get", stored.get)
    assert ray_cluster.ask_autoscaler()[0] is adds_nodes
    assert re.search(reason, ray_cluster.ask_autoscaler()[1])


def test_status_of_the_second_version(monkeypatch):
    from dsindex.execution import ray_cluster

    status = status_of("2")
    monkeypatch.setattr(ray_cluster, "_cluster_status", lambda: status)
    assert ray_cluster.ask_autoscaler() == (
        True,
        "the autoscaler starts no node yet; `ray status` and its max_workers say more",
    )
    pending, failed = LaunchRequest.Status.PENDING, LaunchRequest.Status.FAILED
    status.pending_launches = [LaunchRequest("", "workers", 2, pending, 0)]
    status.pending_nodes = [NodeInfo("", "workers", "", "", "")]
    status.failed_launches = [LaunchRequest("", "spot", 1, failed, 0, details="quota " * 100)]
    adds_nodes, reason = ray_cluster.ask_autoscaler()
    assert adds_nodes
    assert reason.startswith("3 × workers starting, spot not available (quota quota")
    assert len(reason) == 300


# Nodes that join later


def test_node_that_joins_later_is_checked_for_folders_and_versions(tmp_path):
    marker = tmp_path / "marker"
    check = partial(require_sound_here, (), (str(marker),))
    with pytest.raises(InputError, match=f"^{tmp_path}: expected the folder that the driver writes to, got another"):
        check(versions())
    marker.touch()
    check(versions())
    with pytest.raises(InputError, match=r"^expected python 2\.7 as on the driver's node, got 3"):
        check({"python": "2.7"})
