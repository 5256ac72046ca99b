"""Repair from the remains of an `.idx`: the lengths and boundaries that exist and fit the `.bin`.

The pointers are not needed, since they are the running sum of the lengths. So the pointers may be wrong, the index may
be cut off anywhere after its lengths, and the `.bin` may be shorter (a crash, a full disk) or longer than the index
says.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.dtypes import TOKEN_DTYPES
from dsindex.errors import FormatError
from dsindex.formats.mmididx import (
    BOUNDARY,
    CHUNK_ITEMS,
    HEADER_BYTES,
    LENGTH,
    MAGIC,
    MODE,
    IndexHeader,
    write_index,
)
from dsindex.regular_files import open_unbuffered
from dsindex.rescue.outputs import RepairOutputs, RepairReport, copy_bytes, write_dataset
from dsindex.storage import read_into

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingIndex:
    """The usable part of an index."""

    prefix: str
    header: IndexHeader
    """The header as stored; with modes only if the file has exactly the size of an index with modes."""
    bin_bytes: int
    """Actual size of the `.bin`."""
    num_lengths: int
    """Leading sequences with a length in the index and all tokens in the `.bin`."""
    lengths_end: int
    """Byte of the `.bin` at which the last of these sequences ends."""
    num_boundaries: int
    """Leading boundaries that exist, never decrease and are within these sequences; 0 if there are none."""
    num_sequences: int
    """Sequences of complete documents, which is the last of these boundaries."""
    tokens_end: int
    """Byte of the `.bin` at which the last complete document ends."""

    @property
    def is_complete(self) -> bool:
        """Whether every document of the index is complete, and the `.bin` contains nothing else."""
        return (
            self.num_boundaries == self.header.num_boundaries
            and self.num_sequences == self.header.num_sequences
            and self.tokens_end == self.bin_bytes
        )


def examine_index(prefix: str, *, dtype: np.dtype[Any] | None = None) -> SurvivingIndex:
    """Find the usable part of an index, reading it once.

    Args:
        prefix: Path without suffix.
        dtype: Token type; None to use that of the file.

    Raises:
        FormatError: If no part is usable.
    """
    path = f"{prefix}.idx"
    try:
        bin_bytes = os.path.getsize(f"{prefix}.bin")
        with open_unbuffered(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header = _read_claims(path, file.read(HEADER_BYTES), size_bytes, dtype)
            num_lengths, lengths_end = _count_lengths(file.fileno(), header, size_bytes, bin_bytes)
            num_boundaries, num_sequences = _count_boundaries(file.fileno(), header, size_bytes, num_lengths)
            tokens = sum(
                int(chunk.sum(dtype=np.int64))
                for chunk in _items(file.fileno(), LENGTH, header.lengths_offset, num_sequences)
            )
    except OSError as error:
        msg = f"{error.filename}: cannot be read ({error.strerror})"
        raise FormatError(msg) from error
    return SurvivingIndex(
        prefix=prefix,
        header=header,
        bin_bytes=bin_bytes,
        num_lengths=num_lengths,
        lengths_end=lengths_end,
        num_boundaries=num_boundaries,
        num_sequences=num_sequences,
        tokens_end=tokens * header.dtype.itemsize,
    )


def _read_claims(path: str, head: bytes, size_bytes: int, dtype: np.dtype[Any] | None) -> IndexHeader:
    """Read the header of an index, the rest of which may be missing."""
    if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
        msg = f"{path}: expected the remains of an MMIDIDX index, got a file without its first {HEADER_BYTES} bytes"
        raise FormatError(msg)
    if dtype is None and head[17] not in TOKEN_DTYPES:
        msg = f"{path}: expected a token type code from 1 to 8, got {head[17]}; name the type with --dtype"
        raise FormatError(msg)
    num_sequences, num_boundaries = (int.from_bytes(head[at : at + 8], "little") for at in (18, 26))
    with_modes = IndexHeader(
        dtype=TOKEN_DTYPES[head[17]] if dtype is None else dtype,
        num_sequences=num_sequences,
        num_boundaries=num_boundaries,
        has_modes=True,
    )
    if num_sequences and size_bytes == with_modes.size_bytes:
        return with_modes
    return IndexHeader(
        dtype=with_modes.dtype, num_sequences=num_sequences, num_boundaries=num_boundaries, has_modes=False
    )


def _count_lengths(descriptor: int, header: IndexHeader, size_bytes: int, bin_bytes: int) -> tuple[int, int]:
    """Return the number of leading lengths that fit the `.bin`, and the byte at which the last of them ends in it."""
    there = min(header.num_sequences, max(0, size_bytes - header.lengths_offset) // LENGTH.itemsize)
    count = end = 0
    for chunk in _items(descriptor, LENGTH, header.lengths_offset, there):
        ends = end + np.cumsum(chunk.astype(np.int64) * header.dtype.itemsize)
        wrong = np.flatnonzero((chunk < 0) | (ends > bin_bytes))
        good = int(wrong[0]) if len(wrong) else len(chunk)
        count += good
        end = int(ends[good - 1]) if good else end
        if good < len(chunk):
            break
    return count, end


def _count_boundaries(descriptor: int, header: IndexHeader, size_bytes: int, num_lengths: int) -> tuple[int, int]:
    """Return the number of leading boundaries that can be valid, and the last of them."""
    there = min(header.num_boundaries, max(0, size_bytes - header.boundaries_offset) // BOUNDARY.itemsize)
    count = last = 0
    for chunk in _items(descriptor, BOUNDARY, header.boundaries_offset, there):
        if count == 0 and chunk[0] != 0:
            break
        wrong = np.flatnonzero((np.diff(chunk, prepend=last) < 0) | (chunk > num_lengths))
        good = int(wrong[0]) if len(wrong) else len(chunk)
        count += good
        last = int(chunk[good - 1]) if good else last
        if good < len(chunk):
            break
    return count, last


def _items(descriptor: int, dtype: np.dtype[Any], offset: int, count: int) -> Iterator[NDArray[Any]]:
    for begin in range(0, count, CHUNK_ITEMS):
        chunk = np.empty(min(CHUNK_ITEMS, count - begin), dtype)
        try:
            read_into(descriptor, chunk.data.cast("B"), offset + begin * dtype.itemsize)
        except EOFError as error:
            msg = f"the index {error}; it changed during the repair"
            raise FormatError(msg) from error
        yield chunk


def repair_by_index(
    found: SurvivingIndex, target: RepairOutputs, *, one_sequence_per_document: bool, is_certain: bool
) -> RepairReport:
    """Write the documents that an index still describes.

    Args:
        found: The result of `examine_index`.
        target: The new files.
        one_sequence_per_document: Treat every sequence as a document, if the boundaries are lost or not trusted.
        is_certain: Whether this, or the boundaries, are known to be correct.

    Raises:
        FormatError: If no document is left, or the result does not have the digests of the target.
        OutputError: If the output cannot be written.
    """
    header = found.header
    if one_sequence_per_document:
        num_sequences, num_documents, end = found.num_lengths, found.num_lengths, found.lengths_end
    else:
        num_sequences, num_documents, end = found.num_sequences, max(0, found.num_boundaries - 1), found.tokens_end
    if num_documents == 0:
        msg = f"{found.prefix}.idx: expected at least one complete document in the remains, got none"
        raise FormatError(msg)
    if target.index_only and end != found.bin_bytes:
        msg = (
            f"{found.prefix}.bin: expected {end} bytes for the documents that are left, got {found.bin_bytes}; "
            f"leave out --index-only, so that a .bin of that size is written as well"
        )
        raise FormatError(msg)
    restored = IndexHeader(
        dtype=header.dtype, num_sequences=num_sequences, num_boundaries=num_documents + 1, has_modes=header.has_modes
    )
    with open_unbuffered(f"{found.prefix}.idx") as source:
        descriptor = source.fileno()

        def boundaries() -> Iterator[NDArray[np.int64]]:
            if not one_sequence_per_document:
                yield from _items(descriptor, BOUNDARY, header.boundaries_offset, num_documents + 1)
                return
            for begin in range(0, num_documents + 1, CHUNK_ITEMS):
                yield np.arange(begin, min(begin + CHUNK_ITEMS, num_documents + 1), dtype=BOUNDARY)

        write_dataset(
            target,
            tokens=lambda file: copy_bytes(f"{found.prefix}.bin", end, file),
            index=lambda file: write_index(
                file,
                restored,
                lengths=lambda: _items(descriptor, LENGTH, header.lengths_offset, num_sequences),
                boundaries=boundaries,
                modes=(lambda: _items(descriptor, MODE, header.modes_offset, num_sequences))
                if header.has_modes
                else None,
            ),
        )
    return RepairReport(
        way="what is left of the .idx",
        is_certain=is_certain,
        outputs=target.paths,
        num_documents=num_documents,
        num_sequences=num_sequences,
        num_tokens=end // header.dtype.itemsize,
        lost=tuple(_describe_losses(found, num_documents, num_sequences, end)),
        notes=("every sequence was treated as a document",) if one_sequence_per_document else (),
    )


def _describe_losses(found: SurvivingIndex, num_documents: int, num_sequences: int, end: int) -> Iterator[str]:
    header = found.header
    if header.num_documents > num_documents:
        yield (
            f"{header.num_documents - num_documents} of {header.num_documents} documents, from document "
            f"{num_documents} on: their lengths, boundaries or tokens are missing"
        )
    if header.num_sequences > num_sequences:
        yield f"{header.num_sequences - num_sequences} of {header.num_sequences} sequences"
    if found.bin_bytes > end:
        yield (
            f"{found.bin_bytes - end} bytes at the end of {found.prefix}.bin, which belong to no document in the rest "
            f"of the index (documents that end with EOD are found by: --from bin --guess --eod-id N)"
        )
