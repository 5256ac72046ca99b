"""Ranges of files give each line once, as json.loads reads it; what cannot be read is said."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import InputError
from dsindex.text.forms import TextPart
from dsindex.text.records import read_records
from dsindex.text.selection import Selection
from dsindex.text.streams import LineBlock, read_lines
from tests.dsindex.text.nasty_lines import GOOD, GOOD_LIST, NASTY, around, contents
from tests.dsindex.text.readings import BOM, KEYS, Reading, as_reading, in_memory, parse, read_ranges, reference

pytestmark = pytest.mark.usefixtures("either_way")


@pytest.mark.quick(60)
@pytest.mark.parametrize("good", [GOOD, GOOD_LIST], ids=["string", "list"])
@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
def test_a_nasty_line_is_read_as_json_loads_reads_it(nasty, good):
    for lines in (
        [good, nasty, good],
        [good, good, nasty],
        [nasty, nasty],
        [nasty, good],
        [good, nasty, b"", nasty, b""],
    ):
        content = b"\n".join(lines)
        assert as_reading(parse(content)) == reference(content)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "content",
    [
        GOOD + b"\n" + GOOD,
        GOOD + b"\n\n\n" + GOOD + b"\n\n",
        BOM + GOOD + b"\r\n" + GOOD + b"\r\n",
        b"\n".join(around(value) for value in [b"1", b"[{}]", b"null", b"1e300"]),
        b'{"text":"Inf} -NaN Information","title":"' + b"{" * 5000 + b'"}\n' + GOOD,
        '{"text":"Größe 😀","title":"\\u00e9\\ud83d\\ude00"}\n'.encode() * 1000,
        *([(GOOD + b"\n") * count for count in (2, 5_000, 30_000)]),
    ],
    ids=["plain", "blank", "bom", "others", "strings", "unicode", "2", "5000", "30000"],
)
def test_plain_lines_are_read_by_the_kernels_once_they_are_loaded(content, either_way, monkeypatch):
    if either_way == "kernels loaded":
        monkeypatch.setattr(Selection, "read_lines", lambda *_: pytest.fail("the slow path was taken"))
    assert as_reading(parse(content)) == reference(content)


@pytest.mark.exhaustive
@given(content=contents(), data=st.data())
@settings(max_examples=150)
def test_any_ranges_and_blocks_equal_json_loads(tmp_path_factory, content, data):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    block_bytes = data.draw(st.sampled_from([1, 2, 7, 64, 300, 1 << 20]))
    limit = data.draw(st.none() | st.integers(1, 60))
    found = read_ranges(path, [0, *cuts, len(content)], block_bytes=block_bytes, max_record_bytes=limit)
    assert found == reference(content, limit=limit)


@pytest.mark.quick(1)
@pytest.mark.parametrize("block_bytes", [40, 300, 1 << 20])
def test_lines_that_follow_a_long_line_belong_to_the_range_they_begin_in(tmp_path, block_bytes):
    path = tmp_path / "long.jsonl"
    content = b"\n".join([GOOD, b"x" * 300, GOOD, GOOD, GOOD, GOOD])
    path.write_bytes(content)
    expected = reference(content, limit=len(GOOD))
    for cut in range(len(content) + 1):
        found = read_ranges(path, [0, cut, len(content)], block_bytes=block_bytes, max_record_bytes=len(GOOD))
        assert found == expected, cut


@pytest.mark.quick(4)
@pytest.mark.parametrize("block_bytes", [1, 5, 64, 1 << 16])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n"])
def test_every_cut_of_a_file_gives_each_line_once(tmp_path, block_bytes, newline, last):
    path = tmp_path / "cut.jsonl"
    content = BOM + newline.join([b'{"text":"%d"}' % number for number in range(5)] + [b"", b"bad"]) + last
    path.write_bytes(content)
    expected = reference(content, ("text",))
    assert len(expected.records) == 5
    for cut in range(len(content) + 1):
        assert read_ranges(path, [0, cut, len(content)], ("text",), block_bytes=block_bytes) == expected


def test_a_line_longer_than_many_blocks_and_ranges(tmp_path):
    path = tmp_path / "long.jsonl"
    content = GOOD + b'\n{"title":"t","text":"' + b"long " * 100_000 + b'"}\n' + GOOD + b"\n" + GOOD
    path.write_bytes(content)
    cuts = [*range(0, len(content), 7000), len(content)]
    assert read_ranges(path, cuts, block_bytes=1000) == reference(content)


def test_a_line_over_the_limit_is_bad_and_not_held(tmp_path):
    path = tmp_path / "long.jsonl"
    content = GOOD + b'\n{"title":"t","text":"' + b"x" * 300_000 + b'"}\n' + GOOD + b"\n" + GOOD + b"x" * 1000
    path.write_bytes(content)
    blocks = list(
        read_records(
            TextPart(path=str(path), begin=0, end=len(content)), keys=KEYS, block_bytes=64, max_record_bytes=100
        )
    )
    reading = Reading()
    for block in blocks:
        reading.add(block)
    assert reading == reference(content, limit=100)
    reasons = [bad.reason for block in blocks for bad in block.bad]
    assert reasons == [f"record of {size} bytes is larger than the limit of 100 bytes" for size in (300_023, 1_034)]
    sizes = {
        len(block.data)
        for block in read_lines(TextPart(path=str(path), begin=0, end=len(content)), block_bytes=64, max_line_bytes=100)
        if isinstance(block, LineBlock)
    }
    assert max(sizes) <= 101


@pytest.mark.exhaustive
def test_memory_is_a_few_blocks(tmp_path):
    path = tmp_path / "big.jsonl"
    line = b'{"text":"' + b"words " * 200 + b'"}\n'
    path.write_bytes(line * 50_000)
    code = (
        "import resource, sys\n"
        "from dsindex.text.forms import TextPart\n"
        "from dsindex.text.records import read_records\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "def read(end):\n"
        "    blocks = read_records(TextPart(path=sys.argv[1], begin=0, end=end), keys=['text'], block_bytes=1 << 20)\n"
        "    return sum(len(block.offsets) for block in blocks)\n"
        "read(8_000_000); before = peak()\n"
        f"assert read({len(line) * 50_000}) == 50_000\n"
        "print(peak() - before)"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    grown = int(shown.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 16 << 20, f"peak memory grew by {grown} bytes over a file of {path.stat().st_size}"


@pytest.mark.parametrize("change", ["shorter", "longer", "touched"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path, change):
    path = tmp_path / "changing.jsonl"
    content = (GOOD + b"\n") * 1000
    path.write_bytes(content)
    blocks = read_records(TextPart(path=str(path), begin=0, end=len(content)), keys=KEYS, block_bytes=256)
    next(blocks)
    if change == "shorter":
        os.truncate(path, 1000)
    elif change == "longer":
        with path.open("ab") as file:
            file.write(GOOD)
    else:
        os.utime(path, ns=(1, 1))
    with pytest.raises(InputError, match=r"changing\.jsonl: expected \d+ bytes, got .* or other content"):
        list(blocks)


def test_unsuitable_files_are_named(tmp_path):
    path = tmp_path / "small.jsonl"
    path.write_bytes(GOOD)
    with pytest.raises(InputError, match=r"small\.jsonl: expected at least 99 bytes, got 34; the file became shorter"):
        list(read_records(TextPart(path=str(path), begin=0, end=99), keys=KEYS))
    with pytest.raises(
        InputError, match=r"small\.jsonl: expected 35 bytes, got 34; the file changed since the job was planned"
    ):
        list(read_records(TextPart(path=str(path), begin=0, end=34, expected_size=35), keys=KEYS))
    with pytest.raises(InputError, match=r"none\.jsonl: cannot be read \(No such file or directory\)"):
        list(read_records(TextPart(path=str(tmp_path / "none.jsonl"), begin=0, end=1), keys=KEYS))
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        list(read_records(TextPart(path=str(tmp_path), begin=0, end=1), keys=KEYS))


def test_empty_files_and_ranges_give_nothing(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b"")
    assert list(read_records(TextPart(path=str(path), begin=0, end=0, expected_size=0), keys=KEYS)) == []
    path.write_bytes(GOOD + b"\n")
    for begin, end in [(0, 0), (5, 5), (1, 35), (35, 35)]:
        assert list(read_records(TextPart(path=str(path), begin=begin, end=end), keys=KEYS)) == []


@pytest.mark.parametrize(("begin", "end"), [(5, 4), (-1, 4)])
def test_a_part_begins_in_the_file_and_ends_after_its_begin(begin, end):
    with pytest.raises(ValueError, match=rf"0 <= begin <= end, got \[{begin}, {end}\)"):
        TextPart(path="never opened", begin=begin, end=end)


@pytest.mark.quick(1)
def test_importing_the_reader_leaves_pyarrow_json_out():
    code = "import sys, dsindex.text.records; print('pyarrow.json' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_a_line_block_gives_lines_as_they_stand():
    block = in_memory(BOM + GOOD + b"\r\n" + GOOD)
    assert (block.line(0), block.text(0)) == (BOM + GOOD + b"\r", GOOD + b"\r")
    assert replace(block, offset=10).offsets().tolist() == [10, 49]
