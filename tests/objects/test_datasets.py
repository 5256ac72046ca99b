"""Commands that read datasets in a bucket say and write what they do for the same files on disk."""

import json
import os
import re

import pytest

pytest.importorskip("obstore")

from dsindex.cli.main import main
from tests.support.golden import TOKENIZERS

DATASET = "docs_text_document"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dataset with a manifest and provenance, and a `.pbin` of it."""
    folder = tmp_path_factory.mktemp("built")
    lines = [json.dumps({"text": "some words of a text " * (number % 13)}) for number in range(300)]
    (folder / "docs.jsonl").write_text("\n".join(lines))
    words = ["--input", folder / "docs.jsonl", "--output-prefix", folder / "docs", "--tokenizer-model"]
    assert main(["build", *map(str, words), str(TOKENIZERS["bos"]), "--append-eod", "--executor", "local"]) == 0
    assert main(["convert", str(folder / DATASET), str(folder / "docs.pbin"), "--flatten"]) == 0
    return folder


@pytest.fixture
def store(store, folder):
    """The store with the datasets in `src/data`."""
    store.put("src/data", folder)
    return store


def output_of(words, cli, *, code=0):
    """What a command prints, without the time that it took."""
    out = cli(words, code).out
    return re.sub(r"; [\d.]+ \w+, [\d.]+ s$", "", out, flags=re.MULTILINE)


@pytest.mark.parametrize("words", [
    ["verify", DATASET, "--against-source"], ["inspect", DATASET],
    ["inspect", "docs.pbin", "--document", "7"], ["verify", DATASET, "--same-as", "docs.pbin"],
], ids=" ".join)  # fmt: skip
@pytest.mark.usefixtures("store")
def test_reading_commands_say_the_same(folder, cli, words):
    def placed(place):
        return [f"{place}/{word}" if word.startswith("docs") else word for word in words]

    disk_output = output_of(placed(str(folder)), cli)
    bucket_output = output_of(placed("s3://src/data"), cli)
    inputs = f"{folder}/docs.jsonl"  # is there in either case
    hidden = disk_output.replace(inputs, "INPUT").replace(str(folder), "s3://src/data")
    assert bucket_output.replace(inputs, "INPUT") == hidden


@pytest.mark.usefixtures("store", "in_folder")
@pytest.mark.parametrize(("words", "code", "message"), [
    ("verify s3://src/d*", 2, "a pattern or a folder is not one dataset"),
    ("verify https://h/d?sig=planted", 2, "https://h/d: a dataset is not read through a signed address"),
    ("inspect s3://src/none", 1, "s3://src/none: there is no dataset"),
    (f"report s3://src/data/{DATASET} s3://src/data/{DATASET}.bin -o x.html", 1, "this dataset is given twice"),
    (f"index --data-path s3://src/data/{DATASET} --seq-length 8 --epochs 1", 1, "need --data-cache-path"),
])  # fmt: skip
def test_what_is_not_read_is_one_sentence(words, code, message, cli):
    errors = cli(words.split(), code).err
    assert message in errors
    assert not re.search("planted|Traceback", errors)
    assert not os.listdir()
