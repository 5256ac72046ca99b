"""Local files: read regular files in ranges, and write files atomically while computing their digest.

A file is written under a temporary name in the same folder, synced, and renamed, so its final name never refers to an
incomplete file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import io
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import xxhash

from dsindex.errors import InputError, OutputError
from dsindex.store.errors import ABSENT, PASSING_ERRORS, output_error, reading
from dsindex.store.urls import Location, is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager


Bytes: TypeAlias = bytes | bytearray | memoryview
Answer = TypeVar("Answer")

READ_PAUSES = (0.1, 0.5, 2.0)
"""Seconds before each retry of a read after a disk error."""


def retry(read: Callable[[], Answer], pauses: Sequence[float] | None = None) -> Answer:
    """Call `read`, and retry it after transient errors.

    Args:
        read: May raise an OSError, or an InputError that says whether it is transient.
        pauses: Seconds before each retry; READ_PAUSES if None.

    Raises:
        Exception: The error of the last attempt, or the first permanent error.
    """
    for pause in READ_PAUSES if pauses is None else pauses:
        try:
            return read()
        except (OSError, InputError) as error:
            if not (error.errno in PASSING_ERRORS if isinstance(error, OSError) else error.transient):
                raise
            time.sleep(pause)
    return read()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """Size and version of a file or an object at one moment."""

    path: str
    size_bytes: int
    version: str
    """Modification time in ns, or an object's ETag, Last-Modified time, or blob id on the Hub."""
    modified_ns: int = 0
    """Modification time, in ns since 1970; 0 if it is not known."""


def sort_by_path(statuses: Iterable[InputStatus]) -> list[InputStatus]:
    """Sort a listing by the bytes of the paths."""
    return sorted(statuses, key=lambda status: os.fsencode(status.path))


class Readable(io.RawIOBase):
    """An open file or object, to be read in ranges or as a Python file. Reads raise InputError or OSError."""

    path: str
    size_bytes: int
    version: str
    _position = 0

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read bytes at an offset into a buffer; return their number, 0 at the end."""
        raise NotImplementedError

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return `num_bytes` from an offset; fewer only at the end."""
        content = bytearray(max(0, min(num_bytes, self.size_bytes - offset)))
        num_read = 0
        while num_read < len(content) and (count := self.read_into(memoryview(content)[num_read:], offset + num_read)):
            num_read += count
        return bytes(content[:num_read])

    def fill(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from an offset.

        Raises:
            InputError: If the file ends before the buffer is full, or cannot be read.
        """
        with reading(self.path):
            while len(buffer):
                count = self.read_into(buffer, offset)
                if not count:
                    problem = f"changed while it was copied: it ends at byte {offset}, {len(buffer)} bytes too early"
                    raise InputError(f"{self.path}: {problem}", hint="rerun the command")
                buffer, offset = buffer[count:], offset + count

    def expect_forwards(self, begin: int, end: int) -> None:
        """Announce a sequential read of the bytes [begin, end), so that they can be prefetched."""

    def size_if_changed(self) -> int | None:
        """Return the current size if the file changed since it was opened; None otherwise."""
        return None

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes; a `size` beyond the end of the file takes no extra memory."""
        remaining = max(0, self.size_bytes - self._position)
        content = self.read_at(remaining if size is None or size < 0 else min(size, remaining), self._position)
        self._position += len(content)
        return content

    def readall(self) -> bytes:
        """Return the rest of the file."""
        return self.read()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer
        """Read the next bytes into a buffer; return their number."""
        count = self.read_into(memoryview(buffer).cast("B"), self._position)
        self._position += count
        return count


# Open regular files, and refuse pipes, devices and sockets.
#
# Opening a pipe may wait for a writer forever, and a device may be endless. An input is also read in ranges, in
# parallel, more than once and by several processes, which only a file supports. The refusal is an OSError that names
# what the path is, so every reader reports it like a missing file.

_STANDARD_INPUT = {"/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}
_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|thread-self|\d+)/fd/\d+")
"""Paths that mean different files in different processes."""
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def describe_special_file(path: str) -> str | None:
    """Describe a path that is neither a file nor a folder; return None for files, folders and missing paths.

    >>> describe_special_file("-"), describe_special_file("/dev/null")
    ('standard input', 'a device')
    """
    if path in _STANDARD_INPUT or (path == "-" and not os.path.exists(path)):
        return "standard input"
    try:
        kind = _KINDS.get(stat.S_IFMT(os.stat(path).st_mode))
    except (OSError, ValueError):  # ValueError: a name with a NUL byte
        return None
    return "a descriptor of one process" if kind is None and _DESCRIPTOR.fullmatch(path) else kind


class LocalFile(Readable):
    """A local file that is open for reading.

    Raises:
        OSError: If the path cannot be opened, or is not a file; then `strerror` says what it is.
    """

    _descriptor = -1
    """-1 until the file is open: Python also closes an object whose constructor failed."""

    def __init__(self, path: str) -> None:
        self.path = path
        if (kind := describe_special_file(path)) is not None:
            raise OSError(errno.EINVAL, f"{kind} in place of a file", path)
        # O_NONBLOCK has no effect on files. If the path has just become a pipe, it prevents a wait for a writer.
        self._descriptor = retry(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        status = os.fstat(self._descriptor)
        self.size_bytes, self.version = status.st_size, str(status.st_mtime_ns)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read bytes at an offset into a buffer; return their number, 0 at the end."""
        return retry(functools.partial(self._read_once, view, offset))

    def _read_once(self, view: memoryview[int], offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [view], offset)
        except OSError as error:
            if error.errno == errno.ESTALE:  # the NFS server no longer knows the descriptor, so open the file again
                reopened = LocalFile(self.path)
                if (reopened.size_bytes, reopened.version) == (self.size_bytes, self.version):
                    os.dup2(reopened._descriptor, self._descriptor, inheritable=False)
                reopened.close()
            error.filename = self.path
            raise

    def fileno(self) -> int:
        """Return the file descriptor, which mmap needs."""
        return self._descriptor

    def expect_forwards(self, begin: int, end: int) -> None:  # noqa: ARG002 - the advice is for the file
        """Tell the system to read ahead."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def size_if_changed(self) -> int | None:
        """Return the current size if size or modification time changed; None otherwise."""
        status = os.fstat(self._descriptor)
        is_same = (status.st_size, str(status.st_mtime_ns)) == (self.size_bytes, self.version)
        return None if is_same else status.st_size

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0 and not self.closed:
            os.close(self._descriptor)
        super().close()


def open_file(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading in binary mode.

    Raises:
        OSError: If it cannot be opened, or is not a file; then `strerror` says what it is.
    """
    return io.BufferedReader(LocalFile(os.fspath(path)), WRITE_BYTES)


def open_configuration(path: str) -> io.BufferedReader:
    """Open a small file that is read once, which may be a descriptor of the shell, as in `--config <(command)`.

    Raises:
        OSError: As `open_file`, also for a named pipe, since it may never get a writer.
    """
    return open(path, "rb") if _DESCRIPTOR.fullmatch(path) else open_file(path)


# Digests.

DIGEST_BLOCK_BYTES = 64 << 20
"""A file's digest combines the digests of its blocks of this size, so that any worker can digest any block."""


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
    """Digest a stream of bytes block by block; the first block begins at the first byte.

    Args:
        block_bytes: Size of a block; DIGEST_BLOCK_BYTES if None.
        new_hash: Creates the hash object.
    """

    def __init__(self, block_bytes: int | None = None, new_hash: Callable[[], Any] = xxhash.xxh3_128) -> None:
        self._finished: list[bytes] = []
        self._hash = new_hash()
        self._block_bytes = self._room = block_bytes or DIGEST_BLOCK_BYTES

    def update(self, data: Bytes) -> None:
        """Add the next bytes of the stream."""
        view = _as_bytes(data)
        while len(view):
            chunk = view[: self._room]
            self._hash.update(chunk)
            self._room -= len(chunk)
            view = view[len(chunk) :]
            if self._room == 0:
                self._finished.append(self._hash.digest())
                self._hash.reset()
                self._room = self._block_bytes

    def blocks(self) -> list[bytes]:
        """Return the digest of each block so far, including a last partial one."""
        return [*self._finished, self._hash.digest()] if self._room < self._block_bytes else list(self._finished)

    def hexdigest(self) -> str:
        """Return the digest of all bytes so far."""
        return combine_digests(self.blocks())


def _as_bytes(data: Bytes) -> memoryview[int]:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else view


# Writing.

WRITE_BYTES = 256 << 10
"""Bytes per write call. Larger writes can be four times slower, since Linux then allocates the page cache in huge
pages."""

BUFFER_BYTES = 64 << 10
"""Size of the buffer for small writes. It is smaller than WRITE_BYTES, so that larger writes bypass it."""

WRITEBACK_BYTES = 8 << 20
"""Writeback starts after this many bytes, so that the final sync has little left to write."""


class DigestingWriter(io.RawIOBase):
    """A sequential writer that counts and digests the bytes written; its creator closes the file.

    Args:
        append: Writes all bytes of its argument to the end of the file.
        errors: Makes a context manager that turns errors of a write into errors that name the file.
        descriptor: A local file's descriptor, to start writeback early; None for an object.
    """

    def __init__(
        self,
        append: Callable[[memoryview[int]], object],
        *,
        errors: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        descriptor: int | None = None,
    ) -> None:
        self._append, self._errors, self._descriptor = append, errors, descriptor
        self.digester = BlockDigester()
        """Digests all bytes; may be replaced before the first write."""
        self.size_bytes = 0
        self._writeback_bytes = 0
        """Number of bytes whose writeback was started."""

    def write(self, data: Bytes) -> int:  # type: ignore[override]  # its stub takes any buffer
        """Append all of `data`."""
        view = _as_bytes(data)
        with self._errors():
            for begin in range(0, len(view), WRITE_BYTES):
                self._append(view[begin : begin + WRITE_BYTES])
        self.digester.update(view)
        self.size_bytes += len(view)
        if self._descriptor is not None and self.size_bytes - self._writeback_bytes >= WRITEBACK_BYTES:
            start_writeback(self._descriptor, self._writeback_bytes, self.size_bytes - self._writeback_bytes)
            self._writeback_bytes = self.size_bytes
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.size_bytes

    def writable(self) -> bool:
        """Return True."""
        return True

    def hexdigest(self) -> str:
        """Return the digest of the bytes written, as `digest_file` would."""
        return self.digester.hexdigest()

    def stored_file(self, name: str) -> StoredFile:
        """Return the written file under a name."""
        return StoredFile(name=name, size_bytes=self.size_bytes, digest=self.hexdigest())


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn an OSError in the block into an error that names the file.

    Raises:
        OutputError: If the block raises an OSError.
    """
    try:
        yield
    except OSError as error:
        raise output_error(path, error) from error


@contextlib.contextmanager
def atomic_writer(path: str) -> Iterator[DigestingWriter]:
    """Open `path` for writing; the file appears complete and synced when the block ends, or not at all.

    Raises:
        OutputError: If its folder cannot be created, or a write fails.
    """
    make_folder(os.path.dirname(path) or ".")
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with writing(path):
        file = open(temporary, "xb", buffering=BUFFER_BYTES)  # noqa: SIM115 - closed below
    try:
        yield DigestingWriter(file.write, errors=functools.partial(writing, path), descriptor=file.fileno())
        with writing(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, path)
            sync_folder(os.path.dirname(path))
    finally:
        with contextlib.suppress(OSError):  # the buffer may not fit on a full disk, and is not needed
            file.close()
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Write all of `data` at a byte offset, repeating short writes."""
    view = _as_bytes(data)
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


def sync_folder(folder: str) -> None:
    """Fsync a folder, so that renames in it survive a power failure.

    Raises:
        OutputError: If the disk fails.
    """
    folder = folder or "."
    with writing(folder):
        descriptor = retry(lambda: os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
                raise
        finally:
            os.close(descriptor)


@functools.lru_cache(1024)  # saves 48 system calls per shard
def require_path(path: str) -> None:
    """Refuse a URL, which would become a folder `s3:`, and a path in /dev, /proc or /sys.

    Raises:
        OutputError: If the path is refused.
    """
    if is_url(path):
        hint = "write to a disk, and copy the finished files"
        raise OutputError(f"{Location(path)}: an address, where only a path of this machine can be written", hint=hint)
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    if any(_SYSTEM_FOLDER.match(os.path.realpath(place)) for place in (path, folder)):
        raise OutputError(f"{path}: in a folder of devices or of the system", hint="choose a place on a disk")


_SYSTEM_FOLDER = re.compile(r"/(dev(?!/shm(/|$))|proc|sys)(/|$)")


def make_folder(path: str) -> None:
    """Create a folder and its parents.

    Raises:
        OutputError: If the folder cannot be created, or `require_path` refuses it.
    """
    require_path(path)
    with writing(path):
        try:
            os.makedirs(path, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            if not path_exists(os.path.join(path, ".")):  # os.makedirs takes an error of a disk for a file
                existing_path = os.path.abspath(path)
                while not path_exists(existing_path):
                    existing_path = os.path.dirname(existing_path)
                if os.path.isdir(existing_path):  # the folder was removed at this moment
                    raise
                problem = f"{existing_path}: a file is in place of this folder"
                raise OutputError(problem, hint="move it away") from error


def nearest_folder(path: str) -> str:
    """Return a folder, or its nearest existing parent."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def free_bytes(folder: str) -> int:
    """Return how many bytes this user can still write to a folder, or to its nearest existing parent.

    An object store has no limit.
    """
    return sys.maxsize if is_url(folder) else shutil.disk_usage(nearest_folder(folder)).free


def disk_of(folder: str) -> int | None:
    """Return the disk of a folder, or of its nearest existing parent; None for an object store."""
    return None if is_url(folder) else os.stat(nearest_folder(folder)).st_dev


def temporary_folder(path: str) -> str:
    """Return the folder for temporary files while `path` is written: on the same disk, for an object the system's."""
    return tempfile.gettempdir() if is_url(path) else os.path.dirname(path)


def identify_file(path: str) -> object:
    """Return an identity that all names of a file share; None if there is no file. An object has one name."""
    if is_url(path):
        return path
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


_MANY_FILES = 256
_REMOVING_THREADS = 16


class LocalStore:
    """The local file systems."""

    largest_file_bytes = math.inf

    def head(self, path: str) -> InputStatus:
        """Return size and modification time; raise OSError if the path is missing or a folder."""
        status = retry(lambda: os.stat(path))
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return _status(path, status)

    def open(self, path: str, status: InputStatus | None = None) -> LocalFile:  # noqa: ARG002 - for objects
        """Open a file; raise OSError if it cannot be opened or is not a file."""
        return LocalFile(path)

    def read(self, path: str) -> tuple[bytes, str] | None:
        """Return a small file's content, and an empty version; None if it is absent.

        Raises:
            InputError: If it cannot be read.
        """
        with reading(path), contextlib.suppress(*ABSENT), LocalFile(path) as file:
            return file.read(), ""
        return None

    def put(self, path: str, data: Bytes) -> None:
        """Write or replace a file atomically."""
        with atomic_writer(path) as file:
            file.write(data)

    def list(self, folder: str, *, recursive: bool = True) -> Sequence[InputStatus]:
        """Return the files directly in a folder, or all below it if recursive; links are not followed.

        Raises:
            InputError: If a folder cannot be read.
        """
        statuses = []
        for path in walk(folder, recursive=recursive):
            with reading(path), contextlib.suppress(FileNotFoundError):  # removed meanwhile
                statuses.append(_status(path, retry(functools.partial(os.lstat, path))))
        return sort_by_path(statuses)

    def delete(self, paths: Iterable[str]) -> Sequence[str]:
        """Remove files, many of them in threads, since each waits for the disk; return those that cannot be removed."""

        def remove(batch: Sequence[str]) -> list[str]:
            failed_paths = []
            for path in batch:
                try:
                    retry(functools.partial(os.unlink, path))
                except FileNotFoundError:
                    continue
                except OSError:
                    failed_paths.append(path)
            return failed_paths

        path_list = list(paths)
        if len(path_list) < _MANY_FILES:
            return remove(path_list)
        with ThreadPoolExecutor(_REMOVING_THREADS, thread_name_prefix="dsindex-remove") as pool:
            batches = (path_list[first::_REMOVING_THREADS] for first in range(_REMOVING_THREADS))
            return [path for failed_paths in pool.map(remove, batches) for path in failed_paths]

    def paths_in(self, folder: str) -> Sequence[str]:
        """Return the paths of the files and folders in a folder; none if it is absent.

        Raises:
            OutputError: If it cannot be read.
        """
        with writing(folder), contextlib.suppress(*ABSENT):
            return [os.path.join(folder, name) for name in retry(lambda: os.listdir(folder))]
        return []

    def unfinished_path(self, path: str, suffix: str) -> str:
        """Return where to write a file that gets its name by a rename, once it is complete."""
        return f"{path}.{suffix}"

    def writer(self, path: str, *, size_bytes: int | None = None) -> AbstractContextManager[DigestingWriter]:  # noqa: ARG002 - for objects
        """Open a file for writing; it appears complete and synced, or not at all."""
        return atomic_writer(path)


def path_exists(path: str) -> bool:
    """Whether a file, a folder or a link exists; os.path.lexists would report any disk error as absence.

    Raises:
        InputError: If the disk fails, or access is refused.
    """
    with reading(path), contextlib.suppress(*ABSENT):
        retry(lambda: os.lstat(path))
        return True
    return False


def walk(folder: str, *, recursive: bool = True) -> Iterator[str]:
    """Yield the files directly in a folder, or all below it; nothing if it is absent. Links to folders are skipped.

    Raises:
        InputError: If a folder cannot be read; os.walk and glob would treat it as empty.
    """
    entries: list[os.DirEntry[str]] = []
    with reading(folder), contextlib.suppress(*ABSENT), retry(lambda: os.scandir(folder)) as scan:
        entries = list(scan)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path) if recursive else ()
        elif not (entry.is_symlink() and os.path.isdir(entry.path)):
            yield entry.path


def _status(path: str, status: os.stat_result) -> InputStatus:
    modified = status.st_mtime_ns
    return InputStatus(path=path, size_bytes=status.st_size, version=str(modified), modified_ns=modified)


LOCAL = LocalStore()
