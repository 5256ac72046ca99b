"""Merge the `.bin` files of many datasets into one, in parallel by ranges of the output, and their `.idx` files.

The ranges are a pure function of the parts' sizes, and are known as soon as the parts up to them are. A range of the
output is assembled from the parts that overlap it and written at its offset, so that a second attempt writes the same
bytes to the same place. An object is written from its start to its end by one task.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.engine.tasks import MergeRange, Part, Piece
from dsindex.engine.worker import refuse_written
from dsindex.errors import FormatError
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
from dsindex.store.reading import Extent, input_status, open_sources, write_chunks
from dsindex.store.storage import DIGEST_BLOCK_BYTES, BlockDigester, output_error
from dsindex.store.store import open_output
from dsindex.store.urls import with_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.store.reading import Source
    from dsindex.store.storage import DigestingWriter, StoredFile


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
        identity=f"{prefix} {tokens.version}",
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


def plan_merge(pieces: Sequence[Piece], output: str, *, bound_bytes: int = 0) -> list[MergeRange]:
    """Cut a file that is assembled from pieces into ranges with their pieces.

    Args:
        pieces: In output order; if bytes are swapped, the sizes of preceding pieces must be multiples of the item size.
        output: The file into which the ranges are written, at their offsets.
        bound_bytes: Choose the size of ranges for a file of this size, if it is larger than the pieces together.
    """
    planner = RangePlanner(output, bound_bytes=max(bound_bytes, sum(piece.size_bytes for piece in pieces)))
    return [task for piece in pieces for task in planner.add(piece)] + planner.rest()


def merge_range(task: MergeRange) -> list[str]:
    """Assemble one range of a file at its offset, and sync it.

    Returns:
        XXH3-128 of each block of DIGEST_BLOCK_BYTES in the range, in hexadecimal.

    Raises:
        InputError: If a part is missing or shorter than planned.
        OutputError: If the output cannot be written, or the tokens of a shard are not those that were written.
    """
    digester = BlockDigester()

    def chunks() -> Iterator[memoryview]:
        for chunk in _read_pieces(task.pieces):
            digester.update(chunk)
            yield chunk

    write_chunks(task.output, task.begin, chunks(), refusal=partial(output_error, task.output))
    return [digest.hex() for digest in digester.blocks()]


def merge_whole(pieces: Sequence[Piece], path: str, suffix: str) -> StoredFile:
    """Assemble a file or an object from its start to its end; it appears complete or not at all.

    Raises:
        InputError, OutputError: As `merge_range`.
    """
    with open_output(path, size_bytes=sum(piece.size_bytes for piece in pieces)) as file:
        for chunk in _read_pieces(pieces):
            file.write(chunk)
    return file.as_stored(suffix)


def _read_pieces(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    """Yield the bytes of pieces in order, in chunks that share a buffer."""
    buffer = memoryview(bytearray(COPY_BYTES))
    extents = [Extent(path=piece.path, begin=piece.offset, end=piece.offset + piece.size_bytes) for piece in pieces]
    for piece, source in zip(pieces, open_sources(extents), strict=True):
        end, whole = piece.offset + piece.size_bytes, piece.whole
        digester = BlockDigester() if whole is not None and end == whole.size_bytes else None
        if digester is not None:  # ranges before this one have the beginning of the file
            for chunk in _chunks(source, 0, piece.offset, buffer):
                digester.update(chunk)
        for chunk in _chunks(source, piece.offset, end, buffer):
            if digester is not None:
                digester.update(chunk)
            if piece.swapped_bytes > 1:
                np.frombuffer(chunk, f"<u{piece.swapped_bytes}").byteswap(inplace=True)
            yield chunk
        if digester is not None and whole is not None and digester.hexdigest() != whole.digest:
            refuse_written(piece.path)


def _chunks(source: Source, begin: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
    while begin < end:
        chunk = buffer[: end - begin]
        source.read_into(chunk, begin)
        yield chunk
        begin += len(chunk)
