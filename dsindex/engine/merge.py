"""Merge many datasets into one: tokens by ranges of the output; indices, provenance and bad records as streams.

A range of the output is assembled from the pieces that overlap it and written at its offset, so that a second attempt
writes the same bytes to the same place. An object is written from its start to its end by one task. A file of a shard
is compared with the digest that its worker recorded, as it is read.
"""

from __future__ import annotations

import os
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import xxhash

from dsindex.datasets.provenance import COLUMNS, ROWS_PER_GROUP
from dsindex.engine.tasks import Part
from dsindex.errors import FormatError, OutputError
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
from dsindex.json_text import decode_json, encode_json
from dsindex.store.reading import Extent, digest_file, input_status, open_sources, open_stored
from dsindex.store.storage import BlockDigester, start_writeback, write_at, writing
from dsindex.store.store import open_output, store_of
from dsindex.store.urls import with_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.tasks import MergeRange, Piece, ShardRows
    from dsindex.store.reading import Source
    from dsindex.store.storage import StoredFile

COPY_BYTES = 4 << 20
ROW = np.dtype([("input", "<i4"), ("offset", "<i8"), ("line", "<i8")])
"""A row of a shard's provenance: input, byte offset and line of a record, counted from the beginning of the shard."""
QUARANTINE_CHUNK_BYTES = 1 << 20
"""What the compressor gets at once, so that its file does not depend on how the build was cut into shards."""


# The tokens.


def merge_range(task: MergeRange) -> str:
    """Assemble one range of a file at its offset, and sync it.

    Returns:
        Its XXH3-128, in hexadecimal.

    Raises:
        InputError: If a part is missing or shorter than planned.
        OutputError: If the output cannot be written, or the tokens of a shard are not those that were written.
    """
    digest, offset = xxhash.xxh3_128(), task.begin
    with writing(task.output):
        descriptor = os.open(task.output, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            for chunk in _read_pieces(task.pieces):
                digest.update(chunk)
                write_at(descriptor, chunk, offset)
                start_writeback(descriptor, offset, len(chunk))
                offset += len(chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return digest.hexdigest()


def merge_whole(pieces: Sequence[Piece], path: str, suffix: str) -> StoredFile:
    """Assemble an object from its start to its end; it appears complete or not at all.

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
            _refuse_written(piece.path)


def _chunks(source: Source, begin: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
    while begin < end:
        chunk = buffer[: end - begin]
        source.read_into(chunk, begin)
        yield chunk
        begin += len(chunk)


def _require_written(path: str, digest: str) -> None:
    if digest_file(path) != digest:
        _refuse_written(path)


def _refuse_written(path: str) -> NoReturn:
    """Remove a file of a shard that has other bytes than its worker wrote, so that the next run makes it again."""
    store_of(path).delete([path])
    raise OutputError(
        f"{path}: expected what was written there, got other bytes, which are removed; run the same command again: "
        f"it makes what was lost; and check the disk"
    )


# The index.


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
    return Part(bin_path=tokens.path, idx_path=idx_path, bin_bytes=tokens.size_bytes, header=header)


def merged_header(parts: Sequence[Part]) -> IndexHeader:
    """Return the header of the merged index.

    Raises:
        FormatError: If the parts differ in token type or in having modes, naming the first that does.
    """
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


def make_index(parts: Sequence[Part], path: str) -> StoredFile:
    """Write the merged `.idx`: unchanged lengths, continuous pointers, and each part's boundaries shifted by its base.

    It is complete or absent, and no step holds all documents in memory.

    Raises:
        OutputError: If it cannot be written, or the index of a shard is not the one that was written.
    """
    for part in parts:
        if part.idx is not None:
            _require_written(part.idx_path, part.idx.digest)
    header = merged_header(parts)
    bases = list(accumulate((part.header.num_sequences for part in parts), initial=0))

    def boundaries() -> Iterator[NDArray[np.int64]]:
        yield np.zeros(1, BOUNDARY)
        for (_, chunks), base in zip(_sections(parts, "boundaries"), bases[:-1], strict=True):
            for number, chunk in enumerate(chunks):
                yield (chunk[1:] if number == 0 else chunk) + base

    def modes() -> Iterator[NDArray[np.int8]]:
        for _, chunks in _sections(parts, "modes"):
            yield from chunks

    with open_output(path) as file:
        write_index(
            file,
            header,
            lengths=lambda: read_lengths(parts),
            boundaries=boundaries,
            modes=modes if header.has_modes else None,
        )
    return file.as_stored("idx")


def read_lengths(parts: Sequence[Part]) -> Iterator[NDArray[np.int32]]:
    """Yield the lengths of all sequences of datasets in order, a chunk at a time; objects are requested ahead.

    Raises:
        InputError: If an index is missing or shorter than its header says.
    """
    for _, chunks in _sections(parts, "lengths"):
        yield from chunks


def check_parts(parts: Sequence[Part]) -> None:
    """Check foreign datasets: sequences follow each other as in a merged dataset, boundaries run from 0 to the last.

    Raises:
        FormatError: If they do not, or an index does not belong to its `.bin`.
        InputError: If an index is missing or shorter than its header says.
    """
    sections = zip(_sections(parts, "lengths"), _sections(parts, "pointers"), strict=True)
    for (part, lengths), (_, pointers) in sections:
        end = check_pointers(part.idx_path, part.header.dtype, zip(lengths, pointers, strict=True))
        check_bin_size(part.idx_path, end, part.bin_bytes)
    for part, chunks in _sections(parts, "boundaries"):
        previous = None
        for chunk in chunks:
            if previous is None and chunk[0] != 0:
                raise FormatError(f"{part.idx_path}: expected the first document boundary to be 0, got {chunk[0]}")
            if chunk[0] < (previous or 0) or np.any(chunk[1:] < chunk[:-1]):
                msg = f"{part.idx_path}: expected document boundaries that never decrease; the index is damaged"
                raise FormatError(msg)
            previous = int(chunk[-1])
        if previous != part.header.num_sequences:
            wanted = part.header.num_sequences
            raise FormatError(f"{part.idx_path}: expected the last document boundary to be {wanted}, got {previous}")


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


# Provenance and bad records.


def make_provenance(shards: Sequence[ShardRows], path: str) -> StoredFile:
    """Write the merged provenance, with one row group in memory; it is complete or absent.

    Source: dsindex.datasets.provenance, which reads it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dsindex.arrow import number_array

    schema = pa.schema([(name, getattr(pa, dtype)()) for name, dtype in COLUMNS])
    with (
        open_output(path) as file,
        pq.ParquetWriter(
            pa.PythonFile(file, mode="w"),
            schema,
            compression="zstd",
            use_dictionary=["input"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "line": "DELTA_BINARY_PACKED"},
            store_schema=False,
        ) as writer,
    ):
        for group in _row_groups(shards):
            columns = [number_array(group[name]) for name, _ in COLUMNS]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROWS_PER_GROUP)
    return file.as_stored("provenance.parquet")


def _row_groups(shards: Sequence[ShardRows]) -> Iterator[NDArray[Any]]:
    """Regroup the shards' rows into groups of ROWS_PER_GROUP, whatever the sizes of the shards."""
    group = np.empty(ROWS_PER_GROUP, ROW)
    filled = 0
    extents = [Extent(path=shard.path, begin=0, end=shard.size_bytes) for shard in shards]
    for shard, source in zip(shards, open_sources(extents), strict=True):
        digester = BlockDigester()
        begin = 0
        while begin < shard.size_bytes:
            rows = group[filled : filled + (shard.size_bytes - begin) // ROW.itemsize]
            content = rows.view(np.uint8).data
            source.read_into(content, begin)
            digester.update(content)
            rows["input"] += shard.input
            rows["line"] += shard.line
            begin, filled = begin + len(content), filled + len(rows)
            if filled == ROWS_PER_GROUP:
                yield group
                filled = 0
        if digester.hexdigest() != shard.digest:
            _refuse_written(shard.path)
    if filled:
        yield group[:filled]


def make_quarantine(shards: Sequence[ShardRows], path: str) -> StoredFile:
    """Write the bad records of all shards, compressed, with a line and a chunk in memory; it is complete or absent.

    `<prefix>.quarantine.jsonl.zst` has one JSON line each, in the order of the inputs:

        file     the input, as it was given
        offset   byte offset of the line in that input's (unpacked) text; in a table, the row group
        line     1-based number of the line, or of the row, in that input
        reason   why it is bad
        raw      the line itself if it is UTF-8, otherwise
        raw_base64

    Of a line longer than --max-record-size, the first bytes are stored: at most that many, and at most 1 MiB.
    """
    import pyarrow as pa

    with (
        open_output(path) as file,
        pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), "zstd") as compressor,
    ):
        pending = bytearray()
        for entry in read_bad_records(shards):
            pending += encode_json(entry, newline=True)
            while len(pending) >= QUARANTINE_CHUNK_BYTES:
                compressor.write(bytes(pending[:QUARANTINE_CHUNK_BYTES]))
                del pending[:QUARANTINE_CHUNK_BYTES]
        compressor.write(bytes(pending))
    return file.as_stored("quarantine.jsonl.zst")


def read_bad_records(shards: Iterable[ShardRows]) -> Iterator[dict[str, Any]]:
    """Yield the bad records of shards, with the input's path as given and lines that count from its start.

    Raises:
        OutputError: If a shard's file is not the one that was written.
    """
    for shard in shards:
        _require_written(shard.path, shard.digest)
        with open_stored(shard.path) as file:
            for line in file:
                entry = decode_json(line)
                entry["file"] = shard.names[entry["file"]]
                entry["line"] += shard.line
                yield entry
