"""Addresses of clusters: how they are written, and what is said of servers that listen there."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import pytest
from ray.core.generated import gcs_service_pb2

from dsindex.errors import TaskError
from workflows.cluster.job_server import ClusterError, JobServer
from workflows.execution.choice import cluster_address, wants_ray
from workflows.execution.ray_address import (
    JOB_VARIABLE,
    Address,
    Protocol,
    UnreachableError,
    ask_protocol,
    parse_address,
)
from workflows.execution.ray_head import check_head, check_node, wants_token
from workflows.execution.ray_token import VARIABLES, Token, TokenError
from workflows.options.config import ExecutorConfig
from workflows.options.merge import MergeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

GIVEN = Token(value="right", place="RAY_AUTH_TOKEN")
WRONG = Token(value="wrong", place="/home/me/.ray/auth_token")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "http_proxy", "HTTP_PROXY", JOB_VARIABLE, *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


# How they are written.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("head:7000", "head:7000"),
        ("head", "head:6379"),
        ("10.0.0.1", "10.0.0.1:6379"),
        ("[fd00::1]:7000", "[fd00::1]:7000"),
        ("[fd00::1]", "[fd00::1]:6379"),
    ],
)
def test_address_is_a_host_and_a_port(text: str, expected: str) -> None:
    assert str(parse_address(text, source="--address")) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "http://head:8265",
            "such as head:6379, got the job server http://head:8265; .* submit --address http://head:8265",
        ),
        (
            "ray://head:10001",
            "such as head:6379, got ray://head:10001: Ray Client is not .* --address http://head:8265",
        ),
        *[
            (text, "expected the cluster's address as HOST:PORT, such as head:6379, or auto, got")
            for text in (
                "head:port",
                "head:0",
                "head:65536",
                "redis://head:6379",
                "head:1/x",
                "me@head:1",
                ":6379",
                "[::1",
            )
        ],
    ],
)
def test_other_addresses_are_refused(text: str, says: str) -> None:
    with pytest.raises(TaskError, match=f"RAY_ADDRESS: .*{says}"):
        parse_address(text, source="RAY_ADDRESS")


MERGE = {"input": ("a",), "output_prefix": "b"}


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        (ExecutorConfig(), {"RAY_ADDRESS": "gone:1"}, None),
        (ExecutorConfig(address="head"), {"RAY_ADDRESS": "gone:1"}, "head"),
        (ExecutorConfig(executor="ray"), {"RAY_ADDRESS": "head:1"}, "head:1"),
        (ExecutorConfig(), {"RAY_ADDRESS": "head:1", JOB_VARIABLE: "{}"}, "head:1"),
        (MergeConfig(**MERGE), {"RAY_ADDRESS": "head:1"}, "head:1"),
        (MergeConfig(**MERGE, address="local"), {"RAY_ADDRESS": "head:1"}, None),
        (MergeConfig(**MERGE), {"RAY_ADDRESS": ""}, None),
    ],
    ids=["no cluster needed", "named", "ray by name", "in a job", "work folder", "local", "empty"],
)
def test_environment_names_the_cluster_of_jobs_that_are_for_one(
    config: ExecutorConfig, environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cluster_address(config) == expected
    assert wants_ray(config) == (expected is not None)


# What listens there.


@contextlib.contextmanager
def listener(says: bytes | None) -> Iterator[Address]:
    """Accept connections and say something; None says nothing and keeps them open."""
    open_connections = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                open_connections.append(connection)
                if says is not None:
                    connection.sendall(says)
                    connection.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Address(host="127.0.0.1", port=server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in open_connections:
                connection.close()


@contextlib.contextmanager
def nobody() -> Iterator[Address]:
    """Bind a port without listening, so that nobody else can answer there."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield Address(host="127.0.0.1", port=reserved.getsockname()[1])


class Head(grpc.GenericRpcHandler):
    """Plays the head of a cluster whose token is `right`, one without tokens, or a server without its services."""

    def __init__(self, *, is_head: bool, wants_token: bool) -> None:
        self.is_head = is_head
        self.wants_token = wants_token

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if not self.is_head:
            return None
        if handler_call_details.method.endswith("NodeInfoGcsService/GetAllNodeInfo"):
            return grpc.unary_unary_rpc_method_handler(self.known_nodes)
        sent = dict(handler_call_details.invocation_metadata).get("authorization")

        def answer(_request: bytes, context: grpc.ServicerContext) -> bytes:
            if self.wants_token and sent != "Bearer right":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return bytes(gcs_service_pb2.InternalKVGetReply(value=b"127.0.0.1:12345").SerializeToString())

        return grpc.unary_unary_rpc_method_handler(answer)

    def known_nodes(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        """Answer that node aa is alive, if it is asked for."""
        asked = [
            selector.node_id for selector in gcs_service_pb2.GetAllNodeInfoRequest.FromString(request).node_selectors
        ]
        nodes = [{"node_id": b"\xaa"}] if b"\xaa" in asked else []
        return bytes(gcs_service_pb2.GetAllNodeInfoReply(node_info_list=nodes).SerializeToString())


@contextlib.contextmanager
def head(*, is_head: bool = True, wants_token: bool = True) -> Iterator[Address]:
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Head(is_head=is_head, wants_token=wants_token)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Address(host="127.0.0.1", port=port)
    finally:
        server.stop(None).wait()


def test_protocol_is_told_by_the_first_bytes() -> None:
    with head() as address:
        assert ask_protocol(address, expected="grpc") is Protocol.GRPC
        assert ask_protocol(address, expected="http") is Protocol.GRPC
    for says, expected in ((b"HTTP/1.0 400 Bad Request\r\n\r\n", Protocol.HTTP), (b"SSH-2.0-x\r\n", Protocol.OTHER)):
        with listener(says) as address:
            assert ask_protocol(address, expected="grpc") is expected


@pytest.mark.parametrize(
    ("opened", "says"),
    [
        (nobody(), "Connection refused"),
        (listener(None), "it accepts connections, but does not answer within 0 s"),
        (contextlib.nullcontext(Address(host="no-such-host.invalid", port=1)), "."),
        (contextlib.nullcontext(Address(host="x" * 70, port=1)), "."),
    ],
    ids=["nobody", "silent", "unknown host", "no host name"],
)
def test_address_without_an_answer(opened: contextlib.AbstractContextManager[Address], says: str) -> None:
    with opened as address, pytest.raises(UnreachableError, match=says):
        ask_protocol(address, expected="grpc", answer_seconds=0.1)


@pytest.mark.parametrize(
    ("opened", "source", "says"),
    [
        (
            nobody(),
            "--address",
            "expected the head of a Ray cluster, but nothing answers there (Connection refused); check",
        ),
        (nobody(), "RAY_ADDRESS", "(Connection refused); correct or unset RAY_ADDRESS, or use --executor local"),
        (
            listener(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "--address",
            "the head's own port is usually 127.0.0.1:6379, and",
        ),
        (listener(b"SSH-2.0-OpenSSH\r\n"), "--address", "got a program that speaks another protocol"),
        (listener(b""), "--address", "nothing answers there (it accepts connections, but ends them without"),
        (head(is_head=False), "--address", "got another port of Ray's; the head's is usually 127.0.0.1:6379"),
    ],
    ids=["nobody", "stale variable", "dashboard", "other program", "hangs up", "other port of Ray"],
)
def test_what_is_no_head_is_told(opened: contextlib.AbstractContextManager[Address], source: str, says: str) -> None:
    with opened as address, pytest.raises(TaskError, match=rf"^{address}: .*{re.escape(says)}"):
        check_head(address, None, source=source)


def test_encrypted_head_is_only_tried_for_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with listener(b"") as address:  # ends what does not begin with a handshake
        check_head(address, None)
    with nobody() as address, pytest.raises(TaskError, match="nothing answers there"):
        check_head(address, None)


def test_head_accepts_its_own_token_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with head() as address:
        check_head(address, GIVEN)
        with pytest.raises(
            TokenError, match=f"{address}: the cluster does not accept the token in /home/me/.ray/auth_tok"
        ):
            check_head(address, WRONG)
        with pytest.raises(TokenError, match=f"{address}: the cluster asks for its token; set RAY_AUTH_TOKEN, or"):
            check_head(address, None)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.raises(TokenError, match=r"asks for its token; set RAY_AUTH_MODE=token \(it is disabled\) and"):
            check_head(address, None)


def test_token_is_left_out_where_the_head_wants_none() -> None:
    with head() as address:
        assert wants_token(address)
    with head(wants_token=False) as address:
        check_head(address, WRONG)
        assert not wants_token(address)


def test_job_server_is_named_where_a_head_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with head() as address:
        with pytest.raises(ClusterError, match=r"usually http://127.0.0.1:8265$"):
            JobServer(str(address))
        monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
        with pytest.raises(ClusterError, match=r"got another port of Ray's, .* dashboard's, http://127.0.0.1:12345$"):
            JobServer(str(address))
    with (
        listener(b"SSH-2.0-x\r\n") as address,
        pytest.raises(ClusterError, match="speaks another protocol; use the dash"),
    ):
        JobServer(str(address))


def test_machine_that_is_no_node_of_the_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "right")
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with head() as address:
        check_node(address, GIVEN, ["bb", "aa"])
        for node_ids in ([], ["bb"]):
            with pytest.raises(
                TaskError, match=r"not a node of that Ray .*: dsindex submit --address http://127.0.0.1:12345"
            ):
                check_node(address, GIVEN, node_ids)
