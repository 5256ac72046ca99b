"""One driver per work folder: a lock that a dead owner never holds.

The owner is known by host, boot, process id and process start time, so that on the same host a dead one is told from a
living one at once. From another host only its heartbeat is seen: a lease. Correctness never depends on the lock
(attempts have names of their own); it saves people from running a build twice by mistake.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import uuid
from typing import TYPE_CHECKING, Any

import orjson

from dsindex.errors import PlanError
from dsindex.storage import put_if_absent, remove_if_present

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0


@contextlib.contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the lock file for the time of the block.

    Raises:
        PlanError: If a living driver holds it, naming its host and process.
    """
    own = _describe_self()
    _acquire(path, own)
    stop = threading.Event()
    beat = threading.Thread(target=_heartbeat, args=(path, own, stop), daemon=True, name="dsindex-lease")
    beat.start()
    try:
        yield
    finally:
        stop.set()
        beat.join()
        if _read_owner(path) == own:
            remove_if_present(path)


def _acquire(path: str, own: dict[str, Any]) -> None:
    if put_if_absent(path, orjson.dumps(own)):
        return
    owner = _read_owner(path)
    if owner is not None and _is_alive(path, owner):
        msg = (
            f"{os.path.dirname(path)}: another driver works here (process {owner.get('pid')} on {owner.get('host')}); "
            f"wait for it, or stop it and run the same command again"
        )
        raise PlanError(msg)
    if not _take_over(path, own):
        msg = f"{os.path.dirname(path)}: another driver took over at the same moment; run the same command again"
        raise PlanError(msg)


def _take_over(path: str, own: dict[str, Any]) -> bool:
    """Replace a dead owner's lock; of several drivers that find the same one, one wins."""
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # another driver is at it
        except OSError:
            pass  # a file system without such locks: two drivers would have to meet within a millisecond
        owner = _read_owner(path)
        if owner is not None and _is_alive(path, owner):  # another driver was faster
            return False
        remove_if_present(path)
        return put_if_absent(path, orjson.dumps(own))
    finally:
        os.close(folder)


def _describe_self() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "started": _start_time(os.getpid()),
        "token": uuid.uuid4().hex,
    }


def _read_owner(path: str) -> dict[str, Any] | None:
    """Read the lock file; None when it is gone or damaged."""
    try:
        with open(path, "rb") as file:
            owner = orjson.loads(file.read(4096))
    except (OSError, orjson.JSONDecodeError):
        return None
    return owner if isinstance(owner, dict) else None


def _is_alive(path: str, owner: dict[str, Any]) -> bool:
    if owner.get("host") == socket.gethostname():
        pid = owner.get("pid")
        same_boot = owner.get("boot") == _boot_id()
        return same_boot and isinstance(pid, int) and _start_time(pid) == owner.get("started")
    try:
        return _now_there(path) - os.stat(path).st_mtime < LEASE_SECONDS
    except OSError:
        return False


def _now_there(path: str) -> float:
    """Tell the time by the clock that stamps the lock file: a file server's may differ from this host's."""
    probe = f"{path}.{uuid.uuid4().hex}.tmp"
    descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        os.unlink(probe)


def _heartbeat(path: str, own: dict[str, Any], stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_SECONDS):
        with contextlib.suppress(OSError):
            if _read_owner(path) == own:
                os.utime(path)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Give a process's start time in clock ticks since boot; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], fields[19]
    return None if state == "Z" else started
