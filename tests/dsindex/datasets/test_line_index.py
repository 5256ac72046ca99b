import json
import os
import threading

import pytest

from dsindex.datasets.instruction import InstructionDataset
from dsindex.datasets.line_index import open_lines
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.formats.raw_index import create_raw_index
from tests.support.chat_tokenizers import train

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


def test_several_may_open_a_file_at_once(path, kept):
    found = []
    threads = [threading.Thread(target=lambda: found.append(texts_of(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["one", "two"]] * 8
    assert len(list(kept.iterdir())) == 1


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
