"""The wanted columns of a few rows side by side: which rows are good, and what is wrong with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from dsindex.text.record_blocks import describe_long_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.text.tables.texts import TextColumnReader, TextWindow

Shown: TypeAlias = str | list[str | None] | None

_LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""


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
        """Return the number after the rows from `begin` on that fill a number of bytes, at least one row."""
        sizes = self.sizes[begin:] if self.limit is None else np.minimum(self.sizes[begin:], self.limit)
        filled = int(np.searchsorted(np.cumsum(sizes), room, side="left")) + 1
        return min(begin + filled, len(self.sizes))

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
