"""A Ray cluster on this machine whose nodes Ray's own autoscaler starts, each as large as a configuration says.

Ray's provider of nodes for tests starts them as further raylets. The rest is what runs in a cloud or on Kubernetes: a
head without CPUs, and the monitor that looks for demands.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.support.golden import ROOT
from tests.support.processes import PATIENCE_SECONDS, find_marked, wait_until

CONFIGS = ROOT / "cluster_configs"
MARKER = "DSINDEX_AUTOSCALING_CLUSTER"
HEAD_ID = f"{0:05}".rjust(56, "f")
STORE_BYTES = 100_000_000
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an autoscaler knows of a configuration."""

    head_cpus: float
    worker_cpus: float
    min_workers: int
    max_workers: int


def read_shape(name):
    """Return the shape of a configuration of `ray up` or KubeRay."""
    config = yaml.safe_load((CONFIGS / name).read_text())
    if "available_node_types" in config:
        types = config["available_node_types"]
        head, worker = types[config["head_node_type"]], types["worker"]
        return Shape(
            head_cpus=head["resources"]["CPU"],
            worker_cpus=worker["resources"]["CPU"],
            min_workers=worker["min_workers"],
            max_workers=worker["max_workers"],
        )
    spec = config["spec"].get("rayClusterSpec", config["spec"])
    [worker] = spec["workerGroupSpecs"]
    [container] = worker["template"]["spec"]["containers"]
    return Shape(
        head_cpus=float(spec["headGroupSpec"]["rayStartParams"]["num-cpus"]),
        worker_cpus=float(container["resources"]["limits"]["cpu"]),
        min_workers=worker["minReplicas"],
        max_workers=worker["maxReplicas"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalingCluster:
    """A running head, and what commands need to reach it."""

    address: str
    environment: dict[str, str]


@contextlib.contextmanager
def autoscaling_cluster(shape, *, second_version):
    """Start a head, and stop it and all nodes at the end.

    Args:
        shape: What its nodes claim to have.
        second_version: Whether to use the autoscaler that KubeRay uses; otherwise that of `ray up`.
    """
    import ray.util

    with tempfile.TemporaryDirectory(prefix="dsx", dir="/tmp", ignore_cleanup_errors=True) as folder:  # for sockets
        address = f"{ray.util.get_node_ip_address()}:{_free_port()}"
        config = Path(folder, "autoscaler.json")
        config.write_text(json.dumps(_autoscaler_config(shape, address)))  # JSON is YAML
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"HOME": folder, MARKER: folder}
        try:
            variables = {**environment, **_autoscaler_variables(second_version=second_version)}
            while (shown := _start_head(address, config, variables)) is not None:
                assert "timed out during startup" in shown, shown  # Ray waits for 30 s, which a busy machine may exceed
                wait_until(lambda: not _kill_marked(folder), "the end of the cluster's processes")
            yield AutoscalingCluster(address=address, environment=environment)
        finally:
            wait_until(lambda: not _kill_marked(folder), "the end of the cluster's processes")


def _autoscaler_config(shape, address):
    worker = {"CPU": shape.worker_cpus, "object_store_memory": STORE_BYTES}
    lists = ("cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands")
    lists += ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    return {
        **{name: [] for name in lists},
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        "upscaling_speed": 1.0,
        "cluster_name": "dsindex",
        "max_workers": shape.max_workers,
        "idle_timeout_minutes": 5,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "gcs_address": address,
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": shape.head_cpus}, "node_config": {}, "max_workers": 0},
            "worker": {
                "resources": worker,
                "node_config": {},
                "min_workers": shape.min_workers,
                "max_workers": shape.max_workers,
            },
        },
    }


def _autoscaler_variables(*, second_version):
    return {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": str(int(second_version)),
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }


def _start_head(address, config, environment):
    """Start the head; return what was printed if that failed."""
    words = ["--head", f"--port={address.rpartition(':')[2]}", "--num-cpus=0", f"--autoscaling-config={config}"]
    words += [f"--temp-dir={config.parent}/r", f"--object-store-memory={STORE_BYTES}", "--include-dashboard=false"]
    words += ["--disable-usage-stats", "--log-style=record"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *words]
    # Into a file: the daemons that it leaves running would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out:
        ended = subprocess.run(command, env=environment, stdout=out, stderr=out, timeout=PATIENCE_SECONDS, check=False)
        out.seek(0)
        return out.read() if ended.returncode else None


def _free_port():
    """Return a free port that is not ephemeral, since one of Ray's own connections could take such a port first."""
    for port in random.sample(range(20000, 32000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise AssertionError("no port is free")


def _kill_marked(folder):
    """Kill all processes that have the cluster's folder in their environment; return their ids."""
    found = find_marked(f"{MARKER}={folder}")
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
