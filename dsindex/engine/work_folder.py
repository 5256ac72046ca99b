"""A job's work folder. A marked folder is dsindex's own: `rm -r` of it gives a job up, and nothing else is lost.

dsindex-work-folder.json   the marker, with the plan's id; a folder without it must be empty
owner.json                 the lock of the driver that works here
ledger.jsonl               receipts of finished work; in a bucket ledger/00000001.jsonl and so on
inputs/stdin               standard input, if the job reads it
shards/                    files of attempts, each under a name that is used once
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from dsindex.errors import OutputError, PlanError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.lock import hold_lock
from dsindex.store.storage import holds_writes, make_folder, output_error
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
LEDGER_FILE = "ledger.jsonl"
LEDGER_FOLDER = "ledger"
_LARGEST_MARKER_BYTES = 4096


def read_marker(path: str) -> str | None:
    """Return the id of the plan in a work folder's marker; None without a marker.

    Raises:
        PlanError: If the folder is one of an earlier version.
        OutputError: If the store refuses.
    """
    found = store_of(path).read(joined(path, MARKER_FILE), most_bytes=_LARGEST_MARKER_BYTES)
    try:
        marker = None if found is None else decode_json(found[0])
    except ValueError:
        return None
    if not isinstance(marker, dict) or not isinstance(marker.get("plan", ""), str):
        return None
    if marker.get("format") != MARKER_FORMAT:
        raise PlanError(
            f"{path}: expected a work folder of this version, got {marker.get('format')!r} of an earlier one; remove "
            f"it (rm -r) and build again, or finish it with the version that began it"
        )
    return str(marker.get("plan", ""))


def require_marked(path: str) -> None:
    """Check that a work folder is still there.

    Raises:
        OutputError: If its marker is gone.
    """
    if read_marker(path) is None:
        raise OutputError(f"{path}: expected the work folder, found nothing; run the same command again")


def write_marker(path: str, plan_id: str) -> None:
    """Write the marker.

    Raises:
        OutputError: If the folder or the store refuses.
    """
    marker = {"format": MARKER_FORMAT, "plan": plan_id, "note": "made and removed by dsindex"}
    replace_file(joined(path, MARKER_FILE), encode_json(marker, newline=True))


@contextlib.contextmanager
def hold_work_folder(path: str) -> Iterator[Lock]:
    """Hold a new, empty or marked folder while the block runs; one in which nothing is done is removed.

    Raises:
        PlanError: If the folder is another program's or of an earlier version, or another driver works there.
        OutputError: If it cannot be created.
    """
    _require_own(path)
    try:
        with hold_lock(joined(path, LOCK_FILE), what=f"the work folder {path}") as lock:
            if read_marker(path) is None:
                write_marker(path, "")
            try:
                yield lock
            except BaseException:
                if _names(path) <= {MARKER_FILE, LOCK_FILE}:
                    remove_work_folder(path)
                raise
    finally:
        _remove_empty(path)


def _require_own(path: str) -> None:
    if not holds_writes(path):
        _make(path)
    if read_marker(path) is not None:
        return
    foreign = sorted(name for name in _names(path) if not name.startswith(f"{MARKER_FILE}."))  # a killed driver's
    if foreign and foreign != [LOCK_FILE]:  # which is refused when it is taken, if it is no lock
        raise PlanError(
            f"{path}: expected a new, an empty or a dsindex work folder, found {foreign[0]!r} in it and no "
            f"{MARKER_FILE}; choose another --work-dir"
        )


def _make(path: str) -> None:
    occupied = os.path.abspath(path)
    while not os.path.lexists(occupied):
        occupied = os.path.dirname(occupied)
    if not os.path.isdir(occupied):
        remedy = "choose another --work-dir or --output-prefix"
        raise PlanError(f"{occupied}: expected a folder for the work folder, got a file; {remedy}")
    make_folder(path)


def _names(path: str) -> set[str]:
    """Return the names of the files and folders in a work folder."""
    if holds_writes(path):
        return {each.path.removeprefix(f"{path}/").partition("/")[0] for each in store_of(path).list(path)}
    try:
        return set(os.listdir(path))
    except OSError as error:
        raise output_error(path, error) from error


def remove_work(path: str) -> None:
    """Remove shards and ledger, to begin again; marker, lock and standard input stay."""
    if holds_writes(path):
        store = store_of(path)
        own = tuple(joined(path, f"{name}/") for name in (SHARDS_FOLDER, LEDGER_FOLDER))
        store.delete(each.path for each in store.list(path) if each.path.startswith(own))
        return
    shutil.rmtree(os.path.join(path, SHARDS_FOLDER), ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(path, LEDGER_FILE))


def remove_work_folder(path: str) -> None:
    """Remove what jobs wrote in their folder, except the held lock; the marker goes last."""
    remove_work(path)
    store = store_of(path)
    if holds_writes(path):
        store.delete(each.path for each in store.list(joined(path, INPUTS_FOLDER)))
    else:
        shutil.rmtree(os.path.join(path, INPUTS_FOLDER), ignore_errors=True)
    store.delete(joined(path, name) for name in _names(path) if name.startswith(MARKER_FILE))
    remove_work(path)  # again: a late attempt on another node may have met the marker just before


def _remove_empty(path: str) -> None:
    if not holds_writes(path):
        with contextlib.suppress(OSError):
            os.rmdir(path)
