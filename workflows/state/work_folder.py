"""A job's work folder: its marker, lock, plan and ledger, and the rules by which a job is resumed or refused.

dsindex-work-folder.json   the marker (dsindex.shards.ownership); a folder without it must be empty
owner.json                 the lock of the driver that works here
plan.json                  the job's plan, for people; the ledger has it too, with a checksum
ledger.jsonl               finished work
progress.json              current progress
inputs/stdin               standard input, if the job reads it
shards/                    files of attempts
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import OutputError, PlanError
from dsindex.json_text import decode_json
from dsindex.objects.urls import NO_ACCESS, ObjectUrl
from dsindex.shards.ownership import (
    MARKER_FILE,
    mark_folder,
    read_folder_id,
    refuse_linked_shards,
    remove_named,
    remove_owned_shards,
)
from dsindex.storage import make_folder, replace_file
from workflows.progress.progress_file import PROGRESS_FILE, PROGRESS_TEMPORARY
from workflows.state.history import History, read_history
from workflows.state.identity import is_plan
from workflows.state.journal import LEDGER_FILE, ledger_path
from workflows.state.lock import hold_lock, is_lock
from workflows.state.object_folder import (
    discard_object_folder,
    discard_unused_object_folder,
    hold_object_folder,
    own_object_folder,
    read_object_history,
    remove_finished_object_folder,
)
from workflows.state.owned_folder import LOCK_FILE, PLAN_FILE, WorkFolder, may_be_removed, refuse_other_work
from workflows.state.partial_files import remove_partials
from workflows.state.spool import INPUTS_FOLDER, remove_spool, spool_path
from workflows.state.uploads import give_up_uploads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from dsindex.objects.urls import Access
    from workflows.state.identity import Plan

PLAN_TEMPORARY = "plan.json.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFolder(WorkFolder):
    """A work folder on a disk."""

    access: Access = NO_ACCESS
    """How the store of the outputs is reached, if they are objects."""

    def start_over(self, plan: Plan | None = None) -> None:
        """Remove the files of earlier runs, here and beside their outputs, except marker and lock.

        The ledger is removed last, since it names the other files.

        Args:
            plan: The plan that begins now; standard input that was stored for it stays.
        """
        remove_partials(self.history.partials)
        give_up_uploads(self.history, self.access)
        remove_owned_shards(self.path, self.folder_id)
        stored = spool_path(self.path)
        if plan is None or all(file.absolute_path != stored for file in plan.inputs):
            remove_spool(self.path, self.folder_id)
        remove_named(self.path, (PROGRESS_FILE, PROGRESS_TEMPORARY, PLAN_FILE, PLAN_TEMPORARY, LEDGER_FILE))

    def write_plan(self, plan: bytes) -> None:
        """Write plan.json."""
        replace_file(os.path.join(self.path, PLAN_FILE), plan, temporary=os.path.join(self.path, PLAN_TEMPORARY))


def own_work_folder(
    path: str, plan: Plan, *, fresh: bool, keep: bool, access: Access = NO_ACCESS
) -> AbstractContextManager[WorkFolder]:
    """Own a work folder while the block runs, and remove it when the block succeeds, unless it is to be kept.

    Only the block itself changes the folder's work; a new folder in which no work began is removed.

    Args:
        path: The folder, or its address in an object store.
        plan: The job's plan.
        fresh: Whether work of another plan is replaced.
        keep: Whether the folder stays.
        access: How the store of the outputs is reached, if they are objects.

    Raises:
        PlanError: If the folder has no marker and is not empty, another driver works there, or it has work of another
            plan, naming what differs.
        OutputError: If it cannot be created.
    """
    if isinstance(path, ObjectUrl):
        return own_object_folder(path, plan, fresh=fresh, keep=keep)
    return _own_local_folder(path, plan, fresh=fresh, keep=keep, access=access)


@contextlib.contextmanager
def _own_local_folder(path: str, plan: Plan, *, fresh: bool, keep: bool, access: Access) -> Iterator[WorkFolder]:
    _make(path)
    _mark(path)
    refuse_linked_shards(path)
    try:
        with hold_lock(os.path.join(path, LOCK_FILE), what=f"the work folder {path}"):
            try:
                folder = _look_at(path, keep=keep, access=access)
                refuse_other_work(folder, plan, fresh=fresh)
                yield folder
            except BaseException:
                _remove_if_unused(path)
                raise
            if not keep:
                _remove_all(path, access)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # succeeds only if it is empty


def _make(path: str) -> None:
    """Create the folder, unless a file is in its way."""
    occupied = path
    while not os.path.lexists(occupied):
        occupied = os.path.dirname(occupied)
    if not os.path.isdir(occupied):
        remedy = "choose another --work-dir or --output-prefix"
        msg = f"{occupied}: expected a folder for the work folder, got a file; {remedy}"
        raise PlanError(msg)
    make_folder(path)


def hold_work_folder(path: str) -> AbstractContextManager[str]:
    """Hold a work folder while the block stores something in it before the job's plan is known; yield its id.

    If the block fails, a new folder is removed.

    Raises:
        PlanError: If the folder has no marker and is not empty, or another driver works there.
        OutputError: If it cannot be created.
    """
    return hold_object_folder(path) if isinstance(path, ObjectUrl) else _hold_local_folder(path)


@contextlib.contextmanager
def _hold_local_folder(path: str) -> Iterator[str]:
    _make(path)
    folder_id = _mark(path)
    try:
        with hold_lock(os.path.join(path, LOCK_FILE), what=f"the work folder {path}"):
            try:
                yield folder_id
            except BaseException:
                _remove_if_unused(path)
                raise
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(path)  # succeeds only if it is empty


def discard_unused_folder(path: str) -> None:
    """Remove a work folder in which no job has begun to work, unless a driver works there."""
    if isinstance(path, ObjectUrl):
        discard_unused_object_folder(path)
        return
    if read_folder_id(path) is None:
        return
    with contextlib.suppress(PlanError, OutputError), hold_lock(os.path.join(path, LOCK_FILE), what=path):
        _remove_if_unused(path)
    with contextlib.suppress(OSError):
        os.rmdir(path)  # succeeds only if it is empty


def remove_finished_folder(path: str, plan: Plan, access: Access = NO_ACCESS) -> None:
    """Remove the work folder of a run that published everything and was killed before it removed the folder.

    A folder stays as it is if it was to be kept, belongs to another job, has no marker, or a driver works there. An
    empty folder is removed, as a kill just before the final `rmdir` leaves one.
    """
    if isinstance(path, ObjectUrl):
        remove_finished_object_folder(path, plan)
        return
    lock = os.path.join(path, LOCK_FILE)
    if read_folder_id(path) is not None:
        history = read_history(ledger_path(path))
        if not may_be_removed(history, plan):
            return
    elif not is_lock(lock):  # a lock without a marker: killed after the marker was removed
        lock = ""
    if lock:
        with contextlib.suppress(PlanError), hold_lock(lock, what=f"the work folder {path}"):
            if read_folder_id(path) is not None:
                _remove_all(path, access)
    with contextlib.suppress(OSError):
        os.rmdir(path)  # succeeds only if it is empty


def discard_work_folder(path: str, access: Access = NO_ACCESS) -> None:
    """Remove a marked work folder with all that its job's runs wrote and began, except finished outputs.

    Raises:
        PlanError: If a driver that may be alive works there.
        OutputError: If a store refuses.
    """
    if isinstance(path, ObjectUrl):
        discard_object_folder(path)
        return
    with hold_lock(os.path.join(path, LOCK_FILE), what=f"the work folder {path}"):
        if read_folder_id(path) is not None:
            _remove_all(path, access)
    with contextlib.suppress(OSError):
        os.rmdir(path)  # succeeds only if it is empty


def read_unfinished(path: str) -> History:
    """Return the history of a work folder's ledger without changing it; it is empty if the folder has no marker."""
    if isinstance(path, ObjectUrl):
        return read_object_history(path)
    return read_history(ledger_path(path)) if read_folder_id(path) is not None else History()


def read_plan(path: str) -> dict[str, Any] | None:
    """Return the plan in a work folder's plan.json on a disk; None if it is missing or cannot be read."""
    try:
        with open(os.path.join(path, PLAN_FILE), "rb") as file:
            stored = decode_json(file.read())
    except (OSError, ValueError):
        return None
    return stored if is_plan(stored) else None


def _mark(path: str) -> str:
    """Mark a new or empty folder as a work folder and return its id; it may have a killed driver's lock."""
    lock = os.path.join(path, LOCK_FILE)
    return mark_folder(path, beside=frozenset({LOCK_FILE} if is_lock(lock) else ()))


def _look_at(path: str, *, keep: bool = False, access: Access = NO_ACCESS) -> LocalFolder:
    history = read_history(ledger_path(path))
    return LocalFolder(
        path=path,
        access=access,
        folder_id=_mark(path),
        history=history,
        keep=keep,
        was_damaged=history.has_work and read_plan(path) is None,
    )


def _remove_if_unused(path: str) -> None:
    """Remove the marker of a folder that has nothing else but the caller's lock and a stored input."""
    with contextlib.suppress(OSError):
        if set(os.listdir(path)) <= {MARKER_FILE, LOCK_FILE, INPUTS_FOLDER}:
            remove_spool(path, _mark(path))
        if set(os.listdir(path)) == {MARKER_FILE, LOCK_FILE}:
            remove_named(path, (MARKER_FILE,))


def _remove_all(path: str, access: Access) -> None:
    """Remove the files of jobs in their work folder, except the held lock; with files of others, the marker stays too.

    Partial files beside the outputs are removed first and the ledger, which names them, last.
    """
    _look_at(path, access=access).start_over()
    _remove_if_unused(path)
