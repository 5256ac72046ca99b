"""Addresses of Ray clusters: how they are written, and what answers there, told within seconds.

Ray itself tries for minutes where nobody listens, and for hours where the wrong program does. So the port is tried
first, and the first bytes of what listens there tell gRPC, which a cluster's head speaks, from HTTP, which its job
server speaks.

Sources: HTTP/2 (RFC 9113, 3.4 and 6.5), HTTP/1.1 (RFC 9112).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

from dsindex.errors import TaskError

CLUSTER_PORT = 6379
"""The port of a cluster's head, unless `ray start --port` names another."""
JOB_SERVER_PORT = 8265
"""The port of its dashboard and job server."""

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that Ray's job server sets for the drivers that it starts, beside RAY_ADDRESS."""

_CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 10.0
_GREETINGS = {
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
    "http": b"GET /api/version HTTP/1.1\r\nHost: ray\r\nConnection: close\r\n\r\n",
}
"""How a client opens a connection: for HTTP/2 with its preface and empty settings."""
_FRAME_BYTES = 9
_SETTINGS = 4
"""Size of the header of a frame of HTTP/2, and the type of a server's first frame."""


class UnreachableError(Exception):
    """Nobody listens at an address, or what listens there does not answer; the message is the reason."""


class Protocol(Enum):
    """What a server speaks."""

    GRPC = "gRPC"
    HTTP = "HTTP"
    OTHER = "another protocol"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return HOST:PORT, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, source: str) -> Address:
    """Read the address of a cluster.

    Args:
        text: `HOST:PORT`, or `HOST` alone for the usual port.
        source: What named it, for messages: --address or RAY_ADDRESS.

    Raises:
        TaskError: If it is the address of something else, such as a job server, or none.

    >>> str(parse_address("head", source="--address")), str(parse_address("[::1]:7000", source="--address"))
    ('head:6379', '[::1]:7000')
    """
    scheme = text.partition("://")[0] if "://" in text else None
    if scheme in {"http", "https"}:
        msg = (
            f"{source}: expected a cluster's own address such as {_host_of(text)}:{CLUSTER_PORT}, got the job server "
            f"{text}; name the former on a node of the cluster, or run it as a job from anywhere: "
            f"dsindex submit --address {text} -- …"
        )
        raise TaskError(msg)
    if scheme == "ray":
        msg = (
            f"{source}: expected a cluster's own address such as {_host_of(text)}:{CLUSTER_PORT}, got {text}: Ray "
            f"Client is not supported; name the former on a node of the cluster, or run it as a job from anywhere: "
            f"dsindex submit --address http://{_host_of(text)}:{JOB_SERVER_PORT} -- …"
        )
        raise TaskError(msg)
    with contextlib.suppress(ValueError):  # a port that is no number, or an incomplete IPv6 address
        parts = urlsplit(f"//{text}")
        if parts.hostname and scheme is None and parts.netloc == text and "@" not in text and parts.port != 0:
            return Address(host=parts.hostname, port=parts.port or CLUSTER_PORT)
    msg = f"{source}: expected the cluster's address as HOST:PORT, such as head:{CLUSTER_PORT}, or auto, got {text!r}"
    raise TaskError(msg)


def ask_protocol(
    address: Address,
    *,
    expected: str,
    connect_seconds: float = _CONNECT_SECONDS,
    answer_seconds: float = _ANSWER_SECONDS,
) -> Protocol:
    """Connect, open a conversation, and return what the answer begins like.

    Args:
        address: Whom to ask.
        expected: The protocol to open with, grpc or http.
        connect_seconds: How long connecting may take, looking up the host's name included.
        answer_seconds: How long the answer may take.

    Raises:
        UnreachableError: If nobody listens there, or nothing is answered in time.
    """
    with _connect(address, connect_seconds) as connection:
        connection.settimeout(answer_seconds)
        start = b""
        try:
            connection.sendall(_GREETINGS[expected])
            while len(start) < _FRAME_BYTES and (more := connection.recv(_FRAME_BYTES - len(start))):
                start += more
        except TimeoutError as error:
            if not start:
                msg = f"it accepts connections, but does not answer within {answer_seconds:.0f} s"
                raise UnreachableError(msg) from error
        except OSError as error:
            if not start:
                msg = f"it accepts connections, but ends them ({error.strerror or error})"
                raise UnreachableError(msg) from error
    if not start:
        msg = "it accepts connections, but ends them without an answer"
        raise UnreachableError(msg)
    if start.startswith(b"HTTP/"):
        return Protocol.HTTP
    is_settings = len(start) == _FRAME_BYTES and start[3] == _SETTINGS and not any(start[5:])
    return Protocol.GRPC if is_settings else Protocol.OTHER


def _connect(address: Address, seconds: float) -> socket.socket:
    """Open a connection, in a thread of its own, since looking up a name has no time limit."""
    opened: list[socket.socket] = []
    failed: list[OSError] = []
    given_up = threading.Event()

    def connect() -> None:
        try:
            connection = socket.create_connection((address.host, address.port), timeout=seconds)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
            failed.append(error if isinstance(error, OSError) else OSError(str(error)))
            return
        opened.append(connection)
        if given_up.is_set():
            connection.close()

    thread = threading.Thread(target=connect, name="dsindex-connect", daemon=True)
    thread.start()
    thread.join(seconds + 0.5)
    if opened:
        return opened[0]
    given_up.set()
    error = failed[0] if failed else TimeoutError()
    reason = f"no answer within {seconds:.0f} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
    raise UnreachableError(reason) from error


def _host_of(url: str) -> str:
    with contextlib.suppress(ValueError):
        return urlsplit(url).hostname or "HOST"
    return "HOST"
