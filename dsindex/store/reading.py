"""What reads inputs and datasets, wherever they are: sizes, versions, digests, fingerprints and arrays."""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import xxhash

from dsindex.errors import InputError
from dsindex.store.storage import BlockDigester, combine_digests, open_descriptor, open_file
from dsindex.store.store import find, store_of
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.store.object_file import ObjectArray
    from dsindex.store.types import InputStatus, Readable

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Items: TypeAlias = "NDArray[Any] | ObjectArray"
"""Items of a file, mapped, or of an object, requested when they are sliced."""

_FILE_BUFFER_BYTES = 256 << 10
_COPY_BYTES = 8 << 20


def input_status(path: str) -> InputStatus:
    """Return size and version of a file or an object.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    return store_of(path).head(path)


def is_there(path: str) -> bool:
    """Whether a path is a file, or an address, of which only a read tells."""
    return is_url(path) or os.path.isfile(path)


def is_stored(path: str) -> bool:
    """Whether a file or an object exists; an object takes a request.

    Raises:
        InputError: If an object store does not answer, or refuses.
    """
    return find(path) is not None if is_url(path) else os.path.isfile(path)


def version_number(status: InputStatus) -> int:
    """Return the version of a file or an object as a number: a time in ns, or a hash of the ETag."""
    return xxhash.xxh3_64_intdigest(status.version.encode()) >> 1 if is_url(status.path) else int(status.version)


def digest_file(path: str, *, begin: int = 0, end: int | None = None, chunk_bytes: int = 4 << 20) -> str:
    """Read a file or an object, or its bytes [begin, end), once and return the digest.

    Raises:
        InputError: If it cannot be read.
    """
    return combine_digests(digest_blocks(path, begin=begin, end=end, chunk_bytes=chunk_bytes))


def digest_blocks(path: str, *, begin: int = 0, end: int | None = None, chunk_bytes: int = 4 << 20) -> list[bytes]:
    """Read a file or an object, or its bytes [begin, end), once and return the digests of its blocks.

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
    return digester.blocks()


FINGERPRINT_SAMPLES = 16
FINGERPRINT_SAMPLE_BYTES = 16 << 10
SPOOLED = "/inputs/stdin"
"""End of the path of standard input in a work folder, whose fingerprint does not depend on where that is."""


def fingerprint_input(path: str, *, version: str | None = None) -> str:
    """Fingerprint an input by its size and 16 samples of its bytes, including the first and the last.

    Args:
        path: The file or the object.
        version: An object's version, if it was looked at.

    Returns:
        XXH3-128, hexadecimal; independent of the file's path and time. For an object its version, such as its ETag.

    Raises:
        InputError: If it cannot be read.
    """
    if is_url(path) and not path.endswith(SPOOLED):
        return input_status(path).version if version is None else version
    try:
        with open_readable(path) as file:
            return _fingerprint(file.size_bytes, file.read_at)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); it existed when the job was planned") from error


def fingerprint_content(path: str, content: bytes, *, version: str | None = None) -> str:
    """Return what `fingerprint_input` does, of an input that was read as a whole."""
    if is_url(path):
        return fingerprint_input(path, version=version)
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


REQUESTS_AHEAD = 32
"""Most objects that `read_in_order` requests before their turn."""
BYTES_AHEAD = 64 << 20
"""Their size together, about."""


def read_in_order(inputs: Iterable[InputStatus]) -> Iterator[bytes]:
    """Yield all of each input, which must be as it was planned before it is read and after; objects are read ahead.

    Raises:
        InputError: If one cannot be read, or changed.
    """
    requested: deque[tuple[Future[Any], int]] = deque()
    bytes_ahead = 0
    for known in inputs:
        is_object = is_url(known.path)
        if is_object:
            from dsindex.store.object_client import read_range, start

            requested.append((start(read_range(known.path, 0, known.size_bytes, known.version)), known.size_bytes))
            bytes_ahead += known.size_bytes
        while requested and (len(requested) >= REQUESTS_AHEAD or bytes_ahead >= BYTES_AHEAD or not is_object):
            future, size_bytes = requested.popleft()
            bytes_ahead -= size_bytes
            yield bytes(future.result())
        if not is_object:
            yield _read_file(known)
    for future, _ in requested:
        yield bytes(future.result())


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
    """Compare an input's size and version with what they were when the job was planned.

    Raises:
        InputError: If it is missing or has changed.
    """
    if path.startswith("hf://"):
        return  # the files of a commit never change
    try:
        now = input_status(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error
    if (now.size_bytes, now.version) != (size_bytes, version):
        raise _changed_since_planned(path, size_bytes, now.size_bytes)


def _changed_since_planned(path: str, planned: int, now: int) -> InputError:
    return InputError(
        f"{path}: changed while the build was running (expected {planned} bytes as planned, got {now}, or a newer "
        f"version); leave inputs alone, then run again with --replace"
    )


def stored_size(path: str) -> int:
    """Return the size of a file or an object in bytes.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    return input_status(path).size_bytes


def open_stored(path: str) -> io.BufferedReader:
    """Open a file or an object for reading in binary mode.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    if not is_url(path):
        return open_file(path)
    from dsindex.store.object_file import ObjectReader, RawObject

    return io.BufferedReader(RawObject(ObjectReader(input_status(path))), _FILE_BUFFER_BYTES)


def open_readable(path: str) -> AbstractContextManager[Readable]:
    """Open an input for reading ranges.

    Raises:
        OSError: If a local file cannot be opened, or is no file.
        InputError: If an object cannot be read.
    """
    return store_of(path).open(path)


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


def map_file(path: str) -> mmap.mmap | bytes:
    """Map a file into memory, read-only; an object is fetched into an unnamed temporary file.

    Raises:
        OSError: If a local file cannot be read, or there is no room for an object.
        InputError: If an object cannot be read.
    """
    if not is_url(path):
        with open_file(path) as file:
            # An empty file cannot be mapped.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
    with open_readable(path) as source, tempfile.TemporaryFile(prefix="dsindex-") as copy:
        source.expect_forwards(0, source.size_bytes)
        for offset in range(0, source.size_bytes, _COPY_BYTES):
            copy.write(source.read_at(_COPY_BYTES, offset))
        copy.flush()
        return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) if source.size_bytes else b""


def open_items(path: str, dtype: np.dtype[Any], *, offset: int = 0, count: int | None = None) -> Items:
    """Open a file or an object as a read-only array.

    Args:
        path: The file.
        dtype: Type of an item.
        offset: Byte at which the first item begins.
        count: Number of items; None: all whole ones up to the end.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If it is shorter.
        InputError: If an object cannot be read.
    """
    import numpy as np

    if is_url(path):
        from dsindex.store.object_file import ObjectArray

        return ObjectArray(input_status(path), dtype, offset=offset, count=count)
    buffer = map_file(path)
    count = (len(buffer) - offset) // dtype.itemsize if count is None else count
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
