"""Locks that admit one driver per work folder and per output; the lock's file or object names its owner.

On a disk, the lock is an flock, which ends with its process. A file system without flock is not protected. In a bucket,
the lock is a lease: created if absent, renewed by its owner, and taken over if it was not renewed for LEASE_SECONDS. A
driver calls `require_held` before it publishes, since another driver may have taken the lease while it was suspended.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError, MissingObjectError, PlanError
from dsindex.store.local import make_folder, retry, writing
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_SECONDS = 60.0
RENEWAL_SECONDS = 15.0


class Lock(ABC):
    """A lock that this driver took, and may have lost."""

    def __init__(self, path: str, resource: str) -> None:
        self.path, self._resource = path, resource

    @abstractmethod
    def is_held(self) -> bool:
        """Whether it is certain that no other driver holds the lock."""

    @abstractmethod
    def release(self) -> None:
        """Remove the lock, unless another driver has taken it."""

    def require_held(self) -> None:
        """Check that the lock is still held.

        Raises:
            PlanError: If it was lost.
        """
        if not self.is_held():
            reason = f"was removed or not renewed for {LEASE_SECONDS:g} s, and another driver may have begun"
            raise PlanError(f"{self.path}: the lock of {self._resource} {reason}", hint="run the same command again")

    def _make_refusal(self, content: bytes, remedy: str = "") -> PlanError:
        owner = _parse_owner(content)
        driver = f"another driver (process {owner['pid']} on {owner['host']})" if owner else "another driver"
        hint = f"wait until it has ended, or stop it and rerun the command{remedy}"
        return PlanError(f"{self.path}: {driver} works on {self._resource}", hint=hint)


@contextlib.contextmanager
def hold_lock(path: str, *, resource: str, waits: bool = False) -> Iterator[Lock]:
    """Hold a lock while the block runs.

    Args:
        path: The lock's file, whose folder is created if absent, or its object.
        resource: What the lock protects, for messages.
        waits: Wait until another driver releases the lock; for locks on a disk only.

    Raises:
        PlanError: If another driver holds the lock; the message names its host and process.
        OutputError: If the lock cannot be written.
    """
    lock = _Lease(path, resource) if is_url(path) else _FileLock(path, resource, waits=waits)
    try:
        yield lock
    finally:
        with contextlib.suppress(OSError, DsindexError):  # a lock that cannot be removed expires
            lock.release()


def owner_is_gone(path: str) -> bool:
    """Whether a lock's file exists and its owner has ended, without taking the lock. Always False for an object."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def _describe_driver() -> bytes:
    owner = {"host": socket.gethostname(), "space": _pid_namespace(), "pid": os.getpid(), "token": uuid.uuid4().hex}
    return json.dumps(owner).encode()


def _parse_owner(content: bytes) -> dict[str, Any]:
    """Return the owner that a lock names; empty for a truncated lock, as after a power cut."""
    with contextlib.suppress(ValueError):
        owner = json.loads(content)
        return owner if isinstance(owner, dict) and {"host", "space", "pid"} <= owner.keys() else {}
    return {}


def _pid_namespace() -> str:
    """Return the PID namespace: containers with the same host name may have equal process ids."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


class _FileLock(Lock):
    """A lock on a disk: a file with an flock."""

    def __init__(self, path: str, resource: str, *, waits: bool = False) -> None:
        super().__init__(path, resource)
        make_folder(os.path.dirname(path) or ".")
        take = functools.partial(self._take, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        with writing(self.path):
            while not retry(take):
                pass

    def is_held(self) -> bool:
        with contextlib.suppress(OSError):
            return retry(self._is_in_place)
        return False

    def _is_in_place(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
        return False

    def release(self) -> None:
        try:
            if self.is_held():
                retry(lambda: os.unlink(self.path))
        finally:
            os.close(self._descriptor)

    def _take(self, operation: int) -> bool:
        """Lock the file; return False if its previous owner removed it meanwhile."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.ExitStack() as undo:
            self._descriptor = os.open(self.path, flags, 0o644)
            undo.callback(os.close, self._descriptor)
            content = retry(lambda: os.pread(self._descriptor, 4096, 0))
            try:
                fcntl.flock(self._descriptor, operation)
            except BlockingIOError:
                raise self._make_refusal(content) from None
            except OSError:  # a file system without flock
                pass
            # A power cut may have truncated our own lock, or left zeros in it; any other file must not be overwritten.
            fields = (b'"host": ', b'"space": ', b'"pid": ', b'"token": ')
            is_ours = b'{"host": '.startswith(content) or any(field in content for field in fields)
            is_ours |= b"\0" in content and content.isascii()
            if content.strip(b"\0\n ") and not is_ours:
                raise PlanError(f"{self.path}: this file is not a lock of dsindex", hint="move it away")
            if not self._is_in_place():
                return False
            undo.callback(os.unlink, self.path)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _describe_driver(), 0)
            undo.pop_all()
            return True


class _Lease(Lock):
    """A lock in a bucket: an object that a thread renews."""

    def __init__(self, path: str, resource: str) -> None:
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        super().__init__(path, resource)
        self._store, self._stop = OBJECTS, threading.Event()
        self._content, self._version, self._renewal_time = b"", "", -math.inf
        self._take()
        self._renewer = threading.Thread(target=self._renew, daemon=True, name="dsindex-lease")
        self._renewer.start()

    def is_held(self) -> bool:
        return time.monotonic() - self._renewal_time < LEASE_SECONDS

    def release(self) -> None:
        self._stop.set()
        self._renewer.join()
        content, _ = self._store.read(self.path) or (b"", "")
        if content == self._content:
            self._store.delete([self.path])

    def _take(self) -> None:
        """Write the lease, replacing one that has expired or whose owner on this machine has ended."""
        if self._write(None):
            return
        content, version = self._store.read(self.path) or (b"", "")
        owner, remaining_seconds = _parse_owner(content), 0.0
        is_local = owner and (owner["host"], owner["space"]) == (socket.gethostname(), _pid_namespace())
        if not is_local or os.path.exists(f"/proc/{owner['pid']}"):
            with contextlib.suppress(MissingObjectError):  # its age follows from the store's modification time
                remaining_seconds = LEASE_SECONDS - time.time() + self._store.head(self.path).modified_ns / 1e9
        if remaining_seconds > 0 or not self._write(version):
            raise self._make_refusal(content, f"; if it no longer runs, its lock lapses in {remaining_seconds:.0f} s")

    def _write(self, version: str | None) -> bool:
        """Create the lease, or replace it if it still has a version; return False if another driver was faster."""
        content, now = _describe_driver(), time.monotonic()
        if new_version := self._store.put_if(self.path, content, version):
            self._content, self._version, self._renewal_time = content, new_version, now
        return new_version is not None

    def _renew(self) -> None:
        while not self._stop.wait(RENEWAL_SECONDS):
            with contextlib.suppress(OSError, DsindexError):
                if not self._write(self._version):
                    self._renewal_time = -math.inf
                    return
