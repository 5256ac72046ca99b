"""Read a part of an input of any form: as blocks of records, or as lines of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.json_text import encode_json
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.records import DEFAULT_BLOCK_BYTES, parse_blocks, read_records
from dsindex.text.selection import select_keys
from dsindex.text.streams import BOM, LARGEST_HEAD_BYTES, LineBlock, LongLine, open_source, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.forms import TextPart
    from dsindex.text.record_blocks import RecordBlock
    from dsindex.text.selection import Selection


# Plain text as records: each line, or the whole file, becomes the object of JSON `{"text": …}`.
#
# So plain text is read, filtered and counted by the same rules as JSON lines. Offsets and line numbers are those of the
# text. A line of white space is blank, and a carriage return before a newline does not belong to the text.

TEXT_KEY = "text"
_READ_BYTES = 1 << 20


def read_text_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a part, each as an object of JSON; the arguments and errors are those of `read_lines`."""
    for block in read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes):
        yield as_json(block)


def read_text_file(part: TextPart, *, max_line_bytes: int | None = None) -> Iterator[LineBlock | LongLine]:
    """Yield a whole file as one object of JSON.

    Args:
        part: A whole file.
        max_line_bytes: A larger file is yielded as a LongLine.

    Raises:
        InputError: If the file cannot be read, has changed or is damaged.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    head = bytearray()
    head_bytes = LARGEST_HEAD_BYTES if max_line_bytes is None else min(max_line_bytes, LARGEST_HEAD_BYTES)
    buffer = memoryview(bytearray(_READ_BYTES))
    with open_source(part) as source:
        while not source.at_end:
            size = source.read_into(buffer)
            num_bytes += size
            head += buffer[: min(size, head_bytes - len(head))]
            if max_line_bytes is None or num_bytes <= max_line_bytes:
                pieces.append(bytes(buffer[:size]))
            else:
                pieces.clear()
    if max_line_bytes is not None and num_bytes > max_line_bytes:
        yield LongLine(offset=0, line=0, head=bytes(head), num_bytes=num_bytes, limit=max_line_bytes)
    else:
        content = b"".join(pieces)
        pieces.clear()
        yield LineBlock.of_lines([as_object(content.removeprefix(BOM))], np.zeros(1, np.int64), 0, text_bytes=num_bytes)


def as_json(block: LineBlock | LongLine) -> LineBlock | LongLine:
    """Return lines of plain text as objects of JSON."""
    if isinstance(block, LongLine):
        return block
    lines = []
    for number in range(len(block.starts)):
        line = block.text(number)
        lines.append(as_object(line.removesuffix(b"\r")) if line.strip(JSON_WHITESPACE) else b"")
    return LineBlock.of_lines(lines, block.offsets(), block.first_line, text_bytes=block.num_bytes)


def as_object(text: bytes) -> bytes:
    """Return the object with a text; text that is not UTF-8 stays as it is, and readers of JSON then say so."""
    try:
        return encode_json({TEXT_KEY: text.decode()})
    except UnicodeDecodeError:
        return text.replace(b"\n", b" ")


LARGEST_RECORD_BYTES = 2 << 30
"""Limit on a record if none is given, so that a file that unpacks to one endless line does not take all memory."""


def read_part(
    part: TextPart,
    *,
    keys: Sequence[str],
    selection: Selection | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records of a part, as `read_records` reads those of JSON lines.

    Rows of tables are records whose keys are the columns; a document of plain text has the key `text`.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged, or does not have the wanted columns.
    """
    max_record_bytes = LARGEST_RECORD_BYTES if max_record_bytes is None else max_record_bytes
    if part.form.format == "jsonl":
        return read_records(
            part,
            keys=keys,
            selection=selection,
            block_bytes=block_bytes,
            max_record_bytes=max_record_bytes,
        )
    selection = selection or select_keys(keys)
    if part.form.is_table and selection.paths is not None:
        from dsindex.text.tables import read_table_records  # loads more of pyarrow

        rows = read_table_records(part, selection, block_bytes=block_bytes, max_record_bytes=max_record_bytes)
        return map(selection.finish, rows)
    lines = read_part_lines(part, block_bytes=block_bytes, max_line_bytes=max_record_bytes)
    return parse_blocks(lines, selection, max_record_bytes)


def read_part_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Read the records of a part as lines of JSON, as `read_lines` reads them.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged.
    """
    max_line_bytes = LARGEST_RECORD_BYTES if max_line_bytes is None else max_line_bytes
    if part.form.format == "jsonl":
        return read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    if part.form.format == "lines":
        return read_text_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    if part.form.format == "document":
        return read_text_file(part, max_line_bytes=max_line_bytes)
    from dsindex.text.tables import read_table_lines

    return read_table_lines(part, block_bytes=block_bytes)
