"""A job's work folder. A marked folder is dsindex's own: `rm -r` of it gives a job up, and nothing else is lost.

dsindex-work-folder.json   the marker; a folder without it must be empty
owner.json                 the lock of the driver that works here
ledger.jsonl               receipts of finished work; in a bucket ledger/00000001.jsonl and so on
inputs/stdin               standard input, if the job reads it
shards/                    files of attempts, each under a name that is used once
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from dsindex.errors import OutputError, PlanError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.lock import hold_lock
from dsindex.store.storage import holds_writes, make_folder
from dsindex.store.store import replace_file, store_of
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.store.lock import Lock

MARKER_FILE = "dsindex-work-folder.json"
MARKER_FORMAT = "dsindex work folder 2"
LOCK_FILE = "owner.json"
SHARDS_FOLDER = "shards"
INPUTS_FOLDER = "inputs"
_WORK = (SHARDS_FOLDER, "ledger.jsonl", "ledger")
_LARGEST_MARKER_BYTES = 4096


def is_marked(path: str) -> bool:
    """Tell whether a folder is a work folder of this version.

    Raises:
        OutputError: If the store refuses.
    """
    found = store_of(path).read(joined(path, MARKER_FILE), most_bytes=_LARGEST_MARKER_BYTES)
    try:
        marker = None if found is None else decode_json(found[0])
    except ValueError:
        return False
    return isinstance(marker, dict) and marker.get("format") == MARKER_FORMAT


def require_marked(path: str) -> None:
    """Check that a work folder is still there.

    Raises:
        OutputError: If its marker is gone.
    """
    if not is_marked(path):
        raise OutputError(f"{path}: expected the work folder, found nothing; run the same command again")


def write_marker(path: str) -> None:
    """Write the marker.

    Raises:
        OutputError: If the folder or the store refuses.
    """
    marker = {"format": MARKER_FORMAT, "note": "made and removed by dsindex"}
    replace_file(joined(path, MARKER_FILE), encode_json(marker, newline=True))


@contextlib.contextmanager
def hold_work_folder(path: str) -> Iterator[Lock]:
    """Hold a new, empty or marked folder while the block runs; one in which nothing is done is removed.

    Raises:
        PlanError: If the folder is another program's or of another version, or another driver works there.
        OutputError: If it cannot be created.
    """
    if not holds_writes(path):
        make_folder(path)
    try:
        if not is_marked(path):
            # A lock is refused when it is taken, if it is none; a killed driver may have left half a marker.
            own = (LOCK_FILE, f"{MARKER_FILE}.")
            if foreign := sorted(name for name in _names(path) if not name.startswith(own)):
                raise PlanError(
                    f"{path}: expected a new, an empty or a dsindex work folder of this version, found {foreign[0]!r} "
                    f"in it and no {MARKER_FILE}; choose another --work-dir"
                )
        with hold_lock(joined(path, LOCK_FILE), what=f"the work folder {path}") as lock:
            write_marker(path)
            try:
                yield lock
            finally:
                if all(name.startswith((LOCK_FILE, MARKER_FILE)) for name in _names(path)):
                    remove_work_folder(path)
    finally:
        _remove_empty(path)


def _names(path: str) -> set[str]:
    """Return the names of what is in a work folder, but for empty folders."""
    return {_name(path, each.path) for each in store_of(path).list(path)}


def _name(path: str, file: str) -> str:
    return file[len(path) :].lstrip("/").partition("/")[0]


def remove_work(path: str) -> None:
    """Remove shards and ledger, to begin again; marker, lock and standard input stay."""
    _remove(path, _WORK)


def remove_work_folder(path: str) -> None:
    """Remove what jobs wrote in their folder, except the held lock; the marker goes last."""
    _remove(path, (*_WORK, INPUTS_FOLDER, f"{MARKER_FILE}."))
    store_of(path).delete([joined(path, MARKER_FILE)])
    remove_work(path)  # what a worker wrote that had seen the marker before


def _remove(path: str, beginnings: tuple[str, ...]) -> None:
    files = store_of(path).list(path)
    store_of(path).delete(each.path for each in files if _name(path, each.path).startswith(beginnings))
    _remove_empty(path)


def _remove_empty(path: str) -> None:
    """Remove the empty folders below one of this machine, and itself if it is empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
