"""`dsindex convert`, `raw-index` and `export`, and datasets of other programs."""

import os
import pickle
import re
from pathlib import Path

import pytest

from tests.support.datasets import write_dataset
from tests.support.pbin_files import write_pbin


def test_raw_index_says_what_became_of_the_lines(tmp_path, cli):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n{\n[1]\n\n")
    output = cli(["raw-index", str(path), "--drop-faulty-entries", "--output", str(tmp_path / "y.idx")]).out
    assert (tmp_path / "y.idx").read_bytes() == pickle.dumps([(0, 2), (5, 3)], protocol=4)
    assert "y.idx: 2 lines, 2 faulty left out" in output
    assert "x.jsonl, line 2 (byte 3)" in output
    assert re.search(r"x\.jsonl, line 2: not JSON", cli(["raw-index", str(path)], 1).err)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("command", [
    ["convert", "{}/a.pbin", "{}/taken.pbin"],
    ["pack", "--merge", "{}/a.pbin", "{}/a.pbin", "--output", "{}/taken.pbin"],
    ["merge", "--input", "{}/a", "{}/a", "--output-prefix", "{}/taken"],
    ["merge", "--input", "{}/a", "{}/a", "--output-prefix", "{}/taken", "--replace"],
    ["merge", "--input", "{}/a", "--output-prefix", "{}/folder/a", "--replace"],
], ids=" ".join)  # fmt: skip
def test_output_that_is_an_input_by_another_name_is_refused(tmp_path, cli, command, link):
    write_pbin(tmp_path / "a.pbin", [[1, 2, 3]])
    write_dataset(tmp_path / "a", [[[1, 2, 3]]])
    for suffix in ("pbin", "bin", "idx"):
        link(tmp_path / f"a.{suffix}", tmp_path / f"taken.{suffix}")
    (tmp_path / "folder").symlink_to(tmp_path)
    before = {path.name: (path.read_bytes(), path.lstat().st_ino) for path in tmp_path.glob("*.*")}
    error = cli([word.format(tmp_path) for word in command], 1).err
    assert re.search(r"/(taken|a)\.p?bin is both an input and an output", error)
    assert {path.name: (path.read_bytes(), path.lstat().st_ino) for path in tmp_path.glob("*.*")} == before


LIST_JOB = "--seq-length 4 --split 1 --executor local --plain-names --num-samples 5"


@pytest.mark.parametrize(("command", "code", "parts"), [
    ("verify", 0, ["/a_000 ", "/a_001 "]),
    ("inspect", 0, ["/a_000: 6 documents, 75.0% of the weights", "/a_001: 2 documents, 25.0%"]),
    ("report -o r.html", 0, ["r.html"]),
    ("mix --seq-length 4 --split 1", 0, ["--data-path 0.75 ", "/a_000 0.25 "]),
    ("mix b LIST --seq-length 4 --split 1 --tokens 80", 0, ["--data-path 0.5 b 0.375 "]),
    ("mix b=40% LIST=60% --seq-length 4 --split 1 --tokens 80", 0, ["--data-path 0.4 b 0.45 "]),
    ("mix b LIST=1epoch --seq-length 4 --split 1", 0, ["--data-path 0.5 b 0.375 "]),
    ("mix --seq-length 4 --split 1 --data-path", 0, ["--data-path 24 ", "/a_000 8 "]),
    (f"index {LIST_JOB} --dry-run --data-cache-path c --data-path", 0, ["3 caches planned"]),
    (f"index {LIST_JOB} --dry-run --data-cache-path c --data-path 0.5 b 0.5", 0, ["4 caches planned"]),
    ("inspect --document 1", 1, ["--document does not apply to: list"]),
    ("verify b --same-as", 1, ["LIST: neither .bin and .idx nor a .pbin, but: list"]),
])  # fmt: skip
def test_list_of_datasets_is_an_argument_as_they_are(command, code, parts, in_folder, cli):
    """A list as `build --max-dataset-size` writes it."""
    for name, num_documents in {"a_000": 6, "a_001": 2, "b": 8}.items():
        write_dataset(in_folder / name, [[[1] * 4]] * num_documents)
    Path("a.txt").write_text(f"24 {in_folder}/a_000\n8 {in_folder}/a_001\n")
    printed = cli((command if "LIST" in command else f"{command} LIST").replace("LIST", "a.txt").split(), code)
    assert [text for text in parts if text.replace("LIST", "a.txt") not in printed.out + printed.err] == [], printed
