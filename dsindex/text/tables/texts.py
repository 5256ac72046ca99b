"""Take the texts out of columns of strings and lists of strings, a few rows at a time.

The sizes of texts are known before they are decoded: a few indices can stand for gigabytes of a dictionary's strings.
Arrays from files are not trusted: offsets, indices and views are checked before they are followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dsindex.text.tables.columns import is_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INLINE_BYTES = 12
"""Largest string that a view holds itself."""


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
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def row_sizes(self) -> NDArray[np.int64]:
        """Return the size of each row's texts in bytes, shape [rows]."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.items.sizes)])[self.first_items]
        sizes: NDArray[np.int64] = np.diff(ends)
        return sizes

    def are_texts(self) -> NDArray[np.bool_]:
        """Tell which rows are not null and have no null among their items, shape [rows]."""
        if self.counts is None:
            return self.is_valid & self.items.is_valid
        nulls = np.concatenate([np.zeros(1, np.int64), np.cumsum(~self.items.is_valid)])[self.first_items]
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
        is_valid = _valid(rows)
        if not self._is_list:
            return TextWindow(is_valid=is_valid, counts=None, items=Strings.of(rows, self._dictionary))
        if isinstance(rows, pa.FixedSizeListArray):
            counts = np.full(len(rows), rows.type.list_size, np.int64)
        else:
            _check_offsets(rows.buffers()[1], rows, len(rows.values))
            counts = np.diff(rows.offsets.to_numpy()).astype(np.int64)
        counts[~is_valid] = 0  # as in `flatten`
        items = Strings.of(rows.flatten(), self._dictionary)
        if len(items) != counts.sum():
            msg = f"a column of lists with {len(items)} items instead of {counts.sum()}"
            raise pa.ArrowInvalid(msg)
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
        is_valid = _valid(array)
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
        is_valid = _valid(array.indices)
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        used = indices[is_valid]
        if used.size and not (used.min() >= 0 and used.max() < len(dictionary)):
            msg = f"an index outside a dictionary of {len(dictionary)} strings"
            raise pa.ArrowInvalid(msg)
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
            array = _take_views(array, chosen) if pa.types.is_string_view(array.type) else array.take(pa.array(chosen))
        if self._indices is not None:
            array = self._values.take(array)
        if pa.types.is_string_view(array.type) or pa.types.is_null(array.type):
            array = array.cast(pa.large_string())
        return _trimmed(array)

    def as_large(self) -> Strings:
        """Return the same strings as large ones, to take from."""
        return Strings(self._values.cast(pa.large_string()), None, self.is_valid, self.sizes)


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    is_valid: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False).copy()
    return is_valid


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
        msg = "a column with fewer offsets than rows"
        raise pa.ArrowInvalid(msg)
    offsets = np.frombuffer(buffer, dtype, count=len(array) + 1, offset=dtype.itemsize * array.offset)
    if offsets[0] < 0 or offsets[-1] > end or (offsets[1:] < offsets[:-1]).any():
        msg = f"offsets that do not ascend from 0 to {end}"
        raise pa.ArrowInvalid(msg)
    return offsets


def _view_sizes(array: pa.Array, is_valid: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the sizes of views, after a check that they are inside their buffers.

    A view has 16 bytes: the size, and the string itself; or its first four bytes, the buffer's number and the offset.
    """
    if len(array) == 0:
        return np.zeros(0, np.int64)
    _, views, *buffers = array.buffers()
    if _size(views) < 16 * (array.offset + len(array)):
        msg = "a column with fewer views than rows"
        raise pa.ArrowInvalid(msg)
    parts = np.frombuffer(views, "<i4", count=4 * len(array), offset=16 * array.offset).reshape(-1, 4).astype(np.int64)
    sizes = np.where(is_valid, parts[:, 0], 0)
    numbers, offsets = parts[:, 2], parts[:, 3]
    ends = np.array([*map(_size, buffers), -1], np.int64)
    known = ends[np.where((numbers >= 0) & (numbers < len(buffers)), numbers, -1)]
    is_outside = (sizes > _INLINE_BYTES) & ((offsets < 0) | (offsets + sizes > known))
    if (sizes < 0).any() or is_outside.any():
        msg = "views of strings outside their buffers"
        raise pa.ArrowInvalid(msg)
    return sizes


def _take_views(array: pa.StringViewArray, chosen: NDArray[np.int64]) -> pa.LargeStringArray:
    """Return some of the strings, by runs of adjacent ones: pyarrow cannot take from views."""
    runs = np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1) if len(chosen) else []
    pieces = [array.slice(int(run[0]), len(run)).cast(pa.large_string()) for run in runs]
    return pa.concat_arrays([pa.array([], pa.large_string()), *pieces])


def _trimmed(texts: pa.StringArray | pa.LargeStringArray) -> pa.LargeStringArray:
    """Return an array without nulls whose offsets begin at 0, and whose bytes end with the last text."""
    if len(texts) == 0:
        return pa.array([], pa.large_string())
    _, ends, data = texts.buffers()
    dtype = np.dtype("<i8" if pa.types.is_large_string(texts.type) else "<i4")
    offsets = np.frombuffer(ends, dtype, count=len(texts) + 1, offset=dtype.itemsize * texts.offset).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    bytes_used = pa.py_buffer(b"") if data is None else data.slice(begin, end - begin)
    return pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets - begin), bytes_used)
