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
from dsindex.store.storage import output_error, read_own
from dsindex.store.urls import ObjectUrl
from dsindex.store.writing import read_object, remove_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARKER_FILE = "dsindex-work-folder.json"
MARKER_FORMAT = "dsindex work folder 1"
SHARDS_FOLDER = "shards"
OWNED_SUFFIXES = frozenset({"bin", "idx", "prov", "quarantine", "order", "head", "index", "text", "tmp"})
"""Last suffixes of the files that jobs write under `shards/`."""

_ID = re.compile(r"[0-9a-f]{16}")
_LARGEST_MARKER_BYTES = 4096
_REMOVED_AT_ONCE = 8
"""Files removed in parallel, since large files and files on a server each take time."""


def mark_folder(path: str, *, beside: frozenset[str] = frozenset()) -> str:
    """Mark a new or empty folder as a work folder, or recognise one that is marked already.

    Args:
        path: The folder, which must exist.
        beside: Names allowed in a folder without a marker: files that a driver creates before or after it.

    Returns:
        The id of the folder.

    Raises:
        PlanError: If the folder holds other files and no marker.
        OutputError: If it cannot be read or written.
    """
    try:
        with open_folder(path) as folder:
            known = _read_marker(folder)
            if known is not None:
                return known
            foreign = sorted(set(os.listdir(folder)) - beside - {MARKER_FILE})
            if foreign:
                raise PlanError(
                    f"{path}: expected a new, an empty or a dsindex work folder, found {foreign[0]!r} in it and no "
                    f"{MARKER_FILE}; choose another --work-dir"
                )
            return _write_marker(folder)
    except OSError as error:
        raise output_error(path, error) from error


def read_folder_id(path: str) -> str | None:
    """Return the id of a work folder, on a disk or in an object store; None if it is missing or has no marker.

    Raises:
        OutputError: If the store refuses.
    """
    if isinstance(path, ObjectUrl):
        found = read_object(path.with_suffix(f"/{MARKER_FILE}"), most_bytes=_LARGEST_MARKER_BYTES)
        return None if found is None else _parse_marker(found[0])
    try:
        with open_folder(path) as folder:
            return _read_marker(folder)
    except OSError:
        return None


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
    """
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
    shards = os.path.join(path, SHARDS_FOLDER)
    if os.path.islink(shards) or (os.path.exists(shards) and not os.path.isdir(shards)):
        msg = f"{shards}: expected a folder, got a symbolic link or a file; move it away, or choose another --work-dir"
        raise PlanError(msg)


@contextlib.contextmanager
def open_folder(path: str, *, inside: int | None = None) -> Iterator[int]:
    """Open a folder for operations relative to it; a symbolic link inside another folder is not followed.

    Raises:
        OSError: If there is no such folder.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if inside is None else os.O_NOFOLLOW)
    descriptor = os.open(path, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
