"""Who holds a lock: a driver, by host, boot, process-id namespace, process id and process start time."""

from __future__ import annotations

import os
import socket
import uuid
from typing import Any

import orjson

LEASE_SECONDS = 60.0
"""A lock lapses so long after its owner's last sign, where the process table cannot tell whether it is alive."""
MAX_LOCK_BYTES = 4096
"""The limit on the size of a lock; a longer file is not a lock."""


def name_driver(owner: dict[str, Any] | None) -> str:
    """Return how a message names another driver."""
    return "another driver" if owner is None else f"another driver (process {owner['pid']} on {owner['host']})"


def parse_owner(content: bytes) -> dict[str, Any] | None:
    """Return the owner that a lock names; None if it is not a lock.

    >>> parse_owner(b'{"host": "a", "pid": 7, "token": "x"}')
    {'host': 'a', 'pid': 7, 'token': 'x'}
    """
    if len(content) > MAX_LOCK_BYTES:
        return None
    try:
        owner = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(owner, dict) or not all(isinstance(owner.get(key), of) for key, of in _OWNER_KEYS):
        return None
    return owner


_OWNER_KEYS = (("host", str), ("pid", int), ("token", str))


def describe_self() -> dict[str, Any]:
    """Return this process as an owner, with a token of its own for each lock."""
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid_namespace": _pid_namespace(),
        "pid": os.getpid(),
        "started": _start_time(os.getpid()),
        "token": uuid.uuid4().hex,
    }


def is_alive(owner: dict[str, Any]) -> bool | None:
    """Tell by the process table whether an owner is alive; None if that cannot be known."""
    boot, namespace = _boot_id(), _pid_namespace()
    if None in (boot, namespace) or (owner.get("boot"), owner.get("pid_namespace")) != (boot, namespace):
        return None
    if not isinstance(owner.get("started"), str):
        return None
    started = _start_time(owner["pid"])
    if started is not None:
        return bool(started == owner["started"])
    return None if _has_process(owner["pid"]) else False


def _boot_id() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() or None
    except OSError:
        return None


def _pid_namespace() -> str | None:
    """Return the process-id namespace; None if /proc is missing or shows another namespace's processes."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """Return a process's start time in clock ticks since boot; None if no such process is visible.

    For a zombie it returns `ended`, which is no owner's start time.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return "ended" if state in {"Z", "X"} else started


def _has_process(pid: int) -> bool:
    """Tell whether a process may exist that /proc hides (mount option hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
