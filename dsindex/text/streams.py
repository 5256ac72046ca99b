"""Read parts of a file as blocks of whole lines.

A line begins at the start of the text or after a newline byte, and ends before the next newline byte or at the end of
the text. A part owns the lines that begin in it, so any cut of a file into parts yields each line once. The parts of a
plain file are byte ranges; a compressed one has a single part.

Plain text is converted to JSON lines: each line, or the whole file, becomes the object `{"text": …}`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dsindex.errors import BadRecordError, InputError
from dsindex.formats.dtypes import starts_of
from dsindex.store.errors import reading
from dsindex.store.json_text import encode_json
from dsindex.store.read import input_status, open_input
from dsindex.text.compressed import HEAD_BYTES, PIECE_BYTES, decode, detect_container, require_supported
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.input_format import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.store.local import Readable

BOM = b"\xef\xbb\xbf"
TEXT_KEY = "text"
"""The key under which a record holds plain text."""
OVERRUN_BYTES = 64 << 10
"""Bytes read at a time past the end of a part, where only the rest of one line is needed."""
LARGEST_RECORD_BYTES = 2 << 30
"""Default limit on a record, so that a file that unpacks to one endless line does not take all memory."""
LARGEST_HEAD_BYTES = 1 << 20
"""At most this many bytes are kept of a line above the limit."""
Chunk: TypeAlias = tuple[int, bytes | bytearray]
"""Byte offset and content of a piece of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBlock:
    """Consecutive whole lines of one part, or of several, in order."""

    data: bytes | bytearray
    parts: NDArray[np.int64]
    """Number of each line's part among the parts of the task, shape [lines]."""
    lines: NDArray[np.int64]
    """Number of each line, counted from 0 at the start of its part, shape [lines]."""
    starts: NDArray[np.int64]
    """Index in `data` of each line's first byte, shape [lines]."""
    ends: NDArray[np.int64]
    """Index in `data` after each line's last byte, excluding the newline."""
    sizes: NDArray[np.int64]
    """Bytes of each line, excluding the newline. A line above the limit may be alone in its block, with only the first
    bytes in `data`, as `cut_large` returns them."""
    offsets: NDArray[np.int64]
    """File offset of each line's first byte; for a table, the row group."""
    text_bytes: int
    """Size of the text that these lines came from, including newlines; for a table, of the JSON lines."""

    @property
    def num_lines(self) -> int:
        """Number of lines, including blank ones."""
        return len(self.starts)

    @classmethod
    def of_text(cls, data: bytes | bytearray, *, offset: int, first_line: int) -> LineBlock:
        """Return the block of the whole lines at an offset; the last line may lack its newline."""
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
        ends = newlines if data.endswith(b"\n") else np.append(newlines, len(data))
        starts = np.concatenate([[0], ends[:-1] + 1])
        return cls(
            data=data,
            parts=np.zeros(len(ends), np.int64),
            lines=np.arange(first_line, first_line + len(ends)),
            starts=starts,
            ends=ends,
            sizes=ends - starts,
            offsets=starts + offset,
            text_bytes=len(data),
        )

    @classmethod
    def of_long_line(cls, head: bytes, num_bytes: int, *, offset: int, line: int) -> LineBlock:
        """Return the block of one line above the limit; `head`, its first bytes, may have newlines of a document."""
        empty_block, end = cls.of_text(b"", offset=offset, first_line=line), np.array([len(head)])
        return replace(empty_block, data=head, ends=end, sizes=np.array([num_bytes]), text_bytes=num_bytes + 1)

    @classmethod
    def of_lines(
        cls, lines: list[bytes], offsets: NDArray[np.int64], first_line: int, *, text_bytes: int | None = None
    ) -> LineBlock:
        """Return the block of one or more lines that were converted from another format."""
        data = b"\n".join([*lines, b""])
        block = cls.of_text(data, offset=0, first_line=first_line)
        return replace(block, offsets=offsets, text_bytes=len(data) if text_bytes is None else text_bytes)

    @classmethod
    def join(cls, numbered_blocks: Sequence[tuple[int, LineBlock]]) -> LineBlock:
        """Join blocks of several parts into one, given the number of each block's part."""
        numbers, blocks = [number for number, _ in numbered_blocks], [block for _, block in numbered_blocks]
        if numbers == [0]:
            return blocks[0]
        counts = [block.num_lines for block in blocks]
        bases = np.repeat(starts_of([len(block.data) + 1 for block in blocks])[:-1], counts)
        return cls(
            data=b"\n".join(block.data for block in blocks),
            parts=np.repeat(numbers, counts),
            lines=np.concatenate([block.lines for block in blocks]),
            starts=bases + np.concatenate([block.starts for block in blocks]),
            ends=bases + np.concatenate([block.ends for block in blocks]),
            sizes=np.concatenate([block.sizes for block in blocks]),
            offsets=np.concatenate([block.offsets for block in blocks]),
            text_bytes=sum(block.text_bytes for block in blocks),
        )

    def line(self, number: int) -> bytes:
        """Return a copy of a line without its newline, keeping a BOM and a carriage return."""
        return bytes(memoryview(self.data)[self.starts[number] : self.ends[number]])

    def text(self, number: int) -> bytes:
        """Return a copy of a line without its newline and without a BOM at the start of the file."""
        return self.line(number) if self.offsets[number] else self.line(number).removeprefix(BOM)


def read_lines(part: TextPart, file: Readable, *, block_bytes: int, max_line_bytes: int) -> Iterator[LineBlock]:
    """Yield the lines of a part, in order; the last one may extend beyond its end.

    Memory holds one block, or the longest line if that is larger.

    Args:
        part: The part.
        file: Its file.
        block_bytes: Bytes to read for each block.
        max_line_bytes: Only the first bytes of a line are kept if it is longer than this and than a block.

    Raises:
        InputError: If the file cannot be read, or is not compressed as expected.
    """
    end = part.end if part.form.container == "plain" else None
    chunks = _read_chunks(part, file, block_bytes)
    return _cut_lines(chunks, end, max_line_bytes, skips_first=part.begin > 0)


def _cut_lines(chunks: Iterator[Chunk], end: int | None, limit: int, *, skips_first: bool) -> Iterator[LineBlock]:
    """Yield blocks of the lines that begin before `end`; no chunk may have bytes on both sides of `end`."""
    buffer, begin, line = bytearray(), 0, 0
    chunk = _skip_line(chunks, 0) if skips_first else next(chunks, None)
    while chunk is not None:
        offset, text = chunk
        begin = begin if buffer else offset
        is_over = end is not None and offset >= end
        if is_over and not buffer:
            return
        line_end = (text.find(b"\n") if is_over else text.rfind(b"\n")) + 1
        buffer += memoryview(text)[: line_end or len(text)]
        if line_end:
            block = LineBlock.of_text(buffer, offset=begin, first_line=line)
            yield block
            if is_over:
                return
            buffer, begin, line = bytearray(memoryview(text)[line_end:]), offset + line_end, line + len(block.starts)
        if len(buffer) <= limit:
            chunk = next(chunks, None)
            continue
        size, head = len(buffer), cut_large(buffer, limit)
        buffer = bytearray()
        offset, _ = chunk = _skip_line(chunks, begin + size)
        yield LineBlock.of_long_line(head, offset - 1 - begin, offset=begin, line=line)
        line += 1
    if buffer:
        yield LineBlock.of_text(buffer, offset=begin, first_line=line)


def _skip_line(chunks: Iterator[Chunk], offset: int) -> Chunk:
    """Return the rest of the chunk after the next newline, or an empty chunk as if the text ended with a newline."""
    for offset, text in chunks:
        if line_end := text.find(b"\n") + 1:
            return offset + line_end, text[line_end:]
        offset += len(text)
    return offset + 1, b""


def _read_chunks(part: TextPart, file: Readable, block_bytes: int) -> Iterator[Chunk]:
    """Yield the text of a part, then the rest of the file in small steps, since the part's last line may extend there.

    The text begins one byte before the part: if this byte is a newline, a line begins with the part.
    """
    begin, end = max(0, part.begin - 1), part.end
    file.expect_forwards(begin, begin + part.stored_bytes + OVERRUN_BYTES)
    if part.form.container != "plain":
        begin, text = 0, bytearray()
        for piece in decode(part.path, file, part.form.container, piece_bytes=min(block_bytes, PIECE_BYTES)):
            text += piece
            if len(text) >= block_bytes:
                yield begin, text
                begin, text = begin + len(text), bytearray()
        if text:
            yield begin, text
        return
    while begin < file.size_bytes:
        stop, max_bytes = (end, block_bytes) if begin < end else (file.size_bytes, OVERRUN_BYTES)
        buffer = bytearray(min(max_bytes, stop - begin))
        del buffer[file.read_into(memoryview(buffer), begin) :]
        if not buffer:
            problem = f"ends at byte {begin} of {file.size_bytes}: it changed"
            raise InputError(f"{part.path}: {problem}", hint="rerun the command")
        yield begin, buffer
        begin += len(buffer)


def cut_large(line: bytes | bytearray, limit: int) -> bytes:
    """Return the bytes of a bad line to keep: all, or only the first ones if the line is above the limit.

    >>> cut_large(b"abc", 2), cut_large(b"abc", 3)
    (b'ab', b'abc')
    """
    return bytes(memoryview(line)[: min(limit, LARGEST_HEAD_BYTES)] if len(line) > limit else line)


# Plain text as records. A line of white space is blank, and a carriage return before a newline is removed.


def read_text_lines(part: TextPart, file: Readable, *, block_bytes: int, max_line_bytes: int) -> Iterator[LineBlock]:
    """Yield the lines of a part, each as a JSON object; takes the arguments of `read_lines` and raises its errors."""
    for block in read_lines(part, file, block_bytes=block_bytes, max_line_bytes=max_line_bytes):
        if block.sizes[0] > len(block.data):
            yield block
            continue
        texts = [block.text(number) for number in range(len(block.starts))]
        lines = [_encode_text(text.removesuffix(b"\r")) if text.strip(JSON_WHITESPACE) else b"" for text in texts]
        yield LineBlock.of_lines(lines, block.offsets, int(block.lines[0]), text_bytes=block.text_bytes)


def read_text_file(part: TextPart, file: Readable, *, block_bytes: int, max_line_bytes: int) -> Iterator[LineBlock]:
    """Yield a whole file as one JSON object, or as a long line if it is larger than the limit."""
    content, num_bytes, limit = bytearray(), 0, max_line_bytes
    for _, text in _read_chunks(part, file, block_bytes):
        num_bytes += len(text)
        if len(content) <= limit:
            content += text
    if num_bytes > limit:
        yield LineBlock.of_long_line(cut_large(content, limit), num_bytes, offset=0, line=0)
    else:
        line = _encode_text(bytes(content.removeprefix(BOM)))
        yield LineBlock.of_lines([line], np.zeros(1, np.int64), 0, text_bytes=num_bytes)


def _encode_text(text: bytes) -> bytes:
    """Return the JSON object of a text; text that is not UTF-8 stays plain, so that the JSON parser reports it."""
    try:
        return encode_json({TEXT_KEY: text.decode()})
    except UnicodeDecodeError:
        return text.replace(b"\n", b" ")


# Find the lines that are JSON, for raw indices.

_JSON_BLOCK_BYTES = 4 << 20


def is_json(line: bytes) -> bool:
    """Whether json.loads accepts a line, which is also the test of Modalities.

    msgspec is several times as fast and stricter: it refuses NaN, a BOM, UTF-16 and lone surrogates.

    >>> is_json(b'{"a": NaN}'), is_json(b""), is_json(b"{'a': 1}")
    (True, False, False)
    """
    import msgspec  # an environment that only reads datasets may lack it

    try:
        msgspec.json.decode(line)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return False
    return True


def find_lines(path: str, *, drop_faulty_entries: bool = False) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Find the lines of a file that are JSON; a blank line is not.

    Args:
        path: The file.
        drop_faulty_entries: Skip lines that are not JSON; otherwise the first one is an error.

    Returns:
        (offset, length) in bytes of each line, shape [lines, 2], and (1-based line, offset) of each skipped line.

    Raises:
        InputError: If the file is empty, cannot be read or changes during the run.
        BadRecordError: At the first faulty line.
    """
    with reading(path):
        part = TextPart.of_file(input_status(path))
    kept_pairs, num_lines = [np.empty((0, 2), np.int64)], 0
    faulty_lines: list[tuple[int, int]] = []
    with open_input(part) as file:
        if part.size_bytes == 0 and not drop_faulty_entries:  # Modalities counts an empty file as one faulty line
            raise InputError(f"{path}: the file is empty", hint="index it with --drop-faulty-entries")
        head = file.read_at(HEAD_BYTES, 0)
        require_supported(path, head, container := detect_container(head))
        if container != "plain":
            raise InputError(f"{path}: {container} data, in which no line has an offset", hint="unpack it")
        for block in read_lines(part, file, block_bytes=_JSON_BLOCK_BYTES, max_line_bytes=part.size_bytes):
            pairs = np.stack((block.offsets, block.sizes), axis=1)
            # A BOM is part of its line: json.loads must judge it.
            bad_lines = [number for number in range(len(pairs)) if not is_json(block.line(number))]
            if bad_lines and not drop_faulty_entries:
                reason = "not JSON" if block.line(bad_lines[0]).strip(b"\r") else "a blank line"
                hint = "fix it, or leave such lines out with --drop-faulty-entries"
                raise BadRecordError(path, int(pairs[bad_lines[0], 0]), reason, num_lines + bad_lines[0] + 1, hint=hint)
            faulty_lines += [(num_lines + number + 1, int(pairs[number, 0])) for number in bad_lines]
            num_lines += len(pairs)
            kept_pairs.append(np.delete(pairs, bad_lines, axis=0))
    return np.concatenate(kept_pairs), faulty_lines
