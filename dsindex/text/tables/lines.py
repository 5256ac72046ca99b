"""Read the rows of a table as lines of JSON, for readers that take a whole record: patterns and conversations.

number, boolean, string, null   themselves; NaN and infinities are null
timestamp                       "2026-01-31T12:00:00.123456", with a Z, and in UTC, if it has a time zone
date, time, decimal             "2026-01-31", "12:00:00.123456", "1.50"
duration                        "1500ms": number and unit
bytes                           base64
struct                          an object, without fields that are null: Arrow has each field in every row
extension arrow.json            the value that the text is
map                             an object, or a list of pairs if its keys are not strings
list of any kind                a list
dictionary, run-end encoded     the value that is meant
"""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsindex.json_text import encode_json
from dsindex.text.records import DEFAULT_BLOCK_BYTES
from dsindex.text.streams import LineBlock
from dsindex.text.tables.batches import read_rows
from dsindex.text.tables.files import errors_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsindex.text.forms import TextPart
    from dsindex.text.tables.batches import Columns

Values: TypeAlias = list[Any]

_FEWEST_ROWS, _MOST_ROWS = 8, 1024
"""Rows converted at a time: objects of Python take several times the memory of Arrow's."""
_NOT_UTF8 = b'"\xff"'
"""Stands for a value with a text that is not UTF-8; readers of JSON then say so of the line."""


def read_table_lines(
    part: TextPart, columns: Columns | None = None, *, block_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[LineBlock]:
    """Read the rows of the row groups or record batches of a part of a table, each as an object of JSON on a line.

    `json_values` says what values become. A row with text that is not UTF-8 becomes a line that is no JSON.
    In the blocks, `record_offsets` are numbers of groups, and lines are counted from 0 at the start of the part.

    Args:
        part: A part of a table.
        columns: The wanted columns; None for all.
        block_bytes: Size of a block, about; at least a few rows.

    Raises:
        InputError: If the file is damaged, lacks a column or changes while it is read.
    """
    first_line, num_bytes = 0, 0
    lines: list[bytes] = []
    groups: list[int] = []
    for group, more in _read_lines(part, columns, block_bytes):
        lines += more
        groups += [group] * len(more)
        num_bytes += sum(map(len, more))
        if num_bytes >= block_bytes:
            yield LineBlock.of_lines(lines, np.array(groups, np.int64), first_line)
            first_line, num_bytes = first_line + len(lines), 0
            lines, groups = [], []
    if lines:
        yield LineBlock.of_lines(lines, np.array(groups, np.int64), first_line)


def _read_lines(part: TextPart, columns: Columns | None, block_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lines, so many at a time that they have about `block_bytes`, with the number of their group."""
    purpose = "a table with values that JSON can store"
    for rows in read_rows(part, columns, batch_bytes=block_bytes, purpose=purpose, is_wanted=lambda _kind: True):
        what = f"{purpose} in row group {rows.group}"
        with errors_named(part.path, what):
            are_valid = {name: _is_utf8(array) for name, array in rows.columns.items()}
        begin = 0
        while begin < rows.batch.num_rows:
            num_rows = min(_MOST_ROWS, rows.batch.num_rows - begin)
            while num_rows > _FEWEST_ROWS and rows.batch.slice(begin, num_rows).nbytes > block_bytes:
                num_rows = max(_FEWEST_ROWS, num_rows // 2)
            with errors_named(part.path, what):
                pieces = {name: array.slice(begin, num_rows) for name, array in rows.columns.items()}
                lines = _convert_rows(pieces, are_valid, num_rows)
            yield rows.group, lines
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


def json_values(array: pa.Array) -> Values:
    """Return the values of an array, which is valid, as objects that `encode_json` takes.

    Raises:
        pa.ArrowException: If the type has no form in JSON.

    >>> json_values(pa.array([{"a": b"x"}, None]))
    [{'a': 'eA=='}, None]
    """
    for kinds, convert in _CONVERTERS:
        if any(is_kind(array.type) for is_kind in kinds):
            return convert(array)
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
    return [
        {name: value for name, value in zip(names, row, strict=True) if value is not None} if valid else None
        for row, valid in zip(rows, is_valid, strict=True)
    ]


def _json(array: pa.ExtensionArray) -> Values:
    """Return the values of a column of JSON, such as datasets writes for its type `Json`; other texts stay texts."""
    return [None if text is None else _parse(text) for text in array.storage.to_pylist()]


def _parse(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except ValueError:
        return text


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


_types = pa.types
_CONVERTERS: list[tuple[tuple[Callable[[pa.DataType], bool], ...], Callable[[pa.Array], Values]]] = [
    ((lambda kind: getattr(kind, "extension_name", "") == "arrow.json",), _json),
    ((lambda kind: isinstance(kind, pa.BaseExtensionType),), lambda array: json_values(array.storage)),
    ((_types.is_dictionary,), lambda array: json_values(array.dictionary.take(array.indices))),
    ((_types.is_run_end_encoded,), lambda array: json_values(pc.run_end_decode(array))),
    ((_types.is_float16,), lambda array: json_values(array.cast(pa.float32()))),
    ((_types.is_map,), _map),
    (
        (
            _types.is_list,
            _types.is_large_list,
            _types.is_fixed_size_list,
            _types.is_list_view,
            _types.is_large_list_view,
        ),
        lambda array: _cut(json_values(array.flatten()), pc.list_value_length(array).to_pylist()),
    ),
    ((_types.is_struct,), _struct),
    ((_types.is_binary, _types.is_large_binary, _types.is_fixed_size_binary, _types.is_binary_view), _bytes),
    ((_types.is_timestamp,), _timestamp),
    ((_types.is_duration,), _duration),
    ((_types.is_temporal, _types.is_decimal), lambda array: array.cast(pa.string()).to_pylist()),
]
