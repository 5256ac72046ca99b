"""Rows of `input_ids`, `attention_mask` and `labels`, which the trainers around transformers read without tokenizing.

    input_ids        list<int32>   the tokens of a sequence
    attention_mask   list<int8>    1 for each
    labels           list<int64>   the token where it is trainable, else -100

Row i is sequence i. Labels are not shifted: transformers shifts them when it computes the loss. A file has
ROWS_PER_FILE rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.exports import Counts, WrittenFile, file_rows, list_array, open_sequences, split_file_name
from dsindex.jobs.exports.tables import write_parquet
from dsindex.store.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.datasets.exports import ExportedSequences, SequenceSource

IGNORED_LABEL = -100
"""The label on which cross entropy computes no loss."""
ROWS_PER_FILE = 100_000
ROWS_PER_GROUP = 1_000
"""Rows of a row group or record batch, if they have at most TOKENS_PER_GROUP tokens."""
TOKENS_PER_GROUP = 1 << 22
"""Tokens of a group that has more than one row; they take about 30 bytes of memory each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFile:
    """Task of writing one file."""

    source: SequenceSource
    begin: int
    """First row."""
    end: int
    folder: str
    name: str
    """Name of the file, relative to the folder."""
    facts: tuple[tuple[str, str], ...]
    """Names and values for the footer of a Parquet file."""


def plan_files(
    splits: Sequence[ExportedSequences], *, folder: str, facts: tuple[tuple[str, str], ...]
) -> list[ParquetFile]:
    """Return the tasks of a folder that `datasets.load_dataset` opens, with all splits."""
    return [
        ParquetFile(
            source=split.source,
            begin=begin,
            end=end,
            folder=folder,
            name=split_file_name(split.name, number, len(rows), "parquet"),
            facts=facts,
        )
        for split in splits
        for rows in [file_rows(split.num_sequences, ROWS_PER_FILE)]
        for number, (begin, end) in enumerate(rows)
    ]


def write_rows(task: ParquetFile) -> WrittenFile:
    """Write rows [begin, end) of a split, with one group in memory.

    Raises:
        FormatError: If tokens or masks are missing or damaged.
        OutputError: If the file cannot be written.
    """
    counts = Counts()

    def batches() -> Iterator[pa.RecordBatch]:
        sequences = open_sequences(task.source)
        for begin, end in group_rows(sequences.lengths[task.begin : task.end]):
            tokens, mask, offsets = sequences.take(np.arange(task.begin + begin, task.begin + end))
            counts.add(mask, offsets, num_rows=end - begin)
            yield _batch(tokens, mask, offsets)

    with atomic_writer(os.path.join(task.folder, task.name)) as file:
        write_parquet(file, _schema(), batches(), lambda: {**dict(task.facts), **counts.facts()})
    return WrittenFile(file=file.as_stored(task.name), counts=counts)


def group_rows(lengths: NDArray[np.integer[Any]]) -> Iterator[tuple[int, int]]:
    """Yield the rows of each group: a function of the lengths alone.

    >>> list(group_rows(np.array([1 << 21, 1 << 21, 1, 1 << 23])))
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    begin, before = 0, 0
    while begin < len(ends):
        fitting = int(np.searchsorted(ends, before + TOKENS_PER_GROUP, side="right"))
        end = max(begin + 1, min(fitting, begin + ROWS_PER_GROUP))
        yield begin, end
        begin, before = end, int(ends[end - 1])


def _schema() -> pa.Schema:
    import pyarrow as pa

    types = {"input_ids": pa.int32(), "attention_mask": pa.int8(), "labels": pa.int64()}
    return pa.schema([(name, pa.list_(kind)) for name, kind in types.items()])


def _batch(tokens: NDArray[np.int32], mask: NDArray[np.uint8], offsets: NDArray[np.int64]) -> pa.RecordBatch:
    import pyarrow as pa

    labels = np.where(mask != 0, tokens, IGNORED_LABEL).astype(np.int64)
    columns: list[NDArray[Any]] = [tokens, np.ones(len(tokens), np.int8), labels]
    return pa.record_batch([list_array(values, offsets) for values in columns], schema=_schema())
