"""Read files and objects alike: sizes, versions, digests, fingerprints, ranges and arrays."""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from collections import deque
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import xxhash

from dsindex.errors import InputError
from dsindex.store.errors import reading
from dsindex.store.local import BlockDigester, InputStatus, combine_digests
from dsindex.store.protocol import find, store_of
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from dsindex.store.local import Readable, StoredFile

_BUFFER_BYTES = 256 << 10
_COPY_BYTES = 8 << 20
_DIGESTED_BYTES = 4 << 20


def input_status(path: str) -> InputStatus:
    """Return size and version of a file or an object.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    return store_of(path).head(path)


def is_stored(path: str) -> bool:
    """Whether a file or an object exists; an object costs a request.

    Raises:
        InputError: If the disk or the store fails, or refuses access.
    """
    return find(path) is not None


def version_number(status: InputStatus) -> int:
    """Return the version of a file or an object as a number: a time in ns, or a hash of the ETag."""
    return xxhash.xxh3_64_intdigest(status.version.encode()) >> 1 if is_url(status.path) else int(status.version)


def open_readable(path: str) -> Readable:
    """Open an input for reading ranges.

    Raises:
        OSError: If a local file cannot be opened, or is not a file.
        InputError: If an object cannot be read.
    """
    return store_of(path).open(path)


def open_stored(path: str) -> io.BufferedReader:
    """Open a file or an object for reading in binary mode; raises like `open_readable`."""
    return io.BufferedReader(open_readable(path), _BUFFER_BYTES)


def digest_file(path: str) -> str:
    """Return the digest of a file or an object; raises like `digest_blocks`."""
    return combine_digests(digest_blocks(path))


def digest_blocks(path: str, *, begin: int = 0, end: int | None = None) -> list[bytes]:
    """Return the digests of the blocks of a file or an object, or of its bytes [begin, end).

    Raises:
        InputError: If it cannot be read.
    """
    digester = BlockDigester()
    buffer, offset = memoryview(bytearray(_DIGESTED_BYTES)), begin
    with reading(path), open_readable(path) as file:
        end = file.size_bytes if end is None else end
        file.expect_forwards(begin, end)
        while count := file.read_into(buffer[: end - offset], offset):
            digester.update(buffer[:count])
            offset += count
    return digester.blocks()


# Arrays.


def is_as_written(path: str, file: StoredFile) -> bool:
    """Whether a file has its recorded size and digest; an object, which its store has verified, only the size."""
    status = find(path)
    has_size = status is not None and status.size_bytes == file.size_bytes
    return has_size and (is_url(path) or digest_file(path) == file.digest)


def stamp_content(path: str, digest: str) -> None:
    """Derive a file's version from its digest, so that equal contents have equal versions, as in an object store."""
    if not is_url(path):
        os.utime(path, ns=(time_of_content(digest), time_of_content(digest)))


def has_stamped_content(status: InputStatus) -> bool:
    """Whether a file has the content that its version was derived from."""
    return is_url(status.path) or time_of_content(digest_file(status.path)) == status.modified_ns


def time_of_content(digest: str) -> int:
    """Return a modification time in ns that identifies a content: even seconds before 2004 fit on any disk.

    >>> time_of_content("99aa06d3014798d86001c324468d497f")
    430573266000000000
    """
    return (int(digest[:8], 16) & 0x3FFFFFFE) * 10**9


def map_file(path: str) -> mmap.mmap | bytes:
    """Map a file into memory, read-only; an object is first downloaded to an unnamed temporary file.

    Raises:
        OSError: If a local file cannot be read, or an object does not fit on the disk.
        InputError: If an object cannot be read.
    """
    with open_readable(path) as source:
        if source.size_bytes == 0:  # an empty file cannot be mapped
            return b""
        if not is_url(path):
            return mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        with tempfile.TemporaryFile(prefix="dsindex-") as copy:
            source.expect_forwards(0, source.size_bytes)
            for offset in range(0, source.size_bytes, _COPY_BYTES):
                copy.write(source.read_at(_COPY_BYTES, offset))
            copy.flush()
            return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ)


class ObjectArray:
    """A read-only array in an object; each slice is fetched and copied."""

    def __init__(self, file: Readable, dtype: np.dtype[Any], offset: int, count: int | None) -> None:
        room = max(0, file.size_bytes - offset) // dtype.itemsize
        self.size = room if count is None else count
        self.dtype = dtype
        self._file, self._offset = file, offset
        if self.size > room:
            raise ValueError(f"{room} items of {dtype} follow byte {offset}, fewer than {count}")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, items: slice) -> NDArray[Any]:
        """Return the items of a slice without a step."""
        begin, end, _ = items.indices(self.size)
        num_bytes = max(0, end - begin) * self.dtype.itemsize
        return np.frombuffer(self._file.read_at(num_bytes, self._offset + begin * self.dtype.itemsize), self.dtype)


Items: TypeAlias = "NDArray[Any] | ObjectArray"
"""The items of a mapped file or an object."""


def open_items(path: str, dtype: np.dtype[Any], *, offset: int = 0, count: int | None = None) -> Items:
    """Open a file or an object as a read-only array.

    Args:
        path: The file.
        dtype: Type of an item.
        offset: Byte at which the first item begins.
        count: Number of items; None for all whole items up to the end.

    Raises:
        OSError: If a local file cannot be read.
        ValueError: If fewer items follow the offset.
        InputError: If an object cannot be read.
    """
    if is_url(path):
        return ObjectArray(open_readable(path), dtype, offset, count)
    buffer = map_file(path)
    count = (len(buffer) - offset) // dtype.itemsize if count is None else count
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset)


# Fingerprints of inputs, and checks that inputs are unchanged since planning.

FINGERPRINT_SAMPLES = 16
FINGERPRINT_SAMPLE_BYTES = 16 << 10
SPOOLED = "/dsindex-stdin"
"""Suffix of a work folder's copy of standard input. Its fingerprint always comes from its bytes, never from an ETag."""


def fingerprint_input(path: str) -> str:
    """Return the fingerprint of a file or an object; raises InputError if it cannot be read."""
    with reading(path), open_readable(path) as file:
        return fingerprint(file)


def fingerprint(file: Readable) -> str:
    """Fingerprint an input by its size and 16 samples of its bytes, including the first and the last.

    Returns:
        XXH3-128, hexadecimal; independent of the file's path and time. For an object, its version, such as its ETag.

    Raises:
        OSError: If a local file cannot be read.
        InputError: If an object cannot be read.
    """
    if is_url(file.path) and not file.path.endswith(SPOOLED):
        return file.version
    digest = xxhash.xxh3_128(file.size_bytes.to_bytes(8, "big"))
    if file.size_bytes <= FINGERPRINT_SAMPLE_BYTES:  # every sample is the whole file
        digest.update(file.read_at(FINGERPRINT_SAMPLE_BYTES, 0) * FINGERPRINT_SAMPLES)
        return digest.hexdigest()
    last = file.size_bytes - FINGERPRINT_SAMPLE_BYTES
    for sample in range(FINGERPRINT_SAMPLES):
        digest.update(file.read_at(FINGERPRINT_SAMPLE_BYTES, last * sample // (FINGERPRINT_SAMPLES - 1)))
    return digest.hexdigest()


@contextmanager
def open_input(planned: InputStatus) -> Iterator[Readable]:
    """Open an input, and check on opening and closing that it is unchanged since planning.

    Raises:
        InputError: If it cannot be read, or changed.
    """
    with reading(planned.path):
        file = store_of(planned.path).open(planned.path, planned)
    with closing(file), require_unchanged(file, planned):
        yield file


@contextmanager
def require_unchanged(file: Readable, planned: InputStatus) -> Iterator[None]:
    """Check before and after a block that a file is unchanged since planning, also if the block raises InputError.

    Raises:
        InputError: If it cannot be read, or changed.
    """
    size = file.size_bytes
    if (size, file.version) != (planned.size_bytes, planned.version):
        raise _change_error(planned, size)
    with reading(planned.path):
        try:
            yield
        except InputError as error:
            if (changed_size := file.size_if_changed()) is not None:
                raise _change_error(planned, changed_size) from error
            raise
        if (changed_size := file.size_if_changed()) is not None:
            raise _change_error(planned, changed_size)


def _change_error(planned: InputStatus, size: int) -> InputError:
    sizes = f"{planned.size_bytes} bytes before, {size} now" if size != planned.size_bytes else "it is a newer version"
    hint = "rerun the command, and change no input while it runs"
    return InputError(f"{planned.path}: changed while the job was running ({sizes})", hint=hint)


# Open many files in order, some of them ahead.

AHEAD = 32
"""Number of files that are opened ahead, at most."""
BYTES_AHEAD = 64 << 20
"""No further file is opened ahead while the extents of the open files have at least this total size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A file or an object whose bytes [begin, end) are read sequentially."""

    file: InputStatus
    """Its size must be at least `end`. If its version is empty, any version of an object is read."""
    begin: int
    end: int


def open_in_order(extents: Iterable[Extent]) -> Iterator[Readable]:
    """Yield each extent's file, open until the next one is requested; the bytes of objects are prefetched.

    Raises:
        InputError: If a file cannot be opened, or is not a regular file.
    """
    remaining_extents = iter(extents)
    open_files: deque[tuple[Readable, int]] = deque()
    open_bytes = 0
    try:
        while True:
            while len(open_files) < AHEAD and open_bytes < BYTES_AHEAD and (extent := next(remaining_extents, None)):
                with reading(extent.file.path):
                    file: Readable = store_of(extent.file.path).open(extent.file.path, extent.file)
                open_files.append((file, extent.end - extent.begin))
                open_bytes += extent.end - extent.begin
                if extent.begin < extent.end:
                    file.expect_forwards(extent.begin, extent.end)
            if not open_files:
                return
            first, size = open_files.popleft()
            open_bytes -= size
            with closing(first) as file:
                yield file
    finally:
        for file, _ in open_files:
            file.close()
