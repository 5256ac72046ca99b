"""Addresses in a user's data and options stay as they are: only those of files lose their passwords."""

import json
import random
from pathlib import Path

import pytest

from dsindex.datasets.indexed import IndexedDataset
from tests.support.published import read_quarantine

PIECES = ["https://", "bob:pw@", "host", "/x", "?token=1", "#a", " and", "\\/", "s3://", "\x00", '"', "ü"]


@pytest.mark.usefixtures("in_folder")
def test_quarantine_keeps_drawn_lines_as_they_are(build_text):
    rng = random.Random(7)
    lines = ["".join(rng.choices(PIECES, k=rng.randrange(1, 7))) for _ in range(200)]
    Path("a.jsonl").write_text("\n".join([*lines, '{"text": "a"}']))
    build_text("a", options=["--on-bad-record", "quarantine"])
    raw_lines = [entry["raw"] for entry in read_quarantine("out/x_text_document")]
    assert raw_lines == [line for line in lines if line.strip(" \t\r")]


@pytest.mark.usefixtures("in_folder")
def test_keys_that_are_addresses_are_told_apart(build_text):
    Path("a.jsonl").write_text(json.dumps({"http://s.org#a": "one", "http://s.org#b": "two two", "x": "x"}))
    build_text("a", options=["--json-keys", "http://s.org#a", "x", "--join", " "])
    build_text("a", options=["--json-keys", "http://s.org#b", "x", "--join", " ", "--replace"])
    assert IndexedDataset("out/x_text_document").sequence_lengths[0] > 3
    build_text("a", options=["--json-keys", "http://s.org#b", "x", "--join", " "])
