"""The worker: functions of a task and its settings, which run unchanged on any executor.

`tokenize_shard` tokenizes a part of an input, or a list of small ones, into a `.bin` and an `.idx` for each key, under
names of its own, and returns a receipt. Any number of attempts at one task may run at once, even after the job has
moved on; the driver alone decides which attempt counts, in its ledger. A worker holds a few parsed blocks, never a
whole part.

`merge_range` and the functions after it join parts: tokens by ranges of the output; indices, provenance and bad records
as streams. A range is assembled from the pieces that overlap it and written at its offset, so that a second attempt
writes the same bytes to the same place. An object is written from its start to its end by one task. A file of a shard
is compared with the digest that its worker recorded, as it is read.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import xxhash

from dsindex.errors import BadRecordError, OutputError
from dsindex.formats.mmididx import CHUNK_ITEMS, LENGTH, SECTIONS, IndexBuilder, IndexHeader, write_index
from dsindex.formats.provenance import COLUMNS, ROWS_PER_GROUP
from dsindex.runtime.tasks import FileCounts, KeyResult, ShardResult
from dsindex.runtime.work_folder import SHARDS_FOLDER, is_marked
from dsindex.store.json_text import encode_json
from dsindex.store.local import BlockDigester, holds_writes, start_writeback, write_at, writing
from dsindex.store.protocol import open_output, store_of
from dsindex.store.read import Extent, open_in_order, open_stored
from dsindex.store.urls import joined
from dsindex.text.blocks import ALL_RECORDS, Sample, hash_records, keep_records, sample_records
from dsindex.text.compressed import measure_compression
from dsindex.text.layout import lay_out_documents, lay_out_pbin_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.runtime.tasks import MergeRange, Part, PartFile, ShardRows, ShardTask
    from dsindex.store.local import DigestingWriter, StoredFile
    from dsindex.text.blocks import BadRecord, RecordBlock
    from dsindex.text.encoders import TokenBatch
    from dsindex.text.engines import Engine
    from dsindex.text.reader import TaskReader
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer

    Numbers: TypeAlias = NDArray[np.integer[Any]]


# Settings, which are sent to every worker once.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """The settings that the shards of every kind of job have; sent to every worker once."""

    quarantine: bool
    """Whether bad records are quarantined; otherwise the first one is an error."""
    max_record_bytes: int
    provenance: bool
    work_dir: str
    """The work folder, which holds the files of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings(WorkSettings):
    """The settings that all shards of a build share."""

    tokenizer: Tokenizer
    engine: Engine
    keys: tuple[str, ...]
    selection: Selection
    """The records to keep and the values to read; the keys are its outputs."""
    dtype: str
    """Token type on disk, also of big-endian tokens."""
    eod_id: int | None
    """Appended to every document that has tokens; None to append nothing."""
    layout: Literal["keep", "eod", "pbin"]
    """That of Megatron, where a document without tokens stays or becomes EOD alone, or that of Modalities."""
    samples: tuple[Sample, ...] = (ALL_RECORDS,)
    """The records to keep; each sample becomes a dataset of every key."""


# The files of one attempt at a shard.

SHARDS_PER_FOLDER = 10_000
ROW = np.dtype([("input", "<i4"), ("offset", "<i8"), ("line", "<i8")])
"""A row of a shard's provenance: input, byte offset and line of a record, counted from the beginning of the shard."""


class Attempt(contextlib.ExitStack):
    """Context manager of one attempt's files, under names that are used once: complete when it ends well, else absent.

    Args:
        task: The shard.
        settings: Its settings; the work folder is on a disk or in a bucket.

    Raises:
        OutputError: If the work folder is gone.
    """

    def __init__(self, task: ShardTask, settings: WorkSettings) -> None:
        super().__init__()
        self._task, self._settings, work_dir = task, settings, settings.work_dir
        if not is_marked(work_dir):  # a late attempt must not bring back what the driver removed
            raise OutputError(f"{work_dir}: expected the work folder, found nothing; run the same command again")
        self._stem = f"{SHARDS_FOLDER}/{task.shard // SHARDS_PER_FOLDER:04d}/{task.shard:08d}.{secrets.token_hex(8)}"
        folder = os.path.dirname(joined(work_dir, self._stem))
        self.folder = tempfile.gettempdir() if holds_writes(work_dir) else folder
        """Where temporary files go."""
        self._files: dict[str, DigestingWriter] = {}
        self.bad = np.zeros(len(task.parts), np.int64)
        """Bad records of each part."""

    def file(self, suffix: str) -> DigestingWriter:
        """Return a file of this attempt, which is opened when it is first asked for.

        Raises:
            OutputError: If the work folder refuses.
        """
        if suffix not in self._files:
            path = joined(self._settings.work_dir, f"{self._stem}.{suffix}")
            self._files[suffix] = self.enter_context(open_output(path))
        return self._files[suffix]

    def stored(self, suffix: str) -> StoredFile:
        """Return name, size and digest of what was written to a file."""
        return self.file(suffix).as_stored(f"{self._stem}.{suffix}")

    def set_aside(self, record: BadRecord) -> None:
        """Write a bad record to the shard's quarantine, whose inputs and lines count from those of the shard.

        Raises:
            BadRecordError: If bad records are not quarantined.
            InputError: If not, and the file is damaged, so that the record is not what was written.
            OutputError: If the work folder refuses.
        """
        if not self._settings.quarantine:
            part, place = self._task.parts[record.part], (self._task.shard, record.line)
            if part.form.container != "plain":
                measure_compression(part.path, part.form.container)
            raise BadRecordError(part.path, record.offset, record.reason, part=place, is_row=part.form.is_table)
        self.bad[record.part] += 1
        entry = {"file": record.part, "offset": record.offset, "line": record.line, "reason": record.reason}
        try:
            entry["raw"] = record.line_bytes.decode("utf-8")
        except UnicodeDecodeError:
            entry["raw_base64"] = base64.b64encode(record.line_bytes).decode("ascii")
        self.file("quarantine").write(encode_json(entry, newline=True))

    def count_files(self, reader: TaskReader, *counted: Sequence[NDArray[np.int64]]) -> tuple[FileCounts, ...]:
        """Return the counts of each part.

        Args:
            reader: What read the parts.
            counted: Counts of each part, shape [parts]: the records kept in each sample or split; and, if texts became
                tokens, the size of those of each key.
        """
        columns = [reader.counts[name].tolist() for name in ("lines", "blank")]
        columns += [self.bad.tolist(), reader.counts["text_bytes"].tolist(), reader.fingerprints]
        columns += [list(zip(*(counts.tolist() for counts in each), strict=True)) for each in counted]
        return tuple(map(FileCounts, *columns))

    def quarantine(self) -> StoredFile | None:
        """Return the file of bad records, if there are any."""
        return self.stored("quarantine") if self.bad.any() else None


class GroupWriter:
    """Writes a group of a shard's records, a sample or a split: a part for each key, and the provenance they share.

    Args:
        attempt: The attempt whose files they are.
        name: The group's name in those of its files.
        dtypes: Token type of each key's `.bin`.
        provenance: Whether to write where the documents are from.

    Raises:
        OutputError: If the work folder refuses.
    """

    def __init__(self, attempt: Attempt, name: str, dtypes: Sequence[np.dtype[Any]], *, provenance: bool) -> None:
        self._attempt = attempt
        self._name = name
        self._indices = [IndexBuilder(dtype.newbyteorder("<"), folder=attempt.folder) for dtype in dtypes]
        for index in self._indices:
            attempt.callback(index.close)
        self._facts: list[Counter[str]] = [Counter() for _ in dtypes]
        self._provenance = f"{name}.prov" if provenance else None

    def add(self, key: int, tokens: NDArray[Any], lengths: Numbers, per_document: Numbers, **facts: int) -> None:
        """Append documents to a key's part.

        Args:
            key: The number of the key.
            tokens: Of the type on disk.
            lengths: Tokens of each sequence, shape [sequences].
            per_document: Sequences of each document, shape [documents].
            facts: Counts of the part's receipt, to be added up.

        Raises:
            OutputError: If a disk is full.
        """
        self._attempt.file(f"{self._name}.{key}.bin").write(tokens.view(np.uint8).data)
        with writing(self._attempt.folder):
            self._indices[key].add_documents(lengths, per_document)
        self._facts[key].update(facts)

    def add_places(self, offsets: Numbers, lines: Numbers, inputs: Numbers) -> None:
        """Append rows of provenance, if it is wanted.

        Args:
            offsets: Byte offset of each document's line in its input, shape [documents].
            lines: Number of the line, counted from 0 at the start of the range; same shape.
            inputs: Number of the input, counted from the shard's first.
        """
        if self._provenance is not None:
            rows = np.empty(len(offsets), ROW)
            rows["input"], rows["offset"], rows["line"] = inputs, offsets, lines
            self._attempt.file(self._provenance).write(rows.view(np.uint8).data)

    def results(self) -> list[KeyResult]:
        """Write the indices and return the receipts of the parts.

        Raises:
            OutputError: If a disk is full.
        """
        rows, parts = None if self._provenance is None else self._attempt.stored(self._provenance), []
        for key, index in enumerate(self._indices):
            with writing(self._attempt.folder):
                index.write(self._attempt.file(f"{self._name}.{key}.idx"))
            part = KeyResult(
                num_sequences=index.num_sequences,
                num_documents=index.num_documents,
                num_tokens=index.num_tokens,
                bin=self._attempt.stored(f"{self._name}.{key}.bin"),
                idx=self._attempt.stored(f"{self._name}.{key}.idx"),
                provenance=rows,
                **self._facts[key],
            )
            parts.append(part)
        return parts


# Make a shard.


def tokenize_shard(task: ShardTask, settings: ShardSettings) -> ShardResult:
    """Tokenize a part of the input into files under names unique to this attempt, synced to disk.

    Raises:
        BadRecordError: At the range's first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If a token id is outside the tokenizer's vocabulary, or the engine fails its audit.
        OutputError: If the work folder cannot be written.
    """
    from dsindex.text.encoders import encode_block  # these load pyarrow, only when needed
    from dsindex.text.reader import TaskReader

    reader = TaskReader(task.parts)
    with Attempt(task, settings) as attempt:
        groups = [_SampleWriter(attempt, str(number), settings) for number in range(len(settings.samples))]
        for block in reader.records(settings.selection, max_record_bytes=settings.max_record_bytes):
            kept, encoded = encode_block(sample_records(block, settings.samples), settings.tokenizer, settings.engine)
            for record in kept.bad:
                attempt.set_aside(record)
            if len(groups) == 1:
                groups[0].add_block(kept, encoded)
                continue
            hashes = hash_records(kept)
            for sample, group in zip(settings.samples, groups, strict=True):
                own = sample.holds(hashes)
                places = np.flatnonzero(own)
                group.add_block(keep_records(kept, own), {key: each.take(places) for key, each in encoded.items()})
        counted = [[group.kept for group in groups]]
        if settings.selection.vocabulary_size is None:
            counted += [[sizes for group in groups for sizes in group.text_bytes]]
        return ShardResult(
            files=attempt.count_files(reader, *counted),
            keys=tuple(part for group in groups for part in group.results()),
            quarantine=attempt.quarantine(),
        )


class _SampleWriter(GroupWriter):
    """Writes the texts of a sample, laid out as documents, and counts them."""

    def __init__(self, attempt: Attempt, name: str, settings: ShardSettings) -> None:
        dtype = np.dtype(settings.dtype)
        super().__init__(attempt, name, [dtype] * len(settings.keys), provenance=settings.provenance)
        self._keys = settings.keys
        lay_out = lay_out_pbin_documents
        if settings.layout != "pbin":
            lay_out = partial(lay_out_documents, empty_documents=settings.layout)
        vocabulary_size = settings.tokenizer.vocabulary_size
        self._lay_out = partial(lay_out, dtype=dtype, eod_id=settings.eod_id, vocabulary_size=vocabulary_size)
        self.kept = np.zeros(len(attempt.bad), np.int64)
        """Records of each part."""
        self.text_bytes = np.zeros((len(settings.keys), len(attempt.bad)), np.int64)
        """Size of each key's texts in each part."""

    def add_block(self, block: RecordBlock, encoded: Mapping[str, TokenBatch]) -> None:
        """Append encoded records, all of which belong to the sample."""
        self.kept += np.bincount(block.parts, minlength=len(self.kept))
        is_document = None
        for number, (key, sizes) in enumerate(zip(self._keys, self.text_bytes, strict=True)):
            batch = encoded[key]
            if batch.text_bytes and len(sizes) == 1:
                sizes += batch.text_bytes
            else:
                sizes += np.bincount(block.parts, block.columns[key].sizes(), len(sizes)).astype(np.int64)
            documents = self._lay_out(batch)
            facts = {"num_empty_documents": documents.num_empty, "eod_in_text": documents.eod_in_text}
            self.add(number, documents.tokens, documents.sequence_lengths, documents.sequences_per_document, **facts)
            is_document = documents.is_document
        kept = slice(None) if is_document is None else is_document  # None but in a layout with one key
        self.add_places(block.offsets[kept], block.lines[kept], block.parts[kept])


# Merge tokens.

COPY_BYTES = 1 << 22


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
            for _, chunk in _read_pieces(task.pieces):
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
    with open_output(path, size_bytes=sum(each.size_bytes for each in files)) as file:
        for _, chunk in _read_files(files):
            file.write(chunk)
    return file.as_stored(path.rpartition(".")[2])


def _read_files(files: Iterable[PartFile], chunk_bytes: int = COPY_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Do what `_read_pieces` does with whole files."""
    return _read_pieces([(each, 0, each.size_bytes) for each in files], chunk_bytes)


def _read_pieces(
    pieces: Sequence[tuple[PartFile, int, int]], chunk_bytes: int = COPY_BYTES
) -> Iterator[tuple[int, memoryview]]:
    """Yield the bytes of pieces, each with its number, in chunks that share a buffer; objects are read ahead.

    Raises:
        OutputError: If a file of a shard has other bytes than its worker wrote. It is removed, so that the next run
            makes it again.
    """
    buffer = memoryview(bytearray(chunk_bytes))
    sources = open_in_order(Extent(path=file.path, begin=begin, end=end) for file, begin, end in pieces)
    for number, ((file, begin, end), source) in enumerate(zip(pieces, sources, strict=True)):
        compares, digester = file.digest is not None and end == file.size_bytes, BlockDigester()
        offset = 0 if compares else begin  # ranges before this one have the beginning of the file
        while offset < end:
            chunk = buffer[: (begin if offset < begin else end) - offset]
            source.fill(chunk, offset)
            if compares:
                digester.update(chunk)
            if offset >= begin:
                yield number, chunk
            offset += len(chunk)
        if compares and digester.hexdigest() != file.digest:
            store_of(file.path).delete([file.path])
            raise OutputError(
                f"{file.path}: expected what was written there, got other bytes, which are removed; run the same "
                f"command again: it makes what was lost; and check the disk"
            )


def _require_written(files: Iterable[PartFile]) -> None:
    """Compare the files of shards with their digests."""
    for _ in _read_files(file for file in files if file.digest):
        pass


# Merge indices.


def make_index(parts: Sequence[Part], path: str) -> StoredFile:
    """Write the merged `.idx`: unchanged lengths, continuous pointers, and each part's boundaries shifted by its base.

    It is complete or absent, and no step holds all documents in memory.

    Raises:
        OutputError: If it cannot be written, or the index of a shard is not the one that was written.
    """
    _require_written(part.idx for part in parts)
    header = IndexHeader(
        dtype=parts[0].header.dtype,
        num_sequences=sum(part.header.num_sequences for part in parts),
        num_boundaries=sum(part.header.num_documents for part in parts) + 1,
        has_modes=any(part.header.has_modes for part in parts),
    )
    bases = np.cumsum([0, *(part.header.num_sequences for part in parts)])

    def read(name: str) -> Iterator[NDArray[Any]]:
        if name == "boundaries":
            yield np.zeros(1, SECTIONS[name])
        for number, chunk in _read_section(parts, name):
            yield chunk + bases[number] if name == "boundaries" else chunk

    with open_output(path) as file:
        write_index(file, header, read)
    return file.as_stored("idx")


def read_lengths(parts: Sequence[Part]) -> NDArray[np.int32]:
    """Return the lengths of all sequences of parts.

    Raises:
        InputError: If an index is missing or shorter than its header says.
    """
    return np.concatenate([np.empty(0, LENGTH), *(chunk for _, chunk in _read_section(parts, "lengths"))])


def _read_section(parts: Sequence[Part], name: str) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the items of a section of indices, a chunk at a time, each with the number of its part.

    The first boundary of each part, which is 0, is left out. Objects are read ahead.
    """
    dtype, extents = SECTIONS[name], []
    for part in parts:
        _, begin, count = part.header.sections[name]
        first = dtype.itemsize if name == "boundaries" else 0
        extents.append(Extent(path=part.idx.path, begin=begin + first, end=begin + count * dtype.itemsize))
    for number, (extent, source) in enumerate(zip(extents, open_in_order(extents), strict=True)):
        for begin in range(extent.begin, extent.end, CHUNK_ITEMS * dtype.itemsize):
            chunk = np.empty(min(CHUNK_ITEMS, (extent.end - begin) // dtype.itemsize), dtype)
            source.fill(chunk.data.cast("B"), begin)
            yield number, chunk


# Merge provenance and bad records.

QUARANTINE_CHUNK_BYTES = 1 << 20
"""What the compressor gets at once, so that its file does not depend on how the build was cut into shards."""


def make_provenance(shards: Sequence[ShardRows], path: str) -> StoredFile:
    """Write the merged provenance, with one row group in memory; it is complete or absent.

    Source: dsindex.formats.provenance, which reads it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from dsindex.formats.arrow import number_array

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
    for number, chunk in _read_files((shard.file for shard in shards), ROW.itemsize * ROWS_PER_GROUP):
        left = np.frombuffer(chunk, ROW)
        while len(left):
            rows = group[filled : filled + len(left)]
            rows[:], left = left[: len(rows)], left[len(rows) :]
            rows["input"] += shards[number].input
            rows["line"] += shards[number].line
            filled += len(rows)
            if filled == ROWS_PER_GROUP:
                yield group
                filled = 0
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
                    entry = json.loads(line)  # not decode_json, which would change a line that is an address
                    entry["file"] = shard.names[entry["file"]]
                    entry["line"] += shard.line
                    pending += encode_json(entry, newline=True)
                    while len(pending) >= QUARANTINE_CHUNK_BYTES:
                        compressor.write(bytes(pending[:QUARANTINE_CHUNK_BYTES]))
                        del pending[:QUARANTINE_CHUNK_BYTES]
        compressor.write(bytes(pending))
    return file.as_stored("quarantine.jsonl.zst")
