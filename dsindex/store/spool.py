"""Standard input as a file of the work folder, `inputs/stdin`: a file can be read in parts, in parallel, and again.

The file is complete or absent. Its modification time is derived from its content, so the same text makes the same plan
whenever it is piped. It belongs to dsindex, as do all files of a fixed name in a marked work folder; until it is
complete, its name has the folder's id. In an object store, it is one upload:

inputs/stdin           the text
inputs/stdin.json      its size, its version and fingerprint, both derived from the content, and its upload's tag
inputs/stdin.upload    written before the upload is begun and removed after it, so that one that was cut off is found

The names belong to dsindex, as do all fixed names in a marked work folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from dsindex.errors import InputError, OutputError, PlanError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.ownership import new_file_id
from dsindex.store.reading import fingerprint_input, input_status
from dsindex.store.storage import atomic_writer, make_folder, open_folder
from dsindex.store.uploads import (
    MOST_PARTS,
    PART_BYTES,
    Upload,
    abort_upload,
    begin_upload,
    complete_upload,
    list_uploads,
    open_output,
)
from dsindex.store.urls import ObjectUrl, is_url, joined, parse_url, pin_object
from dsindex.store.writing import find_object, put_object, read_object, remove_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


READ_BYTES = 1 << 20
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


INPUTS_FOLDER = "inputs"
SPOOL_FILE = "stdin"


def spool_path(work_dir: str) -> str:
    """Return where standard input is stored in a work folder, on a disk or in an object store."""
    return joined(work_dir, f"{INPUTS_FOLDER}/{SPOOL_FILE}")


def write_spool(work_dir: str, folder_id: str, stream: IO[bytes], *, accept: Callable[[int, str], None]) -> None:
    """Store a stream in a work folder, replacing the one that was stored before.

    Args:
        work_dir: A marked work folder that this driver holds.
        folder_id: Its id.
        stream: What to store, up to its end.
        accept: Called with the size in bytes and the version of what was read; an error that it raises leaves the
            former file as it was.

    Raises:
        InputError: If the stream cannot be read, or is empty.
        OutputError: If the folder, the disk or the store refuses, or the stream is too long for an upload.
        PlanError: If `inputs` is not a folder of the work folder.
    """
    path = spool_path(work_dir)
    if isinstance(path, ObjectUrl):
        _upload(path, stream, accept=accept)
        return
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
    """Remove the stored input, and what a killed run left of one; files of others stay.

    Raises:
        OutputError: If a store refuses.
    """
    path = spool_path(work_dir)
    if isinstance(path, ObjectUrl):
        _give_up(path)
        remove_objects([path, path.with_suffix(INFO_SUFFIX), path.with_suffix(UPLOAD_SUFFIX)])
        return
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


INFO_SUFFIX = ".json"
UPLOAD_SUFFIX = ".upload"
_LARGEST_NOTE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A standard input that was stored."""

    path: str
    """Where it is read; an object's address needs no HEAD."""
    size_bytes: int
    version: str
    """A time in ns, derived from the content."""


def find_spooled(path: str) -> Spooled | None:
    """Return the standard input that was stored at a path; None if there is none, or it is not what was stored.

    Raises:
        OutputError: If the store refuses.
    """
    if not isinstance(path, ObjectUrl):
        try:
            status = os.stat(path)
        except OSError:
            return None
        return Spooled(path=path, size_bytes=status.st_size, version=str(status.st_mtime_ns))
    info = _read_note(path.with_suffix(INFO_SUFFIX))
    found = None if info is None else find_object(path)
    if info is None or found is None or [found.size_bytes, found.tag] != [info.get("size_bytes"), info.get("tag")]:
        return None
    own = pin_object(path, found.size_bytes, fingerprint=str(info.get("fingerprint")))
    return Spooled(path=own, size_bytes=found.size_bytes, version=str(info.get("version")))


def spooled_path(path: str) -> str:
    """Return where a standard input is read that a finished job stored and kept.

    Raises:
        MissingObjectError: If it is not there as it was stored.
        StoreError: If the store is out of reach.
    """
    if not is_url(path):
        return path
    input_status(path)  # by the library that reads, whose errors tell what is missing from what is out of reach
    stored = find_spooled(parse_url(path))
    return path if stored is None else stored.path


def _upload(path: ObjectUrl, stream: IO[bytes], *, accept: Callable[[int, str], None]) -> None:
    note = path.with_suffix(UPLOAD_SUFFIX)
    _give_up(path)
    put_object(note, encode_json({"others": list_uploads(path)}))
    upload = begin_upload(path)
    try:
        size_bytes, version = _send(upload, stream)
        accept(size_bytes, version)
        complete_upload(upload, size_bytes=size_bytes)
        fingerprint = fingerprint_input(pin_object(path, size_bytes))
        info = {"size_bytes": size_bytes, "version": version, "fingerprint": fingerprint, "tag": upload.tag}
        put_object(path.with_suffix(INFO_SUFFIX), encode_json(info))
    except BaseException as stop:
        with contextlib.suppress(OutputError):  # otherwise it is given up with the work folder
            _give_up(path)
        if not isinstance(stop, Exception):
            stop.add_note("nothing of standard input is kept; run the same command again, with the same input")
        raise
    remove_objects([note])


def _send(upload: Upload, stream: IO[bytes]) -> tuple[int, str]:
    """Send a stream to its end; return its size and its version."""
    most = MOST_PARTS * PART_BYTES
    with open_output(upload) as file:
        for chunk in read_chunks(stream):
            file.write(chunk)
            if file.size_bytes > most:
                raise OutputError(
                    f"{upload.url}: expected at most {most:,} bytes on standard input, which an upload can have, got "
                    f"more; pipe less at a time, or choose a --work-dir on a disk"
                )
        if file.size_bytes == 0:
            raise InputError(NOTHING_PIPED)
    return file.size_bytes, str(time_of_content(file.hexdigest()))


def open_spool_uploads(path: str) -> list[str]:
    """Return the ids of the uploads that were begun to store standard input, and neither completed nor given up.

    Raises:
        OutputError: If the store refuses.
    """
    if not isinstance(path, ObjectUrl):
        return []
    note = _read_note(path.with_suffix(UPLOAD_SUFFIX))
    others = None if note is None else note.get("others")
    return [each for each in list_uploads(path) if each not in others] if isinstance(others, list) else []


def _give_up(path: ObjectUrl) -> None:
    for upload_id in open_spool_uploads(path):
        abort_upload(Upload(url=path, upload_id=upload_id, tag=""))
    remove_objects([path.with_suffix(UPLOAD_SUFFIX)])


def _read_note(url: ObjectUrl) -> dict[str, Any] | None:
    found = read_object(url, most_bytes=_LARGEST_NOTE_BYTES)
    try:
        note = None if found is None else decode_json(found[0])
    except ValueError:
        return None
    return note if isinstance(note, dict) else None
