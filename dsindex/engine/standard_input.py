"""Standard input as a file of the work folder, `inputs/stdin`: a file can be read in parts, in parallel, and again.

It is complete or absent, and what an interrupted run stored is used as it is. On a disk its modification time is
derived from its content, so the same text makes the same plan whenever it is piped; in a bucket its ETag is.
"""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING

from dsindex.engine.input_paths import open_piped
from dsindex.engine.ledger import Ledger
from dsindex.engine.work_folder import INPUTS_FOLDER, hold_work_folder, read_marker
from dsindex.errors import InputError, OutputError, RecordError
from dsindex.store.storage import holds_writes, make_folder
from dsindex.store.store import find, open_output, store_of
from dsindex.store.urls import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

READ_BYTES = 1 << 20
NOTHING_PIPED = "-: expected at least one record on standard input, got nothing; check the command before the |"


def stored_input_path(work_dir: str) -> str:
    """Return where standard input is stored in a work folder, on a disk or in a bucket."""
    return joined(work_dir, f"{INPUTS_FOLDER}/stdin")


def require_standard_input(work_dir: str) -> None:
    """Check, before anything that takes time, that standard input was stored or can be read.

    Raises:
        InputError: If it is a terminal, or closed.
    """
    if not _is_stored(work_dir):
        with open_piped():
            pass


def store_standard_input(work_dir: str, *, say: Callable[[str], None]) -> None:
    """Store standard input in the work folder, unless an interrupted run has.

    Raises:
        InputError: If standard input is empty or cannot be read.
        PlanError: If the folder is another program's or another driver's.
        OutputError: If it cannot be stored.
    """
    path = stored_input_path(work_dir)
    if _is_stored(work_dir):
        stored = find(path)
        size_bytes = 0 if stored is None else stored.size_bytes
        say(
            f"standard input is not read: the interrupted run stored {size_bytes:,} bytes of it in {path}; remove "
            f"{work_dir} to read it again"
        )
        return
    with open_piped() as stream, hold_work_folder(work_dir):
        say("reading standard input to its end, into the work folder")
        try:
            _store(path, stream)
        except OutputError as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            msg = f"{path}: standard input cannot be stored there ({reason}); make room or choose another --work-dir"
            raise OutputError(msg) from error
        except BaseException as stop:
            if not isinstance(stop, Exception):
                stop.add_note("nothing of standard input is kept; run the same command again, with the same input")
            raise


def _store(path: str, stream: IO[bytes]) -> None:
    folder = os.path.dirname(path)
    if not holds_writes(path):
        make_folder(folder)
        store_of(folder).delete(each.path for each in store_of(folder).list(folder))  # a killed driver's
    try:
        with open_output(path) as file:
            for chunk in read_chunks(stream):
                file.write(chunk)
            if not file.size_bytes:
                raise InputError(NOTHING_PIPED)
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # succeeds only if nothing was stored
    if not holds_writes(path):
        modified = time_of_content(file.hexdigest())
        os.utime(path, ns=(modified, modified))


def _is_stored(work_dir: str) -> bool:
    """Tell whether an interrupted run stored its input; a finished one that kept its folder does not count."""
    if read_marker(work_dir) is None or find(stored_input_path(work_dir)) is None:
        return False
    return not Ledger(work_dir).is_finished


@contextlib.contextmanager
def piped_input_named(work_dir: str, inputs: Collection[str]) -> Iterator[None]:
    """Name standard input in an error about it or one of its records.

    Args:
        work_dir: Path or address of the job's work folder.
        inputs: The job's inputs as they are given.

    Raises:
        RecordError: The block's, in which `-` takes the place of the stored file.
        InputError: Likewise.
    """
    path = stored_input_path(work_dir)
    shown = f"- (stored as {path})"
    try:
        yield
    except RecordError as error:
        if "-" not in inputs or error.path != path:
            raise
        raise type(error)(shown, error.offset, error.reason, error.line) from error
    except InputError as error:
        if "-" not in inputs or not str(error).startswith(f"{path}: "):
            raise
        remedy = f"; remove {work_dir} (rm -r) to read standard input again"
        raise InputError(f"{shown}{str(error).removeprefix(path)}{remedy}") from error


def read_chunks(stream: IO[bytes]) -> Iterator[memoryview]:
    """Yield a stream up to its end, in chunks that share a buffer.

    Raises:
        InputError: If it cannot be read.
    """
    buffer = memoryview(bytearray(READ_BYTES))
    while True:
        try:
            count = stream.readinto1(buffer)  # type: ignore[attr-defined]  # one read, so that Ctrl-C is heard after it
        except OSError as error:
            msg = f"-: standard input cannot be read ({error.strerror}); check the command before the |"
            raise InputError(msg) from error
        if not count:
            return
        yield buffer[:count]


def time_of_content(digest: str) -> int:
    """Return a time in ns for a content: an even second before 2004, which every file system can store.

    >>> time_of_content("99aa06d3014798d86001c324468d497f")
    430573266000000000
    """
    return (int(digest[:8], 16) & 0x3FFFFFFE) * 10**9
