import json
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from dsindex.datasets.raw import MemMapDataset, RawLines
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.formats.raw_index import create_raw_index
from dsindex.text.tokenizer import load_tokenizer, shared_tokenizer

TOKENIZERS = Path(__file__).parents[2] / "golden" / "tokenizers"
TEXTS = ["The mill stood by the river.", "", "Où est l'été?", "水車は回る"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(min(path.parent for path in TOKENIZERS.glob("*/tokenizer.json"))))


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def ids(tokenizer, text, **options):
    return shared_tokenizer(tokenizer).encode(text, **options).ids


@pytest.mark.parametrize("special", [True, False])
def test_dataset_tokenizes_what_is_asked_for(tmp_path, tokenizer, special):
    path = write_lines(tmp_path / "x.jsonl", [{"text": text} for text in TEXTS])
    dataset = MemMapDataset(path, tokenizer=tokenizer, add_special_tokens=special)
    expected = [ids(tokenizer, text, add_special_tokens=special) for text in TEXTS]
    assert len(dataset) == len(TEXTS)
    assert [tokens.tolist() for tokens in dataset[:]] == expected
    assert dataset[-1].tolist() == expected[-1]
    assert dataset[1:1] == []
    assert dataset[2].dtype == np.uint32
    with pytest.raises(IndexError, match="expected a line from 0 to 3, got 4"):
        dataset[4]


def test_dataset_builds_a_missing_index_and_takes_a_jq_pattern(tmp_path, tokenizer):
    path = write_lines(tmp_path / "x.jsonl", [{"meta": {"body": [text]}} for text in TEXTS])
    dataset = MemMapDataset(path, tokenizer=tokenizer, index_path=tmp_path / "own.idx", jq_pattern=".meta.body[0]")
    assert (tmp_path / "own.idx").exists()
    assert not (tmp_path / "x.idx").exists()
    assert [dataset.text(number) for number in range(4)] == TEXTS


def test_dataset_pickles(tmp_path, tokenizer):
    path = write_lines(tmp_path / "x.jsonl", [{"text": text} for text in TEXTS])
    dataset = MemMapDataset(path, tokenizer=tokenizer)
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - ours
    assert [tokens.tolist() for tokens in again[:]] == [tokens.tolist() for tokens in dataset[:]]


def test_several_may_build_the_index_at_once(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [{"text": str(number)} for number in range(2000)])
    lengths = []
    threads = [threading.Thread(target=lambda: lengths.append(len(RawLines(path)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [2000] * 8
    assert {file.name for file in tmp_path.iterdir()} == {"x.jsonl", "x.idx"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": 1}', "got int; change the pattern"),
        (b'{"body": "x"}', "expected a string from the jq pattern '.text', got nothing"),
        (b"[]", "expected JSON that the jq pattern '.text' can read"),
        (b'{"text": "\xed\xa0\x80"}', "expected JSON that the jq pattern '.text' can read"),
    ],
    ids=str,
)
def test_a_line_without_a_text_is_named(tmp_path, tokenizer, line, message):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "x"}\n' + line + b"\n")
    dataset = MemMapDataset(path, tokenizer=tokenizer)
    with pytest.raises(BadRecordError, match=rf"x\.jsonl, line at byte 14: .*{message}"):
        dataset[1]
    assert dataset.text(0) == "x"


def test_an_unknown_jq_program_is_misuse(tmp_path, tokenizer):
    with pytest.raises(ValueError, match="jq"):
        MemMapDataset(write_lines(tmp_path / "x.jsonl", [{}]), tokenizer=tokenizer, jq_pattern=".[")


def test_lines_are_those_of_the_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n  [1]\nNaN")
    lines = RawLines(path)
    assert [lines[number] for number in range(len(lines))] == [b"\xef\xbb\xbf{}\r", b"  [1]", b"NaN"]
    assert [lines.offset(number) for number in (0, 1, -1)] == [0, 7, 13]
    with pytest.raises(IndexError, match="expected a line from 0 to 2, got 3"):
        lines[3]


def test_a_file_that_changed_is_noticed(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"{}\n[1]\n")
    lines = RawLines(path)
    path.write_bytes(b"{}\n")
    with pytest.raises(InputError, match="expected a line of 3 bytes at byte 3"):
        lines[1]
    with pytest.raises(FormatError, match="the file changed since it was indexed"):
        RawLines(path)


@pytest.mark.parametrize("changed", [0, 350, 699])
def test_a_large_file_that_changed_is_noticed_by_samples(tmp_path, monkeypatch, changed):
    for module in ("raw", "line_index"):
        monkeypatch.setattr(f"dsindex.datasets.{module}.WHOLE_BYTES", 1)
    path = tmp_path / "x.jsonl"
    lines = [json.dumps("x" * (number * 7919 % 6000)) for number in range(700)]
    path.write_text("\n".join(lines) + "\n")
    assert len(RawLines(path)) == len(RawLines(path)) == 700
    lines[changed : changed + 1] = ["[0]", lines[changed]]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(FormatError, match="differs between the bytes"):
        RawLines(path)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        RawLines(tmp_path / "none.jsonl")
    (tmp_path / "x.jsonl").write_bytes(b"{}\n")
    (tmp_path / "x.idx").write_bytes(b"MMIDIDX\0\0" + bytes(40))
    with pytest.raises(FormatError, match="damaged, or of something else; it was not unpickled"):
        RawLines(tmp_path / "x.jsonl")


def test_a_faulty_line_stops_the_lazy_index(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"{}\n{\n")
    with pytest.raises(BadRecordError, match=r"x\.jsonl, line 2: expected JSON"):
        RawLines(tmp_path / "x.jsonl")
    create_raw_index(str(tmp_path / "x.jsonl"), drop_faulty_entries=True)
    assert len(RawLines(tmp_path / "x.jsonl")) == 1
