"""Lines of a file, their kept index, and the tokens of their texts."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from dsindex.datasets.instruction import InstructionDataset
from dsindex.datasets.line_index import open_lines
from dsindex.datasets.raw import MemMapDataset, RawLines
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.formats.raw_index import create_raw_index
from dsindex.text.tokenizer import load_tokenizer, shared_tokenizer
from tests.support.chat_tokenizers import train
from tests.support.threads import run_together

TOKENIZERS = Path(__file__).parents[2] / "golden" / "tokenizers"
TEXTS = ["The mill stood by the river.", "", "Où est l'été?", "水車は回る"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(min(path.parent for path in TOKENIZERS.glob("*/tokenizer.json"))))


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.mark.parametrize("special", [True, False])
def test_dataset_tokenizes_what_is_asked_for(tmp_path, tokenizer, special):
    path = write_lines(tmp_path / "x.jsonl", [{"text": text} for text in TEXTS])
    dataset = MemMapDataset(path, tokenizer=tokenizer, add_special_tokens=special)
    encoded = shared_tokenizer(tokenizer).encode_batch(TEXTS, add_special_tokens=special)
    expected = [encoding.ids for encoding in encoded]
    assert len(dataset) == len(TEXTS)
    assert [tokens.tolist() for tokens in dataset[:]] == expected
    assert [tokens.tolist() for tokens in pickle.loads(pickle.dumps(dataset))[:]] == expected  # noqa: S301 - ours
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


def test_several_may_build_the_index_at_once(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", [{"text": str(number)} for number in range(2000)])
    lengths = []
    run_together(lambda _: lengths.append(len(RawLines(path))), 8)
    assert lengths == [2000] * 8
    assert {file.name for file in tmp_path.iterdir()} == {"x.jsonl", "x.idx"}


@pytest.mark.parametrize(("line", "message"), [
    (b'{"text": 1}', "got int; change the pattern"),
    (b'{"body": "x"}', "expected a string from the jq pattern '.text', got nothing"),
    (b"[]", "expected JSON that the jq pattern '.text' can read"),
    (b'{"text": "\xed\xa0\x80"}', "expected JSON that the jq pattern '.text' can read"),
], ids=str)  # fmt: skip
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


SETTLED_NS = 10**18


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The folder of kept indices."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "dsindex" / "lines"


@pytest.fixture
def path(tmp_path):
    (tmp_path / "data").mkdir()
    return write(tmp_path / "data" / "chat.jsonl", "one", "two")


def write(path, *texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def texts_of(path, index_path=None):
    pairs, _ = open_lines(str(path), index_path)
    data = path.read_bytes()
    return [json.loads(data[offset : offset + length])["text"] for offset, length in pairs.tolist()]


def open_dataset(path):
    return InstructionDataset(path, tokenizer=train("bytes"), jq_patterns=[".text"], special_tokens={})


def test_lines_are_remembered_beside_nothing(path, kept):
    assert texts_of(path) == ["one", "two"]
    assert [file.name for file in path.parent.iterdir()] == ["chat.jsonl"]
    [index] = kept.iterdir()
    content = index.read_bytes()
    create_raw_index(str(path), str(kept.parent / "own.idx"))
    assert content == (kept.parent / "own.idx").read_bytes()
    assert texts_of(path) == ["one", "two"]
    assert list(kept.iterdir()) == [index]


@pytest.mark.parametrize("texts", [("one", "two", "three"), ("one",), ("six", "two"), ("1\n2", "3")])
def test_a_changed_file_is_indexed_anew_whatever_its_time(path, kept, texts):
    os.utime(path, ns=(SETTLED_NS, SETTLED_NS))
    texts_of(path)
    os.utime(write(path, *texts), ns=(SETTLED_NS, SETTLED_NS))
    assert texts_of(path) == list(texts)
    assert len(list(kept.iterdir())) == 1


def test_a_damaged_index_is_made_again(path, kept):
    texts_of(path)
    [index] = kept.iterdir()
    whole = index.read_bytes()
    for damaged in (b"", b"\x80\x04cos\nsystem\n.", whole[:-3], whole.replace(b"K\x0f", b"K\xff")):
        index.write_bytes(damaged)
        assert texts_of(path) == ["one", "two"]
        assert index.read_bytes() == whole


def test_an_index_beside_the_file_counts_only_if_it_is_of_this_state(path):
    create_raw_index(str(path))
    assert texts_of(path) == ["one", "two"]
    write(path, "one", "two", "three")
    assert texts_of(path) == ["one", "two", "three"]


def test_an_index_beside_the_file_may_leave_out_faulty_lines(path):
    with path.open("a") as file:
        file.write("\n{'bad'}\n")
    with pytest.raises(BadRecordError, match="a blank line"):
        texts_of(path)
    create_raw_index(str(path), drop_faulty_entries=True)
    assert texts_of(path) == ["one", "two"]


def test_a_given_index_is_built_if_it_is_missing_and_refused_if_it_is_stale(path, kept):
    own = str(path.with_name("own.idx"))
    assert texts_of(path, own) == texts_of(path, own) == ["one", "two"]
    assert not kept.exists()
    write(path, "one", "two", "three")
    with pytest.raises(FormatError, match=r"own\.idx: expected the index of .* differs from line 3 on; remove"):
        texts_of(path, own)
    write(path, "a", "two-")
    with pytest.raises(FormatError, match="differs from line 1 on"):
        texts_of(path, own)


@pytest.mark.parametrize("mode", [0o777, 0o500])
def test_a_folder_that_is_not_for_this_user_alone_is_not_used(path, kept, mode):
    kept.mkdir(parents=True)
    kept.chmod(mode)
    if mode == 0o500 and os.access(kept, os.W_OK):
        pytest.skip("this user may write anywhere")
    assert texts_of(path) == ["one", "two"]
    assert not list(kept.iterdir())


def test_without_a_cache_folder_nothing_is_kept(path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file
    assert texts_of(path) == ["one", "two"]


def test_a_large_file_that_was_just_changed_is_not_remembered(path, kept, monkeypatch):
    monkeypatch.setattr("dsindex.datasets.line_index.WHOLE_BYTES", 4)
    monkeypatch.setattr("dsindex.datasets.line_index.SETTLED_SECONDS", 1e9)
    assert texts_of(path) == ["one", "two"]
    assert not kept.exists() or not list(kept.iterdir())
    monkeypatch.setattr("dsindex.datasets.line_index.SETTLED_SECONDS", -1e9)
    assert texts_of(path) == ["one", "two"]
    assert len(list(kept.iterdir())) == 1


def test_a_file_that_changes_while_it_is_open_is_refused(path):
    dataset = open_dataset(path)
    os.utime(path, ns=(SETTLED_NS, SETTLED_NS))  # as of a copy
    assert dataset[1]["text"]["value"] == "two"
    write(path, "one", "six")
    with pytest.raises(InputError, match=r"chat\.jsonl: expected the file as it was opened, but it has changed; open"):
        dataset[1]
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        dataset[1]
    with pytest.raises(InputError, match="No such file"):
        open_dataset(path)
