"""Read standard input into the work folder before a job begins, unless an interrupted run of the job has done so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dsindex.engine.work_folder import discard_unused_folder, hold_work_folder, read_unfinished
from dsindex.errors import DsindexError, InputError, PlanError, RecordError
from dsindex.store.spool import find_spooled, open_piped, spool_path, write_spool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from dsindex.engine.ledger import History


def require_standard_input(work_dir: str, *, fresh: bool) -> None:
    """Check, before anything that takes time, that standard input was stored or can be read.

    Raises:
        InputError: If it is a terminal, or closed.
    """
    if fresh or _stored_bytes(work_dir) is None:
        with open_piped():
            pass


def store_standard_input(work_dir: str, *, fresh: bool, say: Callable[[str], None]) -> None:
    """Store standard input in the work folder, as the file `spool_path(work_dir)`.

    What an interrupted run stored is used as it is, unless the job starts over.

    Args:
        work_dir: Absolute path of the job's work folder.
        fresh: Whether the job starts over.
        say: Shows a message.

    Raises:
        InputError: If standard input is empty or cannot be read.
        PlanError: If the folder is another program's or another driver's, or has work on another standard input.
        OutputError: If it cannot be stored.
    """
    stored = None if fresh else _stored_bytes(work_dir)
    if stored is not None:
        say(
            f"standard input is not read: the interrupted run stored {stored:,} bytes of it in {spool_path(work_dir)}, "
            f"and --fresh would read it again"
        )
        return
    recorded = None if fresh else _recorded(read_unfinished(work_dir), spool_path(work_dir))

    def accept(size_bytes: int, version: str) -> None:
        if recorded not in (None, (size_bytes, version)):
            raise PlanError(
                f"{work_dir}: expected the standard input of the shards that are here, {recorded[0]:,} bytes, got "
                f"another of {size_bytes:,} bytes; start over with --fresh, or choose another --work-dir"
            )

    with open_piped() as stream, hold_work_folder(work_dir):
        say("reading standard input to its end, into the work folder")
        write_spool(work_dir, stream, accept=accept)


@contextlib.contextmanager
def piped_input_named(work_dir: str, inputs: Collection[str]) -> Iterator[None]:
    """Name standard input in an error about it or one of its records, and clean up if the block fails.

    A stored input is removed with its work folder if the job has not begun to work there.

    Args:
        work_dir: Path or address of the job's work folder.
        inputs: The job's inputs as they are given.

    Raises:
        RecordError: The block's, in which `-` takes the place of the stored file.
        InputError: Likewise.
    """
    try:
        yield
    except BaseException as error:
        if "-" not in inputs:
            raise
        discard_unused_folder(work_dir)
        path = spool_path(work_dir)
        is_stored = _is_stored(path)
        shown = f"- (stored as {path})" if is_stored else "-"
        if isinstance(error, RecordError) and error.path == path:
            raise type(error)(shown, error.offset, error.reason, error.line) from error
        if type(error) is InputError and str(error).startswith(f"{path}: "):
            remedy = "; --fresh reads standard input again" if is_stored else ""
            raise InputError(f"{shown}{str(error).removeprefix(path)}{remedy}") from error
        raise


def _stored_bytes(work_dir: str) -> int | None:
    """Return the size of the input that an interrupted run stored; None if there is none, or it changed since.

    A run that published everything was interrupted nevertheless if its folder is still there but was not to be kept.
    """
    history = read_unfinished(work_dir)
    path = spool_path(work_dir)
    recorded = None if history.finished and history.keep else _recorded(history, path)
    spooled = None if recorded is None else find_spooled(path)
    return spooled.size_bytes if spooled and (spooled.size_bytes, spooled.version) == recorded else None


def _is_stored(path: str) -> bool:
    with contextlib.suppress(DsindexError):
        return find_spooled(path) is not None
    return False


def _recorded(history: History, path: str) -> tuple[int, str] | None:
    """Return size and version of an input in the plan of the ledger's last run."""
    inputs = [] if history.plan is None else history.plan["inputs"]
    return next(((size_bytes, version) for name, size_bytes, version in inputs if name == path), None)
