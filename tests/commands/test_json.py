"""Every result is one JSON object on a line, which a program can read."""

import json

import pytest

from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import GOLDEN, OWN

TOKENIZER = f"--tokenizer-model {OWN.plain_tokenizer} --executor local"
INDEX = "--seq-length 64 --epochs 2 --split 1,0,0 --data-cache-path cache"
MADE = [
    f"build --input docs.jsonl {TOKENIZER} --append-eod --output-prefix a --keep-shards {INDEX}",
    f"build --input docs.jsonl {TOKENIZER} --output-prefix b --dry-run",
    "merge --input a_text_document a_text_document --output-prefix m",
    "index --data-path a_text_document --seq-length 64 --epochs 1 --data-cache-path other",
    "convert a_text_document a.pbin", "raw-index docs.jsonl", "report a_text_document -o r.html",
    f"pack --input docs.jsonl {TOKENIZER} --output p.pbin", "pack --merge p.pbin a.pbin --output both.pbin",
    f"instruct chat.yaml --input {CONVERSATIONS} {TOKENIZER} --output-prefix chat --on-bad-record quarantine",
]  # fmt: skip


def result(cli, words, code=0):
    line, rest = cli([*words.replace("GOLDEN", str(GOLDEN)).split(), "--json"], code).out.split("\n")
    assert rest == ""
    assert len(line) < 100_000
    return json.loads(line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    (folder / "docs.jsonl").write_bytes(OWN.docs.read_bytes())
    (folder / "chat.yaml").write_text(json.dumps(SPEC))
    return folder


def test_results_of_commands_that_write_are_json(folder, cli, monkeypatch):
    monkeypatch.chdir(folder)
    for words in MADE:
        assert isinstance(result(cli, words), dict), words
    assert result(cli, MADE[0])["already_complete"] is True


@pytest.mark.parametrize("words", [
    "inspect a_text_document", "inspect a_text_document --document 7", "inspect a.pbin", "inspect cache",
    "inspect cache --sample 3", "inspect docs.idx", "inspect a.build",
    "verify a_text_document a.pbin", "verify a_text_document --against-source --cache cache",
    "verify a_text_document --same-as a.pbin", "verify a_text_document --same-as GOLDEN/noeod_text_document",
    "verify nothing",
    "trace cache --sample 3 5", "trace cache --step 1-2 --global-batch-size 8", "trace cache --consumed 100",
    "mix a_text_document --seq-length 64",
])  # fmt: skip
def test_results_of_commands_that_read_are_json(words, folder, cli, monkeypatch):
    monkeypatch.chdir(folder)
    if not (folder / "cache").exists():
        for job in (MADE[0], MADE[4], MADE[5]):
            result(cli, job)
    assert isinstance(result(cli, words, int("noeod" in words or "nothing" in words)), dict)
