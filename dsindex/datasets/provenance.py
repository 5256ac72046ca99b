"""Provenance of documents: `<prefix>.provenance.parquet`, one row per document, in the documents' order.

    input    int32   number of the input in the manifest
    offset   int64   byte offset of the record's line in that input's (unpacked) text; in a table, its row group
    line     int64   1-based number of the line, or of the row, in that input

Offsets and lines are stored as differences, in a few bytes per document. Row groups have a fixed size, so the file does
not depend on how the build was cut into shards.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError
from dsindex.store.reading import Extent, open_sources, open_stored, stored_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from dsindex.store.storage import DigestingWriter

PROVENANCE = np.dtype([("offset", "<i8"), ("line", "<i8")])
"""A row of a shard's `.prov`: byte offset of the record's line in its input, and its 0-based line in the range."""
PLACED_PROVENANCE = np.dtype([("input", "<i4"), ("offset", "<i8"), ("line", "<i8")])
"""A row of a `.prov` whose documents come from several inputs: offset and 1-based line in the input."""

ROWS_PER_GROUP = 1 << 20
COLUMNS = [("input", "int32"), ("offset", "int64"), ("line", "int64")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardProvenance:
    """The `.prov` of one shard, and the input and first line that its rows refer to."""

    path: str
    input: int | None
    """None if the rows are of type PLACED_PROVENANCE, with inputs and lines of their own."""
    first_input: int = 0
    """Number of the input that is 0 in such rows."""
    first_line: int = 0
    """1-based line number of the shard's first line in its input."""
    first_offset: int = 0
    """Offset of the shard's first line, if its rows count from there."""
    digest: str = ""
    """What `digest_file` returned for the file when it was written."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its rows."""
        return PLACED_PROVENANCE if self.input is None else PROVENANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The origin of a document."""

    input: int
    """Number of the input in the manifest."""
    offset: int
    """Byte offset of the record's line."""
    line: int
    """1-based line number."""


def provenance_rows(
    offsets: NDArray[np.int64], lines: NDArray[np.int64], inputs: NDArray[np.int64] | None = None
) -> NDArray[Any]:
    """Return rows of type PROVENANCE, or of PLACED_PROVENANCE if there are several inputs.

    Args:
        offsets: Byte offset of each record's line in its input, shape [records].
        lines: Number of the line, counted from 0 at the start of the range; same shape.
        inputs: Number of the input, all of whose lines are in the range; same shape. None if there is one.
    """
    if inputs is not None:
        placed = np.empty(len(offsets), PLACED_PROVENANCE)
        placed["input"], placed["offset"], placed["line"] = inputs, offsets, lines + 1
        return placed
    rows = np.empty(len(offsets), PROVENANCE)
    rows["offset"] = offsets
    rows["line"] = lines
    return rows


def write_provenance(file: DigestingWriter, shards: Iterable[ShardProvenance]) -> None:
    """Write the rows of all shards, in order, with one row group in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dsindex.arrow import number_array

    schema = pa.schema([("input", pa.int32()), ("offset", pa.int64()), ("line", pa.int64())])
    sink = pa.PythonFile(file, mode="w")
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        use_dictionary=["input"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "line": "DELTA_BINARY_PACKED"},
        store_schema=False,
    ) as writer:
        for inputs, offsets, lines in _row_groups(shards):
            table = pa.table([number_array(column) for column in (inputs, offsets, lines)], schema=schema)
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)


def count_rows(path: str) -> int:
    """Return the number of documents of a provenance file, after checking its layout.

    Raises:
        FormatError: If it is not a provenance file.
    """
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def read_rows(path: str, begin: int, end: int) -> Rows:
    """Read the rows of documents [begin, end), decoding only the row groups that hold them.

    Returns:
        Inputs, offsets and lines, each of shape [end - begin].

    Raises:
        FormatError: If it is not a provenance file, or has fewer rows.
    """
    import pyarrow as pa

    from dsindex.arrow import numbers_of

    with _opened(path) as file:
        if not 0 <= begin <= end <= file.metadata.num_rows:
            msg = f"{path}: expected rows up to {end}, got {file.metadata.num_rows}; it belongs to another dataset"
            raise FormatError(msg)
        if begin == end:
            return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
        first = begin // ROWS_PER_GROUP
        groups = list(range(first, (end - 1) // ROWS_PER_GROUP + 1))
        try:
            table = file.read_row_groups(groups, columns=["input", "offset", "line"], use_threads=False)
            table = table.slice(begin - first * ROWS_PER_GROUP, end - begin)
            columns = [table.column(name).combine_chunks() for name in ("input", "offset", "line")]
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
    if any(column.null_count or len(column) != end - begin for column in columns):
        raise FormatError(f"{path}: expected an input, an offset and a line for every document; the file is damaged")
    inputs, offsets, lines = map(numbers_of, columns)
    return inputs, offsets, lines


def read_source(path: str, document: int) -> Source:
    """Look up one document in a provenance file, reading the one row group that holds it.

    Raises:
        FormatError: If it is not a provenance file.
        IndexError: If there is no such document.
    """
    num_rows = count_rows(path)
    if not 0 <= document < num_rows:
        raise IndexError(f"{path}: expected a document from 0 to {num_rows - 1}, got {document}")
    inputs, offsets, lines = read_rows(path, document, document + 1)
    return Source(input=int(inputs[0]), offset=int(offsets[0]), line=int(lines[0]))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    """Open a provenance file and check its footer before anything is allocated from it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.ExitStack() as opened:
        try:
            # Arrow cannot open names that are not UTF-8.
            file = opened.enter_context(pq.ParquetFile(opened.enter_context(open_stored(path))))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _unreadable(path, error) from error
        try:
            schema = file.schema_arrow
            metadata = file.metadata
            sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        except (OSError, pa.ArrowException, ValueError) as error:
            raise _unreadable(path, error) from error
        if [(field.name, str(field.type)) for field in schema] != COLUMNS:
            msg = f"{path}: expected the columns input int32, offset int64, line int64, got another Parquet file"
            raise FormatError(msg)
        # Checked against the rows read, since the footer may claim any number.
        if (
            any(size != ROWS_PER_GROUP for size in sizes[:-1])
            or any(not 0 < size <= ROWS_PER_GROUP for size in sizes[-1:])
            or sum(sizes) != metadata.num_rows
        ):
            msg = f"{path}: expected row groups of {ROWS_PER_GROUP} rows and one with the rest; the file is damaged"
            raise FormatError(msg)
        yield file


def _unreadable(path: str, error: Exception) -> FormatError:
    return FormatError(f"{path}: cannot be read as a provenance file ({error})")


Rows = tuple["NDArray[np.int32]", "NDArray[np.int64]", "NDArray[np.int64]"]


def _row_groups(shards: Iterable[ShardProvenance]) -> Iterator[Rows]:
    """Regroup the shards' rows into groups of ROWS_PER_GROUP, whatever the sizes of the shards."""
    pending: list[Rows] = []
    num_pending = 0
    for shard, rows in _read_shards(shards):
        begin = 0
        while begin < len(rows):
            taken = rows[begin : begin + ROWS_PER_GROUP - num_pending]
            pending.append(_place(shard, taken))
            num_pending += len(taken)
            begin += len(taken)
            if num_pending == ROWS_PER_GROUP:
                yield _joined(pending)
                pending, num_pending = [], 0
    if pending:
        yield _joined(pending)


def _read_shards(shards: Iterable[ShardProvenance]) -> Iterator[tuple[ShardProvenance, NDArray[Any]]]:
    """Yield all rows of each shard; objects are requested before their turn."""
    known = list(shards)
    extents = [Extent(path=shard.path, begin=0, end=stored_size(shard.path)) for shard in known]
    for shard, extent, source in zip(known, extents, open_sources(extents), strict=True):
        content = np.empty(extent.end, np.uint8)
        source.read_into(content.data, 0)
        yield shard, content.view(shard.dtype)


def _place(shard: ShardProvenance, rows: NDArray[Any]) -> Rows:
    """Return the inputs, offsets and lines of a shard's rows."""
    if shard.input is None:
        return rows["input"] + np.int32(shard.first_input), rows["offset"], rows["line"]
    inputs = np.full(len(rows), shard.input, np.int32)
    return inputs, rows["offset"] + shard.first_offset, rows["line"] + shard.first_line


def _joined(pending: list[Rows]) -> Rows:
    inputs, offsets, lines = zip(*pending, strict=True)
    return np.concatenate(inputs), np.concatenate(offsets), np.concatenate(lines)
