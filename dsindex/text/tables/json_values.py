"""Values of Arrow's types as JSON stores them.

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
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable

Values: TypeAlias = list[Any]


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
