"""Read many small files, one after the other, as blocks of records: a file costs little more than to read it.

The text of files is joined, with a newline after each, and parsed together; with a document per file, a file is a line.
Line numbers lead back to the files. A file that is a table, begins with a byte order mark, or is compressed and has no
text, much text or damage is read alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from dsindex.store.reading import (
    fingerprint_content,
    fingerprint_input,
    read_in_order,
    require_unchanged,
)
from dsindex.text.compressed import decode_content, require_whole
from dsindex.text.parts import LARGEST_RECORD_BYTES, as_json, as_object, read_part
from dsindex.text.records import DEFAULT_BLOCK_BYTES, parse_blocks
from dsindex.text.selection import select_keys
from dsindex.text.streams import BOM, LineBlock, LongLine, cut_large, read_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.text.forms import SmallFile
    from dsindex.text.record_blocks import RecordBlock
    from dsindex.text.selection import Selection

FILE_COUNTS = np.dtype(
    [
        ("lines", "<i8"),
        ("blank", "<i8"),
        ("kept", "<i8"),
        ("quarantined", "<i8"),
        ("text_bytes", "<i8"),
    ]
)
"""The counts of a file; records that are in none of them were filtered."""


JOINED_BYTES = 512 << 10
"""Largest compressed file whose text is joined with that of others; much more text fills blocks by itself."""


class SmallFiles:
    """One pass over files, in order.

    Args:
        files: The files.
        keys: The wanted top-level keys, each once.
        selection: The records to keep and the values to read, whose outputs are then the keys.
        max_record_bytes: A longer line (without newline) is bad.
    """

    def __init__(
        self,
        files: Sequence[SmallFile],
        *,
        keys: Sequence[str],
        selection: Selection | None = None,
        max_record_bytes: int | None = None,
    ) -> None:
        self._files = files
        self._keys = keys
        self._selection = select_keys(keys) if selection is None else selection
        self._limit = LARGEST_RECORD_BYTES if max_record_bytes is None else max_record_bytes
        self._queue = _Queue(files)
        self.counts = np.zeros(len(files), FILE_COUNTS)
        """The counts of each file, shape [files]; right once all blocks were read and placed."""
        self._num_lines, self._text_bytes = self.counts["lines"], self.counts["text_bytes"]
        self.fingerprints = [""] * len(files)
        """The fingerprint of each file, once it was read."""
        self._first = 0
        """Number of the first file of those that are read together at present."""
        self._offsets: list[int] = []
        """Where each of them begins in their joined text."""
        self._lines: list[int] = []
        """Number of the first line of each of them, counted from 0 at the start of the first."""

    def blocks(self) -> Iterator[RecordBlock]:
        """Yield the records of all files; `place` tells where in which file they are.

        Raises:
            InputError: If a file cannot be read, has changed or is damaged.
        """
        while (kind := self._queue.next_kind()) is not None:
            self._first, self._offsets, self._lines = self._queue.number, [], []
            yield from self._read_alone() if kind == "alone" else self._read_joined(kind)

    def place(self, block: RecordBlock) -> tuple[RecordBlock, NDArray[np.int64]]:
        """Count a block's lines for their files.

        Returns:
            The block with offsets and line numbers in the files, and the number of each record's file, shape [records].
        """
        files, offsets, lines = self._locate_all(block.offsets, block.lines)
        self._count("kept", files)
        bad = []
        for record in block.bad:
            number, offset, line = self._locate(record.offset, record.line)
            bad.append(replace(record, file=number, offset=offset, line=line))
            self.counts["quarantined"][number] += 1
        if not self._lines:
            self.counts["blank"][self._first] += block.num_blank
        elif block.blank_lines is not None:
            self._count("blank", self._locate_all(block.blank_lines, block.blank_lines)[0])
        return replace(block, offsets=offsets, lines=lines, bad=tuple(bad)), files

    def _count(self, name: str, files: NDArray[np.int64]) -> None:
        if len(files):
            first = int(files[0])
            counts = np.bincount(files - first)
            self.counts[name][first : first + len(counts)] += counts

    def _locate_all(
        self, offsets: NDArray[np.int64], lines: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return file, offset and line number in it of places in the joined text."""
        if not self._lines:
            return np.full(len(lines), self._first, np.int64), offsets, lines
        first_lines = np.array(self._lines, np.int64)
        which = np.searchsorted(first_lines, lines, side="right") - 1
        return which + self._first, offsets - np.array(self._offsets, np.int64)[which], lines - first_lines[which]

    def _locate(self, offset: int, line: int) -> tuple[int, int, int]:
        files, offsets, lines = self._locate_all(np.array([offset]), np.array([line]))
        return int(files[0]), int(offsets[0]), int(lines[0])

    def _read_alone(self) -> Iterator[RecordBlock]:
        number, file = self._first, self._queue.skip()
        counts = self.counts[number : number + 1]
        require_unchanged(file.path, file.size_bytes, file.version)
        blocks = read_part(file.part, keys=self._keys, selection=self._selection, max_record_bytes=self._limit)
        for block in blocks:
            if block.bad and file.form.container != "plain":  # a damaged file, not a bad record
                require_whole(file.path, file.form.container)
            counts["lines"] += block.num_lines
            counts["text_bytes"] += block.num_bytes
            yield block
        self.fingerprints[number] = fingerprint_input(file.path)
        require_unchanged(file.path, file.size_bytes, file.version)

    def _read_joined(self, kind: _Kind) -> Iterator[RecordBlock]:
        lines: Iterator[LineBlock | LongLine]
        if kind == "document":
            lines = self._documents()
        else:
            lines = read_source(_JoinedText(self), block_bytes=DEFAULT_BLOCK_BYTES, max_line_bytes=self._limit)
            if kind == "lines":
                lines = map(as_json, lines)
        return parse_blocks(lines, self._selection, self._limit)

    def _documents(self) -> Iterator[LineBlock | LongLine]:
        """Yield each file as one object of JSON."""
        held: list[bytes] = []
        num_bytes = line = 0

        def held_lines() -> LineBlock:
            return LineBlock.of_lines(held, np.zeros(len(held), np.int64), line - len(held), text_bytes=num_bytes)

        while self._queue.next_kind() == "document":
            content, _ = self.take(line=line, offset=0, is_document=True)
            if len(content) > self._limit or num_bytes + len(content) > DEFAULT_BLOCK_BYTES:
                if held:
                    yield held_lines()
                held, num_bytes = [], 0
            if len(content) > self._limit:
                head = cut_large(content, self._limit)
                yield LongLine(offset=0, line=line, head=head, num_bytes=len(content), limit=self._limit)
            else:
                held.append(as_object(content))
                num_bytes += len(content)
            line += 1
        if held:
            yield held_lines()

    def next_kind(self) -> _Kind | None:
        """Return how the next file is read."""
        return self._queue.next_kind()

    def take(self, *, line: int, offset: int, is_document: bool = False) -> tuple[bytes, int]:
        """Return the content of the next file, whose place in the joined text is given, and its number of lines."""
        number = self._queue.number
        stored, content = self._queue.take()
        self._lines.append(line)
        self._offsets.append(offset)
        num_lines = 1 if is_document else content.count(b"\n") + (not content.endswith(b"\n"))
        self.fingerprints[number] = fingerprint_content(self._files[number].path, stored)
        self._num_lines[number], self._text_bytes[number] = num_lines, len(content)
        return content, num_lines


_Kind = Literal["jsonl", "lines", "document", "alone"]


class _JoinedText:
    """The text of files of one kind, as a source of lines."""

    origin = 0
    own_end = None

    def __init__(self, files: SmallFiles) -> None:
        self._files = files
        self._kind = files.next_kind()
        self._rest = memoryview(b"")
        self._position = self._line = 0

    @property
    def at_end(self) -> bool:
        """Whether there is no further text."""
        return not self._rest and self._files.next_kind() != self._kind

    def read_into(self, view: memoryview[int]) -> int:
        """Fill `view`, with less only at the end; return the number of bytes."""
        done = 0
        while done < len(view):
            if not self._rest:
                if self._files.next_kind() != self._kind:
                    break
                content, num_lines = self._files.take(line=self._line, offset=self._position)
                if not content.endswith(b"\n"):
                    content += b"\n"
                self._line += num_lines
                self._position += len(content)
                self._rest = memoryview(content)
            count = min(len(view) - done, len(self._rest))
            view[done : done + count] = self._rest[:count]
            self._rest = self._rest[count:]
            done += count
        return done


class _Queue:
    """Files in order, each with its content when its turn comes; objects are requested ahead."""

    def __init__(self, files: Sequence[SmallFile]) -> None:
        self._files = files
        self.number = 0
        """Number of the next file."""
        self._kinds = list(map(_kind, files))
        self._stored, self._text = b"", b""
        """The next file and its text, once its kind was asked for, unless it is read alone."""
        self._is_read = False
        self._contents = read_in_order(file for file, kind in zip(files, self._kinds, strict=True) if kind != "alone")

    def next_kind(self) -> _Kind | None:
        """Return how the next file is read; None if there is none."""
        if self.number == len(self._files):
            return None
        kind = self._kinds[self.number]
        if kind == "alone":
            return kind
        if not self._is_read:
            self._stored, self._is_read = next(self._contents), True
            self._text = _decode(self._files[self.number], self._stored)
        return "alone" if not self._text or self._text.startswith(BOM) else kind

    def take(self) -> tuple[bytes, bytes]:
        """Return the next file, whose kind was asked for, and its text; and go on to the one after it."""
        self.skip()
        return self._stored, self._text

    def skip(self) -> SmallFile:
        """Return the next file, and go on to the one after it."""
        file = self._files[self.number]
        self.number += 1
        self._is_read = False
        return file


def _kind(file: SmallFile) -> _Kind:
    format, is_plain = file.form.format, file.form.container == "plain"
    if format in ("jsonl", "lines") and (is_plain or file.size_bytes <= JOINED_BYTES):
        return format
    return format if format == "document" and is_plain else "alone"


def _decode(file: SmallFile, stored: bytes) -> bytes:
    """Return the text of a file; nothing if it is read alone."""
    if file.form.container == "plain":
        return stored
    return decode_content(file.path, stored, file.form.container, most_bytes=DEFAULT_BLOCK_BYTES - 1) or b""
