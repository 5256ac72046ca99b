"""One driver per work folder and per output: a lock, in a file or an object, that names its owner.

On a disk the lock is the system's (flock): it ends with its process. In a bucket, and on file systems without flock, it
is a lease: written if absent, renewed by its owner, and taken over once it was not renewed for LEASE_SECONDS. A driver
asks `require_held` before it publishes, since another may have taken a lease over while it slept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dsindex.errors import DsindexError, MissingObjectError, PlanError
from dsindex.store.storage import make_folder, writing
from dsindex.store.store import store_of
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_SECONDS = 60.0
RENEWAL_SECONDS = 15.0
MAX_LOCK_BYTES = 4096
_NO_FLOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


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
            raise PlanError(
                f"{self.path}: expected to hold the lock of {self._what} still, but it was removed or not renewed for "
                f"{LEASE_SECONDS:g} s, and another driver may have begun; run the same command again"
            )


@contextlib.contextmanager
def hold_lock(path: str, *, what: str) -> Iterator[Lock]:
    """Hold a lock while the block runs.

    Args:
        path: The lock's file, whose folder is created, or its object.
        what: What the lock protects, for the message to a second driver.

    Raises:
        PlanError: If another driver holds it, naming its host and process.
        OutputError: If it cannot be written.
    """
    lock: Lock | None = None if is_url(path) else _take_file(path, what)
    lock = lock or _Lease(path, what)
    try:
        yield lock
    finally:
        with contextlib.suppress(OSError, DsindexError):  # otherwise it lapses
            lock.release()


def owner_is_gone(path: str) -> bool:
    """Whether a lock's file is there, and its owner has ended; nothing is changed. False for a lease."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        owner = _owner(os.pread(descriptor, MAX_LOCK_BYTES, 0))
        return owner is not None and not owner["lease"]
    finally:
        os.close(descriptor)


def _owner(content: bytes) -> dict[str, Any] | None:
    try:
        owner = json.loads(content)
    except ValueError:
        return None
    return owner if isinstance(owner, dict) and {"host", "pid", "token", "lease"} <= owner.keys() else None


def _self(*, lease: bool) -> bytes:
    owner = {"host": socket.gethostname(), "space": _space(), "pid": os.getpid(), "token": uuid.uuid4().hex}
    return json.dumps({**owner, "lease": lease}).encode()


def _space() -> str:
    """Return what tells process ids of containers apart that share a host's name."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _has_ended(owner: dict[str, Any]) -> bool:
    """Whether an owner is known to have ended: it was a process of this machine, and there is none of its number."""
    if (owner["host"], owner.get("space")) != (socket.gethostname(), _space()) or not isinstance(owner["pid"], int):
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _refusal(path: str, what: str, content: bytes, remedy: str = "") -> PlanError:
    owner = _owner(content)
    if owner is None and content.strip():
        return PlanError(f"{path}: expected a lock of dsindex or nothing, got another file; move it away")
    driver = "another driver" if owner is None else f"another driver (process {owner['pid']} on {owner['host']})"
    msg = f"{path}: {driver} works on {what}; wait for it, or stop it and run the same command again{remedy}"
    return PlanError(msg)


# A file that the system locks.


class _FileLock(Lock):
    def __init__(self, path: str, what: str, descriptor: int) -> None:
        super().__init__(path, what)
        self._descriptor = descriptor

    def still_held(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self.path))
        return False

    def release(self) -> None:
        try:
            if self.still_held():
                os.unlink(self.path)
        finally:
            os.close(self._descriptor)


def _take_file(path: str, what: str) -> _FileLock | None:
    """Lock a file; None if the file system cannot."""
    make_folder(os.path.dirname(path) or ".")
    while True:
        with contextlib.ExitStack() as undo, writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            undo.callback(os.close, descriptor)
            content = os.pread(descriptor, MAX_LOCK_BYTES, 0)
            owner, is_torn = _owner(content), content.startswith(b'{"host": ')  # as by a power cut
            if content.strip(b"\0") and (owner["lease"] if owner is not None else not is_torn):
                raise _refusal(path, what, content)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _refusal(path, what, content) from None
            except OSError as error:
                if error.errno in _NO_FLOCK:
                    return None
                raise
            lock = _FileLock(path, what, descriptor)
            if lock.still_held():  # otherwise its former owner removed it between the two calls
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, _self(lease=False), 0)
                undo.pop_all()
                return lock


# A lease, renewed by a thread.


class _Lease(Lock):
    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self._store = store_of(path)
        self._stop = threading.Event()
        self._content = b""
        self._version = ""
        self._renewed = 0.0
        self._is_lost = False
        self._take()
        self._renewer = threading.Thread(target=self._renew, daemon=True, name="dsindex-lease")
        self._renewer.start()

    def still_held(self) -> bool:
        return not self._is_lost and time.monotonic() - self._renewed < LEASE_SECONDS

    def release(self) -> None:
        self._stop.set()
        self._renewer.join()
        found = self._store.read(self.path, most_bytes=MAX_LOCK_BYTES)
        if found is not None and found[0] == self._content:
            self._store.delete([self.path])

    def _take(self) -> None:
        """Write the lease, in place of one that was not renewed in time or whose owner has ended."""
        if self._write(None):
            if is_url(self.path) and self._store.put_if_absent(self.path, b"{}") is not None:
                self._store.delete([self.path])
                raise PlanError(
                    f"{self.path}: expected a store with conditional writes (If-None-Match), got one that ignores "
                    f"them; write to another store, or to a disk"
                )
            return
        found = self._store.read(self.path, most_bytes=MAX_LOCK_BYTES) or (b"", "")
        owner = _owner(found[0])
        left = 0.0 if owner is not None and _has_ended(owner) else self._seconds_left()
        is_foreign = owner is None and found[0].strip()
        if left > 0 or is_foreign or not self._write(found[1]):
            remedy = f"; if it no longer runs, its lock lapses in {left:.0f} s"
            raise _refusal(self.path, self._what, found[0], remedy)

    def _seconds_left(self) -> float:
        """Return for how long a lease holds, by the time at which the store says that it was written."""
        with contextlib.suppress(FileNotFoundError, MissingObjectError):
            return LEASE_SECONDS - time.time() + self._store.head(self.path).modified_ns / 1e9
        return 0.0

    def _write(self, version: str | None) -> bool:
        """Write the lease, if there is none, or in place of a version."""
        content, now = _self(lease=True), time.monotonic()
        put = (
            self._store.put_if_absent(self.path, content)
            if version is None
            else self._store.put_if_match(self.path, content, version)
        )
        if put is not None:
            self._content, self._version, self._renewed = content, put, now
        return put is not None

    def _renew(self) -> None:
        while not self._stop.wait(RENEWAL_SECONDS):
            with contextlib.suppress(OSError, DsindexError):
                if not self._write(self._version):
                    self._is_lost = True
                    return
