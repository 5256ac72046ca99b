"""Read the row groups of a table as the blocks of records that lines of JSON with the same values become."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from dsindex.json_text import encode_json
from dsindex.text.record_blocks import BadRecord, RecordBlock, TextColumn
from dsindex.text.records import DEFAULT_BLOCK_BYTES
from dsindex.text.tables.batches import read_batches, read_schema
from dsindex.text.tables.columns import find_columns, joined_fields, nested_column
from dsindex.text.tables.csv_rows import WrongRow, read_csv_rows
from dsindex.text.tables.files import errors_named, open_table
from dsindex.text.tables.texts import TextColumnReader
from dsindex.text.tables.windows import RowWindow, find_not_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import BinaryIO

    from numpy.typing import NDArray

    from dsindex.text.tables.batches import StoredFormat
    from dsindex.text.tables.csv_content import Source
    from dsindex.text.tables.files import TableFile
    from dsindex.text.tables.formats import TableFormat
    from dsindex.text.tables.texts import TextWindow
    from dsindex.text.token_ids import TokenColumn

_WINDOW_ROWS = 4096
"""Rows whose sizes are computed at a time."""


def read_table_records(
    path: str,
    begin: int,
    end: int,
    *,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]],
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
    expected_size: int | None = None,
    source: BinaryIO | None = None,
) -> Iterator[RecordBlock]:
    """Read the rows of the row groups or record batches [begin, end) of a table; CSV is one group, number 0.

    In the blocks, `offsets` are numbers of groups, and `lines` are numbers of rows, counted from 0 at the start of the
    range. A row is bad if a wanted column, or an item of its list, is null or not UTF-8, or if its texts together are
    larger than the limit. The `line_bytes` of a bad row are the wanted columns as an object of JSON. Blocks hold about
    `block_bytes` of text, or one row.

    Args:
        path: A regular file.
        begin: Number of the first group.
        end: Number after the last group.
        format: The file's format.
        columns: Names of the fields that lead to each wanted column, by its name.
        block_bytes: Bytes of text in a block.
        max_record_bytes: A row with more text is bad.
        expected_size: Size of the file in bytes when the job was planned.
        source: The content of a CSV file that is stored otherwise, at its start. `path` then stands in messages.

    Returns:
        Blocks in the order of the rows; the same records for any cut into ranges and blocks.

    Raises:
        InputError: If the file is damaged, lacks a column or changes while it is read.
        ValueError: If the range or the options are invalid.
    """
    if not 0 <= begin <= end or not columns:
        msg = f"expected a range with 0 <= begin <= end and a column, got [{begin}, {end}) and {columns!r}"
        raise ValueError(msg)
    if block_bytes < 1 or (max_record_bytes is not None and max_record_bytes < 1):
        msg = f"expected sizes of at least 1 byte, got block_bytes={block_bytes}, max_record_bytes={max_record_bytes}"
        raise ValueError(msg)
    blocks = _Blocks(path=path, names=tuple(columns), block_bytes=block_bytes, limit=max_record_bytes)
    return _read(path, begin, end, format, columns, blocks, expected_size, source)


def _read(
    path: str,
    begin: int,
    end: int,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]],
    blocks: _Blocks,
    expected_size: int | None,
    source: BinaryIO | None,
) -> Iterator[RecordBlock]:
    if begin == end:
        return
    if source is not None:
        yield from _read_csv(path, source, format, columns, blocks)
        return
    with open_table(path, expected_size) as file:
        if format in {"csv", "tsv"}:
            yield from _read_csv(path, file, format, columns, blocks)
        else:
            yield from _read_groups(file, begin, end, format, columns, blocks)


def _read_groups(
    file: TableFile,
    begin: int,
    end: int,
    format: TableFormat,
    columns: Mapping[str, tuple[str, ...]],
    blocks: _Blocks,
) -> Iterator[RecordBlock]:
    stored = cast("StoredFormat", format)
    find_columns(file.path, read_schema(file, stored), columns)
    fields = tuple(columns.values())
    row, places = 0, None
    for batch in read_batches(file, begin, end, format=stored, fields=fields, batch_bytes=blocks.block_bytes):
        places = places or find_columns(file.path, batch.rows.schema, columns)
        with blocks.errors(batch.group):
            readers = [TextColumnReader(nested_column(batch.rows, places[name])) for name in columns]
        yield from blocks.add_rows(readers, batch.rows.num_rows, group=batch.group, first_row=row)
        row += batch.rows.num_rows
    yield from blocks.flush()


def _read_csv(
    path: str, source: Source, format: TableFormat, columns: Mapping[str, tuple[str, ...]], blocks: _Blocks
) -> Iterator[RecordBlock]:
    def choose(schema: pa.Schema) -> list[str]:
        find_columns(path, schema, columns)
        return [joined_fields(schema, fields)[0] for fields in columns.values()]

    for rows in read_csv_rows(path, source, format=format, choose=choose):
        if isinstance(rows, WrongRow):
            blocks.add_bad(rows.row, rows.text, rows.reason, group=0)
        else:
            readers = [TextColumnReader(column) for column in rows.rows.columns]
            yield from blocks.add_rows(readers, rows.rows.num_rows, group=0, first_row=rows.first_row)
    yield from blocks.flush()


@dataclass(slots=True, kw_only=True)
class _Blocks:
    """Collects rows until they make a block."""

    path: str
    names: tuple[str, ...]
    block_bytes: int
    limit: int | None
    num_bytes: int = 0
    """Bytes of text and of bad records so far."""
    num_rows: int = 0
    offsets: list[NDArray[np.int64]] = field(default_factory=list)
    rows: list[NDArray[np.int64]] = field(default_factory=list)
    texts: dict[str, list[pa.LargeStringArray]] = field(default_factory=dict)
    counts: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)
    bad: list[BadRecord] = field(default_factory=list)

    def errors(self, group: int) -> AbstractContextManager[None]:
        """Name the errors of pyarrow at a row group."""
        return errors_named(self.path, f"a table with readable texts in row group {group}")

    def add_rows(
        self, readers: Sequence[TextColumnReader], num_rows: int, *, group: int, first_row: int
    ) -> Iterator[RecordBlock]:
        """Add the rows of a batch, and yield the blocks that are complete.

        Args:
            readers: The wanted columns.
            num_rows: Their number of rows.
            group: Number of the row group.
            first_row: Number of the first row, counted from 0 at the start of the range.
        """
        for begin in range(0, num_rows, _WINDOW_ROWS):
            num_window_rows = min(_WINDOW_ROWS, num_rows - begin)
            with self.errors(group):
                windows = RowWindow.of(readers, begin, num_window_rows, self.limit)
            row = 0
            while row < num_window_rows:
                with self.errors(group):
                    stop = windows.stop(row, self.block_bytes - self.num_bytes)
                    self.add_piece(windows, row, stop, group=group, first_row=first_row + begin)
                row = stop
                if self.num_bytes >= self.block_bytes:
                    yield from self.flush()

    def add_piece(self, windows: RowWindow, begin: int, end: int, *, group: int, first_row: int) -> None:
        """Decode rows [begin, end) of a window whose first row has the number `first_row`."""
        while True:
            kept = np.flatnonzero(windows.is_good[begin:end]) + begin
            texts = [_decode(window, begin, end, kept) for window in windows.columns]
            not_utf8 = [number for column in texts for number in _find_not_utf8(column)]
            if not not_utf8:
                break
            windows.is_good[kept[not_utf8]] = False
        for name, column in zip(self.names, texts, strict=True):
            self.texts.setdefault(name, []).append(column.texts)
            if column.texts_per_record is not None:
                self.counts.setdefault(name, []).append(column.texts_per_record)
        self.offsets.append(np.full(len(kept), group, np.int64))
        self.rows.append(kept + first_row)
        self.num_rows += len(kept)
        self.num_bytes += int(windows.sizes[kept].sum())
        for row in (np.flatnonzero(~windows.is_good[begin:end]) + begin).tolist():
            line = encode_json(windows.show_row(row, self.names))
            self.add_bad(row + first_row, line, windows.fault(row, self.names), group=group)

    def add_bad(self, row: int, line: bytes, reason: str, *, group: int) -> None:
        """Add a bad row."""
        line = line[: self.limit]
        self.bad.append(BadRecord(offset=group, line=row, line_bytes=line, reason=reason))
        self.num_rows += 1
        self.num_bytes += len(line)

    def flush(self) -> Iterator[RecordBlock]:
        """Yield the rows so far as a block, unless there are none."""
        if not self.num_rows:
            return
        columns: dict[str, TextColumn | TokenColumn] = {}
        for name in self.names:
            counts = self.counts.get(name)
            columns[name] = TextColumn(
                texts=_joined(self.texts.get(name, [])),
                texts_per_record=np.concatenate(counts) if counts else None,
            )
        nothing = np.empty(0, np.int64)
        block = RecordBlock(
            num_lines=self.num_rows,
            num_blank=0,
            offsets=np.concatenate([nothing, *self.offsets]),
            lines=np.concatenate([nothing, *self.rows]),
            columns=columns,
            bad=tuple(self.bad),
        )
        self.num_bytes = self.num_rows = 0
        for collected in (self.offsets, self.rows, self.texts, self.counts, self.bad):
            collected.clear()
        yield block


def _decode(window: TextWindow, begin: int, end: int, kept: NDArray[np.int64]) -> TextColumn:
    """Return the texts of the rows `kept`, out of [begin, end)."""
    first = window.first_items
    chosen: slice | NDArray[np.int64] = slice(int(first[begin]), int(first[end]))
    if len(kept) < end - begin:
        pieces = [np.arange(first[row], first[row + 1]) for row in kept.tolist()]
        chosen = np.concatenate([np.empty(0, np.int64), *pieces])
    counts = None if window.counts is None else window.counts[kept]
    return TextColumn(texts=window.items.decode(chosen), texts_per_record=counts)


def _find_not_utf8(column: TextColumn) -> list[int]:
    """Return the numbers of the records with a text that is not UTF-8."""
    try:
        column.texts.validate(full=True)
    except pa.ArrowInvalid:
        counts = column.texts_per_record
        records = np.arange(len(column.texts)) if counts is None else np.repeat(np.arange(len(counts)), counts)
        texts = column.texts.view(pa.large_binary())
        return [int(record) for record, text in zip(records, texts, strict=True) if find_not_utf8(text.as_py())]
    return []


def _joined(texts: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    return texts[0] if len(texts) == 1 else pa.concat_arrays(texts or [pa.array([], pa.large_string())])
