"""Plain text as records: each line, or the whole file, becomes the object of JSON `{"text": …}`.

So plain text is read, filtered and counted by the same rules as JSON lines. Offsets and line numbers are those of the
text. A line of white space is blank, and a carriage return before a newline does not belong to the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.json_text import encode_json
from dsindex.text.byte_sources import open_source
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.lines import LARGEST_HEAD_BYTES, LineBlock, LongLine, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.text.forms import TextPart

TEXT_KEY = "text"
_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 20


def read_text_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a part, each as an object of JSON; the arguments and errors are those of `read_lines`."""
    for block in read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes):
        yield block if isinstance(block, LongLine) else _as_json(block)


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
    with open_source(part) as (source, _):
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
        yield _line_block([_object(content.removeprefix(_BOM))], np.zeros(1, np.int64), 0, text_bytes=num_bytes)


def _as_json(block: LineBlock) -> LineBlock:
    lines = []
    for number in range(len(block.starts)):
        line = block.text(number)
        lines.append(_object(line.removesuffix(b"\r")) if line.strip(JSON_WHITESPACE) else b"")
    return _line_block(lines, block.offsets(), block.first_line, text_bytes=block.num_bytes)


def _object(text: bytes) -> bytes:
    """Return the object with a text; text that is not UTF-8 stays as it is, and readers of JSON then say so."""
    try:
        return encode_json({TEXT_KEY: text.decode()})
    except UnicodeDecodeError:
        return text.replace(b"\n", b" ")


def _line_block(lines: list[bytes], offsets: np.ndarray, first_line: int, *, text_bytes: int) -> LineBlock:
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64) - 1
    return LineBlock(
        data=bytearray(b"\n").join([*lines, b""]),
        num_bytes=int(ends[-1]) + 1,
        offset=0,
        first_line=first_line,
        starts=np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]),
        ends=ends,
        record_offsets=offsets,
        text_bytes=text_bytes,
    )
