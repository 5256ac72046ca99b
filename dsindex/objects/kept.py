"""Objects that are kept as files in the user's cache folder, to be mapped into memory: indices and manifests.

They are in `$XDG_CACHE_HOME/dsindex/objects` (or `~/.cache/dsindex/objects`), named by a hash of address, endpoint and
version, so that an object that was replaced has another file. `files.jsonl` records what was written there, and nothing
else is ever removed. The files that were used longest ago are removed once all together are larger than
`$DSINDEX_CACHE_GB`, by default 50 GB.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
import uuid
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from dsindex.errors import InputError
from dsindex.objects.fetching import fetch_later
from dsindex.objects.stores import HEAD_BYTES, look_at_object, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from dsindex.objects.urls import ObjectIdentity, ObjectUrl

CAP_VARIABLE = "DSINDEX_CACHE_GB"
DEFAULT_CAP_GB = 50.0
RANGE_BYTES = 8 << 20
RANGES_IN_FLIGHT = 8
_RECORD = "files.jsonl"
_NAME = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]{32}\.tmp)?")
_ABANDONED_SECONDS = 86_400


def local_copy(url: ObjectUrl) -> str:
    """Return the path of a file of this machine with the content of an object, fetched unless it is there.

    Processes that ask at the same time fetch it once, as far as the file system has locks.

    Raises:
        InputError: If the object cannot be read, or the file not be written.
    """
    if url.identity is None:
        url, _ = look_at_object(url)
    identity = url.identity
    if identity is None:
        msg = f"expected an object that was looked at, got {url}"
        raise ValueError(msg)
    folder = _folder(url)
    path = os.path.join(folder, _name_of(url, identity))
    try:
        if not _is_kept(path, identity):
            with _locked(os.path.join(folder, f"lock-{os.path.basename(path)[:2]}")):
                if not _is_kept(path, identity):
                    _fetch(url, identity, path)
                    _remove_others(folder, path)
        os.utime(path)
    except OSError as error:
        msg = (
            f"{url}: cannot be kept in {folder} ({error.strerror}); make room there, or set XDG_CACHE_HOME to a folder "
            f"that has more"
        )
        raise InputError(msg) from error
    return path


def _folder(url: ObjectUrl) -> str:
    try:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"), "dsindex", "objects")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        msg = f"{url}: its index is kept in the user's cache folder, which cannot be used ({error}); set XDG_CACHE_HOME"
        raise InputError(msg) from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        msg = f"{folder}: expected a folder that only this user can write to; set XDG_CACHE_HOME to another one"
        raise InputError(msg)
    return folder


def _name_of(url: ObjectUrl, identity: ObjectIdentity) -> str:
    endpoint = url.access.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    parts = (endpoint if url.scheme == "s3" else "", str(url), identity.version, identity.size_bytes)
    return xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())


def _is_kept(path: str, identity: ObjectIdentity) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == identity.size_bytes


def _fetch(url: ObjectUrl, identity: ObjectIdentity, path: str) -> None:
    """Write the object to a temporary file by several requests at once, and rename it."""
    folder, name = os.path.split(path)
    temporary = f"{name}.{uuid.uuid4().hex}.tmp"
    lines = [json.dumps({"name": each, "address": str(url)}) + "\n" for each in (temporary, name)]
    with _locked(os.path.join(folder, "lock-record")), open(os.path.join(folder, _RECORD), "a") as record:
        record.writelines(lines)
    temporary = os.path.join(folder, temporary)
    try:
        with open(temporary, "xb") as file:
            file.writelines(_contents(url, identity))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _contents(url: ObjectUrl, identity: ObjectIdentity) -> Iterator[Any]:
    if identity.size_bytes <= HEAD_BYTES:
        yield look_at_object(url)[1]
        return
    begins = iter(range(0, identity.size_bytes, RANGE_BYTES))
    awaited: deque[Future[Any]] = deque()
    is_over = False
    try:
        while True:
            while len(awaited) < RANGES_IN_FLIGHT and (begin := next(begins, None)) is not None:
                end = min(begin + RANGE_BYTES, identity.size_bytes)
                awaited.append(fetch_later(partial(read_range, url, begin, end, is_given_up=lambda: is_over)))
            if not awaited:
                return
            yield awaited.popleft().result()
    finally:
        is_over = True
        for each in awaited:
            each.cancel()


def _remove_others(folder: str, kept: str) -> None:
    """Remove the files that were used longest ago, as long as there are too many bytes, and what was abandoned."""
    with _locked(os.path.join(folder, "lock-record")):
        found: dict[str, os.stat_result] = {}
        for name in _recorded(folder):
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(folder, name))
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    found[name] = status
        total = sum(status.st_size for status in found.values())
        cap = _cap_bytes()
        for name, status in sorted(found.items(), key=lambda each: each[1].st_mtime_ns):
            is_partial = name.endswith(".tmp")
            is_old = time.time() - status.st_mtime > _ABANDONED_SECONDS
            if name != os.path.basename(kept) and (is_old if is_partial else total > cap):
                os.unlink(os.path.join(folder, name))
                total -= status.st_size
                del found[name]
        lines = [json.dumps({"name": name}) + "\n" for name in found]
        temporary = os.path.join(folder, f"{_RECORD}.tmp")
        with open(temporary, "w") as record:
            record.writelines(lines)
        os.replace(temporary, os.path.join(folder, _RECORD))


def _recorded(folder: str) -> set[str]:
    names = set()
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, _RECORD), "rb") as record:
        for line in record:
            try:
                name = json.loads(line)["name"]
            except (ValueError, LookupError, TypeError):  # cut off by a crash
                continue
            if isinstance(name, str) and _NAME.fullmatch(name):
                names.add(name)
    return names


def _cap_bytes() -> float:
    given = os.environ.get(CAP_VARIABLE, "")
    try:
        cap = float(given or DEFAULT_CAP_GB)
    except ValueError:
        cap = -1.0
    if not cap >= 0:
        msg = f"{CAP_VARIABLE}: expected a number of GB such as 50, got {given!r}"
        raise InputError(msg)
    return cap * 1e9


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a file, where the file system has locks."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with contextlib.suppress(OSError):  # some network file systems have none; then it may be fetched twice
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
