"""Read a part of an input in any format, or many small inputs, as blocks of records or as lines of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dsindex.store.read import Extent, fingerprint, open_in_order, require_unchanged
from dsindex.text.records import DEFAULT_BLOCK_BYTES, parse_block
from dsindex.text.streams import LARGEST_RECORD_BYTES, LineBlock, read_lines, read_text_file, read_text_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.store.local import Readable
    from dsindex.text.blocks import RecordBlock
    from dsindex.text.input_format import TextPart
    from dsindex.text.selection import Selection

Block = TypeVar("Block", bound="RecordBlock | LineBlock")

JOINED_LINES, JOINED_BYTES = 1024, 512 << 10
"""Small files are joined into blocks of about this many lines or bytes of text."""
FILE_COUNTS = np.dtype([("lines", "<i8"), ("blank", "<i8"), ("text_bytes", "<i8")])
"""The counts of one part, as a row of an array."""


class TaskReader:
    """One pass over the parts of a task.

    Args:
        parts: One part of a file, or many whole small files.
    """

    def __init__(self, parts: Sequence[TextPart]) -> None:
        self._parts = parts
        self.counts = np.zeros(len(parts), FILE_COUNTS)
        """The counts of each part, shape [parts]; complete once all records are read."""
        self.fingerprints = [""] * len(parts)
        """The fingerprint of each part's file; empty until the part is read."""

    def records(
        self,
        selection: Selection,
        *,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        max_record_bytes: int = LARGEST_RECORD_BYTES,
    ) -> Iterator[RecordBlock]:
        """Yield the records in order, each with the number of its part.

        Lines end at newline bytes. A UTF-8 byte order mark at the start of a file is skipped. A line of JSON whitespace
        is counted, but is not a record. Rows of tables are records whose keys are the columns; a document of plain text
        has the key `text`. Bad records are returned, not raised.

        Args:
            selection: The records to keep and the values to read.
            block_bytes: Bytes parsed at a time.
            max_record_bytes: A longer line (without newline) is bad.

        Returns:
            Blocks of records; the records do not depend on how the input is cut into parts and blocks.

        Raises:
            InputError: If a file cannot be read, has changed or is damaged, or does not have the wanted columns.
        """
        selections = [selection.of_input(part.path) for part in self._parts]
        joins = len(selections) > 1 and all(part_selection is selection for part_selection in selections)

        def read(number: int, part: TextPart, file: Readable) -> Iterator[LineBlock] | Iterator[RecordBlock]:
            if not part.form.is_table or selections[number].paths is None:
                return _read_lines(part, file, block_bytes, max_record_bytes)
            from dsindex.text.tables import read_table_records  # imported late: it loads more of pyarrow

            return read_table_records(
                number, part, file, selections[number], block_bytes=block_bytes, max_record_bytes=max_record_bytes
            )

        for block in _join(self._read(read), joins=joins):
            if isinstance(block, LineBlock):
                records = parse_block(block, selections[int(block.parts[0])], max_record_bytes)
            else:
                records = block
            records = selection.join_texts(records)
            np.add.at(self.counts["blank"], records.blank_parts, 1)
            yield records

    def lines(self, *, block_bytes: int, max_line_bytes: int) -> Iterator[tuple[int, LineBlock]]:
        """Yield the records as lines of JSON, with the number of each block's part; raises like `records`."""
        return self._read(lambda _, part, file: _read_lines(part, file, block_bytes, max_line_bytes))

    def _read(self, read: Callable[[int, TextPart, Readable], Iterator[Block]]) -> Iterator[tuple[int, Block]]:
        is_alone = len(self._parts) == 1  # perhaps a range of a file: `read` announces the bytes itself
        extents = (Extent(file=part, begin=0, end=0 if is_alone else part.size_bytes) for part in self._parts)
        for number, (part, file) in enumerate(zip(self._parts, open_in_order(extents), strict=True)):
            counts = self.counts[number]
            with require_unchanged(file, part):
                for block in read(number, part, file):
                    counts["lines"] += block.num_lines
                    counts["text_bytes"] += block.text_bytes
                    yield number, block
                self.fingerprints[number] = fingerprint(file)


def _join(numbered_blocks: Iterator[tuple[int, Block]], *, joins: bool) -> Iterator[Block | LineBlock]:
    """Join the lines of small files, so that they are parsed and encoded together."""
    pending: list[tuple[int, LineBlock]] = []
    num_lines = num_bytes = 0
    for number, block in numbered_blocks:
        if isinstance(block, LineBlock):
            pending.append((number, block))
            num_lines, num_bytes = num_lines + block.num_lines, num_bytes + block.text_bytes
            if joins and num_lines < JOINED_LINES and num_bytes < JOINED_BYTES:
                continue
        if pending:
            yield LineBlock.join(pending)
            pending, num_lines, num_bytes = [], 0, 0
        if not isinstance(block, LineBlock):
            yield block
    if pending:
        yield LineBlock.join(pending)


def _read_lines(part: TextPart, file: Readable, block_bytes: int, limit: int) -> Iterator[LineBlock]:
    if part.form.is_table:
        from dsindex.text.tables import read_table_lines

        return read_table_lines(part, file, block_bytes=block_bytes)
    read = {"jsonl": read_lines, "lines": read_text_lines, "document": read_text_file}[part.form.format]
    return read(part, file, block_bytes=block_bytes, max_line_bytes=limit)
