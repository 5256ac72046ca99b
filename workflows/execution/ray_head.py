"""Ask the head of a Ray cluster whether it is one and accepts the token, and where its job server is.

Source of the protocol: Ray's `gcs_service.proto` (InternalKVGcsService) over gRPC, with the token as a bearer.
"""

from __future__ import annotations

import os

import grpc
from ray.core.generated import gcs_service_pb2

from dsindex.errors import TaskError
from workflows.execution.ray_address import (
    CLUSTER_PORT,
    Address,
    Protocol,
    UnreachableError,
    ask_protocol,
    parse_address,
)
from workflows.execution.ray_token import Token, TokenError, find_token, hide_token, refusal

_HEAD_SECONDS = 10.0
"""How long a head may take to answer a question; one under load needs more than a moment."""


def check_head(address: Address, token: Token | None, *, source: str = "--address") -> None:
    """Check that what listens at an address is a cluster's head and accepts the token.

    Args:
        address: Whom to ask.
        token: The token to send.
        source: What named the address, for messages: --address or RAY_ADDRESS.

    Raises:
        TaskError: If nobody answers, or something else.
        TokenError: If the head does not accept the token, or wants one and there is none.
    """
    remedy = "correct or unset RAY_ADDRESS" if source == "RAY_ADDRESS" else "check --address"
    remedy += ", or use --executor local"
    try:
        protocol = ask_protocol(address, expected="grpc")
    except UnreachableError as error:
        msg = f"{address}: expected the head of a Ray cluster, but nothing answers there ({error}); {remedy}"
        raise TaskError(msg) from error
    if os.environ.get("RAY_USE_TLS", "0").lower() in {"1", "true"}:
        return  # only Ray can ask further
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


def _ask_dashboard(head: Address, token: Token | None) -> str:
    """Return the address of a head's dashboard, as HOST:PORT; empty if it has none.

    Raises:
        grpc.RpcError: If it does not answer, refuses the token, or is no head.
    """
    request = gcs_service_pb2.InternalKVGetRequest(key=b"dashboard", namespace=b"dashboard")
    metadata = [] if token is None else [("authorization", f"Bearer {token.value}")]
    with grpc.insecure_channel(str(head), options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/ray.rpc.InternalKVGcsService/InternalKVGet")
        answer = ask(request.SerializeToString(), timeout=_HEAD_SECONDS, metadata=metadata)
    return str(gcs_service_pb2.InternalKVGetReply.FromString(answer).value, "utf-8", "replace")
