"""Parse a block of lines one by one; this defines what its records are (see `fields.py` for a single line)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import RecordLimitError
from dsindex.guarded.process import LimitReachedError
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.lines import LineBlock, cut_large
from dsindex.text.record_blocks import BadRecord, RecordBlock, describe_long_line
from dsindex.text.selection import FILTERED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.text.selection import Judgement, Values
    from dsindex.text.wanted_texts import WantedTexts


def parse_lines(block: LineBlock, wanted: WantedTexts, limit: int | None) -> RecordBlock:
    """Parse a block line by line; this defines what its records are."""
    kept: list[int] = []
    values: list[Values] = []
    bad: list[BadRecord] = []
    num_blank = num_filtered = 0
    stopped: RecordLimitError | None = None
    offsets = block.offsets()
    for number, fields in enumerate(_judge(block, wanted, limit)):
        if fields is None:
            num_blank += 1
        elif fields is FILTERED:
            num_filtered += 1
        elif isinstance(fields, RecordLimitError):
            stopped = fields
        elif isinstance(fields, str):
            line, line_bytes = block.first_line + number, cut_large(block.line(number), limit)
            bad.append(BadRecord(offset=int(offsets[number]), line=line, line_bytes=line_bytes, reason=fields))
        else:
            kept.append(number)
            values.append(fields)
    numbers = np.array(kept, np.int64)
    return RecordBlock(
        num_lines=len(block.starts),
        num_blank=num_blank,
        offsets=offsets[numbers],
        lines=numbers + block.first_line,
        columns={
            key: wanted.build_column([record[index] for record in values]) for index, key in enumerate(wanted.keys)
        },
        bad=tuple(bad),
        num_filtered=num_filtered,
        stopped=stopped,
    )


def _judge(block: LineBlock, wanted: WantedTexts, limit: int | None) -> Iterator[Judgement | RecordLimitError | None]:
    """Yield for each line what `WantedTexts.read_line` returns, or None if it is blank; an error comes last."""
    sizes = block.line_sizes().tolist()
    lines = [block.text(number) for number in range(len(sizes))]
    is_large = [limit is not None and size > limit for size in sizes]
    is_blank = [not line.strip(JSON_WHITESPACE) for line in lines]
    texts = wanted.read_lines(
        [line for line, *left_out in zip(lines, is_large, is_blank, strict=True) if not any(left_out)]
    )
    for number, size in enumerate(sizes):
        if is_large[number]:
            yield describe_long_line(size, limit or 0)
        elif is_blank[number]:
            yield None
        else:
            try:
                yield next(texts)
            except LimitReachedError as error:
                place = (wanted.begin, block.first_line + number)
                yield RecordLimitError(wanted.path, int(block.offsets()[number]), error.reason, part=place)
                return
