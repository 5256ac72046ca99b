"""The records of consecutive lines: the wanted values as columns, and the bad records."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dsindex.dtypes import starts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.text.token_ids import TokenColumn

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """The texts of one key, without lone surrogates."""

    texts: Sequence[str]
    """All texts of the block, in order."""
    texts_per_record: NDArray[np.int64] | None
    """Number of texts of each record, shape [records]; None if each record has one text."""

    @classmethod
    def of(cls, values: Sequence[str | list[str]]) -> TextColumn:
        """Return the column of these values, one for each record."""
        if list not in set(map(type, values)):
            return cls(texts=values, texts_per_record=None)  # type: ignore[arg-type]  # all are texts
        lists = [value if isinstance(value, list) else [value] for value in values]
        counts = np.fromiter(map(len, lists), np.int64, len(lists))
        return cls(texts=[text for texts in lists for text in texts], texts_per_record=counts)


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
    """Size of its lines in the text, with newlines; of rows of a table, of their texts."""
    blank_lines: NDArray[np.int64] | None = None
    """Line numbers of the blank lines; None if there are none, or if they are not known."""
    read_line: Callable[[int], bytes] | None = None
    """Returns a line by its number, until the next block is requested; None for the columns of a table."""


def describe_long_line(num_bytes: int, limit: int) -> str:
    """Return the reason why a line longer than the limit is a bad record."""
    return f"record of {num_bytes} bytes is larger than the limit of {limit} bytes"


def text_sizes(column: TextColumn) -> NDArray[np.int64]:
    """Return the size of each record's texts in UTF-8, shape [records]."""
    texts, counts = column.texts, column.texts_per_record
    spelt: Iterable[str | bytes] = texts if all(map(str.isascii, texts)) else map(str.encode, texts)
    sizes = np.fromiter(map(len, spelt), np.int64, len(texts))
    return sizes if counts is None else np.diff(starts_of(sizes)[starts_of(counts)])


def by_record(items: Sequence[Item], counts: NDArray[np.int64] | None) -> Iterator[Sequence[Item]]:
    """Yield the items of each record; the counts are None if each has one.

    >>> list(by_record("abc", np.array([2, 0, 1])))
    ['ab', '', 'c']
    """
    if counts is None:
        return ([item] for item in items)
    return (items[begin:end] for begin, end in pairwise(starts_of(counts).tolist()))
