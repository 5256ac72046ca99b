"""`dsindex clean`: what a build that nobody will continue left behind, and its removal.

Only what carries the id of a marked work folder, or of a plan that ran in it, is ever removed, and only after it was
listed; finished outputs stay. A copy of a work folder owns nothing outside of itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.engine.frame import LOCK_SUFFIX, hold_output
from dsindex.engine.ledger import read_committed_shards, read_history
from dsindex.engine.partial_files import find_partials
from dsindex.engine.work_folder import discard_work_folder
from dsindex.errors import InputError
from dsindex.store.journal import ledger_path
from dsindex.store.lock import is_lock, refuse_live_owner
from dsindex.store.ownership import LOCK_FILE, has_folder, read_folder_id, sizes_below
from dsindex.store.spool import open_spool_uploads, spool_path
from dsindex.store.uploads import list_uploads
from dsindex.store.urls import (
    Access,
    ObjectUrl,
    absolute,
    is_absolute,
    locate_output,
    with_suffix,
    without_suffix,
)

if TYPE_CHECKING:
    from dsindex.engine.ledger import History


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What the runs of a build left in its work folder and beside its outputs."""

    work_dir: str
    output: str | None
    """The prefix of its output; None if its plan cannot be read."""
    finished: bool
    """Whether everything was published, and the work folder was kept."""
    num_shards: int
    """Shards that are finished."""
    num_files: int
    """Files, or objects, in the work folder."""
    num_bytes: int
    copy_of: str | None
    """The folder of which this is a copy, or from where it was moved: what is outside of the folder then stays."""
    partials: tuple[str, ...]
    """Files beside the outputs that are not complete."""
    locks: tuple[str, ...]
    """Locks of the outputs whose owners are dead."""
    uploads: tuple[str, ...]
    """Addresses to which uploads were begun and not completed."""


def find_leftovers(place: str, access: Access) -> Leftovers:
    """Look at what a build left, and change nothing.

    Args:
        place: The output prefix of the build, the `.pbin` that is packed, or the work folder.
        access: How the stores of addresses are reached.

    Raises:
        InputError: If there is no work folder.
        PlanError: If a driver works there, or on an output.
        OutputError: If a store refuses.
    """
    work_dir = _find_work_folder(absolute(locate_output(place, access)))
    refuse_live_owner(with_suffix(work_dir, f"/{LOCK_FILE}"), what=f"the work folder {work_dir}")
    history = read_history(ledger_path(work_dir))
    is_own = history.belongs_to(work_dir)
    locks = []
    for output in _outputs_of(history, access) if is_own else ():
        lock = with_suffix(output, f".{LOCK_SUFFIX}")
        refuse_live_owner(lock, what=f"the output {output}")
        if is_lock(lock):
            locks.append(lock)
    num_files, num_bytes = _measure(work_dir)
    settings = {} if history.plan is None else history.plan["settings"]
    prefix = settings.get("output-prefix", settings.get("output"))
    return Leftovers(
        work_dir=work_dir,
        output=prefix if isinstance(prefix, str) else None,
        copy_of=history.work_dir if history.runs and not is_own else None,
        finished=history.finished,
        num_shards=len(read_committed_shards(ledger_path(work_dir))),
        num_files=num_files,
        num_bytes=num_bytes,
        partials=tuple(find_partials(history.partials)) if is_own else (),
        locks=tuple(locks),
        uploads=(_open_uploads(history, access) if is_own else ()) + _spool_uploads(work_dir),
    )


def remove_leftovers(leftovers: Leftovers, access: Access) -> None:
    """Remove what a build left: its shards, ledger and partial files, and give up its uploads.

    Raises:
        PlanError: If a driver works there by now, or on an output.
        OutputError: If a store refuses.
    """
    history = read_history(ledger_path(leftovers.work_dir))
    with contextlib.ExitStack() as held:
        for output in _outputs_of(history, access) if history.belongs_to(leftovers.work_dir) else ():
            held.enter_context(hold_output(output))  # a dead owner's lock is taken over, and removed at the end
        discard_work_folder(leftovers.work_dir, access)


def _outputs_of(history: History, access: Access) -> list[str]:
    """Return what a job holds: its outputs, and their prefix; nothing in folders that do not exist."""
    prefixes = [run.prefix for run in history.runs if is_absolute(run.prefix)]
    held = dict.fromkeys([*history.outputs, *prefixes])
    return [locate_output(output, access) for output in held if has_folder(output)]


def _find_work_folder(place: str) -> str:
    for path in (place, with_suffix(place, ".build"), with_suffix(without_suffix(place, ".pbin"), ".build")):
        if read_folder_id(path) is not None:
            return path
    raise InputError(
        f"{place}: expected a work folder of dsindex, here or as {place}.build, found none; name the --output-prefix "
        f"or the --work-dir of the build"
    )


def _measure(work_dir: str) -> tuple[int, int]:
    sizes = sizes_below(work_dir)
    return len(sizes), sum(sizes.values())


def _spool_uploads(work_dir: str) -> tuple[str, ...]:
    """Return the address of standard input once for each upload of it that was cut off."""
    path = spool_path(work_dir)
    return tuple(str(path) for _ in open_spool_uploads(path))


def _open_uploads(history: History, access: Access) -> tuple[str, ...]:
    found: list[str] = []
    for url, others in history.uploading.items():
        found += [url for upload_id in list_uploads(ObjectUrl(url, access=access)) if upload_id not in others]
    return tuple(found)
