"""Join a Ray cluster or start a private one, and see how large it is, who adds nodes, and why none come.

Before Ray connects, the cluster's head is asked whether it is there and accepts the token: `ray.init()` would try for
minutes, and print lines of C++ meanwhile. The question is a gRPC call without arguments: no message of Ray's is built.

An autoscaler adds nodes only while it sees a demand. Workers that wait for a CPU are one, and it is not made with
`ray.autoscaler.sdk.request_resources`, which would be less safe:

- A cluster has one such request, so several builds would overwrite each other's. The demands of workers add up.
- It outlives its driver: nodes would be kept and paid for until somebody takes it back. Workers end with their driver.
- The autoscaler of version 2, KubeRay's, starts no node at all if it cannot grant the whole request. For workers it
  starts as many as it may.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections import Counter
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
import ray.util
from ray._private import services  # no public function tells the address of this machine's cluster
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # an extension module, without types
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.experimental.internal_kv import _internal_kv_get

import dsindex
from dsindex.errors import TaskError
from dsindex.execution.calls import Shortage
from dsindex.execution.local import available_cpus
from dsindex.execution.ray_address import (
    CLUSTER_PORT,
    JOB_SERVER_PORT,
    JOB_VARIABLE,
    Address,
    parse_address,
    try_port,
)
from dsindex.execution.ray_thread import OwnThread
from dsindex.execution.ray_token import VARIABLES, Token, TokenError, find_token, hide_secrets, refusal
from dsindex.execution.store_variables import restore_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SINGLE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Environment of all workers: one thread per task. Variables per task would make Ray start new workers."""
ANSWER_SECONDS = 10.0
"""How long a head may take to answer a question; one under load needs more than a moment."""
LONGEST_TMPDIR = 30
"""Bytes of a path to which Ray can add its session and a socket: 107 in all (unix(7)), of which it needs about 70."""
JOIN_SECONDS = 30.0
"""How long Ray may take to join a cluster, many times what it needs; on a machine that is no node it tries for 60 s."""
LOOK_SECONDS = 5.0
"""Interval at which a cluster with nodes is looked at."""
SHORTAGE_LOOK_SECONDS = 1.0
"""Interval at which a cluster without nodes is looked at."""
MOST_REQUESTED_CPUS = 1000
"""Most CPUs to ask for at once, which is also the number of tasks that Ray's autoscaler looks at."""
SILENT_SECONDS = 120.0
"""Time in which an autoscaler has to report; one that runs beside the head, as on Kubernetes, may start after it."""
LOST_NODES_SECONDS = 600.0
"""Time in which the nodes of a cluster without an autoscaler may return after all of them were lost."""
REASON_CHARACTERS = 300
_REMEDIES = {
    "--address": "check --address",
    "RAY_ADDRESS": "correct or unset RAY_ADDRESS",
    "auto": "the cluster that was last started on this machine is gone: name a running one with --address HOST:PORT",
}
"""What to do about an address, by what named it."""


def connect(address: str | None, workers: int | None, *, ship_code: bool) -> dict[str, str | None]:
    """Connect this process to a cluster.

    Args:
        address: The cluster to join, as HOST:PORT, HOST or auto; None starts a private one.
        workers: Number of CPUs of a private one; None: all that this process may use.
        ship_code: Whether to send this process's code to the nodes of a named cluster, unless Ray's job server started
            this process and has sent the code already.

    Returns:
        The environment variables that were changed, with what they were before; `restore_variables` takes them.

    Raises:
        TaskError: If the cluster cannot be started or reached.
        TokenError: If its token is missing, cannot be sent, or is not accepted.
    """
    accelerators = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    before = {name: os.environ.get(name) for name in (*SINGLE_THREAD, *VARIABLES, accelerators)}
    try:
        os.environ.setdefault(accelerators, "0")
        if address is None:
            _start(workers)
        else:
            _join(address, ship_code=ship_code)
    except BaseException:
        restore_variables(before)
        raise
    return before


def restore_variables(before: Mapping[str, str | None]) -> None:
    """Restore environment variables, and what Ray read from them: it would still look for a private cluster's token."""
    restore_environment(before)
    _set_authentication({})


def _start(workers: int | None) -> None:
    """Start a private cluster.

    It has a token of its own: for lack of one, Ray would write one into the home folder, by which every head that is
    started there later would have authentication, and the nodes that join it would not.
    """
    # Inherited by workers; a runtime_env would waste those that Ray starts in advance (1.5 s).
    os.environ.update(SINGLE_THREAD)
    if os.environ.get("RAY_AUTH_MODE", "").lower() in {"", "token"}:
        _set_authentication({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    # The address is needed: a plain init() joins any cluster that still runs on this machine.
    options = {"address": "local", "num_cpus": workers or available_cpus(), "include_dashboard": False}
    with _told("a local Ray instance"):
        try:
            _init(**options, **_temporary_folder())
        except Exception as error:
            if not _is_late(error):
                raise
            _init(**options, **_temporary_folder())


def _temporary_folder() -> dict[str, str]:
    """Return where Ray keeps its sockets if TMPDIR, as some batch systems set it, is too long for their paths."""
    folder = os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))
    if len(os.fsencode(folder)) <= LONGEST_TMPDIR:
        return {}
    short = next((each for each in ("/tmp", "/var/tmp", "/dev/shm") if os.access(each, os.W_OK | os.X_OK)), None)
    return {} if short is None else {"_temp_dir": f"{short}/ray"}


def _is_late(error: Exception) -> bool:
    """Whether Ray has given up on its own node, for which it waits 30 s; it raises a plain Exception then."""
    return "timed out during startup" in str(error)


def _join(named: str, *, ship_code: bool) -> None:
    """Join a cluster."""
    source = "RAY_ADDRESS" if named == os.environ.get("RAY_ADDRESS") else "--address"
    token = find_token()
    address, source = locate(named, source)
    check_head(address, token, source=source)
    # Ray replaces the name of this machine's own interface by the machine's address.
    reached = address
    if address.host in {"localhost", "127.0.0.1", "::1"}:
        reached = Address(host=ray.util.get_node_ip_address(), port=address.port)
        _check_forwarded(address, reached, token)
    if token is None or not (uses_tls() or wants_token(reached)):
        # With a token this process would refuse the cluster's nodes, which have none to send.
        _set_authentication({"RAY_AUTH_MODE": "disabled"})
    else:
        path = {} if token.place == "RAY_AUTH_TOKEN" else {"RAY_AUTH_TOKEN_PATH": token.place}
        _set_authentication({"RAY_AUTH_MODE": "token", **path})
    runtime_env: dict[str, Any] = {"env_vars": SINGLE_THREAD}
    if ship_code and JOB_VARIABLE not in os.environ:
        runtime_env["py_modules"] = [os.path.dirname(dsindex.__file__)]
        runtime_env["excludes"] = ["__pycache__"]
    thread = OwnThread("dsindex-join")
    with _told(f"the Ray cluster at {address}"):
        joining = thread.submit(lambda: _init(address=str(address), runtime_env=runtime_env))
        thread.end()
        try:
            joining.result(JOIN_SECONDS)
        except NotYet as error:
            if joining.done():
                raise
            job_server = Address(host=address.host, port=JOB_SERVER_PORT)
            raise TaskError(
                f"{address}: Ray did not join that cluster within {JOIN_SECONDS:.0f} s: this machine may not be a node "
                f"of it, and a driver must run on one; run the command there, or as a job from here: "
                f"dsindex submit --address http://{job_server} -- …"
            ) from error


def locate(named: str, source: str) -> tuple[Address, str]:
    """Return the address of a cluster's head, and what named it.

    Args:
        named: HOST:PORT, HOST, or auto for the cluster in RAY_ADDRESS or else on this machine.
        source: What named it, for messages: --address or RAY_ADDRESS.

    Raises:
        TaskError: If there is no cluster on this machine, or the address is none.
    """
    if named == "auto" and (elsewhere := os.environ.get("RAY_ADDRESS", "auto")) != "auto":
        named, source = elsewhere, "RAY_ADDRESS"
    if named != "auto":
        return parse_address(named, source=source), source
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of several clusters
    with contextlib.suppress(AttributeError):  # earlier versions of Ray keep nothing
        services.find_gcs_addresses.cache_clear()
    try:
        found = services.canonicalize_bootstrap_address("auto")
    except ConnectionError as error:
        raise TaskError(
            f"{source}: auto: expected a Ray cluster on this machine, found none; start one (ray start --head), "
            f"name another as HOST:{CLUSTER_PORT}, or use --executor local"
        ) from error
    return parse_address(found, source="auto"), "auto"


def check_head(address: Address, token: Token | None, *, source: str = "--address") -> None:
    """Check that what listens at an address is a cluster's head and accepts the token.

    Args:
        address: Whom to ask.
        token: The token to send.
        source: What named the address, for messages: --address, RAY_ADDRESS, or auto.

    Raises:
        TaskError: If nobody answers, or something else.
        TokenError: If the head does not accept the token, or wants one and there is none.
    """
    remedy = f"{_REMEDIES[source]}, or use --executor local"
    reason = try_port(address)
    if reason is not None:
        msg = f"{address}: expected the head of a Ray cluster, but nothing answers there ({reason}); {remedy}"
        raise TaskError(msg)
    code = "OK" if uses_tls() else _ask(address, token)
    if code == "OK":
        return
    if code == "UNAUTHENTICATED":
        raise TokenError(refusal(str(address), token))
    usual = Address(host=address.host, port=CLUSTER_PORT)
    if code == "UNIMPLEMENTED":
        problem = f"expected the head of a Ray cluster, got another port of Ray's; the head's is usually {usual}"
    else:  # a program that speaks first may not be told from one that is silent
        problem = (
            f"expected the head of a Ray cluster, got no answer of one ({code.lower().replace('_', ' ')}): it may "
            f"be starting or ending, or the port is another program's; a head's is usually {usual}, and a dashboard "
            f"takes jobs: dsindex submit --address http://{address} -- …"
        )
    raise TaskError(f"{address}: {problem}; {remedy}")


def uses_tls() -> bool:
    """Tell whether Ray encrypts its connections, so that only Ray can ask a head."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}


def wants_token(head: Address) -> bool:
    """Tell whether a cluster's head refuses those who send no token; one that gives no answer may."""
    return _ask(head, None) != "OK"


def _ask(head: Address, token: Token | None) -> str:
    """Ask a head whether a list of no nodes is alive, which only heads can answer; return gRPC's code by name."""
    import grpc  # of ray[default], which clusters need

    metadata = [] if token is None else [("authorization", f"Bearer {token.value}")]
    with grpc.insecure_channel(str(head), options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/ray.rpc.NodeInfoGcsService/CheckAlive")
        try:
            ask(b"", timeout=ANSWER_SECONDS, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def _check_forwarded(named: Address, reached: Address, token: Token | None) -> None:
    """Refuse an address that leads to a head on another machine, as a forwarded port does."""
    try:
        check_head(reached, token)
    except TaskError as error:
        raise TaskError(
            f"{named}: a head answers there, but not at {reached}, to which Ray connects instead: a forwarded port "
            f"does not make this machine a node of the cluster; run it as a job: dsindex submit -- …"
        ) from error


def _set_authentication(variables: Mapping[str, str]) -> None:
    """Make Ray use these variables and those that are set: it read others when it was imported, or has used them."""
    os.environ.update(variables)
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _init(**options: Any) -> None:  # noqa: ANN401 - as `ray.init` has them
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)


@contextlib.contextmanager
def _told(place: str) -> Iterator[None]:
    """Turn what `ray.init` raises into a TaskError of one sentence."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise TaskError(
            "expected a command line and a working folder in UTF-8, which Ray requires, got another name; write "
            "such names in a --config file, as \\udcXX within double quotes, or use --executor local"
        ) from error
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        reason = hide_secrets(" ".join(str(error).split()))
        msg = f"{place}: cannot be started or reached ({reason}); check --address, or use --executor local"
        raise TaskError(msg) from error
    except Exception as error:
        if not _is_late(error):
            raise
        raise TaskError(
            f"{place}: did not start within Ray's own limit of 30 s, twice; this machine is busy or slow: try again, "
            f"or use --executor local"
        ) from error


class ClusterSize:
    """The CPUs of the connected cluster, as of the last look.

    Args:
        address: The cluster's address, for messages.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.num_cpus = 0
        self.largest_memory = 0.0
        """Memory for tasks of the node that has most of it, in bytes."""
        self.shortage: Shortage | None = None
        """Set while there is no node with CPUs."""
        self.grows = False
        """Whether an autoscaler adds nodes."""
        self._had_nodes = False
        self._num_wanted = 1
        self._looked = 0.0
        self.look()

    def look_if_due(self) -> bool:
        """Look at the cluster if it is time, and return whether it was.

        Raises:
            TaskError: If no node has CPUs, and nothing adds any, or the nodes that were lost did not return in time.
        """
        interval = LOOK_SECONDS if self.shortage is None else SHORTAGE_LOOK_SECONDS
        if time.monotonic() - self._looked <= interval:
            return False
        self.look()
        shortage = self.shortage
        if shortage is not None and not shortage.adds_nodes:
            silent = SILENT_SECONDS if shortage.adds_nodes is None else 0.0
            if time.monotonic() - shortage.since >= (LOST_NODES_SECONDS if self._had_nodes else silent):
                what = "lost all its nodes with CPUs" if self._had_nodes else "has no node with CPUs"
                raise TaskError(
                    f"the Ray cluster at {self._address} {what}: {shortage.reason}; start a node that joins it "
                    f"(ray start --address=HOST:PORT on another machine), and run the same command again"
                )
        return True

    def look(self) -> None:
        """Look at the cluster: nodes are lost, and an autoscaler adds nodes while tasks wait."""
        self._looked = time.monotonic()
        nodes = living_nodes()
        self.num_cpus = int(sum(node["Resources"]["CPU"] for node in nodes))
        self.largest_memory = max((node["Resources"].get("memory", 0) for node in nodes), default=0)
        adds_nodes, reason = ask_autoscaler()
        self.grows = bool(adds_nodes)
        if nodes:
            self._had_nodes = True
            self.shortage = None
            return
        since = self._looked if self.shortage is None else self.shortage.since
        self.shortage = Shortage(num_wanted=self._num_wanted, since=since, reason=reason, adds_nodes=adds_nodes)

    def want(self, number: int) -> int:
        """Note how many CPUs are waited for; return the number, which is bounded."""
        self._num_wanted = max(1, min(number, MOST_REQUESTED_CPUS))
        return self._num_wanted


def living_nodes() -> list[dict[str, Any]]:
    """Return the nodes that can run tasks, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def count_waiting_cpus() -> int:
    """Return the number of CPUs that tasks and actors of all jobs wait for; 0 if the cluster does not say."""
    status = _cluster_status()
    demands = [] if status is None else status.resource_demands.ray_task_actor_demand
    return int(sum(each.count * each.bundle.get("CPU", 0) for demand in demands for each in demand.bundles_by_count))


def ask_autoscaler() -> tuple[bool | None, str]:
    """Return whether the connected cluster's autoscaler adds nodes, None if none has reported yet, and what it says.

    Version 2 answers `get_cluster_status`; version 1 stores what it says.
    """
    status = _cluster_status()
    if status is not None and status.stats.autoscaler_version != "0":
        return True, describe_second_version(status)
    with contextlib.suppress(ray.exceptions.RayError, RuntimeError, OSError, ValueError):
        text, error = _internal_kv_get("__autoscaling_status"), _internal_kv_get("__autoscaling_error")
        report = json.loads(text).get("autoscaler_report") if text else None
        reason = describe_first_version(report or {})
        if reason is None:
            return False, "no autoscaler adds nodes to this cluster"
        if error:
            return True if text else None, _shorten(f"the autoscaler failed: {error.decode(errors='replace')}")
        if report:
            return True, reason
    return None, "no autoscaler has reported yet"


def _cluster_status() -> Any:  # noqa: ANN401 - Ray's types are not read
    try:
        return get_cluster_status(ray.get_runtime_context().gcs_address, timeout=5)
    except Exception:  # noqa: BLE001 - an answer that matters only for waiting must not end a build
        return None


def describe_second_version(status: Any) -> str:  # noqa: ANN401 - Ray's types are not read
    """Return what the autoscaler of version 2 is doing, from a ClusterStatus."""
    starting: Counter[str] = Counter()
    for launch in status.pending_launches:
        starting[launch.ray_node_type_name] += launch.count
    starting.update(node.ray_node_type_name for node in status.pending_nodes)
    return _describe(starting, {launch.ray_node_type_name: launch.details for launch in status.failed_launches})


def describe_first_version(report: Mapping[str, Any]) -> str | None:
    """Return what the autoscaler of version 1 is doing, from its report; None if it adds no nodes."""
    types = report.get("node_type_mapping") or {}
    if types and all(kind == f"node_{name}" for name, kind in types.items()):
        return None  # the names that it invents for nodes that others have started
    starting = Counter(report.get("pending_launches") or {})
    starting.update(kind for _, kind, _ in report.get("pending_nodes") or ())
    known = (report.get("node_availability_summary") or {}).get("node_availabilities") or {}
    failures = {
        kind: f"{number} failed to start"
        for kind, number in Counter(kind for _, kind in report.get("failed_nodes") or ()).items()
    }
    for kind, node in known.items():
        if why := node.get("unavailable_node_information"):
            failures[kind] = f"{why['category']}: {why['description']}"
    return _describe(starting, failures)


def _describe(starting: Mapping[str, int], failures: Mapping[str, str | None]) -> str:
    parts = [f"{number} × {kind} starting" for kind, number in sorted(starting.items()) if number]
    parts += [f"{kind} not available ({why or 'no reason given'})" for kind, why in sorted(failures.items())]
    return _shorten(", ".join(parts) or "the autoscaler starts no node yet; `ray status` and its max_workers say more")


def _shorten(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= REASON_CHARACTERS else f"{text[: REASON_CHARACTERS - 1]}…"
