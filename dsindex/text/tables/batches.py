"""Tables of all formats: their columns, the rows and bytes of their parts, and the rows of some parts in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from dsindex.text.streams import SourceFile, open_source
from dsindex.text.tables.arrow import measure_arrow, read_arrow, read_arrow_schema
from dsindex.text.tables.columns import find_columns, is_text, joined_fields, nested_column, require_different_names
from dsindex.text.tables.csv_rows import WrongRow, read_csv_rows, read_header
from dsindex.text.tables.files import RowGroup, errors_named, open_table
from dsindex.text.tables.parquet import measure_parquet, open_parquet, read_parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from dsindex.text.forms import TableFormat, TextPart
    from dsindex.text.tables.csv_rows import Source

    Columns = Mapping[str, tuple[str, ...]]
    """Names of the fields that lead to each wanted column, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive rows of a row group or record batch; Arrow's arrays are not validated."""

    group: int
    first_row: int
    """Number of the first row, counted from 0 at the start of the range."""
    batch: pa.RecordBatch
    columns: dict[str, pa.Array]
    """The wanted columns by name."""


def measure_table(
    path: str,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    *,
    expected_size: int | None = None,
) -> Sequence[RowGroup]:
    """Check that a table has the wanted columns, and measure its row groups or record batches, in order.

    Args:
        path: A regular file.
        format: The file's format.
        columns: Names of the fields that lead to each wanted column, by its name; None for all columns.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file is damaged, encrypted or compressed in an unknown way, or a column is missing or of
            another type.
    """
    with open_table(path, expected_size) as file:
        if format in {"csv", "tsv"}:
            _, schema = read_header(path, file, format)
            if columns is not None:
                find_columns(path, schema, columns)
            return [RowGroup(num_rows=None, text_bytes=file.size)]
        if format == "parquet":
            opened = open_parquet(file)
            schema = opened.schema_arrow
        else:
            schema = read_arrow_schema(file)
        found = None if columns is None else find_columns(path, schema, columns)
        if format == "parquet":
            paths = None if columns is None else [joined_fields(schema, fields) for fields in columns.values()]
            return measure_parquet(file, opened, paths)
        numbers = range(len(schema)) if found is None else sorted({places[0] for places in found.values()})
        return measure_arrow(file, schema, numbers)


def read_rows(
    part: TextPart,
    columns: Columns | None,
    *,
    batch_bytes: int,
    purpose: str,
    is_wanted: Callable[[pa.DataType], bool] = is_text,
) -> Iterator[Rows | WrongRow]:
    """Yield the rows of the row groups or record batches of a part, in order; CSV is one group, number 0.

    A batch of Parquet has about `batch_bytes`, if its rows are of similar sizes. A batch of Arrow is a whole record
    batch, whose memory is the mapped file unless it is compressed.

    Args:
        part: A part of a table.
        columns: The wanted columns; None for all.
        batch_bytes: Bytes to decode at a time.
        purpose: What is expected, such as `a table with readable texts`, for errors.
        is_wanted: Tells whether a column's type is acceptable. All types of CSV are.

    Raises:
        InputError: If the file is damaged, has fewer row groups, lacks a column or changes while it is read.
    """
    path, format = part.path, cast("TableFormat", part.form.format)
    if part.begin == part.end:
        return
    if part.form.container != "plain":  # such as `.csv.gz`
        with open_source(part) as source:
            yield from _read_csv(path, SourceFile(source), format, columns)
        return
    with open_table(path, part.expected_size) as file:
        if format in {"csv", "tsv"}:
            yield from _read_csv(path, file, format, columns)
            return
        schema = open_parquet(file).schema_arrow if format == "parquet" else read_arrow_schema(file)
        if columns is None:
            require_different_names(path, schema)
        else:
            find_columns(path, schema, columns, is_wanted=is_wanted)
        fields = None if columns is None else tuple(columns.values())
        if format == "parquet":
            batches = read_parquet(file, part.begin, part.end, fields, batch_bytes)
        else:
            batches = read_arrow(file, part.begin, part.end, fields)
        row = 0
        for group, batch in batches:
            with errors_named(path, f"{purpose} in row group {group}"):
                if columns is None:
                    arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                else:
                    places = find_columns(path, batch.schema, columns, is_wanted=is_wanted)
                    arrays = {name: nested_column(batch, places[name]) for name in columns}
            yield Rows(group=group, first_row=row, batch=batch, columns=arrays)
            row += batch.num_rows


def _read_csv(path: str, source: Source, format: TableFormat, columns: Columns | None) -> Iterator[Rows | WrongRow]:
    def choose(schema: pa.Schema) -> list[str]:
        if columns is None:
            require_different_names(path, schema)
            return list(schema.names)
        find_columns(path, schema, columns)
        return [joined_fields(schema, fields)[0] for fields in columns.values()]

    for rows in read_csv_rows(path, source, format=format, choose=choose):
        if isinstance(rows, WrongRow):
            yield rows
        else:
            names = rows.rows.schema.names if columns is None else columns
            arrays = dict(zip(names, rows.rows.columns, strict=True))
            yield Rows(group=0, first_row=rows.first_row, batch=rows.rows, columns=arrays)
