"""Files that are read together have the records, places and counts that each has alone."""

import gzip
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.store.reading import fingerprint_input
from dsindex.text.compressed import SUFFIXES
from dsindex.text.forms import InputForm, SmallFile
from dsindex.text.parts import read_part
from dsindex.text.small_files import SmallFiles
from tests.support.compressed import COMPRESSORS

LINES = [
    b'{"text": "one"}',
    b'{"text": "two", "id": 1}\r',
    b'{"text": "\xc3\xa4\\u00e4"}',
    b"",
    b"  \t",
    b'{"text": 3}',
    b"not json",
    b'{"text": "\xff"}',
    b'{"text": "' + 60 * b"x" + b'"}',
]
contents = st.builds(
    lambda bom, lines, end: (b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + end,
    st.integers(0, 9).map(lambda number: number == 0),
    st.lists(st.sampled_from(LINES), min_size=1, max_size=5),
    st.sampled_from([b"", b"\n"]),
).filter(len)
FORMS = [InputForm(format=name) for name in ("jsonl", "lines", "document")]


def pack(text, name, form):
    return COMPRESSORS[name](text), replace(form, container=SUFFIXES[os.path.splitext(name)[1]])


def write(folder, texts):
    files = []
    for number, (text, form) in enumerate(texts):
        path = folder / str(number)
        path.write_bytes(text)
        status = path.stat()
        files.append(
            SmallFile(
                path=str(path),
                size_bytes=status.st_size,
                version=str(status.st_mtime_ns),
                form=form,
                end=status.st_size,
            )
        )
    return files


def rows(block, number=None):
    [column] = block.columns.values()
    texts = column.texts
    kept = list(zip(block.offsets.tolist(), block.lines.tolist(), texts, strict=True))
    bad = [
        (record.file if number is None else number, record.offset, record.line, record.line_bytes, record.reason)
        for record in block.bad
    ]
    return [kept, bad]


def read_together(files, limit):
    kept = []
    bad = []
    together = SmallFiles(files, keys=("text",), max_record_bytes=limit)
    for found in together.blocks():
        block, numbers = together.place(found)
        own, wrong = rows(block)
        kept += [(number, *row) for number, row in zip(numbers.tolist(), own, strict=True)]
        bad += wrong
    return kept, bad, together


def read_alone(files, limit):
    kept = []
    bad = []
    counts = []
    for number, file in enumerate(files):
        blocks = list(read_part(file.part, keys=("text",), max_record_bytes=limit))
        for block in blocks:
            own, wrong = rows(block, number)
            kept += [(number, *row) for row in own]
            bad += wrong
        counts.append(
            (
                sum(block.num_lines for block in blocks),
                sum(block.num_blank for block in blocks),
                sum(len(block.offsets) for block in blocks),
                sum(len(block.bad) for block in blocks),
            )
        )
    return kept, bad, counts


@settings(max_examples=150)
@given(
    texts=st.lists(
        st.tuples(contents, st.sampled_from(FORMS))
        | st.builds(pack, contents | st.just(b""), st.sampled_from(list(COMPRESSORS)), st.sampled_from(FORMS[:2])),
        min_size=1,
        max_size=8,
    ),
    limit=st.sampled_from([None, 15, 60]),
)
def test_files_have_the_records_that_each_has_alone(texts, limit, tmp_path_factory):
    files = write(tmp_path_factory.mktemp("files"), texts)
    kept, bad, together = read_together(files, limit)
    expected_kept, expected_bad, expected_counts = read_alone(files, limit)
    assert (kept, bad) == (expected_kept, expected_bad)
    assert together.fingerprints == [fingerprint_input(file.path) for file in files]
    names = ["lines", "blank", "kept", "quarantined"]
    assert together.counts[names].tolist() == expected_counts


def test_blocks_of_any_size_are_placed(tmp_path, monkeypatch):
    texts = [(b"\n".join(LINES[number % 9 :]), FORMS[0]) for number in range(40)]
    files = write(tmp_path, texts)
    expected = read_together(files, 30)[:2]
    for size in (17, 64, 300):
        monkeypatch.setattr("dsindex.text.small_files.DEFAULT_BLOCK_BYTES", size)
        assert read_together(files, 30)[:2] == expected
        assert read_alone(files, 30)[:2] == expected


def test_compressed_files_stand_between_others(tmp_path):
    packed = (gzip.compress(b'{"text": "two"}\n{"text": "three"}'), InputForm(container="gzip"))
    files = write(tmp_path, [(LINES[0], FORMS[0]), packed, (LINES[0], FORMS[0])])
    kept, _, together = read_together(files, None)
    assert [(number, line, text) for number, _, line, text in kept] == [
        (0, 0, "one"),
        (1, 0, "two"),
        (1, 1, "three"),
        (2, 0, "one"),
    ]
    assert together.counts["text_bytes"].tolist() == [15, 33, 15]


def test_a_damaged_file_between_others_is_named(tmp_path):
    packed, form = gzip.compress(b"\n".join(LINES)), InputForm(container="gzip")
    files = write(tmp_path, [(packed, form), (packed[:-12], form), (packed, form)])
    with pytest.raises(InputError, match=r"/1: expected gzip data, but the member .* is cut off"):
        read_together(files, None)


def test_files_with_much_text_are_read_as_each_alone(tmp_path):
    text = b"\n".join(b'{"text": "%d"}' % number for number in range(300_000))
    forms = [("one.gz", FORMS[0]), ("frames.zst", FORMS[1])]
    files = write(tmp_path, [(LINES[0], FORMS[0]), *(pack(text, *form) for form in forms), (LINES[0], FORMS[0])])
    assert read_together(files, None)[:2] == read_alone(files, None)[:2]


@pytest.mark.parametrize("is_alone", [False, True], ids=["joined", "compressed"])
@pytest.mark.parametrize("change", ["longer", "later", "gone", "a pipe"])
def test_changed_files_are_refused(change, is_alone, tmp_path):
    own = (gzip.compress(LINES[0]), InputForm(container="gzip")) if is_alone else (LINES[0], FORMS[0])
    files = write(tmp_path, [own] * 3)
    path = tmp_path / "1"
    if change == "longer":
        path.write_bytes(own[0] + b"\n")
        os.utime(path, ns=(0, int(files[1].version)))
    elif change == "later":
        os.utime(path, ns=(0, int(files[1].version) + 1))
    else:
        path.unlink()
    if change == "a pipe":
        os.mkfifo(path)
    with pytest.raises(InputError, match=r"/1: (changed while|cannot be read)"):
        read_together(files, None)
