"""The records of consecutive lines: the wanted values as columns, and the bad records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.dtypes import starts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.text.token_ids import TokenColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The texts of one key."""

    texts: pa.LargeStringArray
    """All texts of the block, in order."""
    texts_per_record: NDArray[np.int64] | None
    """Number of texts of each record, shape [records]; None if each record has one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A line that is neither blank nor a record with all wanted keys."""

    offset: int
    """Byte offset in the file of the line's first byte."""
    line: int
    """Line number, counted from 0 at the start of the range."""
    line_bytes: bytes
    """The line as stored in the file, excluding the newline, cut at the limit."""
    reason: str
    file: int = 0
    """Number of the file, where several are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBlock:
    """Consecutive lines of a range, in file order: num_lines = num_blank + num_filtered + records + bad."""

    num_lines: int
    num_blank: int
    offsets: NDArray[np.int64]
    """Byte offset in the file of each record's line, shape [records]."""
    lines: NDArray[np.int64]
    """Line number of each record, counted from 0 at the start of the range, shape [records]."""
    columns: dict[str, TextColumn | TokenColumn]
    """The texts or token ids of each wanted key; all columns have the same records."""
    bad: tuple[BadRecord, ...]
    """Bad records, in file order; they are in no column."""
    num_filtered: int = 0
    """Number of records that a condition or a sample leaves out; they are in no column."""
    num_bytes: int = 0
    """Size of its lines in the text, with newlines."""
    blank_lines: NDArray[np.int64] | None = None
    """Line numbers of the blank lines; None if there are none, or if they are not known."""
    read_line: Callable[[int], bytes] | None = None
    """Returns a line by its number, until the next block is requested; None for the columns of a table."""


def describe_long_line(num_bytes: int, limit: int) -> str:
    """Return the reason why a line longer than the limit is a bad record."""
    return f"record of {num_bytes} bytes is larger than the limit of {limit} bytes"


def text_sizes(column: TextColumn) -> NDArray[np.int64]:
    """Return the size of each record's texts in UTF-8, shape [records]."""
    bounds, counts = string_buffers(column.texts)[0], column.texts_per_record
    return np.diff(bounds if counts is None else bounds[starts_of(counts)])


def string_buffers(texts: pa.LargeStringArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the buffers of an Arrow array without copies.

    Returns:
        Offsets of shape [D + 1] into the bytes, which need not start at 0 if the array is a slice; and all the bytes.
    """
    _, ends, data = texts.buffers()
    if ends is None:
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    offsets = np.frombuffer(ends, np.int64, count=len(texts) + 1, offset=8 * texts.offset)
    return offsets, np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
