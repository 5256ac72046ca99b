"""Names that are not UTF-8: shown as escapes, written so that they can be read back, and found again on disk."""

import json
import os
import shutil

import numpy as np
import pytest

import dsindex
from dsindex.store.json_text import decode_json
from tests.support.datasets import write_dataset
from tests.support.golden import OWN
from tests.support.published import read_quarantine

INPUT = os.fsdecode(b"caf\xe9.jsonl")
TOKENIZER = os.fsdecode(b"tok\xe7")
PREFIX = os.fsdecode(b"out\xff")
DATASET = f"{PREFIX}_text_document"
GOOD = b'{"text": "one document"}\n{"text": "another", "\\ud800": 1}\n'
BAD = b'{"text": "x" y}\n{"\\udcff": "no text"}\n{"text": "\\ud800"}\n'


@pytest.fixture
def folder(in_folder):
    """A folder to stand in, with an input and a tokenizer of such names."""
    (in_folder / INPUT).write_bytes(GOOD * 5)
    shutil.copytree(OWN.plain_tokenizer, in_folder / TOKENIZER)
    return in_folder


BUILD = ["build", "--input", INPUT, "--tokenizer-model", TOKENIZER, "--workers", "2", "--output-prefix", PREFIX]


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_build_is_made_found_again_and_verified(folder, cli, executor):
    words = [*BUILD, "--executor", executor, "--shard-size", "40B"]
    assert "10 lines = 10 kept" in cli(words).out  # another key may be any text
    assert os.path.exists(os.fsencode(DATASET) + b".bin")
    manifest = (folder / f"{DATASET}.manifest.json").read_bytes()
    assert json.loads(manifest) == decode_json(manifest)
    assert [entry["path"] for entry in decode_json(manifest)["content"]["inputs"]] == [INPUT]
    assert "already complete" in cli(words).out
    output = cli(["verify", DATASET, "--against-source", "--tokenizer-model", TOKENIZER]).out
    assert r"out\udcff_text_document: intact" in output
    assert json.loads(cli(["verify", DATASET, "--json"]).out)["reports"][0]["path"] == DATASET


def test_bad_records_are_named_and_set_aside(folder, cli):
    with open(folder / INPUT, "ab") as file:
        file.write(BAD)
    assert r"caf\udce9.jsonl, line 11: not valid JSON" in cli(BUILD, 1).err
    assert "13 lines = 10 kept + 3 quarantined" in cli([*BUILD, "--on-bad-record", "quarantine", "--replace"]).out
    entries = read_quarantine(DATASET)
    assert [(entry["file"], entry["line"]) for entry in entries] == [(INPUT, 11), (INPUT, 12), (INPUT, 13)]
    assert "has '\\udcff'" in entries[1]["reason"]
    cli(["verify", DATASET])


FORGED = "x\nFOUND: forged\x1b[2J"
"""A name of several lines, the last of which another command could have written."""


def test_names_forge_no_line_of_output(in_folder, cli):
    source, prefix = f"{FORGED}.jsonl", f"{FORGED}_text_document"
    (in_folder / source).write_bytes(GOOD * 5)
    shutil.copytree(OWN.plain_tokenizer, in_folder / f"{FORGED}t")
    words = ["--input", source, source, "--tokenizer-model", f"{FORGED}t", "--output-prefix", FORGED]
    cache = ["--seq-length", "2", "--epochs", "1", "--data-cache-path", f"{FORGED}c"]
    commands = [
        (0, ["build", *words, *cache]), (0, ["build", *words]), (1, ["build", *words, "--append-eod"]),
        (1, ["build", "--input", f"{FORGED}none", *words[3:]]),
        (0, ["build", *words, "--dry-run"]),
        (0, ["merge", "--input", prefix, prefix, "--output-prefix", f"{FORGED}m"]),
        (0, ["verify", prefix, "--cache", f"{FORGED}c"]), (1, ["verify", FORGED]),
        (1, ["verify", prefix, "--same-as", f"{FORGED}m"]), (0, ["inspect", prefix]), (0, ["inspect", f"{FORGED}c"]),
        (0, ["mix", prefix, "--seq-length", "2"]), (0, ["trace", f"{FORGED}c", "--sample", "0"]),
        (0, ["report", prefix, "--output", f"{FORGED}.html"]),
        (0, ["convert", prefix, f"{FORGED}.pbin"]), (0, ["raw-index", source]),
        (2, ["build", f"--{FORGED}"]), (2, ["build", *words, "--engine", FORGED]),
    ]  # fmt: skip
    lines = []
    for code, command in commands:
        printed = cli(command, code)
        lines += [line for line in (printed.out + printed.err).splitlines() if FORGED.splitlines()[1][:5] in line]
        assert "\x1b" not in printed.out + printed.err, command
        forged = [line for line in (printed.out + printed.err).splitlines() if line.startswith("FOUND: forged")]
        assert not forged, command
    assert len(lines) > len(commands), "the name is shown"


@pytest.mark.parametrize("name", [".hidden", "a[b-z]c", "star*", "q?", "back\\slash", "{a,b}", "-x"])
def test_no_name_is_a_pattern(folder, name):
    """Caches and packs of a dataset are found by its name, and those of no other."""
    options = {"executor": "local", "progress": False}
    index = {"seq_length": 4, "epochs": 1, "split": "1,0,0", "data_cache_path": str(folder / "cache"), **options}
    dataset = str(folder / f"{name}_text_document")
    for dataset_name in (name, "star", "abc"):
        prefix = write_dataset(folder / f"{dataset_name}_text_document", [[[1, 2, 3, 4]]] * 8)
        dsindex.build_index(prefix, **index)
    assert len(dsindex.open(str(folder / "cache" / f"{name}_text_document-GPTDataset-train-description.txt"))) == 7
    report = dsindex.verify(dataset, cache=str(folder / "cache"), **options).reports[0]
    checked = [f"index cache {name}_text_document-GPTDataset-train"]
    assert ([check.name for check in report.checks][1:], report.findings) == (checked, ())
    shutil.rmtree(folder / "cache")
    dsindex.build_index(dataset, **index)
    assert dsindex.inspect(str(folder / "cache")).facts["samples"] == 7
    shutil.copy(f"{dataset}.idx", folder / f"{name}_loss_mask.idx")
    shutil.copy(f"{dataset}.bin", folder / f"{name}_loss_mask.bin")
    write_dataset(folder / f"{name}_packing_4", [[[number]] for number in range(8)], dtype=np.int32)
    assert dsindex.inspect(str(folder / name)).facts["block layouts"] == [f"{name}_packing_4"]
    assert dsindex.inspect(str(folder / f"{name}_packing_4")).kind == "packs"
