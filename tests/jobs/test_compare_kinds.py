"""`dsindex compare` on instruction data and index caches."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN

TEXTS = [[5, 6, 7], [8, 9], [4]]
MASKS = [[0, 1, 1], [0, 1], [1]]
BLEND = GOLDEN / "cache" / "blend_three_splits"
SINGLE = GOLDEN / "cache" / "splits"


def write_instruction(prefix, *, texts=TEXTS, masks=MASKS, layout=None):
    write_dataset(Path(f"{prefix}_text_document"), [[text] for text in texts])
    write_dataset(Path(f"{prefix}_loss_mask"), [[mask] for mask in masks], dtype=np.uint8)
    if layout is not None:
        write_dataset(Path(f"{prefix}_packing_8"), [[block] for block in layout], dtype=np.int32)
    return str(prefix)


def shown(cli, code, *words):
    return cli(["compare", *map(str, words)], code).out.splitlines()[2:]


def test_loss_masks_and_block_layouts_are_compared(tmp_path, cli):
    one = write_instruction(tmp_path / "one", layout=[[0, 1, 2]])
    assert shown(cli, 0, one, write_instruction(tmp_path / "same")) == [
        "the same",
        "  the loss masks are the same",
        "  the block layout packing_8 is there on one side only",
    ]
    other = write_instruction(tmp_path / "other", masks=[[0, 1, 1], [0, 0], [1]], layout=[[1, 0, 2]])
    assert shown(cli, 1, one, other) == [
        "DIFFERENT",
        "  the tokens are the same",
        "  the loss masks differ: A has 4 trainable tokens, B has 3",
        "    first in A document 1 and B document 1, at token 1",
        "  the block layout packing_8 differs",
    ]
    found = json.loads(cli(["compare", "--json", one, other], 1).out)
    assert found["is_same"] is False
    assert found["comparison"]["same_tokens"] is True
    assert found["masks"]["layouts"] == {"packing_8": False}
    changed = write_instruction(tmp_path / "changed", texts=[[5, 6, 7], [8, 3], [4]])
    lines = shown(cli, 1, one, changed)
    assert "  only document 1 differs; all other documents are the same" in lines
    assert "  the loss masks are the same" in lines


@pytest.fixture
def copies(tmp_path):
    for name in ("one", "other"):
        shutil.copytree(BLEND, tmp_path / name)
    return tmp_path / "one", tmp_path / "other"


def test_same_index_caches(copies, cli):
    assert shown(cli, 0, *copies) == [
        "the same",
        *(f"  {split}: all 11 indices are the same" for split in ("train", "valid", "test")),
    ]


def test_first_item_that_differs_is_named(copies, cli):
    one, other = copies
    [blend] = other.glob("*-BlendedDataset-train-description.txt")
    dataset = json.loads(blend.read_text())["datasets"][1]
    [part] = [
        path
        for path in other.glob("*-GPTDataset-train-description.txt")
        if json.loads(path.read_text())["dataset_path"] == dataset["dataset_path"]
    ]
    for description, name, place in ((part, "sample_index", (3, 1)), (blend, "dataset_index", 7)):
        path = str(description).replace("description.txt", f"{name}.npy")
        array = np.load(path)
        array[place] += 1
        np.save(path, array)
    lines = shown(cli, 1, one, other)
    assert [line for line in lines if "first differs" not in line and "all 11" not in line] == ["DIFFERENT"]
    found = [line for line in lines if line.startswith("  train")]
    assert found[0].startswith("  train: dataset_index first differs at item 7 of 300 items: A ")
    assert found[1].startswith("  train: sample_index of dataset 1 first differs at item 3 of ")
    report = json.loads(cli(["compare", "--json", str(one), str(other)], 1).out)
    [train] = [split for split in report["splits"] if split["split"] == "train"]
    mine, theirs = train["differences"][1]["values"]
    assert (mine[0], mine[1] + 1) == tuple(theirs)


def test_caches_of_other_settings(cli):
    lines = shown(cli, 1, GOLDEN / "cache" / "multi_epoch_separate", GOLDEN / "cache" / "one_epoch")
    assert lines[0] == "DIFFERENT"
    assert any(line.startswith("  train: document_index") for line in lines)
    assert any(line.startswith("  train: num_samples  A ") for line in lines)
    lines = shown(cli, 1, SINGLE, GOLDEN / "cache" / "one_epoch")
    assert "  valid: only A has a cache of this split" in lines
    valid, test = (next(SINGLE.glob(f"*-{split}-description.txt")) for split in ("valid", "test"))
    assert "  valid and test: index_split  A valid · B test" in shown(cli, 1, valid, test)


def test_what_cannot_be_compared_is_one_sentence(tmp_path, cli):
    chat = write_instruction(tmp_path / "chat")
    dataset = str(GOLDEN / "eod_text_document")
    shutil.copytree(SINGLE, tmp_path / "several")
    [valid] = SINGLE.glob("*-valid-description.txt")
    shutil.copy(valid, tmp_path / "several" / "copy-GPTDataset-valid-description.txt")
    cases = [
        (1, [chat, dataset], "expected the prefix of instruction data to compare with"),
        (1, [dataset, str(SINGLE)], "expected an index cache to compare with"),
        (1, [str(tmp_path / "several"), str(SINGLE)], "expected one index cache of the split valid, got 2"),
        (2, [str(SINGLE), str(SINGLE), "--tokenizer-model", "x"], "--tokenizer-model does not apply to index caches"),
    ]
    for code, words, says in cases:
        message = cli(["compare", *words], code).err
        assert says in message
        assert "Traceback" not in message
    for path in (tmp_path / "several").glob("*-train-shuffle_index.npy"):
        path.write_bytes(b"\x93NUMPY\x01\x00")
    (tmp_path / "several" / "copy-GPTDataset-valid-description.txt").unlink()
    assert "shuffle_index.npy: cannot be read" in cli(["compare", str(tmp_path / "several"), str(SINGLE)], 1).err
