"""Read Parquet: open a file, measure its row groups, and read them in small batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from dsindex.errors import InputError
from dsindex.text.forms import ENCRYPTED_PARQUET_MAGIC, PARQUET_MAGIC
from dsindex.text.tables.columns import check_names, joined_fields
from dsindex.text.tables.files import RowGroup, TableFile, check_range, errors_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.parquet as pq

_READ_BYTES = 1 << 20
"""Bytes of a column read at a time."""
_FIRST_ROWS, _MOST_ROWS = 16, 4096
"""Rows decoded at a time: the first, as their size is unknown, and the most."""
_MOST_LEAVES_AHEAD = 2
"""Columns that are read ahead next to each other, where the file is not on this machine."""
_BYTES_PER_INDEX, _LARGEST_DICTIONARY = 4, 16 << 20
"""A column with a dictionary stays encoded until its rows are cut; writers limit dictionaries to about 1 MiB."""


def open_parquet(file: TableFile, dictionaries: Sequence[str] = (), metadata: object = None) -> pq.ParquetFile:
    """Open a Parquet file.

    Args:
        file: The file.
        dictionaries: Paths of the columns to leave encoded.
        metadata: Its footer, if it was read before.

    Raises:
        InputError: If it is cut off, damaged or encrypted.
    """
    import pyarrow.parquet as pq

    file.seek(0)
    head = file.read(4)
    file.seek(max(0, file.size - 4))
    tail = file.read(4)
    if tail == ENCRYPTED_PARQUET_MAGIC:
        msg = f"{file.path}: expected a Parquet file without encryption, got an encrypted one; decrypt it to a new file"
        raise InputError(msg)
    if head != PARQUET_MAGIC or tail != PARQUET_MAGIC or file.size < 3 * 4:
        msg = f"{file.path}: expected a whole Parquet file, got one that does not end as it should; fetch it again"
        raise InputError(msg)
    with errors_named(file.path, "a Parquet file with a readable footer"):
        opened = pq.ParquetFile(
            pa.PythonFile(file, mode="r"),
            metadata=metadata,
            read_dictionary=list(dictionaries),
            pre_buffer=False,
            buffer_size=_READ_BYTES,
            page_checksum_verification=True,
        )
        check_names(opened.schema_arrow)
        return opened


def measure_parquet(
    file: TableFile, opened: pq.ParquetFile, fields: Sequence[tuple[str, ...]] | None
) -> list[RowGroup]:
    """Return the rows and bytes of each row group, as the footer claims them.

    Raises:
        InputError: If the footer is damaged, or a wanted column is encrypted or compressed in an unknown way.
    """
    groups = []
    leaves = _leaf_columns(opened, fields)
    for number in range(opened.metadata.num_row_groups):
        num_rows = opened.metadata.row_group(number).num_rows
        sizes = [chunk.total_uncompressed_size for chunk in _chunks(file.path, opened, number, leaves)]
        if min(num_rows, *sizes, 0) < 0:
            msg = f"{file.path}: expected rows and sizes in row group {number}, got negative ones; fetch it again"
            raise InputError(msg)
        groups.append(RowGroup(num_rows=num_rows, text_bytes=sum(sizes)))
    return groups


def read_parquet(
    file: TableFile, begin: int, end: int, fields: Sequence[tuple[str, ...]] | None, batch_bytes: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the row groups [begin, end), about `batch_bytes` at a time, with the number of their group."""
    opened = open_parquet(file)
    columns = None
    if fields is not None:
        fields = [joined_fields(opened.schema_arrow, path) for path in fields]
        columns = [".".join(path) for path in fields]
    leaves = _leaf_columns(opened, fields)
    check_range(file.path, end, opened.metadata.num_row_groups, "row groups")
    groups = [_chunks(file.path, opened, number, leaves) for number in range(begin, end)]
    encoded = [
        opened.metadata.schema.column(leaf).path
        for leaf, chunks in zip(leaves, zip(*groups, strict=True), strict=True)
        if any(map(_stays_encoded, chunks))
    ]
    if encoded and fields is not None:
        opened = open_parquet(file, encoded, opened.metadata)
    for number, chunks in enumerate(groups, begin):
        num_rows = opened.metadata.row_group(number).num_rows
        if len(leaves) <= _MOST_LEAVES_AHEAD:
            file.expect_forwards([_chunk_range(chunk) for chunk in chunks])
        what = f"a Parquet file with a readable row group {number}"
        with errors_named(file.path, what):
            batches = opened.iter_batches(_FIRST_ROWS, row_groups=[number], columns=columns, use_threads=False)
        missing = num_rows
        # A few rows may be much larger than those before them: as many as fit by the average never cost much time.
        average_rows = batch_bytes * num_rows // max(1, sum(chunk.total_uncompressed_size for chunk in chunks))
        while True:
            with errors_named(file.path, what):
                rows = next(batches, None)
            if rows is None:
                break
            missing -= rows.num_rows
            yield number, rows
            fitting_rows = batch_bytes * rows.num_rows // max(1, rows.nbytes)
            most = min(2 * rows.num_rows, _MOST_ROWS, average_rows, fitting_rows)
            opened.reader.set_batch_size(max(1, most))
        if missing:
            raise InputError(
                f"{file.path}: expected {num_rows} rows in row group {number}, got {num_rows - missing}; "
                "the file is damaged, fetch or write it again"
            )


def _leaf_columns(opened: pq.ParquetFile, fields: Sequence[tuple[str, ...]] | None) -> list[int]:
    """Return the numbers of the stored columns of a Parquet file that the wanted columns consist of, None for all."""
    if fields is None:
        return list(range(len(opened.metadata.schema)))
    wanted = [".".join(path) for path in fields]
    schema = opened.metadata.schema
    paths = [schema.column(number).path for number in range(len(schema))]
    return [
        number
        for number, path in enumerate(paths)
        if any(path == column or path.startswith(f"{column}.") for column in wanted)
    ]


def _chunk_range(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return where a column chunk is in the file, as the footer claims."""
    begin = min(filter(None, [chunk.dictionary_page_offset, chunk.data_page_offset]), default=0)
    return max(0, begin), begin + chunk.total_compressed_size


def _stays_encoded(chunk: pq.ColumnChunkMetaData) -> bool:
    """Tell whether a chunk is a dictionary of strings and indices: decoded, it can be thousands of times as large."""
    if chunk.physical_type != "BYTE_ARRAY" or not chunk.has_dictionary_page:
        return False
    data_bytes = chunk.total_compressed_size - (chunk.data_page_offset - chunk.dictionary_page_offset)
    is_full = chunk.total_uncompressed_size > _LARGEST_DICTIONARY  # strings follow the indices
    return bool(
        (data_bytes < _BYTES_PER_INDEX * chunk.num_values and not is_full)
        or chunk.total_uncompressed_size < 2 * _BYTES_PER_INDEX * chunk.num_values
        or "PLAIN" not in chunk.encodings
    )


def _chunks(path: str, opened: pq.ParquetFile, group: int, leaves: Sequence[int]) -> list[pq.ColumnChunkMetaData]:
    """Return what the footer says about the stored columns that are wanted in a row group.

    Raises:
        InputError: If one of them is damaged, encrypted or compressed in an unknown way.
    """
    with errors_named(path, f"a Parquet file with a readable row group {group}"):
        try:
            _open_columns(opened, group, leaves)
        except OSError:
            for leaf in leaves:
                _check_column(path, opened, group, leaf)
            raise
        row_group = opened.metadata.row_group(group)
        return [row_group.column(leaf) for leaf in leaves]


def _open_columns(opened: pq.ParquetFile, group: int, leaves: Sequence[int]) -> None:
    """Raise what reading raises, but read nothing: pyarrow's metadata ends the process at an encrypted column."""
    if leaves:
        next(opened.reader.iter_batches(0, [group], column_indices=leaves, use_threads=False), None)


def _check_column(path: str, opened: pq.ParquetFile, group: int, leaf: int) -> None:
    name = opened.metadata.schema.column(leaf).path
    try:
        _open_columns(opened, group, [leaf])
    except OSError as error:
        if "crypt" in str(error):
            msg = f"{path}: expected the column {name!r} without encryption; decrypt the file into a new one"
            raise InputError(msg) from error
        if any(word in str(error).lower() for word in ("codec", "compression")):
            raise InputError(
                f"{path}: expected the column {name!r} in a codec that pyarrow {pa.__version__} reads, got another "
                f"({error}); write the file again with zstd"
            ) from error
        raise
