"""Split a dataset's documents into ranges of about equal size that readers on many machines read independently."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.datasets.indexed import IndexedDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

BLOCK_BYTES = 32 << 20
"""Bytes of tokens per table; a longer document gets its own table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRange:
    """The documents [begin, end) of a dataset."""

    prefix: str
    """Absolute path, since the task may run in another folder."""
    begin: int
    end: int
    size_bytes: int
    """Size of the tokens."""


def plan_ranges(dataset: IndexedDataset, num_ranges: int, *, prefix: str) -> list[DocumentRange]:
    """Split the documents into at most `num_ranges` non-empty ranges of about equal size in bytes."""
    total = dataset.num_tokens * dataset.dtype.itemsize
    count = dataset.num_documents
    cuts = [
        bisect_left(range(count), -(-total * number // num_ranges), key=lambda document: _first_byte(dataset, document))
        for number in range(num_ranges)
    ]
    bounds = sorted({0, *cuts, count})
    return [
        DocumentRange(
            prefix=prefix,
            begin=begin,
            end=end,
            size_bytes=_first_byte(dataset, end) - _first_byte(dataset, begin),
        )
        for begin, end in itertools.pairwise(bounds)
    ]


def read_range(documents: DocumentRange) -> Iterator[pa.Table]:
    """Yield the documents of a range as tables of about BLOCK_BYTES."""
    dataset = IndexedDataset(documents.prefix, check=False)
    begin = documents.begin
    while begin < documents.end:
        end = bisect_left(
            range(documents.end),
            _first_byte(dataset, begin) + BLOCK_BYTES,
            lo=begin + 1,
            key=lambda document: _first_byte(dataset, document),
        )
        yield _make_table(dataset, begin, end)
        begin = end


def _make_table(dataset: IndexedDataset, begin: int, end: int) -> pa.Table:
    import pyarrow as pa

    values, _, pointers, shift = dataset.token_columns()
    sequences = dataset.document_indices[begin : end + 1]
    starts = np.full(len(sequences), len(values), np.int64)  # documents after the last sequence begin at the end
    starts[sequences < len(pointers)] = pointers[sequences[sequences < len(pointers)]] >> shift
    first, last = int(starts[0]), int(starts[-1])
    tokens = pa.LargeListArray.from_arrays(pa.array(starts - first), pa.array(values[first:last]))
    return pa.table({"document": pa.array(np.arange(begin, end)), "tokens": tokens})


def _first_byte(dataset: IndexedDataset, document: int) -> int:
    """Return the byte at which a document begins in the `.bin`; past the last document, the size of the `.bin`."""
    _, lengths, pointers, _ = dataset.token_columns()
    sequence = int(dataset.document_indices[document])
    return int(pointers[sequence]) if sequence < len(lengths) else dataset.num_tokens * dataset.dtype.itemsize
