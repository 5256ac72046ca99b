"""Files that are read together have the records, places and counts that each has alone."""

import gzip
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.store.read import fingerprint_input
from dsindex.text.blocks import mark_bad
from dsindex.text.compressed import SUFFIXES
from dsindex.text.input_format import InputForm
from dsindex.text.reader import TaskReader
from dsindex.text.selection import open_selection
from tests.support.compressed import COMPRESSORS
from tests.support.datasets import part_of

LINES = [
    b'{"text": "one"}', b'{"text": "two", "id": 1}\r', b'{"text": "\xc3\xa4\\u00e4"}', b"", b"  \t", b'{"text": 3}',
    b"not json", b'{"text": "\xff"}', b'{"text": "' + 60 * b"x" + b'"}',
]  # fmt: skip
contents = st.builds(
    lambda bom, lines, end: (b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + end,
    st.integers(0, 9).map(lambda number: number == 0),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=5),
    st.sampled_from([b"", b"\n"]),
).filter(len)
FORMS = [InputForm(format=name) for name in ("jsonl", "lines", "document")]
SELECTION = open_selection(["text"])


def pack(text, name, form):
    return COMPRESSORS[name](text), replace(form, container=SUFFIXES[os.path.splitext(name)[1]])


def write(folder, texts):
    files = []
    for number, (text, form) in enumerate(texts):
        path = folder / str(number)
        path.write_bytes(text)
        files.append(part_of(path, form=form))
    return files


def read(parts, limit):
    """Return the records and the bad records of each part, and the reader."""
    records, bad = [], []
    reader = TaskReader(parts)
    for block in reader.records(SELECTION, max_record_bytes=limit):
        [column] = block.columns.values()
        records += zip(block.parts.tolist(), block.offsets.tolist(), block.lines.tolist(), column.items, strict=True)
        bad += [(fault.part, fault.offset, fault.line, fault.line_bytes, fault.reason) for fault in block.bad_records]
    return records, bad, reader


PLAIN = st.tuples(contents, st.sampled_from(FORMS))
PACKED = st.builds(pack, contents | st.just(b""), st.sampled_from(list(COMPRESSORS)), st.sampled_from(FORMS[:2]))
FILES = st.lists(PLAIN | PACKED, min_size=1, max_size=8)


@settings(max_examples=80)
@given(texts=FILES, limit=st.sampled_from([1 << 30, 15, 60]), joined=st.sampled_from([1, 3, 1024]))
def test_files_have_the_records_that_each_has_alone(texts, limit, joined, tmp_path_factory):
    files = write(tmp_path_factory.mktemp("files"), texts)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dsindex.text.reader.JOINED_LINES", joined)
        records, bad, together = read(files, limit)
    expected_kept, expected_bad = [], []
    for number, file in enumerate(files):
        own_kept, own_bad, alone = read([file], limit)
        expected_kept += [(number, *row[1:]) for row in own_kept]
        expected_bad += [(number, *row[1:]) for row in own_bad]
        assert together.counts[number] == alone.counts[0]
        assert together.fingerprints[number] == alone.fingerprints[0] == fingerprint_input(file.path)
    assert (records, bad) == (expected_kept, expected_bad)


def test_a_record_that_becomes_bad_later_has_its_own_line(tmp_path):
    files = write(tmp_path, [(b"\n".join(LINES[:3]), FORMS[0]), (gzip.compress(LINES[1]), InputForm(container="gzip"))])
    [block] = TaskReader(files).records(SELECTION)
    aside = mark_bad(block, {1: "first", 3: "second"})
    assert aside.lines.tolist() == [0, 2]
    bad = [(record.part, record.line, record.line_bytes, record.reason) for record in aside.bad_records]
    assert bad == [(0, 1, LINES[1], "first"), (1, 0, LINES[1], "second")]


def test_lines_are_counted_for_each_file_however_few_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr("dsindex.store.read.BYTES_AHEAD", 2 * len(LINES[0]))
    *_, reader = read(write(tmp_path, [(LINES[0] + blank * b"\n", FORMS[0]) for blank in range(6)]), 60)
    assert reader.counts["lines"].tolist() == [1, 1, 2, 3, 4, 5]
    assert reader.counts["blank"].tolist() == [0, 0, 1, 2, 3, 4]


CHANGES = {
    "longer": lambda path, time: (path.write_bytes(LINES[0] + b"\n"), os.utime(path, ns=(0, time))),
    "later": lambda path, time: os.utime(path, ns=(0, time + 1)),
    "gone": lambda path, _: path.unlink(),
    "a pipe": lambda path, _: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_files_are_refused(change, tmp_path):
    files = write(tmp_path, [(LINES[0], FORMS[0])] * 3)
    change(tmp_path / "1", int(files[1].version))
    message = r"/1: (changed while the job was running|cannot be read \((No such|a pipe))"
    for parts in (files, files[1:2]):
        with pytest.raises(InputError, match=message):
            read(parts, 60)
