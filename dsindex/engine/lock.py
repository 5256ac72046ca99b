"""One driver per work folder and per output: a lock file that names its owner.

The owner is recorded by host, boot, process-id namespace, process id and process start time. Within the same boot and
namespace the process table tells whether the owner is alive; a dead owner's lock is taken over at once. From anywhere
else (another host, another container on this host) a process id means nothing, and only the owner's heartbeat counts:
the lock lapses LEASE_SECONDS after the last one. A file of the lock's name that is not a lock is never removed.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from dsindex.errors import OutputError, PlanError
from dsindex.store.storage import output_error
from dsindex.store.writing import put_if_absent, put_if_same, read_object, remove_objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.store.urls import ObjectUrl


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


@contextlib.contextmanager
def hold_lock(path: str, *, what: str) -> Iterator[None]:
    """Hold the lock file while the block runs.

    Args:
        path: The lock file; its folder exists.
        what: What the lock protects, for the message to a second driver.

    Raises:
        PlanError: If a driver that may be alive holds it, naming its host and process, or if a file of its name is not
            a lock.
        OutputError: If the lock file cannot be written.
    """
    with contextlib.ExitStack() as opened:
        try:
            folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            lock = _Lock(path, folder, what=what)
            lock.acquire()
        except OSError as error:
            raise output_error(path, error) from error
        opened.callback(lock.release)
        yield


def is_lock(path: str) -> bool:
    """Tell whether a file is a lock that a driver wrote, or was about to write when it was killed."""
    try:
        with contextlib.ExitStack() as opened:
            folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            found = opened.enter_context(_open_found(folder, path))
            return found is not None and (not found.content.strip(b"\0") or parse_owner(found.content) is not None)
    except (OSError, PlanError):
        return False


def owner_is_gone(path: str) -> bool:
    """Tell whether a lock's owner is known to have ended without releasing it; nothing is changed.

    False as well if there is no lock, or its owner is on another host, where only the next driver waits for its lease.
    """
    try:
        with contextlib.ExitStack() as opened:
            folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
            found = opened.enter_context(_open_found(folder, path))
            owner = None if found is None else parse_owner(found.content)
            return owner is not None and is_alive(owner) is False
    except (OSError, PlanError):
        return False


def refuse_live_owner(path: str, *, what: str) -> None:
    """Refuse if a driver that may be alive holds a lock, which stays.

    Raises:
        PlanError: If one does, naming its host and process, or if the file is not a lock.
    """
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, folder)
        found = opened.enter_context(_open_found(folder, path))
        if found is not None:
            _refuse_unless_dead(path, folder, found, what=what)


class _Lock:
    """A lock file in its open folder."""

    def __init__(self, path: str, folder: int, *, what: str) -> None:
        self._path = path
        self._name = os.path.basename(path)
        self._folder = folder
        self._what = what
        self._content = orjson.dumps(describe_self())
        self._file = -1
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._heartbeat, daemon=True, name="dsindex-lease")

    def acquire(self) -> None:
        """Create the lock file, replacing a dead owner's if necessary, and start the heartbeat."""
        while not self._create():
            self._clear_the_way()
        self._beat.start()

    def release(self) -> None:
        """Remove the lock file, unless another driver took it over or its content was changed."""
        self._stop.set()
        self._beat.join()
        try:
            with contextlib.suppress(OSError, PlanError), _open_found(self._folder, self._path) as found:
                mine = os.fstat(self._file)
                if found is not None and os.path.samestat(found.status, mine) and found.content == self._content:
                    os.unlink(self._name, dir_fd=self._folder)
        finally:
            os.close(self._file)

    def _create(self) -> bool:
        """Try to create the lock file; of several drivers only one succeeds."""
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

    def _clear_the_way(self) -> None:
        """Remove the existing lock if its owner is dead; return also if it has disappeared.

        Raises:
            PlanError: If its owner may be alive, or if it is not a lock.
        """
        with _open_found(self._folder, self._path) as found:
            if found is None:
                return
            _refuse_unless_dead(self._path, self._folder, found, what=self._what)
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

    def _heartbeat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._file)


def _refuse_unless_dead(path: str, folder: int, found: _Found, *, what: str) -> None:
    owner = parse_owner(found.content)
    if owner is None and found.content.strip(b"\0"):
        raise PlanError(f"{path}: expected a lock of dsindex or nothing, got another file; move it away")
    alive = None if owner is None else is_alive(owner)
    if alive is False:
        return
    remedy = "wait for it, or stop it and run the same command again"
    if alive is None:
        age_seconds = _now_there(folder) - found.status.st_mtime
        if age_seconds < -LEASE_SECONDS:  # in the future, where no sign of an owner is: its lease begins now
            with contextlib.suppress(OSError):
                os.utime(found.descriptor)
        left = LEASE_SECONDS - max(0.0, age_seconds)
        if left <= 0:
            return
        remedy += f"; if it no longer runs, its lock lapses in {left:.0f} s"
    raise PlanError(f"{path}: {name_driver(owner)} works on {what}; {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An existing regular file of the lock's name."""

    descriptor: int
    status: os.stat_result
    content: bytes
    """Up to MAX_LOCK_BYTES + 1 bytes."""


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


# One driver per work folder and per output in an object store: a lock object, made and changed by conditional writes.
#
# The owner writes it again every HEARTBEAT_SECONDS, and it lapses LEASE_SECONDS after the last time, by the store's
# own
# clock; on the owner's machine, the process table tells at once. Correctness never depends on the lock.

OBJECT_HEARTBEAT_SECONDS = 15.0
_MOST_ROUNDS = 10


@contextlib.contextmanager
def hold_object_lock(url: ObjectUrl, *, what: str) -> Iterator[None]:
    """Hold a lock object while the block runs.

    Args:
        url: The lock's address.
        what: What the lock protects, for the message to a second driver.

    Raises:
        PlanError: If a driver that may be alive holds it, naming its host and process, or if an object of its name is
            not a lock.
        OutputError: If the store refuses.
    """
    lock = _ObjectLock(url, what=what)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_object_lock(url: ObjectUrl) -> bool:
    """Tell whether an object is a lock that a driver wrote."""
    found = read_object(url, most_bytes=MAX_LOCK_BYTES + 1)
    return found is not None and parse_owner(found[0]) is not None


def refuse_live_object_owner(url: ObjectUrl, *, what: str) -> None:
    """Refuse if a driver that may be alive holds a lock.

    Raises:
        PlanError: If one does, naming its host and process.
        OutputError: If the store refuses.
    """
    found = read_object(url, most_bytes=MAX_LOCK_BYTES + 1)
    if found is not None:
        _refuse_unless_owner_dead(url, found[0], found[1].age_seconds, what=what)


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


class _ObjectLock:
    def __init__(self, url: ObjectUrl, *, what: str) -> None:
        self._url = url
        self._what = what
        self._content = orjson.dumps(describe_self())
        self._etag = ""
        self._stop = threading.Event()
        self._beat = threading.Thread(target=self._heartbeat, daemon=True, name="dsindex-lease")

    def acquire(self) -> None:
        """Write the lock, in place of a dead owner's if necessary, and start the heartbeat."""
        for _ in range(_MOST_ROUNDS):
            etag = put_if_absent(self._url, self._content)
            if etag is None:
                found = read_object(self._url, most_bytes=MAX_LOCK_BYTES + 1)
                if found is None:
                    continue  # it was released just now
                _refuse_unless_owner_dead(self._url, found[0], found[1].age_seconds, what=self._what)
                etag = put_if_same(self._url, self._content, found[1].etag)
            if etag is not None:
                require_conditions(self._url, self._content)
                self._etag = etag
                self._beat.start()
                return
        raise PlanError(f"{self._url}: other drivers take {self._what} again and again; wait for them")

    def release(self) -> None:
        """Remove the lock, unless another driver took it over."""
        self._stop.set()
        self._beat.join()
        with contextlib.suppress(OutputError):  # otherwise it lapses
            found = read_object(self._url, most_bytes=MAX_LOCK_BYTES + 1)
            if found is not None and found[0] == self._content:
                remove_objects([self._url])

    def _heartbeat(self) -> None:
        while not self._stop.wait(OBJECT_HEARTBEAT_SECONDS):
            with contextlib.suppress(OutputError):
                self._etag = put_if_same(self._url, self._content, self._etag) or self._etag


def _refuse_unless_owner_dead(url: ObjectUrl, content: bytes, age_seconds: float, *, what: str) -> None:
    owner = parse_owner(content)
    if owner is None:
        raise PlanError(f"{url}: expected a lock of dsindex or nothing, got another object; move it away")
    alive = is_alive(owner)
    if alive is False:
        return
    remedy = "wait for it, or stop it and run the same command again"
    if alive is None:
        left = LEASE_SECONDS - max(0.0, age_seconds)
        if left <= 0:
            return
        remedy += f"; if it no longer runs, its lock lapses in {left:.0f} s"
    raise PlanError(f"{url}: {name_driver(owner)} works on {what}; {remedy}")
