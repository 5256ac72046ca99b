"""Every result of the tools is one JSON object on a line, which a program can read."""

import json

import pytest

from tests.support.golden import GOLDEN, OWN


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from dsindex.cli.main import main

    folder = tmp_path_factory.mktemp("results")
    common = ["--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--executor", "local"]
    index = ["--seq-length", "64", "--epochs", "2", "--split", "1,0,0", "--data-cache-path", str(folder / "cache")]
    (folder / "docs.jsonl").write_bytes(OWN.docs.read_bytes())
    docs = ["--input", str(folder / "docs.jsonl")]
    assert main(["build", *docs, *common, "--output-prefix", str(folder / "a"), "--keep-shards", *index]) == 0
    assert main(["convert", str(folder / "a_text_document"), str(folder / "a.pbin")]) == 0
    assert main(["raw-index", str(folder / "docs.jsonl")]) == 0
    return folder


@pytest.mark.parametrize("words", [
    "inspect a_text_document", "inspect a_text_document --document 7", "inspect a.pbin", "inspect cache",
    "inspect cache --sample 3", "inspect docs.idx", "inspect a.build",
    "verify a_text_document a.pbin", "verify a_text_document --against-source --cache cache",
    "verify a_text_document --same-as a.pbin", "verify a_text_document --same-as GOLDEN/noeod_text_document",
    "verify nothing",
    "trace cache --sample 3 5", "trace cache --step 1-2 --global-batch-size 8",
    "trace cache --consumed 100",
    "mix a_text_document --seq-length 64",
])  # fmt: skip
def test_every_result_is_json(words, folder, cli, monkeypatch):
    monkeypatch.chdir(folder)
    code = int("noeod" in words or "nothing" in words)
    shown = cli([*words.replace("GOLDEN", str(GOLDEN)).split(), "--json"], code).out
    line, rest = shown.split("\n")
    assert rest == ""
    assert isinstance(json.loads(line), dict)
