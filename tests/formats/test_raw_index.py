import gzip
import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.commands.raw_index import create_raw_index
from dsindex.errors import BadRecordError, FormatError, InputError, OutputError
from dsindex.formats.pickled_pairs import read_raw_index
from dsindex.text.streams import find_lines, is_json
from tests.support.golden import MODALITIES
from tests.text.nasty_lines import NASTY


def reference(data):
    """What Modalities writes with faulty entries dropped."""
    pairs, offset = [], 0
    lines = data.split(b"\n")
    for line in lines if lines[-1] else lines[:-1]:
        try:
            json.loads(line)
            pairs.append((offset, len(line)))
        except ValueError:
            pass
        offset += len(line) + 1
    return pairs


def index_of(tmp_path, data, *, drop=False):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(data)
    (tmp_path / "lines.idx").unlink(missing_ok=True)
    create_raw_index(str(path), drop_faulty_entries=drop)
    return (tmp_path / "lines.idx").read_bytes()


def test_create_raw_index_gives_the_bytes_of_modalities(tmp_path):
    target = tmp_path / "x.idx"
    account = create_raw_index(str(MODALITIES / "nonempty.jsonl"), str(target))
    assert target.read_bytes() == (MODALITIES / "nonempty.idx").read_bytes()
    assert (account.num_entries, account.num_dropped) == (216, 0)


@given(st.lists(st.sampled_from([b"{}", b"", b" ", b"{", b'{"a": "\xff"}', b"\r", b'{"text": "x"}'])), st.booleans())
def test_create_raw_index_drops_what_modalities_drops(tmp_path_factory, lines, newline):
    data = b"\n".join(lines) + (b"\n" if newline and lines else b"")
    index = index_of(tmp_path_factory.getbasetemp(), data, drop=True)
    assert index == pickle.dumps(reference(data), protocol=4)


LINES = [
    *(line for line in NASTY if line.count(b"[") < 500), "1".encode("utf-16"), b"[" * 90 + b"]" * 90, b"[" * 100_000,
    b"1" * 4100, b"1" * 5000, b"true", b"truex", b"1 2", b'"', b'"\\', b'"\\u12g4"', b'"a\tb"', b'"\x00"', b"]", b"[}",
]  # fmt: skip


@pytest.mark.quick(60)
@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_lines_are_judged_as_json_loads_does(line):
    try:
        json.loads(line)
        expected = True
    except (ValueError, RecursionError):
        expected = False
    assert is_json(line) == expected


@pytest.mark.parametrize(("data", "message"), [
    (b"{}\n{\n[\n", "lines.jsonl, line 2: not JSON\nhint: fix it, .* --drop-faulty-entries"),
    (b"{}\n{}\n\r\n", "lines.jsonl, line 3: a blank line"),
])  # fmt: skip
@pytest.mark.parametrize("block_bytes", [3, 4 << 20])
def test_the_first_faulty_line_is_an_error_and_nothing_is_left(tmp_path, monkeypatch, data, message, block_bytes):
    monkeypatch.setattr("dsindex.text.streams._JSON_BLOCK_BYTES", block_bytes)
    with pytest.raises(BadRecordError, match=message):
        index_of(tmp_path, data)
    assert [file.name for file in tmp_path.iterdir()] == ["lines.jsonl"]


@pytest.mark.parametrize(("data", "message"), [
    (gzip.compress(b"{}\n", mtime=0), "gzip data, in which no line has an offset\nhint: unpack it"),
    ("{}\n".encode("utf-16"), "text in UTF-16, not UTF-8\nhint: convert it"),
    (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
])  # fmt: skip
def test_a_file_whose_lines_would_all_be_dropped_is_refused(tmp_path, data, message):
    with pytest.raises(InputError, match=message):
        index_of(tmp_path, data, drop=True)


def test_a_file_that_vanishes_after_its_last_line_has_an_index(tmp_path, monkeypatch):
    def find(path, **options):
        lines = find_lines(path, **options)
        os.unlink(path)
        return lines

    monkeypatch.setattr("dsindex.commands.raw_index.find_lines", find)
    assert index_of(tmp_path, b"{}\n") == pickle.dumps([(0, 2)], protocol=4)


@pytest.mark.parametrize("content", [b"MMIDIDX\0\0", pickle.dumps([(0, 1)], protocol=4), b"{}\n"])
def test_file_that_is_there_is_never_replaced(tmp_path, content):
    source, target = tmp_path / "lines.jsonl", tmp_path / "lines.idx"
    source.write_bytes(b"{}\n")
    target.write_bytes(content)
    with pytest.raises(OutputError, match=r"lines\.idx: exists already, with other content"):
        create_raw_index(str(source))
    assert target.read_bytes() == content
    assert sorted(os.listdir(tmp_path)) == ["lines.idx", "lines.jsonl"]


@pytest.mark.parametrize("pair", [(0, 8), (8, 0), (2**62, 2**63 - 1)])
def test_read_raw_index_refuses_lines_outside_of_the_file(tmp_path, pair):
    path = tmp_path / "x.idx"
    path.write_bytes(pickle.dumps([(0, 7), pair], protocol=4))
    with pytest.raises(FormatError, match=r"entry 1 \(.* is outside the file of 7 bytes"):
        read_raw_index(str(path), size_bytes=7)
