"""`dsindex convert`, `raw-index` and `export`, and datasets of other programs."""

import os
import pickle
import re
from pathlib import Path

import pytest

from tests.support.datasets import write_dataset
from tests.support.pbin_files import pbin_bytes, write_pbin


def test_raw_index_says_what_became_of_the_lines(tmp_path, cli):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n{\n[1]\n\n")
    said = cli(["raw-index", str(path), "--drop-faulty-entries", "--output", str(tmp_path / "y.idx")]).out
    assert (tmp_path / "y.idx").read_bytes() == pickle.dumps([(0, 2), (5, 3)], protocol=4)
    assert "y.idx: 2 lines, 2 faulty left out" in said
    assert "x.jsonl, line 2 (byte 3)" in said
    assert re.search(r"x\.jsonl, line 2: not JSON", cli(["raw-index", str(path)], 1).err)


def test_convert_goes_both_ways_and_between_eras(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "x", [[[1, 2]], [], [[3]]])
    cli(["convert", "x.idx", "y.pbin", "--pbin-era", "spec"])
    assert Path("y.pbin").read_bytes() == pbin_bytes([[1, 2], [], [3]], version="spec")
    said = cli(["convert", "y.pbin", "z.bin", "--token-type", "uint16"]).out
    assert "3 documents, 2 sequences, 3 tokens" in said
    for suffix in ("bin", "idx"):
        assert Path(f"z.{suffix}").read_bytes() == Path(f"x.{suffix}").read_bytes()
    cli(["convert", "y.pbin", "now.pbin"])
    assert Path("now.pbin").read_bytes() == pbin_bytes([[1, 2], [], [3]], version="current")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("command", [
    ["convert", "{}/a.pbin", "{}/taken.pbin"],
    ["pack", "--merge", "{}/a.pbin", "{}/a.pbin", "--output", "{}/taken.pbin"],
], ids=lambda command: command[0])  # fmt: skip
def test_output_that_is_an_input_by_another_name_is_refused(tmp_path, cli, command, link):
    write_pbin(tmp_path / "a.pbin", [[1, 2, 3]])
    link(tmp_path / "a.pbin", tmp_path / "taken.pbin")
    before = {path.name: (path.read_bytes(), path.lstat().st_ino) for path in tmp_path.iterdir()}
    said = cli([word.format(tmp_path) for word in command], 1).err
    assert "taken.pbin is both an input and an output" in said
    assert {path.name: (path.read_bytes(), path.lstat().st_ino) for path in tmp_path.iterdir()} == before


COMMANDS = {
    "verify": "verify d", "merge": "merge --input d --output-prefix m",
    "index": "index --data-path d --seq-length 2 --epochs 1 --data-cache-path c --tokenizer-identifiers t.json",
    "mix": "mix --data-path d --seq-length 2", "convert": "convert d d.pbin",
}  # fmt: skip
