"""`dsindex compare` on datasets, instruction data and index caches: what it prints and its exit code."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, OWN
from tests.support.jobs import run_config

GOLDEN_EOD = str(GOLDEN / "eod_text_document")


@pytest.fixture
def built(make_config, tmp_path):
    def build(name, **options):
        run_config(make_config(output_prefix=str(tmp_path / name), **options))
        return str(tmp_path / f"{name}_text_document")

    return build


def test_same_data_of_two_tools(built, cli):
    ours = built("ours")
    shown = cli(["compare", ours, f"{GOLDEN_EOD}.bin"]).out.splitlines()
    assert shown[0].startswith(f"A  {ours}: 102 documents, ")
    assert shown[2:] == ["the same"]


def test_rule_and_settings_are_told(built, cli):
    shown = cli(["compare", built("with"), built("without", append_eod=False)], 1).out.splitlines()
    assert shown[2:] == [
        "DIFFERENT",
        "  rule: A ends documents with token 0 (EOD?), B does not",
        "  that is all: apart from it every document has the same tokens",
        "settings and counts:",
        "  append-eod  A on · B off",
    ]


def test_first_difference_is_shown_with_its_source_and_text(built, tmp_path, capsys):
    lines = OWN.docs.read_bytes().splitlines()
    record = json.loads(lines[7])
    changed = tmp_path / "changed.jsonl"
    changed.write_bytes(b"\n".join([*lines[:7], json.dumps({**record, "text": "§ one"}).encode(), *lines[8:]]))
    assert main(["compare", built("a"), built("b", input=(str(changed),))]) == 1
    shown = capsys.readouterr().out
    assert f"    A  document 7 ({OWN.docs}, line 8): …  | " in shown
    assert f"    B  document 7 ({changed}, line 8): …  | " in shown
    assert "       '§ one<|endoftext|>'\n    the texts differ, too\n" in shown
    assert "  only document 7 differs; all other documents are the same\n" in shown
    changed.write_bytes(b"\n".join([*lines[:7], *lines[8:]]))
    assert main(["compare", built("c", input=(str(changed),)), str(tmp_path / "a_text_document")]) == 1
    sentence = f"  A lacks document 7 of B, from {OWN.docs}, line 8; all other documents are the same\n"
    assert sentence in capsys.readouterr().out
    found = dsindex.compare(str(tmp_path / "c_text_document"), str(tmp_path / "a_text_document"))
    assert sentence in str(found)
    assert (bool(found), repr(found)) == (False, "DatasetComparison(DIFFERENT)")
    assert main(["compare", "--json", str(tmp_path / "a_text_document"), str(tmp_path / "b_text_document")]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["is_same"] is False
    assert found["first_difference"][1]["document"] == 7
    assert [row["name"] for row in found["settings"]] == ["inputs"]


def test_documents_that_lack_in_several_places_are_named(built, tmp_path, capsys):
    lines = OWN.docs.read_bytes().splitlines()
    fewer = tmp_path / "fewer.jsonl"
    fewer.write_bytes(b"\n".join([*lines[:7], *lines[8:20], *lines[23:60], *lines[61:]]))
    assert main(["compare", built("whole"), built("fewer", input=(str(fewer),))]) == 1
    assert (
        "DIFFERENT\n"
        "  B lacks 5 documents of A in 3 places; all other documents are the same\n"
        f"    document 7, from {OWN.docs}, line 8\n"
        f"    documents 20 to 22, from {OWN.docs}, line 21\n"
        f"    document 60, from {OWN.docs}, line 61\n"
        f"    A  document 7 ({OWN.docs}, line 8): "
    ) in capsys.readouterr().out
    assert main(["compare", str(tmp_path / "fewer_text_document"), str(tmp_path / "whole_text_document")]) == 1
    assert "  A lacks 5 documents of B in 3 places; all other documents" in capsys.readouterr().out
    fewer.write_bytes(b"\n".join([*lines[:7], *lines[8:20], b'{"text": "another"}', *lines[21:60], *lines[61:]]))
    assert main(["compare", str(tmp_path / "whole_text_document"), built("other", input=(str(fewer),))]) == 1
    assert "lacks" not in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(40))
def test_drawn_datasets_without_the_named_documents_are_the_same(seed, tmp_path):
    rng = random.Random(seed)
    texts = [[[rng.randrange(3) for _ in range(rng.randrange(4))] for _ in range(1)] for _ in range(300)]
    dropped = set(rng.sample(range(300), rng.randrange(2, 40)))
    write_dataset(tmp_path / "a", texts)
    write_dataset(tmp_path / "b", [text for number, text in enumerate(texts) if number not in dropped])
    found = dsindex.compare(str(tmp_path / "a"), str(tmp_path / "b")).comparison
    named = {number for place in found.lacking for number in place}
    if found.surplus is None and found.difference is not None:
        assert len(named) == len(dropped)
        kept = [text for number, text in enumerate(texts) if number not in named]
        assert kept == [text for number, text in enumerate(texts) if number not in dropped]
    else:
        assert not named


def test_packed_data_is_compared_too(tmp_path, capsys):
    packed = str(tmp_path / "x.pbin")
    assert main(["convert", GOLDEN_EOD, packed]) == 0
    capsys.readouterr()
    assert main(["compare", GOLDEN_EOD, packed]) == 0
    assert main(["compare", packed, str(GOLDEN / "noeod_text_document")]) == 1
    assert "  rule: A ends documents with token 0 (EOD?), B does not\n" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "says"), [
    (["nowhere", GOLDEN_EOD], "nowhere: expected a dataset, found no nowhere.idx"),
    ([GOLDEN_EOD, str(GOLDEN / "noeod_text_document"), "--tokenizer-model", "nowhere"], "nowhere"),
])  # fmt: skip
def test_what_is_missing_is_one_sentence(words, says, cli):
    shown = cli(["compare", *words], 1)
    assert says in shown.err.splitlines()[-1]
    assert "Traceback" not in shown.err


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
