"""Merge the `.bin` files of many datasets into one, in parallel by ranges of the output.

The ranges are a pure function of the parts' sizes, and are known as soon as the parts up to them are. A range of the
output is assembled from the parts that overlap it and written at its offset, so that a second attempt writes the same
bytes to the same place.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.errors import FormatError, InputError, OutputError
from dsindex.formats.mmididx import (
    BOUNDARY,
    CHUNK_ITEMS,
    LENGTH,
    MODE,
    POINTER,
    IndexHeader,
    check_bin_size,
    check_pointers,
    read_header,
    write_index,
)
from dsindex.json_text import name_bytes
from dsindex.store.clients import Blocks, checksum_arguments
from dsindex.store.range_copy import Extent, open_sources, write_chunks
from dsindex.store.reading import digest_file, input_status
from dsindex.store.requests import RequestCounts, release_slot, requests_so_far
from dsindex.store.storage import DIGEST_BLOCK_BYTES, BlockDigester, combine_digests, output_error
from dsindex.store.uploads import MEMORY_BYTES, write_part, write_part_of_chunks
from dsindex.store.urls import with_suffix
from dsindex.store.writing import find_recent, let_go_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.store.range_copy import Source
    from dsindex.store.storage import DigestingWriter, StoredSection
    from dsindex.store.uploads import Upload


# What is merged: whole datasets, and runs of bytes of their files.


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of bytes in a file that becomes part of the output."""

    path: str
    identity: str
    """Identifies the file's bytes, whatever its path; files of different attempts have different identities."""
    offset: int
    size_bytes: int
    swapped_bytes: int = 1
    """Size of the items whose byte order is reversed; 1 to copy the bytes unchanged."""
    section: StoredSection | None = None
    """The section of a shared token file of which it is a part or all; the last part's range compares its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One MMIDIDX dataset to merge."""

    bin_path: str
    idx_path: str
    identity: str
    """Identifies the bytes of both files, as for a piece."""
    bin_bytes: int
    header: IndexHeader
    bin_offset: int = 0
    """Where its tokens begin in a file that has those of several parts."""
    section: StoredSection | None = None
    """Its tokens, if they are a section of a shared token file (dsindex.engine.shards.places)."""

    @property
    def piece(self) -> Piece:
        """Return the whole `.bin` as a piece."""
        return Piece(
            path=self.bin_path,
            identity=self.identity,
            offset=self.bin_offset,
            size_bytes=self.bin_bytes,
            section=self.section,
        )


def open_part(prefix: str) -> Part:
    """Open one dataset for merging.

    Args:
        prefix: Path or address without `.bin` or `.idx`; objects are read as they are now.

    Raises:
        FormatError: If its index is damaged or its `.bin` missing.
    """
    idx_path = with_suffix(prefix, ".idx")
    header = read_header(idx_path)
    try:
        tokens = input_status(with_suffix(prefix, ".bin"))
    except OSError as error:
        msg = f"{prefix}.bin: cannot be read ({error.strerror}); a dataset is a .bin and an .idx"
        raise FormatError(msg) from error
    return Part(
        bin_path=tokens.path,
        idx_path=idx_path,
        identity=prefix,  # the plan of a merge records the versions of its inputs
        bin_bytes=tokens.size_bytes,
        header=header,
    )


def merged_header(parts: Sequence[Part]) -> IndexHeader:
    """Return the header of the merged index.

    Raises:
        FormatError: If the parts differ in token type or in having modes, naming the first that does.
        ValueError: If there are no parts.
    """
    if not parts:
        raise ValueError("expected at least one part to merge, got none")
    first = parts[0]
    # A dataset without sequences looks the same with and without modes.
    filled = next((part for part in parts if part.header.num_sequences), first)
    for part in parts:
        if part.header.dtype != first.header.dtype:
            raise FormatError(
                f"{part.idx_path}: expected tokens of type {first.header.dtype} as in {first.idx_path}, "
                f"got {part.header.dtype}; datasets of different token types cannot be merged"
            )
        if part.header.num_sequences and part.header.has_modes != filled.header.has_modes:
            has, lacks = (part, filled) if part.header.has_modes else (filled, part)
            raise FormatError(
                f"{lacks.idx_path}: expected sequence modes as in {has.idx_path}, got none; "
                f"datasets with and without modes cannot be merged"
            )
    return IndexHeader(
        dtype=first.header.dtype,
        num_sequences=sum(part.header.num_sequences for part in parts),
        num_boundaries=sum(part.header.num_documents for part in parts) + 1,
        has_modes=filled.header.has_modes,
    )


# Merge the `.idx` files of many datasets into one, as a stream: no step holds all documents in memory.


def write_merged_index(file: DigestingWriter, parts: Sequence[Part]) -> None:
    """Write the merged `.idx`: unchanged lengths, continuous pointers, and each part's boundaries shifted by its base.

    Raises:
        FormatError: If a part's boundaries do not run from 0 to its number of sequences, or its index does not belong
            to its `.bin`.
    """
    header = merged_header(parts)
    bases = list(accumulate((part.header.num_sequences for part in parts), initial=0))

    def lengths() -> Iterator[NDArray[np.int32]]:
        for part, chunks in _sections(parts, "lengths"):
            tokens = 0
            for chunk in chunks:
                if chunk.min() < 0:
                    msg = f"{part.idx_path}: expected no length below 0, got {chunk.min()}; the index is damaged"
                    raise FormatError(msg)
                tokens += int(chunk.sum(dtype=np.int64))
                yield chunk
            if tokens * part.header.dtype.itemsize != part.bin_bytes:
                raise FormatError(
                    f"{part.idx_path}: expected a .bin of {tokens * part.header.dtype.itemsize} bytes, "
                    f"got {part.bin_bytes}; they do not belong together"
                )

    def boundaries() -> Iterator[NDArray[np.int64]]:
        yield np.zeros(1, BOUNDARY)
        for (part, chunks), base in zip(_sections(parts, "boundaries"), bases[:-1], strict=True):
            yield from _moved_boundaries(part, chunks, base)

    def modes() -> Iterator[NDArray[np.int8]]:
        for _, chunks in _sections(parts, "modes"):
            yield from chunks

    write_index(file, header, lengths=lengths, boundaries=boundaries, modes=modes if header.has_modes else None)


def read_lengths(parts: Sequence[Part]) -> Iterator[NDArray[np.int32]]:
    """Yield the lengths of all sequences of datasets in order, a chunk at a time; objects are requested ahead.

    Raises:
        InputError: If an index is missing or shorter than its header says.
    """
    for _, chunks in _sections(parts, "lengths"):
        yield from chunks


def check_sequences(parts: Sequence[Part]) -> None:
    """Check that every sequence of foreign datasets begins where the one before it ends, as in a merged dataset.

    Raises:
        FormatError: If one does not, or an index does not belong to its `.bin`.
        InputError: If an index is missing or shorter than its header says.
    """
    sections = zip(_sections(parts, "lengths"), _sections(parts, "pointers"), strict=True)
    for (part, lengths), (_, pointers) in sections:
        end = check_pointers(part.idx_path, part.header.dtype, zip(lengths, pointers, strict=True))
        check_bin_size(part.idx_path, end, part.bin_bytes)


def _moved_boundaries(part: Part, chunks: Iterable[NDArray[np.int64]], base: int) -> Iterator[NDArray[np.int64]]:
    """Yield a part's boundaries after its leading 0, counted from the first sequence of the merged dataset."""
    previous = 0
    header = part.header
    for number, chunk in enumerate(chunks):
        if number == 0 and chunk[0] != 0:
            raise FormatError(f"{part.idx_path}: expected the first document boundary to be 0, got {chunk[0]}")
        if chunk[0] < previous or np.any(chunk[1:] < chunk[:-1]):
            msg = f"{part.idx_path}: expected document boundaries that never decrease; the index is damaged"
            raise FormatError(msg)
        previous = int(chunk[-1])
        yield (chunk[1:] if number == 0 else chunk) + base
    if previous != header.num_sequences:
        msg = f"{part.idx_path}: expected the last document boundary to be {header.num_sequences}, got {previous}"
        raise FormatError(msg)


_SECTIONS: dict[str, np.dtype[Any]] = {"lengths": LENGTH, "pointers": POINTER, "boundaries": BOUNDARY, "modes": MODE}


def _sections(parts: Sequence[Part], name: str) -> Iterator[tuple[Part, Iterator[NDArray[Any]]]]:
    """Yield each part with the items of a section of its index, a chunk at a time."""
    dtype = _SECTIONS[name]
    offsets = [getattr(part.header, f"{name}_offset") for part in parts]
    counts = [part.header.num_boundaries if name == "boundaries" else part.header.num_sequences for part in parts]
    extents = [
        Extent(path=part.idx_path, begin=offset, end=offset + count * dtype.itemsize)
        for part, offset, count in zip(parts, offsets, counts, strict=True)
    ]
    for part, source, offset, count in zip(parts, open_sources(extents), offsets, counts, strict=True):
        yield part, _section(source, dtype, offset, count)


def _section(source: Source, dtype: np.dtype[Any], offset: int, count: int) -> Iterator[NDArray[Any]]:
    """Read `count` items from a byte offset, a chunk at a time."""
    for begin, end in pairwise([*range(0, count, CHUNK_ITEMS), count]):
        chunk = np.empty(end - begin, dtype)
        source.read_into(chunk.data.cast("B"), offset + begin * dtype.itemsize)
        yield chunk


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


def merge_range(task: MergeRange, known: RangeResult | None = None) -> RangeResult:
    """Assemble one range of the output at its offset, sync it, and return its digests.

    Args:
        task: The range.
        known: What an earlier run recorded of it; returned if a file has these bytes still.

    Raises:
        InputError: If a part is missing or shorter than planned.
        OutputError: If the output cannot be written, or has other tokens than shards wrote to it.
    """
    if known is not None and _has_bytes(task, known):
        return known
    upload, digests = task.upload, []
    if upload is not None and (content := _content_at_once(task)) is not None:
        digester = BlockDigester()
        for block in content:
            digester.update(block)
        digests = [digest.hex() for digest in digester.blocks()]
        checked = checksum_arguments(upload.checksum, content)
        with release_slot():
            write_part(upload, task.number + 1, content, checked=checked)
        for piece in task.pieces:
            let_go_read(piece.path, piece.size_bytes)
    else:
        chunks = _digested_chunks(task, digests)
        if upload is None and is_in_place(task):
            deque(chunks, maxlen=0)  # they are synced, and digested now
        elif upload is None:
            write_chunks(task.output, task.begin, chunks, refusal=partial(output_error, task.output))
        else:
            write_part_of_chunks(upload, task.number + 1, chunks)
    asked = requests_so_far(str(task.output), *(piece.path for piece in task.pieces))
    return RangeResult(number=task.number, block_digests=tuple(digests), requests=asked)


def _has_bytes(task: MergeRange, known: RangeResult) -> bool:
    expected = combine_digests(map(bytes.fromhex, known.block_digests))
    try:
        return digest_file(task.output, begin=task.begin, end=task.end) == expected
    except InputError:  # it is shorter, or cannot be read
        return False


def is_in_place(task: MergeRange) -> bool:
    """Tell whether the bytes of a range are in the output already, which is another name of the file of its pieces.

    Raises:
        OutputError: If a piece is elsewhere in the output, where it might be overwritten before it is copied.
    """
    position, is_whole = task.begin, True
    for path, pieces in groupby(task.pieces, key=attrgetter("path")):
        is_output = _is_same_file(path, task.output)
        for piece in pieces:
            if is_output and piece.offset != position:
                raise OutputError(
                    f"{task.output}: expected the tokens at byte {position}, got them at byte {piece.offset}; "
                    f"run the same command again with --fresh"
                )
            is_whole = is_whole and is_output
            position += piece.size_bytes
    return is_whole


def _is_same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except (FileNotFoundError, NotADirectoryError):
        return False  # whoever reads it says so, and an object is none
    except OSError as error:
        raise output_error(other, error) from error


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
        offset, left, section = piece.offset, piece.size_bytes, piece.section
        digester = None
        if section is not None and offset + left == section.begin + section.size_bytes:
            digester = BlockDigester()
            _digest_on(digester, source, section.begin, offset)
        while left:
            count = min(left, COPY_BYTES - (filled - begin))
            place = buffer[filled : filled + count]
            source.read_into(place, offset)
            if digester is not None:
                digester.update(place)
            if piece.swapped_bytes > 1:
                np.frombuffer(place, f"<u{piece.swapped_bytes}").byteswap(inplace=True)
            offset, left, filled = offset + count, left - count, filled + count
            if filled - begin == COPY_BYTES:  # COPY_BYTES divides DIGEST_BLOCK_BYTES, and ranges begin at a block
                yield buffer[begin:filled]
                begin = filled = filled if filled < len(buffer) else 0
        if section is not None and digester is not None and digester.hexdigest() != section.digest:
            raise OutputError(
                f"{piece.path}: expected in bytes {section.begin} to {offset} the tokens that were written there, got "
                f"others; something else has changed the file; run the same command again: it makes what was lost"
            )
    if filled > begin:
        yield buffer[begin:filled]


def _digest_on(digester: BlockDigester, source: Source, begin: int, end: int) -> None:
    """Digest the bytes [begin, end), which ranges before this one have."""
    buffer = memoryview(bytearray(min(COPY_BYTES, end - begin)))
    while begin < end:
        place = buffer[: end - begin]
        source.read_into(place, begin)
        digester.update(place)
        begin += len(place)
