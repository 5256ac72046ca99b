"""Samples: a share of the records, chosen by a hash of their values.

So the choice depends on nothing else: not on the input, the position in it, or how the input is stored. A larger share
keeps all records of a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.formats.dtypes import starts_of
from dsindex.text.blocks import keep_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.text.blocks import Column, RecordBlock

HASH_SEED = 0x64_73_69_6E_64_65_78
"""Makes the choice of a sample independent of other choices by XXH3-64 of the text."""


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
    """Return a block with its records that are in a sample.

    Args:
        block: The records; bad ones stay.
        samples: The samples.
    """
    if tuple(samples) == (ALL_RECORDS,) or not len(block.offsets):
        return block
    hashes = hash_records(block)
    kept = np.logical_or.reduce([sample.holds(hashes) for sample in samples])
    return keep_records(block, kept)


def hash_records(block: RecordBlock) -> NDArray[np.uint64]:
    """Return the hash of each record, shape [records]: the sum of its keys' hashes, in any order, modulo 2**64.

    A key's hash is XXH3-64 of its text in UTF-8; for a list of any other length than 1, XXH3-64 of its texts' hashes,
    8 bytes each. Of token ids, the ids are hashed, 4 bytes each, in place of the text.
    """
    total = np.zeros(len(block.offsets), np.uint64)
    for column in block.columns.values():
        total += _hash_column(column)
    return total


def _hash_column(column: Column) -> NDArray[np.uint64]:
    spelt = (
        (np.array(ids, "<u4").tobytes() for ids in column.items) if column.holds_ids else map(str.encode, column.items)
    )
    hashes = np.fromiter(map(_digest, spelt), np.uint64, len(column.items))
    if column.counts is None:
        return hashes
    by_record = [hashes[begin:end].astype("<u8") for begin, end in pairwise(starts_of(column.counts).tolist())]
    return np.array([own[0] if len(own) == 1 else _digest(own.tobytes()) for own in by_record], np.uint64)


def _digest(content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=HASH_SEED)
