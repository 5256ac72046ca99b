"""What a reading of a table or of lines says, in plain types, and tables in every format."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dsindex.text.forms import InputForm, TextPart
from dsindex.text.tables import lines, records

STORED = ("parquet", "arrow-file", "arrow-stream")


@dataclass
class Reading:
    """All records and bad records; `places` are the group and row of each record."""

    texts: list[tuple[list[str], ...]] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    bad: list[tuple[int, int]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    num_lines: int = 0
    block_sizes: list[int] = field(default_factory=list)


def collect(blocks):
    reading = Reading()
    for block in blocks:
        assert block.num_blank == 0
        assert block.num_lines == len(block.offsets) + len(block.bad)
        columns = [texts_of(column) for column in block.columns.values()]
        assert all(len(column) == len(block.offsets) for column in columns)
        reading.texts += list(zip(*columns, strict=True))
        reading.places += list(zip(block.offsets.tolist(), block.lines.tolist(), strict=True))
        reading.bad += [(record.offset, record.line) for record in block.bad]
        reading.reasons += [record.reason for record in block.bad]
        reading.lines += [record.line_bytes for record in block.bad]
        reading.num_lines += block.num_lines
        reading.block_sizes.append(sum(column.texts.nbytes for column in block.columns.values()))
    return reading


def texts_of(column):
    column.texts.validate(full=True)
    assert column.texts.type == pa.large_string()
    assert column.texts.null_count == 0
    texts = column.texts.to_pylist()
    if column.texts_per_record is None:
        return [[text] for text in texts]
    stops = np.cumsum(column.texts_per_record).tolist()
    assert ([0, *stops])[-1] == len(texts)
    return [texts[begin:end] for begin, end in pairwise([0, *stops])]


def write_table(path, table, format, *, group_rows=2, compression=None, **options):
    """Write a table with `group_rows` rows in a row group or record batch; return the path."""
    if format == "parquet":
        pq.write_table(table, path, row_group_size=group_rows, compression=compression or "none", **options)
        return str(path)
    write = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_file if format == "arrow-file" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=write) as writer:
        writer.write_table(table, max_chunksize=group_rows)
    return str(path)


def read_table_records(path, begin, end, *, format, columns, container="plain", expected_size=None, **options):
    form = InputForm(container=container, format=format)
    part = TextPart(path=path, begin=begin, end=end, form=form, expected_size=expected_size)
    return records.read_table_records(part, columns, **options)


def read_table_lines(path, begin, end, *, format, columns=None, **options):
    part = TextPart(path=path, begin=begin, end=end, form=InputForm(format=format))
    return lines.read_table_lines(part, columns, **options)
