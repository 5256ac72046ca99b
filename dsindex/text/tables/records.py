"""Read the row groups of a table as the blocks of records that lines of JSON with the same values become.

Rows are taken a window at a time. The sizes of texts are known before they are decoded: a few indices can stand for
gigabytes of a dictionary's strings. Arrays from files are not trusted: offsets, indices and views are checked before
they are followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from dsindex.arrow import number_array, numbers_of, text_array, valid_of
from dsindex.dtypes import starts_of
from dsindex.json_text import encode_json
from dsindex.text.record_blocks import BadRecord, RecordBlock, TextColumn, describe_long_line
from dsindex.text.records import DEFAULT_BLOCK_BYTES
from dsindex.text.tables.batches import read_rows
from dsindex.text.tables.files import errors_named, is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.text.forms import TextPart
    from dsindex.text.tables.batches import Columns, Rows
    from dsindex.text.token_ids import TokenColumn

Shown: TypeAlias = str | list[str | None] | None

_PURPOSE = "a table with readable texts"
_WINDOW_ROWS = 4096
"""Rows whose sizes are computed at a time."""
_LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""
_INLINE_BYTES = 12
"""Largest string that a view holds itself."""


def read_table_records(
    part: TextPart, columns: Columns, *, block_bytes: int = DEFAULT_BLOCK_BYTES, max_record_bytes: int | None = None
) -> Iterator[RecordBlock]:
    """Read the rows of the row groups or record batches of a part of a table.

    In the blocks, `offsets` are numbers of groups, and `lines` are numbers of rows, counted from 0 at the start of the
    part. A row is bad if a wanted column, or an item of its list, is null or not UTF-8, or if its texts together are
    larger than the limit. The `line_bytes` of a bad row are the wanted columns as an object of JSON. A block holds at
    most `block_bytes` of text, or one row.

    Args:
        part: A part of a table.
        columns: The wanted columns.
        block_bytes: Most bytes of text in a block.
        max_record_bytes: A row with more text is bad.

    Yields:
        Blocks in the order of the rows; the same records for any cut into parts and blocks.

    Raises:
        InputError: If the file is damaged, lacks a column or changes while it is read.
    """
    blocks = _Blocks(path=part.path, names=tuple(columns), block_bytes=block_bytes, limit=max_record_bytes)
    for rows in read_rows(part, columns, batch_bytes=block_bytes, purpose=_PURPOSE):
        yield from blocks.add_rows(rows)
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

    def add_rows(self, rows: Rows) -> Iterator[RecordBlock]:
        """Add rows, and yield the blocks that are complete."""
        what = f"{_PURPOSE} in row group {rows.group}"
        with errors_named(self.path, what):
            readers = [TextColumnReader(column) for column in rows.columns.values()]
        for begin in range(0, rows.batch.num_rows, _WINDOW_ROWS):
            num_window_rows = min(_WINDOW_ROWS, rows.batch.num_rows - begin)
            with errors_named(self.path, what):
                windows = RowWindow.of(readers, begin, num_window_rows, self.limit)
            row = 0
            while row < num_window_rows:
                with errors_named(self.path, what):
                    stop = windows.stop(row, self.block_bytes - self.num_bytes)
                    if stop > row or not self.num_rows:
                        stop = max(stop, row + 1)
                        self.add_piece(windows, row, stop, group=rows.group, first_row=rows.first_row + begin)
                row = stop
                if row < num_window_rows or self.num_bytes >= self.block_bytes:
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
    return texts[0] if len(texts) == 1 else pa.concat_arrays(texts or [text_array([])])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWindow:
    """The wanted columns of some rows."""

    columns: tuple[TextWindow, ...]
    sizes: NDArray[np.int64]
    """Bytes of text of each row, shape [rows]."""
    is_good: NDArray[np.bool_]
    """Which rows have all texts and are no larger than the limit, shape [rows]; whether they are UTF-8 shows later."""
    limit: int | None

    @classmethod
    def of(cls, readers: Sequence[TextColumnReader], begin: int, num_rows: int, limit: int | None) -> RowWindow:
        """Return rows from number `begin` on.

        Raises:
            pa.ArrowInvalid: If a column is damaged.
        """
        columns = tuple(reader.window(begin, num_rows) for reader in readers)
        sizes = np.sum([column.row_sizes() for column in columns], axis=0)
        is_good = np.logical_and.reduce([column.are_texts() for column in columns])
        if limit is not None:
            is_good &= sizes <= limit
        return cls(columns=columns, sizes=sizes, is_good=is_good, limit=limit)

    def stop(self, begin: int, room: int) -> int:
        """Return the number after the rows from `begin` on that have at most a number of bytes."""
        sizes = self.sizes[begin:] if self.limit is None else np.minimum(self.sizes[begin:], self.limit)
        return begin + int(np.searchsorted(np.cumsum(sizes), room, side="right"))

    def show_row(self, row: int, names: Sequence[str]) -> dict[str, Shown]:
        """Return a row's wanted columns as JSON can store them, at least the part that is within the limit.

        Bytes that are not UTF-8 become lone surrogates, as in names of files.
        """
        shown: dict[str, Shown] = {}
        left = self.limit
        for name, column in zip(names, self.columns, strict=True):
            texts: list[str | None] = []
            for text in _row_texts(column, row, left):
                texts.append(None if text is None else text.decode("utf-8", "surrogateescape"))
                left = None if left is None else max(0, left - len(text or b""))
                if left == 0:
                    break
            if not column.is_valid[row]:
                shown[name] = None
            else:
                shown[name] = texts if column.counts is not None else texts[0]
            if left == 0:
                break
        return shown

    def fault(self, row: int, names: Sequence[str]) -> str:
        """Return the reason why a row is bad, as `read_fields` says it of lines."""
        if self.limit is not None and self.sizes[row] > self.limit:
            return describe_long_line(int(self.sizes[row]), self.limit)
        for name, column in zip(names, self.columns, strict=True):
            fault = _column_fault(name, column, row)
            if fault is not None:
                return fault
        return "expected texts, got something else"


def find_not_utf8(text: bytes) -> str | None:
    """Describe the first byte that is not UTF-8; None without one."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"byte 0x{text[error.start]:02x} at byte {error.start + 1} of the text: {error.reason}"
    return None


def _column_fault(name: str, column: TextWindow, row: int) -> str | None:
    expected = f"expected a string or a list of strings under the column {name!r}"
    if not column.is_valid[row]:
        return f"{expected}, got null"
    for number, text in enumerate(_row_texts(column, row, None), 1):
        if text is None:
            return (
                f"{expected}, got null"
                if column.counts is None
                else f"{expected}, got a list with null as item {number}"
            )
        wrong = find_not_utf8(text)
        if wrong is not None:
            return f"expected UTF-8 under the column {name!r}, got {wrong}"
    return None


def _row_texts(column: TextWindow, row: int, limit: int | None) -> Iterator[bytes | None]:
    """Yield the texts of a row as bytes, each cut between characters where it is longer than the limit."""
    first, end = column.first_items[row : row + 2].tolist()
    for item in range(first, end):
        if not column.items.is_valid[item]:
            yield None
            continue
        text = memoryview(column.items.decode(slice(item, item + 1)).view(pa.large_binary())[0].as_buffer())
        if limit is None or len(text) <= limit + _LONGEST_CHARACTER:
            yield bytes(text)
        else:
            end_byte = limit + _LONGEST_CHARACTER
            while end_byte > limit and text[end_byte] & 0xC0 == 0x80:
                end_byte -= 1
            yield bytes(text[:end_byte])


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWindow:
    """Some rows of a column."""

    is_valid: NDArray[np.bool_]
    """Whether each row is a string or a list, shape [rows]."""
    counts: NDArray[np.int64] | None
    """Number of items of each row's list, shape [rows]; None for a column of strings."""
    items: Strings
    """The strings of all rows; those of a column of strings may be null where a row is."""

    @property
    def first_items(self) -> NDArray[np.int64]:
        """Number of the first item of each row, then the number of items; shape [rows + 1]."""
        counts = np.ones(len(self.is_valid), np.int64) if self.counts is None else self.counts
        return starts_of(counts)

    def row_sizes(self) -> NDArray[np.int64]:
        """Return the size of each row's texts in bytes, shape [rows]."""
        ends = starts_of(self.items.sizes)[self.first_items]
        sizes: NDArray[np.int64] = np.diff(ends)
        return sizes

    def are_texts(self) -> NDArray[np.bool_]:
        """Tell which rows are not null and have no null among their items, shape [rows]."""
        if self.counts is None:
            return self.is_valid & self.items.is_valid
        nulls = starts_of(~self.items.is_valid)[self.first_items]
        are_texts: NDArray[np.bool_] = self.is_valid & (np.diff(nulls) == 0)
        return are_texts


class TextColumnReader:
    """A column of strings or lists of strings of one batch.

    Raises:
        pa.ArrowInvalid: If the array is damaged; as do all methods.
    """

    def __init__(self, array: pa.Array) -> None:
        self._array = array
        self._is_list = is_list(array.type)
        kind = array.type.value_type if self._is_list else array.type
        self._dictionary: Strings | None = None
        if pa.types.is_dictionary(kind):
            values = array.values if self._is_list else array
            self._dictionary = Strings.of(values.dictionary).as_large()

    def window(self, begin: int, num_rows: int) -> TextWindow:
        """Return rows from number `begin` on."""
        rows = self._array.slice(begin, num_rows)
        is_valid = valid_of(rows)
        if not self._is_list:
            return TextWindow(is_valid=is_valid, counts=None, items=Strings.of(rows, self._dictionary))
        if isinstance(rows, pa.FixedSizeListArray):
            counts = np.full(len(rows), rows.type.list_size, np.int64)
        else:
            _check_offsets(rows.buffers()[1], rows, len(rows.values))
            counts = np.diff(numbers_of(rows.offsets)).astype(np.int64)
        counts[~is_valid] = 0  # as in `flatten`
        items = Strings.of(rows.flatten(), self._dictionary)
        if len(items) != counts.sum():
            raise pa.ArrowInvalid(f"a column of lists with {len(items)} items instead of {counts.sum()}")
        return TextWindow(is_valid=is_valid, counts=counts, items=items)


class Strings:
    """Strings whose sizes are known, and which are decoded later."""

    __slots__ = ("_indices", "_values", "is_valid", "sizes")

    def __init__(
        self, values: pa.Array, indices: pa.Array | None, is_valid: NDArray[np.bool_], sizes: NDArray[np.int64]
    ) -> None:
        self._values = values
        self._indices = indices
        self.is_valid = is_valid
        """Which are not null, shape [strings]."""
        self.sizes = sizes
        """Size of each in bytes, 0 for null, shape [strings]."""

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, array: pa.Array, dictionary: Strings | None = None) -> Strings:
        """Check an array of strings, or of indices of a dictionary.

        Raises:
            pa.ArrowInvalid: If it is damaged.
        """
        if dictionary is not None:
            return cls._encoded(array, dictionary)
        is_valid = valid_of(array)
        if pa.types.is_null(array.type):
            sizes = np.zeros(len(array), np.int64)
        elif pa.types.is_string_view(array.type):
            sizes = _view_sizes(array, is_valid)
        else:
            offsets = _check_offsets(array.buffers()[1], array, _size(array.buffers()[2]))
            sizes = np.diff(offsets).astype(np.int64)
        return cls(array, None, is_valid, np.where(is_valid, sizes, 0))

    @classmethod
    def _encoded(cls, array: pa.DictionaryArray, dictionary: Strings) -> Strings:
        is_valid = valid_of(array.indices)
        zero = number_array(np.zeros(1, array.indices.type.to_pandas_dtype()))[0]
        indices = numbers_of(array.indices.fill_null(zero))
        used = indices[is_valid]
        if used.size and not (used.min() >= 0 and used.max() < len(dictionary)):
            raise pa.ArrowInvalid(f"an index outside a dictionary of {len(dictionary)} strings")
        sizes = np.zeros(len(array), np.int64)
        sizes[is_valid] = dictionary.sizes[used]
        is_valid[is_valid] = dictionary.is_valid[used]
        return cls(dictionary._values, array.indices, is_valid, sizes)

    def decode(self, chosen: slice | NDArray[np.int64]) -> pa.LargeStringArray:
        """Return some of the strings, which are not null; their encoding is not checked.

        Args:
            chosen: A slice without a step, or the numbers of the strings.

        Returns:
            An array whose buffers hold these strings and nothing else.
        """
        array = self._values if self._indices is None else self._indices
        if isinstance(chosen, slice):
            begin, end, _ = chosen.indices(len(self))
            array = array.slice(begin, max(0, end - begin))
        else:
            array = (
                _take_views(array, chosen) if pa.types.is_string_view(array.type) else array.take(number_array(chosen))
            )
        if self._indices is not None:
            array = self._values.take(array)
        if pa.types.is_string_view(array.type) or pa.types.is_null(array.type):
            array = array.cast(pa.large_string())
        return _trimmed(array)

    def as_large(self) -> Strings:
        """Return the same strings as large ones, to take from."""
        return Strings(self._values.cast(pa.large_string()), None, self.is_valid, self.sizes)


def _size(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.size


def _check_offsets(buffer: pa.Buffer | None, array: pa.Array, end: int) -> NDArray[np.int64]:
    """Return the offsets of strings or lists, after a check that they ascend within [0, end]."""
    kind = array.type
    is_large = pa.types.is_large_string(kind) or pa.types.is_large_list(kind)
    if len(array) == 0:
        return np.zeros(1, np.int64)
    dtype = np.dtype("<i8" if is_large else "<i4")
    if buffer is None or buffer.size < dtype.itemsize * (array.offset + len(array) + 1):
        raise pa.ArrowInvalid("a column with fewer offsets than rows")
    offsets = np.frombuffer(buffer, dtype, count=len(array) + 1, offset=dtype.itemsize * array.offset)
    if offsets[0] < 0 or offsets[-1] > end or (offsets[1:] < offsets[:-1]).any():
        raise pa.ArrowInvalid(f"offsets that do not ascend from 0 to {end}")
    return offsets


def _view_sizes(array: pa.Array, is_valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the sizes of views, after a check that they are inside their buffers.

    A view has 16 bytes: the size, and the string itself; or its first four bytes, the buffer's number and the offset.
    """
    if len(array) == 0:
        return np.zeros(0, np.int64)
    _, views, *buffers = array.buffers()
    if _size(views) < 16 * (array.offset + len(array)):
        raise pa.ArrowInvalid("a column with fewer views than rows")
    parts = np.frombuffer(views, "<i4", count=4 * len(array), offset=16 * array.offset).reshape(-1, 4).astype(np.int64)
    sizes = np.where(is_valid, parts[:, 0], 0)
    numbers, offsets = parts[:, 2], parts[:, 3]
    ends = np.array([*map(_size, buffers), -1], np.int64)
    known = ends[np.where((numbers >= 0) & (numbers < len(buffers)), numbers, -1)]
    is_outside = (sizes > _INLINE_BYTES) & ((offsets < 0) | (offsets + sizes > known))
    if (sizes < 0).any() or is_outside.any():
        raise pa.ArrowInvalid("views of strings outside their buffers")
    return sizes


def _take_views(array: pa.StringViewArray, chosen: NDArray[np.int64]) -> pa.LargeStringArray:
    """Return some of the strings, by runs of adjacent ones: pyarrow cannot take from views."""
    runs = np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1) if len(chosen) else []
    pieces = [array.slice(int(run[0]), len(run)).cast(pa.large_string()) for run in runs]
    return pa.concat_arrays([text_array([]), *pieces])


def _trimmed(texts: pa.StringArray | pa.LargeStringArray) -> pa.LargeStringArray:
    """Return an array without nulls whose offsets begin at 0, and whose bytes end with the last text."""
    if len(texts) == 0:
        return text_array([])
    _, ends, data = texts.buffers()
    dtype = np.dtype("<i8" if pa.types.is_large_string(texts.type) else "<i4")
    offsets = np.frombuffer(ends, dtype, count=len(texts) + 1, offset=dtype.itemsize * texts.offset).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    bytes_used = pa.py_buffer(b"") if data is None else data.slice(begin, end - begin)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets - begin), bytes_used)
