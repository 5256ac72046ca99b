"""The values of Arrow columns as JSON has them.

Maps are objects, times are in ISO 8601, durations are seconds, decimals and UUIDs are texts, binary values are read as
UTF-8. A null field of a struct is left out, since Arrow has each field in every row.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import uuid
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAYS_IN_400_YEARS = 146_097
_HAS_FORM = re.compile("struct|map|ext|time|date|duration|decimal|binary|dictionary|run_end|half")
"""Types whose values, or values inside them, are not those of JSON in Python."""


class InvalidText(bytes):
    """A value of a text column that is not UTF-8."""


def is_list(kind: pa.DataType) -> bool:
    """Tell whether the values of a type are lists."""
    return any(name in str(kind).partition("<")[0] for name in ("list", "list_view"))


def json_values(array: pa.Array) -> list[Any]:
    """Return the values of a column; binary values that are not UTF-8 stay bytes.

    >>> json_values(pa.array([{"a": 1, "b": None}, None]))
    [{'a': 1}, None]
    >>> json_values(pa.array([[(1, datetime.date(2026, 1, 31))]], pa.map_(pa.int8(), pa.date32())))
    [{'1': '2026-01-31'}]
    """
    kind, types = array.type, pa.types
    if not _HAS_FORM.search(str(kind)):
        with contextlib.suppress(UnicodeDecodeError):
            return list(array.to_pylist())
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_values(array, kind.extension_name)
    if types.is_dictionary(kind):
        if "view" in str(kind.value_type):  # which dictionary_decode does not take
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_binary()))
        return json_values(array.dictionary_decode())
    if types.is_run_end_encoded(kind):
        return json_values(pc.run_end_decode(array))
    if types.is_struct(kind):
        columns = [json_values(child) for child in array.flatten()]
        names, rows = kind.names, zip(*columns, strict=True) if columns else ((),) * len(array)
        values: Any = ({k: v for k, v in zip(names, row, strict=True) if v is not None} for row in rows)
    elif types.is_map(kind) or is_list(kind):
        if types.is_fixed_size_list(kind) or str(kind).startswith(("list_view", "large_list_view")):
            array = array.cast(pa.large_list(kind.value_type))
        bounds = array.offsets.to_pylist()
        first, last = bounds[0], bounds[-1]
        children = [array.keys, array.items] if types.is_map(kind) else [array.values]
        inner = [json_values(child.slice(first, last - first)) for child in children]
        values = ([items[begin - first : end - first] for items in inner] for begin, end in pairwise(bounds))
        values = (_as_object(*row) for row in values) if types.is_map(kind) else (row for [row] in values)
    else:
        return _plain_values(array)
    return [value if is_valid else None for value, is_valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _extension_values(array: pa.ExtensionArray, name: str) -> list[Any]:
    if name == "arrow.uuid":
        return [None if value is None else str(uuid.UUID(bytes=value)) for value in array.storage.to_pylist()]
    values = json_values(array.storage)
    if name == "arrow.bool8":
        return [None if value is None else bool(value) for value in values]
    return list(map(_parsed, values)) if name == "arrow.json" else values


def _plain_values(array: pa.Array) -> list[Any]:
    kind, types = array.type, pa.types
    if types.is_duration(kind):
        return [
            None if value is None else value / _PER_SECOND[kind.unit] for value in array.cast(pa.int64()).to_pylist()
        ]
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _time_values(array)
    if types.is_float16(kind):
        array = array.cast(pa.float32())
    is_text = "string" in str(kind)
    values = (array.cast(pa.large_binary()) if is_text else array).to_pylist()
    if types.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    return [_decoded(value, InvalidText if is_text else bytes) for value in values]


def _time_values(array: pa.Array) -> list[Any]:
    kind, types = array.type, pa.types
    if str(kind).partition(",")[0].endswith("[ns") or types.is_time64(kind):  # Python has microseconds
        array = array.cast(pa.time64("us") if types.is_time64(kind) else pa.timestamp("us", kind.tz), safe=False)
    try:
        return [None if value is None else _iso_format(value) for value in array.to_pylist()]
    except (OverflowError, ValueError):  # Python has the years 1 to 9999
        return [None if value.value is None else _far_time(value) for value in array]


def _iso_format(value: datetime.date | datetime.time) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _far_time(scalar: pa.Scalar) -> str:
    """Return a date or time of any year, in UTC if Python does not have that year.

    >>> _far_time(pa.scalar(2**62, pa.timestamp("us", "UTC")))
    '148108-07-06T14:00:27.387904Z'
    """
    try:
        return _iso_format(scalar.as_py())
    except (OverflowError, ValueError):
        kind = scalar.type
        per_second = _PER_SECOND["ms" if pa.types.is_date64(kind) else getattr(kind, "unit", "s")]
        days, rest = (scalar.value, 0) if pa.types.is_date32(kind) else divmod(scalar.value, per_second * 86_400)
        cycles, days = divmod(days, _DAYS_IN_400_YEARS)
        time = datetime.datetime(1970, 1, 1) + datetime.timedelta(days, 0, rest * 10**6 // per_second)
        year = time.year + 400 * cycles
        shown = f"{year:0{4 + (year < 0)}}{time.isoformat()[4:]}"
        return shown[:-9] if pa.types.is_date(kind) else shown + ("Z" if kind.tz else "")


def _as_object(keys: list[Any], items: list[Any]) -> dict[str, Any]:
    """Return an entry of a map, whose keys may be of any type."""
    names = (key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key for key in keys)
    return {k if isinstance(k, str) else json.dumps(k): v for k, v in zip(names, items, strict=True)}


def _decoded(value: Any, otherwise: type[bytes]) -> Any:  # noqa: ANN401 - a value of any type
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return otherwise(value)


def _parsed(text: Any) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text
