"""Nodes that join a cluster while a job runs: each is checked before its first call."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.util

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_PASSED: set[str] = set()
"""Keys of the checks that this worker process need not run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """A check that a worker runs before its first call, unless the driver has checked its node."""

    check: Callable[[], None]
    """Raises InputError if the node would fail."""
    checked_nodes: frozenset[str]
    """Ray's ids of the nodes that the driver has checked."""
    key: str
    """Distinguishes the checks of several jobs, whose calls a worker process may run one after the other."""


def run_after_check(entry: NodeCheck, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - of any function
    """Run a function in a worker of a sound node.

    Raises:
        InputError: If the node fails the check, with its name.
    """
    if entry.key not in _PASSED:
        node = ray.get_runtime_context().get_node_id()
        if node not in entry.checked_nodes:
            try:
                entry.check()
            except InputError as fault:
                msg = f"{name_node(socket.gethostname(), ray.util.get_node_ip_address(), node)}: {fault}"
                raise InputError(msg) from fault
        _PASSED.add(entry.key)
    return function(*arguments)


def name_node(host: str, address: str, node_id: str) -> str:
    """Return the name of a node in messages.

    >>> name_node("worker", "10.0.0.7", "f0c1d2e3a4b5")
    'worker (10.0.0.7, f0c1d2)'
    """
    return f"{host} ({address}, {node_id[:6]})"
