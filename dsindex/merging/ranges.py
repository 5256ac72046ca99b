"""Merge the `.bin` files of many datasets into one, in parallel by ranges of the output.

The ranges are a pure function of the parts' sizes, and are known as soon as the parts up to them are. A range of the
output is assembled from the parts that overlap it and written at its offset, so that a second attempt writes the same
bytes to the same place.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.json_text import name_bytes
from dsindex.objects.blocks import Blocks
from dsindex.objects.checksums import checksum_arguments
from dsindex.objects.recent import find_recent, let_go_read
from dsindex.objects.requests import RequestCounts, request_counts
from dsindex.objects.uploads import MEMORY_BYTES, write_part, write_part_of_chunks
from dsindex.objects.urls import is_url
from dsindex.objects.waiting import giving_place
from dsindex.range_copy import Extent, open_sources, write_chunks
from dsindex.storage import DIGEST_BLOCK_BYTES, BlockDigester, output_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.merging.parts import Piece
    from dsindex.objects.uploads import Upload

MAX_RANGES = 9_000
"""Largest number of ranges, below the 10,000 parts that an S3 multipart upload may have."""

COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRange:
    """Bytes [begin, end) of the output, and the pieces from which they are copied."""

    number: int
    begin: int
    end: int
    output: str
    pieces: tuple[Piece, ...]
    upload: Upload | None = None
    """The upload of which the range is a part, if the output is an object."""

    @property
    def identity(self) -> str:
        """Identifies the position of the range and its exact bytes."""
        made_of = [f"{self.begin} {self.end}"]
        made_of += [
            f"{piece.offset} {piece.size_bytes} {piece.swapped_bytes} {piece.identity}" for piece in self.pieces
        ]
        return xxhash.xxh3_128_hexdigest(name_bytes("\n".join(made_of)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """The result of one attempt at a range."""

    number: int
    block_digests: tuple[str, ...]
    """XXH3-128 of each block of DIGEST_BLOCK_BYTES in the range, in hexadecimal."""
    requests: RequestCounts | None = None
    """The requests to object stores that this process has made so far; for the driver, and not recorded."""


def range_bytes(total_bytes: int, *, minimum: int = DIGEST_BLOCK_BYTES) -> int:
    """Return the size of an output range: whole digest blocks, at least `minimum`, for at most MAX_RANGES ranges.

    >>> range_bytes(10 << 30) >> 20, range_bytes(10 << 40) >> 20
    (64, 1216)
    """
    needed = -(-total_bytes // MAX_RANGES)
    return max(minimum, -(-needed // DIGEST_BLOCK_BYTES) * DIGEST_BLOCK_BYTES)


class RangePlanner:
    """Cuts a file that is assembled from pieces into ranges, as the pieces become known.

    Args:
        output: The file into which the ranges are written, at their offsets.
        bound_bytes: Estimated upper limit of the file's size, which determines the size of ranges.
    """

    def __init__(self, output: str, *, bound_bytes: int) -> None:
        self._output = output
        self._step = range_bytes(bound_bytes)
        self._number = 0
        self._size_bytes = 0
        """Size of `_pieces`, the pieces of the range that is not full yet."""
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> list[MergeRange]:
        """Add the next piece in output order; return the ranges that it fills."""
        full = []
        offset, left = piece.offset, piece.size_bytes
        while left:
            taken = min(left, self._step - self._size_bytes)
            self._pieces.append(replace(piece, offset=offset, size_bytes=taken))
            self._size_bytes += taken
            offset, left = offset + taken, left - taken
            if self._size_bytes == self._step:
                full += self.rest()
        return full

    def rest(self) -> list[MergeRange]:
        """Return the range that is not full, if there is one; after the last piece, it is the last range."""
        if not self._pieces:
            return []
        begin = self._number * self._step
        cut = MergeRange(
            number=self._number,
            begin=begin,
            end=begin + self._size_bytes,
            output=self._output,
            pieces=tuple(self._pieces),
        )
        self._number, self._size_bytes, self._pieces = self._number + 1, 0, []
        return [cut]


def plan_merge(
    pieces: Sequence[Piece], output: str, *, bound_bytes: int = 0, upload: Upload | None = None
) -> list[MergeRange]:
    """Cut a file that is assembled from pieces into ranges with their pieces.

    Args:
        pieces: In output order; if bytes are swapped, the sizes of preceding pieces must be multiples of the item size.
        output: The file into which the ranges are written, at their offsets.
        bound_bytes: Choose the size of ranges for a file of this size, if it is larger than the pieces together.
        upload: The upload of which the ranges are parts, if the output is an object.
    """
    planner = RangePlanner(output, bound_bytes=max(bound_bytes, sum(piece.size_bytes for piece in pieces)))
    tasks = [task for piece in pieces for task in planner.add(piece)] + planner.rest()
    return tasks if upload is None else [replace(task, upload=upload) for task in tasks]


def merge_range(task: MergeRange) -> RangeResult:
    """Assemble one range of the output at its offset, sync it, and return its digests.

    Raises:
        InputError: If a part is missing or shorter than planned.
        OutputError: If the output cannot be written.
    """
    upload, digests = task.upload, []
    if upload is not None and (content := _content_at_once(task)) is not None:
        digester = BlockDigester()
        for block in content:
            digester.update(block)
        digests = [digest.hex() for digest in digester.blocks()]
        checked = checksum_arguments(upload.checksum, content)
        with giving_place():
            write_part(upload, task.number + 1, content, checked=checked)
        for piece in task.pieces:
            let_go_read(piece.path, piece.size_bytes)
    else:
        chunks = _digested_chunks(task, digests)
        if upload is None:
            write_chunks(task.output, task.begin, chunks, refusal=partial(output_error, task.output))
        else:
            write_part_of_chunks(upload, task.number + 1, chunks)
    asked = request_counts() if task.upload is not None or any(is_url(piece.path) for piece in task.pieces) else None
    return RangeResult(number=task.number, block_digests=tuple(digests), requests=asked)


def _content_at_once(task: MergeRange) -> Blocks | None:
    """Return a range's bytes if this process still has all pieces, or if they have room in memory; None otherwise."""
    blocks: list[memoryview] = []
    for piece in task.pieces:
        held = find_recent(piece.path) if piece.swapped_bytes == 1 else None
        if held is None:
            break
        blocks += held.part(piece.offset, piece.offset + piece.size_bytes)
    else:
        return Blocks(blocks)
    size_bytes = task.end - task.begin
    if size_bytes > MEMORY_BYTES:
        return None
    buffer = memoryview(bytearray(size_bytes))
    deque(_read_pieces(task, buffer), maxlen=0)  # they fill the buffer
    return Blocks.of(buffer)


def _digested_chunks(task: MergeRange, digests: list[str]) -> Iterator[memoryview]:
    """Yield a range's bytes in order, and append the digest of each block of the output."""
    digest = xxhash.xxh3_128()
    position = task.begin
    for chunk in _read_pieces(task, memoryview(bytearray(COPY_BYTES))):
        yield chunk
        position += len(chunk)
        digest.update(chunk)
        if position % DIGEST_BLOCK_BYTES == 0 or position == task.end:
            digests.append(digest.hexdigest())
            digest.reset()


def _read_pieces(task: MergeRange, buffer: memoryview) -> Iterator[memoryview]:
    """Yield a range's bytes in order; chunks never cross the end of a digest block of the output.

    Args:
        task: The range.
        buffer: Filled with chunks one after the other, and from its start again if it is full.
    """
    begin = filled = 0
    extents = [
        Extent(path=piece.path, begin=piece.offset, end=piece.offset + piece.size_bytes) for piece in task.pieces
    ]
    for piece, source in zip(task.pieces, open_sources(extents), strict=True):
        offset, left = piece.offset, piece.size_bytes
        while left:
            count = min(left, COPY_BYTES - (filled - begin))
            place = buffer[filled : filled + count]
            source.read_into(place, offset)
            if piece.swapped_bytes > 1:
                np.frombuffer(place, f"<u{piece.swapped_bytes}").byteswap(inplace=True)
            offset, left, filled = offset + count, left - count, filled + count
            if filled - begin == COPY_BYTES:  # COPY_BYTES divides DIGEST_BLOCK_BYTES, and ranges begin at a block
                yield buffer[begin:filled]
                begin = filled = filled if filled < len(buffer) else 0
    if filled > begin:
        yield buffer[begin:filled]
