"""Read the rows of a table as lines of JSON, for readers that take a whole record: patterns and conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from dsindex.json_text import encode_json
from dsindex.text.lines import LineBlock
from dsindex.text.records import DEFAULT_BLOCK_BYTES
from dsindex.text.tables.batches import read_batches, read_schema
from dsindex.text.tables.columns import find_columns, joined_fields, nested_column, require_different_names
from dsindex.text.tables.csv_rows import WrongRow, read_csv_rows
from dsindex.text.tables.files import errors_named, open_table
from dsindex.text.tables.json_values import json_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import BinaryIO

    from dsindex.text.tables.batches import StoredFormat
    from dsindex.text.tables.csv_content import Source
    from dsindex.text.tables.formats import TableFormat

_FEWEST_ROWS, _MOST_ROWS = 8, 1024
"""Rows converted at a time: objects of Python take several times the memory of Arrow's."""
_NOT_UTF8 = b'"\xff"'
"""Stands for a value with a text that is not UTF-8; readers of JSON then say so of the line."""


def read_table_lines(
    path: str,
    begin: int,
    end: int,
    *,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    expected_size: int | None = None,
    source: BinaryIO | None = None,
) -> Iterator[LineBlock]:
    """Read the rows of the row groups or record batches [begin, end) of a table, each as an object of JSON on a line.

    `json_values` says what values become. A row of CSV with a wrong number of cells, and a row with text that is not
    UTF-8, become lines that are no JSON. In the blocks, `record_offsets` are numbers of groups, and lines are counted
    from 0 at the start of the range.

    Args:
        path: A regular file.
        begin: Number of the first group.
        end: Number after the last group.
        format: The file's format.
        columns: Names of the fields that lead to each wanted column, by its name; None for all columns.
        block_bytes: Size of a block, about; at least a few rows.
        expected_size: Size of the file in bytes when the job was planned.
        source: The content of a CSV file that is stored otherwise, at its start. `path` then stands in messages.

    Raises:
        InputError: If the file is damaged, lacks a column or changes while it is read.
        ValueError: If the range is invalid.
    """
    if not 0 <= begin <= end or block_bytes < 1:
        msg = f"expected 0 <= begin <= end and block_bytes >= 1, got [{begin}, {end}) and {block_bytes}"
        raise ValueError(msg)
    rows = _read_rows(path, begin, end, format, columns, block_bytes, expected_size, source)
    return _join_lines(rows, block_bytes)


def _read_rows(
    path: str,
    begin: int,
    end: int,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    block_bytes: int,
    expected_size: int | None,
    source: BinaryIO | None,
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield rows as lines, with the number of their group."""
    if begin == end:
        return
    if source is not None:
        yield from _read_csv(path, source, format, columns, block_bytes)
        return
    with open_table(path, expected_size) as file:
        if format in {"csv", "tsv"}:
            yield from _read_csv(path, file, format, columns, block_bytes)
            return
        stored = cast("StoredFormat", format)
        wanted = None if columns is None else tuple(columns.values())
        schema = read_schema(file, stored)
        if columns is None:
            require_different_names(path, schema)
        else:
            find_columns(path, schema, columns, is_wanted=_is_any)
        for batch in read_batches(file, begin, end, format=stored, fields=wanted, batch_bytes=block_bytes):
            for lines in _convert_batch(path, batch.rows, columns, batch.group, block_bytes):
                yield batch.group, lines


def _read_csv(
    path: str,
    source: Source,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    block_bytes: int,
) -> Iterator[tuple[int, list[bytes]]]:
    def choose(schema: pa.Schema) -> list[str]:
        if columns is None:
            require_different_names(path, schema)
            return cast("list[str]", schema.names)
        find_columns(path, schema, columns)
        return [joined_fields(schema, fields)[0] for fields in columns.values()]

    for rows in read_csv_rows(path, source, format=format, choose=choose):
        if isinstance(rows, WrongRow):
            shown = rows.text.decode("utf-8", "surrogateescape")
            yield 0, [rows.reason.encode() + b": " + encode_json(shown)]
        else:
            for lines in _convert_batch(path, rows.rows, columns, 0, block_bytes):
                yield 0, lines


def _is_any(_kind: pa.DataType) -> bool:
    return True


def _convert_batch(
    path: str, rows: pa.RecordBatch, columns: Mapping[str, tuple[str, ...]] | None, group: int, block_bytes: int
) -> Iterator[list[bytes]]:
    """Yield the rows of a batch as lines, so many at a time that they have about `block_bytes`."""
    what = f"a table with values that JSON can store in row group {group}"
    with errors_named(path, what):
        if columns is None:
            arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
        else:
            places = find_columns(path, rows.schema, columns, is_wanted=_is_any)
            arrays = {name: nested_column(rows, places[name]) for name in columns}
        are_valid = {name: _is_utf8(array) for name, array in arrays.items()}
    begin = 0
    while begin < rows.num_rows:
        num_rows = min(_MOST_ROWS, rows.num_rows - begin)
        while num_rows > _FEWEST_ROWS and rows.slice(begin, num_rows).nbytes > block_bytes:
            num_rows = max(_FEWEST_ROWS, num_rows // 2)
        with errors_named(path, what):
            pieces = {name: array.slice(begin, num_rows) for name, array in arrays.items()}
            lines = _convert_rows(pieces, are_valid, num_rows)
        yield lines
        begin += num_rows


def _convert_rows(arrays: dict[str, pa.Array], are_valid: dict[str, bool], num_rows: int) -> list[bytes]:
    """Return rows as lines."""
    good = {name: json_values(array) for name, array in arrays.items() if are_valid[name]}
    lines = [
        encode_json(dict(zip(good, row, strict=True)))
        for row in (zip(*good.values(), strict=True) if good else [()] * num_rows)
    ]
    for name, array in arrays.items():
        if not are_valid[name]:
            key = encode_json(name)
            for number, line in enumerate(lines):
                cell = array.slice(number, 1)
                value = encode_json(json_values(cell)[0]) if _is_utf8(cell) else _NOT_UTF8
                lines[number] = line[:-1] + (b"," if len(line) > 2 else b"") + key + b":" + value + b"}"
    return lines


def _is_utf8(array: pa.Array) -> bool:
    """Check an array, and tell whether all its texts are UTF-8.

    Raises:
        pa.ArrowInvalid: If it is damaged otherwise.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        return False
    return True


def _join_lines(rows: Iterator[tuple[int, list[bytes]]], block_bytes: int) -> Iterator[LineBlock]:
    """Yield lines as blocks of about `block_bytes`."""
    first_line, num_bytes = 0, 0
    lines: list[bytes] = []
    groups: list[int] = []
    for group, more in rows:
        lines += more
        groups += [group] * len(more)
        num_bytes += sum(map(len, more))
        if num_bytes >= block_bytes:
            yield _line_block(lines, groups, first_line)
            first_line, num_bytes = first_line + len(lines), 0
            lines, groups = [], []
    if lines:
        yield _line_block(lines, groups, first_line)


def _line_block(lines: list[bytes], groups: list[int], first_line: int) -> LineBlock:
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64) - 1
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1])
    data = bytearray(b"\n").join([*lines, b""])
    return LineBlock(
        data=data,
        num_bytes=len(data),
        offset=0,
        first_line=first_line,
        starts=starts,
        ends=ends,
        record_offsets=np.array(groups, np.int64),
    )
