"""Standard input as a file of the work folder, `inputs/stdin`: a file can be read in parts, in parallel, and again.

The file is complete or absent. Its modification time is derived from its content, so the same text makes the same plan
whenever it is piped. It belongs to dsindex, as do all files of a fixed name in a marked work folder; until it is
complete, its name has the folder's id. `object_spool` does the same in an object store.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import IO, TYPE_CHECKING

from dsindex.errors import InputError, OutputError, PlanError
from dsindex.objects.urls import joined
from dsindex.shards.ownership import new_file_id, open_folder
from dsindex.storage import atomic_writer, make_folder
from workflows.state.spooled_text import NOTHING_PIPED, read_chunks, time_of_content

if TYPE_CHECKING:
    from collections.abc import Callable

INPUTS_FOLDER = "inputs"
SPOOL_FILE = "stdin"


def spool_path(work_dir: str) -> str:
    """Return where standard input is stored in a work folder, on a disk or in an object store."""
    return joined(work_dir, f"{INPUTS_FOLDER}/{SPOOL_FILE}")


def write_spool(work_dir: str, folder_id: str, stream: IO[bytes], *, accept: Callable[[int, str], None]) -> None:
    """Store a stream, replacing the one that was stored before.

    Args:
        work_dir: A marked work folder that this driver holds.
        folder_id: Its id.
        stream: What to store, up to its end.
        accept: Called with the size in bytes and the version of what was read; an error that it raises leaves the
            former file as it was.

    Raises:
        InputError: If the stream cannot be read, or is empty.
        OutputError: If the folder or the disk refuses.
        PlanError: If `inputs` is not a folder of the work folder.
    """
    path = spool_path(work_dir)
    folder = os.path.dirname(path)
    if os.path.lexists(folder) and (os.path.islink(folder) or not os.path.isdir(folder)):
        msg = f"{folder}: expected a folder, got a symbolic link or a file; move it away, or choose another --work-dir"
        raise PlanError(msg)
    make_folder(folder)
    _remove(work_dir, lambda name: _is_temporary(name, folder_id))
    modified = 0
    try:
        with atomic_writer(path, attempt_id=new_file_id(folder_id)) as file:
            for chunk in read_chunks(stream):
                file.write(chunk)
            if file.size_bytes == 0:
                raise InputError(NOTHING_PIPED)
            modified = time_of_content(file.hexdigest())
            accept(file.size_bytes, str(modified))
        os.utime(path, ns=(modified, modified))
    except OutputError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        msg = f"{path}: standard input cannot be stored there ({reason}); make room or choose another --work-dir"
        raise OutputError(msg) from error
    except BaseException as stop:
        if not isinstance(stop, Exception):
            stop.add_note("nothing of standard input is kept; run the same command again, with the same input")
        raise
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # succeeds only if nothing was stored


def remove_spool(work_dir: str, folder_id: str) -> None:
    """Remove the stored input, and what a killed run left of one; files of others stay."""
    _remove(work_dir, lambda name: name == SPOOL_FILE or _is_temporary(name, folder_id))
    with contextlib.suppress(OSError), open_folder(work_dir) as folder:
        os.rmdir(INPUTS_FOLDER, dir_fd=folder)


def _remove(work_dir: str, is_ours: Callable[[str], bool]) -> None:
    with (
        contextlib.suppress(OSError),
        open_folder(work_dir) as folder,
        open_folder(INPUTS_FOLDER, inside=folder) as inputs,
    ):
        for name in filter(is_ours, os.listdir(inputs)):
            if stat.S_ISREG(os.stat(name, dir_fd=inputs, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=inputs)


def _is_temporary(name: str, folder_id: str) -> bool:
    return re.fullmatch(rf"{SPOOL_FILE}\.{re.escape(folder_id)}[0-9a-f]{{16}}\.tmp", name) is not None
