"""Files of exports: rows, masks and counts of sequences at the edges."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dsindex.datasets.exports import ExportedSequences, SequenceSource, read_facts
from dsindex.errors import FormatError
from dsindex.jobs.exports import bridge, parquet
from tests.support.datasets import write_dataset

MASKS = [[1, 1, 0], [1], [1, 1], [0, 0, 0, 1]]
"""Trainable first tokens, and a sequence of one token, which has no target."""
FACTS = (("dsindex.export", "parquet"),)
UNPADDED = bridge.Padding(multiple=1, token=0)


def split(folder, masks, *, dtype=np.uint16):
    """Sequences 100, 101, … of the lengths of the masks."""
    first = iter(range(100, 10_000))
    write_dataset(folder / "chat_text_document", [[[next(first) for _ in mask]] for mask in masks], dtype=dtype)
    write_dataset(folder / "chat_loss_mask", [[mask] for mask in masks], dtype=np.uint8)
    source = SequenceSource(tokens=str(folder / "chat_text_document"), mask=str(folder / "chat_loss_mask"))
    return ExportedSequences(name="train", source=source, num_sequences=len(masks))


def plan(own, packs, folder, *, length):
    return bridge.plan_bridge_files(
        [own], [packs], sequence_length=length, padding=UNPADDED, folder=str(folder), facts=()
    )


def counts_of(counts):
    return counts.rows, counts.sequences, counts.tokens, counts.trainable, counts.targets


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_rows_with_labels(tmp_path, dtype):
    own = split(tmp_path, MASKS, dtype=dtype)
    [task] = parquet.plan_files([own], folder=str(tmp_path), facts=FACTS)
    written = parquet.write_rows(task)
    table = pq.read_table(tmp_path / "train-00000-of-00001.parquet")
    assert table.schema.types == [pa.list_(pa.int32()), pa.list_(pa.int8()), pa.list_(pa.int64())]
    assert table.to_pylist()[0] == {
        "input_ids": [100, 101, 102],
        "attention_mask": [1, 1, 1],
        "labels": [100, 101, -100],
    }
    assert counts_of(written.counts) == (4, 4, 10, 6, 3)
    facts = read_facts(str(tmp_path / "train-00000-of-00001.parquet"))
    assert facts == {
        "export": "parquet",
        "rows": "4",
        "sequences": "4",
        "tokens": "10",
        "trainable": "6",
        "targets": "3",
    }


def test_row_groups_of_packs_have_500_rows(tmp_path):
    own = split(tmp_path, [[0, 1, 1]] * 1200)
    packs = bridge.pack_sequences(own.source, 3, UNPADDED, drop_longer=False)
    [task] = plan(own, packs, tmp_path, length=3)
    bridge.write_bridge_file(task)
    metadata = pq.read_metadata(tmp_path / "train-00000-of-00001.idx.parquet")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [500, 500, 200]


@pytest.mark.parametrize("form", ["parquet", "bridge"])
def test_a_split_without_conversations_is_a_file_without_rows(tmp_path, form):
    own = split(tmp_path, [])
    if form == "bridge":
        packs = bridge.pack_sequences(own.source, 8, UNPADDED, drop_longer=False)
        tasks = plan(own, packs, tmp_path, length=8)
        assert bridge.encode_metadata([packs]) == b"[]"
        written = bridge.write_bridge_file(tasks[0])
    else:
        tasks = parquet.plan_files([own], folder=str(tmp_path), facts=())
        written = parquet.write_rows(tasks[0])
    table = pq.read_table(tmp_path / written.file.name)
    assert (len(tasks), table.num_rows, counts_of(written.counts)) == (1, 0, (0, 0, 0, 0, 0))


def test_masks_of_another_dataset_are_refused(tmp_path):
    own = split(tmp_path, MASKS)
    write_dataset(tmp_path / "chat_loss_mask", [[mask] for mask in reversed(MASKS)], dtype=np.uint8)
    [task] = parquet.plan_files([own], folder=str(tmp_path), facts=())
    with pytest.raises(FormatError, match=r"chat_loss_mask\.idx: expected the lengths of .*chat_text_document\.idx"):
        parquet.write_rows(task)
    assert not list(tmp_path.glob("*.parquet"))


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(FormatError, match=r"x\.parquet: cannot be read as a Parquet file"):
        read_facts(str(path))
