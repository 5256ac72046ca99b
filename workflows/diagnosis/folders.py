"""Folders: the file system that holds them, free space, and the measured speed of writing with sync.

A folder is examined in a thread, since a network file system whose server is gone never answers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shlex
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.amounts import format_size, format_speed
from workflows.diagnosis.report import Finding, Group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ANSWER_SECONDS = 10.0
"""How long a folder may take to be examined."""
MOST_BYTES = 64 << 20
MOST_SECONDS = 1.0
"""At most so much is written to measure a folder, and for at most so long."""
_CHUNK_BYTES = 4 << 20
_FULL_BYTES = 1 << 30
"""Free space below which a folder is called nearly full."""

_NETWORK = re.compile(
    r"nfs.*|cifs|smb.*|ceph|lustre|gpfs|beegfs.*|glusterfs|9p|afs|virtiofs|fuse\.(sshfs|ceph|gluster.*)"
)
_OBJECT_STORE = re.compile(r"fuse\.(gcsfuse|s3fs|goofys|mount-s3|rclone|blobfuse.*|geesefs|juicefs)|fuse")
_VIRTUAL = re.compile(r"/dev/x?vd[a-z]+\d*")
"""Devices of virtual machines, which all say that they rotate."""
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system."""

    place: str
    kind: str
    """Its type, such as ext4, nfs4 or overlay."""
    source: str
    device: str
    """Major and minor number of the device, `8:1`."""


def examine_folders(given: Sequence[str]) -> Group:
    """Examine folders.

    Args:
        given: Folders in which jobs are to write; without any, the working folder and the one of temporary files.
    """
    facts, findings = [], []
    for folder in dict.fromkeys(given or _usual_folders()):
        fact, found = _in_time(folder, is_given=bool(given))
        facts.append((folder, fact))
        findings += found
    return Group(name="storage", facts=tuple(facts), findings=tuple(findings))


def parse_mounts(table: str) -> list[Mount]:
    r"""Return the mounted file systems in the text of /proc/self/mountinfo.

    >>> parse_mounts(r"36 35 98:0 / /my\040disk rw,noatime master:1 - ext3 /dev/root rw,errors=continue")
    [Mount(place='/my disk', kind='ext3', source='/dev/root', device='98:0')]
    """
    mounts = []
    for line in table.splitlines():
        own, _, rest = line.partition(" - ")
        fields, more = own.split(" "), rest.split(" ")
        if len(fields) > 4 and len(more) > 1:
            mounts.append(
                Mount(place=_unescaped(fields[4]), kind=more[0], source=_unescaped(more[1]), device=fields[2])
            )
    return mounts


def mount_of(path: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the file system that holds an absolute path: the longest place above it; of equal ones the last."""
    holding = [each for each in mounts if os.path.commonpath([each.place, path]) == each.place]
    return max(reversed(holding), key=lambda each: len(each.place), default=None)


def _usual_folders() -> list[str]:
    folders = []
    with contextlib.suppress(OSError):  # the working folder was removed
        folders.append(os.getcwd())
    with contextlib.suppress(OSError):  # no folder for temporary files can be written
        folders.append(tempfile.gettempdir())
    return folders


def _in_time(folder: str, *, is_given: bool) -> tuple[str, list[Finding]]:
    """Examine a folder, or report that it does not answer."""
    answers: list[tuple[str, list[Finding]]] = []
    thread = threading.Thread(target=lambda: answers.append(_examine(folder, is_given=is_given)), daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    if answers:
        return answers[0]
    message = (
        f"{folder}: does not answer within {ANSWER_SECONDS:.0f} s; its server may be gone or its disk busy: check the "
        f"mount, or use another folder"
    )
    return "no answer", [Finding(message=message, breaks_builds=is_given)]


def _examine(folder: str, *, is_given: bool) -> tuple[str, list[Finding]]:
    if not os.path.isdir(folder):
        is_there = os.path.exists(folder)
        what, remedy = ("a file", "name another") if is_there else ("none", f"make it: mkdir -p {shlex.quote(folder)}")
        message = f"{folder}: expected a folder, got {what}; {remedy}"
        return "no folder", [Finding(message=message, breaks_builds=is_given)]
    mount = mount_of(os.path.realpath(folder), parse_mounts(_mount_table()))
    kind, findings = _describe_kind(folder, mount)
    try:
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize if room.f_blocks else None  # some file systems do not say
        has_nodes = room.f_files == 0 or room.f_favail > 0
    except OSError as error:
        message = f"{folder}: free space is unknown ({error.strerror}); check the mount"
        return kind, [*findings, Finding(message=message, breaks_builds=is_given)]
    facts = [kind, "free space unknown" if free is None else f"{_gigabytes(free)} free"]
    if (free is not None and free < _FULL_BYTES) or not has_nodes:
        lack = f"{_gigabytes(free or 0)} are free" if has_nodes else "no file can be added: no inode is free"
        message = f"{folder}: {lack}; make room, or use another folder (dsindex plan says how much a build needs)"
        findings.append(Finding(message=message, breaks_builds=is_given and (free == 0 or not has_nodes)))
    try:
        facts.append(_measure(folder, free))
    except OSError as error:
        facts.append("cannot be written")
        reason = error.strerror or str(error)
        message = f"{folder}: no file can be written there ({reason}); {_remedy(error)}"
        findings.append(Finding(message=message, breaks_builds=is_given))
    return ", ".join(facts), findings


def _describe_kind(folder: str, mount: Mount | None) -> tuple[str, list[Finding]]:
    """Return the file system as text, and what is to be known of its kind."""
    if mount is None:
        return "unknown file system", []
    shown = f"{mount.kind} at {mount.place} from {mount.source}"
    if mount.kind in _MEMORY:
        message = (
            f"{folder}: its files take memory, and are lost at a restart; put large output and work folders on a disk"
        )
        return f"{shown} (memory)", [Finding(message=message)]
    if mount.kind == "overlay":
        message = f"{folder}: its files are lost with the container; put output and work folders on a mounted volume"
        return f"{shown} (a container's own)", [Finding(message=message)]
    if _NETWORK.fullmatch(mount.kind):
        return f"{shown} (network)", []
    if _OBJECT_STORE.fullmatch(mount.kind):
        message = (
            f"{folder}: a file system over an object store may lack renames and writes in the middle of files, which "
            f"jobs need; put work folders on a disk"
        )
        return f"{shown} (user space)", [Finding(message=message)]
    disk = "virtual disk" if _VIRTUAL.fullmatch(mount.source) else _disk(mount.device)
    return f"{shown} ({disk})" if disk else shown, []


def _disk(device: str) -> str:
    for place in (f"/sys/dev/block/{device}", f"/sys/dev/block/{device}/.."):
        with contextlib.suppress(OSError), open(f"{place}/queue/rotational", encoding="ascii") as file:
            return "rotating disk" if file.read().strip() == "1" else "solid state"
    return ""


def _measure(folder: str, free: int | None) -> str:
    """Write a temporary file with syncs, which is removed, and return its speed as text."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    largest = min(MOST_BYTES, MOST_BYTES if free is None else free // 4, limit if limit >= 0 else MOST_BYTES)
    chunk = memoryview(os.urandom(min(_CHUNK_BYTES, largest)))  # not zeros, which some file systems do not store
    with _temporary_file(folder) as descriptor:
        written, begun = 0, time.monotonic()
        while chunk.nbytes and written + chunk.nbytes <= largest and time.monotonic() - begun < MOST_SECONDS:
            rest = chunk
            while rest.nbytes:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
            written += chunk.nbytes
        seconds = time.monotonic() - begun
    if not written:
        return "too little room to measure writing"
    return f"writes {format_speed(written / max(seconds, 1e-9))} with sync ({format_size(written)} written)"


@contextlib.contextmanager
def _temporary_file(folder: str) -> Iterator[int]:
    """Open a file without a name, or where that is not possible, one with a name of its own that is removed."""
    path = None
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL}:
            raise
        descriptor, path = tempfile.mkstemp(prefix=".dsindex-doctor-", dir=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
        if path is not None:
            os.unlink(path)


def _remedy(error: OSError) -> str:
    if error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return "name another folder, or correct its mount or owner"
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "make room, or raise the quota"
    return "check the mount, or use another folder"


def _mount_table() -> str:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.2f} GB"
