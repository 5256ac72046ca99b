"""Tokenize a part of an input, or a list of small inputs, into the files of a shard: the functions that workers run.

Any number of attempts at one shard may run at once, even after the job has moved on: each writes under unique names,
and only the driver decides, in its journal, which attempt counts. A worker holds a few parsed blocks, never a whole
part.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import xxhash

from dsindex.errors import BadRecordError, OutputError
from dsindex.formats.mmididx import IndexBuilder
from dsindex.formats.provenance import ROW
from dsindex.formats.quarantine import quarantine_entry
from dsindex.runtime.tasks import FileCounts, KeyResult, ShardFile, ShardResult
from dsindex.runtime.work_folder import SHARDS_FOLDER, is_marked
from dsindex.store.json_text import encode_json
from dsindex.store.local import BlockDigester, temporary_folder, writing
from dsindex.store.protocol import open_output
from dsindex.store.urls import join_path
from dsindex.text.blocks import ALL_RECORDS, Sample, hash_records, keep_records, sample_records
from dsindex.text.compressed import measure_compression
from dsindex.text.layout import lay_out_documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.runtime.tasks import ShardTask
    from dsindex.store.local import DigestingWriter
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
    """The settings that all kinds of shards share."""

    quarantine: bool
    """Whether bad records are quarantined; otherwise the first bad record is an error."""
    max_record_bytes: int
    provenance: bool
    work_dir: str
    """The work folder, which holds the files of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings(WorkSettings):
    """The settings that the shards of a build share."""

    tokenizer: Tokenizer
    engine: Engine
    keys: tuple[str, ...]
    selection: Selection
    """The records to keep and the values to read; the keys are its outputs."""
    dtype: str
    """Token type on disk; may be big-endian."""
    eod_id: int | None
    """Appended to every document that has tokens; None to append nothing."""
    layout: Literal["keep", "eod", "pbin"]
    """How documents are laid out: as in Megatron, where a document without tokens stays empty (`keep`) or becomes a
    single EOD (`eod`), or as in Modalities (`pbin`)."""
    samples: tuple[Sample, ...] = (ALL_RECORDS,)
    """The records to keep; each sample becomes one dataset per key."""


# The files of one attempt at a shard.

SHARDS_PER_FOLDER = 10_000
BLOCK_BYTES = 4 << 20
"""Block size of a shard's files; the receipt has a digest for each block."""


class Attempt(contextlib.ExitStack):
    """The files of one attempt, under unique names: complete when the block ends, absent if it fails.

    Args:
        task: The shard.
        settings: Its settings; the work folder is on a disk or in a bucket.

    Raises:
        OutputError: If the work folder is gone.
    """

    def __init__(self, task: ShardTask, settings: WorkSettings) -> None:
        super().__init__()
        self._task, self._settings, work_dir = task, settings, settings.work_dir
        if not is_marked(work_dir):  # a late attempt must not bring the folder back after the driver removed it
            raise OutputError(f"{work_dir}: the work folder is gone", hint="run the same command again")
        self._stem = f"{SHARDS_FOLDER}/{task.shard // SHARDS_PER_FOLDER:04d}/{task.shard:08d}.{secrets.token_hex(8)}"
        self.folder = temporary_folder(join_path(work_dir, self._stem))
        """The folder for temporary files."""
        self._files: dict[str, DigestingWriter] = {}
        self.num_bad = np.zeros(len(task.parts), np.int64)
        """Number of bad records in each part."""

    def file(self, suffix: str) -> DigestingWriter:
        """Return a file of this attempt; the first call opens it.

        Raises:
            OutputError: If the work folder cannot be written.
        """
        if suffix not in self._files:
            path = join_path(self._settings.work_dir, f"{self._stem}.{suffix}")
            self._files[suffix] = self.enter_context(open_output(path))
            self._files[suffix].digester = BlockDigester(BLOCK_BYTES, xxhash.xxh3_64)
        return self._files[suffix]

    def shard_file(self, suffix: str) -> ShardFile:
        """Return the name, size and block digests of a file of this attempt."""
        file = self.file(suffix)
        blocks = tuple(block.hex() for block in file.digester.blocks())
        return ShardFile(name=f"{self._stem}.{suffix}", size_bytes=file.size_bytes, blocks=blocks)

    def quarantine_record(self, record: BadRecord) -> None:
        """Write a bad record to the shard's quarantine; its input and line are counted from the start of the shard.

        Raises:
            BadRecordError: If bad records are not quarantined.
            InputError: If they are not, and the record is bad because the compressed input is damaged.
            OutputError: If the work folder cannot be written.
        """
        if not self._settings.quarantine:
            part, place = self._task.parts[record.part], (self._task.shard, record.line)
            if part.form.container != "plain":
                measure_compression(part.path, part.form.container)
            raise BadRecordError(part.path, record.offset, record.reason, part=place, is_row=part.form.is_table)
        self.num_bad[record.part] += 1
        entry = quarantine_entry(record.part, record.offset, record.line, record.reason, record.line_bytes)
        self.file("quarantine").write(encode_json(entry, newline=True))

    def count_files(self, reader: TaskReader, *count_groups: Sequence[NDArray[np.int64]]) -> tuple[FileCounts, ...]:
        """Return the counts of each part.

        Args:
            reader: The reader of the parts.
            count_groups: Counts per part, shape [parts]: the records kept in each sample or split, and if texts were
                tokenized, the bytes of text of each key.
        """
        columns = [reader.counts[name].tolist() for name in ("lines", "blank")]
        columns += [self.num_bad.tolist(), reader.counts["text_bytes"].tolist(), reader.fingerprints]
        columns += [list(zip(*(counts.tolist() for counts in group), strict=True)) for group in count_groups]
        return tuple(map(FileCounts, *columns))

    def quarantine(self) -> ShardFile | None:
        """Return the file of bad records, if there are any."""
        return self.shard_file("quarantine") if self.num_bad.any() else None


class GroupWriter:
    """Writes the records of one sample or split of a shard: tokens for each key, and provenance for all keys.

    Args:
        attempt: The attempt whose files they are.
        name: Names the group in file names.
        dtypes: Token type of each key's `.bin`.
        provenance: Whether to write provenance.

    Raises:
        OutputError: If the work folder cannot be written.
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
        """Append documents to a key's tokens.

        Args:
            key: The number of the key.
            tokens: Token ids in the type on disk.
            lengths: Number of tokens of each sequence, shape [sequences].
            per_document: Number of sequences of each document, shape [documents].
            facts: Counts to add to the key's receipt.

        Raises:
            OutputError: If a disk is full.
        """
        self._attempt.file(f"{self._name}.{key}.bin").write(tokens.view(np.uint8).data)
        with writing(self._attempt.folder):
            self._indices[key].add_documents(lengths, per_document)
        self._facts[key].update(facts)

    def add_provenance(self, offsets: Numbers, lines: Numbers, inputs: Numbers) -> None:
        """Append rows of provenance, unless it is switched off.

        Args:
            offsets: Byte offset of each document's line in its input, shape [documents].
            lines: Line numbers, counted from 0 at the start of the part; same shape.
            inputs: Number of the input, counted from the shard's first.
        """
        if self._provenance is not None:
            rows = np.empty(len(offsets), ROW)
            rows["input"], rows["offset"], rows["line"] = inputs, offsets, lines
            self._attempt.file(self._provenance).write(rows.view(np.uint8).data)

    def write_indices(self) -> list[KeyResult]:
        """Write the indices and return the receipts of the keys.

        Raises:
            OutputError: If a disk is full.
        """
        rows, parts = None if self._provenance is None else self._attempt.shard_file(self._provenance), []
        for key, index in enumerate(self._indices):
            with writing(self._attempt.folder):
                index.write(self._attempt.file(f"{self._name}.{key}.idx"))
            part = KeyResult(
                num_sequences=index.num_sequences,
                num_documents=index.num_documents,
                num_tokens=index.num_tokens,
                bin=self._attempt.shard_file(f"{self._name}.{key}.bin"),
                idx=self._attempt.shard_file(f"{self._name}.{key}.idx"),
                provenance=rows,
                **self._facts[key],
            )
            parts.append(part)
        return parts


# Make a shard.


def tokenize_shard(task: ShardTask, settings: ShardSettings) -> ShardResult:
    """Tokenize a part of the input into files with unique names, and sync them.

    Raises:
        BadRecordError: At the first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If a token id is outside the tokenizer's vocabulary, or the engine fails its audit.
        OutputError: If the work folder cannot be written.
    """
    from dsindex.text.encoders import encode_block  # these load pyarrow, only when needed
    from dsindex.text.reader import TaskReader

    reader = TaskReader(task.parts)
    with Attempt(task, settings) as attempt:
        groups = [_SampleWriter(attempt, str(number), settings) for number in range(len(settings.samples))]
        for chunk in reader.records(settings.selection, max_record_bytes=settings.max_record_bytes):
            block, batches = encode_block(sample_records(chunk, settings.samples), settings.tokenizer, settings.engine)
            for record in block.bad_records:
                attempt.quarantine_record(record)
            if len(groups) == 1:
                groups[0].add_block(block, batches)
                continue
            hashes = hash_records(block)
            for sample, group in zip(settings.samples, groups, strict=True):
                mask = sample.holds(hashes)
                group.add_block(keep_records(block, mask), {key: batch.keep(mask) for key, batch in batches.items()})
        count_groups = [[group.num_kept for group in groups]]
        if settings.selection.vocabulary_size is None:
            count_groups += [[sizes for group in groups for sizes in group.text_bytes]]
        return ShardResult(
            files=attempt.count_files(reader, *count_groups),
            keys=tuple(part for group in groups for part in group.write_indices()),
            quarantine=attempt.quarantine(),
        )


class _SampleWriter(GroupWriter):
    """Lays out the texts of a sample as documents, writes and counts them."""

    def __init__(self, attempt: Attempt, name: str, settings: ShardSettings) -> None:
        dtype = np.dtype(settings.dtype)
        super().__init__(attempt, name, [dtype] * len(settings.keys), provenance=settings.provenance)
        self._keys = settings.keys
        size = settings.tokenizer.vocabulary_size
        self._lay_out = partial(
            lay_out_documents, dtype=dtype, eod_id=settings.eod_id, layout=settings.layout, vocabulary_size=size
        )
        self.num_kept = np.zeros(len(attempt.num_bad), np.int64)
        """Number of records kept in each part."""
        self.text_bytes = np.zeros((len(settings.keys), len(attempt.num_bad)), np.int64)
        """Bytes of text of each key in each part."""

    def add_block(self, block: RecordBlock, batches: Mapping[str, TokenBatch]) -> None:
        """Append encoded records of the sample."""
        self.num_kept += np.bincount(block.parts, minlength=len(self.num_kept))
        is_document = None
        for number, (key, sizes) in enumerate(zip(self._keys, self.text_bytes, strict=True)):
            batch = batches[key]
            if batch.text_bytes and len(sizes) == 1:
                sizes += batch.text_bytes
            else:
                sizes += np.bincount(block.parts, block.columns[key].sizes(), len(sizes)).astype(np.int64)
            documents = self._lay_out(batch)
            facts = {"num_empty_documents": documents.num_empty, "eod_in_text": documents.eod_in_text}
            self.add(number, documents.tokens, documents.sequence_lengths, documents.sequences_per_document, **facts)
            is_document = documents.is_document
        row_selection = slice(None) if is_document is None else is_document  # not None only for a layout with one key
        self.add_provenance(block.offsets[row_selection], block.lines[row_selection], block.parts[row_selection])
