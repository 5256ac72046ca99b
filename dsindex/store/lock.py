"""One driver per work folder and per output: a lock, in a file or an object, that names its owner.

On a disk the lock is the system's (flock): it ends with its process. A file system without such locks has none. In a
bucket it is a lease: written if absent, renewed by its owner, and taken over once it was not renewed for LEASE_SECONDS.
A driver asks `require_held` before it publishes, since another may have taken a lease over while it slept.
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
from dsindex.store.local import make_folder, retried, writing
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_SECONDS = 60.0
RENEWAL_SECONDS = 15.0


class Lock(ABC):
    """A lock that this driver holds or held."""

    def __init__(self, path: str, what: str) -> None:
        self.path, self._what = path, what

    @abstractmethod
    def still_held(self) -> bool:
        """Whether no other driver can hold it."""

    @abstractmethod
    def release(self) -> None:
        """Remove the lock, unless another driver has it."""

    def require_held(self) -> None:
        """Refuse to go on without the lock.

        Raises:
            PlanError: If it was lost.
        """
        if not self.still_held():
            what = f"was removed or not renewed for {LEASE_SECONDS:g} s, and another driver may have begun"
            raise PlanError(f"{self.path}: the lock of {self._what} {what}", hint="run the same command again")

    def _refusal(self, content: bytes, remedy: str = "") -> PlanError:
        owner = _owner(content)
        driver = f"another driver (process {owner['pid']} on {owner['host']})" if owner else "another driver"
        hint = f"wait until it has ended, or stop it and rerun the command{remedy}"
        return PlanError(f"{self.path}: {driver} works on {self._what}", hint=hint)


@contextlib.contextmanager
def hold_lock(path: str, *, what: str, waits: bool = False) -> Iterator[Lock]:
    """Hold a lock while the block runs.

    Args:
        path: The lock's file, whose folder is created, or its object.
        what: What the lock protects, for the message to a second driver.
        waits: Whether to wait for a driver that holds a lock on a disk, instead of refusing.

    Raises:
        PlanError: If another driver holds it, naming its host and process.
        OutputError: If it cannot be written.
    """
    lock = _Lease(path, what) if is_url(path) else _FileLock(path, what, waits=waits)
    try:
        yield lock
    finally:
        with contextlib.suppress(OSError, DsindexError):  # otherwise it lapses
            lock.release()


def owner_is_gone(path: str) -> bool:
    """Whether a lock's file is there, and its owner has ended; nothing is changed. False for an object."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def _self() -> bytes:
    owner = {"host": socket.gethostname(), "space": _space(), "pid": os.getpid(), "token": uuid.uuid4().hex}
    return json.dumps(owner).encode()


def _owner(content: bytes) -> dict[str, Any]:
    """Return the owner that a lock names; nothing for a lock that was cut off, as by a power cut."""
    with contextlib.suppress(ValueError):
        owner = json.loads(content)
        return owner if isinstance(owner, dict) and {"host", "space", "pid"} <= owner.keys() else {}
    return {}


def _space() -> str:
    """Return what tells process ids of containers apart that share a host's name."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


class _FileLock(Lock):
    """A file that the system locks."""

    def __init__(self, path: str, what: str, *, waits: bool = False) -> None:
        super().__init__(path, what)
        make_folder(os.path.dirname(path) or ".")
        take = functools.partial(self._take, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        with writing(self.path):
            while not retried(take):
                pass

    def still_held(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), retried(lambda: os.lstat(self.path)))
        return False

    def release(self) -> None:
        try:
            if self.still_held():
                retried(lambda: os.unlink(self.path))
        finally:
            os.close(self._descriptor)

    def _take(self, operation: int) -> bool:
        """Lock the file; False if its former owner removed it meanwhile."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with contextlib.ExitStack() as undo:
            self._descriptor = os.open(self.path, flags, 0o644)
            undo.callback(os.close, self._descriptor)
            content = retried(lambda: os.pread(self._descriptor, 4096, 0))
            try:
                fcntl.flock(self._descriptor, operation)
            except BlockingIOError:
                raise self._refusal(content) from None
            except OSError:  # a file system without such locks
                pass
            fields = (b'"host": ', b'"pid": ', b'"token": ')
            is_ours = b'{"host": '.startswith(content) or any(field in content for field in fields)
            if content.strip(b"\0\n ") and not is_ours:
                raise PlanError(f"{self.path}: this file is not a lock of dsindex", hint="move it away")
            if not self.still_held():
                return False
            undo.callback(os.unlink, self.path)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _self(), 0)
            undo.pop_all()
            return True


class _Lease(Lock):
    """An object that a thread renews."""

    def __init__(self, path: str, what: str) -> None:
        from dsindex.store.objects import OBJECTS  # obstore is slow to import

        super().__init__(path, what)
        self._store, self._stop = OBJECTS, threading.Event()
        self._content, self._version, self._renewed = b"", "", -math.inf
        self._take()
        self._renewer = threading.Thread(target=self._renew, daemon=True, name="dsindex-lease")
        self._renewer.start()

    def still_held(self) -> bool:
        return time.monotonic() - self._renewed < LEASE_SECONDS

    def release(self) -> None:
        self._stop.set()
        self._renewer.join()
        found = self._store.read(self.path)
        if found is not None and found[0] == self._content:
            self._store.delete([self.path])

    def _take(self) -> None:
        """Write the lease, in place of one that was not renewed in time or whose owner has ended."""
        if self._write(None):
            return
        content, version = self._store.read(self.path) or (b"", "")
        owner, left = _owner(content), 0.0
        is_of_here = owner and (owner["host"], owner["space"]) == (socket.gethostname(), _space())
        if not is_of_here or os.path.exists(f"/proc/{owner['pid']}"):
            with contextlib.suppress(MissingObjectError):  # by the time at which the store says that it was written
                left = LEASE_SECONDS - time.time() + self._store.head(self.path).modified_ns / 1e9
        if left > 0 or not self._write(version):
            raise self._refusal(content, f"; if it no longer runs, its lock lapses in {left:.0f} s")

    def _write(self, version: str | None) -> bool:
        """Write the lease if there is no lease, or in place of a version."""
        content, now = _self(), time.monotonic()
        if put := self._store.put_if(self.path, content, version):
            self._content, self._version, self._renewed = content, put, now
        return put is not None

    def _renew(self) -> None:
        while not self._stop.wait(RENEWAL_SECONDS):
            with contextlib.suppress(OSError, DsindexError):
                if not self._write(self._version):
                    self._renewed = -math.inf
                    return
