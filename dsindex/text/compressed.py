"""Decode a compressed file from the begin of one of its members, in pieces of bounded size.

gzip calls them members, zstd frames, bzip2 and xz streams: each can be decoded on its own, and a file may have many.
The decompressors are those of isal, `compression.zstd` (PEP 784, as a backport), bz2 and lzma, which have the same
interface: `decompress(data, max_length)`, `needs_input`, `eof`, `unused_data`.
"""

from __future__ import annotations

import bz2
import importlib.metadata
import lzma
import os
import platform
import re
import struct
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dsindex.errors import InputError
from dsindex.store.reading import open_readable, read_start
from dsindex.store.storage import can_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dsindex.store.types import Readable


# Tell by its first bytes how a file is compressed.

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


def detect_file(path: str) -> tuple[Container, bytes]:
    """Return how a file is compressed, and its first HEAD_BYTES bytes.

    Raises:
        InputError: If it is an archive or of another unsupported kind, or its name promises a compression that its
            content does not have.
        OSError: If it cannot be read.
    """
    head = read_start(path, HEAD_BYTES)
    container = detect_container(head)
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
MEASURED_BYTES = 512 << 10
XZ_MEMORY_BYTES = 2 << 30
ZSTD_WINDOW_LOG = 31
"""Largest window of a zstd frame, as for `zstd --long=31`; the frame's header says how much it really needs."""

_MAGIC_BYTES = 10
"""Bytes by which the begin of a member is recognised."""


class Stored(Protocol):
    """The bytes of a compressed file."""

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        """Return bytes from an offset; short only at the end."""
        ...


MEMBER_NAMES: dict[Container, str] = {"gzip": "member", "zstd": "frame", "bzip2": "stream", "xz": "stream"}


class Decoder:
    """Decodes one member after the other.

    Args:
        path: Path of the file, for messages.
        file: The open file.
        container: How it is compressed.
        begin: Offset at which a member begins.
    """

    def __init__(self, path: str, file: Stored, container: Container, *, begin: int = 0) -> None:
        self._path = path
        self._file = file
        self._container: Container = container
        self._make, self._errors = _library(container)
        self._current: Any = None
        """The decompressor of the current member."""
        self._input = b""
        """Bytes that were read and not yet given to a decompressor."""
        self._position = begin
        """Offset in the file of the next byte to read."""
        self.member_begin = begin
        """Offset of the current member, or between members of the next one."""
        self._num_members = 0
        self.at_end = False
        """Whether the file ended, after the last member."""

    @property
    def is_between_members(self) -> bool:
        """Whether all of the text before `member_begin` was returned, and nothing after it."""
        return self._current is None

    def has_input(self, before: int) -> bool:
        """Whether the file may be read further without reading from `before` on."""
        return bool(self._input) or self._position < before

    def read(self, max_bytes: int, *, before: int | None = None) -> bytes:
        """Return the next bytes of text.

        Args:
            max_bytes: Largest number of bytes to return.
            before: Read no byte of the file from this offset on.

        Returns:
            At least one byte; nothing if a member ended, if nothing more can be decoded without reading from `before`
            on, or at the end of the file (`at_end`).

        Raises:
            InputError: If a member is damaged or cut off, or something else follows it.
        """
        while True:
            if self._current is None and not self._begin_member(before):
                return b""
            decompressor = self._current
            data = b""
            if decompressor.needs_input:
                data = self._take_input(before)
                if not data and before is not None and self._position >= before:
                    return b""
                if not data:
                    raise self._damaged("is cut off", self._position)
            try:
                text: bytes = decompressor.decompress(data, max_bytes)
            except self._errors as error:
                raise self._damaged(f"is damaged ({error})", self._position) from error
            if decompressor.eof:
                self._end_member(decompressor)
            if text or self._current is None:
                return text

    def _begin_member(self, before: int | None) -> bool:
        """Start the next member; return False at the end of the file or if `before` comes first."""
        data = self._take_input(before)
        if self._container in ("gzip", "xz") and self._num_members:
            while data and not data.strip(b"\0"):  # padding
                self.member_begin += len(data)
                data = self._take_input(before)
            padding = len(data) - len(data.lstrip(b"\0"))
            self.member_begin += padding
            data = data[padding:]
        if not data:
            self.at_end = before is None or self._position < before
            return False
        self._input = data + self._input
        if len(self._input) >= _MAGIC_BYTES and detect_container(self._input) != self._container:
            raise self._damaged("is something else", self._position - len(self._input))
        self._current = self._make()
        self._num_members += 1
        return True

    def _end_member(self, decompressor: Any) -> None:  # noqa: ANN401 - of any of the libraries
        self._input = decompressor.unused_data + self._input
        self._current = None
        self.member_begin = self._position - len(self._input)

    def _take_input(self, before: int | None) -> bytes:
        """Return compressed bytes: those that are left, otherwise the next ones of the file; nothing at its end."""
        if self._input:
            data, self._input = self._input, b""
            return data
        wanted = CHUNK_BYTES if before is None else min(CHUNK_BYTES, before - self._position)
        if wanted <= 0:
            return b""
        try:
            data = self._file.read_at(wanted, self._position)
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read ({error.strerror}) at byte {self._position}") from error
        self._position += len(data)
        return data

    def _damaged(self, what: str, position: int) -> InputError:
        name = MEMBER_NAMES[self._container]
        return InputError(
            f"{self._path}: expected {self._container} data, but the {name} that begins at byte {self.member_begin} "
            f"{what}, at about byte {position}; fetch the file again, or leave it out"
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


def measure_compression(path: str, container: Container, *, begin: int = 0, num_bytes: int = 0) -> float:
    """Return the compressed bytes per byte of text, measured from where a member begins.

    Args:
        path: The file.
        container: How it is compressed.
        begin: Where the member begins.
        num_bytes: Compressed bytes to measure, if they are more than MEASURED_BYTES.

    Raises:
        InputError: If the file cannot be read or is damaged there.
    """
    with open_readable(path) as file:
        end = min(begin + max(MEASURED_BYTES, num_bytes), file.size_bytes)
        file.expect_forwards(begin, end)
        decoder = Decoder(path, file, container, begin=begin)
        text_bytes = 0
        while not decoder.at_end:
            text = decoder.read(CHUNK_BYTES, before=end)
            if not text and not decoder.has_input(end):
                break
            text_bytes += len(text)
    return (end - begin) / max(1, text_bytes)


def require_whole(path: str, container: Container, *, begin: int = 0, end: int | None = None) -> None:
    """Decode a file from where a member begins to where one ends at `end` or after it; None: to the end of the file.

    Raises:
        InputError: If it cannot be read, is damaged or cut off.
    """
    with open_readable(path) as file:
        file.expect_forwards(begin, file.size_bytes if end is None else end)
        decoder = Decoder(path, file, container, begin=begin)
        while not decoder.at_end:
            decoder.read(CHUNK_BYTES)
            if end is not None and decoder.is_between_members and decoder.member_begin >= end:
                return


def can_decode(data: bytes, container: Container) -> bool:
    """Tell whether data begins with a member: all of it, or the end of the member, is reached without an error."""
    make, errors = _library(container)
    decompressor = make()
    try:
        decompressor.decompress(data, CHUNK_BYTES)
        while not decompressor.eof and not decompressor.needs_input:
            decompressor.decompress(b"", CHUNK_BYTES)
    except errors:
        return False
    return True


def decoder_version(container: Container) -> str:
    """Return a name for what decides how much text each compressed byte adds: the decompressor and its version.

    >>> decoder_version("bzip2").startswith("Python 3.")
    True
    """
    package = {"gzip": "isal", "zstd": "backports.zstd"}.get(container)
    if package is None or (container == "zstd" and sys.version_info >= (3, 14)):
        return f"Python {platform.python_version()}"
    return f"{package} {importlib.metadata.version(package)}"


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


# Find offsets at which a compressed file can be cut: where its members begin, without decoding it.
#
# A zstd file is walked frame by frame: the header of each block says where the next one begins (RFC 8878, 3.1.1). In an
# object store, where that would fetch every byte, frames are searched by their magic bytes, as other members are. The
# members of a BGZF file say their own sizes (SAM specification, 4.1), and as each is at most 64 KiB, one begins near
# every offset. Other gzip members and bzip2 streams are searched by their magic bytes, near the wanted offsets only,
# and taken for such if they can be decoded. The streams of xz can only be found by decoding all before them.

LARGEST_FIRST_FRAME_BLOCKS = 4096
"""Blocks of the first zstd frame after which the file is taken to have only one: 512 MiB of text."""
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE_MAGIC = 0x184D2A50
_ZSTD_HEADER_BYTES = 18
"""Largest size of a frame's magic number and header."""
_RLE_BLOCK = 1
_BGZF_MEMBER_BYTES = 64 << 10
_BGZF_CHAIN = 4
"""Number of members that must follow each other, so that chance bytes are not taken for a member."""
_BGZF_HEADER = struct.Struct("<4sIBBHBBHH")
_BGZF_START = b"\x1f\x8b\x08\x04"
_GZIP_START = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04][\x00-\x0d\xff]", re.DOTALL)
"""A member's header with flags, compression level and operating system that exist (RFC 1952, 2.3)."""
_BZIP2_START = re.compile(rb"BZh[1-9]1AY&SY")
_ZSTD_START = re.compile(rb"\x28\xb5\x2f\xfd")
SEARCHED_BYTES = 1 << 20
"""Bytes at the start of each unit in which a member is searched."""
DECODED_BYTES = 128 << 10
"""Bytes that must be decodable for a match to be a member."""
UNITS_WITHOUT_MEMBERS = 16
"""Units without a member after which the file is taken to have only one."""


def find_cuts(path: str, container: Container, *, unit_bytes: int) -> tuple[int, ...]:
    """Return offsets at which members begin, ascending from 0, about `unit_bytes` apart.

    Returns:
        The offsets followed by the file's size; if no member but the first is found, only 0 and the size.

    Raises:
        InputError: If the file cannot be read.
    """
    try:
        with open_readable(path) as file:
            size = file.size_bytes
            if size > unit_bytes and container == "zstd":
                if can_map(path):
                    begins = _zstd_frames(file, size)
                else:  # to walk over its blocks would be to fetch all of it
                    begins = _find_members(file, size, unit_bytes, _ZSTD_START, container)
            elif size > unit_bytes and container == "gzip":
                begins = _gzip_members(file, size, unit_bytes)
            elif size > unit_bytes and container == "bzip2":
                begins = _find_members(file, size, unit_bytes, _BZIP2_START, container)
            else:
                begins = iter(())
            return (*_thin_out(begins, unit_bytes), size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); it existed when the job was planned") from error


def _thin_out(begins: Iterator[int], unit_bytes: int) -> list[int]:
    kept = [0]
    for begin in begins:
        if begin - kept[-1] >= unit_bytes:
            kept.append(begin)
    return kept


def _zstd_frames(file: Readable, size: int) -> Iterator[int]:
    """Yield the offset of each frame after the first; nothing more from the first that is not whole."""
    offset = 0
    most_blocks: int | None = LARGEST_FIRST_FRAME_BLOCKS
    while offset < size:
        end = _zstd_frame_end(file, offset, most_blocks)
        if end is None or end > size:
            return
        if end < size:
            yield end
        offset, most_blocks = end, None


def _zstd_frame_end(file: Readable, offset: int, most_blocks: int | None) -> int | None:
    """Return where a frame ends; None if it is not a frame or has more than `most_blocks` blocks."""
    header = file.read_at(_ZSTD_HEADER_BYTES, offset)
    if len(header) < 8:
        return None
    magic, field = struct.unpack_from("<II", header)
    if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE_MAGIC:
        return offset + 8 + int(field)
    if magic != _ZSTD_MAGIC:
        return None
    descriptor_byte = header[4]
    is_single_segment = descriptor_byte >> 5 & 1
    content_size_bytes = (1 if is_single_segment else 0, 2, 4, 8)[descriptor_byte >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor_byte & 3]
    checksum_bytes = 4 * (descriptor_byte >> 2 & 1)
    offset += 5 + (1 - is_single_segment) + dictionary_bytes + content_size_bytes
    blocks = 0
    while most_blocks is None or blocks < most_blocks:
        block = file.read_at(3, offset)
        if len(block) < 3:
            return None
        word = int.from_bytes(block, "little")
        stored = 1 if word >> 1 & 3 == _RLE_BLOCK else word >> 3
        offset += 3 + stored
        blocks += 1
        if word & 1:
            return offset + checksum_bytes
    return None


def _gzip_members(file: Readable, size: int, unit_bytes: int) -> Iterator[int]:
    """Yield the offset of a member in each unit of the file that has one."""
    head = file.read_at(_BGZF_CHAIN * _BGZF_MEMBER_BYTES, 0)
    if _is_bgzf_chain(head, 0, at_end=len(head) == size):
        return _bgzf_members(file, size, unit_bytes)
    return _find_members(file, size, unit_bytes, _GZIP_START, "gzip")


def _find_members(
    file: Readable, size: int, unit_bytes: int, start: re.Pattern[bytes], container: Container
) -> Iterator[int]:
    """Yield the offset of the first member in each unit of the file, if it begins in the unit's first bytes."""
    num_found = 0
    for number, begin in enumerate(range(unit_bytes, size, unit_bytes)):
        if not num_found and number == UNITS_WITHOUT_MEMBERS:
            return
        num_searched = min(SEARCHED_BYTES, unit_bytes)
        window = file.read_at(num_searched + DECODED_BYTES, begin)
        for match in start.finditer(window):
            if match.start() >= num_searched:
                break
            if can_decode(window[match.start() : match.start() + DECODED_BYTES], container):
                yield begin + match.start()
                num_found += 1
                break


def _bgzf_members(file: Readable, size: int, unit_bytes: int) -> Iterator[int]:
    """Yield the offset of the first BGZF member in each unit of the file."""
    for begin, end in pairwise([*range(unit_bytes, size, unit_bytes), size]):
        window = file.read_at((_BGZF_CHAIN + 1) * _BGZF_MEMBER_BYTES, begin)
        at_end = begin + len(window) == size
        place = window.find(_BGZF_START)
        while 0 <= place < end - begin and not _is_bgzf_chain(window, place, at_end=at_end):
            place = window.find(_BGZF_START, place + 1)
        if 0 <= place < end - begin:
            yield begin + place


def _is_bgzf_chain(window: bytes, place: int, *, at_end: bool) -> bool:
    """Tell whether several BGZF members follow each other from `place` on, or reach the file's end."""
    for _ in range(_BGZF_CHAIN):
        if place == len(window):
            return at_end
        if place + _BGZF_HEADER.size > len(window):
            return False
        start, _, _, _, extra_bytes, first, second, field_bytes, stored = _BGZF_HEADER.unpack_from(window, place)
        if start != _BGZF_START or extra_bytes < 6 or (first, second, field_bytes) != (66, 67, 2):
            return False
        place += stored + 1
    return True
