"""Read Parquet and Arrow IPC with pyarrow: the wanted columns as blocks of records, or whole rows as lines of JSON.

A wanted column holds strings, lists of strings, or, for token ids, lists of integers; dictionaries are decoded. Binary
values are read as UTF-8.

A part is a range of row groups of Parquet, of record batches of an Arrow file, or the whole of an Arrow stream. Offsets
are numbers of row groups or record batches, lines are numbers of rows from 0 at the start of the part.

In JSON, maps are objects, times are in ISO 8601, durations are seconds, decimals and UUIDs are texts, binary values are
read as UTF-8. A null field of a struct is left out, since Arrow has each field in every row.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import uuid
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from dsindex.errors import InputError
from dsindex.store.errors import read_error
from dsindex.store.read import open_input
from dsindex.text.blocks import RecordBlock, describe_long_line, keep_records, mark_bad
from dsindex.text.conditions import RANKS, read_decimal
from dsindex.text.streams import LineBlock

if TYPE_CHECKING:
    import datetime
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from dsindex.store.local import Readable
    from dsindex.text.conditions import Condition
    from dsindex.text.fields import Path
    from dsindex.text.input_format import Columns, Format, TextPart
    from dsindex.text.selection import Selection

_MAX_ROWS = 1024
"""Limit on the rows decoded at a time: a row from a dictionary may be much larger than its share of the row group."""
_IS_SHARED = re.compile("dictionary|view|run_end")
"""Matches types whose rows may share bytes, so that they take more memory than their share of the batch."""
_SHOWN_COLUMNS = 12
_SHOWN_CHARACTERS = 200
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_HAS_FORM = re.compile("struct|map|ext|time|date|duration|decimal|binary|dictionary|run_end|half")
"""Matches types whose Python values must be converted for JSON, and types that contain them."""


def measure_table(table: TextPart, columns: Columns | None) -> list[int]:
    """Check that a table has the wanted columns, and estimate the bytes of each row group or record batch.

    Args:
        table: The whole table as a part.
        columns: The wanted columns; None for all.

    Raises:
        InputError: If the file is damaged or encrypted, or a column is missing or of another type.
    """
    with open_input(table) as file, table_errors(table.path, table.form.format):
        return _open_table(table.path, file, table.form.format, columns)[0]


def read_table_records(
    number: int, part: TextPart, file: Readable, selection: Selection, *, block_bytes: int, max_record_bytes: int
) -> Iterator[RecordBlock]:
    """Read the rows of a part as records, given the part's number; the selection must have paths.

    A row is bad if a value is wrong for its key, or if its texts together are larger than the limit. The `line_bytes`
    of a bad row are the wanted columns as a JSON object.

    Raises:
        InputError: If the file is damaged, lacks a column or changes while it is read.
    """
    for group, first_row, rows, values in _read_rows(part, file, selection.paths, block_bytes, selection.where_paths):
        row_values = list(zip(*values.values(), strict=True))

        def read_line(_part: int, line: int, row_values: Sequence[Any] = row_values, first: int = first_row) -> bytes:
            row = dict(zip(selection.names, row_values[line - first], strict=True))
            return encode_row(row, keeps_bytes=True)[:max_record_bytes]

        reasons: dict[int, str] = {}
        if not all(set(map(type, column)) == {str} for column in values.values()):
            faults = (filter(None, map(selection.find_fault, selection.keys, row)) for row in row_values)
            reasons = {index: fault for index, row_faults in enumerate(faults) if (fault := next(row_faults, None))}
            for column in values.values():
                column[:] = ["" if row in reasons else value for row, value in enumerate(column)]
        columns = selection.build_columns(values.values())
        sizes = sum((column.sizes() for column in columns.values()), np.zeros(len(row_values), np.int64))
        for row in np.flatnonzero(sizes > max_record_bytes).tolist():
            reasons.setdefault(row, describe_long_line(int(sizes[row]), max_record_bytes))
        is_kept = np.ones(len(row_values), np.bool_)
        if selection.condition is not None:
            is_kept, failures = _compare_rows(selection, selection.condition, rows)
            reasons = {row: reason for row, reason in reasons.items() if is_kept[row]} | failures
        block = RecordBlock(
            num_lines=len(row_values),
            blank_parts=np.empty(0, np.int64),
            offsets=np.full(len(row_values), group, np.int64),
            lines=np.arange(len(row_values)) + first_row,
            parts=np.full(len(row_values), number),
            columns=columns,
            bad_records=(),
            text_bytes=int(sizes.sum()),
            read_line=read_line,
        )
        block = mark_bad(block, reasons) if reasons else block
        yield block if is_kept.all() else keep_records(block, is_kept[block.lines - first_row])


def _compare_rows(
    selection: Selection, condition: Condition, rows: pa.StructArray
) -> tuple[NDArray[np.bool_], dict[int, str]]:
    """Tell which rows to keep, shape [rows], and why some kept rows are bad; jq judges rows with odd values."""
    values = selection.folder_values
    columns = {path: _compared_values(rows, path, values.get(path[0], UNSET)) for path in condition.paths}
    is_kept, failures = condition.holds(columns), dict[int, str]()
    odd_numbers = {row for column in columns.values() for row, value in enumerate(column) if type(value) not in RANKS}
    if odd_numbers:
        odd_rows = zip(*map(json_values, rows.take(pa.array(odd_numbers)).flatten()), strict=True)
        lines = [encode_row(dict(zip(rows.type.names, row, strict=True))) for row in odd_rows]
        for row, judgement in zip(odd_numbers, selection.read_lines(lines), strict=True):
            is_kept[row] = judgement is not None
            failures |= {row: judgement} if isinstance(judgement, str) else {}
    return is_kept, failures


def _compared_values(rows: pa.StructArray, path: Path, default: object) -> list[Any]:
    """Return the values at a path, for a condition; a value is odd if its type is not in RANKS."""
    column = rows
    for name in path:
        if not pa.types.is_struct(column.type):
            return [...] * len(rows)
        if not column.type.get_all_field_indices(name):
            return [default] * len(rows)
        column = pc.struct_field(column, name)
    values = json_values(column)
    return [
        read_decimal(repr(value)) if isinstance(value, float) and math.isfinite(value) else value for value in values
    ]


def read_table_lines(part: TextPart, file: Readable, *, block_bytes: int) -> Iterator[LineBlock]:
    """Read the rows of a part as lines, each a JSON object with all columns.

    Raises:
        InputError: If the file is damaged, has two columns of one name, or changes while it is read.
    """
    for group, first_row, _, columns in _read_rows(part, file, None, block_bytes):
        rows = zip(*columns.values(), strict=True)
        lines = [encode_row(dict(zip(columns, row, strict=True))) for row in rows]
        yield LineBlock.of_lines(lines, np.full(len(lines), group, np.int64), first_row)


def encode_row(row: dict[str, Any], *, keeps_bytes: bool = False) -> bytes:
    r"""Return a row as JSON. Text that is not UTF-8 stays unchanged, which makes the row a bad record.

    Other bytes, such as an image, become their number, unless `keeps_bytes` is set.

    >>> encode_row({"a": [1.5, None], "image": b"\xff\xd8"})
    b'{"a":[1.5,null],"image":2}'
    """

    def decode_bytes(value: bytes) -> str | int:
        is_kept = keeps_bytes or isinstance(value, InvalidText)
        return value.decode("utf-8", "surrogateescape") if is_kept else len(value)

    text = json.dumps(row, separators=(",", ":"), ensure_ascii=False, default=decode_bytes)
    return text.encode("utf-8", "surrogateescape")


def _read_rows(
    part: TextPart, file: Readable, columns: Columns | None, block_bytes: int, where_paths: Collection[Path] = ()
) -> Iterator[tuple[int, int, pa.StructArray, dict[str, list[Any]]]]:
    """Yield group, first row, rows and values by column, for about `block_bytes` of rows; `columns` None means all."""
    path, format, row = part.path, part.form.format, 0
    with table_errors(path, format):
        _, read = _open_table(path, file, format, columns, where_paths)
        for group, batch in read(part.begin, part.end, block_bytes):
            structs = batch.to_struct_array()
            paths_by_column = {name: (name,) for name in batch.schema.names} if columns is None else columns
            # struct_field makes a nested column null wherever the struct around it is null.
            arrays = {name: pc.struct_field(structs, list(fields)) for name, fields in paths_by_column.items()}
            for array in [structs] if where_paths else arrays.values():
                _validate(array)
            size = sum(array.nbytes for array in arrays.values())
            step = max(1, batch.num_rows * block_bytes // max(1, size))
            if size < batch.num_rows or any(_IS_SHARED.search(str(array.type)) for array in arrays.values()):
                step = min(step, _MAX_ROWS)
            for begin in range(0, batch.num_rows, step):
                values = {name: json_values(array.slice(begin, step)) for name, array in arrays.items()}
                yield group, row, structs.slice(begin, step), values
                row += min(step, batch.num_rows - begin)


def _validate(array: pa.Array) -> None:
    """Check the offsets and indices of a column; text that is not UTF-8 passes, since it is a fault of one record."""
    kind, types = array.type, pa.types
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        array.validate()
        if "UTF8" not in str(error):
            raise
        # Arrow stops at the first fault, and checks what is inside a value first.
        children = [array.field(number) for number in range(kind.num_fields)] if types.is_struct(kind) else []
        if types.is_list(kind) or types.is_large_list(kind):
            children = [array.values]
            offsets, values = array.offsets.cast(pa.int64()), pa.nulls(len(array.values))
            pa.LargeListArray.from_arrays(offsets, values).validate(full=True)
        elif types.is_dictionary(kind):
            children = [array.dictionary]
            pa.DictionaryArray.from_arrays(array.indices, pa.nulls(len(array.dictionary)))
        elif types.is_nested(kind) and not children:
            raise
        for child in children:
            _validate(child)


Reader: TypeAlias = "Callable[[int, int, int], Iterable[tuple[int, pa.RecordBatch]]]"
"""Takes begin, end and a size; yields the groups [begin, end) in batches of about this size, with group numbers."""


def _open_table(
    path: str, file: Readable, format: Format, columns: Columns | None, where_paths: Collection[Path] = ()
) -> tuple[list[int], Reader]:
    """Open a table and check its columns; return the estimated bytes of each group, and the table's Reader.

    A group is a row group or a record batch; an Arrow stream counts as one group.
    """
    source = pa.PythonFile(file, mode="r")
    if format == "arrow-stream":
        stream = pa.ipc.open_stream(source)
        _check_columns(path, stream.schema, columns)
        return [file.size_bytes], lambda *_: enumerate(stream)
    if format == "arrow-file":
        batches = pa.ipc.open_file(source)
        num_batches = batches.num_record_batches
        if num_batches:
            _check_columns(path, batches.schema, columns)
        return [file.size_bytes // max(1, num_batches)] * num_batches, lambda begin, end, _: (
            (number, batches.get_batch(number)) for number in range(begin, end)
        )
    import pyarrow.parquet as pq

    parquet_file = pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=True)
    if not parquet_file.metadata.num_rows:  # an empty column may have any type
        return [0] * parquet_file.metadata.num_row_groups, lambda *_: ()
    _check_columns(path, parquet_file.schema_arrow, columns)
    names = None if columns is None else [*map(".".join, columns.values()), *(first for first, *_ in where_paths)]
    sizes = _measure_groups(parquet_file, names)

    def read(begin: int, end: int, num_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        for group in range(begin, end):
            num_rows = num_bytes * parquet_file.metadata.row_group(group).num_rows // max(1, sizes[group])
            num_rows = max(1, min(_MAX_ROWS, num_rows))
            for batch in parquet_file.iter_batches(num_rows, row_groups=[group], columns=names, use_threads=False):
                yield group, batch

    return sizes, read


def _measure_groups(parquet_file: pq.ParquetFile, names: Sequence[str] | None) -> list[int]:
    """Return the uncompressed bytes of the wanted columns (None for all) in each row group."""
    paths = [parquet_file.schema.column(number).path for number in range(len(parquet_file.schema))]
    leaves = [
        number
        for number, path in enumerate(paths)
        if names is None or any(f"{path}.".startswith(f"{name}.") for name in names)
    ]
    sizes = []
    for group in range(parquet_file.metadata.num_row_groups):
        if leaves:  # an encrypted column raises an error here and reads nothing; its metadata would kill the process
            next(parquet_file.reader.iter_batches(0, [group], column_indices=leaves, use_threads=False), None)
        row_group = parquet_file.metadata.row_group(group)
        column_bytes = [row_group.column(leaf).total_uncompressed_size for leaf in leaves]
        if min(row_group.num_rows, *column_bytes, 0) < 0:
            raise ValueError(f"a negative size in row group {group}")
        sizes.append(sum(column_bytes))
    return sizes


# Find the wanted columns in a table's schema, and check their types.


def _holds_texts_or_ids(kind: pa.DataType) -> bool:
    """Whether a column holds strings, lists of strings, lists of ids, or lists of lists of ids."""
    value_type = kind.value_type if is_list(kind) else kind
    value_type = value_type.value_type if pa.types.is_dictionary(value_type) else value_type
    if any(name in str(value_type) for name in ("string", "binary", "null")) and not pa.types.is_nested(value_type):
        return True
    return is_list(kind) and pa.types.is_integer(value_type.value_type if is_list(value_type) else value_type)


def _check_columns(path: str, schema: pa.Schema, columns: Columns | None) -> None:
    """Check that a table has the wanted columns.

    Raises:
        InputError: If a wanted column is missing, exists twice, or has another type; if all columns are wanted, also if
            two have the same name or one has no form in JSON.
    """
    table_type = pa.struct(list(schema))
    if columns is None:
        _require_json(path, table_type)
    for name, fields in (columns or {}).items():
        kind, fault = table_type, ""
        for field in fields:
            places = kind.get_all_field_indices(field) if pa.types.is_struct(kind) else []
            if len(places) != 1:
                fault = f"there are {len(places)} columns of that name" if places else "there is no such column"
                break
            kind = kind.field(places[0]).type
        if fault or not _holds_texts_or_ids(kind):
            column_list = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:_SHOWN_COLUMNS])
            more = f" and {len(schema) - _SHOWN_COLUMNS} more" if len(schema) > _SHOWN_COLUMNS else ""
            problem = fault or f"its type is {kind}, not strings or lists of strings"
            raise InputError(
                f"{path}: column {name!r}: {problem}",
                hint=f"choose from the columns {column_list[: 4 * _SHOWN_CHARACTERS]}{more}",
            )


def _require_json(path: str, kind: pa.DataType) -> None:
    """Refuse unions, and columns or struct fields of the same name, since an object would keep only the last one."""
    fields = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    [(name, count)] = Counter(field.name for field in fields).most_common(1) or [("", 0)]
    if count > 1 and pa.types.is_struct(kind):
        raise InputError(f"{path}: {count} columns have the name {name!r}", hint="rename them")
    for field in fields:
        if pa.types.is_union(field.type):
            raise InputError(f"{path}: column {field.name!r}: its type is {field.type}, which has no form in JSON")
        _require_json(path, field.type)


@contextlib.contextmanager
def table_errors(path: str, format: Format) -> Iterator[None]:
    """Turn errors of pyarrow in the block into errors that name the file.

    Raises:
        InputError: For every error of pyarrow, of the operating system and of decoding.
    """
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError, KeyError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk failed, the table may be intact
            raise read_error(path, error) from error
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)[:_SHOWN_CHARACTERS]
        hint = "it may be cut off or damaged: fetch or write it again"
        if "crypt" in message:
            hint = "decrypt it into a new file"
        elif isinstance(error, NotImplementedError) or "odec" in message:
            hint = f"pyarrow {pa.__version__} cannot read that: write the file again without it"
        raise InputError(f"{path}: cannot be read as {format} ({message})", hint=hint) from error


# Convert the values of columns to JSON values.


class InvalidText(bytes):
    """A value of a text column that is not UTF-8."""


def is_list(kind: pa.DataType) -> bool:
    """Whether the values of a type are lists."""
    return "list" in str(kind).partition("<")[0]


def json_values(array: pa.Array) -> list[Any]:
    """Return the values of a column as JSON values; binary values that are not UTF-8 stay bytes.

    >>> json_values(pa.array([{"a": 1, "b": None}, None]))
    [{'a': 1}, None]
    >>> import datetime
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
        if "view" in str(kind.value_type):  # dictionary_decode does not support views
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(pa.large_binary()))
        return json_values(array.dictionary_decode()) if len(array.dictionary) else [None] * len(array)
    if types.is_run_end_encoded(kind):
        return json_values(pc.run_end_decode(array))
    if types.is_struct(kind):
        columns = [json_values(child) for child in array.flatten()]
        names, rows = kind.names, zip(*columns, strict=True) if columns else ((),) * len(array)
        values: Any = ({key: cell for key, cell in zip(names, row, strict=True) if cell is not None} for row in rows)
    elif types.is_map(kind) or is_list(kind):
        if types.is_fixed_size_list(kind) or str(kind).startswith(("list_view", "large_list_view")):
            array = array.cast(pa.large_list(kind.value_type))
        bounds = array.offsets.to_pylist()
        first, last = bounds[0], bounds[-1]
        children = [array.keys, array.items] if types.is_map(kind) else [array.values]
        child_values = [json_values(child.slice(first, last - first)) for child in children]
        values = ([items[begin - first : end - first] for items in child_values] for begin, end in pairwise(bounds))
        values = (_make_object(*row) for row in values) if types.is_map(kind) else (row for [row] in values)
    else:
        return _plain_values(array)
    return [value if is_valid else None for value, is_valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _extension_values(array: pa.ExtensionArray, name: str) -> list[Any]:
    if name == "arrow.uuid":
        return [None if value is None else str(uuid.UUID(bytes=value)) for value in array.storage.to_pylist()]
    values = json_values(array.storage)
    if name == "arrow.bool8":
        return [None if value is None else bool(value) for value in values]
    return list(map(_parse_json, values)) if name == "arrow.json" else values


def _plain_values(array: pa.Array) -> list[Any]:
    kind, types = array.type, pa.types
    if types.is_duration(kind):
        values = array.cast(pa.int64()).to_pylist()
        return [None if value is None else value / _PER_SECOND[kind.unit] for value in values]
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _time_values(array)
    if types.is_float16(kind):
        array = array.cast(pa.float32())
    is_text = "string" in str(kind)
    values = (array.cast(pa.large_binary()) if is_text else array).to_pylist()
    if types.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    return [_decode_text(value, InvalidText if is_text else bytes) for value in values]


def _time_values(array: pa.Array) -> list[Any]:
    kind, types = array.type, pa.types
    if str(kind).partition(",")[0].endswith("[ns") or types.is_time64(kind):  # Python's times have microseconds
        array = array.cast(pa.time64("us") if types.is_time64(kind) else pa.timestamp("us", kind.tz), safe=False)
    try:
        return [None if value is None else _iso_format(value) for value in array.to_pylist()]
    except (OverflowError, ValueError):  # Python has only the years 1 to 9999
        return [None if value.value is None else _far_time(value) for value in array]


def _iso_format(value: datetime.date | datetime.time) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _far_time(scalar: pa.Scalar) -> str:
    """Return a date or time of any year in ISO 8601; outside the years 1 to 9999, in UTC.

    >>> _far_time(pa.scalar(2**62, pa.timestamp("us", "UTC")))
    '148108-07-06T14:00:27.387904Z'
    """
    try:
        return _iso_format(scalar.as_py())
    except (OverflowError, ValueError):
        kind = scalar.type
        unit = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
        date, _, time = str(np.array(scalar.value).astype(f"M8[{unit}]")).partition("T")
        date = date.zfill(len("-0001-12-31"))
        return date if pa.types.is_date(kind) else re.sub(r"\.0+$", "", f"{date}T{time}") + "Z" * bool(kind.tz)


def _make_object(keys: list[Any], items: list[Any]) -> dict[str, Any]:
    """Return a map as an object; a key that is not text becomes its JSON."""
    names = (key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key for key in keys)
    return {key if isinstance(key, str) else json.dumps(key): item for key, item in zip(names, items, strict=True)}


def _decode_text(value: Any, fallback_type: type[bytes]) -> Any:  # noqa: ANN401 - a value of any type
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return fallback_type(value)


def _parse_json(text: Any) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text
