"""A job's work folder: its marker, lock, plan and ledger, and the rules by which a job is resumed or refused.

dsindex-work-folder.json   the marker (dsindex.store.ownership); a folder without it must be empty
owner.json                 the lock of the driver that works here
plan.json                  the job's plan, for people; the ledger has it too, with a checksum
ledger.jsonl               finished work; in an object store ledger/00000001.jsonl and so on
progress.json              current progress
inputs/stdin               standard input, if the job reads it (dsindex.store.spool)
shards/                    files of attempts, each under a name that is used once
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.engine.identity import describe_settings, is_plan
from dsindex.engine.ledger import History, Ledger, read_history
from dsindex.engine.partial_files import remove_partials
from dsindex.engine.publishing import give_up_uploads
from dsindex.errors import DsindexError, PlanError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.journal import MOST_LINE_BYTES, has_journal, ledger_path, remove_journal
from dsindex.store.lock import hold_lock, is_lock
from dsindex.store.ownership import (
    LOCK_FILE,
    MARKER_FILE,
    mark_folder,
    names_in,
    read_folder_id,
    read_named,
    refuse_linked_shards,
    remove_empty,
    remove_named,
    remove_owned_shards,
)
from dsindex.store.spool import INPUTS_FOLDER, remove_spool, spool_path
from dsindex.store.storage import replace_file
from dsindex.store.urls import NO_ACCESS, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from dsindex.engine.identity import Plan
    from dsindex.store.urls import Access

PLAN_FILE = "plan.json"
PLAN_TEMPORARY = "plan.json.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFolder:
    """A work folder that this driver owns."""

    path: str
    """Its path or its address."""
    access: Access = NO_ACCESS
    """How the store of the outputs is reached, if they are objects."""
    folder_id: str
    history: History
    """The ledger's history of earlier runs."""
    keep: bool = False
    """Whether the folder stays when its job is done."""
    was_damaged: bool
    """Whether the ledger has work but its plan.json cannot be read."""

    def start_over(self, plan: Plan | None = None) -> None:
        """Remove what earlier runs wrote, here and beside their outputs, except marker and lock.

        The ledger is removed last, since what was written outside of the folder follows from its plans.

        Args:
            plan: The plan that begins now; standard input that was stored for it stays.
        """
        if self.history.belongs_to(self.path):
            remove_partials(self.history.partials)
            give_up_uploads(self.history, self.access)
        remove_owned_shards(self.path, self.folder_id)
        stored = spool_path(self.path)
        if plan is None or all(file.absolute_path != stored for file in plan.inputs):
            remove_spool(self.path)
        remove_named(self.path, (PLAN_FILE, PLAN_TEMPORARY))
        remove_journal(self.path)

    def write_plan(self, plan: bytes) -> None:
        """Write plan.json."""
        replace_file(joined(self.path, PLAN_FILE), plan, temporary=joined(self.path, PLAN_TEMPORARY))

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
            ledger.record_run(plan, keep=self.keep, fresh=fresh, outputs=outputs, work_dir=str(self.path))
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
    is_own = history.plan == plan.decoded()
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
    changes = describe_settings(history.plan, plan)
    if changes:
        what = (
            "the kept shards of another plan are here"
            if history.finished
            else "an unfinished build of another plan is here"
        )
        raise PlanError(
            f"{folder.path}: {what}: {'; '.join(changes)}; use the former options to continue it, "
            f"--fresh to start over, or another --work-dir"
        )


@contextlib.contextmanager
def own_work_folder(
    path: str, plan: Plan, *, fresh: bool, keep: bool, access: Access = NO_ACCESS
) -> Iterator[WorkFolder]:
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
    with hold_work_folder(path) as folder_id:
        refuse_linked_shards(path)
        folder = _look_at(path, folder_id, keep=keep, access=access)
        refuse_other_work(folder, plan, fresh=fresh)
        yield folder
        if not keep:
            _remove_all(path, folder_id, access)


@contextlib.contextmanager
def hold_work_folder(path: str) -> Iterator[str]:
    """Hold a work folder while the block runs; yield its id. If the block fails, a folder without work is removed.

    Raises:
        PlanError: If the folder has no marker and is not empty, or another driver works there.
        OutputError: If it cannot be created.
    """
    folder_id = mark_folder(path)
    try:
        with _hold(path):
            try:
                yield folder_id
            except BaseException:
                with contextlib.suppress(DsindexError):
                    _remove_if_unused(path)
                raise
    finally:
        remove_empty(path)


def discard_unused_folder(path: str) -> None:
    """Remove a work folder in which no job has begun to work, unless a driver works there."""
    with contextlib.suppress(DsindexError):
        folder_id = read_folder_id(path)
        if folder_id is not None:
            with _hold(path):
                _remove_if_unused(path)
            remove_empty(path)


def remove_finished_folder(path: str, plan: Plan, access: Access = NO_ACCESS) -> None:
    """Remove the work folder of a run that published everything and was killed before it removed the folder.

    A folder stays as it is if it was to be kept, belongs to another job, has no marker, or a driver works there. An
    empty folder is removed, as a kill just before the final `rmdir` leaves one.
    """
    if read_folder_id(path) is not None:
        if may_be_removed(read_history(ledger_path(path)), plan):
            with contextlib.suppress(PlanError):
                discard_work_folder(path, access)
        return
    if is_lock(joined(path, LOCK_FILE)):  # killed after the marker was removed
        with contextlib.suppress(PlanError), _hold(path):
            pass  # a dead owner's lock is taken over and removed
    remove_empty(path)


def discard_work_folder(path: str, access: Access = NO_ACCESS) -> None:
    """Remove a marked work folder with all that its job's runs wrote and began, except finished outputs.

    Raises:
        PlanError: If a driver that may be alive works there.
        OutputError: If a store refuses.
    """
    with _hold(path):
        folder_id = read_folder_id(path)
        if folder_id is not None:
            _remove_all(path, folder_id, access)
    remove_empty(path)


def read_unfinished(path: str) -> History:
    """Return the history of a work folder's ledger without changing it; it is empty if the folder has no marker."""
    return read_history(ledger_path(path)) if read_folder_id(path) is not None else History()


def read_plan(path: str) -> dict[str, Any] | None:
    """Return the plan in a work folder's plan.json; None if it is missing or cannot be read."""
    content = read_named(path, PLAN_FILE, most_bytes=MOST_LINE_BYTES)
    try:
        stored = None if content is None else decode_json(content)
    except ValueError:
        return None
    return stored if is_plan(stored) else None


def _hold(path: str) -> AbstractContextManager[None]:
    return hold_lock(joined(path, LOCK_FILE), what=f"the work folder {path}")


def _look_at(path: str, folder_id: str, *, keep: bool = False, access: Access = NO_ACCESS) -> WorkFolder:
    history = read_history(ledger_path(path))
    return WorkFolder(
        path=path,
        access=access,
        folder_id=folder_id,
        history=history,
        keep=keep,
        was_damaged=history.has_work and read_plan(path) is None,
    )


def _remove_if_unused(path: str) -> None:
    """Remove the marker of a folder that has nothing else but the caller's lock and a stored input."""
    names = names_in(path)
    if names <= {MARKER_FILE, LOCK_FILE, INPUTS_FOLDER}:
        if INPUTS_FOLDER in names:
            remove_spool(path)
            names = names_in(path)
        if names <= {MARKER_FILE, LOCK_FILE}:
            remove_named(path, (MARKER_FILE,))


def _remove_all(path: str, folder_id: str, access: Access) -> None:
    """Remove the files of jobs in their work folder, except the held lock; with files of others, the marker stays too.

    Partial files beside the outputs are removed first and the ledger, from whose plans their names follow, last.
    """
    _look_at(path, folder_id, access=access).start_over()
    _remove_if_unused(path)
