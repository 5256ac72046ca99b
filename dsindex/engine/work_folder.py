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
from dsindex.store.lock import hold_lock
from dsindex.store.store import replace_file, store_of
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.store.lock import Lock

MARKER_FILE = "dsindex-work-folder.json"
MARKER = b'{"format":"dsindex work folder 3","note":"made and removed by dsindex"}\n'
LOCK_FILE = "owner.json"
SHARDS_FOLDER = "shards"
INPUTS_FOLDER = "inputs"
_WORK = (SHARDS_FOLDER, "ledger.jsonl", "ledger")


def is_marked(path: str) -> bool:
    """Tell whether a folder is a work folder of this version.

    Raises:
        OutputError: If the store refuses.
    """
    found = store_of(path).read(joined(path, MARKER_FILE))
    return found is not None and found[0] == MARKER


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
    replace_file(joined(path, MARKER_FILE), MARKER)


@contextlib.contextmanager
def hold_work_folder(path: str) -> Iterator[Lock]:
    """Hold a new, empty or marked folder while the block runs; one in which nothing is done is removed.

    Raises:
        PlanError: If the folder is another program's or of another version, or another driver works there.
        OutputError: If it cannot be created.
    """
    # A lock is refused when it is taken, if it is none; a killed driver may have left half a marker.
    own = (LOCK_FILE, f"{MARKER_FILE}.")
    if not is_marked(path) and (foreign := [name for name in _files(path) if not name.startswith(own)]):
        raise PlanError(
            f"{path}: expected a new, an empty or a dsindex work folder of this version, found {foreign[0]!r} in "
            f"another folder; choose another --work-dir"
        )
    try:
        with hold_lock(joined(path, LOCK_FILE), what=f"the work folder {path}") as lock:
            write_marker(path)
            try:
                yield lock
            finally:
                if all(name.startswith((LOCK_FILE, MARKER_FILE)) for name in _files(path)):
                    remove_work_folder(path)
    finally:
        _remove_empty(path)


def remove_work(path: str) -> None:
    """Remove shards and ledger, to begin again; marker, lock and standard input stay."""
    _remove(path, _WORK)


def remove_work_folder(path: str) -> None:
    """Remove what jobs wrote in their folder, except the held lock; the marker goes last."""
    _remove(path, (*_WORK, INPUTS_FOLDER, f"{MARKER_FILE}."))
    store_of(path).delete([joined(path, MARKER_FILE)])
    remove_work(path)  # what a worker wrote that had seen the marker before


def _files(path: str) -> list[str]:
    """Return the paths of all files in a work folder, relative to it."""
    return [each.path[len(path) :].lstrip("/") for each in store_of(path).list(path)]


def _remove(path: str, beginnings: tuple[str, ...]) -> None:
    store_of(path).delete(joined(path, name) for name in _files(path) if name.startswith(beginnings))
    _remove_empty(path)


def _remove_empty(path: str) -> None:
    """Remove the empty folders below one of this machine, and itself if it is empty."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
