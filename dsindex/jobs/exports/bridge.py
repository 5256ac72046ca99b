"""Packed sequences for Megatron-Bridge and NeMo: Parquet files named `*.idx.parquet`.

    input_ids      list<int32>   the sequences of a pack, one after the other
    loss_mask      list<int8>    1 where the *next* token of the same sequence is trainable
    seq_start_id   list<int32>   where each sequence begins
    sequences      list<int32>   their numbers in the dataset; the readers ignore this column

The readers drop the last token of each sequence from the input and the first from the labels, so a sequence of n tokens
takes n - 1 of the L places of a pack. For context parallelism its places are padded to a multiple with the tokenizer's
EOS: the readers (`pad_seq_to_mult`) find the end of a sequence by it. A row group has 500 rows; it is what the readers
load to get at a row.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dsindex.datasets.exports import Counts, WrittenFile, file_rows, list_array, open_sequences, split_file_name
from dsindex.dtypes import starts_of
from dsindex.errors import InputError
from dsindex.instruction.blocks import lay_out_blocks
from dsindex.jobs.exports.tables import write_parquet
from dsindex.store.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.datasets.exports import ExportedSequences, SequenceSource

SUFFIX = "idx.parquet"
METADATA_FILE = "packed_metadata.json"
ROWS_PER_GROUP = 500
TOKENS_PER_GROUP = 1 << 26
"""Limit on the tokens of a row group: packs of more than 134,217 tokens are in smaller groups."""
TOKENS_PER_FILE = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Packs:
    """The packs of a split."""

    sequences: NDArray[np.int32]
    """Numbers of the sequences, pack after pack."""
    starts: NDArray[np.int64]
    """Start of each pack in `sequences`, then the end of the last; shape [packs + 1]."""
    metadata: dict[str, float]
    """What Megatron-Bridge stores of a packing, to pad the boundaries of all packs to one shape."""

    @property
    def num_packs(self) -> int:
        """Number of packs."""
        return len(self.starts) - 1

    def slice(self, begin: int, end: int) -> Packs:
        """Return packs [begin, end)."""
        first, last = int(self.starts[begin]), int(self.starts[end])
        return Packs(
            sequences=self.sequences[first:last], starts=self.starts[begin : end + 1] - first, metadata=self.metadata
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The padding of sequences for context parallelism."""

    multiple: int
    """A sequence takes a multiple of so many places."""
    token: int
    """The id of the tokenizer's EOS; unused if the multiple is 1."""

    def places(self, lengths: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Return the places that sequences take; one without a target takes some, as a layout knows no empty ones."""
        places: NDArray[np.int32] = -(-np.maximum(lengths - 1, 1) // self.multiple) * self.multiple
        return places.astype(np.int32, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeFile:
    """Task of writing one file."""

    source: SequenceSource
    packs: Packs
    rows_per_group: int
    padding: Padding
    folder: str
    name: str
    """Name of the file, relative to the folder."""
    facts: tuple[tuple[str, str], ...]
    """Names and values for the footer."""


def rows_per_group(sequence_length: int) -> int:
    """Return the rows of a row group for packs of L tokens.

    >>> rows_per_group(4096), rows_per_group(1 << 20)
    (500, 64)
    """
    return max(1, min(ROWS_PER_GROUP, TOKENS_PER_GROUP // sequence_length))


def rows_per_file(sequence_length: int) -> int:
    """Return the rows of a file for packs of L tokens: whole row groups, with about TOKENS_PER_FILE tokens.

    >>> rows_per_file(4096), rows_per_file(1 << 20)
    (16000, 64)
    """
    group = rows_per_group(sequence_length)
    return max(1, TOKENS_PER_FILE // sequence_length // group) * group


def plan_bridge_files(
    splits: Sequence[ExportedSequences],
    packs: Sequence[Packs],
    *,
    sequence_length: int,
    padding: Padding,
    folder: str,
    facts: tuple[tuple[str, str], ...],
) -> list[BridgeFile]:
    """Return the tasks of a folder with the packs of each split."""
    return [
        BridgeFile(
            source=split.source,
            packs=own.slice(begin, end),
            rows_per_group=rows_per_group(sequence_length),
            padding=padding,
            folder=folder,
            name=split_file_name(split.name, number, len(rows), SUFFIX),
            facts=facts,
        )
        for split, own in zip(splits, packs, strict=True)
        for rows in [file_rows(own.num_packs, rows_per_file(sequence_length))]
        for number, (begin, end) in enumerate(rows)
    ]


def pack_sequences(source: SequenceSource, sequence_length: int, padding: Padding, *, drop_longer: bool) -> Packs:
    """Assign sequences to packs of at most L places by best fit, in about 30 bytes of memory per sequence.

    Raises:
        FormatError: If tokens or masks are missing or damaged.
        InputError: If a sequence is longer than L, and is not to be left out.
    """
    lengths = open_sequences(source).lengths
    places = np.where(lengths > sequence_length, sequence_length + 1, padding.places(lengths))
    try:
        layout = lay_out_blocks(places, sequence_length=sequence_length, drop_longer=drop_longer)
    except ValueError as error:
        raise InputError(f"{source.tokens}: {error}; pack with --longer-than-pack drop, or in longer packs") from error
    return Packs(
        sequences=layout.conversations,
        starts=layout.block_starts,
        metadata=_describe(places[layout.conversations], layout.block_starts, sequence_length),
    )


def write_bridge_file(task: BridgeFile) -> WrittenFile:
    """Write the packs of a file, with one row group in memory.

    Raises:
        FormatError: If tokens or masks are missing or damaged.
        OutputError: If the file cannot be written.
    """
    counts = Counts()

    def groups() -> Iterator[pa.RecordBatch]:
        sequences = open_sequences(task.source)
        for begin in range(0, task.packs.num_packs, task.rows_per_group):
            packs = task.packs.slice(begin, min(begin + task.rows_per_group, task.packs.num_packs))
            tokens, mask, offsets = sequences.take(packs.sequences)
            counts.add(mask, offsets, num_rows=packs.num_packs)
            yield _batch(packs, tokens, roll_mask(mask, offsets), offsets, task.padding)

    with atomic_writer(os.path.join(task.folder, task.name)) as file:
        write_parquet(file, _schema(), groups(), lambda: {**dict(task.facts), **counts.facts()})
    return WrittenFile(file=file.as_stored(task.name), counts=counts)


def roll_mask(mask: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return for each token whether the next one of the same sequence is trainable; 0 at the end of each sequence.

    >>> roll_mask(np.array([0, 1, 1, 1, 0, 1], np.uint8), np.array([0, 3, 6])).tolist()
    [1, 1, 0, 0, 1, 0]
    """
    rolled = np.zeros(len(mask), np.int8)
    rolled[:-1] = mask[1:] != 0
    rolled[offsets[1:][np.diff(offsets) > 0] - 1] = 0
    return rolled


def encode_metadata(packs: Sequence[Packs]) -> bytes:
    """Return what Megatron-Bridge reads from `packed_metadata_path`: an entry for each split that has packs."""
    return orjson.dumps([each.metadata for each in packs if each.num_packs])


def _describe(places: NDArray[np.int64], starts: NDArray[np.int64], sequence_length: int) -> dict[str, float]:
    if len(starts) == 1:
        return {}
    num_packs, filled = len(starts) - 1, np.add.reduceat(places, starts[:-1])
    return {
        "dataset_max_seqlen": int(places.max()),
        "max_samples_per_bin": int(np.diff(starts).max()),
        "packing_factor": round(len(places) / num_packs, 2),
        "packing_efficiency": round(int(filled.sum()) / num_packs / sequence_length * 100, 2),
        "pack_size": sequence_length,
        "min_packed_seqlen": int(filled.min()),
    }


def _schema() -> pa.Schema:
    import pyarrow as pa

    types: dict[str, Any] = {
        "input_ids": pa.int32(),
        "loss_mask": pa.int8(),
        "seq_start_id": pa.int32(),
        "sequences": pa.int32(),
    }
    return pa.schema([(name, pa.list_(kind)) for name, kind in types.items()])


def _batch(
    packs: Packs, tokens: NDArray[np.int32], mask: NDArray[np.int8], offsets: NDArray[np.int64], padding: Padding
) -> pa.RecordBatch:
    """Return a row for each pack of sequences, which lie one after the other."""
    import pyarrow as pa

    if padding.multiple > 1:
        lengths = np.diff(offsets)
        padded = starts_of(padding.places(lengths) + 1)
        at = np.arange(len(tokens)) + np.repeat(padded[:-1] - offsets[:-1], lengths)
        own, offsets = (tokens, mask), padded
        tokens, mask = np.full(padded[-1], padding.token, np.int32), np.zeros(padded[-1], np.int8)
        tokens[at], mask[at] = own
    token_starts = offsets[packs.starts]
    per_pack = np.diff(packs.starts)
    begins = (offsets[:-1] - np.repeat(token_starts[:-1], per_pack)).astype(np.int32)
    return pa.record_batch(
        [
            list_array(tokens, token_starts),
            list_array(mask, token_starts),
            list_array(begins, packs.starts),
            list_array(packs.sequences, packs.starts),
        ],
        schema=_schema(),
    )
