"""Merge many datasets into one: tokens by ranges of the output; indices, provenance and bad records as streams.

A range of the output is assembled from the pieces that overlap it and written at its offset, so that a second attempt
writes the same bytes to the same place. An object is written from its start to its end by one task. A file of a shard
is compared with the digest that its worker recorded, as it is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import xxhash

from dsindex.datasets.provenance import COLUMNS, ROWS_PER_GROUP
from dsindex.engine.tasks import Part, PartFile, Piece
from dsindex.errors import FormatError, OutputError
from dsindex.formats.mmididx import (
    BOUNDARY,
    CHUNK_ITEMS,
    LENGTH,
    MODE,
    POINTER,
    IndexHeader,
    read_header,
    write_index,
)
from dsindex.json_text import decode_json, encode_json
from dsindex.store.reading import Extent, input_status, open_in_order, open_stored
from dsindex.store.storage import BlockDigester, start_writeback, write_at, writing
from dsindex.store.store import open_output, store_of
from dsindex.store.urls import with_suffix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.tasks import MergeRange, ShardRows
    from dsindex.store.storage import Readable, StoredFile

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


def merge_whole(files: Sequence[PartFile], path: str) -> StoredFile:
    """Assemble an object from its start to its end; it appears complete or not at all.

    Raises:
        InputError, OutputError: As `merge_range`.
    """
    pieces = [Piece(file=each, begin=0, end=each.size_bytes) for each in files]
    with open_output(path, size_bytes=sum(each.size_bytes for each in files)) as file:
        for chunk in _read_pieces(pieces):
            file.write(chunk)
    return file.as_stored(path.rpartition(".")[2])


def _read_pieces(pieces: Sequence[Piece]) -> Iterator[memoryview]:
    """Yield the bytes of pieces in order, in chunks that share a buffer."""
    buffer = memoryview(bytearray(COPY_BYTES))
    extents = [Extent(path=piece.file.path, begin=piece.begin, end=piece.end) for piece in pieces]
    for piece, source in zip(pieces, open_in_order(extents), strict=True):
        compares = piece.file.digest is not None and piece.end == piece.file.size_bytes
        digester = BlockDigester()
        # Ranges before this one have the beginning of the file.
        for begin, end in [(0, piece.begin), (piece.begin, piece.end)] if compares else [(piece.begin, piece.end)]:
            while begin < end:
                chunk = buffer[: end - begin]
                source.fill(chunk, begin)
                if compares:
                    digester.update(chunk)
                if begin >= piece.begin:
                    yield chunk
                begin += len(chunk)
        if compares and digester.hexdigest() != piece.file.digest:
            _refuse_written(piece.file)


def _require_written(files: Iterable[PartFile]) -> None:
    """Compare the files of shards with their digests; objects are requested ahead."""
    for _ in _read_pieces([Piece(file=each, begin=0, end=each.size_bytes) for each in files if each.digest]):
        pass


def _refuse_written(file: PartFile) -> NoReturn:
    """Remove a file of a shard that has other bytes than its worker wrote, so that the next run makes it again."""
    store_of(file.path).delete([file.path])
    raise OutputError(
        f"{file.path}: expected what was written there, got other bytes, which are removed; run the same command "
        f"again: it makes what was lost; and check the disk"
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
    bin_file = PartFile(path=tokens.path, size_bytes=tokens.size_bytes)
    return Part(bin=bin_file, idx=PartFile(path=idx_path, size_bytes=header.size_bytes), header=header)


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
                f"{part.idx.path}: expected tokens of type {first.header.dtype} as in {first.idx.path}, "
                f"got {part.header.dtype}; datasets of different token types cannot be merged"
            )
        if part.header.num_sequences and part.header.has_modes != filled.header.has_modes:
            has, lacks = (part, filled) if part.header.has_modes else (filled, part)
            raise FormatError(
                f"{lacks.idx.path}: expected sequence modes as in {has.idx.path}, got none; "
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
    _require_written(part.idx for part in parts)
    header = merged_header(parts)

    def boundaries() -> Iterator[NDArray[np.int64]]:
        base = 0
        yield np.zeros(1, BOUNDARY)
        for part, chunks in _sections(parts, "boundaries"):
            skipped = 1  # the leading 0 of each part
            for chunk in chunks:
                yield chunk[skipped:] + base
                skipped = 0
            base += part.header.num_sequences

    with open_output(path) as file:
        write_index(
            file,
            header,
            lengths=lambda: read_items(parts, "lengths"),
            boundaries=boundaries,
            modes=(lambda: read_items(parts, "modes")) if header.has_modes else None,
        )
    return file.as_stored("idx")


_SECTIONS: dict[str, np.dtype[Any]] = {"lengths": LENGTH, "pointers": POINTER, "boundaries": BOUNDARY, "modes": MODE}


def read_items(parts: Sequence[Part], name: str) -> Iterator[NDArray[Any]]:
    """Yield the items of a section, such as the `lengths`, of all indices, a chunk at a time; objects are read ahead.

    Raises:
        InputError: If an index is missing or shorter than its header says.
    """
    for _, chunks in _sections(parts, name):
        yield from chunks


def _sections(parts: Sequence[Part], name: str) -> Iterator[tuple[Part, Iterator[NDArray[Any]]]]:
    """Yield each part with the items of a section of its index, a chunk at a time."""
    dtype = _SECTIONS[name]
    extents = []
    for part in parts:
        count = part.header.num_boundaries if name == "boundaries" else part.header.num_sequences
        begin = getattr(part.header, f"{name}_offset")
        extents.append(Extent(path=part.idx.path, begin=begin, end=begin + count * dtype.itemsize))
    for part, extent, source in zip(parts, extents, open_in_order(extents), strict=True):
        yield part, _read_items(source, extent, dtype)


def _read_items(source: Readable, extent: Extent, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    chunk_bytes = CHUNK_ITEMS * dtype.itemsize
    for begin in range(extent.begin, extent.end, chunk_bytes):
        chunk = np.empty(min(chunk_bytes, extent.end - begin) // dtype.itemsize, dtype)
        source.fill(chunk.data.cast("B"), begin)
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
    group, filled = np.empty(ROWS_PER_GROUP, ROW), 0
    extents = [Extent(path=shard.file.path, begin=0, end=shard.file.size_bytes) for shard in shards]
    for shard, source in zip(shards, open_in_order(extents), strict=True):
        digester, begin = BlockDigester(), 0
        while begin < shard.file.size_bytes:
            rows = group[filled : filled + (shard.file.size_bytes - begin) // ROW.itemsize]
            content = rows.view(np.uint8).data
            source.fill(content, begin)
            digester.update(content)
            rows["input"] += shard.input
            rows["line"] += shard.line
            begin, filled = begin + len(content), filled + len(rows)
            if filled == ROWS_PER_GROUP:
                yield group
                filled = 0
        if digester.hexdigest() != shard.file.digest:
            _refuse_written(shard.file)
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
        for shard in shards:
            _require_written([shard.file])
            with open_stored(shard.file.path) as lines:
                for line in lines:
                    entry = decode_json(line)
                    entry["file"] = shard.names[entry["file"]]
                    entry["line"] += shard.line
                    pending += encode_json(entry, newline=True)
                    while len(pending) >= QUARANTINE_CHUNK_BYTES:
                        compressor.write(bytes(pending[:QUARANTINE_CHUNK_BYTES]))
                        del pending[:QUARANTINE_CHUNK_BYTES]
        compressor.write(bytes(pending))
    return file.as_stored("quarantine.jsonl.zst")
