"""Read a column of lists of token ids, for tables of text that was tokenized before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dsindex.json_text import encode_json
from dsindex.text.records import DEFAULT_BLOCK_BYTES, BadRecord
from dsindex.text.tables.batches import read_batches, read_schema
from dsindex.text.tables.columns import find_columns, is_list, nested_column
from dsindex.text.tables.files import errors_named, open_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dsindex.text.tables.batches import StoredFormat, TableBatch

_MOST_ROWS = 4096
_LARGEST_ID = 2**32 - 1
_SHOWN_IDS = 100
"""Items of a bad row that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdBlock:
    """Consecutive rows of a range, in order: num_lines = records + bad."""

    num_lines: int
    offsets: NDArray[np.int64]
    """Number of each record's row group or record batch, shape [records]."""
    lines: NDArray[np.int64]
    """Number of each record's row, counted from 0 at the start of the range, shape [records]."""
    ids: NDArray[np.uint32]
    """The token ids of all records, one after the other."""
    ids_per_record: NDArray[np.int64]
    """Number of ids of each record, shape [records]."""
    bad: tuple[BadRecord, ...]
    """Rows that are null, or have an item that is null or no token id."""


def is_ids(kind: pa.DataType) -> bool:
    """Tell whether values of a type are lists of integers."""
    return is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def read_table_ids(
    path: str,
    begin: int,
    end: int,
    *,
    format: StoredFormat,
    column: tuple[str, ...],
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    expected_size: int | None = None,
) -> Iterator[IdBlock]:
    """Read the rows of the row groups or record batches [begin, end) of a table.

    Args:
        path: A regular file.
        begin: Number of the first group.
        end: Number after the last group.
        format: The file's format.
        column: Names of the fields that lead to the column.
        block_bytes: Bytes of ids in a block, at most, unless one row has more.
        expected_size: Size of the file in bytes when the job was planned.

    Raises:
        InputError: If the file is damaged, lacks the column or changes while it is read.
    """
    name = ".".join(column)
    columns = {name: column}
    with open_table(path, expected_size) as file:
        find_columns(path, read_schema(file, format), columns, is_wanted=is_ids, wanted="lists of integers")
        row = 0
        for batch in read_batches(file, begin, end, format=format, fields=(column,), batch_bytes=block_bytes):
            places = find_columns(path, batch.rows.schema, columns, is_wanted=is_ids)[name]
            for block in _blocks(path, batch, places, name, block_bytes, row):
                yield block
                row += block.num_lines


def _blocks(
    path: str, batch: TableBatch, places: tuple[int, ...], name: str, block_bytes: int, first_row: int
) -> Iterator[IdBlock]:
    with errors_named(path, f"a table with readable lists in row group {batch.group}"):
        array = nested_column(batch.rows, places)
        array.validate(full=True)
    begin = 0
    while begin < len(array):
        num_rows = min(_MOST_ROWS, len(array) - begin)
        while num_rows > 1 and array.slice(begin, num_rows).nbytes > block_bytes:
            num_rows //= 2
        yield _block(array.slice(begin, num_rows), name, batch.group, first_row + begin)
        begin += num_rows


def _block(rows: pa.Array, name: str, group: int, first_row: int) -> IdBlock:
    counts = pc.fill_null(pc.list_value_length(rows), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    items = rows.flatten()
    values = items.fill_null(0).to_numpy(zero_copy_only=False)
    is_id = items.is_valid().to_numpy(zero_copy_only=False) & (values >= 0) & (values <= _LARGEST_ID)
    wrong_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(~is_id)])
    ends = np.cumsum(counts)
    is_good = rows.is_valid().to_numpy(zero_copy_only=False) & (wrong_before[ends] == wrong_before[ends - counts])
    kept = np.flatnonzero(is_good)
    return IdBlock(
        num_lines=len(rows),
        offsets=np.full(len(kept), group, np.int64),
        lines=kept + first_row,
        ids=values[np.repeat(is_good, counts)].astype(np.uint32),
        ids_per_record=counts[kept],
        bad=tuple(
            _bad_row(rows[number].as_py(), name, group, number + first_row)
            for number in np.flatnonzero(~is_good).tolist()
        ),
    )


def _bad_row(ids: list[int | None] | None, name: str, group: int, row: int) -> BadRecord:
    got = "null"
    if ids is not None:
        number, wrong = next((number, item) for number, item in enumerate(ids, 1) if not _is_id(item))
        got = f"{'null' if wrong is None else wrong} as item {number}"
    return BadRecord(
        offset=group,
        line=row,
        line_bytes=encode_json({name: None if ids is None else ids[:_SHOWN_IDS]}),
        reason=f"expected a list of token ids from 0 to {_LARGEST_ID} under the column {name!r}, got {got}",
    )


def _is_id(item: int | None) -> bool:
    return item is not None and 0 <= item <= _LARGEST_ID
