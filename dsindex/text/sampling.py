"""Keep a share of the records, chosen by a hash of their texts.

So a record's choice depends on nothing but its texts: not on its input, its place there, or how the input is stored. A
larger share keeps all records of a smaller one.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.arrow import number_array
from dsindex.text.record_blocks import string_buffers
from dsindex.text.token_ids import TokenColumn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.text.record_blocks import RecordBlock, TextColumn

HASH_SEED = 0x64_73_69_6E_64_65_78
"""Makes the choice independent of other choices by XXH3-64 of the text."""


def sample_records(block: RecordBlock, shares: tuple[float, ...]) -> RecordBlock:
    """Return a block with a sample of its records; the others are counted as filtered.

    Args:
        block: The records; bad ones stay.
        shares: The share of the records to keep is the product of these, each in (0, 1], as the decimals they print as.
    """
    limit = int(multiply_shares(shares) * 2**64)
    if limit >= 2**64 or not len(block.offsets):
        return block
    kept = hash_records(block) < np.uint64(limit)
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


def multiply_shares(shares: tuple[float, ...]) -> Fraction:
    """Return the exact product of decimals.

    >>> multiply_shares((0.1, 0.5))
    Fraction(1, 20)
    """
    product = Fraction(1)
    for share in shares:
        product *= Fraction(str(share))
    return product


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
    if isinstance(column, TokenColumn):
        ids = column.tokens.astype("<u4", copy=False)
        hashes, counts = _hash_items(ids.data.cast("B"), _starts(column.lengths) * 4), column.sequences_per_record
    else:
        bounds, data = string_buffers(column.texts)
        hashes, counts = _hash_items(data.data, bounds), column.texts_per_record
    if counts is None:
        return hashes
    ends = np.cumsum(counts).tolist()
    stored = hashes.astype("<u8", copy=False)
    begin = 0
    joined = np.empty(len(ends), np.uint64)
    for record, end in enumerate(ends):
        own = stored[begin:end]
        joined[record] = own[0] if end - begin == 1 else xxhash.xxh3_64_intdigest(own.tobytes(), seed=HASH_SEED)
        begin = end
    return joined


def _hash_items(data: memoryview, bounds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash the bytes between each two of the bounds."""
    digest, seed = xxhash.xxh3_64_intdigest, HASH_SEED
    return np.fromiter(
        (digest(data[begin:end], seed=seed) for begin, end in pairwise(bounds.tolist())),
        np.uint64,
        count=len(bounds) - 1,
    )


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where consecutive items of these sizes begin, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))


def _filter_column(column: TextColumn | TokenColumn, kept: NDArray[np.bool_]) -> TextColumn | TokenColumn:
    if isinstance(column, TokenColumn):
        counts = column.sequences_per_record
        own = kept if counts is None else np.repeat(kept, counts)
        return TokenColumn(
            tokens=column.tokens[np.repeat(own, column.lengths)],
            lengths=column.lengths[own],
            sequences_per_record=None if counts is None else counts[kept],
        )
    counts = column.texts_per_record
    if counts is None:
        return replace(column, texts=column.texts.take(number_array(np.flatnonzero(kept))))
    texts = column.texts.take(number_array(np.flatnonzero(np.repeat(kept, counts))))
    return replace(column, texts=texts, texts_per_record=counts[kept])
