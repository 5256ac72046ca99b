"""What a file's records are: by the reference, the slow and obvious way, and as blocks say it."""

from __future__ import annotations

import functools
import json
import operator
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dsindex.text.fields import MAX_NESTING
from dsindex.text.records import parse_block
from dsindex.text.selection import open_selection
from dsindex.text.streams import LineBlock
from tests.support.datasets import part_of, read_part

BOM = b"\xef\xbb\xbf"

KEYS = ("text", "title")

SELECTION = open_selection(KEYS)


@dataclass
class Reading:
    """Everything that a reading of a file or range says, in plain types."""

    num_lines: int = 0
    num_blank: int = 0
    records: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    bad: list[tuple[int, int, bytes]] = field(default_factory=list)

    def add(self, block, first_line=0):
        assert block.num_lines == len(block.blank_parts) + len(block.offsets) + len(block.bad_records)
        columns = [map(list, column.items_by_record()) for column in block.columns.values()]
        values = zip(*columns, strict=True)
        lines = (block.lines + first_line).tolist()
        self.num_lines += block.num_lines
        self.num_blank += len(block.blank_parts)
        self.records += zip(block.offsets.tolist(), lines, map(list, values), strict=True)
        self.bad += [(bad.offset, bad.line + first_line, bad.line_bytes) for bad in block.bad_records]
        return self


def reference(content, keys=KEYS, limit=1 << 30):
    """The slow and obvious way: json.loads of each line; a key that begins with a dot leads through objects."""
    reading = Reading()
    offset = 0
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else []):
        body = line.removeprefix(BOM) if number == 0 else line
        values = reference_values(body, keys)
        reading.num_lines += 1
        if len(line) > limit:
            reading.bad.append((offset, number, line[:limit]))
        elif body.strip(b" \t\r") == b"":
            reading.num_blank += 1
        elif values is None:
            reading.bad.append((offset, number, line))
        else:
            reading.records.append((offset, number, values))
        offset += len(line) + 1
    return reading


def reference_values(line, keys):
    usual_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 * MAX_NESTING)
    try:
        record = json.loads(line.decode("utf-8", "strict"), parse_int=lambda _: 0)  # any number of digits
        values = []
        for key in keys:
            value = functools.reduce(operator.getitem, key.lstrip(".").split("."), record)
            values.append(value if isinstance(value, list) else [value])
            "".join(values[-1]).encode("utf-8")
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        sys.setrecursionlimit(usual_limit)
    return values if isinstance(record, dict) and nesting(record) <= MAX_NESTING else None


def nesting(value):
    """How deep objects and lists lie in each other, without recursion."""
    depth, layer = 0, [value]
    while layer := [inner for inner in layer if isinstance(inner, dict | list)]:
        depth += 1
        layer = [item for inner in layer for item in (inner.values() if isinstance(inner, dict) else inner)]
    return depth


def read_ranges(path, cuts, **options):
    reading = Reading()
    for begin, end in pairwise(cuts):
        first_line = reading.num_lines
        for block in read_part(part_of(path, begin=begin, end=end), SELECTION, **options):
            reading.add(block, first_line)
    return reading


def parse(content, selection=SELECTION):
    """The records of lines, read as one block."""
    block = LineBlock.of_text(bytearray(content), offset=0, first_line=0)
    return selection.join_texts(parse_block(block, selection, 1 << 30))
