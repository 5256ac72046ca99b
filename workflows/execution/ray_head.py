"""Ask the head of a Ray cluster whether it is one, accepts the token and knows this machine, and for its job server.

Source of the protocol: Ray's `gcs_service.proto` over gRPC, with the token as a bearer.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import grpc
from ray.core.generated import gcs_pb2, gcs_service_pb2

from dsindex.errors import TaskError
from workflows.execution.ray_address import (
    CLUSTER_PORT,
    JOB_SERVER_PORT,
    Address,
    Protocol,
    UnreachableError,
    ask_protocol,
    parse_address,
    require_listener,
)
from workflows.execution.ray_token import Token, TokenError, find_token, hide_token, refusal

if TYPE_CHECKING:
    from collections.abc import Collection

_NODE_TRIES = 4
"""How often a head is asked for the nodes of this machine, once a second."""
_HEAD_SECONDS = 10.0
"""How long a head may take to answer a question; one under load needs more than a moment."""

_REMEDIES = {
    "--address": "check --address",
    "RAY_ADDRESS": "correct or unset RAY_ADDRESS",
    "auto": "the cluster that was last started on this machine is gone: name a running one with --address HOST:PORT",
}
"""What to do about an address, by what named it."""


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
    try:
        if uses_tls():
            require_listener(address)
            return
        protocol = ask_protocol(address, expected="grpc")
    except UnreachableError as error:
        msg = f"{address}: expected the head of a Ray cluster, but nothing answers there ({error}); {remedy}"
        raise TaskError(msg) from error
    usual = Address(host=address.host, port=CLUSTER_PORT)
    if protocol is Protocol.HTTP:
        msg = (
            f"{address}: expected the head of a Ray cluster, got a web server such as a cluster's dashboard; the "
            f"head's own port is usually {usual}, and the dashboard takes jobs: "
            f"dsindex submit --address http://{address} -- …"
        )
        raise TaskError(msg)
    if protocol is Protocol.OTHER:
        msg = f"{address}: expected the head of a Ray cluster, got a program that speaks another protocol; {remedy}"
        raise TaskError(msg)
    try:
        _ask_dashboard(address, token)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise TokenError(refusal(str(address), token)) from error
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            problem = f"expected the head of a Ray cluster, got another port of Ray's; the head's is usually {usual}"
        else:
            reason = hide_token(" ".join((error.details() or error.code().name).split()))
            problem = f"the head of the Ray cluster does not answer a question ({reason}); it may be starting or ending"
        raise TaskError(f"{address}: {problem}; {remedy}") from error


def uses_tls() -> bool:
    """Tell whether Ray encrypts its connections, so that only Ray can ask a head."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}


def wants_token(head: Address) -> bool:
    """Tell whether a cluster's head refuses those who send no token; one that gives no answer may."""
    try:
        _ask_dashboard(head, None)
    except grpc.RpcError:
        return True
    return False


def find_job_server(head: Address) -> Address | None:
    """Ask a cluster's head where its dashboard is, which is also its job server.

    Returns:
        None if it has none, or cannot be asked.
    """
    try:
        answer = _ask_dashboard(head, find_token())
    except (grpc.RpcError, TokenError):
        return None
    try:
        return parse_address(answer, source="dashboard") if answer else None
    except TaskError:
        return None


def check_node(head: Address, token: Token | None, node_ids: Collection[str]) -> None:
    """Check that one of the nodes that run on this machine belongs to a cluster; Ray would look for one for a minute.

    Args:
        head: The cluster's head.
        token: The token to send.
        node_ids: The ids of the nodes that run here, in hexadecimal.

    Raises:
        TaskError: If none does.
    """
    for number in range(_NODE_TRIES if node_ids else 1):  # a node that has just been started may not be known yet
        time.sleep(1 if number else 0)
        if node_ids and _know_node(head, token, node_ids):
            return
    found = find_job_server(head)
    port = JOB_SERVER_PORT if found is None else found.port
    msg = (
        f"{head}: this machine is not a node of that Ray cluster, and a driver must run on one; run the command there, "
        f"or as a job from here: dsindex submit --address http://{Address(host=head.host, port=port)} -- …"
    )
    raise TaskError(msg)


def _know_node(head: Address, token: Token | None, node_ids: Collection[str]) -> bool:
    """Ask a head whether any of these nodes is alive in its cluster; a head that gives no answer may know them."""
    request = gcs_service_pb2.GetAllNodeInfoRequest(
        node_selectors=[{"node_id": bytes.fromhex(node_id)} for node_id in node_ids],
        state_filter=gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE,
    )
    try:
        answer = _ask(head, token, "NodeInfoGcsService/GetAllNodeInfo", request.SerializeToString())
    except grpc.RpcError:
        return True
    return bool(gcs_service_pb2.GetAllNodeInfoReply.FromString(answer).node_info_list)


def _ask_dashboard(head: Address, token: Token | None) -> str:
    """Return the address of a head's dashboard, as HOST:PORT; empty if it has none.

    Raises:
        grpc.RpcError: If it does not answer, refuses the token, or is no head.
    """
    request = gcs_service_pb2.InternalKVGetRequest(key=b"dashboard", namespace=b"dashboard")
    answer = _ask(head, token, "InternalKVGcsService/InternalKVGet", request.SerializeToString())
    return str(gcs_service_pb2.InternalKVGetReply.FromString(answer).value, "utf-8", "replace")


def _ask(head: Address, token: Token | None, method: str, request: bytes) -> bytes:
    metadata = [] if token is None else [("authorization", f"Bearer {token.value}")]
    with grpc.insecure_channel(str(head), options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary(f"/ray.rpc.{method}")
        return bytes(ask(request, timeout=_HEAD_SECONDS, metadata=metadata))
