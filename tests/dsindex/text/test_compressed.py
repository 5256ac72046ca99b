"""Compressed files: their text in bounded pieces, where they may be cut, and their lines."""

import gzip
import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest

from dsindex.errors import InputError
from dsindex.store.local import LocalFile
from dsindex.text.compressed import Decoder, detect_file, find_cuts
from dsindex.text.forms import InputForm, TextPart
from dsindex.text.streams import LineBlock, LongLine, read_lines, split_stream
from tests.support.compressed import COMPRESSORS, bgzf, zstd, zstd_frames

TEXT = b"".join(b'{"text": "%d %s"}\n' % (number, bytes([97 + number % 26]) * (number % 200)) for number in range(300))
KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
CASES = pytest.mark.parametrize("name", COMPRESSORS)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return str(path), KINDS[path.suffix]


def decode(path, container, *, begin=0, size=1000):
    with open(path, "rb", buffering=0) as file:
        decoder = Decoder(path, LocalFile(file), container, begin=begin)
        pieces = []
        while not decoder.at_end:
            pieces.append(decoder.read(size))
            assert len(pieces[-1]) <= size
    return b"".join(pieces)


@pytest.mark.quick(10)
@CASES
@pytest.mark.parametrize("size", [1, 17, 4096, 1 << 20])
def test_decoder_returns_the_text_in_bounded_pieces(tmp_path, name, size):
    for text in (TEXT, b""):
        path, container = write(tmp_path, name, COMPRESSORS[name](text))
        assert decode(path, container, size=size) == text


@CASES
def test_decoder_reads_nothing_from_before_on(tmp_path, name):
    content = COMPRESSORS[name](TEXT)
    path, container = write(tmp_path, name, content)
    whole, before = b"", 0
    with open(path, "rb", buffering=0) as file:
        decoder = Decoder(path, LocalFile(file), container)
        for before in [*range(1, len(content), 97), None]:
            while not decoder.at_end:
                text = decoder.read(1 << 20, before=before)
                whole += text
                if not text and before is not None and not decoder.has_input(before):
                    assert TEXT.startswith(whole)
                    break
    assert whole == TEXT


def test_a_file_is_told_by_its_content_not_its_name(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_bytes(gzip.compress(TEXT))
    assert detect_file(str(path))[0] == "gzip"
    path.write_bytes(struct.pack("<II", 0x184D2A50, 3) + b"abc" + zstd.compress(TEXT))
    assert detect_file(str(path))[0] == "zstd"


@pytest.mark.parametrize(("name", "content", "said"), [
    ("x.jsonl.gz", TEXT, r"expected gzip data as its name says, got other data that begins with b'\{\"text\"'?"),
    ("x.jsonl", b"PK\x03\x04rest", "got a zip archive; unpack it"),
    ("x.jsonl", b"\x04\x22\x4d\x18rest", "got lz4 data"),
    ("x.tar.gz", gzip.compress(b"", mtime=0), "got a tar archive by its name; unpack it"),
    ("x.TGZ", b"", "got a tar archive by its name"),
    ("x.tar", bytes(257) + b"ustar\x00" + bytes(300), "got a tar archive"),
])  # fmt: skip
def test_other_content_is_refused_by_its_kind(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        detect_file(str(path))


@CASES
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_that_is_cut_off_is_refused(tmp_path, name, share):
    content = COMPRESSORS[name](TEXT)
    path, container = write(tmp_path, name, content)
    with open(path, "rb", buffering=0) as file:
        decoder = Decoder(path, LocalFile(file), container)
        ends = [0]
        while not decoder.at_end:
            decoder.read(1 << 20)
            ends.append(decoder.member_begin)
    size = int(len(content) * share)
    if any(content[size:end] == bytes(end - size) for end in ends if end >= size) or size in ends:
        pytest.skip("cut between members")
    Path(path).write_bytes(content[:size])
    with pytest.raises(InputError, match=rf"expected {container} data, but the \w+ that begins at byte \d+ is cut off"):
        decode(path, container)


@pytest.mark.parametrize("name", ["one.gz", "members.gz", "blocks.gz", "frames.zst", "one.bz2", "one.xz"])
def test_a_damaged_file_is_refused_with_its_member(tmp_path, name):
    content = bytearray(COMPRESSORS[name](TEXT))
    content[len(content) // 2] ^= 0x55
    path, container = write(tmp_path, name, bytes(content))
    with pytest.raises(InputError, match=rf"expected {container} data, but the \w+ that begins at byte \d+ is "):
        decode(path, container)


def test_text_after_the_last_member_is_refused(tmp_path):
    path, container = write(tmp_path, "x.gz", gzip.compress(TEXT) + b"and something more")
    with pytest.raises(
        InputError, match=rf"the member that begins at byte {len(gzip.compress(TEXT))} is something else"
    ):
        decode(path, container)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("unit", [1, 500, 2000])
def test_cuts_are_where_members_begin(tmp_path, name, unit):
    path, container = write(tmp_path, name, COMPRESSORS[name](TEXT))
    cuts = find_cuts(path, container, unit_bytes=unit)
    assert cuts[0] == 0
    assert cuts[-1] == Path(path).stat().st_size
    assert all(low < high for low, high in pairwise(cuts))
    texts = [decode(path, container, begin=cut) for cut in cuts[:-1]]
    assert all(TEXT.endswith(text) for text in texts)
    assert all(len(first) >= len(second) for first, second in pairwise(texts))
    if unit > 1:  # with so small units nothing is searched far enough
        assert (len(cuts) > 2) == (name in ("members.gz", "blocks.gz", "frames.zst", "streams.bz2"))


def test_what_only_looks_like_a_member_is_no_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("dsindex.text.compressed.UNITS_WITHOUT_MEMBERS", 100)
    lookalike = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    stored = gzip.compress(lookalike * 3000, 0)  # level 0: as it is
    path, container = write(tmp_path, "x.gz", stored + gzip.compress(TEXT) * 3)
    cuts = find_cuts(path, container, unit_bytes=900)
    single = len(gzip.compress(TEXT))
    assert cuts == (0, *range(len(stored), len(stored) + 3 * single + 1, single))


def test_a_large_member_is_not_searched_to_its_end(tmp_path, monkeypatch):
    content = gzip.compress(random.Random(1).randbytes(50_000)) + gzip.compress(TEXT)
    path, container = write(tmp_path, "x.gz", content)
    assert len(find_cuts(path, container, unit_bytes=1000)) == 2
    monkeypatch.setattr("dsindex.text.compressed.UNITS_WITHOUT_MEMBERS", 100)
    assert len(find_cuts(path, container, unit_bytes=1000)) == 3


def test_a_long_first_frame_is_not_walked_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("dsindex.text.compressed.LARGEST_FIRST_FRAME_BLOCKS", 2)
    text = bytes(3 * (128 << 10))
    path, container = write(tmp_path, "x.zst", zstd_frames(text + TEXT, len(text)))
    assert len(find_cuts(path, container, unit_bytes=1)) == 2


def test_a_bomb_is_decoded_in_bounded_pieces(tmp_path):
    path, container = write(tmp_path, "x.zst", zstd.compress(bytes(300 << 20)))
    assert Path(path).stat().st_size < 30_000
    total = 0
    with open(path, "rb", buffering=0) as file:
        decoder = Decoder(path, LocalFile(file), container)
        while not decoder.at_end:
            text = decoder.read(1 << 20)
            assert len(text) <= 1 << 20
            total += len(text)
    assert total == 300 << 20


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
