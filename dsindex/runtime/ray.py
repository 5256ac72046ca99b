"""Run calls on a Ray cluster: one actor per CPU runs one call at a time, and the driver, not Ray, retries calls.

A cluster is joined if the user named one; otherwise a private one is started, and stopped at the end. Actors keep their
processes, and with them imported modules and loaded tokenizers. Actors that wait for a CPU make an autoscaler add
nodes. Only this module imports Ray, and only its public API.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import pickle
import platform
import re
import socket
import time
import uuid
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
import ray.util

from dsindex._version import __version__
from dsindex.errors import InputError, TaskError
from dsindex.messages import count, remove_secrets, show_name
from dsindex.runtime.executors import (
    ClusterLostError,
    Executor,
    Shared,
    Worker,
    begin_worker,
    last_line,
    received,
    run_guarded,
)
from dsindex.runtime.interrupts import keep_sigterm
from dsindex.store.machine import available_cpus
from dsindex.store.urls import absolute, local_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from dsindex.runtime.executors import Call, Outcome

CLUSTER_PORT = 6379
"""The port of a cluster's head, unless `ray start --port` names another."""
CONNECT_SECONDS = 3.0
"""How long a head may take to accept a connection."""
LOOK_SECONDS = 2.0
"""Interval at which the head is tried and the cluster's CPUs are counted."""
LOST_SECONDS = 40.0
"""A head that does not answer for this long counts as lost. Ray ends its drivers after 60 s, without an exception."""
BUSY_SECONDS = 10.0
"""Time without any worker after which the user is told why none starts."""
MIN_BACKLOG = 16
"""Least number of calls beyond the slots, so that a cluster without nodes is asked for more than one CPU."""
MAX_PENDING = 512
"""Most actors to request beyond the CPUs of the cluster."""
CHECKED_FILES = 20
SAME_VERSIONS = ("ray", "gigatoken", "tokenizers", "sentencepiece", "tiktoken", "pyarrow", "numpy")
"""Packages whose versions must be equal on all nodes, like Python's and dsindex's, so that all write the same data."""
STORE_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION")
"""Variables of the driver that locate stores; credentials are configured on each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A worker's check before its first call: equal versions, and the same files as the driver's."""

    versions: Mapping[str, str]
    sizes: Mapping[str, int]
    """Path → size, for some of the files."""
    folders: Sequence[str]

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each difference on this node."""
        installed = versions()
        for name, version in self.versions.items():
            if installed[name] != version:
                yield f"{name} is {installed[name]} here and {version} on the driver's node; install the same version"
        remedy = "mount the same storage under the same path on every node"
        for path, size_bytes in self.sizes.items():
            size_text = f"{os.path.getsize(path):,} bytes" if os.path.isfile(path) else "no file"
            if size_text != f"{size_bytes:,} bytes":
                yield f"{path}: {size_text} here, {size_bytes:,} bytes on the driver's node; {remedy}"
        for folder in self.folders:
            if not os.access(folder, os.W_OK):
                yield f"{folder}: cannot be written; {remedy}"


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all nodes."""
    packages = {"python": platform.python_version(), "dsindex": __version__} | dict.fromkeys(SAME_VERSIONS, "none")
    for package in SAME_VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[package] = importlib.metadata.version(package)
    return packages


class DsindexWorker:
    """A process on some node that runs calls; Ray's dashboard shows the name of this class.

    Args:
        environment: Environment variables to set.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)

    def begin(self) -> int:
        """Import the modules that calls need; return the process id."""
        return begin_worker()

    def receive(self, key: str, value: object) -> None:
        """Keep a shared value, which Ray fetches from the object store."""
        received[key] = value

    def run(self, pickled: bytes) -> bytes:
        """Run one call; check this node first if the driver asks for it.

        Sending pickled bytes costs the driver a tenth of Ray's own pickling of every argument and value.
        """
        check, function, arguments = pickle.loads(pickled)  # noqa: S301 - the driver sent it
        if check is not None and (faults := list(islice(check.faults(), 5))):
            node = f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
            return pickle.dumps((None, InputError(*(f"{node}: {fault}" for fault in faults))))
        return pickle.dumps(run_guarded(function, arguments))


class RayExecutor(Executor):
    """Runs calls on workers of a Ray cluster."""

    kind = "ray"
    loss_errors = (ray.exceptions.RayError,)

    def __init__(self, *, address: str | None, workers: int | None) -> None:
        """Connect to a cluster, unless this process is connected already.

        Args:
            address: The cluster to join; None starts a private one.
            workers: Number of calls that run at once; None: all CPUs of the cluster.

        Raises:
            TaskError: If the cluster cannot be started or reached.
        """
        super().__init__(workers or 1)
        self._is_guest = ray.is_initialized()
        dashboard = ""
        if not self._is_guest:
            with keep_sigterm():
                dashboard = connect(address, workers)
        self._head: str = ray.get_runtime_context().gcs_address
        self._num_workers = workers
        self._is_private = address is None and not self._is_guest
        self._environment = {name: os.environ[name] for name in STORE_VARIABLES if name in os.environ}
        self._environment["TOKENIZERS_PARALLELISM"] = "false"
        self._check: Shared | None = None
        """The NodeCheck that each worker gets once."""
        self._head_answers = True
        self._look_time = self._answer_time = self._worker_time = time.monotonic()
        num_nodes, num_cpus = self._count_cpus()
        if not self._is_private:
            dashboard_note = f", dashboard http://{dashboard}" if dashboard else ""
            size = f"{count(num_nodes, 'node')}, {count(num_cpus, 'CPU')}"
            self.introduction = f"joined the Ray cluster at {self._head}: {size}{dashboard_note}"

    def share(self, value: object) -> object:
        """Put a value into the object store, from which each worker fetches it once."""
        return Shared(uuid.uuid4().hex, ray.put(value))

    def require_seen(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Make workers check their versions and some of these paths before their next call."""
        paths = list(dict.fromkeys(absolute(path) for path in local_paths(files) if os.path.isfile(path)))
        sampled_paths = islice(paths, 0, None, -(-len(paths) // CHECKED_FILES) or 1)
        sizes = {path: os.path.getsize(path) for path in sampled_paths}
        writable_folders = [absolute(folder) for folder in local_paths(folders) if os.access(folder, os.W_OK)]
        self._check = Shared(uuid.uuid4().hex, NodeCheck(versions=versions(), sizes=sizes, folders=writable_folders))

    def wait(self, timeout: float) -> list[Outcome]:
        """Return the calls that ended, including those whose worker or node was lost.

        Raises:
            ClusterLostError: If the head is lost.
            TaskError: If no worker can start.
        """
        self._look_if_due()
        return super().wait(timeout)

    def hire(self) -> tuple[Worker, Future[Any]]:
        """Request an actor, which starts once the cluster has a CPU for it."""
        actor = _ACTOR.remote(self._environment)
        return Worker(handle=actor), actor.begin.remote().future()

    def give(self, worker: Worker, call: Call) -> Future[Any]:
        """Send a call, after those shared values that the actor lacks."""
        for shared in worker.take_unsent(call):
            worker.handle.receive.remote(shared.key, shared.value)
        arguments = tuple(Shared(arg.key) if isinstance(arg, Shared) else arg for arg in call.arguments)
        check = None
        if self._check is not None and self._check.key not in worker.received:
            worker.received.add(self._check.key)
            check = self._check.value
        task = worker.handle.run.options(name=show_name(call.name))
        future: Future[Any] = task.remote(pickle.dumps((check, call.function, arguments))).future()
        return future

    def result_of(self, future: Future[Any]) -> Any:  # noqa: ANN401 - of any function
        """Return the unpickled result of a call, or the process id of a started actor."""
        result = future.result()
        return pickle.loads(result) if isinstance(result, bytes) else result  # noqa: S301 - a worker of ours sent it

    def end(self, worker: Worker) -> None:
        """Kill an actor."""
        if self._head_answers:
            ray.kill(worker.handle)

    def close(self) -> None:
        """Disconnect, and stop a private cluster; a connection that was open before stays open."""
        super().close()
        if not self._is_guest and self._head_answers:
            with keep_sigterm():
                ray.shutdown()

    def _look_if_due(self) -> None:
        """Every LOOK_SECONDS, check whether the head answers, and count the cluster's CPUs.

        The head is tried before any request is sent to it: Ray ends this process if a request takes a minute.
        """
        now = time.monotonic()
        if now - self._look_time < LOOK_SECONDS:
            return
        self._look_time, self._head_answers = now, try_port(self._head) is None
        if self._head_answers:
            self._answer_time = now
            self._count_cpus()
            return
        self._next_hire = now + LOOK_SECONDS
        if now - self._answer_time >= LOST_SECONDS:
            msg = f"{self._head}: the head of the Ray cluster has not answered for {LOST_SECONDS:.0f} s and is lost"
            raise ClusterLostError(msg)

    def _count_cpus(self) -> tuple[int, int]:
        """Count nodes and CPUs, and set how many calls and actors there may be.

        Actors beyond the CPUs are pending, so that an autoscaler adds nodes; a private cluster has no autoscaler.
        """
        nodes = [node for node in ray.nodes() if node["Alive"]]
        num_cpus = int(sum(node["Resources"].get("CPU", 0) for node in nodes))
        self.slots = self._num_workers or max(1, num_cpus)
        self.backlog = 0 if self._num_workers else max(self.slots, MIN_BACKLOG)
        pending = 0 if self._is_private else min(self.backlog, num_cpus or MIN_BACKLOG, MAX_PENDING)
        self.max_workers = self.slots + pending
        now = time.monotonic()
        if not self._queue or any(worker.pid for worker in self._workers):
            self._worker_time = now
        seconds = now - self._worker_time
        reason = f"other jobs use all {num_cpus:,} CPUs" if num_cpus else "no node of the cluster has CPUs"
        text = f"waiting for {seconds:.0f} s: {reason}; `ray status` says more"
        self.waiting = text if seconds > BUSY_SECONDS else None
        return len(nodes), num_cpus


_ACTOR: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0)(DsindexWorker)


def connect(address: str | None, workers: int | None) -> str:
    """Connect this process to a cluster; return the address of its dashboard, empty if it has none.

    Args:
        address: The cluster to join: HOST:PORT, HOST, or auto for the one on this machine; None starts a private one.
        workers: Number of CPUs of a private cluster; None for all that this process may use.

    Raises:
        TaskError: If the cluster cannot be started or reached.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"address": "local", "num_cpus": workers or available_cpus(), "include_dashboard": False}
        place, hint = "a local Ray instance", "try again, or use --executor local"
    else:
        options["address"] = place = address if address == "auto" else require_listener(address)
        hint = (
            f"start a cluster (ray start --head) or name one as HOST:{CLUSTER_PORT}, from one of its nodes; if it has "
            f"a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; from elsewhere: ray job submit -- dsindex …"
        )
    try:
        return str(ray.init(**options).dashboard_url or "")
    except Exception as error:
        raise TaskError(f"{place}: cannot be started or reached ({last_line(error)})", hint=hint) from error


def require_listener(address: str) -> str:
    """Return the address of a cluster's head as HOST:PORT, after it has accepted a connection.

    Without this check, Ray tries for minutes to reach an address at which nothing listens.

    Raises:
        TaskError: If the address is invalid, or nothing listens there.
    """
    head = address if re.search(r":\d+$", address) else f"{address}:{CLUSTER_PORT}"
    reason = try_port(head)
    if reason is not None:
        place = show_name(remove_secrets(head))
        hint = (
            "name the head as HOST:PORT or auto in --address or RAY_ADDRESS, or use --executor local; a job server "
            "takes jobs: ray job submit --address http://HOST:8265 -- dsindex …"
        )
        raise TaskError(f"{place}: no head of a Ray cluster answers there ({reason})", hint=hint)
    return head


def try_port(address: str) -> str | None:
    """Return why no connection is accepted at HOST:PORT; None if one is."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError, OverflowError) as error:  # also for invalid names and ports
        return getattr(error, "strerror", None) or str(error)
    return None
