"""Lines of a file, their kept index, and the tokens of their texts."""

import json

import pytest

from dsindex.commands.raw_index import create_raw_index
from dsindex.datasets.raw import MemMapDataset, RawLines
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.text.tokenizer import load_tokenizer
from tests.support.golden import OWN

TEXTS = ["The mill stood by the river.", "", "Où est l'été?", "水車は回る"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(OWN.plain_tokenizer))


def test_dataset_finds_lines_without_an_index_and_takes_a_jq_pattern(tmp_path, tokenizer):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"meta": {"body": [text]}}) + "\n" for text in TEXTS))
    dataset = MemMapDataset(path, tokenizer=tokenizer, jq_pattern=".meta.body[0]")
    assert not (tmp_path / "x.idx").exists()
    assert [dataset.text(number) for number in range(4)] == TEXTS


@pytest.mark.parametrize(("line", "message"), [
    (b'{"text": 1}', "the value under the key 'text' is a number, and has to be a string"),
    (b'{"body": "x"}', "no key 'text'; the record has 'body'"),
    (b"[]", "not a JSON object but a list"),
    (b'{"text": "\xed\xa0\x80"}', "not UTF-8: byte 0xed"),
], ids=str)  # fmt: skip
def test_a_line_without_a_text_is_named(tmp_path, tokenizer, line, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "x"}\n' + line + b"\n")
    dataset = MemMapDataset(path, tokenizer=tokenizer)
    with pytest.raises(BadRecordError, match=rf"x\.jsonl, line at byte 14: .*{message}"):
        dataset[1]
    assert dataset.text(0) == "x"


def test_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n  [1]\nNaN")
    lines = RawLines(path)
    assert [lines[number] for number in range(len(lines))] == [b"\xef\xbb\xbf{}\r", b"  [1]", b"NaN"]
    assert [lines.offset(number) for number in (0, 1, -1)] == [0, 7, 13]
    with pytest.raises(IndexError, match="there is no line 3; it has 3"):
        lines[3]


def test_a_file_that_changed_is_noticed(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n[1]\n")
    create_raw_index(str(path))
    lines = RawLines(path)
    path.write_bytes(b"{}\n")
    with pytest.raises(InputError, match="the file has changed since it was opened"):
        lines[1]
    with pytest.raises(FormatError, match="the file has changed since it was indexed"):
        RawLines(path)
    path.write_bytes(b"{ }\n[]\n")
    with pytest.raises(InputError, match="the file has changed since it was opened"):
        lines[1]
    with pytest.raises(FormatError, match=r"does not fit .* as it is now"):
        RawLines(path)
