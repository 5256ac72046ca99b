"""Assemble outputs from the files of shards or of other datasets: the functions that workers run.

Tokens are copied by ranges of the output, each to its own offset, so a second attempt writes the same bytes to the same
place. Indices, provenance and bad records are streams, each written by one task, as is every object in a bucket.

Every shard file is read once, from its first byte to its last; a range reads at most one extra block at each end. Each
block is checked against the digest in the shard's receipt before its bytes are used. A worker returns a damaged file as
a result (`Damaged`), not as an error, because the driver can have the shard made again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import tempfile
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import numpy as np
import xxhash

from dsindex.datasets.documents import Documents, ShuffledDocuments, shuffle_items
from dsindex.errors import InputError
from dsindex.formats.dtypes import starts_of
from dsindex.formats.mmididx import LENGTH, SECTIONS, IndexBuilder, check_index, read_index
from dsindex.formats.provenance import PROVENANCE_SUFFIX, ROW, write_provenance
from dsindex.formats.quarantine import QUARANTINE_SUFFIX, write_quarantine
from dsindex.runtime.tasks import Damaged
from dsindex.runtime.tokenize import BLOCK_BYTES
from dsindex.runtime.work_folder import RangeMerged
from dsindex.store.json_text import encode_json
from dsindex.store.local import InputStatus, start_writeback, temporary_folder, write_at, writing
from dsindex.store.protocol import find, open_output
from dsindex.store.read import Extent, digest_blocks, is_as_written, open_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.runtime.tasks import MergeRange, Segment, SourceFile
    from dsindex.runtime.work_folder import FileComplete
    from dsindex.store.local import Bytes, StoredFile

P = ParamSpec("P")
T = TypeVar("T")


class _DamageError(Exception):
    """A shard's file is missing, or differs from what its worker wrote."""


def return_damage(function: Callable[P, T]) -> Callable[P, T | Damaged]:
    """Make a worker's function return `Damaged` for a damaged shard file, instead of raising."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | Damaged:
        try:
            return function(*args, **kwargs)
        except _DamageError as damage:
            return Damaged(str(damage))

    return call


@return_damage
def merge_range(task: MergeRange) -> str:
    """Copy one range of a token file into place, and sync it.

    Returns:
        XXH3-128 of the range, in hexadecimal.

    Raises:
        InputError: If a dataset to merge is missing or shorter than planned.
        OutputError: If the output cannot be written.
    """
    digest, offset = xxhash.xxh3_128(), task.begin
    with writing(task.output):
        descriptor = os.open(task.output, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            for _, chunk in _read_pieces(task.pieces):
                digest.update(chunk)
                write_at(descriptor, chunk, offset)
                start_writeback(descriptor, offset, len(chunk))
                offset += len(chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return digest.hexdigest()


def check_merged(path: str, begin: int, line: RangeMerged | FileComplete) -> bool:
    """Tell whether bytes that an earlier run wrote still match its record; objects are compared by size only.

    Args:
        path: A token file, or another file of an output.
        begin: First byte of the range in the token file.
        line: The record in the journal.
    """
    if isinstance(line, RangeMerged):
        try:
            blocks = digest_blocks(path, begin=begin, end=begin + line.size_bytes)
            return [block.hex() for block in blocks] == [line.digest]
        except InputError:
            return False
    return is_as_written(path, line.file)


@return_damage
def merge_whole(files: Sequence[SourceFile], path: str) -> StoredFile:
    """Write an object from its start to its end; it appears complete or not at all.

    Raises:
        InputError, OutputError: As `merge_range`.
    """
    with open_output(path, size_bytes=sum(file.size_bytes for file in files)) as out:
        for chunk in _read_whole(files):
            out.write(chunk)
    return out.stored_file(path.rpartition(".")[2])


@return_damage
def merge_shuffled(files: Sequence[SourceFile], path: str, segments: Sequence[Segment], seed: int) -> StoredFile:
    """Write a `.pbin` with its documents in a random order; it appears complete or not at all.

    Args:
        files: Its header, the tokens of each segment, and its index, which has the random order already.
        path: The `.pbin`.
        segments: The segments, whose documents have one sequence each.
        seed: Seed of the order.

    Raises:
        InputError, OutputError: As `merge_range`.
    """
    head, *tokens, index = files
    dtype, bounds = np.dtype(f"u{segments[0].header.dtype.itemsize}"), starts_of(read_lengths(segments))
    with (
        _spool(_read_whole(tokens), path) as spool,
        open_output(path, size_bytes=sum(file.size_bytes for file in files)) as out,
    ):
        documents = Documents.of_bounds(path, np.frombuffer(spool, dtype), bounds)
        copies = ShuffledDocuments([documents], seed).tokens(0, documents.num_documents)
        pieces = (piece.view(np.uint8).data for piece in copies)
        for chunk in chain(_read_whole([head]), pieces, _read_whole([index])):
            out.write(chunk)
    return out.stored_file("pbin")


@contextlib.contextmanager
def _spool(chunks: Iterable[Bytes], path: str) -> Iterator[mmap.mmap | bytes]:
    """Hold bytes for the file at `path` in an unnamed temporary file, to read them in any order."""
    with writing(path), tempfile.TemporaryFile(dir=temporary_folder(path)) as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""


def _read_whole(files: Sequence[SourceFile]) -> Iterator[memoryview]:
    return (chunk for _, chunk in _read_pieces([(file, 0, file.size_bytes) for file in files]))


def _read_pieces(pieces: Sequence[tuple[SourceFile, int, int]]) -> Iterator[tuple[int, memoryview]]:
    """Yield the bytes of pieces in chunks, each with the number of its piece; all chunks share one buffer.

    Blocks of shard files are checked against their digests first. Objects are read ahead.

    Raises:
        _DamageError: At the first block that differs, or if a shard's file is missing or too short.
        InputError: If another file is missing or too short.
    """
    buffer, spans = memoryview(bytearray(BLOCK_BYTES)), []
    for file, begin, end in pieces:
        if file.blocks is not None:  # widen to whole blocks, since each digest covers one block
            begin, end = begin // BLOCK_BYTES * BLOCK_BYTES, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, file.size_bytes)
        # The sizes are known, so the store is not asked for the status.
        status = InputStatus(path=file.path, size_bytes=end, version="")
        spans.append(Extent(file=status, begin=begin, end=end))
    try:
        for number, source in enumerate(open_in_order(spans)):
            (file, begin, end), span = pieces[number], spans[number]
            for offset in range(span.begin, span.end, BLOCK_BYTES):
                chunk = buffer[: min(BLOCK_BYTES, span.end - offset)]
                source.fill(chunk, offset)
                if file.blocks is not None and xxhash.xxh3_64_hexdigest(chunk) != file.blocks[offset // BLOCK_BYTES]:
                    raise _DamageError(file.path)
                yield number, chunk[max(0, begin - offset) : end - offset]
    except InputError as error:
        lost_file = None if error.transient else next(filter(_is_lost, (file for file, *_ in pieces)), None)
        if lost_file is None:
            raise
        raise _DamageError(lost_file.path) from error


def _is_lost(file: SourceFile) -> bool:
    status = find(file.path) if file.blocks is not None else None
    return file.blocks is not None and (status is None or status.size_bytes != file.size_bytes)


# Indices.


def check_segment(segment: Segment) -> None:
    """Check the index of a dataset to merge.

    Raises:
        FormatError: If it is damaged, or does not match its `.bin`.
    """
    check_index(segment.idx.path, read_index(segment.idx.path), bin_size_bytes=segment.bin.size_bytes)


@return_damage
def make_index(segments: Sequence[Segment], path: str) -> StoredFile:
    """Write the merged `.idx`: unchanged lengths, continuous pointers, and each segment's boundaries shifted.

    The file appears complete or not at all. Each index is read once, and sections that come later in the file are
    spooled, so no step holds all documents in memory.

    Raises:
        OutputError: If it cannot be written.
    """
    with open_output(path) as file, writing(path):
        builder = IndexBuilder(segments[0].header.dtype, folder=temporary_folder(path))
        try:
            first_sequences = np.cumsum([0, *(segment.header.num_sequences for segment in segments)])
            for number, section, items in read_sections(segments):
                builder.append(section, items + first_sequences[number] if section == "boundaries" else items)
            builder.write(file)
        finally:
            builder.close()
    return file.stored_file("idx")


def read_lengths(segments: Sequence[Segment]) -> NDArray[np.int32]:
    """Return the tokens of each sequence, shape [sequences]."""
    lengths = (items for _, section, items in read_sections(segments) if section == "lengths")
    return np.concatenate([np.empty(0, LENGTH), *lengths])


def read_sections(segments: Sequence[Segment]) -> Iterator[tuple[int, str, NDArray[Any]]]:
    """Yield the lengths, boundaries and modes of indices in pieces, each with its segment's number and its section.

    The first boundary of each index, which is always 0, is skipped.
    """
    pieces, section_spans, segment_numbers = [], [], []
    for number, segment in enumerate(segments):
        spans = {}
        for section, (dtype, begin, count) in segment.header.sections.items():
            first = dtype.itemsize if section == "boundaries" else 0
            if section != "pointers":
                spans[section] = begin + first, begin + count * dtype.itemsize
        section_spans.append(spans)
        piece_spans = spans.values() if segment.idx.blocks is None else [(0, segment.idx.size_bytes)]
        pieces += [(segment.idx, begin, end) for begin, end in piece_spans]
        segment_numbers += [number] * len(piece_spans)
    current_piece, position, partial_item = -1, 0, b""
    for piece, chunk in _read_pieces(pieces):
        if piece != current_piece:
            current_piece, position, partial_item = piece, pieces[piece][1], b""
        for section, (begin, end) in section_spans[segment_numbers[piece]].items():
            inside = chunk[max(0, begin - position) : max(0, end - position)]
            if len(inside):
                data, itemsize = partial_item + inside, SECTIONS[section].itemsize
                num_items = len(data) // itemsize
                partial_item = bytes(data[num_items * itemsize :])
                yield segment_numbers[piece], section, np.frombuffer(data, SECTIONS[section], count=num_items)
        position += len(chunk)


# Provenance and bad records.


@return_damage
def make_provenance(segments: Sequence[Segment], path: str, seed: int | None) -> StoredFile:
    """Write the merged provenance, in a random order if there is a seed; it appears complete or not at all."""

    def read_rows() -> Iterator[NDArray[np.void]]:
        for segment, data in _read_rows(segments, "provenance", lambda data: len(data) // ROW.itemsize * ROW.itemsize):
            rows = np.frombuffer(bytearray(data), ROW)
            rows["input"] += segment.input
            rows["line"] += segment.line
            yield rows

    with open_output(path) as file:
        if seed is None:
            write_provenance(file, read_rows())
        else:
            with _spool((rows.view(np.uint8).data for rows in read_rows()), path) as spool:
                write_provenance(file, shuffle_items(np.frombuffer(spool, ROW), seed))
    return file.stored_file(PROVENANCE_SUFFIX)


@return_damage
def make_quarantine(segments: Sequence[Segment], path: str) -> StoredFile:
    """Write the bad records of all shards; the file appears complete or not at all."""

    def read_entries() -> Iterator[bytes]:
        for segment, lines in _read_rows(segments, "quarantine", lambda data: data.rfind(b"\n") + 1):
            for line in lines.splitlines():
                entry = json.loads(line)  # the user's data, which must not change
                entry["file"] = segment.names[entry["file"]]
                entry["line"] += segment.line
                yield encode_json(entry, newline=True)

    with open_output(path) as file:
        write_quarantine(file, read_entries())
    return file.stored_file(QUARANTINE_SUFFIX)


def _read_rows(
    segments: Sequence[Segment], kind: Literal["provenance", "quarantine"], count_whole_bytes: Callable[[bytes], int]
) -> Iterator[tuple[Segment, bytes]]:
    """Yield rows of segments in pieces that end at the end of a row, each with its segment.

    Args:
        segments: The segments; those without such rows are skipped.
        kind: Which rows to read.
        count_whole_bytes: Returns how many leading bytes of a piece are whole rows.
    """
    segment_files = [(segment, file) for segment in segments if (file := getattr(segment, kind)) is not None]
    current, partial_row = -1, b""
    for number, chunk in _read_pieces([(file, 0, file.size_bytes) for _, file in segment_files]):
        data = partial_row + chunk if number == current else bytes(chunk)
        current, length = number, count_whole_bytes(data)
        partial_row = data[length:]
        yield segment_files[number][0], data[:length]
