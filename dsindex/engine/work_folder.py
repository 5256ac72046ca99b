"""A job's work folder: its marker, lock, plan and ledger, and the rules by which a job is resumed or refused.

dsindex-work-folder.json   the marker (dsindex.engine.shards.ownership); a folder without it must be empty
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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.engine.identity import describe_changes, is_plan
from dsindex.engine.ledger import (
    LEDGER_FILE,
    LEDGER_FOLDER,
    MOST_LINE_BYTES,
    History,
    Ledger,
    has_journal,
    ledger_path,
    read_history,
    segment_urls,
)
from dsindex.engine.lock import hold_lock, hold_object_lock, is_lock, is_object_lock, require_conditions
from dsindex.engine.partial_files import remove_partials
from dsindex.engine.publishing import give_up_uploads
from dsindex.engine.shards.ownership import (
    MARKER_FILE,
    SHARDS_FOLDER,
    is_owned_name,
    mark_folder,
    new_marker,
    read_folder_id,
    refuse_linked_shards,
    remove_named,
    remove_owned_shards,
)
from dsindex.engine.spool import INPUTS_FOLDER, remove_object_spool, remove_spool, spool_names, spool_path
from dsindex.errors import DsindexError, OutputError, PlanError
from dsindex.execution.progress.progress_file import PROGRESS_FILE, PROGRESS_TEMPORARY
from dsindex.json_text import decode_json, encode_json
from dsindex.store.storage import make_folder, read_own, replace_file
from dsindex.store.urls import NO_ACCESS, ObjectUrl, parse_url
from dsindex.store.writing import list_objects, put_if_absent, put_object, remove_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from dsindex.engine.identity import Plan
    from dsindex.store.urls import Access


# A work folder that a driver owns, on a disk or in an object store, and the rules by which its work is continued.

PLAN_FILE = "plan.json"
LOCK_FILE = "owner.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder(ABC):
    """A work folder that this driver owns."""

    path: str
    """Its path or its address."""
    folder_id: str
    history: History
    """The ledger's history of earlier runs."""
    keep: bool = False
    """Whether the folder stays when its job is done."""
    was_damaged: bool
    """Whether the ledger has work but its plan.json cannot be read."""

    @abstractmethod
    def start_over(self, plan: Plan | None = None) -> None:
        """Remove what earlier runs wrote, here and for their outputs, except marker and lock."""

    @abstractmethod
    def write_plan(self, plan: bytes) -> None:
        """Write plan.json."""

    def _remove_unpublished(self, access: Access) -> None:
        """Remove what the folder's runs began outside of it, unless it is a copy of another folder."""
        if self.history.belongs_to(self.path):
            remove_partials(self.history.partials)
            give_up_uploads(self.history, access)

    @contextlib.contextmanager
    def open_ledger(self, plan: Plan, *, fresh: bool, outputs: Sequence[str] = ()) -> Iterator[Ledger]:
        """Begin or continue a plan.

        Args:
            plan: The job's plan.
            fresh: Whether the output of another plan is replaced.
            outputs: Prefixes of the job's outputs, whose locks this driver holds.

        Raises:
            FormatError: If the ledger cannot be read.
            OutputError: If the folder cannot be written.
        """
        self.write_plan(encode_json(plan.to_json()))
        ledger = Ledger(ledger_path(self.path))
        try:
            ledger.record_run(plan.to_json(), keep=self.keep, fresh=fresh, outputs=outputs, work_dir=str(self.path))
            yield ledger
        finally:
            ledger.close()

    def read_ledger(self) -> Ledger | None:
        """Return the ledger as earlier runs left it, closed; None if there is none.

        Raises:
            FormatError: If it cannot be read.
        """
        path = ledger_path(self.path)
        if not has_journal(path):
            return None
        ledger = Ledger(path)
        ledger.close()
        return ledger


def may_be_removed(history: History, plan: Plan) -> bool:
    """Tell whether a finished plan's run may remove the work folder that has this history."""
    is_own = history.plan == decode_json(encode_json(plan.to_json()))
    return not history.keep and (is_own or (history.plan is None and not history.has_work))


def refuse_other_work(folder: WorkFolder, plan: Plan, *, fresh: bool) -> None:
    """Refuse a folder with work that the plan does not continue; with `fresh`, only work on another output.

    Raises:
        PlanError: Naming what differs.
    """
    _refuse_other_output(folder, plan)
    if not fresh:
        _refuse_other_plan(folder, plan)


def _refuse_other_output(folder: WorkFolder, plan: Plan) -> None:
    """Refuse a folder with work on another output: --fresh must not discard that."""
    stored = folder.history.plan
    if stored is None or not folder.history.has_work:
        return
    for name in ("output-prefix", "output"):
        before, now = stored["settings"].get(name), plan.settings.get(name)
        if before != now:
            raise PlanError(
                f"{folder.path}: expected no work on another output, got work on {before or 'one of another kind'}; "
                f"choose another --work-dir, or remove this folder if nobody needs it"
            )


def _refuse_other_plan(folder: WorkFolder, plan: Plan) -> None:
    history = folder.history
    if not history.has_work:
        return
    if history.plan is None:
        raise PlanError(
            f"{folder.path}: expected the plan of the ledger's shards, but neither plan.json nor the ledger has one "
            f"that can be read; restore one of them, or make all shards again with --fresh"
        )
    changes = describe_changes(history.plan, plan, may_grow=True)
    if changes:
        what = (
            "the kept shards of another plan are here"
            if history.finished
            else "an unfinished build of another plan is here"
        )
        raise PlanError(
            f"{folder.path}: {what}: {'; '.join(changes)}; use the former options and inputs to continue it, "
            f"--fresh to start over, or another --work-dir"
        )


# A job's work folder in an object store: the same names as on a disk, and the same rules.
#
# dsindex-work-folder.json   the marker; without it nothing may be below the folder's name
# owner.json                 the lock of the driver that works here
# plan.json                  the job's plan, for people
# ledger/00000001.jsonl      finished work, in segments
# progress.json              current progress
# inputs/stdin               standard input, if the job reads it (dsindex.engine.spool)
# shards/                    objects of attempts, each under a name that is used once

PROGRESS_OBJECT = "progress.json"
_FEW = 10


class ObjectFolder(WorkFolder):
    """A work folder in an object store."""

    __slots__ = ()

    @property
    def url(self) -> ObjectUrl:
        """Its address."""
        if not isinstance(self.path, ObjectUrl):
            raise TypeError(f"expected an address, got {self.path}")
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
        self._remove_unpublished(url.access)
        shards = list_objects(url.with_suffix(f"/{SHARDS_FOLDER}"))
        remove_objects(each.url for each in shards if is_owned_name(os.path.basename(each.url), self.folder_id))
        remove_objects([url.with_suffix(f"/{name}") for name in (PROGRESS_OBJECT, PLAN_FILE)])
        remove_objects(reversed(segment_urls(url.with_suffix(f"/{LEDGER_FOLDER}"))))

    def write_plan(self, plan: bytes) -> None:
        """Write plan.json."""
        put_object(self.url.with_suffix(f"/{PLAN_FILE}"), plan)


@contextlib.contextmanager
def own_object_folder(url: ObjectUrl, plan: Plan, *, fresh: bool, keep: bool) -> Iterator[WorkFolder]:
    """Own a work folder while the block runs, and remove it when the block succeeds, unless it is to be kept.

    Raises:
        PlanError: If there are objects and no marker, another driver works there, or it has work of another plan.
        OutputError: If the store refuses.
    """
    folder_id = _mark_object(url)
    with hold_object_lock(url.with_suffix(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
        try:
            folder = _look_at_object(url, folder_id, keep=keep)
            refuse_other_work(folder, plan, fresh=fresh)
            yield folder
        except BaseException:
            with contextlib.suppress(DsindexError):
                _remove_unused_objects(url)
            raise
        if not keep:
            _look_at_object(url, folder_id).start_over()
            _remove_unused_objects(url)


@contextlib.contextmanager
def hold_object_folder(url: ObjectUrl) -> Iterator[str]:
    """Hold a work folder while the block stores something in it before the job's plan is known; yield its id.

    If the block fails, a new folder is removed.

    Raises:
        PlanError: If there are objects and no marker, or another driver works there.
        OutputError: If the store refuses.
    """
    folder_id = _mark_object(url)
    with hold_object_lock(url.with_suffix(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
        try:
            yield folder_id
        except BaseException:
            with contextlib.suppress(DsindexError):
                _remove_unused_objects(url)
            raise


def discard_unused_object_folder(url: ObjectUrl) -> None:
    """Remove a work folder in which no job has begun to work, unless a driver works there."""
    with contextlib.suppress(DsindexError):
        if read_folder_id(url) is not None:
            with hold_object_lock(url.with_suffix(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
                _remove_unused_objects(url)


def read_object_history(url: ObjectUrl) -> History:
    """Return the history of a work folder's ledger without changing it; it is empty if the folder has no marker."""
    return read_history(ledger_path(url)) if read_folder_id(url) is not None else History()


def remove_finished_object_folder(url: ObjectUrl, plan: Plan) -> None:
    """Remove the work folder of a run that published everything and was killed before it removed the folder."""
    folder_id = read_folder_id(url)
    lock = url.with_suffix(f"/{LOCK_FILE}")
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
    with hold_object_lock(url.with_suffix(f"/{LOCK_FILE}"), what=f"the work folder {url}"):
        folder_id = read_folder_id(url)
        if folder_id is not None:
            _look_at_object(url, folder_id).start_over()
            _remove_unused_objects(url)


def _mark_object(url: ObjectUrl) -> str:
    """Mark a new folder as a work folder and return its id; it may have a killed driver's lock.

    Raises:
        PlanError: If there are objects below its name, and no marker.
    """
    known = read_folder_id(url)
    if known is not None:
        return known
    lock = url.with_suffix(f"/{LOCK_FILE}")
    foreign = [each.url for each in list_objects(url, most=_FEW) if each.url != lock]
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


def _look_at_object(url: ObjectUrl, folder_id: str, *, keep: bool = False) -> ObjectFolder:
    history = read_history(ledger_path(url))
    return ObjectFolder(path=url, folder_id=folder_id, history=history, keep=keep, was_damaged=False)


def _remove_unused_objects(url: ObjectUrl) -> None:
    """Remove the marker of a folder that has nothing else but the caller's lock and a stored input."""
    marker, lock = url.with_suffix(f"/{MARKER_FILE}"), url.with_suffix(f"/{LOCK_FILE}")
    stored = parse_url(spool_path(url))
    found = {each.url for each in list_objects(url, most=_FEW)}
    if found <= {marker, lock, *spool_names(stored)}:
        if not found <= {marker, lock}:
            remove_object_spool(stored)
        remove_objects([marker])


PLAN_TEMPORARY = "plan.json.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFolder(WorkFolder):
    """A work folder on a disk."""

    access: Access = NO_ACCESS
    """How the store of the outputs is reached, if they are objects."""

    def start_over(self, plan: Plan | None = None) -> None:
        """Remove the files of earlier runs, here and beside their outputs, except marker and lock.

        The ledger is removed last, since the names of the other files follow from its plans.

        Args:
            plan: The plan that begins now; standard input that was stored for it stays.
        """
        self._remove_unpublished(self.access)
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
        raise PlanError(f"{occupied}: expected a folder for the work folder, got a file; {remedy}")
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
        stored = decode_json(read_own(os.path.join(path, PLAN_FILE), most_bytes=MOST_LINE_BYTES))
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

    Partial files beside the outputs are removed first and the ledger, from whose plans their names follow, last.
    """
    _look_at(path, access=access).start_over()
    _remove_if_unused(path)
