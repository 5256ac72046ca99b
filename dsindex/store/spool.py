"""Standard input, stored in a work folder as `inputs/stdin`, so that a continued job can read it again.

On a disk its version is a time that follows from the content, in a bucket its ETag: a text that is piped again has the
version of the one before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, TYPE_CHECKING

from dsindex.errors import InputError, OutputError
from dsindex.store.store import find, open_output, store_of
from dsindex.store.urls import folder_of, is_url, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsindex.store.types import InputStatus

READ_BYTES = 1 << 20
INPUTS_FOLDER = "inputs"
SPOOL_FILE = "stdin"
LARGEST_BYTES = 150 * 10**9
"""What the parts of an upload suffice for, as the size is not known before."""
NOTHING_PIPED = "-: expected at least one record on standard input, got nothing; check the command before the |"


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


@contextlib.contextmanager
def open_piped() -> Iterator[IO[bytes]]:
    """Open standard input for reading bytes; it is not closed at the end.

    Raises:
        InputError: If it is closed or a terminal, where a person would have to type the data.
    """
    buffer = getattr(sys.stdin, "buffer", None)  # None if it is closed, or a notebook's
    if buffer is None or buffer.closed:
        raise InputError("-: expected data on standard input, but it is closed; pipe the data to this command")
    if buffer.isatty():
        msg = "-: expected data on standard input, got a terminal; pipe the data, as in `zcat FILE | dsindex …`"
        raise InputError(msg)
    yield buffer


def spool_path(work_dir: str) -> str:
    """Return where standard input is stored in a work folder, on a disk or in an object store."""
    return joined(work_dir, f"{INPUTS_FOLDER}/{SPOOL_FILE}")


def write_spool(work_dir: str, stream: IO[bytes], *, accept: Callable[[int, str], None]) -> None:
    """Store a stream in a work folder that this driver holds, replacing the one that was stored before.

    Args:
        work_dir: The work folder.
        stream: What to store, up to its end.
        accept: Called with the size in bytes and the version of what was stored; an error that it raises removes it.

    Raises:
        InputError: If the stream cannot be read, or is empty.
        OutputError: If the folder, the disk or the store refuses.
    """
    path = spool_path(work_dir)
    try:
        with open_output(path) as file:
            for chunk in read_chunks(stream):
                file.write(chunk)
                if file.size_bytes > LARGEST_BYTES and is_url(path):
                    msg = f"{path}: expected at most 150 GB of standard input in a bucket, got more"
                    raise OutputError(f"{msg}; pipe less at a time, or choose a --work-dir on a disk")
            if file.size_bytes == 0:
                raise InputError(NOTHING_PIPED)
        if not is_url(path):
            modified = time_of_content(file.hexdigest())
            os.utime(path, ns=(modified, modified))
        status = find_spooled(path)
        if status is None:
            raise OutputError(f"{path}: expected what was stored there, found nothing; run the same command again")
        try:
            accept(status.size_bytes, status.version)
        except Exception:
            remove_spool(work_dir)
            raise
    except BaseException as stop:
        if not isinstance(stop, Exception):
            stop.add_note("nothing of standard input is kept; run the same command again, with the same input")
        raise


def remove_spool(work_dir: str) -> None:
    """Remove the stored input, and on a disk what a killed run left of one."""
    path = spool_path(work_dir)
    if is_url(path):
        store_of(path).delete([path])
        return
    folder = folder_of(path)
    store_of(path).delete([each.path for each in store_of(path).list(folder) if each.path.startswith(path)])
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def find_spooled(path: str) -> InputStatus | None:
    """Return the standard input that was stored at a path; None if there is none.

    Raises:
        InputError: If the store refuses.
    """
    return find(path)
