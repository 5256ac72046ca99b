"""Read the rows of a table as lines of JSON, for readers that take a whole record: patterns and conversations.

number, boolean, string, null   themselves; NaN and infinities are null
timestamp                       "2026-01-31T12:00:00.123456", with a Z, and in UTC, if it has a time zone
date, time, decimal             "2026-01-31", "12:00:00.123456", "1.50"
duration                        "1500ms": number and unit
bytes                           base64
struct                          an object; fields that are null are kept
map                             an object, or a list of pairs if its keys are not strings
list of any kind                a list
dictionary, run-end encoded     the value that is meant
"""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsindex.json_text import encode_json
from dsindex.text.records import DEFAULT_BLOCK_BYTES
from dsindex.text.streams import LineBlock
from dsindex.text.tables.batches import read_batches, read_schema
from dsindex.text.tables.columns import find_columns, joined_fields, nested_column, require_different_names
from dsindex.text.tables.csv_rows import WrongRow, read_csv_rows
from dsindex.text.tables.files import errors_named, open_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import BinaryIO

    from dsindex.text.tables.csv_rows import Source
    from dsindex.text.tables.formats import TableFormat

Values: TypeAlias = list[Any]

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
        raise ValueError(f"expected 0 <= begin <= end and block_bytes >= 1, got [{begin}, {end}) and {block_bytes}")
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
        wanted = None if columns is None else tuple(columns.values())
        schema = read_schema(file, format)
        if columns is None:
            require_different_names(path, schema)
        else:
            find_columns(path, schema, columns, is_wanted=_is_any)
        for group, rows in read_batches(file, begin, end, format=format, fields=wanted, batch_bytes=block_bytes):
            for lines in _convert_batch(path, rows, columns, group, block_bytes):
                yield group, lines


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


def json_values(array: pa.Array) -> Values:
    """Return the values of an array, which is valid, as objects that `encode_json` takes.

    Raises:
        pa.ArrowException: If the type has no form in JSON.

    >>> json_values(pa.array([{"a": b"x"}, None]))
    [{'a': 'eA=='}, None]
    """
    kind = array.type
    for is_kind, convert in _CONVERTERS:
        if is_kind(kind):
            return convert(array)
    values: Values = array.to_pylist()
    return values


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    is_string = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    return bool(is_string or is_number or types.is_boolean(kind) or types.is_null(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    is_sized = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return bool(is_sized or types.is_binary_view(kind))


def _is_any_list(kind: pa.DataType) -> bool:
    types = pa.types
    is_view = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or is_view)


def _is_extension(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType)


def _plain(array: pa.Array) -> Values:
    values: Values = array.to_pylist()
    return values


def _bytes(array: pa.Array) -> Values:
    return [None if value is None else base64.b64encode(value).decode("ascii") for value in array.to_pylist()]


def _struct(array: pa.StructArray) -> Values:
    kind = array.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    columns = [json_values(field) for field in array.flatten()]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    is_valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, is_valid, strict=True)]


def _list(array: pa.Array) -> Values:
    lengths = pc.list_value_length(array).to_pylist()
    items = json_values(array.flatten())
    return _cut(items, lengths)


def _map(array: pa.MapArray) -> Values:
    lengths = pc.list_value_length(array.cast(pa.list_(array.type.field(0).type))).to_pylist()
    begin = array.offsets[0].as_py() if len(array) else 0
    total = sum(length or 0 for length in lengths)
    if array.null_count:  # a null may have items
        array = pa.array(array.to_pylist(), array.type)
        begin = 0
    keys = json_values(array.keys.slice(begin, total))
    items = json_values(array.items.slice(begin, total))
    pairs = _cut(list(zip(keys, items, strict=True)), lengths)
    if pa.types.is_string(array.type.key_type) or pa.types.is_large_string(array.type.key_type):
        return [None if row is None else dict(row) for row in pairs]
    return [None if row is None else [list(pair) for pair in row] for row in pairs]


def _cut(items: Values, lengths: list[int | None]) -> Values:
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + (length or 0))
    return [
        None if length is None else items[begin:end]
        for length, (begin, end) in zip(lengths, pairwise(ends), strict=True)
    ]


def _timestamp(array: pa.TimestampArray) -> Values:
    plain = array.view(pa.timestamp(array.type.unit))  # what is stored is in UTC
    end = "" if array.type.tz is None else "Z"
    return [None if text is None else text.replace(" ", "T", 1) + end for text in plain.cast(pa.string()).to_pylist()]


def _duration(array: pa.DurationArray) -> Values:
    unit = array.type.unit
    return [None if value is None else f"{value}{unit}" for value in array.view(pa.int64()).to_pylist()]


def _as_text(array: pa.Array) -> Values:
    values: Values = array.cast(pa.string()).to_pylist()
    return values


_CONVERTERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Values]]] = [
    (_is_plain, _plain),
    (_is_extension, lambda array: json_values(array.storage)),
    (pa.types.is_dictionary, lambda array: json_values(array.dictionary.take(array.indices))),
    (pa.types.is_run_end_encoded, lambda array: json_values(pc.run_end_decode(array))),
    (pa.types.is_float16, lambda array: json_values(array.cast(pa.float32()))),
    (pa.types.is_map, _map),
    (_is_any_list, _list),
    (pa.types.is_struct, _struct),
    (_is_bytes, _bytes),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_duration, _duration),
    (lambda kind: pa.types.is_temporal(kind) or pa.types.is_decimal(kind), _as_text),
]
