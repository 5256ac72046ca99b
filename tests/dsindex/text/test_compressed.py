"""Compressed files: their text in bounded pieces, where they may be cut, and their lines."""

import gzip
import random
import struct
from pathlib import Path

import pytest

from dsindex.errors import InputError
from dsindex.store.storage import LocalFile
from dsindex.text.compressed import Decoder, detect_file, measure_compression
from dsindex.text.forms import InputForm, TextPart
from dsindex.text.streams import LongLine, read_lines
from tests.support.compressed import COMPRESSORS, zstd

TEXT = b"".join(b'{"text": "%d %s"}\n' % (number, bytes([97 + number % 26]) * (number % 200)) for number in range(300))
KINDS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
CASES = pytest.mark.parametrize("name", COMPRESSORS)


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return str(path), KINDS[path.suffix]


def decode(path, container, *, size=1000):
    with LocalFile(path) as file:
        decoder = Decoder(path, file, container)
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
    ("x.jsonl.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "got a Git LFS pointer"),
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
    with LocalFile(path) as file:
        decoder = Decoder(path, file, container)
        ends = [0]
        while not decoder.at_end:
            decoder.read(1 << 20)
            ends.append(decoder._begin)
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


@CASES
def test_compression_is_measured_on_the_first_bytes(tmp_path, name):
    content = COMPRESSORS[name](TEXT * 20)
    path, container = write(tmp_path, name, content)
    assert 0.5 < measure_compression(path, container, num_bytes=1 << 20) / (len(content) / len(TEXT * 20)) < 1.5


def test_a_bomb_is_decoded_in_bounded_pieces(tmp_path):
    path, container = write(tmp_path, "x.zst", zstd.compress(bytes(300 << 20)))
    assert Path(path).stat().st_size < 30_000
    total = 0
    with LocalFile(path) as file:
        decoder = Decoder(path, file, container)
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


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_bytes", [4, 64, 1 << 20])
def test_lines_are_those_of_the_text(tmp_path, name, seed, block_bytes):
    text = draw_text(seed)
    path, container = write(tmp_path, name, COMPRESSORS[name](text))
    part = TextPart(path=path, begin=0, end=Path(path).stat().st_size, form=InputForm(container=container))
    found = []
    for block in read_lines(part, block_bytes=block_bytes):
        assert not isinstance(block, LongLine)
        found += [(int(offset), block.line(line)) for line, offset in enumerate(block.offsets())]
    assert found == lines_of(text)
