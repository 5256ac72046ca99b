"""One driver per work folder and per output: a lock, in a file or an object, that names its owner.

The owner is recorded by host, boot, process-id namespace, process id and process start time. Within the same boot and
namespace the process table tells whether the owner is alive; a dead owner's lock is taken over at once. From anywhere
else (another host, another container on this host) a process id means nothing, and only the owner's heartbeat counts:
the lock lapses LEASE_SECONDS after the last one. What has a lock's name and is none is never removed.
Correctness never depends on the lock, since attempts have unique names; it keeps people from running a job twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from dsindex.errors import OutputError, PlanError
from dsindex.store.storage import make_folder, open_folder, output_error
from dsindex.store.urls import ObjectUrl
from dsindex.store.writing import put_if_absent, put_if_same, read_object, remove_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


# Who holds a lock: a driver, by host, boot, process-id namespace, process id and process start time.

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


HEARTBEAT_SECONDS = 10.0
OBJECT_HEARTBEAT_SECONDS = 15.0
_MOST_ROUNDS = 10


@contextlib.contextmanager
def hold_lock(path: str, *, what: str) -> Iterator[None]:
    """Hold a lock while the block runs.

    Args:
        path: The lock's file, whose folder is created, or its object.
        what: What the lock protects, for the message to a second driver.

    Raises:
        PlanError: If a driver that may be alive holds it, naming its host and process, or if what has its name is not a
            lock.
        OutputError: If it cannot be written.
    """
    lock = _ObjectLock(path, what=what) if isinstance(path, ObjectUrl) else _FileLock(path, what=what)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_lock(path: str) -> bool:
    """Tell whether a file or an object is a lock that a driver wrote, or was about to write when it was killed."""
    content = _read_lock(path)
    return content is not None and (not content.strip(b"\0") or parse_owner(content) is not None)


def owner_is_gone(path: str) -> bool:
    """Tell whether a lock's owner is known to have ended without releasing it; nothing is changed.

    False as well if there is no lock, or its owner is on another host, where only the next driver waits for its lease.
    """
    owner = parse_owner(_read_lock(path) or b"")
    return owner is not None and is_alive(owner) is False


def refuse_live_owner(path: str, *, what: str) -> None:
    """Refuse if a driver that may be alive holds a lock, which stays.

    Raises:
        PlanError: If one does, naming its host and process, or if what has its name is not a lock.
        OutputError: If the store refuses.
    """
    if isinstance(path, ObjectUrl):
        held = read_object(path, most_bytes=MAX_LOCK_BYTES + 1)
        if held is not None:
            _refuse_unless_dead(path, held[0], lambda: held[1].age_seconds, what=what)
        return
    with contextlib.suppress(OSError), _open_folder_of(path) as folder, _open_found(folder, path) as found:
        if found is not None:
            _refuse_unless_dead(path, found.content, partial(found.age_seconds, folder), what=what)


def _read_lock(path: str) -> bytes | None:
    """Return the beginning of a lock; None if there is none, or something that is no file."""
    if isinstance(path, ObjectUrl):
        held = read_object(path, most_bytes=MAX_LOCK_BYTES + 1)
        return None if held is None else held[0]
    with contextlib.suppress(OSError, PlanError), _open_folder_of(path) as folder, _open_found(folder, path) as found:
        return None if found is None else found.content
    return None


def _refuse_unless_dead(path: str, content: bytes, age_seconds: Callable[[], float], *, what: str) -> None:
    owner = parse_owner(content)
    if owner is None and content.strip(b"\0"):
        raise PlanError(f"{path}: expected a lock of dsindex or nothing, got another file; move it away")
    alive = None if owner is None else is_alive(owner)
    if alive is False:
        return
    remedy = "wait for it, or stop it and run the same command again"
    if alive is None:
        left = LEASE_SECONDS - max(0.0, age_seconds())
        if left <= 0:
            return
        remedy += f"; if it no longer runs, its lock lapses in {left:.0f} s"
    raise PlanError(f"{path}: {name_driver(owner)} works on {what}; {remedy}")


class _Lock(ABC):
    """A lock, wherever it is stored."""

    def __init__(self, path: str, *, what: str, heartbeat_seconds: float) -> None:
        self._path = path
        self._what = what
        self._content = orjson.dumps(describe_self())
        self._heartbeat_seconds = heartbeat_seconds
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._heartbeat, daemon=True, name="dsindex-lease")

    def acquire(self) -> None:
        """Write the lock, in place of a dead owner's if necessary, and start the heartbeat."""
        for _ in range(_MOST_ROUNDS):
            if self._create() or self._take_over():
                self._beat.start()
                return
        raise PlanError(f"{self._path}: other drivers take {self._what} again and again; wait for them")

    def release(self) -> None:
        """Remove the lock, unless another driver took it over or its content was changed."""
        self._stop.set()
        self._beat.join()
        with contextlib.suppress(OSError, PlanError, OutputError):  # otherwise it lapses
            self._remove()

    def _heartbeat(self) -> None:
        while not self._stop.wait(self._heartbeat_seconds):
            with contextlib.suppress(OSError, OutputError):
                self._renew()

    @abstractmethod
    def _create(self) -> bool:
        """Try to write the lock where there is none; of several drivers only one succeeds."""

    @abstractmethod
    def _take_over(self) -> bool:
        """Refuse if the owner of the existing lock may be alive; else replace it, or make room for a new one."""

    @abstractmethod
    def _renew(self) -> None:
        """Give a sign of life."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the lock if it is still this one."""


class _FileLock(_Lock):
    """A lock file in its open folder."""

    def __init__(self, path: str, *, what: str) -> None:
        super().__init__(path, what=what, heartbeat_seconds=HEARTBEAT_SECONDS)
        self._name = os.path.basename(path)
        self._opened = contextlib.ExitStack()
        self._folder = self._file = -1

    def acquire(self) -> None:
        make_folder(os.path.dirname(self._path) or ".")
        with contextlib.ExitStack() as opened:
            try:
                self._folder = opened.enter_context(_open_folder_of(self._path))
                super().acquire()
            except OSError as error:
                raise output_error(self._path, error) from error
            self._opened = opened.pop_all()

    def release(self) -> None:
        with self._opened:
            super().release()

    def _create(self) -> bool:
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY
        try:
            self._file = os.open(self._name, flags, 0o644, dir_fd=self._folder)
        except FileExistsError:
            return False
        try:
            if os.write(self._file, self._content) != len(self._content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except BaseException:
            os.unlink(self._name, dir_fd=self._folder)
            os.close(self._file)
            raise
        return True

    def _take_over(self) -> bool:
        with _open_found(self._folder, self._path) as found:
            if found is None:
                return False
            _refuse_unless_dead(self._path, found.content, partial(found.age_seconds, self._folder), what=self._what)
            # Several drivers may find the same dead lock: one removes it, the others notice that the name now belongs
            # to another file. Without flock this fails only if they meet within a millisecond.
            try:
                fcntl.flock(found.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                msg = f"{self._path}: another driver started to work on {self._what} at the same time; wait for it"
                raise PlanError(msg) from None
            except OSError:
                pass
            with contextlib.suppress(FileNotFoundError):
                now = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
                if os.path.samestat(found.status, now):
                    os.unlink(self._name, dir_fd=self._folder)
        return False

    def _renew(self) -> None:
        os.utime(self._file)

    def _remove(self) -> None:
        try:
            with _open_found(self._folder, self._path) as found:
                mine = os.fstat(self._file)
                if found is not None and os.path.samestat(found.status, mine) and found.content == self._content:
                    os.unlink(self._name, dir_fd=self._folder)
        finally:
            os.close(self._file)


class _ObjectLock(_Lock):
    """A lock object, made and changed by conditional writes; its age is by the store's own clock."""

    def __init__(self, url: ObjectUrl, *, what: str) -> None:
        super().__init__(url, what=what, heartbeat_seconds=OBJECT_HEARTBEAT_SECONDS)
        self._url = url
        self._etag = ""

    def _create(self) -> bool:
        return self._written(put_if_absent(self._url, self._content))

    def _take_over(self) -> bool:
        held = read_object(self._url, most_bytes=MAX_LOCK_BYTES + 1)
        if held is None:
            return False  # it was released just now
        _refuse_unless_dead(self._url, held[0], lambda: held[1].age_seconds, what=self._what)
        return self._written(put_if_same(self._url, self._content, held[1].etag))

    def _written(self, etag: str | None) -> bool:
        if etag is None:
            return False
        require_conditions(self._url, self._content)
        self._etag = etag
        return True

    def _renew(self) -> None:
        self._etag = put_if_same(self._url, self._content, self._etag) or self._etag

    def _remove(self) -> None:
        held = read_object(self._url, most_bytes=MAX_LOCK_BYTES + 1)
        if held is not None and held[0] == self._content:
            remove_objects([self._url])


def require_conditions(url: ObjectUrl, content: bytes) -> None:
    """Refuse a store that ignores conditions: without them, two drivers would not notice each other.

    Args:
        url: An object that this driver has just written; it is removed if the store is refused.
        content: Its content.

    Raises:
        PlanError: If it is replaced although there is one.
        OutputError: If the store refuses.
    """
    if put_if_absent(url, content + b"\n") is not None:
        remove_objects([url])
        raise PlanError(
            f"{url}: expected a store with conditional writes (If-None-Match), got one that ignores them; write to "
            f"another store, or to a disk"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An existing regular file of the lock's name."""

    descriptor: int
    status: os.stat_result
    content: bytes
    """Up to MAX_LOCK_BYTES + 1 bytes."""

    def age_seconds(self, folder: int) -> float:
        """Return the time since its owner's last sign; if that lies far in the future, its lease begins now."""
        age_seconds = _now_there(folder) - self.status.st_mtime
        if age_seconds < -LEASE_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(self.descriptor)
        return age_seconds


def _open_folder_of(path: str) -> AbstractContextManager[int]:
    return open_folder(os.path.dirname(path) or ".")


@contextlib.contextmanager
def _open_found(folder: int, path: str) -> Iterator[_Found | None]:
    """Open the file of the lock's name without following links; yield None if there is none.

    Raises:
        PlanError: If it is not a regular file.
        OSError: If it cannot be read.
    """
    name = os.path.basename(path)
    try:
        kind = _kind(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        descriptor = _open_nonblocking(folder, name) if kind is None else None
    except FileNotFoundError:
        yield None
        return
    if descriptor is None:
        raise PlanError(f"{path}: expected a lock of dsindex or nothing, got {kind}; move it away")
    try:
        status = os.fstat(descriptor)
        yield _Found(descriptor=descriptor, status=status, content=os.read(descriptor, MAX_LOCK_BYTES + 1))
    finally:
        os.close(descriptor)


def _open_nonblocking(folder: int, name: str) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(name, os.O_RDWR | flags, dir_fd=folder)  # flock on NFS needs a file opened for writing
    except PermissionError:
        return os.open(name, os.O_RDONLY | flags, dir_fd=folder)  # another user's


def _kind(mode: int) -> str | None:
    """Return what a file is if it is not a regular file."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"


def _now_there(folder: int) -> float:
    """Return the time of the clock that stamps files in this folder, which may be a file server's."""
    try:
        os.utime(folder)
        return os.fstat(folder).st_mtime
    except OSError:
        return time.time()
