"""Read byte ranges of a JSONL file as blocks of records: the wanted texts in Arrow arrays, and the bad records.

`record_lines.py` defines the records of a block. `whole_blocks.py` returns the same, faster, or leaves a block that it
cannot vouch for to `record_lines.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dsindex.kernels.loader import count_bytes
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.lines import LineBlock, LongLine, read_lines
from dsindex.text.record_blocks import BadRecord, RecordBlock, describe_long_line
from dsindex.text.record_lines import parse_lines
from dsindex.text.wanted_texts import WantedTexts
from dsindex.text.whole_blocks import Guess, arrow_type, parse_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.forms import TextPart
    from dsindex.text.patterns import TextPattern
    from dsindex.text.selection import Selection

DEFAULT_BLOCK_BYTES = 2 << 20
"""Small enough that gigatoken does not divide a block among threads (text.fast_tokenizers); 1 MiB is slower."""
_IS_BLANK = np.isin(np.arange(256), list(JSON_WHITESPACE + b"\n"))


def read_records(
    part: TextPart,
    *,
    keys: Sequence[str],
    pattern: TextPattern | None = None,
    selection: Selection | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records of a part of JSONL text; the last one may extend beyond its end.

    Lines end at newline bytes. A UTF-8 byte order mark at the start of the file is skipped. A line of JSON whitespace
    is counted but is no record. Bad records are returned, not raised. A few blocks are held in memory, or the longest
    line.

    Args:
        part: A part of a regular file.
        keys: The wanted top-level keys, each once.
        pattern: Selects the one text of a record; its column is then the only key.
        selection: The records to keep and the values to read, whose outputs are then the keys.
        block_bytes: Bytes parsed at a time.
        max_record_bytes: A longer line (without newline) is bad.

    Returns:
        Blocks of any number of records, in file order; the same records for any cut into parts and blocks.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, changes while it is read, or is
            damaged.
        RecordLimitError: At the first record for which the pattern takes too much time or memory.
        ValueError: If the part or the options are invalid.
    """
    if not 0 <= part.begin <= part.end:
        msg = f"expected a range with 0 <= begin <= end, got [{part.begin}, {part.end})"
        raise ValueError(msg)
    if block_bytes < 1 or (max_record_bytes is not None and max_record_bytes < 1):
        msg = f"expected sizes of at least 1 byte, got block_bytes={block_bytes}, max_record_bytes={max_record_bytes}"
        raise ValueError(msg)
    if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
        msg = f"expected a sequence of different keys, at least one, got {keys!r}"
        raise ValueError(msg)
    count_bytes(part.end - part.begin)
    blocks = read_lines(part, block_bytes=block_bytes, max_line_bytes=max_record_bytes)
    names = tuple(keys) if selection is None else selection.names
    wanted = WantedTexts(path=part.input, begin=part.begin, keys=names, pattern=pattern, selection=selection)
    return parse_all(blocks, wanted, max_record_bytes)


def parse_all(blocks: Iterator[LineBlock | LongLine], wanted: WantedTexts, limit: int | None) -> Iterator[RecordBlock]:
    """Parse blocks of lines of JSON as `read_records` does."""
    guess = Guess()
    for block in blocks:
        parsed = _parse(block, wanted, limit, guess)
        if len(parsed.offsets):
            guess.types = {key: arrow_type(column) for key, column in parsed.columns.items()}
        num_bytes = block.num_bytes + 1 if isinstance(block, LongLine) else block.source_bytes
        yield replace(wanted.finish(parsed), num_bytes=num_bytes)
        if parsed.stopped is not None:
            raise parsed.stopped


def _parse(block: LineBlock | LongLine, wanted: WantedTexts, limit: int | None, guess: Guess) -> RecordBlock:
    if isinstance(block, LongLine):
        bad = BadRecord(
            offset=block.offset,
            line=block.line,
            line_bytes=block.head,
            reason=describe_long_line(block.num_bytes, block.limit),
        )
        nothing = np.empty(0, np.int64)
        columns = {key: wanted.build_column([]) for key in wanted.keys}
        return RecordBlock(num_lines=1, num_blank=0, offsets=nothing, lines=nothing, columns=columns, bad=(bad,))
    if limit is None or not (block.line_sizes() > limit).any():
        parsed = parse_blank(block, wanted)
        if parsed is None and wanted.paths is not None:
            parsed = parse_block(block, wanted, guess)
        if parsed is not None:
            return parsed
    return parse_lines(block, wanted, limit)


def parse_blank(block: LineBlock, wanted: WantedTexts) -> RecordBlock | None:
    """Return a block without records if all of its lines are blank, however many; otherwise None."""
    data = np.frombuffer(block.data, np.uint8, block.num_bytes)[int(block.starts[0]) if len(block.starts) else 0 :]
    if not _IS_BLANK[data[:1]].all() or not _IS_BLANK[data].all():
        return None
    nothing = np.empty(0, np.int64)
    columns = {key: wanted.build_column([]) for key in wanted.keys}
    num_lines = len(block.starts)
    return RecordBlock(
        num_lines=num_lines, num_blank=num_lines, offsets=nothing, lines=nothing, columns=columns, bad=()
    )
