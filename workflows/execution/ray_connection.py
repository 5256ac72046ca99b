"""Connect this process to a Ray cluster, or start a private one.

Before Ray connects, the cluster's head is asked whether it is there and accepts the token: `ray.init()` would try for
minutes, and print lines of C++ meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions
from ray._private import services
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # an extension module, without types

import dsindex
import workflows
from dsindex.errors import TaskError
from workflows.execution.cpus import available_cpus
from workflows.execution.ray_address import CLUSTER_PORT, JOB_VARIABLE, Address, parse_address
from workflows.execution.ray_head import check_head, check_node, uses_tls, wants_token
from workflows.execution.ray_token import VARIABLES, Token, find_token, hide_token

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SINGLE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
"""Environment of all workers: one thread per task. Variables per task would make Ray start new workers."""


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
    before = {name: os.environ.get(name) for name in (*SINGLE_THREAD, *VARIABLES)}
    try:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if address is None:
            _start(workers)
        else:
            _join(address, ship_code=ship_code)
    except BaseException:
        restore_variables(before)
        raise
    return before


def restore_variables(before: Mapping[str, str | None]) -> None:
    """Restore environment variables."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _start(workers: int | None) -> None:
    """Start a private cluster.

    It has a token of its own: for lack of one, Ray would write one into the home folder, by which every head that is
    started there later would have authentication, and the nodes that join it would not.
    """
    # Inherited by workers; a runtime_env would waste those that Ray starts in advance (1.5 s).
    os.environ.update(SINGLE_THREAD)
    if os.environ.get("RAY_AUTH_MODE", "").lower() in {"", "token"}:
        _set_authentication({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    with _told("a local Ray instance"):
        # The address is needed: a plain init() joins any cluster that still runs on this machine.
        _init(address="local", num_cpus=workers or available_cpus(), include_dashboard=False)


def _join(named: str, *, ship_code: bool) -> None:
    """Join a cluster."""
    source = "RAY_ADDRESS" if named == os.environ.get("RAY_ADDRESS") else "--address"
    token = find_token()
    address, source = locate(named, source)
    check_head(address, token, source=source)
    # Ray replaces the name of this machine's own interface by the machine's address.
    reached = Address(host=services.resolve_ip_for_localhost(address.host), port=address.port)
    if reached != address:
        _check_forwarded(address, reached, token)
    if not uses_tls():
        check_node(reached, token, services.find_node_ids())
    if token is None or not (uses_tls() or wants_token(reached)):
        # With a token this process would refuse the cluster's nodes, which have none to send.
        _set_authentication({"RAY_AUTH_MODE": "disabled"})
    else:
        path = {} if token.place == "RAY_AUTH_TOKEN" else {"RAY_AUTH_TOKEN_PATH": token.place}
        _set_authentication({"RAY_AUTH_MODE": "token", **path})
    runtime_env: dict[str, Any] = {"env_vars": SINGLE_THREAD}
    if ship_code and JOB_VARIABLE not in os.environ:
        packages = (dsindex, workflows)
        runtime_env["py_modules"] = [os.path.dirname(package.__file__ or "") for package in packages]
        runtime_env["excludes"] = ["__pycache__"]
    with _told(f"the Ray cluster at {address}"):
        _init(address=str(address), runtime_env=runtime_env)


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
    services.find_gcs_addresses.cache_clear()
    try:
        found = services.canonicalize_bootstrap_address("auto")
    except ConnectionError as error:
        msg = (
            f"{source}: auto: expected a Ray cluster on this machine, found none; start one (ray start --head), "
            f"name another as HOST:{CLUSTER_PORT}, or use --executor local"
        )
        raise TaskError(msg) from error
    return parse_address(found, source="auto"), "auto"


def _check_forwarded(named: Address, reached: Address, token: Token | None) -> None:
    """Refuse an address that leads to a head on another machine, as a forwarded port does."""
    try:
        check_head(reached, token)
    except TaskError as error:
        msg = (
            f"{named}: a head answers there, but not at {reached}, to which Ray connects instead: a forwarded port "
            f"does not make this machine a node of the cluster; run it as a job: dsindex submit -- …"
        )
        raise TaskError(msg) from error


def _set_authentication(variables: Mapping[str, str]) -> None:
    """Make Ray use these variables and those that are set; it may have read others before."""
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
        msg = (
            "expected a command line and a working folder in UTF-8, which Ray requires, got another name; write "
            "such names in a --config file, as \\udcXX within double quotes, or use --executor local"
        )
        raise TaskError(msg) from error
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, ray.exceptions.RayError) as error:
        reason = hide_token(" ".join(str(error).split()))
        msg = f"{place}: cannot be started or reached ({reason}); check --address, or use --executor local"
        raise TaskError(msg) from error
