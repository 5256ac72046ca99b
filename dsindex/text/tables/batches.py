"""Tables of all formats: their columns, the rows and bytes of their parts, and the rows of some parts in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.text.tables.arrow import measure_arrow, read_arrow, read_arrow_schema
from dsindex.text.tables.columns import find_columns, joined_fields
from dsindex.text.tables.csv_rows import read_csv_schema
from dsindex.text.tables.files import RowGroup, TableFile, open_table
from dsindex.text.tables.parquet import measure_parquet, open_parquet, read_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    import pyarrow as pa

    from dsindex.text.tables.formats import TableFormat


def measure_table(
    path: str,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    *,
    source: BinaryIO | None = None,
    expected_size: int | None = None,
) -> Sequence[RowGroup]:
    """Check that a table has the wanted columns, and measure its row groups or record batches, in order.

    Args:
        path: A regular file.
        format: The file's format.
        columns: Names of the fields that lead to each wanted column, by its name; None for all columns.
        source: The content of a CSV file that is stored otherwise, at its start.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file is damaged, encrypted or compressed in an unknown way, or a column is missing or of
            another type.
    """
    with open_table(path, expected_size) as file:
        if format in {"csv", "tsv"}:
            schema = read_csv_schema(path, source or file, format)
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


def read_schema(file: TableFile, format: TableFormat) -> pa.Schema:
    """Return all columns of a table that is not CSV.

    Raises:
        InputError: If the file is not a whole table of this format.
    """
    return open_parquet(file).schema_arrow if format == "parquet" else read_arrow_schema(file)


def read_batches(
    file: TableFile,
    begin: int,
    end: int,
    *,
    format: TableFormat,
    fields: Sequence[tuple[str, ...]] | None,
    batch_bytes: int,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the row groups or record batches [begin, end), in order, with their numbers.

    A batch of Parquet has about `batch_bytes`, if its rows are of similar sizes. A batch of Arrow is a whole record
    batch, whose memory is the mapped file unless it is compressed. Arrow's arrays are not validated.

    Args:
        file: The table.
        begin: Number of the first row group or record batch.
        end: Number after the last.
        format: The file's format.
        fields: Names of the fields that lead to each wanted column; None for all columns.
        batch_bytes: Bytes to decode at a time.

    Raises:
        InputError: If the file is damaged, or has fewer row groups.
    """
    if format == "parquet":
        return read_parquet(file, begin, end, fields, batch_bytes)
    return read_arrow(file, begin, end, fields)
