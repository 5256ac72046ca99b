"""Merge the `.idx` files of many datasets into one, as a stream: no step holds all documents in memory."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import FormatError
from dsindex.formats.mmididx import (
    BOUNDARY,
    CHUNK_ITEMS,
    LENGTH,
    MODE,
    IndexHeader,
    write_index,
)
from dsindex.merging.parts import Part, merged_header
from dsindex.range_copy import Extent, open_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.range_copy import Source
    from dsindex.storage import DigestingWriter


def write_merged_index(file: DigestingWriter, parts: Sequence[Part]) -> None:
    """Write the merged `.idx`: unchanged lengths, continuous pointers, and each part's boundaries shifted by its base.

    Raises:
        FormatError: If a part's boundaries do not run from 0 to its number of sequences, or its index does not belong
            to its `.bin`.
    """
    header = merged_header(parts)
    bases = list(accumulate((part.header.num_sequences for part in parts), initial=0))

    def lengths() -> Iterator[NDArray[np.int32]]:
        for part, chunks in _sections(parts, LENGTH, _lengths_of):
            tokens = 0
            for chunk in chunks:
                if chunk.min() < 0:
                    msg = f"{part.idx_path}: expected no length below 0, got {chunk.min()}; the index is damaged"
                    raise FormatError(msg)
                tokens += int(chunk.sum(dtype=np.int64))
                yield chunk
            if tokens * part.header.dtype.itemsize != part.bin_bytes:
                msg = (
                    f"{part.idx_path}: expected a .bin of {tokens * part.header.dtype.itemsize} bytes, "
                    f"got {part.bin_bytes}; they do not belong together"
                )
                raise FormatError(msg)

    def boundaries() -> Iterator[NDArray[np.int64]]:
        yield np.zeros(1, BOUNDARY)
        for (part, chunks), base in zip(_sections(parts, BOUNDARY, _boundaries_of), bases[:-1], strict=True):
            yield from _moved_boundaries(part, chunks, base)

    def modes() -> Iterator[NDArray[np.int8]]:
        for _, chunks in _sections(parts, MODE, _modes_of):
            yield from chunks

    write_index(file, header, lengths=lengths, boundaries=boundaries, modes=modes if header.has_modes else None)


def read_lengths(parts: Sequence[Part]) -> Iterator[NDArray[np.int32]]:
    """Yield the lengths of all sequences of datasets in order, a chunk at a time; objects are requested ahead.

    Raises:
        InputError: If an index is missing or shorter than its header says.
    """
    for _, chunks in _sections(parts, LENGTH, _lengths_of):
        yield from chunks


def _moved_boundaries(part: Part, chunks: Iterable[NDArray[np.int64]], base: int) -> Iterator[NDArray[np.int64]]:
    """Yield a part's boundaries after its leading 0, counted from the first sequence of the merged dataset."""
    previous = 0
    header = part.header
    for number, chunk in enumerate(chunks):
        if number == 0 and chunk[0] != 0:
            msg = f"{part.idx_path}: expected the first document boundary to be 0, got {chunk[0]}"
            raise FormatError(msg)
        if chunk[0] < previous or np.any(chunk[1:] < chunk[:-1]):
            msg = f"{part.idx_path}: expected document boundaries that never decrease; the index is damaged"
            raise FormatError(msg)
        previous = int(chunk[-1])
        yield (chunk[1:] if number == 0 else chunk) + base
    if previous != header.num_sequences:
        msg = f"{part.idx_path}: expected the last document boundary to be {header.num_sequences}, got {previous}"
        raise FormatError(msg)


def _lengths_of(header: IndexHeader) -> tuple[int, int]:
    return header.lengths_offset, header.num_sequences


def _boundaries_of(header: IndexHeader) -> tuple[int, int]:
    return header.boundaries_offset, header.num_boundaries


def _modes_of(header: IndexHeader) -> tuple[int, int]:
    return header.modes_offset, header.num_sequences


def _sections(
    parts: Sequence[Part], dtype: np.dtype[Any], place: Callable[[IndexHeader], tuple[int, int]]
) -> Iterator[tuple[Part, Iterator[NDArray[Any]]]]:
    """Yield each part with the items of a section of its index, a chunk at a time; `place` returns offset and count."""
    places = [place(part.header) for part in parts]
    extents = [
        Extent(path=part.idx_path, begin=offset, end=offset + count * dtype.itemsize)
        for part, (offset, count) in zip(parts, places, strict=True)
    ]
    for part, source, (offset, count) in zip(parts, open_sources(extents), places, strict=True):
        yield part, _section(source, dtype, offset, count)


def _section(source: Source, dtype: np.dtype[Any], offset: int, count: int) -> Iterator[NDArray[Any]]:
    """Read `count` items from a byte offset, a chunk at a time."""
    for begin, end in pairwise([*range(0, count, CHUNK_ITEMS), count]):
        chunk = np.empty(end - begin, dtype)
        source.read_into(chunk.data.cast("B"), offset + begin * dtype.itemsize)
        yield chunk
