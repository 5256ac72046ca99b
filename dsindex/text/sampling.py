"""Keep a share of the records, chosen by a hash of their texts.

So a record's choice depends on nothing but its texts: not on its input, its place there, or how the input is stored. A
larger share keeps all records of a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import compress, pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.dtypes import starts_of
from dsindex.json_text import encode_json
from dsindex.text.record_blocks import BadRecord, TextColumn
from dsindex.text.token_ids import TokenColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.text.record_blocks import RecordBlock

HASH_SEED = 0x64_73_69_6E_64_65_78
"""Makes the choice independent of other choices by XXH3-64 of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The records whose hashes are in a range, as shares of all hashes, and the decimals they print as."""

    low: float = 0.0
    high: float = 1.0
    prefix: str = ""
    """What stands before the key in the name of their dataset."""

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Tell which records are in the sample, shape [records]."""
        first, end = (int(Fraction(str(bound)) * 2**64) for bound in (self.low, self.high))
        kept = hashes >= np.uint64(first)
        return kept if end >= 2**64 else kept & (hashes < np.uint64(end))


ALL_RECORDS = Sample()


def sample_records(block: RecordBlock, samples: Sequence[Sample]) -> RecordBlock:
    """Return a block with its records that are in a sample; the others are counted as filtered.

    Args:
        block: The records; bad ones stay.
        samples: The samples.
    """
    if tuple(samples) == (ALL_RECORDS,) or not len(block.offsets):
        return block
    hashes = hash_records(block)
    kept = np.logical_or.reduce([sample.holds(hashes) for sample in samples])
    if kept.all():
        return block
    return replace(keep_records(block, kept), num_filtered=block.num_filtered + int(np.count_nonzero(~kept)))


def keep_records(block: RecordBlock, kept: NDArray[np.bool_]) -> RecordBlock:
    """Return a block with a part of its records; the others are in none of its counts."""
    return replace(
        block,
        offsets=block.offsets[kept],
        lines=block.lines[kept],
        columns={key: _filter_column(column, kept) for key, column in block.columns.items()},
    )


def set_aside(block: RecordBlock, reasons: Mapping[int, str]) -> RecordBlock:
    """Return a block in which some records, by number, are bad ones."""
    numbers = list(reasons)
    lines = block.lines[numbers].tolist()
    places = zip(numbers, block.offsets[numbers].tolist(), lines, reasons.values(), strict=True)
    bad = [
        BadRecord(offset=offset, line=line, line_bytes=_line_bytes(block, number), reason=reason)
        for number, offset, line, reason in places
    ]
    kept = np.ones(len(block.offsets), np.bool_)
    kept[numbers] = False
    return replace(keep_records(block, kept), bad=tuple(sorted([*block.bad, *bad], key=lambda record: record.line)))


def _line_bytes(block: RecordBlock, number: int) -> bytes:
    """Return a record as it is in the file; one of a table as an object of the wanted columns."""
    if block.read_line is not None:
        return block.read_line(int(block.lines[number]))
    kept = np.zeros(len(block.offsets), np.bool_)
    kept[number] = True
    texts: dict[str, object] = {}
    for key, column in keep_records(block, kept).columns.items():
        if isinstance(column, TextColumn):
            own = column.texts
            texts[key] = own[0] if column.texts_per_record is None else list(own)
    return encode_json(texts)


def hash_records(block: RecordBlock) -> NDArray[np.uint64]:
    """Return the hash of each record, shape [records]: the sum of its keys' hashes, in any order, modulo 2**64.

    A key's hash is XXH3-64 of its text in UTF-8; for a list of any other length than 1, XXH3-64 of its texts' hashes,
    8 bytes each. Of token ids, the ids are hashed, 4 bytes each, in place of the text.
    """
    total = np.zeros(len(block.offsets), np.uint64)
    for column in block.columns.values():
        total += _hash_column(column)
    return total


def _hash_column(column: TextColumn | TokenColumn) -> NDArray[np.uint64]:
    items: list[bytes]
    if isinstance(column, TokenColumn):
        ids = column.tokens.astype("<u4", copy=False).tobytes()
        ends = (starts_of(column.lengths) * 4).tolist()
        items, counts = [ids[begin:end] for begin, end in pairwise(ends)], column.sequences_per_record
    else:
        items, counts = list(map(str.encode, column.texts)), column.texts_per_record
    hashes = np.fromiter((_digest(item) for item in items), np.uint64, len(items))
    if counts is None:
        return hashes
    own = np.split(hashes.astype("<u8", copy=False), np.cumsum(counts)[:-1])
    return np.array([each[0] if len(each) == 1 else _digest(each.tobytes()) for each in own[: len(counts)]], np.uint64)


def _digest(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=HASH_SEED)


def _filter_tokens(column: TokenColumn, kept: NDArray[np.bool_]) -> TokenColumn:
    counts = column.sequences_per_record
    own = kept if counts is None else np.repeat(kept, counts)
    return TokenColumn(
        tokens=column.tokens[np.repeat(own, column.lengths)],
        lengths=column.lengths[own],
        sequences_per_record=None if counts is None else counts[kept],
    )


def _filter_column(column: TextColumn | TokenColumn, kept: NDArray[np.bool_]) -> TextColumn | TokenColumn:
    if isinstance(column, TokenColumn):
        return _filter_tokens(column, kept)
    return _filter_texts(column, kept)


def _filter_texts(column: TextColumn, kept: NDArray[np.bool_]) -> TextColumn:
    counts = column.texts_per_record
    own = kept if counts is None else np.repeat(kept, counts)
    return TextColumn(
        texts=list(compress(column.texts, own.tolist())), texts_per_record=None if counts is None else counts[kept]
    )
