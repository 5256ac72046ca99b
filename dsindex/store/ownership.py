"""Prove that dsindex made a work folder and a file in it; nothing else is ever removed.

A work folder holds a marker, written when the folder was new or empty, with a random id. Files of a fixed name in a
marked folder belong to dsindex because the folder was empty before; all other files carry the id in their names:

    shards/0004/00042137.<id><random>.<suffix>        id and random: 16 hexadecimal digits each

Folders are opened without following symbolic links, and files are removed one by one, relative to the open folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsindex.errors import OutputError, PlanError
from dsindex.store.lock import is_lock, require_conditions
from dsindex.store.storage import make_folder, open_folder, output_error, read_own
from dsindex.store.urls import ObjectUrl, is_url
from dsindex.store.writing import list_objects, put_if_absent, read_object, remove_objects

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKER_FILE = "dsindex-work-folder.json"
LOCK_FILE = "owner.json"
MARKER_FORMAT = "dsindex work folder 1"
SHARDS_FOLDER = "shards"
OWNED_SUFFIXES = frozenset(
    {"bin", "idx", "prov", "quarantine", "order", "head", "index", "text", "files", "tmp", "rows", "sizes"}
)
"""Last suffixes of the files that jobs write under `shards/`."""

_ID = re.compile(r"[0-9a-f]{16}")
_LARGEST_MARKER_BYTES = 4096
_FEW = 10
_REMOVED_AT_ONCE = 8
"""Files removed in parallel, since large files and files on a server each take time."""


def mark_folder(path: str) -> str:
    """Mark a new or empty folder as a work folder, or recognise one that is marked already.

    Args:
        path: The folder, which is created if it is missing; in one without a marker there may be a killed driver's
            lock.

    Returns:
        The id of the folder.

    Raises:
        PlanError: If the folder holds other files and no marker, or a file has its name.
        OutputError: If it cannot be read or written.
    """
    if isinstance(path, ObjectUrl):
        return _mark_address(path)
    _make(path)
    try:
        with open_folder(path) as folder:
            known = _read_marker(folder)
            if known is not None:
                return known
            foreign = sorted(set(os.listdir(folder)) - {MARKER_FILE})
            if foreign == [LOCK_FILE] and is_lock(os.path.join(path, LOCK_FILE)):
                foreign = []
            if foreign:
                raise PlanError(
                    f"{path}: expected a new, an empty or a dsindex work folder, found {foreign[0]!r} in it and no "
                    f"{MARKER_FILE}; choose another --work-dir"
                )
            return _write_marker(folder)
    except OSError as error:
        raise output_error(path, error) from error


def _make(path: str) -> None:
    """Create a folder, unless a file is in its way."""
    occupied = os.path.abspath(path)
    while not os.path.lexists(occupied):
        occupied = os.path.dirname(occupied)
    if not os.path.isdir(occupied):
        remedy = "choose another --work-dir or --output-prefix"
        raise PlanError(f"{occupied}: expected a folder for the work folder, got a file; {remedy}")
    make_folder(path)


def _mark_address(url: ObjectUrl) -> str:
    known = read_folder_id(url)
    if known is not None:
        return known
    lock = url.with_suffix(f"/{LOCK_FILE}")
    foreign = [each.url for each in list_objects(url, most=2) if each.url != lock]
    if foreign:
        raise PlanError(
            f"{url}: expected a new folder or one of dsindex, found {foreign[0]} and no {MARKER_FILE}; choose "
            f"another --work-dir"
        )
    marker, content = url.with_suffix(f"/{MARKER_FILE}"), new_marker()
    if put_if_absent(marker, content) is not None:
        require_conditions(marker, content)
    known = read_folder_id(url)
    if known is None:
        msg = f"{url}: expected the {MARKER_FILE} that was written just now, found none; run the same command again"
        raise PlanError(msg)
    return known


def read_named(path: str, name: str, *, most_bytes: int) -> bytes | None:
    """Return the content of a small file of a work folder; None if it is missing, too large or no file.

    Raises:
        OutputError: If the store refuses.
    """
    if isinstance(path, ObjectUrl):
        found = read_object(path.with_suffix(f"/{name}"), most_bytes=most_bytes)
        return None if found is None else found[0]
    try:
        with open_folder(path) as folder:
            return read_own(name, most_bytes=most_bytes, folder=folder)
    except OSError:
        return None


def names_in(path: str) -> set[str]:
    """Return the names of the files and folders in a work folder; of many, not all.

    Raises:
        OutputError: If it cannot be read.
    """
    if isinstance(path, ObjectUrl):
        return {each.url.removeprefix(f"{path}/").partition("/")[0] for each in list_objects(path, most=_FEW)}
    try:
        return set(os.listdir(path))
    except OSError as error:
        raise output_error(path, error) from error


def sizes_below(path: str) -> dict[str, int]:
    """Return the size of each file or object below a folder by its path.

    Raises:
        OutputError: If a store refuses.
    """
    if isinstance(path, ObjectUrl):
        return {str(each.url): each.size_bytes for each in list_objects(path)}
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                sizes[os.path.join(folder, name)] = os.lstat(os.path.join(folder, name)).st_size
    return sizes


def has_folder(path: str) -> bool:
    """Whether a file of this path could exist: its folder does, and an object needs none."""
    return is_url(path) or os.path.isdir(os.path.dirname(path))


def remove_empty(path: str) -> None:
    """Remove a folder of this machine if nothing is in it."""
    if not isinstance(path, ObjectUrl):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def read_folder_id(path: str) -> str | None:
    """Return the id of a work folder, on a disk or in an object store; None if it is missing or has no marker.

    Raises:
        OutputError: If the store refuses.
    """
    content = read_named(path, MARKER_FILE, most_bytes=_LARGEST_MARKER_BYTES)
    return None if content is None else _parse_marker(content)


def new_file_id(folder_id: str) -> str:
    """Return a new unique part for a file name, which proves in which work folder the file was made."""
    return folder_id + secrets.token_hex(8)


def is_owned_name(name: str, folder_id: str) -> bool:
    """Tell whether a job of this work folder chose the name of a file under `shards/`.

    >>> is_owned_name("00000003.0123456789abcdef0011223344556677.0.bin", "0123456789abcdef")
    True
    >>> is_owned_name("00000003.0123456789abcdef0011223344556677.0.bin.bak", "0123456789abcdef")
    False
    """
    parts = name.split(".")
    return parts[-1] in OWNED_SUFFIXES and any(
        len(part) == 2 * len(folder_id) and part.startswith(folder_id) for part in parts[1:-1]
    )


def remove_owned_shards(path: str, folder_id: str) -> None:
    """Remove the files of this work folder's jobs under `shards/`, and folders that are then empty.

    Files that cannot be removed, and files that dsindex did not write, stay.

    Raises:
        OutputError: If a store refuses.
    """
    if isinstance(path, ObjectUrl):
        found = list_objects(path.with_suffix(f"/{SHARDS_FOLDER}"))
        remove_objects(each.url for each in found if is_owned_name(os.path.basename(each.url), folder_id))
        return
    with contextlib.suppress(OSError), open_folder(path) as folder:
        with open_folder(SHARDS_FOLDER, inside=folder) as shards:
            for name in os.listdir(shards):
                with contextlib.suppress(OSError):
                    with open_folder(name, inside=shards) as subfolder:
                        _remove_owned(subfolder, folder_id)
                    os.rmdir(name, dir_fd=shards)
            _remove_owned(shards, folder_id)
        os.rmdir(SHARDS_FOLDER, dir_fd=folder)


def remove_owned_files(path: str, folder_id: str, names: Iterable[str]) -> None:
    """Remove files of this work folder's jobs by their names, such as `shards/0004/….bin`.

    Files that cannot be removed, and files that dsindex did not write, stay.
    """
    by_folder: dict[str, list[str]] = {}
    owned = [name for name in names if is_owned_name(os.path.basename(name), folder_id)]
    if isinstance(path, ObjectUrl):
        with contextlib.suppress(OutputError):
            remove_objects(path.with_suffix(f"/{name}") for name in owned if name.startswith(f"{SHARDS_FOLDER}/"))
        return
    for name in owned:
        folder, base = os.path.split(name)
        if os.path.dirname(folder) == SHARDS_FOLDER:
            by_folder.setdefault(os.path.basename(folder), []).append(base)
    with contextlib.suppress(OSError), open_folder(path) as top, open_folder(SHARDS_FOLDER, inside=top) as shards:
        for folder, bases in by_folder.items():
            with contextlib.suppress(OSError), open_folder(folder, inside=shards) as opened:
                for base in bases:
                    _remove_quietly(opened, base)


def remove_named(path: str, names: tuple[str, ...]) -> None:
    """Remove regular files of a marked work folder by their fixed names.

    Raises:
        OutputError: If a file cannot be removed.
    """
    if isinstance(path, ObjectUrl):
        remove_objects([path.with_suffix(f"/{name}") for name in names])
        return
    try:
        with open_folder(path) as folder:
            for name in names:
                _remove_regular(folder, name)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise output_error(path, error) from error


def refuse_linked_shards(path: str) -> None:
    """Refuse a work folder whose `shards` is not a real folder.

    Raises:
        PlanError: If it is a symbolic link or a file.
    """
    if isinstance(path, ObjectUrl):
        return  # which has no links
    shards = os.path.join(path, SHARDS_FOLDER)
    if os.path.islink(shards) or (os.path.exists(shards) and not os.path.isdir(shards)):
        msg = f"{shards}: expected a folder, got a symbolic link or a file; move it away, or choose another --work-dir"
        raise PlanError(msg)


def _read_marker(folder: int) -> str | None:
    try:
        return _parse_marker(read_own(MARKER_FILE, most_bytes=_LARGEST_MARKER_BYTES, folder=folder))
    except OSError:
        return None


def _parse_marker(content: bytes) -> str | None:
    """Return the id that a marker has; None if it is not a marker."""
    try:
        marker = json.loads(content)
    except ValueError:
        return None
    if not isinstance(marker, dict) or marker.get("format") != MARKER_FORMAT:
        return None
    folder_id = marker.get("id")
    return folder_id if isinstance(folder_id, str) and _ID.fullmatch(folder_id) else None


def new_marker() -> bytes:
    """Return the content of a marker with a new id."""
    marker = {"format": MARKER_FORMAT, "id": secrets.token_hex(8), "note": "made and removed by dsindex"}
    return json.dumps(marker).encode() + b"\n"


def _write_marker(folder: int) -> str:
    """Write the marker in one call; a crash before it leaves an empty marker, which is written again."""
    marker = new_marker()
    descriptor = os.open(MARKER_FILE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666, dir_fd=folder)
    try:
        if os.fstat(descriptor).st_size:
            msg = f"{MARKER_FILE}: expected no file or a marker that dsindex wrote; choose another --work-dir"
            raise OutputError(msg)
        os.write(descriptor, marker)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # file systems that cannot sync folders
        os.fsync(folder)
    return _parse_marker(marker) or ""


def _remove_owned(folder: int, folder_id: str) -> None:
    """Remove this work folder's files from one folder, several at once."""
    names = [name for name in os.listdir(folder) if is_owned_name(name, folder_id)]
    if not names:
        return
    with ThreadPoolExecutor(_REMOVED_AT_ONCE, thread_name_prefix="dsindex-remove") as pool:
        list(pool.map(lambda name: _remove_quietly(folder, name), names))


def _remove_quietly(folder: int, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _remove_regular(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            os.unlink(name, dir_fd=folder)
