"""Detect from the content how a file is compressed, and decode it from its start in pieces of bounded size.

A file may have many members (gzip), frames (zstd) or streams (bzip2, xz), one after the other. The decompressors of
isal, `compression.zstd` (PEP 784, as a backport), bz2 and lzma have the same interface: `decompress(data, max_length)`,
`needs_input`, `eof`, `unused_data`.
"""

from __future__ import annotations

import bz2
import lzma
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Literal

from dsindex.errors import InputError
from dsindex.store.read import open_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsindex.store.local import Readable

Container = Literal["plain", "gzip", "zstd", "bzip2", "xz"]

HEAD_BYTES = 512
"""Bytes that `detect_container` needs."""
CHUNK_BYTES = 128 << 10
"""Compressed bytes read at a time. Bytes after a member's end are copied, so large chunks make small members slow."""
PIECE_BYTES = 2 << 20
"""Limit on the text decoded at a time: 128 KiB of zstd can be 2 GiB of text."""
XZ_MEMORY_BYTES = 2 << 30
ZSTD_WINDOW_LOG = 31
"""Largest window of a zstd frame, as for `zstd --long=31`; memory is used only for the size in the frame's header."""

SUFFIXES: dict[str, Container] = {
    ".gz": "gzip", ".bgz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bzip2", ".xz": "xz",
}  # fmt: skip
"""File name suffix → compression that the name promises."""

_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a skippable frame; the first is 0x50 to 0x5f (RFC 8878, 3.1.2)."""
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""After `BZh` and a digit: the first block, or the end of an empty stream."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""First bytes of a Git LFS pointer, which stands for a file in a clone without Git LFS."""
PULL_HINT = "run `git lfs pull` in the clone"
_FOREIGN_FORMATS: tuple[tuple[int, bytes, str], ...] = (
    (0, LFS_POINTER, "a Git LFS pointer, left by a clone without Git LFS"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!\x1a\x07", "a rar archive"),
    (0, b"\x04\x22\x4d\x18", "lz4 data"),
    (0, b"\xff\x06\x00\x00sNaPpY", "snappy data"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"%PDF-", "a PDF"),
    (257, b"ustar", "a tar archive"),
)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"\0\0\xfe\xff", b"\0\0\0{")
"""First bytes of JSON in UTF-16 or UTF-32, with and without a byte order mark."""
_ARCHIVE = re.compile(r"\.(tar(\.\w+)?|t[gx]z|tbz2?)$", re.IGNORECASE)
_MEMBER_NAMES = {"gzip": "member", "zstd": "frame", "bzip2": "stream", "xz": "stream"}
_MAGIC_BYTES = 10
"""Bytes needed to recognize the start of a member."""


def detect_container(head: bytes) -> Container:
    r"""Detect the compression of a file from its first HEAD_BYTES bytes.

    >>> detect_container(b'{"text": "a"}'), detect_container(b"\x1f\x8b\x08\x00")
    ('plain', 'gzip')
    """
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5):
        return "zstd"
    if head.startswith(b"\xfd7zXZ\0"):
        return "xz"
    is_bzip2 = head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in _BZIP2_BLOCKS
    return "bzip2" if is_bzip2 else "plain"


def require_supported(name: str, head: bytes, container: Container) -> None:
    """Refuse a file that cannot be an input, judging by its name and its first HEAD_BYTES bytes.

    Raises:
        InputError: If it is an archive, a Git LFS pointer or another unsupported file, or its name promises a
            compression but its content is plain.
    """
    promised_container = SUFFIXES.get(os.path.splitext(name)[1].lower())
    is_plain = container == "plain"
    kinds = [kind for offset, magic, kind in _FOREIGN_FORMATS if is_plain and head.startswith(magic, offset)]
    if kinds or _ARCHIVE.search(name):
        description = kinds[0] if kinds else "a tar archive, by its name"
        is_document = head.startswith((b"SQLite", b"%PDF"))
        is_pointer = head.startswith(LFS_POINTER)
        hint = PULL_HINT if is_pointer else "write its texts as JSON lines" if is_document else "unpack it"
    elif is_plain and promised_container is not None:
        description = f"not {promised_container} data, as its name says: it begins with {head[:16]!r}"
        hint = "fetch it again, or rename it"
    elif is_plain and head.startswith(_UTF_16):
        encoding = "UTF-32" if b"\0\0" in head[:4] else "UTF-16"
        description, hint = f"text in {encoding}, not UTF-8", f"convert it with `iconv -f {encoding} -t UTF-8`"
    else:
        return
    raise InputError(f"{name}: this is {description}", hint=hint)


def decode(path: str, file: Readable, container: Container, *, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Decompress a file from its current position, and yield non-empty pieces of at most `piece_bytes`.

    Raises:
        InputError: If a member is damaged or cut off, or something else follows it.
    """
    make_decompressor, errors = _import_decompressor(container)
    begin, data = file.tell(), b""

    def damage_error(problem: str) -> InputError:
        return InputError(
            f"{path}: the {container} {_MEMBER_NAMES[container]} that begins at byte {begin} {problem}, at about byte "
            f"{file.tell()}",
            hint="fetch the file again, or leave it out",
        )

    while data := data or file.read(CHUNK_BYTES):
        begin = file.tell() - len(data)
        if begin and container in ("gzip", "xz") and not (data := data.lstrip(b"\0")):  # zeros between members
            continue
        begin = file.tell() - len(data)
        if len(data) >= _MAGIC_BYTES and detect_container(data) != container:
            raise damage_error("is something else")
        member = make_decompressor()
        while not member.eof:
            if member.needs_input and not data and not (data := file.read(CHUNK_BYTES)):
                raise damage_error("is cut off")
            try:
                text: bytes = member.decompress(data, piece_bytes)
            except errors as error:
                raise damage_error(f"is damaged ({error})") from error
            data = b""
            if text:
                yield text
        data = member.unused_data


def measure_compression(path: str, container: Container, *, num_bytes: int | None = None) -> float:
    """Return the compressed bytes per byte of text, measured on the first `num_bytes` of the file, or on all of it.

    Raises:
        InputError: If the file cannot be read, or is damaged or truncated in these bytes.
    """
    text_bytes = 0
    with open_readable(path) as file:
        for text in decode(path, file, container):
            text_bytes += len(text)
            if num_bytes is not None and file.tell() >= num_bytes:
                break
        return file.tell() / max(1, text_bytes)


def _import_decompressor(container: Container) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Import a compression's library, and return a function that makes decompressors, and the errors they raise."""
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
    return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES), (lzma.LZMAError, MemoryError)
