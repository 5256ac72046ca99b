"""Read Parquet and Arrow IPC with pyarrow: the wanted columns as blocks of records, or whole rows as lines of JSON.

A column holds strings, lists of strings, or with token ids lists of integers; dictionaries are decoded. Binary values
are read as UTF-8.

A part is a range of row groups of Parquet, of record batches of an Arrow file, or the whole of an Arrow stream. Offsets
are numbers of row groups or record batches, lines are numbers of rows from 0 at the start of the part.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsindex.errors import InputError
from dsindex.store.errors import unreadable
from dsindex.store.read import opened_input
from dsindex.text.blocks import RecordBlock, describe_long_line, mark_bad
from dsindex.text.streams import LineBlock
from dsindex.text.table_values import InvalidText, is_list, json_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow.parquet as pq

    from dsindex.store.local import Readable
    from dsindex.text.input_format import Columns, Format, TextPart
    from dsindex.text.selection import Selection

_MOST_ROWS = 1024
"""Rows decoded at a time: in a row group with a dictionary, a row may be much larger than its part of the file."""
_SHOWN_COLUMNS = 12
_SHOWN_CHARACTERS = 200


def measure_table(table: TextPart, columns: Columns | None) -> list[int]:
    """Check that a table has the wanted columns, and return about the bytes of each row group or record batch.

    Args:
        table: All of a table.
        columns: The wanted columns; None for all.

    Raises:
        InputError: If the file is damaged or encrypted, or a column is missing or of another type.
    """
    with opened_input(table) as file, errors_named(table.path, table.form.format):
        return _open_table(table.path, file, table.form.format, columns)[0]


def read_table_records(
    number: int, part: TextPart, file: Readable, selection: Selection, *, block_bytes: int, max_record_bytes: int
) -> Iterator[RecordBlock]:
    """Read the rows of a part, whose number they get, as records; a selection has paths.

    A row is bad if a value is not one of its key, or if its texts together are larger than the limit. The `line_bytes`
    of a bad row are the wanted columns as an object of JSON.

    Raises:
        InputError: If the file is damaged, lacks a column or changes while it is read.
    """
    for group, first_row, values in _read_rows(part, file, selection.paths, block_bytes):
        rows = list(zip(*values.values(), strict=True))

        def read_line(_part: int, line: int, rows: Sequence[Any] = rows, first: int = first_row) -> bytes:
            row = dict(zip(selection.names, rows[line - first], strict=True))
            return encode_row(row, keeps_bytes=True)[:max_record_bytes]

        reasons: dict[int, str] = {}
        if not all(set(map(type, column)) == {str} for column in values.values()):
            found = ((place, _find_fault(selection, row)) for place, row in enumerate(rows))
            reasons = {place: reason for place, reason in found if reason is not None}
            for column in values.values():
                column[:] = ["" if row in reasons else value for row, value in enumerate(column)]
        built = selection.build_columns(values.values())
        sizes = sum((column.sizes() for column in built.values()), np.zeros(len(rows), np.int64))
        for row in np.flatnonzero(sizes > max_record_bytes).tolist():
            reasons.setdefault(row, describe_long_line(int(sizes[row]), max_record_bytes))
        block = RecordBlock(
            num_lines=len(rows),
            blank=np.empty(0, np.int64),
            offsets=np.full(len(rows), group, np.int64),
            lines=np.arange(len(rows)) + first_row,
            parts=np.full(len(rows), number),
            columns=built,
            bad=(),
            text_bytes=int(sizes.sum()),
            read_line=read_line,
        )
        yield mark_bad(block, reasons) if reasons else block


def read_table_lines(part: TextPart, file: Readable, *, block_bytes: int) -> Iterator[LineBlock]:
    """Read the rows of a part, each as an object of JSON on a line, with all columns.

    Raises:
        InputError: If the file is damaged, has two columns of one name, or changes while it is read.
    """
    for group, first_row, columns in _read_rows(part, file, None, block_bytes):
        rows = zip(*columns.values(), strict=True)
        lines = [encode_row(dict(zip(columns, row, strict=True))) for row in rows]
        yield LineBlock.of_lines(lines, np.full(len(lines), group, np.int64), first_row)


def encode_row(row: dict[str, Any], *, keeps_bytes: bool = False) -> bytes:
    r"""Return a row as JSON. A text that is not UTF-8 stays as it is, and makes the row a bad record.

    >>> encode_row({"a": [1.5, None], "image": b"\xff\xd8"})
    b'{"a":[1.5,null],"image":null}'
    """

    def as_text(value: bytes) -> str | None:
        is_text = keeps_bytes or isinstance(value, InvalidText)
        return value.decode("utf-8", "surrogateescape") if is_text else None

    text = json.dumps(row, separators=(",", ":"), ensure_ascii=False, default=as_text)
    return text.encode("utf-8", "surrogateescape")


def _find_fault(selection: Selection, row: tuple[Any, ...]) -> str | None:
    for key, value in zip(selection.keys, row, strict=True):
        if any(isinstance(each, bytes) for each in (value if isinstance(value, list) else [value])):
            return f"the value under the key {key.name!r} is not UTF-8"
        fault = selection.find_fault(key, value)
        if fault is not None:
            return fault
    return None


def _read_rows(
    part: TextPart, file: Readable, columns: Columns | None, block_bytes: int
) -> Iterator[tuple[int, int, dict[str, list[Any]]]]:
    """Yield the values of the wanted columns, or of all, of about `block_bytes` of rows, with group and first row."""
    path, format, row = part.path, part.form.format, 0
    with errors_named(path, format):
        _, read = _open_table(path, file, format, columns)
        for group, batch in read(part.begin, part.end, block_bytes):
            whole = batch.to_struct_array()
            wanted = {name: (name,) for name in batch.schema.names} if columns is None else columns
            # A nested column is null wherever a struct around it is null.
            arrays = {name: pc.struct_field(whole, list(fields)) for name, fields in wanted.items()}
            for array in arrays.values():
                _validate(array)
            size = sum(array.nbytes for array in arrays.values())
            step = max(1, batch.num_rows * block_bytes // max(1, size))
            for begin in range(0, batch.num_rows, step):
                yield group, row, {name: json_values(array.slice(begin, step)) for name, array in arrays.items()}
                row += min(step, batch.num_rows - begin)


def _validate(array: pa.Array) -> None:
    """Check offsets and indices of a column, but not that its texts are UTF-8, which is a fault of a record."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise


Reader: TypeAlias = "Callable[[int, int, int], Iterable[tuple[int, pa.RecordBatch]]]"
"""Reads the groups from one on to before another, in batches of about so many bytes, with the number of each."""


def _open_table(path: str, file: Readable, format: Format, columns: Columns | None) -> tuple[list[int], Reader]:
    """Open a table whose wanted columns are there; return about the bytes of each group, and what reads them.

    A group is a row group or a record batch; an Arrow stream counts as one.
    """
    source = pa.PythonFile(file, mode="r")
    if format == "arrow-stream":
        stream = pa.ipc.open_stream(source)
        _check_columns(path, stream.schema, columns)
        return [file.size_bytes], lambda *_: enumerate(stream)
    if format == "arrow-file":
        batches = pa.ipc.open_file(source)
        num = batches.num_record_batches
        if num:
            _check_columns(path, batches.schema, columns)
        return [file.size_bytes // max(1, num)] * num, lambda begin, end, _: (
            (number, batches.get_batch(number)) for number in range(begin, end)
        )
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(source, buffer_size=1 << 20, page_checksum_verification=True)
    if not opened.metadata.num_rows:  # an empty column may have any type
        return [0] * opened.metadata.num_row_groups, lambda *_: ()
    _check_columns(path, opened.schema_arrow, columns)
    names = None if columns is None else [".".join(path) for path in columns.values()]
    sizes = _sizes_of(opened, names)

    def read(begin: int, end: int, num_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        for group in range(begin, end):
            rows = num_bytes * opened.metadata.row_group(group).num_rows // max(1, sizes[group])
            rows = max(1, min(_MOST_ROWS, rows))
            for batch in opened.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                yield group, batch

    return sizes, read


def _sizes_of(opened: pq.ParquetFile, names: Sequence[str] | None) -> list[int]:
    """Return the bytes of the wanted columns, None for all, in each row group."""
    paths = [opened.schema.column(number).path for number in range(len(opened.schema))]
    leaves = [
        number
        for number, path in enumerate(paths)
        if names is None or any(f"{path}.".startswith(f"{name}.") for name in names)
    ]
    sizes = []
    for group in range(opened.metadata.num_row_groups):
        if leaves:  # pyarrow's metadata ends the process at an encrypted column; this raises, and reads nothing
            next(opened.reader.iter_batches(0, [group], column_indices=leaves, use_threads=False), None)
        row_group = opened.metadata.row_group(group)
        column_bytes = [row_group.column(leaf).total_uncompressed_size for leaf in leaves]
        if min(row_group.num_rows, *column_bytes, 0) < 0:
            raise ValueError(f"a negative size in row group {group}")
        sizes.append(sum(column_bytes))
    return sizes


# Find the wanted columns in a table's schema, and refuse those that hold something else.


def _is_wanted(kind: pa.DataType) -> bool:
    """Tell whether a column holds strings, or lists of strings, of ids or of lists of ids."""
    inner = kind.value_type if is_list(kind) else kind
    inner = inner.value_type if pa.types.is_dictionary(inner) else inner
    if any(name in str(inner) for name in ("string", "binary", "null")) and not pa.types.is_nested(inner):
        return True
    return is_list(kind) and pa.types.is_integer(inner.value_type if is_list(inner) else inner)


def _check_columns(path: str, schema: pa.Schema, columns: Columns | None) -> None:
    """Check that a table has the wanted columns.

    Raises:
        InputError: If a column is missing, is there twice, or has another type; of all columns, if two have one name.
    """
    whole = pa.struct(list(schema))
    if columns is None:
        _require_json(path, whole)
    for name, fields in (columns or {}).items():
        kind, got = whole, ""
        for field in fields:
            places = kind.get_all_field_indices(field) if pa.types.is_struct(kind) else []
            if len(places) != 1:
                got = f"there are {len(places)} columns of that name" if places else "there is no such column"
                break
            kind = kind.field(places[0]).type
        if got or not _is_wanted(kind):
            shown = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:_SHOWN_COLUMNS])
            more = f" and {len(schema) - _SHOWN_COLUMNS} more" if len(schema) > _SHOWN_COLUMNS else ""
            what = got or f"its type is {kind}, not strings or lists of strings"
            raise InputError(
                f"{path}: column {name!r}: {what}",
                hint=f"choose with --json-keys from the columns {shown[: 4 * _SHOWN_CHARACTERS]}{more}",
            )


def _require_json(path: str, kind: pa.DataType) -> None:
    """Refuse unions, and columns or fields of a struct of the same name: an object would have only the last of them."""
    inner = [kind.field(number) for number in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    [(name, count)] = Counter(field.name for field in inner).most_common(1) or [("", 0)]
    if count > 1 and pa.types.is_struct(kind):
        raise InputError(f"{path}: {count} columns have the name {name!r}", hint="rename them")
    for field in inner:
        if pa.types.is_union(field.type):
            raise InputError(f"{path}: column {field.name!r}: its type is {field.type}, which has no form in JSON")
        _require_json(path, field.type)


@contextmanager
def errors_named(path: str, format: Format) -> Iterator[None]:
    """Turn what pyarrow raises at a damaged or foreign file into a sentence.

    Raises:
        InputError: For every error of pyarrow, of the system and of decoding.
    """
    try:
        yield
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, MemoryError, OverflowError, KeyError) as error:
        if isinstance(error, OSError) and error.errno:  # of the disk, not of the table
            raise unreadable(path, error) from error
        lines = str(error).strip().splitlines()
        shown = (lines[0] if lines else type(error).__name__)[:_SHOWN_CHARACTERS]
        hint = "it may be cut off or damaged: fetch or write it again"
        if "crypt" in shown:
            hint = "decrypt it into a new file"
        elif isinstance(error, NotImplementedError) or "odec" in shown:
            hint = f"pyarrow {pa.__version__} cannot read that: write the file again without it"
        raise InputError(f"{path}: cannot be read as {format} ({shown})", hint=hint) from error
