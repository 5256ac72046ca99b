"""Find offsets at which a compressed file can be cut: where its members begin, without decoding it.

A zstd file is walked frame by frame: the header of each block says where the next one begins (RFC 8878, 3.1.1). In an
object store, where that would fetch every byte, frames are searched by their magic bytes, as other members are. The
members of a BGZF file say their own sizes (SAM specification, 4.1), and as each is at most 64 KiB, one begins near
every offset. Other gzip members and bzip2 streams are searched by their magic bytes, near the wanted offsets only, and
taken for such if they can be decoded. The streams of xz can only be found by decoding all before them.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

from dsindex.containers.decoding import can_decode
from dsindex.errors import InputError
from dsindex.objects.urls import is_url
from dsindex.readable import open_readable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.containers.kinds import Container
    from dsindex.readable import Readable

LARGEST_FIRST_FRAME_BLOCKS = 4096
"""Blocks of the first zstd frame after which the file is taken to have only one: 512 MiB of text."""
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
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
                if is_url(path):  # to walk over its blocks would be to fetch all of it
                    begins = _find_members(file, size, unit_bytes, _ZSTD_START, container)
                else:
                    begins = _zstd_frames(file, size)
            elif size > unit_bytes and container == "gzip":
                begins = _gzip_members(file, size, unit_bytes)
            elif size > unit_bytes and container == "bzip2":
                begins = _find_members(file, size, unit_bytes, _BZIP2_START, container)
            else:
                begins = iter(())
            return (*_thin_out(begins, unit_bytes), size)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); it existed when the job was planned"
        raise InputError(msg) from error


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
    if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
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
