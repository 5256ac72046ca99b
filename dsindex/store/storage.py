"""Store files that are complete or absent on a POSIX file system, and compute the digests that identify them.

Final names never refer to incomplete files: files are written under another name in the same folder, synced, and
renamed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import re
import shutil
import stat
import sys
import uuid
from dataclasses import dataclass
from io import BufferedReader, FileIO
from typing import IO, TYPE_CHECKING, Protocol, TypeAlias

import xxhash

from dsindex.errors import OutputError
from dsindex.locations import Location
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Open paths from users for reading if they are files, and refuse pipes, devices and sockets.
#
# Opening a pipe waits for a writer, perhaps forever, and a device may be endless. Besides, an input is read in ranges,
# in parallel, more than once and by other processes, which only a file supports. So such a path is refused with an
# OSError that names its kind, and every reader reports that like a missing file.

Bytes: TypeAlias = bytes | bytearray | memoryview
"""Content to write."""

STANDARD_INPUT_KIND = "standard input"
_STANDARD_INPUT = re.compile(r"/dev/(stdin|fd/0)|/proc/self/fd/0")
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|thread-self|\d+)/fd/\d+")
"""Paths that lead to different files in different processes."""

_PLAIN_PATH = re.compile(r"/(?!dev/|proc/|[/.])(?![^\0]*/[/.])")
"""Absolute paths that `os.path.abspath` leaves as they are and that cannot be any of these: it takes a while."""


def what_is_no_file(path: str) -> str | None:
    """Return the kind of an existing path that is neither a file nor a folder; None for all others.

    >>> what_is_no_file("-"), what_is_no_file("/dev/null")
    ('standard input', 'a device')
    """
    is_plain = _PLAIN_PATH.match(path) is not None
    if not is_plain and is_url(path):
        return None
    absolute = path if is_plain else os.path.abspath(path)
    if not is_plain and (_STANDARD_INPUT.fullmatch(absolute) or (path == "-" and not os.path.exists(path))):
        return STANDARD_INPUT_KIND
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a name with a NUL byte
        return None
    if is_plain and stat.S_ISREG(mode):
        return None
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "a device"
    return "a descriptor of one process" if _DESCRIPTOR.fullmatch(absolute) else None


def describe_empty(path: str) -> str:
    """Return what a path is whose size is 0: an empty file, or one that the kernel makes up as it is read."""
    if is_url(path):
        return "an empty object"
    try:
        with open_unbuffered(path) as file:
            is_empty = not file.read(1)
    except OSError:
        is_empty = True
    return "an empty file" if is_empty else "a file of the kernel, which has no size"


def open_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading in binary mode.

    Raises:
        OSError: If it cannot be opened, or is not a file; then `strerror` says what it is.
    """
    return open(path, "rb", opener=_open_regular)


def open_unbuffered(path: str | os.PathLike[str]) -> FileIO:
    """Open a file without a buffer, for a reader that has its own.

    Raises:
        OSError: As `open_file`.
    """
    return open(path, "rb", buffering=0, opener=_open_regular)


def open_descriptor(path: str) -> int:
    """Open a file for reading, as a descriptor for the caller to close.

    Raises:
        OSError: As `open_file`.
    """
    return _open_regular(path, os.O_RDONLY | os.O_CLOEXEC)


def open_configuration(path: str) -> BufferedReader:
    """Open a small file that is read once: also what a shell writes into a descriptor, as for `--config <(command)`.

    Raises:
        OSError: As `open_file`; a named pipe is none, since its writer may never come.
    """
    return open(path, "rb") if _DESCRIPTOR.fullmatch(os.path.abspath(path)) else open_file(path)


def _no_file(kind: str, path: str) -> OSError:
    return OSError(errno.EINVAL, f"{kind} in place of a file", path)


def _open_regular(path: str, flags: int) -> int:
    kind = what_is_no_file(path)
    if kind is None:
        descriptor = os.open(path, flags | os.O_NONBLOCK)  # no effect on files; a pipe does not wait
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            return descriptor
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        kind = "something else"
    raise _no_file(kind, path)


DIGEST_BLOCK_BYTES = 64 << 20
"""Size of the blocks from whose digests a file's digest is computed, so that blocks can be digested anywhere."""

WRITE_BYTES = 256 << 10
"""Bytes per write call. Larger writes can be four times slower, since Linux then allocates the page cache in huge
pages."""

BUFFER_BYTES = 64 << 10
"""Size of the buffer for small writes. It is smaller than WRITE_BYTES, so that larger writes bypass it."""

WRITEBACK_BYTES = 8 << 20
"""Bytes written before writeback is started, so that little is left for the sync at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The name, size and digest of a written file."""

    name: str
    """Name relative to the work folder, or the suffix of a dataset's published file."""
    size_bytes: int
    digest: str
    """Digest as returned by `digest_file`."""


def combine_digests(block_digests: Iterable[bytes]) -> str:
    """Return a file's digest, computed from the XXH3-128 digests (16 bytes, big-endian) of its blocks in order.

    Source: docs/formats.md, section 6.

    >>> combine_digests([])
    '99aa06d3014798d86001c324468d497f'
    """
    return xxhash.xxh3_128_hexdigest(b"".join(block_digests))


class BlockDigester:
    """Digests a stream of bytes by blocks of DIGEST_BLOCK_BYTES, counted from the first byte of the stream."""

    def __init__(self) -> None:
        self._finished: list[bytes] = []
        self._hash = xxhash.xxh3_128()
        self._room = DIGEST_BLOCK_BYTES

    def update(self, data: Bytes) -> None:
        """Add the next bytes of the stream."""
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
        """Return the digest of each block so far, including a last partial one."""
        return [*self._finished, self._hash.digest()] if self._room < DIGEST_BLOCK_BYTES else list(self._finished)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        return combine_digests(self.blocks())


class Appendable(Protocol):
    """What a DigestingWriter writes to."""

    def write(self, data: Bytes, /) -> int:
        """Append all of `data`."""
        ...


class DigestingWriter:
    """A file opened for sequential writing that knows the size and digest of what was written."""

    def __init__(self, file: IO[bytes] | Appendable) -> None:
        self._file = file
        self._descriptor: int | None = None
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # what is no file of the system
            self._descriptor = file.fileno()  # type: ignore[union-attr]  # the block suppresses it
        self._digester = BlockDigester()
        self.size_bytes = 0
        self._at_work_bytes = 0
        """Bytes whose writeback was started."""

    def write(self, data: Bytes) -> None:
        """Append all of `data`."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else view
        for begin in range(0, len(view), WRITE_BYTES):
            self._file.write(view[begin : begin + WRITE_BYTES])
        self._digester.update(view)
        self.size_bytes += len(view)
        if self._descriptor is not None and self.size_bytes - self._at_work_bytes >= WRITEBACK_BYTES:
            start_writeback(self._descriptor, self._at_work_bytes, self.size_bytes - self._at_work_bytes)
            self._at_work_bytes = self.size_bytes

    def hexdigest(self) -> str:
        """Return the digest of the bytes written, as `digest_file` would."""
        return self._digester.hexdigest()

    def as_stored(self, name: str) -> StoredFile:
        """Return the written file under a name."""
        return StoredFile(name=name, size_bytes=self.size_bytes, digest=self.hexdigest())


class ArrowSink(io.RawIOBase):
    """A DigestingWriter as a file object for Arrow; its owner flushes, syncs and closes the file."""

    def __init__(self, file: DigestingWriter) -> None:
        self._file = file

    def write(self, data: Bytes) -> int:  # type: ignore[override]  # its stub takes any buffer
        """Write all of `data`."""
        self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._file.size_bytes

    def writable(self) -> bool:
        """Return True."""
        return True


class _OutputFile:
    """A file of an output, whose errors name it."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self.fileno = file.fileno

    def write(self, data: Bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            raise output_error(self._path, error) from error


@contextlib.contextmanager
def atomic_writer(path: str, *, attempt_id: str | None = None) -> Iterator[DigestingWriter]:
    """Open `path` for writing; the file appears complete and synced when the block ends, or not at all.

    Args:
        path: The final path, whose folder is created.
        attempt_id: A unique word, for a caller that needs to know the temporary file's name after a crash; see
            `temporary_name`.

    Raises:
        OutputError: If the folder or the disk refuses.
    """
    make_folder(os.path.dirname(path) or ".")
    temporary = temporary_name(path, attempt_id or uuid.uuid4().hex)
    try:
        file = open(temporary, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed below
    except OSError as error:
        raise output_error(path, error) from error
    try:
        try:
            yield DigestingWriter(_OutputFile(path, file))
        except BaseException:
            with contextlib.suppress(OSError):  # buffered data may not fit a full disk, and is not needed
                file.close()
            raise
        try:
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, path)
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise output_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def temporary_name(path: str, attempt_id: str) -> str:
    """Return the path under which `atomic_writer` writes."""
    return f"{path}.{attempt_id}.tmp"


def write_whole(path: str, data: Bytes, *, writer: str | None = None) -> None:
    """Write a small file atomically. A writer that is alone gives a name, and replaces what a killed one left."""
    if writer is not None:
        remove_if_present(temporary_name(path, writer))
    with atomic_writer(path, attempt_id=writer) as file:
        file.write(data)


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Write all of `data` at a byte offset, repeating short writes."""
    view = memoryview(data)
    view = view.cast("B") if view.nbytes else view
    while len(view):
        count = os.pwrite(descriptor, view[:WRITE_BYTES], offset)
        view, offset = view[count:], offset + count


def start_writeback(descriptor: int, offset: int, num_bytes: int) -> None:
    """Start writing cached bytes to disk without waiting, if the system supports it; this is only a hint.

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
            raise EOFError(f"ends at byte {offset}, {len(buffer)} bytes too early")
        buffer, offset = buffer[count:], offset + count


def sync_folder(folder: str) -> None:
    """Fsync a folder, so that renames in it survive a power failure."""
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def require_path(path: str) -> None:
    """Reject URLs, which would become a folder `s3:`, and paths of devices.

    Raises:
        OutputError: If it is one of these.
    """
    if is_url(path):
        raise OutputError(f"{Location(path)}: expected a path of this machine, got an address; copy finished files")
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    if any(_SYSTEM_FOLDER.match(os.path.realpath(place)) for place in (path, folder)):
        msg = f"{path}: expected a place on a disk, got one in a folder of devices or of the system; choose another"
        raise OutputError(msg)


_SYSTEM_FOLDER = re.compile(r"/(dev(?!/shm(/|$))|proc|sys)(/|$)")


def make_folder(path: str) -> None:
    """Create a folder and its parents.

    Raises:
        OutputError: If that is refused, or as for `require_path`.
    """
    require_path(path)
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise OutputError(f"{path}: expected a folder or nothing, got a file in its place; move it away") from error
    except OSError as error:
        raise output_error(path, error) from error


def remove_if_present(path: str) -> None:
    """Remove a file (idempotent).

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
    """Return the bytes that this user can still write in a folder, or in its nearest existing parent.

    An object store has room for whatever is written.
    """
    if is_url(folder):
        return sys.maxsize
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder or ".").free


def nearest_folder(path: str) -> str:
    """Return a folder, or its nearest existing parent; an address as it is."""
    if is_url(path):
        return path
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def can_map(path: str | None) -> bool:
    """Whether a file can be mapped into memory and read anywhere at no cost; an object is read by requests."""
    return not is_url(path)


def holds_writes(folder: str) -> bool:
    """Whether what tasks write below a folder is held in memory until it is sent, and checked as it arrives."""
    return is_url(folder)


FULL_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FILE_ERRORS = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""Of a folder, a link, and a pipe."""


_ROOM = "make room (or choose another --output-prefix or --work-dir) and run the same command again: it continues"
_CHECK = "check the folder and run the same command again: it continues"


def output_error(path: str, error: OSError, *, room: str = _ROOM, check: str = _CHECK) -> OutputError:
    """Return an error that says in one sentence why a file cannot be written and what to do.

    Args:
        path: The file.
        error: Why it cannot be written.
        room: What to do if the disk is full.
        check: What to do if the reason is not known to last.
    """
    transient = False
    if error.errno in FULL_DISK_ERRORS:
        remedy = room
    elif error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        remedy = "choose a folder that you may write to"
    elif error.errno in _NO_FILE_ERRORS:
        remedy = "move away what is there in place of a file and run the same command again: it continues"
    else:
        remedy = check
        transient = True
    refusal = OutputError(f"{path}: cannot be written ({error.strerror}); {remedy}")
    refusal.transient = transient
    return refusal
