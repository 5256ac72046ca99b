"""Blocks of records: the wanted values of consecutive lines as columns, the bad records, and samples.

A value is a text or a list of texts; or, with token ids, a list of ids in [0, vocabulary size), or a list of such
lists. Nothing is converted: `1.0` and `true` are not ids.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.formats.dtypes import starts_of
from dsindex.text.fields import type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The values of one key: texts without lone surrogates, or sequences of token ids."""

    items: Sequence[Any]
    """All texts or sequences of the block, in order."""
    counts: NDArray[np.int64] | None
    """Number of items of each record, shape [records]; None if each record has one."""

    @classmethod
    def of_values(cls, values: Sequence[Any], *, holds_ids: bool = False) -> Column:
        """Make the column from one value per record: an item or a list of items."""
        if not holds_ids and list not in set(map(type, values)):
            return cls(items=values, counts=None)
        probes = [(value or [0])[0] if holds_ids else value for value in values]  # an empty list of ids is one sequence
        lists = [value if isinstance(probe, list) else [value] for value, probe in zip(values, probes, strict=True)]
        return cls(items=list(chain.from_iterable(lists)), counts=np.fromiter(map(len, lists), np.int64, len(lists)))

    @property
    def holds_ids(self) -> bool:
        """Whether the items are sequences of token ids."""
        return bool(self.items) and isinstance(self.items[0], list)

    def keep(self, is_kept: NDArray[np.bool_]) -> Column:
        """Return the column of the kept records."""
        is_kept_item = is_kept if self.counts is None else np.repeat(is_kept, self.counts)
        counts = None if self.counts is None else self.counts[is_kept]
        return Column(items=list(compress(self.items, is_kept_item.tolist())), counts=counts)

    def items_by_record(self) -> Iterator[Sequence[Any]]:
        """Yield the items of each record.

        >>> list(Column(items=["a", "b", "c"], counts=np.array([2, 0, 1])).items_by_record())
        [['a', 'b'], [], ['c']]
        """
        if self.counts is None:
            return ([item] for item in self.items)
        return (self.items[begin:end] for begin, end in pairwise(starts_of(self.counts).tolist()))

    def sizes(self) -> NDArray[np.int64]:
        """Return the size of each record's values, shape [records]: UTF-8 bytes of texts, 4 bytes per token id."""
        is_plain = self.holds_ids or all(map(str.isascii, self.items))
        sizes = np.fromiter(map(len, self.items if is_plain else map(str.encode, self.items)), np.int64)
        sizes *= 4 if self.holds_ids else 1
        return sizes if self.counts is None else np.diff(starts_of(sizes)[starts_of(self.counts)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A line that is neither blank nor a record with all wanted keys."""

    offset: int
    """Byte offset in the file of the line's first byte."""
    line: int
    """Line number, counted from 0 at the start of the part."""
    line_bytes: bytes
    """The line as stored in the file, excluding the newline, cut at the limit."""
    reason: str
    part: int = 0
    """Number of the part, if several parts are read together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBlock:
    """The records of consecutive lines, in order; all other lines are blank, bad or filtered."""

    num_lines: int
    blank_parts: NDArray[np.int64]
    """Number of the part of each blank line, shape [blank lines]."""
    offsets: NDArray[np.int64]
    """Byte offset in the file of each record's line, shape [records]."""
    lines: NDArray[np.int64]
    """Line number of each record, counted from 0 at the start of the part, shape [records]."""
    parts: NDArray[np.int64]
    """Number of the part of each record, shape [records]."""
    columns: dict[str, Column]
    """The texts or token ids of each wanted key; all columns have the same records."""
    bad_records: tuple[BadRecord, ...]
    """Bad records, in file order; they are in no column."""
    text_bytes: int = 0
    """Bytes of text that were read: lines with newlines, or the texts of table rows."""
    read_line: Callable[[int, int], bytes] = lambda _part, _line: b""
    """Returns the bytes of a line, given the numbers of its part and line."""


def describe_long_line(num_bytes: int, limit: int) -> str:
    """Return the reason why a line longer than the limit is a bad record."""
    return f"record of {num_bytes} bytes is larger than the limit of {limit} bytes"


def find_id_fault(value: object, vocabulary_size: int) -> str | None:
    """Describe the first value that is not a token id; None if all are.

    >>> find_id_fault([1, 7], 8), find_id_fault([[1], []], 8)
    (None, None)
    >>> find_id_fault([1, 8], 8)
    'a list with 8 as item 2'
    """
    if not isinstance(value, list):
        return _describe_value(value)
    is_nested = bool(value) and isinstance(value[0], list)
    for number, ids in enumerate(value if is_nested else [value], 1):
        if not isinstance(ids, list):
            return f"a list of lists with {_describe_value(ids)} as item {number}"
        if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocabulary_size):
            continue
        bad_index = next(i for i, token in enumerate(ids) if type(token) is not int or not 0 <= token < vocabulary_size)
        place = f"item {bad_index + 1} of list {number}" if is_nested else f"item {bad_index + 1}"
        return f"a list with {_describe_value(ids[bad_index])} as {place}"
    return None


def _describe_value(value: object) -> str:
    if isinstance(value, (bool, int, float)):
        number_text = json.dumps(value)
        return number_text if len(number_text) <= _SHOWN_CHARACTERS else f"{number_text[:_SHOWN_CHARACTERS]}…"
    return type_name(value)


def keep_records(block: RecordBlock, is_kept: NDArray[np.bool_]) -> RecordBlock:
    """Return a block with only the kept records; the rest count as filtered."""
    return replace(
        block,
        offsets=block.offsets[is_kept],
        lines=block.lines[is_kept],
        parts=block.parts[is_kept],
        columns={key: column.keep(is_kept) for key, column in block.columns.items()},
    )


def mark_bad(block: RecordBlock, reasons: Mapping[int, str]) -> RecordBlock:
    """Return a block in which the records with these numbers are bad."""
    bad_records = list(block.bad_records)
    for number, reason in reasons.items():
        line, part = int(block.lines[number]), int(block.parts[number])
        line_bytes = block.read_line(part, line)
        bad_records.append(
            BadRecord(offset=int(block.offsets[number]), line=line, line_bytes=line_bytes, reason=reason, part=part)
        )
    is_kept = np.ones(len(block.offsets), np.bool_)
    is_kept[list(reasons)] = False
    bad_records.sort(key=lambda record: (record.part, record.line))
    return replace(keep_records(block, is_kept), bad_records=tuple(bad_records))


# Samples: a share of the records, chosen by a hash of their values, so that the choice does not depend on the input,
# the position in it, or how the input is stored. A larger share keeps all records of a smaller one.

HASH_SEED = 0x64_73_69_6E_64_65_78
"""Makes the choice of a sample independent of other uses of XXH3-64 on the same text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The records with hashes in [low, high), as shares of all hashes; bounds are exact decimals, as they print."""

    low: float = 0.0
    high: float = 1.0
    prefix: str = ""
    """Prefix of the key in the name of their dataset."""

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which records are in the sample, shape [records]."""
        first, end = (int(Fraction(str(bound)) * 2**64) for bound in (self.low, self.high))
        is_in_sample = hashes >= np.uint64(first)
        return is_in_sample if end >= 2**64 else is_in_sample & (hashes < np.uint64(end))


ALL_RECORDS = Sample()


def sample_records(block: RecordBlock, samples: Sequence[Sample]) -> RecordBlock:
    """Return a block with the records that are in any of the samples.

    Args:
        block: The records; bad records are kept.
        samples: The samples.
    """
    if tuple(samples) == (ALL_RECORDS,) or not len(block.offsets):
        return block
    hashes = hash_records(block)
    is_sampled = np.logical_or.reduce([sample.holds(hashes) for sample in samples])
    return keep_records(block, is_sampled)


def hash_records(block: RecordBlock) -> NDArray[np.uint64]:
    """Return the hash of each record, shape [records]: the sum of its keys' hashes modulo 2**64, in any order of keys.

    A key's hash is XXH3-64 of its UTF-8 text; for a list whose length is not 1, XXH3-64 of its texts' hashes, 8 bytes
    each. Token ids are hashed instead of a text, 4 bytes each.
    """
    total = np.zeros(len(block.offsets), np.uint64)
    for column in block.columns.values():
        total += _hash_column(column)
    return total


def _hash_column(column: Column) -> NDArray[np.uint64]:
    contents = (
        (np.array(ids, "<u4").tobytes() for ids in column.items) if column.holds_ids else map(str.encode, column.items)
    )
    hashes = np.fromiter(map(_digest, contents), np.uint64, len(column.items))
    if column.counts is None:
        return hashes
    groups = [hashes[begin:end].astype("<u8") for begin, end in pairwise(starts_of(column.counts).tolist())]
    return np.array([group[0] if len(group) == 1 else _digest(group.tobytes()) for group in groups], np.uint64)


def _digest(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=HASH_SEED)
