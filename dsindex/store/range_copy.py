"""Copy ranges between files: read sources at offsets, and write chunks at a fixed offset of the output.

Callers process the chunks in between: dsindex.engine.merge digests them, dsindex.formats.token_copy casts them. Since
offsets are fixed, a second attempt writes the same bytes to the same place.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.store.reading import open_readable
from dsindex.store.storage import start_writeback, write_at
from dsindex.store.types import InputStatus, Readable
from dsindex.store.urls import is_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.errors import OutputError
    from dsindex.store.object_file import ObjectReader


OBJECTS_AHEAD = 8
"""Maximum objects to prefetch."""
BYTES_AHEAD = 64 << 20
"""Prefetched bytes beyond which no further object is requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A byte range of a source, for sequential reading."""

    path: str
    begin: int
    end: int


class Source:
    """A file or an object that is open for reading."""

    def __init__(self, path: str, file: Readable) -> None:
        self._path = path
        self._file = file

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from an offset.

        Raises:
            InputError: If the source ends before the buffer is full, or cannot be read (marked as transient).
        """
        try:
            while len(buffer):
                count = self._file.read_into(buffer, offset)
                if not count:
                    what = f"ends at byte {offset}, {len(buffer)} bytes too early"
                    raise InputError(f"{self._path}: {what}; it changed during the copy; run the same command again")
                buffer, offset = buffer[count:], offset + count
        except OSError as error:
            refused = _unreadable(self._path, error)
            refused.transient = True
            raise refused from error


def open_sources(extents: Iterable[Extent]) -> Iterator[Source]:
    """Yield an open source for each extent, valid until the next one is requested.

    Objects are requested before their reader comes to them, so that it does not wait for each.

    Raises:
        InputError: If a source cannot be opened.
    """
    left = deque(extents)
    ahead: deque[tuple[Source, ObjectReader, int]] = deque()
    try:
        while left or ahead:
            if not ahead and not is_url(left[0].path):
                with open_source(left.popleft().path) as source:
                    yield source
                continue
            while left and is_url(left[0].path) and _has_room(ahead):
                extent = left.popleft()
                from dsindex.store.object_file import ObjectReader  # needs obstore

                # An extent is known to exist, and nothing else of its object is read.
                reader = ObjectReader(InputStatus(path=extent.path, size_bytes=extent.end, version=""))
                reader.expect_forwards(extent.begin, extent.end)
                ahead.append((Source(extent.path, reader), reader, extent.end - extent.begin))
            try:
                yield ahead[0][0]
            finally:
                ahead.popleft()[1].close()
    finally:
        for _, reader, _ in ahead:
            reader.close()


def _has_room(ahead: Sequence[tuple[Source, ObjectReader, int]]) -> bool:
    return not ahead or (len(ahead) <= OBJECTS_AHEAD and sum(size for _, _, size in ahead) < BYTES_AHEAD)


@contextlib.contextmanager
def open_source(path: str, *, extent: tuple[int, int] | None = None) -> Iterator[Source]:
    """Open a source file or object.

    Args:
        path: The file, or the address of the object.
        extent: The bytes [begin, end) that will be read forwards, if they are known.

    Raises:
        InputError: If it cannot be opened, or is not a regular file.
    """
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open_readable(path))
        except OSError as error:
            raise _unreadable(path, error) from error
        if extent is not None and is_url(path):
            file.expect_forwards(*extent)
        yield Source(path, file)


def write_chunks(
    path: str, offset: int, chunks: Iterable[memoryview], *, refusal: Callable[[OSError], OutputError]
) -> None:
    """Write consecutive chunks into an existing file at an offset, and sync.

    Args:
        path: The file; a symbolic link is refused.
        offset: Byte at which the first chunk begins.
        chunks: Each is written before the next is requested, so they may share a buffer.
        refusal: Makes the error to raise from the system's.

    Raises:
        OutputError: If the file cannot be opened or written, as made by `refusal`.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe is refused
        try:
            for chunk in chunks:
                write_at(descriptor, chunk, offset)
                start_writeback(descriptor, offset, len(chunk))
                offset += len(chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refusal(error) from error


def _unreadable(path: str, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}); make it readable and run the same command again")
