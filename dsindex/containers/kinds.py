"""Tell by its first bytes how a file is compressed."""

from __future__ import annotations

import os
from typing import Literal

from dsindex.errors import InputError
from dsindex.readable import open_readable

Container = Literal["plain", "gzip", "zstd", "bzip2", "xz"]

HEAD_BYTES = 512
"""Bytes that `detect_container` needs."""

SUFFIXES: dict[str, Container] = {
    ".gz": "gzip",
    ".bgz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bzip2",
    ".xz": "xz",
}
"""File name suffix → the compression that it promises."""

_MAGIC: tuple[tuple[bytes, Container], ...] = (
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\0", "xz"),
)
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a skippable frame; the first is 0x50 to 0x5f (RFC 8878, 3.1.2)."""
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""After `BZh` and a digit: the first block, or the end of an empty stream."""
_FOREIGN: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a rar archive"),
    (0, b"\x04\x22\x4d\x18", "lz4 data"),
    (0, b"\xff\x06\x00\x00sNaPpY", "snappy data"),
    (0, b"\x1f\x9d", "data of compress"),
    (0, b"LZIP", "lzip data"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"%PDF-", "a PDF"),
    (257, b"ustar", "a tar archive"),
)


def detect_container(head: bytes) -> Container:
    r"""Return how a file is compressed, by its first HEAD_BYTES bytes.

    >>> detect_container(b'{"text": "a"}'), detect_container(b"\x1f\x8b\x08\x00")
    ('plain', 'gzip')
    """
    for magic, container in _MAGIC:
        if head.startswith(magic):
            return container
    if head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5:
        return "zstd"
    if head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in _BZIP2_BLOCKS:
        return "bzip2"
    return "plain"


def detect_file(path: str) -> tuple[Container, bytes]:
    """Return how a file is compressed, and its first HEAD_BYTES bytes.

    Raises:
        InputError: If it is an archive or of another unsupported kind, or its name promises a compression that its
            content does not have.
        OSError: If it cannot be read.
    """
    with open_readable(path) as file:
        head = file.read_at(HEAD_BYTES, 0)
    container = detect_container(head)
    if container != "plain":
        return container, head
    for offset, magic, kind in _FOREIGN:
        if head[offset : offset + len(magic)] == magic:
            msg = f"{path}: expected text, Parquet or Arrow, plain or as gzip, zstd, bzip2 or xz, got {kind}; unpack it"
            raise InputError(msg)
    suffix = os.path.splitext(path)[1].lower()
    promised = SUFFIXES.get(suffix)
    if promised is not None and head:
        msg = (
            f"{path}: expected {promised} data as its name says, got other data that begins with {head[:16]!r}; "
            f"fetch it again, or rename it if it is not compressed"
        )
        raise InputError(msg)
    return container, head
