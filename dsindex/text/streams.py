"""Read parts of a file as blocks of whole lines, whatever the lines contain.

A line begins at the start of the text or after a newline byte, and ends before the next newline byte or at the end of
the text. A part owns the lines that begin in it, so any cut of a file into parts yields each line once. The parts of a
plain file are byte ranges; a compressed one has a single part.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dsindex.errors import InputError, RecordError
from dsindex.store.reading import open_readable
from dsindex.text.compressed import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dsindex.store.storage import Readable
    from dsindex.text.compressed import Container
    from dsindex.text.forms import TextPart


# Where the lines of a part come from: a range of a plain file, or a whole compressed one, read forwards.
#
# A plain source yields text from the byte before the part to the end of the file, and stops once at the part's own end.
# The lines of a part are those that begin after the first byte of its text and up to its end, so that no byte before a
# part is needed to read it; at the start of the file the first line is its own as well.

OVERRUN_BYTES = 64 << 10
"""Bytes read at a time past the end of a range, where only the rest of one line is needed."""

PIECE_BYTES = 2 << 20
"""Most text decoded at a time: 128 KiB of zstd can be 2 GiB, which would be held beside the buffer that it is for."""


class ByteSource(Protocol):
    """Text that is read forwards. Positions count from where the source begins."""

    @property
    def origin(self) -> int:
        """Offset in the text of the first byte."""
        ...

    @property
    def own_end(self) -> int | None:
        """Position of the last byte at which one of the part's lines may begin; None: any of the file."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether the file has no further text."""
        ...

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the part's own end or at the end of the file; return the number of bytes."""
        ...


class PlainSource:
    """A byte range [begin, end) of a plain file, from the byte before it on."""

    def __init__(self, path: str, file: Readable, begin: int, end: int) -> None:
        self._path = path
        self._file = file
        self._size = file.size_bytes
        if end > self._size:
            msg = f"{path}: expected at least {end} bytes, got {self._size}; the file became shorter, run the job again"
            raise InputError(msg)
        self.origin = max(0, begin - 1)
        self._position = self.origin
        self._end = end
        self.own_end = end - 1 - self.origin

    @property
    def at_end(self) -> bool:
        """Whether the file has no further text."""
        return self._position == self._size

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the range's end or at the end of the file; return the number of bytes."""
        stop = self._end if self._position < self._end else self._size
        wanted = min(len(view), stop - self._position)
        done = 0
        while done < wanted:
            got = self._file.read_into(view[done:wanted], self._position + done)
            if not got:
                raise changed(self._path, self._position + wanted, self._position + done)
            done += got
        self._position += done
        return done


class StreamSource:
    """The text of a compressed file."""

    origin = 0
    own_end = None

    def __init__(self, path: str, file: Readable, container: Container) -> None:
        self._decoder = Decoder(path, file, container)

    @property
    def at_end(self) -> bool:
        """Whether the file has no further text."""
        return self._decoder.at_end

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the end of the file; return the number of bytes."""
        done = 0
        while done < len(view) and not self._decoder.at_end:
            text = self._decoder.read(min(len(view) - done, PIECE_BYTES))
            view[done : done + len(text)] = text
            done += len(text)
        return done


@contextmanager
def open_source(part: TextPart) -> Iterator[ByteSource]:
    """Open a part of a file.

    Raises:
        InputError: As `opened_input`, and if the file is shorter than the part.
    """
    path, container = part.path, part.form.container
    with opened_input(path, part.expected_size) as file:
        if not part.is_sample:
            file.expect_forwards(part.begin - 1, part.end + OVERRUN_BYTES)  # with the byte before a part of lines
        if container == "plain":
            yield PlainSource(path, file, part.begin, part.end)
        else:
            yield StreamSource(path, file, container)


@contextmanager
def opened_input(path: str, expected_size: int | None) -> Iterator[Readable]:
    """Open an input, and check on closing that it has not changed; of an object, every read checks it.

    Raises:
        InputError: If it cannot be read, does not have the expected size, or changed meanwhile.
    """
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(open_readable(path))
        except OSError as error:
            msg = f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
            raise InputError(msg) from error
        before = file.size_bytes
        if expected_size not in (None, before):
            raise InputError(
                f"{path}: expected {expected_size} bytes, got {before}; the file changed since the job was"
                " planned, run it again from the start"
            )
        damage: InputError | None = None
        try:
            yield file
        except RecordError:
            raise
        except InputError as error:  # it may be what a change looks like
            damage = error
        after = file.size_if_changed()
        if after is not None:
            raise changed(path, before, after) from damage
        if damage is not None:
            raise damage


def changed(path: str, expected: int, got: int) -> InputError:
    """Return the error for a file that changed while it was read."""
    return InputError(
        f"{path}: expected {expected} bytes, got {got} or other content; the file changed while it was read,"
        " run the job again from the start once nothing writes to it"
    )


BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
LARGEST_HEAD_BYTES = 1 << 20
"""Bytes that are kept of a line that is larger than the limit."""
_GROWTH_BYTES = 64 << 20
"""Most bytes by which the buffer of a long line grows at a time."""


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
    text_bytes: int | None = None
    """Size of what the lines were made of; None if they are the text itself."""

    @classmethod
    def of_lines(
        cls, lines: list[bytes], offsets: NDArray[np.int64], first_line: int, *, text_bytes: int | None = None
    ) -> LineBlock:
        """Return a block of lines, at least one, that were made from something else."""
        ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64) - 1
        return cls(
            data=bytearray(b"\n").join([*lines, b""]),
            num_bytes=int(ends[-1]) + 1,
            offset=0,
            first_line=first_line,
            starts=np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]),
            ends=ends,
            record_offsets=offsets,
            text_bytes=text_bytes,
        )

    @property
    def source_bytes(self) -> int:
        """Size of the lines in the text that they are from."""
        return self.num_bytes if self.text_bytes is None else self.text_bytes

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
    """The first bytes of the line, as `cut_large` returns them."""
    num_bytes: int
    """Size of the whole line, excluding the newline."""
    limit: int
    """The limit that it exceeds."""


def read_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a part, in order; the last one may extend beyond its end.

    The lines of a part of a plain file begin in its bytes; a compressed file has one part. One block is held in memory,
    or the longest line if that is larger.

    Args:
        part: A part of a regular file.
        block_bytes: Bytes to read before the lines so far are yielded.
        max_line_bytes: A line longer than this and than a block is yielded as a LongLine.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, changes while it is read, or is not
            compressed as expected.
    """
    with open_source(part) as source:
        reader = _PartReader(source=source, has_bom=part.is_file_start, block_bytes=block_bytes, limit=max_line_bytes)
        if part.begin == 0 or reader.skip_first_line():
            yield from reader.blocks()


def read_source(source: ByteSource, *, block_bytes: int, max_line_bytes: int | None) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a source from its begin to its end, as `read_lines` does."""
    return _PartReader(source=source, has_bom=False, block_bytes=block_bytes, limit=max_line_bytes).blocks()


def cut_large(line: bytes | bytearray, limit: int | None) -> bytes:
    """Return what is kept of a bad line: all of it, or the first bytes of one that is larger than the limit.

    >>> cut_large(b"abc", 2), cut_large(b"abc", 3)
    (b'ab', b'abc')
    """
    is_large = limit is not None and len(line) > limit
    return bytes(memoryview(line)[: min(limit or 0, LARGEST_HEAD_BYTES)] if is_large else line)


@dataclass(slots=True, kw_only=True)
class _PartReader:
    """The state of one pass over one part; `buffer[:filled]` holds the source's text from position `base` on."""

    source: ByteSource
    has_bom: bool
    """Whether the text may begin with a BOM."""
    block_bytes: int
    limit: int | None
    buffer: bytearray = field(default_factory=bytearray)
    base: int = 0
    filled: int = 0
    searched: int = 0
    """buffer[:searched] has no newline, so a long line is not searched again with every read."""
    line: int = 0

    def __post_init__(self) -> None:
        self.buffer = bytearray(self.block_bytes)

    def skip_first_line(self) -> bool:
        """Move to the first line that begins after the source's first byte; return False if none of the part's does.

        A newline in the last byte of the part begins the last of its lines, one after it a line of another part, so a
        part inside one huge line reads no further than its own end.
        """
        while not self.is_past_own_end(self.base + 1):
            self.filled = self.source.read_into(memoryview(self.buffer))
            newline = self.buffer.find(_NEWLINE, 0, self.filled)
            if newline >= 0 and not self.is_past_own_end(self.base + newline + 1):
                self.drop(newline + 1)
                self.searched = 0
                return True
            if self.source.at_end:
                return False
            self.base += self.filled
        return False

    def is_past_own_end(self, position: int) -> bool:
        """Tell whether a line that begins there is known to belong to another part."""
        return self.source.own_end is not None and position > self.source.own_end

    def blocks(self) -> Iterator[LineBlock | LongLine]:
        """Yield every line from `base` to the end of the part."""
        while not self.is_past_own_end(self.base) and not (self.source.at_end and not self.filled):
            if self.searched == self.filled and not self.source.at_end:
                self.read_more()
            cut = self.whole_lines() or (self.filled if self.source.at_end else 0)
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
                    room = self.filled if self.limit is None else self.limit + 1 - self.filled
                    self.grow(min(self.filled, room, _GROWTH_BYTES))
            else:
                self.searched = self.filled

    def read_more(self) -> None:
        """Fill the buffer up to the end of the part, then in small steps."""
        view = memoryview(self.buffer)[self.filled :]
        if self.is_past_own_end(self.base + self.filled):
            view = view[:OVERRUN_BYTES]
        self.filled += self.source.read_into(view)

    def whole_lines(self) -> int:
        """Return the size in bytes of the whole lines in the buffer that begin in the part; 0 for none."""
        if self.is_past_own_end(self.base + self.filled - 1):  # only the rest of the last line was missing
            return self.buffer.find(_NEWLINE, self.searched, self.filled) + 1
        return self.buffer.rfind(_NEWLINE, self.searched, self.filled) + 1

    def cut_block(self, cut: int) -> LineBlock:
        newlines = np.flatnonzero(np.frombuffer(self.buffer, np.uint8, cut) == _NEWLINE)
        ends = newlines if self.buffer[cut - 1] == _NEWLINE else np.append(newlines, cut)
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        if self.base == 0 and self.has_bom and self.buffer.startswith(BOM, 0, cut):
            starts[0] = len(BOM)
        return LineBlock(
            data=self.buffer,
            num_bytes=cut,
            offset=self.base + self.source.origin,
            first_line=self.line,
            starts=starts,
            ends=ends,
        )

    def drop(self, cut: int) -> None:
        """Remove the first `cut` bytes; no newline that matters to this part is left."""
        rest = self.filled - cut
        memory = self.buffer
        if len(memory) > self.block_bytes >= rest:  # the end of a long line: shrink the buffer
            self.buffer = bytearray(self.block_bytes)
        memoryview(self.buffer)[:rest] = memoryview(memory)[cut : self.filled]
        self.base, self.filled, self.searched = self.base + cut, rest, rest

    def grow(self, num_bytes: int) -> None:
        """Lengthen the buffer in place, where the kernel moves pages: old and new memory would be twice the line."""
        try:
            self.buffer.extend(bytes(num_bytes))
        except BufferError:  # the last block is still in use
            self.buffer = self.buffer + bytes(num_bytes)
        self.searched = self.filled

    def skip_line(self, limit: int) -> LongLine:
        """Skip the line that fills the buffer, keeping its first `limit` bytes."""
        begin, head, cut = self.base, cut_large(self.buffer, limit), 0
        self.buffer = bytearray(self.block_bytes)
        while not cut:
            self.base, self.filled = self.base + self.filled, 0
            self.read_more()
            cut = self.buffer.find(_NEWLINE, 0, self.filled) + 1
            if not cut and self.source.at_end:
                cut = self.filled + 1  # as if a newline followed
        num_bytes = self.base + cut - 1 - begin
        cut = min(cut, self.filled)
        self.drop(cut)
        self.searched = 0  # the rest may contain whole lines, which are yielded before more is read
        return LongLine(offset=begin + self.source.origin, line=self.line, head=head, num_bytes=num_bytes, limit=limit)
