"""Exports of instruction data: Parquet files that other trainers read without conversion.

`parquet`, for TRL, axolotl and transformers. Each row is a conversation, or with `--seq-length` a pack.

    input_ids        list<int32>   the tokens
    labels           list<int64>   the token where it is trainable, else -100; not shifted: transformers shifts them
    attention_mask   list<int8>    1 for each token
    position_ids     list<int32>   packs only: counts from 0 in each conversation
    seq_lengths      list<int32>   packs only: the length of each conversation, for TRL's collator
    sequences        list<int32>   packs only: numbers of the conversations in the dataset; trainers ignore it

`bridge`, for Megatron-Bridge and NeMo. Each row is a pack, and the files are named `*.idx.parquet`.

    input_ids        list<int32>   the sequences of a pack, concatenated
    loss_mask        list<int8>    1 where the *next* token of the same sequence is trainable
    seq_start_id     list<int32>   the start of each sequence
    sequences        list<int32>   numbers of the conversations in the dataset; trainers ignore it

Bridge's readers remove the last token of each sequence from the input and the first token from the labels, so a
sequence of n tokens takes n - 1 of the L positions of a pack. Bridge packs therefore have their own layout; `parquet`
packs have the layout of `P_packing_L`, where P is the prefix of the datasets. With --pad-to-multiple, sequences are
padded with the tokenizer's EOS, because Bridge's readers (`pad_seq_to_mult`) find the end of a sequence by it.

The folder of an export contains a manifest. One rename publishes both, so a folder with a manifest is complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.chat.packing import BlockLayout, lay_out_blocks
from dsindex.formats.dtypes import starts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

_PACK_COLUMNS = {"position_ids": "int32", "seq_lengths": "int32", "sequences": "int32"}
COLUMNS = {
    "rows": {"input_ids": "int32", "attention_mask": "int8", "labels": "int64"},
    "packs": {"input_ids": "int32", "attention_mask": "int8", "labels": "int64", **_PACK_COLUMNS},
    "bridge": {"input_ids": "int32", "loss_mask": "int8", "seq_start_id": "int32", "sequences": "int32"},
}
"""Form of an export's files → its columns, each with the element type of its lists."""
IGNORED_LABEL = -100
"""The label that PyTorch's cross entropy ignores."""
ROWS_PER_GROUP = 500
TOKENS_PER_FILE = 1 << 26
"""Approximate number of tokens in a file, and the limit for a row group, which readers load as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """The task of writing one file."""

    form: str
    """A key of COLUMNS."""
    prefix: str
    """Prefix of the split's datasets, without `_text_document` and `_loss_mask`."""
    sequences: NDArray[np.int32]
    """Numbers of the sequences, row after row."""
    starts: NDArray[np.int64]
    """Start of each row in `sequences`, then the end of the last row; shape [rows + 1]."""
    rows_per_group: int
    multiple: int
    """Each sequence is padded so that its positions in a pack are a multiple of this number."""
    pad_id: int
    path: str


def export_schema(form: str) -> pa.Schema:
    """Return the Arrow schema of a form's files."""
    import pyarrow as pa

    return pa.schema([(name, pa.list_(getattr(pa, kind)())) for name, kind in COLUMNS[form].items()])


def pack_positions(lengths: NDArray[np.integer[Any]], form: str, multiple: int) -> NDArray[np.int32]:
    """Return how many positions of a pack each sequence takes: its length, or in Bridge packs its length - 1.

    A sequence of one token has no target, but takes one position of a Bridge pack all the same.
    """
    num_positions = np.maximum(lengths - 1, 1) if form == "bridge" else lengths
    return (-(-num_positions // multiple) * multiple).astype(np.int32)


def lay_out_bridge_packs(
    lengths: NDArray[np.int32], *, sequence_length: int, multiple: int, drop_longer: bool
) -> BlockLayout:
    """Assign sequences to Megatron-Bridge packs of `sequence_length` positions."""
    positions = np.where(lengths > sequence_length, sequence_length + 1, pack_positions(lengths, "bridge", multiple))
    return lay_out_blocks(positions, sequence_length=sequence_length, drop_longer=drop_longer)


def plan_files(
    form: str, prefix: str, lengths: NDArray[np.int32], layout: BlockLayout, *, multiple: int, pad_id: int, path: str
) -> Iterator[ExportFile]:
    """Yield one task for each file of a split. A file has whole row groups and about TOKENS_PER_FILE tokens.

    Args:
        form: A key of COLUMNS.
        prefix: Prefix of the split's datasets.
        lengths: Number of tokens of each sequence.
        layout: The sequences of each row; its `sequence_length` is 0 if a row is a single sequence.
        multiple: Each sequence is padded so that its positions in a pack are a multiple of this number.
        pad_id: The padding token.
        path: Prefix of the files' paths.
    """
    rows, longest = layout.num_blocks, max(layout.sequence_length, int(lengths.max(initial=1)))
    per_group = max(1, min(ROWS_PER_GROUP, TOKENS_PER_FILE // longest))
    mean = layout.sequence_length or max(1, -(-layout.num_tokens // max(1, rows)))
    per_file = max(1, TOKENS_PER_FILE // mean // per_group) * per_group
    begins = range(0, rows, per_file) or [0]
    suffix = "idx.parquet" if form == "bridge" else "parquet"
    for number, begin in enumerate(begins):
        starts = layout.block_starts[begin : min(begin + per_file, rows) + 1]
        yield ExportFile(
            form=form,
            prefix=prefix,
            sequences=layout.conversations[starts[0] : starts[-1]],
            starts=starts - starts[0],
            rows_per_group=per_group,
            multiple=multiple,
            pad_id=pad_id,
            path=f"{path}-{number:05d}-of-{len(begins):05d}.{suffix}",
        )


def describe_packs(lengths: NDArray[np.int32], layout: BlockLayout, multiple: int) -> dict[str, float] | None:
    """Return the metadata of a packing that Megatron-Bridge needs to pad the boundaries of all packs to one shape."""
    if not layout.num_blocks:
        return None
    positions = pack_positions(lengths, "bridge", multiple)[layout.conversations]
    pack_lengths = np.add.reduceat(positions, layout.block_starts[:-1])
    return {
        "dataset_max_seqlen": int(positions.max()),
        "max_samples_per_bin": int(np.diff(layout.block_starts).max()),
        "packing_factor": round(len(positions) / layout.num_blocks, 2),
        "packing_efficiency": round(int(pack_lengths.sum()) / layout.num_blocks / layout.sequence_length * 100, 2),
        "pack_size": layout.sequence_length,
        "min_packed_seqlen": int(pack_lengths.min()),
    }


def make_rows(
    file: ExportFile,
    tokens: NDArray[Any],
    mask: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    *,
    sequences: NDArray[np.int32],
    starts: NDArray[np.int64],
) -> pa.RecordBatch:
    """Return rows of a file as a record batch; the rows must have fewer than 2**31 tokens in total.

    Args:
        file: The file that the rows belong to.
        tokens: The tokens of the sequences, concatenated.
        mask: 1 for trainable, 0 for masked; same shape as `tokens`.
        offsets: Start of each sequence in `tokens`, then the end of the last sequence.
        sequences: Numbers of the sequences in the dataset.
        starts: Start of each row in `sequences`, then the end of the last row.
    """
    import pyarrow as pa

    lengths, ids, trainable = np.diff(offsets), tokens.astype(np.int32), mask.copy()
    if file.form != "rows":
        trainable[offsets[:-1][lengths > 0]] = 0  # nothing in a sequence predicts its first token
    if file.form == "bridge":
        trainable[:-1], trainable[-1:] = trainable[1:].copy(), 0  # shift: each position has the mask of its target
    if file.multiple > 1:
        padded = starts_of(pack_positions(lengths, file.form, file.multiple) + (file.form == "bridge"))
        places = np.arange(len(ids)) + np.repeat(padded[:-1] - offsets[:-1], lengths)
        unpadded, offsets = (ids, trainable), padded
        ids, trainable = np.full(padded[-1], file.pad_id, np.int32), np.zeros(padded[-1], np.uint8)
        ids[places], trainable[places] = unpadded
    row_starts, begins = offsets[starts], offsets[:-1]
    columns: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {
        "input_ids": (ids, row_starts),
        "loss_mask": (trainable, row_starts),
        "labels": (np.where(trainable != 0, ids, IGNORED_LABEL), row_starts),
        "attention_mask": (np.ones(len(ids)), row_starts),
        "position_ids": (np.arange(len(ids)) - np.repeat(begins, np.diff(offsets)), row_starts),
        "seq_lengths": (np.diff(offsets), starts),
        "seq_start_id": (begins - np.repeat(row_starts[:-1], np.diff(starts)), starts),
        "sequences": (sequences, starts),
    }
    arrays = []
    for name, kind in COLUMNS[file.form].items():
        values, list_starts = columns[name]
        arrays.append(pa.ListArray.from_arrays(pa.array(list_starts.astype(np.int32)), pa.array(values.astype(kind))))
    return pa.record_batch(arrays, schema=export_schema(file.form))
