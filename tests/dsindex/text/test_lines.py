import tracemalloc

import pytest

from dsindex.errors import InputError
from dsindex.text import streams as lines
from dsindex.text.forms import InputForm, TextPart
from dsindex.text.parts import read_text_file
from dsindex.text.streams import count_lines, read_lines
from tests.support.compressed import COMPRESSORS

pytestmark = pytest.mark.usefixtures("either_way")


@pytest.mark.parametrize("piece", [1, 3, 4 << 20])
def test_count_lines_gives_the_number_of_each_line(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(lines, "_COUNT_BYTES", piece)
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"a\n\nbcd\r\n\ne")
    assert [count_lines(str(path), offset) for offset in (0, 2, 3, 8, 9)] == [1, 2, 3, 4, 5]


def test_count_lines_refuses_a_file_that_ends_before(tmp_path):
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"a\n")
    with pytest.raises(InputError, match=r"some\.jsonl: expected 3 bytes"):
        count_lines(str(path), 3)


@pytest.mark.parametrize(
    ("suffix", "container"), [("", "plain"), ("one.gz", "gzip"), ("one.zst", "zstd"), ("one.bz2", "bzip2")]
)
def test_a_long_line_takes_little_more_memory_than_the_limit(tmp_path, monkeypatch, suffix, container):
    """The buffer grows in place, and a compressed file is decoded in pieces: a small one can hold all of the line."""
    monkeypatch.setattr(lines, "_GROWTH_BYTES", 1 << 20)
    limit, size_bytes = 16 << 20, 40_000_000
    path = tmp_path / f"a{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"x" * size_bytes) if suffix else b"x" * size_bytes)
    part = TextPart(path=str(path), begin=0, end=path.stat().st_size, form=InputForm(container=container))
    tracemalloc.start()
    try:
        [line] = read_lines(part, block_bytes=1 << 16, max_line_bytes=limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (line.num_bytes, len(line.head)) == (size_bytes, 1 << 20)
    assert peak < 1.4 * limit


def test_a_file_beyond_the_limit_keeps_its_first_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abcdefgh")
    part = TextPart(path=str(tmp_path / "a"), begin=0, end=8, form=InputForm(format="document"))
    [line] = read_text_file(part, max_line_bytes=4)
    assert (line.head, line.num_bytes) == (b"abcd", 8)
