"""One index cache on disk, which is never used half old and never overwrites another program's.

Megatron uses a cache if its files exist, and checks nothing else. So the last file, the *seal* (the description), is
removed before anything else changes and written after all others. A record beside the cache has the sizes and digests
of the files that dsindex wrote, or was about to write when it was killed. Order of a write:

        record of old and new files → seal removed → arrays → seal → record of the new files

    A file that is not in the record is kept: it is used if it has the bytes that would be written, and refused if not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
import uuid
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import OutputError
from dsindex.store.reading import digest_file
from dsindex.store.storage import (
    BlockDigester,
    atomic_writer,
    open_file,
    output_error,
    remove_if_present,
    sync_folder,
    temporary_name,
    write_whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RECORD_VERSION = 1

WAIT_SECONDS = 600.0
"""Longest wait for another task that writes the same cache."""

Content = bytes | np.ndarray[Any, Any]
"""Content of a file: its bytes, or the array that it stores."""

FileState = tuple[int, str]
"""Size in bytes and digest of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSlot:
    """The paths of one cache, which need not exist."""

    paths: tuple[str, ...]
    """The files in the order in which they are written; the last one is the seal."""
    record: str
    """Path of dsindex's record beside the files."""

    @property
    def lock(self) -> str:
        """Path of an empty file that exists while the cache is written."""
        return f"{self.record.removesuffix('.json')}.lock"

    def exists(self) -> bool:
        """Tell whether a training job would use the cache."""
        return all(map(os.path.isfile, self.paths))


@contextlib.contextmanager
def lock_slot(slot: CacheSlot) -> Iterator[None]:
    """Keep other tasks from writing the same cache, waiting for one that does. Its folder must exist.

    The lock is the system's (flock), which is released when a process dies. On a file system without such locks, the
    existence of the lock file is the lock; nothing waits for it, and after a crash the user must remove it.

    Raises:
        OutputError: If another task still writes it after WAIT_SECONDS, or the lock file's path is another file.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while (descriptor := _try_lock(slot.lock)) is None:
        if time.monotonic() > deadline:
            raise OutputError(_busy(slot))
        time.sleep(_POLL_SECONDS)
    with contextlib.ExitStack() as held:
        held.callback(os.close, descriptor)
        held.callback(_unlock, slot.lock, descriptor)
        yield


_POLL_SECONDS = 0.05


def _try_lock(path: str) -> int | None:
    """Open and lock the lock file; None if another process holds it."""
    try:
        descriptor, created = _open_lock(path)
    except FileNotFoundError:
        return None  # its owner has just removed it
    except OSError as error:
        raise output_error(path, error) from error
    with contextlib.ExitStack() as refused:
        refused.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size:
            msg = f"{path}: expected the empty lock file of dsindex or nothing, got another file; move it away"
            raise OutputError(msg)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        except OSError as error:
            if not created:  # without such locks, its owner may be alive
                raise OutputError(
                    f"{path}: another process is writing this cache, or was killed while writing it; wait for it, or "
                    "remove this file and run the same command again"
                ) from error
        if not _is_still(path, status):
            return None
        refused.pop_all()
    return descriptor


def _open_lock(path: str) -> tuple[int, bool]:
    """Open the lock file; return it and whether this call created it."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(path, flags), False


def _unlock(path: str, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        if _is_still(path, os.fstat(descriptor)):
            os.unlink(path)


def _is_still(path: str, status: os.stat_result) -> bool:
    """Tell whether a path still leads to the same file."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), status)
    except FileNotFoundError:
        return False


def write_slot(slot: CacheSlot, contents: Sequence[Content], record: Mapping[str, Any]) -> bool:
    """Write a cache, or keep it if identical files exist; call it inside `lock_slot`.

    Args:
        slot: The paths.
        contents: Contents of the files, in order.
        record: What to record besides the files' sizes and digests.

    Returns:
        Whether the files existed already.

    Raises:
        OutputError: If a file exists that differs and that dsindex did not write, or a file cannot be written.
    """
    wanted = [state_of(content) for content in contents]
    there = [_state_at(path) for path in slot.paths]
    stored = read_record(slot.record)
    final = {**record, "files": _file_states(slot, [[state] for state in wanted])}
    if there == wanted:
        # Another program's cache gets no record.
        if stored is not None and {**stored, "version": RECORD_VERSION} != {**final, "version": RECORD_VERSION}:
            _remove_temporaries(slot, stored)
            write_record(slot.record, final)
        return True
    for path, state, new in zip(slot.paths, there, wanted, strict=True):
        if state not in (None, new, *_recorded_states(stored, path)):
            raise OutputError(_refusal(path))
    _remove_temporaries(slot, stored)
    attempt_id = uuid.uuid4().hex
    ours = [[new] if state in (None, new) else [new, state] for state, new in zip(there, wanted, strict=True)]
    write_record(slot.record, {"building": attempt_id, "files": _file_states(slot, ours)})
    remove_if_present(slot.paths[-1])
    sync_folder(os.path.dirname(slot.paths[-1]))
    written = {}
    for path, content in zip(slot.paths[:-1], contents[:-1], strict=True):
        write_content(path, content, attempt_id=attempt_id)
        written[path] = os.stat(path)
    is_ours = (read_record(slot.record) or {}).get("building") == attempt_id
    if not is_ours or not all(map(_is_still, written, written.values())):
        raise OutputError(_busy(slot))
    write_content(slot.paths[-1], contents[-1], attempt_id=attempt_id)
    write_record(slot.record, final)
    return False


def has_recorded_files(slot: CacheSlot, record: Mapping[str, Any]) -> bool:
    """Tell whether a record describes a complete cache whose files have the recorded bytes."""
    return "building" not in record and slot.exists() and not changed_files(slot, record)


def changed_files(slot: CacheSlot, record: Mapping[str, Any]) -> list[str]:
    """Return the names of files that do not have the recorded bytes."""
    return [os.path.basename(path) for path in slot.paths if [_state_at(path)] != _recorded_states(record, path)]


def write_record(path: str, record: Mapping[str, Any]) -> None:
    """Write dsindex's record beside a cache."""
    write_whole(path, json.dumps({"version": RECORD_VERSION, **record}, indent=2).encode(), writer="record")


def read_record(path: str) -> dict[str, Any] | None:
    """Read dsindex's record beside a cache; None if there is none that this version can read."""
    try:
        with open_file(path) as file:
            record = json.loads(file.read().decode())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("version") == RECORD_VERSION else None


def write_content(path: str, content: Content, *, attempt_id: str | None = None) -> None:
    """Write a file completely or not at all; arrays are written as by numpy.save.

    Args:
        path: The final path.
        content: Bytes or an array.
        attempt_id: Passed to `atomic_writer`.
    """
    with atomic_writer(path, attempt_id=attempt_id) as file:
        for piece in _pieces(content):
            file.write(piece)


def _pieces(content: Content) -> Iterator[bytes | memoryview]:
    if isinstance(content, bytes):
        yield content
        return
    head = BytesIO()
    np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(content))
    yield head.getvalue()
    yield np.ascontiguousarray(content).data


def state_of(content: Content) -> FileState:
    """Return the size and digest of the file that `write_content` writes."""
    digester, size_bytes = BlockDigester(), 0
    for piece in _pieces(content):
        digester.update(piece)
        size_bytes += memoryview(piece).nbytes
    return size_bytes, digester.hexdigest()


def _state_at(path: str) -> FileState | None:
    """Return the state of a file; None if it is missing, and a state that equals no other if it is not regular."""
    if not os.path.lexists(path):
        return None
    if not os.path.isfile(path):
        return 0, "not a regular file"
    return os.path.getsize(path), digest_file(path)


def _file_states(slot: CacheSlot, states: Sequence[Sequence[FileState]]) -> dict[str, list[list[int | str]]]:
    """Return the states of each file under its name, in a form for JSON."""
    return {
        os.path.basename(path): [list(state) for state in of_file]
        for path, of_file in zip(slot.paths, states, strict=True)
    }


def _recorded_states(record: Mapping[str, Any] | None, path: str) -> list[FileState]:
    """Return the states of a file that dsindex wrote or was about to write."""
    files = (record or {}).get("files")
    states = files.get(os.path.basename(path)) if isinstance(files, dict) else None
    if not isinstance(states, list):
        return []
    pairs = [tuple(state) for state in states if isinstance(state, list) and len(state) == 2]
    return [(size, digest) for size, digest in pairs if isinstance(size, int) and isinstance(digest, str)]


def _remove_temporaries(slot: CacheSlot, record: Mapping[str, Any] | None) -> None:
    """Remove the temporary files of a killed writer, which carry the attempt id in its record."""
    attempt_id = (record or {}).get("building")
    if isinstance(attempt_id, str) and attempt_id.isalnum():
        for path in slot.paths:
            remove_if_present(temporary_name(path, attempt_id))


def _refusal(path: str) -> str:
    return (
        f"{path}: expected no file or one that dsindex wrote, got another one, which does not match these data and "
        "options; a training job would use it as it is: move it away, or choose another folder for the cache"
    )


def _busy(slot: CacheSlot) -> str:
    return f"{slot.record}: another process is writing this cache; wait for it and run the same command again"
