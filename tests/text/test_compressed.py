"""Compressed files: their text in bounded pieces, and their lines; what is damaged, cut off or another kind is said."""

import gzip
import struct
from pathlib import Path

import pytest

from dsindex.errors import InputError
from dsindex.store.local import LocalFile
from dsindex.store.read import open_readable
from dsindex.text import compressed
from dsindex.text.compressed import measure_compression
from dsindex.text.input_format import detect_form
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
        pieces = list(compressed.decode(path, file, container, piece_bytes=size))
    assert all(0 < len(piece) <= size for piece in pieces)
    return b"".join(pieces)


@pytest.mark.quick(10)
@CASES
@pytest.mark.parametrize("size", [17, 1 << 20])
def test_the_text_is_decoded_in_bounded_pieces(tmp_path, name, size):
    for text in (TEXT, b""):
        path, container = write(tmp_path, name, COMPRESSORS[name](text))
        assert decode(path, container, size=size) == text


def test_a_file_is_told_by_its_content_not_its_name(tmp_path):
    path = tmp_path / "text.jsonl"
    frames = struct.pack("<II", 0x184D2A50, 3) + b"abc" + zstd.compress(TEXT)
    for content, container in ((gzip.compress(TEXT), "gzip"), (frames, "zstd")):
        path.write_bytes(content)
        with open_readable(str(path)) as file:
            assert detect_form(file, shown_as="text.jsonl").container == container


@pytest.mark.parametrize(("name", "content", "message"), [
    ("x.jsonl.gz", TEXT, r"this is not gzip data, as its name says: it begins with b'\{"),
    ("x.jsonl", b"PK\x03\x04rest", "this is a zip archive\nhint: unpack it"),
    ("x.jsonl", b"\x04\x22\x4d\x18rest", "this is lz4 data"),
    ("x.jsonl", b"%PDF-1.7", "this is a PDF\nhint: write its texts as JSON lines"),
    ("x.warc.wet.gz", gzip.compress(b"WARC", mtime=0), "x.warc.wet.gz: not .*\nhint: write its texts as JSON lines"),
    ("x.orc", b"ORC", "x.orc: not JSON lines, Parquet or Arrow\nhint: write it as Parquet"),
    ("x.jsonl.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "this is a Git LFS pointer"),
    ("x.tar.gz", gzip.compress(b"", mtime=0), "this is a tar archive, by its name"),
    ("x.jsonl", "{}".encode("utf-32-be"), "this is text in UTF-32"),
    ("x.tar", bytes(257) + b"ustar\x00" + bytes(300), "this is a tar archive"),
])  # fmt: skip
def test_other_content_is_refused_by_its_kind(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with open_readable(str(path)) as file, pytest.raises(InputError, match=message):
        detect_form(file, shown_as=name)


@CASES
def test_a_file_that_is_cut_off_or_damaged_is_refused_with_its_member(tmp_path, name):
    content = COMPRESSORS[name](TEXT)
    path, container = write(tmp_path, name, content)
    message = rf"the {container} \w+ that begins at byte \d+ "
    for size in (20, 40):
        Path(path).write_bytes(content[:size])
        with pytest.raises(InputError, match=f"{message}is cut off"):
            decode(path, container)
    Path(path).write_bytes(content[:30] + bytes([content[30] ^ 0x55]) + content[31:])
    with pytest.raises(InputError, match=f"{message}is "):
        decode(path, container)


def test_text_after_the_last_member_is_refused(tmp_path):
    path, container = write(tmp_path, "x.gz", gzip.compress(TEXT) + b"and something more")
    begin = len(gzip.compress(TEXT))
    with pytest.raises(InputError, match=rf"member that begins at byte {begin} is something else"):
        decode(path, container)


def test_compression_is_measured_on_the_first_bytes(tmp_path):
    content = COMPRESSORS["one.gz"](TEXT * 20)
    path, container = write(tmp_path, "x.gz", content)
    assert 0.5 < measure_compression(path, container, num_bytes=1 << 20) / (len(content) / len(TEXT * 20)) < 1.5


def test_a_bomb_is_decoded_in_bounded_pieces(tmp_path):
    path, container = write(tmp_path, "x.zst", zstd.compress(bytes(300 << 20)))
    assert Path(path).stat().st_size < 30_000
    with LocalFile(path) as file:
        sizes = [len(text) for text in compressed.decode(path, file, container)]
    assert max(sizes) <= compressed.PIECE_BYTES
    assert sum(sizes) == 300 << 20
