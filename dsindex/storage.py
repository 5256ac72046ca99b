"""Where bytes live: whole or absent files on a POSIX file system, and the digest that proves them.

A name that is visible holds all of its bytes: files are written under another name in the same folder, synced, and
renamed. Object stores will come as a second implementation of these functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import uuid
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import xxhash

from dsindex.errors import InputError, OutputError
from dsindex.regular_files import open_unbuffered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DIGEST_BLOCK_BYTES = 64 << 20
"""A file's digest is built from the digests of its blocks of this size, so that blocks can be digested anywhere."""

WRITE_BYTES = 256 << 10
"""Written per call. Linux gives the page cache of larger writes in huge pages, which can cost more than the copying:
1 GB took 0.8 s in pieces of 256 KiB and 3.4 s in pieces of 4 MiB (ext4, Linux 6.18, a virtual machine)."""

BUFFER_BYTES = 64 << 10
"""For small writes. Larger ones pass the buffer by, which is why it is smaller than WRITE_BYTES."""

WRITEBACK_BYTES = 8 << 20
"""Written before the disk is set to work on it, so that the sync at the end finds little left to wait for."""

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file as it was written: what it is recognised by, and proven whole."""

    name: str
    """Relative to the work folder; of a dataset's published file, its suffix."""
    size_bytes: int
    digest: str
    """As `digest_file` returns it."""


def combine_digests(block_digests: Iterable[bytes]) -> str:
    """Return a file's digest from the XXH3-128 digests (16 bytes, big-endian) of its blocks, in order.

    Source: docs/formats.md, section 6.

    >>> combine_digests([])
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(b"".join(block_digests))


class BlockDigester:
    """Digest a stream of bytes by blocks of DIGEST_BLOCK_BYTES, counted from the stream's first byte."""

    def __init__(self) -> None:
        self._finished: list[bytes] = []
        self._hash = xxhash.xxh3_128()
        self._room = DIGEST_BLOCK_BYTES

    def update(self, data: Bytes) -> None:
        """Take the next bytes of the stream."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else view
        while len(view):
            taken = view[: self._room]
            self._hash.update(taken)
            self._room -= len(taken)
            view = view[len(taken) :]
            if self._room == 0:
                self._finished.append(self._hash.digest())
                self._hash.reset()
                self._room = DIGEST_BLOCK_BYTES

    def blocks(self) -> list[bytes]:
        """Return the digest of each block so far, a last partial one included."""
        return [*self._finished, self._hash.digest()] if self._room < DIGEST_BLOCK_BYTES else list(self._finished)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        return combine_digests(self.blocks())


class DigestingWriter:
    """A file opened for sequential writing that knows the size and digest of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digester = BlockDigester()
        self.size_bytes = 0
        self._at_work_bytes = 0
        """Of these the disk was set to work on."""

    def write(self, data: Bytes) -> None:
        """Write all of `data` at the end."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else view
        for begin in range(0, len(view), WRITE_BYTES):
            self._file.write(view[begin : begin + WRITE_BYTES])
        self._digester.update(view)
        self.size_bytes += len(view)
        if self.size_bytes - self._at_work_bytes >= WRITEBACK_BYTES:
            start_writeback(self._file.fileno(), self._at_work_bytes, self.size_bytes - self._at_work_bytes)
            self._at_work_bytes = self.size_bytes

    def hexdigest(self) -> str:
        """Return the digest of what was written, as `digest_file` will see it."""
        return self._digester.hexdigest()

    def as_stored(self, name: str) -> StoredFile:
        """Return what was written, under a name."""
        return StoredFile(name=name, size_bytes=self.size_bytes, digest=self.hexdigest())


class ArrowSink:
    """A DigestingWriter as the file object that Arrow wants."""

    closed = False

    def __init__(self, file: DigestingWriter) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write all of `data`."""
        self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self._file.size_bytes

    def flush(self) -> None:
        """Nothing to do: the writer's owner flushes and syncs."""

    def close(self) -> None:
        """Nothing to do: the writer's owner closes."""

    def writable(self) -> bool:
        """It is."""
        return True

    def readable(self) -> bool:
        """It is not."""
        return False

    def seekable(self) -> bool:
        """It is not."""
        return False


def digest_file(path: str, *, chunk_bytes: int = 4 << 20) -> str:
    """Read a file once and give its digest.

    Raises:
        InputError: If it cannot be read.
    """
    digester = BlockDigester()
    buffer = memoryview(bytearray(chunk_bytes))
    try:
        with open_unbuffered(path) as file:
            while count := file.readinto(buffer):
                digester.update(buffer[:count])
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise InputError(msg) from error
    return digester.hexdigest()


@contextlib.contextmanager
def atomic_writer(path: str, *, attempt_id: str | None = None) -> Iterator[DigestingWriter]:
    """Open `path` for writing; it appears whole, synced to disk, when the block ends, or not at all.

    Args:
        path: The final name.
        attempt_id: A word that no other writer uses, for a caller that wants to know the temporary file's name after a
            crash; see `temporary_name`.

    Raises:
        OutputError: If the folder or the disk refuses.
    """
    temporary = temporary_name(path, attempt_id or uuid.uuid4().hex)
    try:
        with open(temporary, "xb", buffering=BUFFER_BYTES) as file:
            yield DigestingWriter(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise output_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def temporary_name(path: str, attempt_id: str) -> str:
    """Return the name under which `atomic_writer` writes."""
    return f"{path}.{attempt_id}.tmp"


def write_whole(path: str, data: Bytes) -> None:
    """Write a small file atomically."""
    with atomic_writer(path) as file:
        file.write(data)


def replace_file(path: str, data: Bytes, *, temporary: str) -> None:
    """Write a small file atomically by way of a name that the caller knows, so that a crash leaves no other.

    Raises:
        OutputError: If the folder or the disk refuses.
    """
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise output_error(path, error) from error


def put_if_absent(path: str, data: bytes) -> bool:
    """Create `path` with `data` unless it exists; of several writers exactly one gets True.

    Source: link(2) is atomic on local disks and on NFS, where O_EXCL once was not.
    """
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise output_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    return True


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Write all of `data` at a byte offset, however short the single writes are."""
    view = memoryview(data)
    view = view.cast("B") if view.nbytes else view
    while len(view):
        count = os.pwrite(descriptor, view[:WRITE_BYTES], offset)
        view, offset = view[count:], offset + count


def start_writeback(descriptor: int, offset: int, num_bytes: int) -> None:
    """Set the disk to work on bytes that were written, without waiting for it, where the system can; no promise.

    Source: sync_file_range(2).
    """
    sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if sync_file_range is not None:
        sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(num_bytes), _SYNC_FILE_RANGE_WRITE)


_SYNC_FILE_RANGE_WRITE = 2


def read_into(descriptor: int, buffer: memoryview, offset: int) -> None:
    """Fill all of `buffer` from a byte offset.

    Raises:
        EOFError: If the file ends first.
    """
    while len(buffer):
        count = os.preadv(descriptor, [buffer], offset)
        if count == 0:
            msg = f"ends at byte {offset}, {len(buffer)} bytes too early"
            raise EOFError(msg)
        buffer, offset = buffer[count:], offset + count


def sync_folder(folder: str) -> None:
    """Make renames in a folder survive a power cut, where the file system can."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    """Create a folder and its parents.

    Raises:
        OutputError: If that is refused.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise output_error(path, error) from error


def remove_if_present(path: str) -> None:
    """Remove a file; that it is gone already is fine.

    Raises:
        OutputError: If that is refused.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise output_error(path, error) from error


def free_bytes(folder: str) -> int:
    """Tell how many bytes this user may still write below an existing folder or its nearest existing parent."""
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder or ".").free


FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def output_error(path: str, error: OSError) -> OutputError:
    """Say in one sentence why a file cannot be written and what to do."""
    transient = False
    if error.errno in FULL_DISK_ERRORS:
        remedy = (
            "make room (or choose another --output-prefix or --work-dir) and run the same command again: it continues"
        )
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        remedy = "give a place that you may write to"
    else:
        remedy = "check the folder and run the same command again: it continues"
        transient = True
    refusal = OutputError(f"{path}: cannot be written ({error.strerror}); {remedy}")
    refusal.transient = transient
    return refusal
