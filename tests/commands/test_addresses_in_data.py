"""Addresses in a user's data and options stay as they are: only those of files lose their passwords."""

import json
import random

import pyarrow as pa
import pytest

from dsindex.datasets.indexed import IndexedDataset
from tests.support.golden import OWN

PIECES = ["https://", "bob:pw@", "host", "/x", "?token=1", "#a", " and", "\\/", "s3://", "\x00", '"', "ü"]


@pytest.fixture
def build(cli, tmp_path):
    def run(content, *options):
        path = tmp_path / "a.jsonl"
        if not path.exists():
            path.write_bytes(content)
        common = ["--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--on-bad-record", "quarantine"]
        cli(["build", "--input", str(path), "--output-prefix", str(tmp_path / "o"), *common, *options])
        return str(tmp_path / "o_text_document")

    return run


def test_quarantine_keeps_drawn_lines_as_they_are(build):
    rng = random.Random(7)
    lines = ["".join(rng.choices(PIECES, k=rng.randrange(1, 7))) for _ in range(200)]
    dataset = build("\n".join([*lines, '{"text": "a"}']).encode())
    with pa.input_stream(f"{dataset}.quarantine.jsonl.zst", compression="zstd") as stream:
        kept = [json.loads(line)["raw"] for line in stream.read().splitlines()]
    assert kept == [line for line in lines if line.strip(" \t\r")]


def test_keys_that_are_addresses_are_told_apart(build):
    record = json.dumps({"http://s.org#a": "one", "http://s.org#b": "two two", "x": "x"}).encode()
    build(record, "--json-keys", "http://s.org#a", "x", "--join", " ")
    dataset = build(record, "--json-keys", "http://s.org#b", "x", "--join", " ", "--replace")
    assert IndexedDataset(dataset).sequence_lengths[0] > 3
    build(record, "--json-keys", "http://s.org#b", "x", "--join", " ")
