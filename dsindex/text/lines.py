"""Read byte ranges of a file as blocks of whole lines, whatever the lines contain.

A line begins at byte 0 or after a newline byte, and ends before the next newline byte or at the end of the file. A
range [begin, end) owns the lines whose first byte is in it, so any cut of a file into ranges yields each line once.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import InputError
from dsindex.regular_files import open_unbuffered
from dsindex.text.scanning import find_newlines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO

    from numpy.typing import NDArray

_BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
_OVERRUN_BYTES = 64 << 10
"""Bytes read at a time past the end of a range, where only the rest of one line is needed."""
_COUNT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Consecutive whole lines, in file order. `data` is reused for the next block: copy what you keep."""

    data: bytearray
    num_bytes: int
    """Number of bytes of `data` that belong to the block."""
    offset: int
    """File offset of data[0], which is always a line's first byte."""
    first_line: int
    """Number of the first line, counted from 0 at the start of the range."""
    starts: NDArray[np.int64]
    """Index in `data` of each line's first byte, or of the byte after a BOM at the start of the file."""
    ends: NDArray[np.int64]
    """Index in `data` after each line's last byte, excluding the newline."""
    record_offsets: NDArray[np.int64] | None = None
    """Where each line is from, shape [lines], if not from these bytes of a file: the row group of a table, for one."""

    def line(self, number: int) -> bytes:
        """Return a copy of a line without its newline, keeping a BOM and a carriage return."""
        start = 0 if number == 0 else int(self.starts[number])
        return bytes(memoryview(self.data)[start : self.ends[number]])

    def text(self, number: int) -> bytes:
        """Return a copy of a line without its newline and without a BOM at the start of the file."""
        return bytes(memoryview(self.data)[self.starts[number] : self.ends[number]])

    def line_sizes(self) -> NDArray[np.int64]:
        """Return the size of each line in bytes, excluding the newline, shape [lines]."""
        if self.record_offsets is not None:
            return self.ends - self.starts
        return self.ends + self.offset - self.offsets()

    def offsets(self) -> NDArray[np.int64]:
        """Return the file offset of each line's first byte, or where else the line is from, shape [lines]."""
        if self.record_offsets is not None:
            return self.record_offsets
        offsets = self.starts + self.offset
        offsets[:1] = self.offset  # a BOM is part of its line
        return offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class LongLine:
    """A line longer than the limit, which was not held in memory."""

    offset: int
    line: int
    head: bytes
    """The first bytes of the line, up to the limit."""
    num_bytes: int
    """Size of the whole line, excluding the newline."""


def read_lines(
    path: str,
    begin: int,
    end: int,
    *,
    block_bytes: int,
    max_line_bytes: int | None = None,
    expected_size: int | None = None,
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines that begin in [begin, end), in order; the last one may extend beyond `end`.

    One block is held in memory, or the longest line if that is larger.

    Args:
        path: A regular file.
        begin: First byte of the range.
        end: First byte after the range, at most the file's size.
        block_bytes: Bytes to read before the lines so far are yielded.
        max_line_bytes: A line longer than this and than a block is yielded as a LongLine.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, or changes while it is read.
    """
    with _opened(path, expected_size) as file:
        size = os.fstat(file.fileno()).st_size
        if end > size:
            msg = f"{path}: expected at least {end} bytes, got {size}; the file became shorter, run the job again"
            raise InputError(msg)
        reader = _RangeReader(path=path, file=file, size=size, end=end, block_bytes=block_bytes, limit=max_line_bytes)
        if reader.seek_first_line(begin):
            yield from reader.blocks()


def count_lines(path: str, offset: int) -> int:
    """Return the 1-based number of the line that begins at a byte offset: the newlines before it plus one.

    Raises:
        InputError: If the file cannot be read or ends before `offset`.
    """
    buffer = np.empty(_COUNT_BYTES, np.uint8)
    newlines = 0
    with _opened(path, None) as file:
        for position in range(0, offset, _COUNT_BYTES):
            piece = buffer[: min(_COUNT_BYTES, offset - position)]
            _read_exactly(path, file, memoryview(piece.data), position)
            newlines += int(np.count_nonzero(piece == _NEWLINE))
    return newlines + 1


@dataclass(slots=True, kw_only=True)
class _RangeReader:
    """The state of one pass over one range; `buffer[:filled]` holds the file from offset `base`."""

    path: str
    file: FileIO
    size: int
    end: int
    block_bytes: int
    limit: int | None
    buffer: bytearray = field(default_factory=bytearray)
    base: int = 0
    filled: int = 0
    searched: int = 0
    """buffer[:searched] has no newline, so a long line is not searched again with every read."""
    line: int = 0

    def seek_first_line(self, begin: int) -> bool:
        """Move to the first line that begins in the range; return False if there is none.

        The byte before `begin` decides whether a line begins there. Newlines from end - 1 on begin lines of other
        ranges, so a range inside one huge line reads no further than its own end.
        """
        self.buffer = bytearray(self.block_bytes)
        if begin == 0:
            return self.end > 0
        self.base = begin - 1
        while self.base < self.end - 1:
            num_bytes = min(self.block_bytes, self.end - 1 - self.base)
            _read_exactly(self.path, self.file, memoryview(self.buffer)[:num_bytes], self.base)
            newline = self.buffer.find(_NEWLINE, 0, num_bytes)
            if newline >= 0:
                self.base += newline + 1
                return True
            self.base += num_bytes
        return False

    def blocks(self) -> Iterator[LineBlock | LongLine]:
        """Yield every line from `base` to the end of the range."""
        while self.base < self.end:
            if self.searched == self.filled:
                self.read_more()
            at_end = self.base + self.filled == self.size
            cut = self.whole_lines() or (self.filled if at_end else 0)
            if cut:
                block = self.cut_block(cut)
                yield block
                self.line += len(block.starts)
                self.drop(cut)
            elif self.filled == len(self.buffer):
                if self.limit is not None and self.filled > self.limit:
                    yield self.skip_line(self.limit)
                    self.line += 1
                else:
                    doubled = 2 * len(self.buffer)
                    self.resize(doubled if self.limit is None else min(doubled, self.limit + 1))
            else:
                self.searched = self.filled

    def read_more(self) -> None:
        """Fill the buffer up to the end of the range, then in small steps."""
        position = self.base + self.filled
        wanted = self.end - position if position < self.end else min(_OVERRUN_BYTES, self.size - position)
        view = memoryview(self.buffer)[self.filled : self.filled + wanted]
        _read_exactly(self.path, self.file, view, position)
        self.filled += len(view)

    def whole_lines(self) -> int:
        """Return the size in bytes of the whole lines in the buffer that begin in the range; 0 for none."""
        if self.base + self.filled > self.end:  # read_more stops at `end` first, so this is the rest of the last line
            return self.buffer.find(_NEWLINE, self.searched, self.filled) + 1
        return self.buffer.rfind(_NEWLINE, self.searched, self.filled) + 1

    def cut_block(self, cut: int) -> LineBlock:
        newlines = _find_newlines(self.buffer, cut)
        ends = newlines if self.buffer[cut - 1] == _NEWLINE else np.append(newlines, cut)
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        if self.base == 0 and self.buffer.startswith(_BOM, 0, cut):
            starts[0] = len(_BOM)
        return LineBlock(
            data=self.buffer, num_bytes=cut, offset=self.base, first_line=self.line, starts=starts, ends=ends
        )

    def drop(self, cut: int) -> None:
        """Remove the first `cut` bytes; no newline that matters to this range is left."""
        rest = self.filled - cut
        memory = self.buffer
        if len(memory) > self.block_bytes >= rest:  # the end of a long line: shrink the buffer
            self.buffer = bytearray(self.block_bytes)
        memoryview(self.buffer)[:rest] = memoryview(memory)[cut : self.filled]
        self.base, self.filled, self.searched = self.base + cut, rest, rest

    def resize(self, num_bytes: int) -> None:
        larger = bytearray(num_bytes)
        larger[: self.filled] = memoryview(self.buffer)[: self.filled]
        self.buffer, self.searched = larger, self.filled

    def skip_line(self, limit: int) -> LongLine:
        """Skip the line that fills the buffer, keeping its first `limit` bytes."""
        offset, head, cut = self.base, bytes(self.buffer[:limit]), 0
        while not cut:
            self.base, self.filled = self.base + self.filled, 0
            self.read_more()
            cut = self.buffer.find(_NEWLINE, 0, self.filled) + 1
            if not cut and self.base + self.filled == self.size:
                cut = self.filled + 1  # as if a newline followed
        num_bytes = self.base + cut - 1 - offset
        cut = min(cut, self.filled)
        self.drop(cut)
        self.searched = 0  # the rest may contain whole lines, which are yielded before more is read
        return LongLine(offset=offset, line=self.line, head=head, num_bytes=num_bytes)


def _find_newlines(buffer: bytearray, size: int) -> NDArray[np.int64]:
    """Return the index of every newline byte, ascending.

    Words of eight bytes without a newline are skipped, which takes a quarter of the time of `np.flatnonzero`.
    """
    found = find_newlines(buffer, size)
    if found is not None:
        return found
    is_newline = np.empty(-(-size // 8) * 8, np.bool_)
    is_newline[size:] = False
    np.equal(np.frombuffer(buffer, np.uint8, size), _NEWLINE, out=is_newline[:size])
    words = np.flatnonzero(is_newline.view(np.uint64))
    which, place = np.nonzero(is_newline.reshape(-1, 8)[words])
    newlines: NDArray[np.int64] = 8 * words[which] + place
    return newlines


@contextmanager
def _opened(path: str, expected_size: int | None) -> Iterator[FileIO]:
    """Open an input, and check on closing that it has not changed."""
    try:
        file = open_unbuffered(path)
    except OSError as error:
        msg = f"{path}: expected a file that can be read, got {error.strerror!r}; check the path and its permissions"
        raise InputError(msg) from error
    with file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            msg = f"{path}: expected a regular file, got another kind; write the data to a file first"
            raise InputError(msg)
        if expected_size not in (None, before.st_size):
            msg = (
                f"{path}: expected {expected_size} bytes, got {before.st_size}; the file changed since the job was"
                " planned, run it again from the start"
            )
            raise InputError(msg)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield file
        after = os.fstat(file.fileno())
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise _changed(path, before.st_size, after.st_size)


def _read_exactly(path: str, file: FileIO, view: memoryview[int], position: int) -> None:
    """Fill `view` from the file; a read may return less than requested, but nothing only at the end of the file."""
    file.seek(position)
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            raise _changed(path, position + len(view), position + done)
        done += got


def _changed(path: str, expected: int, got: int) -> InputError:
    return InputError(
        f"{path}: expected {expected} bytes, got {got} or other content; the file changed while it was read,"
        " run the job again from the start once nothing writes to it"
    )
