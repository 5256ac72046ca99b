"""What is known of Ray before it is imported: the releases that were tried, addresses, and whether anybody is there.

Ray itself tries for minutes where nobody does, so the port is tried first.
"""

from __future__ import annotations

import contextlib
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from dsindex.errors import TaskError
from dsindex.locations import Location

NEWEST_RAY = "2.60.0"
"""The newest release that was tried; pyproject.toml has the oldest. The configurations of clusters name it."""
CLUSTER_PORT = 6379
"""The port of a cluster's head, unless `ray start --port` names another."""
JOB_SERVER_PORT = 8265
"""The port of its dashboard and job server."""

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that Ray's job server sets for the drivers that it starts, beside RAY_ADDRESS."""

_CONNECT_SECONDS = 3.0


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
    shown = Location(text) if "://" in text else Location(f"ray://{text}").removeprefix("ray://")
    scheme = text.partition("://")[0] if "://" in text else None
    if scheme in {"http", "https"}:
        raise TaskError(
            f"{source}: expected a cluster's own address such as {_host_of(text)}:{CLUSTER_PORT}, got the job server "
            f"{shown}; name the former on a node of the cluster, or run it as a job from anywhere: "
            f"dsindex submit --address {shown} -- …"
        )
    if scheme == "ray":
        raise TaskError(
            f"{source}: expected a cluster's own address such as {_host_of(text)}:{CLUSTER_PORT}, got {shown}: Ray "
            f"Client is not supported; name the former on a node of the cluster, or run it as a job from anywhere: "
            f"dsindex submit --address http://{_host_of(text)}:{JOB_SERVER_PORT} -- …"
        )
    with contextlib.suppress(ValueError):  # a port that is no number, or an incomplete IPv6 address
        parts = urlsplit(f"//{text}")
        if parts.hostname and scheme is None and parts.netloc == text and "@" not in text and parts.port != 0:
            return Address(host=parts.hostname, port=parts.port or CLUSTER_PORT)
    msg = f"{source}: expected the cluster's address as HOST:PORT, such as head:{CLUSTER_PORT}, or auto, got {shown!r}"
    raise TaskError(msg)


def try_port(address: Address) -> str | None:
    """Return why no connection to an address is accepted; None if one is."""
    try:
        socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS).close()
    except TimeoutError:
        return f"no answer within {_CONNECT_SECONDS:.0f} s"
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
        return getattr(error, "strerror", None) or str(error)
    return None


def untried_release(version: str) -> str | None:
    """Return a note on a minor release of Ray that is newer than all that were tried; None if it is not.

    >>> untried_release("2.60.1"), untried_release("2.100.0rc1")
    (None, 'Ray 2.100.0rc1 is newer than the newest that was tried, 2.60.0')
    """
    given, newest = ([int(digits) for digits in re.findall(r"\d+", text)[:2]] for text in (version, NEWEST_RAY))
    return f"Ray {version} is newer than the newest that was tried, {NEWEST_RAY}" if given > newest else None


def _host_of(url: str) -> str:
    with contextlib.suppress(ValueError):
        return urlsplit(url).hostname or "HOST"
    return "HOST"
