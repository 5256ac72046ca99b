"""Measure a table before it is read: the rows and bytes of its row groups or record batches, from metadata alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from dsindex.errors import InputError
from dsindex.text.tables.arrow_messages import (
    RECORD_BATCH,
    read_batch_header,
    wanted_bytes,
)
from dsindex.text.tables.batches import check_columns, find_messages, leaf_columns, open_parquet, read_schema
from dsindex.text.tables.columns import find_columns, joined_fields
from dsindex.text.tables.csv_rows import read_csv_schema
from dsindex.text.tables.files import open_table, part_of
from dsindex.text.tables.parquet_footer import read_parquet_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    import pyarrow as pa
    import pyarrow.parquet as pq

    from dsindex.text.tables.batches import StoredFormat
    from dsindex.text.tables.files import TableFile
    from dsindex.text.tables.formats import TableFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """What the metadata says about one row group of Parquet or record batch of Arrow."""

    num_rows: int | None
    """None if only reading tells, as for CSV."""
    text_bytes: int
    """Uncompressed size of the wanted columns: an estimate, and as trustworthy as the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """The row groups of a table, in order."""

    groups: tuple[RowGroup, ...]


def measure_table(
    path: str,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    *,
    source: BinaryIO | None = None,
    expected_size: int | None = None,
) -> TableShape:
    """Check that a table has the wanted columns, and measure its parts.

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
    if format in {"csv", "tsv"}:
        return _measure_csv(path, format, columns, source, expected_size)
    with open_table(path, expected_size) as file:
        if format == "parquet":
            opened = open_parquet(file)
            schema = opened.schema_arrow
        else:
            schema = read_schema(file, cast("StoredFormat", format))
        found = None if columns is None else find_columns(path, schema, columns)
        if format == "parquet":
            paths = None if columns is None else [joined_fields(schema, fields) for fields in columns.values()]
            return TableShape(groups=_measure_parquet(file, opened, paths))
        numbers = range(len(schema)) if found is None else sorted({places[0] for places in found.values()})
        return TableShape(groups=_measure_arrow(file, schema, numbers, cast("StoredFormat", format)))


def _measure_parquet(
    file: TableFile, opened: pq.ParquetFile, paths: Sequence[tuple[str, ...]] | None
) -> tuple[RowGroup, ...]:
    groups = read_parquet_groups(file, leaf_columns(opened, paths))
    check_columns(file.path, opened, groups)
    shapes = []
    for number, group in enumerate(groups):
        sizes = [chunk.uncompressed_bytes for chunk in group.columns.values()]
        if group.num_rows < 0 or min(sizes, default=0) < 0:
            msg = f"{file.path}: expected rows and sizes in row group {number}, got negative ones; fetch it again"
            raise InputError(msg)
        shapes.append(RowGroup(num_rows=group.num_rows, text_bytes=sum(sizes)))
    return tuple(shapes)


def _measure_arrow(
    file: TableFile, schema: pa.Schema, numbers: Sequence[int], format: StoredFormat
) -> tuple[RowGroup, ...]:
    data = file.content()
    groups = []
    for message in find_messages(file.path, data, format):
        if message.kind == RECORD_BATCH:
            header = read_batch_header(file.path, data, message)
            size = wanted_bytes(header, part_of(data, message.body, message.end), schema, numbers)
            groups.append(RowGroup(num_rows=header.num_rows, text_bytes=size))
    return tuple(groups)


def _measure_csv(
    path: str,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]] | None,
    source: BinaryIO | None,
    expected_size: int | None,
) -> TableShape:
    with open_table(path, expected_size) as file:
        names = read_csv_schema(path, source or file, format)
        if columns is not None:
            find_columns(path, names, columns)
        return TableShape(groups=(RowGroup(num_rows=None, text_bytes=file.size),))
