"""Provenance of documents: `<prefix>.provenance.parquet`, one row per document, in the documents' order.

    input    int32   number of the input in the manifest
    offset   int64   byte offset of the record's line in that input's (unpacked) text; in a table, its row group
    line     int64   1-based number of the line, or of the row, in that input

Offsets and lines are delta-encoded, in a few bytes per document. Row groups have a fixed size, so the file does not
depend on how the build was cut into shards.

Arrow and NumPy share raw buffers here, since `pa.array` and `to_numpy` import pandas if it is installed, which takes
half a second (pyarrow/pandas-shim.pxi).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import FormatError
from dsindex.store.read import open_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from dsindex.store.local import DigestingWriter


PROVENANCE_SUFFIX = "provenance.parquet"
ROWS_PER_GROUP = 1 << 20
COLUMNS = [("input", "int32"), ("offset", "int64"), ("line", "int64")]
ROW = np.dtype([("input", "<i4"), ("offset", "<i8"), ("line", "<i8")])
"""A row in memory, and in the files of shards."""


def write_provenance(file: DigestingWriter, chunks: Iterable[NDArray[np.void]]) -> None:
    """Write rows of type ROW, with one row group in memory, whatever the sizes of the chunks."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, getattr(pa, dtype)()) for name, dtype in COLUMNS])
    with pq.ParquetWriter(
        pa.PythonFile(file, mode="w"),
        schema,
        compression="zstd",
        use_dictionary=["input"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "line": "DELTA_BINARY_PACKED"},
        store_schema=False,
    ) as writer:
        for group in _row_groups(chunks):
            buffers = [[None, pa.py_buffer(np.ascontiguousarray(group[name]))] for name, _ in COLUMNS]
            columns = list(map(pa.Array.from_buffers, schema.types, [len(group)] * len(COLUMNS), buffers))
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROWS_PER_GROUP)


def _row_groups(chunks: Iterable[NDArray[np.void]]) -> Iterator[NDArray[np.void]]:
    group, num_filled = np.empty(ROWS_PER_GROUP, ROW), 0
    for chunk in chunks:
        remaining_rows = chunk
        while len(remaining_rows):
            rows = group[num_filled : num_filled + len(remaining_rows)]
            rows[:], remaining_rows = remaining_rows[: len(rows)], remaining_rows[len(rows) :]
            num_filled += len(rows)
            if num_filled == ROWS_PER_GROUP:
                yield group
                num_filled = 0
    if num_filled:
        yield group[:num_filled]


def provenance_path(prefix: str) -> str:
    """Return the path of a dataset's provenance."""
    return f"{prefix}.{PROVENANCE_SUFFIX}"


def count_rows(path: str) -> int:
    """Return the number of documents of a provenance file, after checking its layout.

    Raises:
        FormatError: If it is not a provenance file.
    """
    with _open_provenance(path) as file:
        return int(file.metadata.num_rows)


def read_rows(path: str, begin: int, end: int) -> Rows:
    """Read the rows of documents [begin, end), decoding only the row groups that hold them.

    Returns:
        Inputs, offsets and lines, each of shape [end - begin].

    Raises:
        FormatError: If it is not a provenance file, or has fewer rows.
    """
    with _open_provenance(path) as file:
        if not 0 <= begin <= end <= file.metadata.num_rows:
            problem = f"it has {file.metadata.num_rows} rows, and row {end - 1} was asked for"
            raise FormatError(f"{path}: {problem}; it belongs to another dataset")
        if begin == end:
            return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
        first = begin // ROWS_PER_GROUP
        groups = list(range(first, (end - 1) // ROWS_PER_GROUP + 1))
        table = file.read_row_groups(groups, columns=[name for name, _ in COLUMNS], use_threads=False)
        table = table.slice(begin - first * ROWS_PER_GROUP, end - begin)
        columns = [table.column(name).combine_chunks() for name, _ in COLUMNS]
    if any(column.null_count or len(column) != end - begin for column in columns):
        raise FormatError(f"{path}: damaged: some documents have no input, offset or line")
    inputs, offsets, lines = (
        np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * np.dtype(dtype).itemsize)
        for column, (_, dtype) in zip(columns, COLUMNS, strict=True)
    )
    return inputs, offsets, lines


@contextlib.contextmanager
def _open_provenance(path: str) -> Iterator[pq.ParquetFile]:
    """Open a provenance file and check its footer; an error in the block is raised as a FormatError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Arrow gets an open file, since it cannot open names that are not UTF-8.
        with open_stored(path) as stored, pq.ParquetFile(stored) as file:
            metadata = file.metadata
            if [(field.name, str(field.type)) for field in file.schema_arrow] != COLUMNS:
                raise FormatError(f"{path}: not provenance: its columns are not {dict(COLUMNS)}")
            # The footer of a damaged file may claim any number of rows.
            sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            whole, num_last = divmod(metadata.num_rows, ROWS_PER_GROUP)
            if len(sizes) != whole + (num_last > 0) or sizes != [ROWS_PER_GROUP] * whole + [num_last] * (num_last > 0):
                raise FormatError(
                    f"{path}: damaged: not all of its row groups but the last have {ROWS_PER_GROUP:,} rows"
                )
            yield file
    except (OSError, pa.ArrowException, ValueError, LookupError) as error:
        raise FormatError(f"{path}: cannot be read as provenance: {error}") from error


Rows = tuple["NDArray[np.int32]", "NDArray[np.int64]", "NDArray[np.int64]"]
