"""Read a part of an input of any form, or a list of whole small ones: as blocks of records, or as lines of JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dsindex.store.reading import fingerprint_content, fingerprint_input, read_in_order
from dsindex.text.blocks import RecordBlock, chain_columns
from dsindex.text.records import DEFAULT_BLOCK_BYTES, parse_blocks
from dsindex.text.streams import read_lines, read_text_file, read_text_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.forms import TextPart
    from dsindex.text.selection import Selection
    from dsindex.text.streams import LineBlock, LongLine

LARGEST_RECORD_BYTES = 2 << 30
"""Limit on a record if none is given, so that a file that unpacks to one endless line does not take all memory."""
JOINED_RECORDS, JOINED_BYTES = 1024, 512 << 10
"""Blocks of small files are joined until they have so many records, or bytes of text, and encoded together."""
FILE_COUNTS = np.dtype([("lines", "<i8"), ("blank", "<i8"), ("text_bytes", "<i8")])
"""The counts of a file."""


def read_part(
    part: TextPart,
    selection: Selection,
    *,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records of a part.

    Lines end at newline bytes. A UTF-8 byte order mark at the start of the file is skipped. A line of JSON whitespace
    is counted but is no record. Rows of tables are records whose keys are the columns; a document of plain text has the
    key `text`. Bad records are returned, not raised.

    Args:
        part: A part of a regular file.
        selection: The records to keep and the values to read.
        block_bytes: Bytes parsed at a time.
        max_record_bytes: A longer line (without newline) is bad.

    Returns:
        Blocks of any number of records, in file order; the same records for any cut into parts and blocks.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged, or does not have the wanted columns.
    """
    limit = LARGEST_RECORD_BYTES if max_record_bytes is None else max_record_bytes
    if part.form.is_table and selection.paths is not None:
        from dsindex.text.tables import read_table_records  # loads more of pyarrow

        rows = read_table_records(part, selection, block_bytes=block_bytes, max_record_bytes=limit)
        return map(selection.finish, rows)
    lines = read_part_lines(part, block_bytes=block_bytes, max_line_bytes=limit)
    return parse_blocks(lines, selection, limit)


def read_part_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Read the records of a part as lines of JSON, as `read_lines` reads them.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged.
    """
    limit = LARGEST_RECORD_BYTES if max_line_bytes is None else max_line_bytes
    if part.form.is_table:
        from dsindex.text.tables import read_table_lines

        return read_table_lines(part, block_bytes=block_bytes)
    read = {"jsonl": read_lines, "lines": read_text_lines, "document": read_text_file}[part.form.format]
    return read(part, block_bytes=block_bytes, max_line_bytes=limit)


class TaskReader:
    """One pass over the records of a part of a file, or of whole small files.

    Args:
        parts: One part, or files as a whole.
        selection: The records to keep and the values to read.
        max_record_bytes: A longer line (without newline) is bad.
    """

    def __init__(self, parts: Sequence[TextPart], selection: Selection, *, max_record_bytes: int | None = None) -> None:
        self._parts = parts
        self._selection = selection
        self._limit = max_record_bytes
        self.counts = np.zeros(len(parts), FILE_COUNTS)
        """The counts of each file, shape [files], once all blocks were read."""
        self.fingerprints = [""] * len(parts)
        """The fingerprint of each file, once it was read."""

    def blocks(self) -> Iterator[RecordBlock]:
        """Yield the records, in order; those of files with the number of each record's file.

        Raises:
            InputError: If a file cannot be read, has changed or is damaged.
        """
        read = self._read()
        return (block for _, block in read) if len(self._parts) == 1 else _joined(read)

    def _read(self) -> Iterator[tuple[int, RecordBlock]]:
        for number, part in enumerate(read_small(self._parts)):
            lines = blank = text_bytes = 0
            for block in read_part(part, self._selection, max_record_bytes=self._limit):
                lines += block.num_lines
                blank += block.num_blank
                text_bytes += block.num_bytes
                yield number, block
            self.counts[number] = lines, blank, text_bytes
            self.fingerprints[number] = fingerprint_part(part)


def read_small(parts: Sequence[TextPart]) -> Iterator[TextPart]:
    """Yield the parts of a task, with their contents if they are several files, which are read ahead.

    Raises:
        InputError: If a file cannot be read, or changed since it was planned.
    """
    if len(parts) == 1:
        yield parts[0]
        return
    for part, content in zip(parts, read_in_order(parts), strict=True):
        yield replace(part, content=content)


def fingerprint_part(part: TextPart) -> str:
    """Return the fingerprint of a part's file."""
    if part.content is None:
        return fingerprint_input(part.path)
    return fingerprint_content(part.path, part.content, version=part.version)


def _joined(blocks: Iterator[tuple[int, RecordBlock]]) -> Iterator[RecordBlock]:
    """Join blocks of small files, given with the number of each one's file, to encode them together."""
    held: list[tuple[int, RecordBlock]] = []
    num_records = num_bytes = 0
    for number, block in blocks:
        held.append((number, block))
        num_records += len(block.offsets)
        num_bytes += block.num_bytes
        if num_records >= JOINED_RECORDS or num_bytes >= JOINED_BYTES:
            yield _join(held)
            held, num_records, num_bytes = [], 0, 0
    if held:
        yield _join(held)


def _join(numbered: Sequence[tuple[int, RecordBlock]]) -> RecordBlock:
    numbers, blocks = zip(*numbered, strict=True)

    def read_line(file: int, line: int) -> bytes:
        own = [block for number, block in numbered if number == file and line in block.lines]
        return own[0].read_line(file, line)

    return RecordBlock(
        num_lines=sum(block.num_lines for block in blocks),
        num_blank=sum(block.num_blank for block in blocks),
        num_filtered=sum(block.num_filtered for block in blocks),
        num_bytes=sum(block.num_bytes for block in blocks),
        offsets=np.concatenate([block.offsets for block in blocks]),
        lines=np.concatenate([block.lines for block in blocks]),
        files=np.repeat(np.array(numbers, np.int64), [len(block.offsets) for block in blocks]),
        columns={key: chain_columns([block.columns[key] for block in blocks]) for key in blocks[0].columns},
        bad=tuple(replace(record, file=number) for number, block in numbered for record in block.bad),
        read_line=read_line,
    )
