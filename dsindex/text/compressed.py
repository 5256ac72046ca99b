"""Tell by its content how a file is compressed, and decode it from its start, in pieces of bounded size.

A file may have many members (gzip), frames (zstd) or streams (bzip2, xz), one after the other. The decompressors are
those of isal, `compression.zstd` (PEP 784, as a backport), bz2 and lzma, which have the same interface:
`decompress(data, max_length)`, `needs_input`, `eof`, `unused_data`.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dsindex.errors import InputError
from dsindex.store.reading import open_readable, read_start

if TYPE_CHECKING:
    from collections.abc import Callable

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
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ARCHIVE = re.compile(r"\.(tar(\.\w+)?|t[gx]z|tbz2?)$", re.IGNORECASE)


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


def describe_lfs_pointer(head: bytes) -> str | None:
    """Return what a file is that begins so, and the remedy, if a clone without Git LFS left a pointer in its place.

    >>> describe_lfs_pointer(b'{"text": "a"}') is None
    True
    """
    if not head.startswith(_LFS_POINTER):
        return None
    return "a Git LFS pointer, which stands for the file in a clone without Git LFS; run `git lfs pull` there"


def detect_file(path: str) -> tuple[Container, bytes]:
    """Return how a file is compressed, and its first HEAD_BYTES bytes.

    Raises:
        InputError: If it is an archive, a Git LFS pointer or of another unsupported kind, or its name promises a
            compression that its content does not have.
        OSError: If it cannot be read.
    """
    head = read_start(path, HEAD_BYTES)
    container = detect_container(head)
    if (pointer := describe_lfs_pointer(head)) is not None:
        raise InputError(f"{path}: expected text, Parquet or Arrow, got {pointer}")
    if _ARCHIVE.search(path):
        raise InputError(f"{path}: expected text, Parquet or Arrow, got a tar archive by its name; unpack it")
    if container != "plain":
        return container, head
    for offset, magic, kind in _FOREIGN:
        if head.startswith(magic, offset):
            msg = f"{path}: expected text, Parquet or Arrow, plain or as gzip, zstd, bzip2 or xz, got {kind}; unpack it"
            raise InputError(msg)
    suffix = os.path.splitext(path)[1].lower()
    promised = SUFFIXES.get(suffix)
    if promised is not None and head:
        raise InputError(
            f"{path}: expected {promised} data as its name says, got other data that begins with {head[:16]!r}; "
            f"fetch it again, or rename it if it is not compressed"
        )
    return container, head


CHUNK_BYTES = 128 << 10
"""Compressed bytes read at a time. What follows a member's end is copied, so small members need small chunks."""
XZ_MEMORY_BYTES = 2 << 30
ZSTD_WINDOW_LOG = 31
"""Largest window of a zstd frame, as for `zstd --long=31`; the frame's header says how much it really needs."""
_MAGIC_BYTES = 10
"""Bytes by which the begin of a member is recognised."""
_MEMBER_NAMES: dict[Container, str] = {"gzip": "member", "zstd": "frame", "bzip2": "stream", "xz": "stream"}


class Stored(Protocol):
    """The bytes of a compressed file."""

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return bytes from an offset; short only at the end."""
        ...


class Decoder:
    """Decodes a file's members, one after the other.

    Args:
        path: Path of the file, for messages.
        file: The open file.
        container: How it is compressed.
    """

    def __init__(self, path: str, file: Stored, container: Container) -> None:
        self._path = path
        self._file = file
        self._container: Container = container
        self._make, self._errors = _library(container)
        self._current: Any = None
        """The decompressor of the current member."""
        self._input = b""
        """Bytes that were read and not yet given to a decompressor."""
        self.position = 0
        """Offset in the file of the next byte to read."""
        self._begin = 0
        """Offset of the current member, or between members of the next one."""
        self.at_end = False
        """Whether the file ended, after the last member."""

    def read(self, max_bytes: int) -> bytes:
        """Return the next bytes of text, at least one; nothing at the end of the file (`at_end`).

        Raises:
            InputError: If a member is damaged or cut off, or something else follows it.
        """
        while self._current is not None or self._begin_member():
            decompressor = self._current
            data = b""
            if decompressor.needs_input:
                data = self._take_input()
                if not data:
                    raise self._damaged("is cut off")
            try:
                text: bytes = decompressor.decompress(data, max_bytes)
            except self._errors as error:
                raise self._damaged(f"is damaged ({error})") from error
            if decompressor.eof:
                self._input = decompressor.unused_data + self._input
                self._current = None
                self._begin = self.position - len(self._input)
            if text:
                return text
        return b""

    def _begin_member(self) -> bool:
        """Start the next member; return False at the end of the file."""
        data = self._take_input()
        if self._container in ("gzip", "xz") and self._begin:
            while data and not data.strip(b"\0"):  # padding
                self._begin += len(data)
                data = self._take_input()
            padding = len(data) - len(data.lstrip(b"\0"))
            self._begin += padding
            data = data[padding:]
        if not data:
            self.at_end = True
            return False
        self._input = data + self._input
        if len(self._input) >= _MAGIC_BYTES and detect_container(self._input) != self._container:
            raise self._damaged("is something else")
        self._current = self._make()
        return True

    def _take_input(self) -> bytes:
        """Return compressed bytes: those that are left, otherwise the next ones of the file; nothing at its end."""
        if self._input:
            data, self._input = self._input, b""
            return data
        try:
            data = self._file.read_at(CHUNK_BYTES, self.position)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read ({error.strerror}) at byte {self.position}") from error
        self.position += len(data)
        return data

    def _damaged(self, what: str) -> InputError:
        name = _MEMBER_NAMES[self._container]
        return InputError(
            f"{self._path}: expected {self._container} data, but the {name} that begins at byte {self._begin} "
            f"{what}, at about byte {self.position}; fetch the file again, or leave it out"
        )


class _Held:
    """The bytes of a file that was read as a whole."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        return self._content[offset : offset + num_bytes]


def decode_content(path: str, content: bytes, container: Container, *, most_bytes: int) -> bytes | None:
    """Return the text of a file that was read as a whole; None if it is damaged, or its text has more bytes."""
    decoder = Decoder(path, _Held(content), container)
    text = b""
    try:
        while not decoder.at_end:
            text += decoder.read(most_bytes + 1 - len(text))
            if len(text) > most_bytes:
                return None
    except InputError:
        return None
    return text


def measure_compression(path: str, container: Container, *, num_bytes: int) -> float:
    """Return the compressed bytes per byte of text, measured on the first `num_bytes` of the file.

    Raises:
        InputError: If the file cannot be read or is damaged there.
    """
    with open_readable(path) as file:
        decoder = Decoder(path, file, container)
        text_bytes = 0
        while not decoder.at_end and decoder.position < num_bytes:
            text_bytes += len(decoder.read(CHUNK_BYTES))
    return decoder.position / max(1, text_bytes)


def require_whole(path: str, container: Container) -> None:
    """Decode a file to its end.

    Raises:
        InputError: If it cannot be read, is damaged or cut off.
    """
    with open_readable(path) as file:
        file.expect_forwards(0, file.size_bytes)
        decoder = Decoder(path, file, container)
        while not decoder.at_end:
            decoder.read(CHUNK_BYTES)


def _library(container: Container) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return a function that makes decompressors, and the errors they raise. Libraries are loaded when needed."""
    if container == "gzip":
        from isal import igzip_lib

        return lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP), (
            igzip_lib.IsalError,  # type: ignore[return-value]  # its stub says that it is an instance
            MemoryError,
        )
    if container == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd

        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        return lambda: zstd.ZstdDecompressor(options=options), (zstd.ZstdError, MemoryError)
    if container == "bzip2":
        return bz2.BZ2Decompressor, (OSError, ValueError, MemoryError)
    if container == "xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES), (lzma.LZMAError, MemoryError)
    raise ValueError(f"expected a compressed container, got {container!r}")
