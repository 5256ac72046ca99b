"""The lines of compressed files: each once, for any cut, with offsets in the text."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from dsindex.text.compressed import find_cuts
from dsindex.text.forms import InputForm, TextPart
from dsindex.text.streams import LineBlock, LongLine, read_lines, split_stream
from tests.support.compressed import COMPRESSORS, bgzf, zstd_frames

KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}


def draw_text(seed):
    rng = random.Random(seed)
    text = b"\n".join(b"%d" % number * rng.choice([0, 1, 3, 40, 300]) for number in range(rng.choice([0, 1, 50, 200])))
    return text + rng.choice([b"", b"\n"])


def lines_of(text):
    """Offset and content of each line."""
    lines, offset = [], 0
    for line in text.split(b"\n") if not text.endswith(b"\n") else text[:-1].split(b"\n"):
        lines.append((offset, line))
        offset += len(line) + 1
    return lines if text else []


def part_of(path, container, begin, end):
    return TextPart(path=path, begin=begin, end=end, form=InputForm(container=container))


def read_part(path, container, begin, end, **options):
    """The lines of a part, and the size of its text."""
    lines, size, number = [], 0, 0
    for block in read_lines(part_of(path, container, begin, end), **({"block_bytes": 64} | options)):
        if isinstance(block, LongLine):
            assert block.line == number
            lines.append((block.offset, block.head))
            size, number = size + block.num_bytes + 1, number + 1
        else:
            assert block.first_line == number
            lines += [(int(offset), block.line(line)) for line, offset in enumerate(block.offsets())]
            size, number = size + block.num_bytes, number + len(block.starts)
    return lines, size


@pytest.mark.quick(20)
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("unit", [1, 300, 1 << 20])
def test_the_parts_of_a_compressed_file_have_each_line_once(tmp_path, name, seed, unit):
    text = draw_text(seed)
    path, container = tmp_path / name, KINDS[Path(name).suffix]
    path.write_bytes(COMPRESSORS[name](text))
    found, base = [], 0
    for begin, end in pairwise(find_cuts(str(path), container, unit_bytes=unit)):
        lines, size = read_part(str(path), container, begin, end)
        found += [(offset + base, line) for offset, line in lines]
        base += size
    assert found == lines_of(text)


@pytest.mark.parametrize("make", [lambda text, size: zstd_frames(text, size), bgzf], ids=["zstd", "bgzf"])
@pytest.mark.parametrize("size", range(1, 40))
def test_members_may_end_anywhere_in_a_line(tmp_path, make, size):
    text = b"a\n\nbb\n" + b"long line " * 5 + b"\n\n\nlast"
    container = "gzip" if make is bgzf else "zstd"
    path = tmp_path / "x"
    path.write_bytes(make(text, size))
    found, base = [], 0
    for begin, end in pairwise(find_cuts(str(path), container, unit_bytes=1)):
        lines, part = read_part(str(path), container, begin, end, block_bytes=4)
        found += [(offset + base, line) for offset, line in lines]
        base += part
    assert found == lines_of(text)


@pytest.mark.quick(20)
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("step", [1, 50, 1000])
def test_the_pieces_of_a_stream_are_whole_lines_of_the_text(tmp_path, name, seed, step):
    text = draw_text(seed)
    path, container = tmp_path / name, KINDS[Path(name).suffix]
    content = COMPRESSORS[name](text)
    path.write_bytes(content)
    bounds = [*range(0, len(content), step), len(content)]
    pieces = [b""] * (len(bounds) - 1)
    before = 0
    for piece, part in split_stream(str(path), container, bounds):
        assert before <= piece < len(pieces)
        assert part
        pieces[piece] += part
        before = piece
    assert b"".join(pieces) == text
    assert all(piece.endswith(b"\n") for piece in list(filter(None, pieces))[:-1])


def test_a_long_line_of_a_stream_is_not_held(tmp_path):
    text = b"short\n" + b"x" * 5000 + b"\nlast\n"
    path = tmp_path / "x.zst"
    path.write_bytes(zstd_frames(text, 700))
    lines, size = read_part(str(path), "zstd", 0, path.stat().st_size, max_line_bytes=100)
    assert lines == [(0, b"short"), (6, b"x" * 100), (5007, b"last")]
    assert size == len(text)


def test_a_bom_is_skipped_only_where_the_text_starts(tmp_path):
    path = tmp_path / "x.zst"
    text = b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n"
    path.write_bytes(zstd_frames(text, 5))
    cuts = find_cuts(str(path), "zstd", unit_bytes=1)
    texts = [
        block.text(number)
        for begin, end in pairwise(cuts)
        for block in read_lines(part_of(str(path), "zstd", begin, end), block_bytes=64)
        if isinstance(block, LineBlock)
        for number in range(len(block.starts))
    ]
    assert texts == [b"a", b"\xef\xbb\xbfb"]
