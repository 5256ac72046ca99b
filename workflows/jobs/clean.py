"""`dsindex clean`: what a build that nobody will continue left behind, and its removal.

Only what the ledger names, or what carries the id of a marked work folder, is ever removed; finished outputs stay.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import InputError, PlanError
from dsindex.objects.uploads import list_uploads
from dsindex.objects.urls import Access, ObjectUrl, absolute, is_url, lengthened, parse_output_url, shortened
from dsindex.objects.writing import list_objects
from dsindex.shards.ownership import read_folder_id
from workflows.jobs.frame import LOCK_SUFFIX, hold_output
from workflows.state.history import read_history
from workflows.state.journal import ledger_path
from workflows.state.ledger import read_committed_shards
from workflows.state.lock import refuse_live_owner
from workflows.state.object_lock import is_object_lock, refuse_live_object_owner
from workflows.state.object_spool import open_spool_uploads
from workflows.state.owned_folder import LOCK_FILE
from workflows.state.spool import spool_path
from workflows.state.work_folder import discard_work_folder

if TYPE_CHECKING:
    from workflows.state.history import History


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
    partials: tuple[str, ...]
    """Files beside the outputs that are not complete."""
    uploads: tuple[str, ...]
    """Addresses to which uploads were begun and not completed."""


def find_leftovers(place: str, access: Access) -> Leftovers:
    """Look at what a build left, and change nothing.

    Args:
        place: The output prefix of the build, the `.pbin` that is packed, or the work folder.
        access: How the stores of addresses are reached.

    Raises:
        InputError: If there is no work folder.
        PlanError: If a driver works there.
        OutputError: If a store refuses.
    """
    work_dir = _find_work_folder(parse_output_url(place, access) if is_url(place) else absolute(place))
    lock = lengthened(work_dir, f"/{LOCK_FILE}")
    what = f"the work folder {work_dir}"
    if isinstance(lock, ObjectUrl):
        refuse_live_object_owner(lock, what=what)
    else:
        refuse_live_owner(lock, what=what)
    history = read_history(ledger_path(work_dir))
    num_files, num_bytes = _measure(work_dir)
    settings = {} if history.plan is None else history.plan["settings"]
    return Leftovers(
        work_dir=work_dir,
        output=settings.get("output-prefix", settings.get("output")),
        finished=history.finished,
        num_shards=len(read_committed_shards(ledger_path(work_dir))),
        num_files=num_files,
        num_bytes=num_bytes,
        partials=tuple(path for path in history.partials if os.path.isfile(path)),
        uploads=_open_uploads(history, access) + _spool_uploads(work_dir),
    )


def remove_leftovers(leftovers: Leftovers, access: Access) -> None:
    """Remove what a build left: its shards, ledger and partial files, and give up its uploads.

    Raises:
        PlanError: If a driver works there by now.
        OutputError: If a store refuses.
    """
    history = read_history(ledger_path(leftovers.work_dir))
    discard_work_folder(leftovers.work_dir, access)
    for output in history.outputs:
        prefix = parse_output_url(output, access) if is_url(output) else output
        lock = lengthened(prefix, f".{LOCK_SUFFIX}")
        if is_object_lock(lock) if isinstance(lock, ObjectUrl) else os.path.exists(lock):
            with contextlib.suppress(PlanError), hold_output(prefix):
                pass  # a dead owner's lock is taken over and removed


def _find_work_folder(place: str) -> str:
    for path in (place, lengthened(place, ".build"), lengthened(shortened(place, ".pbin"), ".build")):
        if read_folder_id(path) is not None:
            return path
    msg = (
        f"{place}: expected a work folder of dsindex, here or as {place}.build, found none; name the --output-prefix "
        f"or the --work-dir of the build"
    )
    raise InputError(msg)


def _measure(work_dir: str) -> tuple[int, int]:
    if isinstance(work_dir, ObjectUrl):
        found = list_objects(work_dir)
        return len(found), sum(each.size_bytes for each in found)
    sizes = []
    for folder, _, names in os.walk(work_dir):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.lstat(os.path.join(folder, name)).st_size)
    return len(sizes), sum(sizes)


def _spool_uploads(work_dir: str) -> tuple[str, ...]:
    """Return the address of standard input once for each upload of it that was cut off."""
    path = spool_path(work_dir)
    return tuple(str(path) for _ in open_spool_uploads(path)) if isinstance(path, ObjectUrl) else ()


def _open_uploads(history: History, access: Access) -> tuple[str, ...]:
    found: list[str] = []
    for url, others in history.uploading.items():
        found += [url for upload_id in list_uploads(ObjectUrl(url, access=access)) if upload_id not in others]
    return tuple(found)
