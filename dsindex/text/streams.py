"""Read parts of a file as blocks of whole lines, whatever the lines contain.

A line begins at the start of the text or after a newline byte, and ends before the next newline byte or at the end of
the text. A part owns the lines that begin in it, so any cut of a file into parts yields each line once. The parts of a
plain file are byte ranges; a compressed one has a single part.

Plain text is read as JSON lines, too: each line, or the whole file, becomes the object of JSON `{"text": …}`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import InputError, RecordError
from dsindex.json_text import encode_json
from dsindex.store.reading import open_readable
from dsindex.store.storage import Readable
from dsindex.text.compressed import PIECE_BYTES, decode
from dsindex.text.fields import JSON_WHITESPACE

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from dsindex.text.forms import TextPart

BOM = b"\xef\xbb\xbf"
TEXT_KEY = "text"
"""The key of plain text."""
OVERRUN_BYTES = 64 << 10
"""Bytes read at a time past the end of a part, where only the rest of one line is needed."""
LARGEST_HEAD_BYTES = 1 << 20
"""Bytes that are kept of a line that is larger than the limit."""
_MOST_KEPT_BYTES = 64 << 20
"""A larger buffer is given up after the line that it was needed for."""
_NEWLINE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Consecutive whole lines, in file order. `data` may be reused for the next block: copy what you keep."""

    data: bytearray
    num_bytes: int
    """Number of bytes of `data` that belong to the block."""
    offset: int
    """File offset of data[0], which is always a line's first byte."""
    first_line: int
    """Number of the first line, counted from 0 at the start of the part."""
    starts: NDArray[np.int64]
    """Index in `data` of each line's first byte, or of the byte after a BOM at the start of the file."""
    ends: NDArray[np.int64]
    """Index in `data` after each line's last byte, excluding the newline."""
    record_offsets: NDArray[np.int64] | None = None
    """Where each line is from, shape [lines], if not from these bytes of a file: the row group of a table, for one."""
    text_bytes: int | None = None
    """Size of what the lines were made of; None if they are the text itself."""

    @classmethod
    def of_text(cls, data: bytearray, num_bytes: int, *, offset: int, first_line: int) -> LineBlock:
        """Return the block of whole lines in the first bytes, of which the last may lack its newline."""
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8, num_bytes) == _NEWLINE)
        ends = newlines if data[num_bytes - 1] == _NEWLINE else np.append(newlines, num_bytes)
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1] + 1
        if offset == 0 and data.startswith(BOM, 0, num_bytes):
            starts[0] = len(BOM)
        return cls(data=data, num_bytes=num_bytes, offset=offset, first_line=first_line, starts=starts, ends=ends)

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

    Memory holds one block, or the longest line if that is larger.

    Args:
        part: A part of a regular file.
        block_bytes: Bytes to read before the lines so far are yielded.
        max_line_bytes: A line longer than this and than a block is yielded as a LongLine.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, changes while it is read, or is not
            compressed as expected.
    """
    is_plain = part.form.container == "plain"
    lines = _Lines(
        max(0, part.begin - 1) if is_plain else 0,
        part.end if is_plain else None,
        skips_first=part.begin > 0,
        limit=max_line_bytes,
        reuses=part.content is None,
    )
    with opened_input(part) as file:
        for chunk, size in _read_chunks(part, file, block_bytes):
            yield from lines.take(chunk, size)
            if lines.is_done:
                break
        else:
            yield from lines.finish()


def _read_chunks(part: TextPart, file: Readable, block_bytes: int) -> Iterator[tuple[bytes | bytearray, int]]:
    """Yield the text from the byte before a part on: up to the part's end, then in small steps to that of the file.

    Each chunk is given with its size, in a buffer that is used for the next one, too.
    """
    begin, end = max(0, part.begin - 1), part.end
    if end > file.size_bytes:
        found = f"expected at least {end} bytes, got {file.size_bytes}"
        raise InputError(f"{part.path}: {found}; the file became shorter, run the job again")
    if not part.is_sample:
        file.expect_forwards(begin, end + OVERRUN_BYTES)
    if part.form.container != "plain":
        pieces = decode(part.path, file, part.form.container, piece_bytes=min(block_bytes, PIECE_BYTES))
        yield from ((chunk, len(chunk)) for chunk in _gather(pieces, block_bytes))
        return
    buffer = bytearray(min(max(block_bytes, OVERRUN_BYTES), file.size_bytes - begin))
    view = memoryview(buffer)
    while begin < file.size_bytes:
        stop, most = (end, block_bytes) if begin < end else (file.size_bytes, OVERRUN_BYTES)
        size = file.read_into(view[: min(most, stop - begin)], begin)
        if not size:
            raise _changed(part.path, file.size_bytes, begin)
        begin += size
        yield buffer, size


def _gather(pieces: Iterator[bytes], num_bytes: int) -> Iterator[bytes]:
    """Join pieces of a text, until they have so many bytes."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= num_bytes:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


class _Lines:
    """Cuts chunks of text into blocks of the whole lines that begin in a part.

    Args:
        begin: Offset of the first chunk.
        end: Where the part ends; None if it has all of the text.
        skips_first: Whether the first line begins before the part: it is what follows the first newline.
        limit: Size above which a line is not held.
        reuses: Whether blocks share a buffer.
    """

    def __init__(self, begin: int, end: int | None, *, skips_first: bool, limit: int | None, reuses: bool) -> None:
        self._reuses = reuses
        self._buffer = bytearray()
        self._size = 0
        """Bytes of the buffer that hold text, from the first byte of a line on, without its newline."""
        self._offset = begin
        """Offset of that line."""
        self._end = end
        self._skips = skips_first
        self._limit = limit
        self._line = 0
        self._passed: int | None = None
        """Bytes of a line that is too long, of which only the first are held."""

    @property
    def is_done(self) -> bool:
        """Whether all lines that begin in the part are complete."""
        return self._end is not None and self._offset >= self._end and not self._size

    def take(self, chunk: bytes | bytearray, size: int) -> Iterator[LineBlock | LongLine]:
        """Take the next bytes of the text, which do not reach past the part's end if they begin before it."""
        begin = 0
        if self._skips or self._passed is not None:
            begin = yield from self._skip_line(chunk, size)
        if self.is_done or begin == size:
            return
        is_over = self._end is not None and self._offset + self._size >= self._end
        cut = (chunk.find(_NEWLINE, begin, size) if is_over else chunk.rfind(_NEWLINE, begin, size)) + 1
        if cut:
            self._hold(memoryview(chunk)[begin:cut])
            yield self._cut_block()
            begin = size if is_over else cut
        self._hold(memoryview(chunk)[begin:size])
        if self._limit is not None and self._size > self._limit:
            self._passed = self._size
            self._size = min(self._limit, LARGEST_HEAD_BYTES)
            self._buffer = bytearray(memoryview(self._buffer)[: self._size])

    def _hold(self, text: memoryview[int]) -> None:
        end = self._size + len(text)
        if not self._size and len(self._buffer) > _MOST_KEPT_BYTES:  # the end of a long line
            self._buffer = bytearray()
        if end > len(self._buffer):  # in place, where the kernel moves pages
            try:
                self._buffer.extend(bytes(end - len(self._buffer)))
            except BufferError:  # the last block is still in use
                self._buffer = self._buffer + bytes(end - len(self._buffer))
        memoryview(self._buffer)[self._size : end] = text
        self._size = end

    def _skip_line(self, chunk: bytes | bytearray, size: int) -> Generator[LongLine, None, int]:
        """Skip to the end of a line that is another part's, or too long; return where the next one begins."""
        cut = chunk.find(_NEWLINE, 0, size) + 1
        if self._passed is None:
            self._offset += cut or size
        else:
            self._passed += cut - 1 if cut else size
            if cut:
                yield self._pass_line(self._passed)
        if not cut:
            return size
        self._skips, self._passed = False, None
        return cut

    def finish(self) -> Iterator[LineBlock | LongLine]:
        """Yield the last line, if it has no newline."""
        if self._passed is not None:
            yield self._pass_line(self._passed)
        elif self._size:
            yield self._cut_block()

    def _cut_block(self) -> LineBlock:
        block = LineBlock.of_text(self._buffer, self._size, offset=self._offset, first_line=self._line)
        self._line += len(block.starts)
        self._offset += self._size
        self._size = 0
        if not self._reuses:
            self._buffer = bytearray()
        return block

    def _pass_line(self, num_bytes: int) -> LongLine:
        head = bytes(self._buffer[: self._size])
        found = LongLine(offset=self._offset, line=self._line, head=head, num_bytes=num_bytes, limit=self._limit or 0)
        self._line += 1
        self._offset += num_bytes + 1
        self._size = 0
        return found


def cut_large(line: bytes | bytearray, limit: int | None) -> bytes:
    """Return what is kept of a bad line: all of it, or the first bytes of one that is larger than the limit.

    >>> cut_large(b"abc", 2), cut_large(b"abc", 3)
    (b'ab', b'abc')
    """
    is_large = limit is not None and len(line) > limit
    return bytes(memoryview(line)[: min(limit or 0, LARGEST_HEAD_BYTES)] if is_large else line)


class _Content(Readable):
    """A file whose content was read before."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.size_bytes = len(content)

    def read_into(self, view: memoryview[int], offset: int) -> int:
        """Read into a buffer from an offset; return the number of bytes, 0 at the end."""
        content = self._content[offset : offset + len(view)]
        view[: len(content)] = content
        return len(content)


@contextlib.contextmanager
def opened_input(part: TextPart) -> Iterator[Readable]:
    """Open an input, and check on closing that it has not changed; of an object, every read checks it.

    Raises:
        InputError: If it cannot be read, does not have the expected size, or changed meanwhile.
    """
    path = part.path
    if part.content is not None:
        yield _Content(part.content)
        return
    try:
        with open_readable(path) as file:
            before = file.size_bytes
            if part.expected_size not in (None, before):
                raise InputError(
                    f"{path}: expected {part.expected_size} bytes, got {before}; the file changed since the job was"
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
                raise _changed(path, before, after) from damage
            if damage is not None:
                raise damage
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions") from error


def _changed(path: str, expected: int, got: int) -> InputError:
    return InputError(
        f"{path}: expected {expected} bytes, got {got} or other content; the file changed while it was read,"
        " run the job again from the start once nothing writes to it"
    )


# Plain text as records. A line of white space is blank, and a carriage return before a newline is not in the text.


def read_text_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a part, each as an object of JSON; the arguments and errors are those of `read_lines`."""
    for block in read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes):
        if isinstance(block, LongLine):
            yield block
            continue
        texts = [block.text(number) for number in range(len(block.starts))]
        lines = [_as_object(text.removesuffix(b"\r")) if text.strip(JSON_WHITESPACE) else b"" for text in texts]
        yield LineBlock.of_lines(lines, block.offsets(), block.first_line, text_bytes=block.num_bytes)


def read_text_file(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Yield a whole file as one object of JSON; a larger file than a line may be is a LongLine."""
    content, num_bytes, limit = bytearray(), 0, max_line_bytes
    with opened_input(part) as file:
        for chunk, size in _read_chunks(part, file, block_bytes):
            num_bytes += size
            content += memoryview(chunk)[:size]
            if limit is not None and num_bytes > limit:
                content = bytearray(cut_large(content, limit))
    if limit is not None and num_bytes > limit:
        yield LongLine(offset=0, line=0, head=bytes(content), num_bytes=num_bytes, limit=limit)
    else:
        line = _as_object(bytes(content.removeprefix(BOM)))
        yield LineBlock.of_lines([line], np.zeros(1, np.int64), 0, text_bytes=num_bytes)


def _as_object(text: bytes) -> bytes:
    """Return the object with a text; text that is not UTF-8 stays as it is, and readers of JSON then say so."""
    try:
        return encode_json({TEXT_KEY: text.decode()})
    except UnicodeDecodeError:
        return text.replace(b"\n", b" ")
