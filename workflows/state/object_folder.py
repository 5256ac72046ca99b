"""A job's work folder in an object store: the same names as on a disk, and the same rules.

dsindex-work-folder.json   the marker; without it nothing may be below the folder's name
owner.json                 the lock of the driver that works here
plan.json                  the job's plan, for people
ledger/00000001.jsonl      finished work, in segments
progress.json              current progress
inputs/stdin               standard input, if the job reads it (workflows.state.object_spool)
shards/                    objects of attempts, each under a name that is used once
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from dsindex.errors import DsindexError, PlanError
from dsindex.objects.urls import ObjectUrl, parse_url
from dsindex.objects.writing import list_objects, put_if_absent, put_object, remove_objects
from dsindex.shards.ownership import MARKER_FILE, SHARDS_FOLDER, is_owned_name, new_marker, read_folder_id
from workflows.state.history import History, read_history
from workflows.state.journal import LEDGER_FOLDER, ledger_path, segment_urls
from workflows.state.object_lock import hold_object_lock, is_object_lock, require_conditions
from workflows.state.object_spool import remove_object_spool, spool_names
from workflows.state.owned_folder import LOCK_FILE, PLAN_FILE, WorkFolder, may_be_removed, refuse_other_work
from workflows.state.spool import spool_path
from workflows.state.uploads import give_up_uploads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workflows.state.identity import Plan

PROGRESS_OBJECT = "progress.json"
_FEW = 10


class ObjectFolder(WorkFolder):
    """A work folder in an object store."""

    __slots__ = ()

    @property
    def url(self) -> ObjectUrl:
        """Its address."""
        if not isinstance(self.path, ObjectUrl):
            msg = f"expected an address, got {self.path}"
            raise TypeError(msg)
        return self.path

    def start_over(self, plan: Plan | None = None) -> None:
        """Remove what earlier runs wrote here and began to upload, except marker and lock.

        The ledger is removed last, from its end, since it names what is uploaded.

        Args:
            plan: The plan that begins now; standard input that was stored for it stays.
        """
        url = self.url
        stored = spool_path(url)
        former = () if self.history.plan is None else [entry[0] for entry in self.history.plan["inputs"]]
        if stored in former and (plan is None or all(file.absolute_path != stored for file in plan.inputs)):
            remove_object_spool(parse_url(stored))
        give_up_uploads(self.history, url.access)
        shards = list_objects(url.lengthened(f"/{SHARDS_FOLDER}"))
        remove_objects(each.url for each in shards if is_owned_name(os.path.basename(each.url), self.folder_id))
        remove_objects([url.lengthened(f"/{name}") for name in (PROGRESS_OBJECT, PLAN_FILE)])
        remove_objects(reversed(segment_urls(url.lengthened(f"/{LEDGER_FOLDER}"))))

    def write_plan(self, plan: bytes) -> None:
        """Write plan.json."""
        put_object(self.url.lengthened(f"/{PLAN_FILE}"), plan)


@contextlib.contextmanager
def own_object_folder(url: ObjectUrl, plan: Plan, *, fresh: bool, keep: bool) -> Iterator[WorkFolder]:
    """Own a work folder while the block runs, and remove it when the block succeeds, unless it is to be kept.

    Raises:
        PlanError: If there are objects and no marker, another driver works there, or it has work of another plan.
        OutputError: If the store refuses.
    """
    folder_id = _mark(url)
    with hold_object_lock(url.lengthened(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
        try:
            folder = _look_at(url, folder_id, keep=keep)
            refuse_other_work(folder, plan, fresh=fresh)
            yield folder
        except BaseException:
            with contextlib.suppress(DsindexError):
                _remove_if_unused(url)
            raise
        if not keep:
            _look_at(url, folder_id).start_over()
            _remove_if_unused(url)


@contextlib.contextmanager
def hold_object_folder(url: ObjectUrl) -> Iterator[str]:
    """Hold a work folder while the block stores something in it before the job's plan is known; yield its id.

    If the block fails, a new folder is removed.

    Raises:
        PlanError: If there are objects and no marker, or another driver works there.
        OutputError: If the store refuses.
    """
    folder_id = _mark(url)
    with hold_object_lock(url.lengthened(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
        try:
            yield folder_id
        except BaseException:
            with contextlib.suppress(DsindexError):
                _remove_if_unused(url)
            raise


def discard_unused_object_folder(url: ObjectUrl) -> None:
    """Remove a work folder in which no job has begun to work, unless a driver works there."""
    with contextlib.suppress(DsindexError):
        if read_folder_id(url) is not None:
            with hold_object_lock(url.lengthened(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
                _remove_if_unused(url)


def read_object_history(url: ObjectUrl) -> History:
    """Return the history of a work folder's ledger without changing it; it is empty if the folder has no marker."""
    return read_history(ledger_path(url)) if read_folder_id(url) is not None else History()


def remove_finished_object_folder(url: ObjectUrl, plan: Plan) -> None:
    """Remove the work folder of a run that published everything and was killed before it removed the folder."""
    folder_id = read_folder_id(url)
    lock = url.lengthened(f"/{LOCK_FILE}")
    if folder_id is None:
        if is_object_lock(lock):
            with contextlib.suppress(PlanError), hold_object_lock(lock, what=f"the work folder {url}"):
                pass  # a dead owner's lock is taken over and removed
        return
    if may_be_removed(read_history(ledger_path(url)), plan):
        with contextlib.suppress(PlanError):
            discard_object_folder(url)


def discard_object_folder(url: ObjectUrl) -> None:
    """Remove a work folder with all that its job's runs wrote and began, except finished outputs.

    Raises:
        PlanError: If a driver that may be alive works there.
        OutputError: If the store refuses.
    """
    with hold_object_lock(url.lengthened(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
        folder_id = read_folder_id(url)
        if folder_id is not None:
            _look_at(url, folder_id).start_over()
            _remove_if_unused(url)


def _mark(url: ObjectUrl) -> str:
    """Mark a new folder as a work folder and return its id; it may have a killed driver's lock.

    Raises:
        PlanError: If there are objects below its name, and no marker.
    """
    known = read_folder_id(url)
    if known is not None:
        return known
    lock = url.lengthened(f"/{LOCK_FILE}")
    foreign = [each.url for each in list_objects(url, most=_FEW) if each.url != lock]
    if foreign:
        msg = (
            f"{url}: expected a new folder or one of dsindex, found {foreign[0]} and no {MARKER_FILE}; choose "
            f"another --work-dir"
        )
        raise PlanError(msg)
    marker, content = url.lengthened(f"/{MARKER_FILE}"), new_marker()
    if put_if_absent(marker, content) is not None:
        require_conditions(marker, content)
    known = read_folder_id(url)
    if known is None:
        msg = f"{url}: expected the {MARKER_FILE} that was written just now, found none; run the same command again"
        raise PlanError(msg)
    return known


def _look_at(url: ObjectUrl, folder_id: str, *, keep: bool = False) -> ObjectFolder:
    history = read_history(ledger_path(url))
    return ObjectFolder(path=url, folder_id=folder_id, history=history, keep=keep, was_damaged=False)


def _remove_if_unused(url: ObjectUrl) -> None:
    """Remove the marker of a folder that has nothing else but the caller's lock and a stored input."""
    marker, lock = url.lengthened(f"/{MARKER_FILE}"), url.lengthened(f"/{LOCK_FILE}")
    stored = parse_url(spool_path(url))
    found = {each.url for each in list_objects(url, most=_FEW)}
    if found <= {marker, lock, *spool_names(stored)}:
        if not found <= {marker, lock}:
            remove_object_spool(stored)
        remove_objects([marker])
