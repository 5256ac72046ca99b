"""Addresses of clusters: how they are written, and what is said of servers that listen there."""

import contextlib
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from dsindex.errors import TaskError
from dsindex.execution import ray_cluster
from dsindex.execution.choice import cluster_address, wants_ray
from dsindex.execution.ray_address import JOB_VARIABLE, Address, parse_address, try_port
from dsindex.execution.ray_cluster import check_head, connect, restore_variables
from dsindex.execution.ray_token import VARIABLES, Token, TokenError
from dsindex.options.config import ExecutorConfig
from dsindex.options.merge import MergeConfig

GIVEN = Token(value="right", place="RAY_AUTH_TOKEN")
WRONG = Token(value="wrong", place="/home/me/.ray/auth_token")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "http_proxy", "HTTP_PROXY", JOB_VARIABLE, *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


# How they are written.


@pytest.mark.parametrize(("text", "expected"), [
    ("head:7000", "head:7000"), ("head", "head:6379"), ("10.0.0.1", "10.0.0.1:6379"),
    ("[fd00::1]:7000", "[fd00::1]:7000"), ("[fd00::1]", "[fd00::1]:6379"),
])  # fmt: skip
def test_address_is_a_host_and_a_port(text, expected):
    assert str(parse_address(text, source="--address")) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("http://head:8265", "such as head:6379, got the job server http://head:8265; .* submit --address http://head"),
        ("ray://head:10001", "such as head:6379, got ray://head:10001: Ray Client is not .* --address http://head:826"),
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
def test_other_addresses_are_refused(text, says):
    with pytest.raises(TaskError, match=f"RAY_ADDRESS: .*{says}"):
        parse_address(text, source="RAY_ADDRESS")


MERGE = {"input": ("a",), "output_prefix": "b"}


@pytest.mark.parametrize(("config", "environment", "expected"), [
    (ExecutorConfig(), {"RAY_ADDRESS": "gone:1"}, None),
    (ExecutorConfig(address="head"), {"RAY_ADDRESS": "gone:1"}, "head"),
    (ExecutorConfig(executor="ray"), {"RAY_ADDRESS": "head:1"}, "head:1"),
    (ExecutorConfig(), {"RAY_ADDRESS": "head:1", JOB_VARIABLE: "{}"}, "head:1"),
    (MergeConfig(**MERGE), {"RAY_ADDRESS": "head:1"}, "head:1"),
    (MergeConfig(**MERGE, address="local"), {"RAY_ADDRESS": "head:1"}, None),
    (MergeConfig(**MERGE), {"RAY_ADDRESS": ""}, None),
], ids=["no cluster needed", "named", "ray by name", "in a job", "work folder", "local", "empty"])  # fmt: skip
def test_environment_names_the_cluster_of_jobs_that_are_for_one(config, environment, expected, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cluster_address(config) == expected
    assert wants_ray(config) == (expected is not None)


# What listens there.


@contextlib.contextmanager
def listener(says):
    """Accept connections and say something; None says nothing and keeps them open."""
    open_connections = []

    def serve():
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
def nobody():
    """Bind a port without listening, so that nobody else can answer there."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield Address(host="127.0.0.1", port=reserved.getsockname()[1])


class Head(grpc.GenericRpcHandler):
    """Plays the head of a cluster whose token is `right`, one without tokens, or a server without its services."""

    def __init__(self, *, is_head, wants_token):
        self.is_head = is_head
        self.wants_token = wants_token

    def service(self, handler_call_details):
        if not (self.is_head and handler_call_details.method.endswith("/CheckAlive")):
            return None
        sent = dict(handler_call_details.invocation_metadata).get("authorization")

        def answer(_request, context):
            if self.wants_token and sent != "Bearer right":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextlib.contextmanager
def head(*, is_head=True, wants_token=True):
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Head(is_head=is_head, wants_token=wants_token)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Address(host="127.0.0.1", port=port)
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("address", "says"),
    [(Address(host="no-such-host.invalid", port=1), "."), (Address(host="x" * 70, port=1), "label")],
    ids=["unknown host", "no host name"],
)
def test_host_that_cannot_be_reached(address, says):
    assert re.search(says, try_port(address) or "")


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("opened", "source", "says"),
    [
        (nobody(), "--address", "expected the head of a Ray cluster, but nothing answers there (Connection refused);"),
        (nobody(), "RAY_ADDRESS", "(Connection refused); correct or unset RAY_ADDRESS, or use --executor local"),
        (
            listener(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "--address",
            "a head's is usually 127.0.0.1:6379, and a dashboard takes jobs",
        ),
        (listener(b"SSH-2.0-OpenSSH\r\n"), "--address", "got no answer of one"),
        (listener(b""), "--address", "got no answer of one"),
        (listener(None), "--address", "got no answer of one (deadline exceeded)"),
        (head(is_head=False), "--address", "got another port of Ray's; the head's is usually 127.0.0.1:6379"),
    ],
    ids=["nobody", "stale variable", "dashboard", "other program", "hangs up", "silent", "other port of Ray"],
)
def test_what_is_no_head_is_told(opened, source, says, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER_SECONDS", 2.0)
    with opened as address, pytest.raises(TaskError, match=rf"^{address}: .*{re.escape(says)}"):
        check_head(address, None, source=source)


def test_encrypted_head_is_only_tried_for_a_connection(monkeypatch):
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with listener(b"") as address:  # ends what does not begin with a handshake
        check_head(address, None)
    with nobody() as address, pytest.raises(TaskError, match="nothing answers there"):
        check_head(address, None)


def test_head_accepts_its_own_token_only(monkeypatch):
    with head() as address:
        check_head(address, GIVEN)
        with pytest.raises(TokenError, match=f"{address}: the cluster does not accept the token in /home/me/.ray/aut"):
            check_head(address, WRONG)
        with pytest.raises(TokenError, match=f"{address}: the cluster asks for its token; set RAY_AUTH_TOKEN, or"):
            check_head(address, None)
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.raises(TokenError, match=r"asks for its token; set RAY_AUTH_MODE=token \(it is disabled\) and"):
            check_head(address, None)


def test_machine_that_is_no_node_of_the_cluster_is_told(monkeypatch):
    """Ray looks for a node of this machine for a minute."""
    monkeypatch.setattr(ray_cluster, "_set_authentication", lambda _: None)  # of this process
    monkeypatch.setattr(ray_cluster, "JOIN_SECONDS", 0.2)
    given_up = threading.Event()
    monkeypatch.setattr("ray.init", lambda **_: given_up.wait())
    with head(wants_token=False) as address:
        says = rf"^{address}: Ray did not join .* may not be a node .* submit --address http://127.0.0.1:8265 -- …"
        monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
        with pytest.raises(TaskError, match=says):
            ray_cluster.connect(str(address), None, ship_code=False)
    given_up.set()


# Starting a private cluster.

LATE = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


def start_with(monkeypatch, *failures):
    """Start a private cluster with a Ray that fails so often; return what each attempt was given."""
    given = []

    def init(**options):
        given.append(options)
        if len(given) <= len(failures):
            raise failures[len(given) - 1]

    monkeypatch.setattr(ray_cluster.ray, "init", init)
    restore_variables(connect(None, 1, ship_code=False))
    return given


def test_start_is_tried_again_once_where_ray_gives_up(monkeypatch):
    assert len(start_with(monkeypatch, Exception(LATE))) == 2
    with pytest.raises(TaskError, match=r"did not start within Ray's own limit of 30 s, twice; .* --executor local"):
        start_with(monkeypatch, Exception(LATE), Exception(LATE))
    with pytest.raises(KeyError):
        start_with(monkeypatch, KeyError("another"))
