"""Read parts of JSONL text as blocks of records: the wanted values in columns, and the bad records.

`_parse_lines` defines the records of a block. The kernels of `scanning.py` return the same several times as fast, once
they are loaded and if they are certain of every line; a block that they leave is parsed line by line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dsindex.errors import RecordLimitError
from dsindex.kernels.loader import count_bytes, loaded_kernels
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.guarded_process import LimitReachedError
from dsindex.text.record_blocks import BadRecord, RecordBlock, TextColumn, describe_long_line
from dsindex.text.scanning import scan_ids, scan_texts
from dsindex.text.selection import select_keys
from dsindex.text.streams import LineBlock, LongLine, cut_large, read_lines
from dsindex.text.token_ids import TokenColumn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.forms import TextPart
    from dsindex.text.selection import Judgement, Selection, Values

DEFAULT_BLOCK_BYTES = 2 << 20
"""Small enough that gigatoken does not divide a block among threads (text.fast_tokenizers); 1 MiB is slower."""


def read_records(
    part: TextPart,
    *,
    keys: Sequence[str],
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
        selection: The records to keep and the values to read, whose outputs are then the keys.
        block_bytes: Bytes parsed at a time.
        max_record_bytes: A longer line (without newline) is bad.

    Returns:
        Blocks of any number of records, in file order; the same records for any cut into parts and blocks.

    Raises:
        InputError: If the file cannot be read, does not have the expected size, changes while it is read, or is
            damaged.
        RecordLimitError: At the first record for which a jq program takes too much time or memory.
    """
    count_bytes(part.end - part.begin)
    blocks = read_lines(part, block_bytes=block_bytes, max_line_bytes=max_record_bytes)
    return parse_blocks(blocks, selection or select_keys(keys), part, max_record_bytes)


def parse_blocks(
    blocks: Iterator[LineBlock | LongLine], selection: Selection, part: TextPart, limit: int | None
) -> Iterator[RecordBlock]:
    """Parse the lines of a part as `read_records` does."""

    def read_line(number: int) -> bytes:
        return block.head if isinstance(block, LongLine) else block.line(number - block.first_line)

    for block in blocks:
        if isinstance(block, LongLine):
            num_bytes = block.num_bytes + 1
            reason = describe_long_line(block.num_bytes, block.limit)
            bad = BadRecord(offset=block.offset, line=block.line, line_bytes=block.head, reason=reason)
            nothing = np.empty(0, np.int64)
            columns = selection.build_columns([])
            parsed = RecordBlock(num_lines=1, num_blank=0, offsets=nothing, lines=nothing, columns=columns, bad=(bad,))
        else:
            num_bytes = block.source_bytes
            parsed = _scan_block(block, selection, limit) or _parse_lines(block, selection, part, limit)
        yield replace(selection.finish(parsed), num_bytes=num_bytes, read_line=read_line)
        if parsed.stopped is not None:
            raise parsed.stopped


def _scan_block(block: LineBlock, selection: Selection, limit: int | None) -> RecordBlock | None:
    """Parse a block with the kernels; None if they are not loaded, or `_parse_lines` might return something else."""
    paths = selection.paths
    if loaded_kernels() is None or paths is None or (limit is not None and (block.line_sizes() > limit).any()):
        return None
    # Kernels do not check UTF-8. As one large Arrow string that takes a fraction of the time of bytes.decode.
    whole = pa.py_buffer(np.array([0, block.num_bytes], np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, whole, pa.py_buffer(block.data)).validate(full=True)
    except pa.ArrowInvalid:
        return None
    numbers = np.flatnonzero(block.ends > block.starts)  # the others are blank
    if not len(numbers):
        return None
    starts, ends = block.starts[numbers], block.ends[numbers]
    columns: dict[str, TextColumn | TokenColumn]
    if selection.vocabulary_size is None:
        texts = scan_texts(block.data, starts, ends, list(dict.fromkeys(paths.values())))
        if texts is None:
            return None
        columns = {key: TextColumn(texts=texts[path], texts_per_record=None) for key, path in paths.items()}
    else:
        [(key, path)] = paths.items()
        scanned = scan_ids(block.data, starts, ends, path, limit=selection.vocabulary_size)
        if scanned is None:
            return None
        columns = {key: TokenColumn(tokens=scanned[0], lengths=scanned[1], sequences_per_record=None)}
    num_blank = len(block.starts) - len(numbers)
    return RecordBlock(
        num_lines=len(block.starts),
        num_blank=num_blank,
        blank_lines=np.flatnonzero(block.ends <= block.starts) + block.first_line if num_blank else None,
        offsets=block.offsets()[numbers],
        lines=numbers + block.first_line,
        columns=columns,
        bad=(),
    )


def _parse_lines(block: LineBlock, selection: Selection, part: TextPart, limit: int | None) -> RecordBlock:
    """Parse a block line by line; this defines what its records are."""
    offsets, sizes = block.offsets(), block.line_sizes()
    is_large = np.zeros(len(sizes), np.bool_) if limit is None else sizes > limit
    numbers = np.flatnonzero(is_large | (block.ends > block.starts)).tolist()
    lines = {
        number: line
        for number in numbers
        if not is_large[number] and (line := block.text(number)).strip(JSON_WHITESPACE)
    }
    judged = selection.read_lines(list(lines.values()))
    kept: list[int] = []
    values: list[Values] = []
    bad: list[BadRecord] = []
    num_filtered = 0
    stopped: RecordLimitError | None = None
    for number in numbers:
        judgement: Judgement
        if is_large[number]:
            judgement = describe_long_line(int(sizes[number]), limit or 0)
        elif number not in lines:
            continue
        else:
            try:
                judgement = next(judged)
            except LimitReachedError as error:
                place = (part.begin, block.first_line + number)
                stopped = RecordLimitError(part.input, int(offsets[number]), error.reason, part=place)
                break
        if isinstance(judgement, str):
            line_bytes = cut_large(block.line(number), limit)
            bad.append(
                BadRecord(
                    offset=int(offsets[number]),
                    line=block.first_line + number,
                    line_bytes=line_bytes,
                    reason=judgement,
                )
            )
        elif judgement is None:
            num_filtered += 1
        else:
            kept.append(number)
            values.append(judgement)
    records = np.array(kept, np.int64)
    is_blank = ~is_large
    is_blank[list(lines)] = False
    return RecordBlock(
        num_lines=len(sizes),
        num_blank=len(sizes) - len(lines) - int(is_large.sum()),
        blank_lines=np.flatnonzero(is_blank) + block.first_line,
        offsets=offsets[records],
        lines=records + block.first_line,
        columns=selection.build_columns(values),
        bad=tuple(bad),
        num_filtered=num_filtered,
        stopped=stopped,
    )
