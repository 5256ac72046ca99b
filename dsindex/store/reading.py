"""The seam between what reads inputs and where they are: files of this machine, or objects in stores.

An input has a size and a version by which a change is noticed, and any range of its bytes can be read. What
objects need is imported with the first of them.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import xxhash

from dsindex.errors import InputError, MissingObjectError
from dsindex.store.storage import BlockDigester, open_descriptor, open_file, open_unbuffered
from dsindex.store.urls import OWN_VERSION, is_url, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from io import BufferedReader, FileIO

    from dsindex.store.object_reader import ObjectReader


@dataclass(frozen=True, slots=True, kw_only=True)
class InputStatus:
    """An input as of its HEAD or stat."""

    path: str
    """Its path, or its URL pinned to the version."""
    size_bytes: int
    version: str
    """Modification time in ns, or an object's ETag."""


Readable: TypeAlias = "LocalFile | ObjectReader"
"""An input that is open for reading."""


class LocalFile:
    """A local file."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        status = os.fstat(file.fileno())
        self.size_bytes = status.st_size
        self.version = str(status.st_mtime_ns)

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return bytes from an offset; short only at the end."""
        return os.pread(self.file.fileno(), num_bytes, offset)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read into a buffer from an offset; return the number of bytes, 0 at the end."""
        return os.preadv(self.file.fileno(), [view], offset)

    def expect_forwards(self, begin: int, end: int) -> None:  # noqa: ARG002 - Linux reads ahead in whole files
        """Let the system read ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def size_if_changed(self) -> int | None:
        """Return its current size if its size or time changed."""
        status = os.fstat(self.file.fileno())
        now = (status.st_size, str(status.st_mtime_ns))
        return None if now == (self.size_bytes, self.version) else status.st_size


def input_status(path: str) -> InputStatus:
    """Stat a file, or HEAD an object.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    if is_url(path):
        from dsindex.store.stores import head_object

        url = parse_url(path)
        if url.identity is None:
            url, _ = head_object(url)
        if url.identity is not None:
            return InputStatus(path=url, size_bytes=url.identity.size_bytes, version=url.identity.version)
    status = os.stat(path)
    return InputStatus(path=path, size_bytes=status.st_size, version=str(status.st_mtime_ns))


def is_there(path: str) -> bool:
    """Whether a path is a file or a URL; a missing object is reported by the read."""
    return is_url(path) or os.path.isfile(path)


def is_stored(path: str) -> bool:
    """Whether a file or an object exists; an object takes a HEAD.

    Raises:
        InputError: If an object store does not answer, or refuses.
    """
    if not is_url(path):
        return os.path.isfile(path)
    try:
        input_status(path)
    except MissingObjectError:
        return False
    return True


def pinned(path: str) -> str:
    """Return the URL of an object pinned to its present version; a path as it is.

    Raises:
        InputError: If an object cannot be read.
    """
    return input_status(path).path if is_url(path) else path


def size_if_changed(path: str, size_bytes: int, version: str) -> int | None:
    """Return the size of a file whose size or time changed; None for an object, all of whose reads name its version.

    Raises:
        OSError: If it cannot be looked at.
    """
    if is_url(path):
        return None
    status = os.stat(path)
    return None if (status.st_size, str(status.st_mtime_ns)) == (size_bytes, version) else status.st_size


def is_readable(path: str) -> bool:
    """Whether this user may read a file; an object's store has said so by its HEAD."""
    return is_url(path) or os.access(path, os.R_OK)


def is_present(path: str) -> bool:
    """Whether anything has this name: a file, a folder, a link that leads nowhere, or an object.

    Raises:
        InputError: As `is_stored`.
    """
    return is_stored(path) if is_url(path) else os.path.lexists(path)


def version_number(status: InputStatus) -> int:
    """Return the version of a file or an object as a number: a time in ns, or a hash of the ETag."""
    return xxhash.xxh3_64_intdigest(status.version.encode()) >> 1 if is_url(status.path) else int(status.version)


def digest_file(path: str, *, begin: int = 0, end: int | None = None, chunk_bytes: int = 4 << 20) -> str:
    """Read a file or an object, or its bytes [begin, end), once and return the digest.

    Raises:
        InputError: If it cannot be read.
    """
    digester = BlockDigester()
    buffer = memoryview(bytearray(chunk_bytes))
    offset = begin
    try:
        with open_readable(path) as file:
            end = file.size_bytes if end is None else end
            file.expect_forwards(begin, end)
            while count := file.read_into(buffer[: end - offset], offset):
                digester.update(buffer[:count])
                offset += count
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    return digester.hexdigest()


FINGERPRINT_SAMPLES = 16
FINGERPRINT_SAMPLE_BYTES = 16 << 10


def fingerprint_input(path: str) -> str:
    """Fingerprint an input by its size and 16 samples of its bytes, including the first and the last.

    Returns:
        XXH3-128, hexadecimal; independent of the file's path and time. For an object of somebody else its version, such
        as its ETag, which costs no request where the object was looked at.

    Raises:
        InputError: If it cannot be read.
    """
    if is_url(path):
        version = input_status(path).version
        if version != OWN_VERSION:
            return version.removeprefix(OWN_VERSION)
    try:
        with open_readable(path) as file:
            return _fingerprint(file.size_bytes, file.read_at)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); it existed when the job was planned") from error


def fingerprint_content(path: str, content: bytes) -> str:
    """Return what `fingerprint_input` does, of an input that was read as a whole."""
    if is_url(path):
        return fingerprint_input(path)
    return _fingerprint(len(content), lambda num_bytes, offset: content[offset : offset + num_bytes])


def _fingerprint(size_bytes: int, read_at: Callable[[int, int], bytes]) -> str:
    digest = xxhash.xxh3_128(size_bytes.to_bytes(8, "big"))
    if size_bytes <= FINGERPRINT_SAMPLE_BYTES:  # every sample is all of it
        digest.update(read_at(FINGERPRINT_SAMPLE_BYTES, 0) * FINGERPRINT_SAMPLES)
        return digest.hexdigest()
    last = max(0, size_bytes - FINGERPRINT_SAMPLE_BYTES)
    for sample in range(FINGERPRINT_SAMPLES):
        offset = last * sample // (FINGERPRINT_SAMPLES - 1)
        digest.update(read_at(FINGERPRINT_SAMPLE_BYTES, offset))
    return digest.hexdigest()


REQUESTS_AHEAD = 64
"""Most objects that `read_in_order` requests before their turn."""
BYTES_AHEAD = 64 << 20
"""Their size together, about."""


def read_in_order(inputs: Iterable[InputStatus]) -> Iterator[bytes]:
    """Yield all of each input, which must be as it was planned before it is read and after; objects are read ahead.

    Raises:
        InputError: If one cannot be read, or changed.
    """
    from dsindex.store.requests import fetch_later, result_of

    requested: deque[tuple[Future[bytes], int]] = deque()
    bytes_ahead = 0
    for known in inputs:
        is_object = is_url(known.path)
        if is_object:
            requested.append((fetch_later(partial(_read_object, known)), known.size_bytes))
            bytes_ahead += known.size_bytes
        while requested and (len(requested) >= REQUESTS_AHEAD or bytes_ahead >= BYTES_AHEAD or not is_object):
            future, size_bytes = requested.popleft()
            bytes_ahead -= size_bytes
            yield result_of(future)
        if not is_object:
            yield _read_file(known)
    for future, _ in requested:
        yield result_of(future)


def _read_object(known: InputStatus) -> bytes:
    from dsindex.store.stores import read_range

    return bytes(read_range(parse_url(known.path), 0, known.size_bytes))


def _read_file(known: InputStatus) -> bytes:
    size_bytes = known.size_bytes
    try:
        descriptor = os.open(known.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # what is no file has another size
        try:
            before = os.fstat(descriptor)
            content = os.read(descriptor, size_bytes) if before.st_size == size_bytes else b""
            while len(content) < size_bytes and (more := os.read(descriptor, size_bytes - len(content))):
                content += more
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        msg = f"{known.path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error
    is_unchanged = after.st_mtime_ns == before.st_mtime_ns and after.st_size == size_bytes
    if not is_unchanged or str(before.st_mtime_ns) != known.version:
        raise _changed_since_planned(known.path, size_bytes, after.st_size)
    return content


def require_unchanged(path: str, size_bytes: int, version: str) -> None:
    """Compare an input's size and time with what they were when the job was planned.

    Raises:
        InputError: If it is missing or has changed.
    """
    try:
        now = size_if_changed(path, size_bytes, version)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error
    if now is not None:
        raise _changed_since_planned(path, size_bytes, now)


def _changed_since_planned(path: str, planned: int, now: int) -> InputError:
    return InputError(
        f"{path}: changed while the build was running (expected {planned} bytes as planned, got {now}, or a newer "
        f"time); leave inputs alone, then run again with --fresh"
    )


def stored_size(path: str) -> int:
    """Return the size of a file or an object in bytes.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    return input_status(path).size_bytes if is_url(path) else os.path.getsize(path)


def open_stored(path: str) -> BufferedReader:
    """Open a file or an object for reading in binary mode.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    if not is_url(path):
        return open_file(path)
    from dsindex.store.object_reader import open_object

    return open_object(parse_url(path))


@contextmanager
def open_readable(path: str) -> Iterator[Readable]:
    """Open an input for reading ranges.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    if is_url(path):
        from dsindex.store.object_reader import ObjectReader

        reader = ObjectReader(parse_url(path))
        try:
            yield reader
        finally:
            reader.close()
    else:
        with open_unbuffered(path) as file:
            yield LocalFile(file)


def read_start(path: str, num_bytes: int) -> bytes:
    """Return the first bytes of an input.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    if is_url(path):
        with open_readable(path) as file:
            return file.read_at(num_bytes, 0)
    descriptor = open_descriptor(path)
    try:
        return os.pread(descriptor, num_bytes, 0)
    finally:
        os.close(descriptor)
