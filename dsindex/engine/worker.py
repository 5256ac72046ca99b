"""The worker: one function of a task and its settings, which writes under names of its own and returns a receipt.

`tokenize_shard` runs unchanged on any executor: it tokenizes a part of an input, or a list of small ones, into a `.bin`
and an `.idx` for each key. Any number of attempts at one task may run at once, even after the job has moved on; the
driver alone decides which attempt counts (dsindex.engine.ledger). A worker holds a few parsed blocks, never a whole
part.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.engine.merge import ROW
from dsindex.engine.tasks import FileCounts, KeyResult, ShardResult
from dsindex.engine.work_folder import SHARDS_FOLDER, require_marked
from dsindex.errors import BadRecordError
from dsindex.formats.mmididx import IndexBuilder
from dsindex.json_text import encode_json
from dsindex.store.reading import require_unchanged
from dsindex.store.storage import holds_writes, writing
from dsindex.store.store import open_output
from dsindex.store.urls import joined
from dsindex.text.blocks import (
    ALL_RECORDS,
    Sample,
    hash_records,
    keep_records,
    sample_records,
)
from dsindex.text.layout import lay_out_documents, lay_out_pbin_documents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dsindex.engine.tasks import ShardTask
    from dsindex.store.storage import DigestingWriter, StoredFile
    from dsindex.text.blocks import BadRecord, RecordBlock
    from dsindex.text.encoders import TokenBatch
    from dsindex.text.engines import Engine
    from dsindex.text.parts import TaskReader
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer


# Settings, which are sent to every worker once.


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """The settings that the shards of every kind of job have; sent to every worker once."""

    quarantine: bool
    """Whether bad records are quarantined; otherwise the first one is an error."""
    max_record_bytes: int | None
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
    empty_documents: Literal["keep", "eod"] = "keep"
    """What a document without tokens becomes in the layout of Megatron, as `lay_out_documents` says."""
    layout: Literal["megatron", "pbin"]
    """`megatron` keeps empty documents and always appends EOD; `pbin` drops them and never repeats a final EOD."""
    samples: tuple[Sample, ...] = (ALL_RECORDS,)
    """The records to keep; each sample becomes a dataset of every key."""


# The files of one attempt at a shard.

SHARDS_PER_FOLDER = 10_000


class Attempt(contextlib.ExitStack):
    """Context manager of one attempt's files, under names that are used once: complete when it ends well, else absent.

    Args:
        work_dir: The marked work folder, on a disk or in a bucket.
        shard: Number of the shard, for the name.
    """

    def __init__(self, work_dir: str, shard: int) -> None:
        super().__init__()
        require_marked(work_dir)  # a late attempt must not bring back what the driver removed
        self._work_dir = work_dir
        self._stem = f"{SHARDS_FOLDER}/{shard // SHARDS_PER_FOLDER:04d}/{shard:08d}.{secrets.token_hex(8)}"
        folder = os.path.dirname(joined(work_dir, self._stem))
        self.folder = tempfile.gettempdir() if holds_writes(work_dir) else folder
        """Where temporary files go."""
        self._quarantine: ShardFile | None = None

    def open(self, suffix: str) -> ShardFile:
        """Open another file of this attempt.

        Raises:
            OutputError: If the work folder refuses.
        """
        name = f"{self._stem}.{suffix}"
        return ShardFile(name, self.enter_context(open_output(joined(self._work_dir, name))))

    def set_aside(self, record: BadRecord, task: ShardTask, settings: WorkSettings) -> None:
        """Write a bad record to the shard's quarantine, whose inputs and lines count from those of the shard.

        Raises:
            BadRecordError: If bad records are not quarantined.
            OutputError: If the work folder refuses.
        """
        if not settings.quarantine:
            if not task.files:
                place, is_row = (task.begin, record.line), task.form.is_table
                raise BadRecordError(task.path, record.offset, record.reason, part=place, is_row=is_row)
            file = task.files[record.file]
            is_row = file.form.is_table
            raise BadRecordError(file.path, record.offset, record.reason, record.line + 1, is_row=is_row)
        self._quarantine = self._quarantine or self.open("quarantine")
        entry: dict[str, Any] = {
            "file": record.file,
            "offset": record.offset,
            "line": record.line,
            "reason": record.reason,
        }
        try:
            entry["raw"] = record.line_bytes.decode("utf-8")
        except UnicodeDecodeError:
            entry["raw_base64"] = base64.b64encode(record.line_bytes).decode("ascii")
        self._quarantine.write(encode_json(entry, newline=True))

    def quarantine(self) -> StoredFile | None:
        """Return the file of bad records, if there are any."""
        return None if self._quarantine is None else self._quarantine.stored()


class ShardFile:
    """One file of an attempt, open for sequential writing."""

    def __init__(self, name: str, writer: DigestingWriter) -> None:
        self._name = name
        self.writer = writer
        self.write = writer.write

    def stored(self) -> StoredFile:
        """Return name, size and digest of what was written."""
        return self.writer.as_stored(self._name)


class PartWriter:
    """The `.bin` and `.idx` of a key's part, to which documents are appended.

    Args:
        attempt: The attempt whose files they are.
        key: The key.
        dtype: Token type of the `.bin`.
        name: What the files are named, by default after the key.

    Raises:
        OutputError: If the work folder refuses.
    """

    def __init__(self, attempt: Attempt, key: str, dtype: np.dtype[Any], *, name: str | None = None) -> None:
        self._key = key
        self._bin, self._idx = (attempt.open(f"{name or key}.{suffix}") for suffix in ("bin", "idx"))
        self._folder = attempt.folder
        self._index = IndexBuilder(dtype.newbyteorder("<"), folder=self._folder)
        attempt.callback(self._index.close)

    def add(
        self,
        tokens: NDArray[Any],
        sequence_lengths: NDArray[np.integer[Any]],
        sequences_per_document: NDArray[np.integer[Any]],
    ) -> None:
        """Append documents; the tokens must have the type on disk.

        Raises:
            OutputError: If a disk is full.
        """
        self._bin.write(tokens.view(np.uint8).data)
        with writing(self._folder):
            self._index.add_documents(sequence_lengths, sequences_per_document)

    def result(self, **own: Any) -> KeyResult:  # noqa: ANN401 - fields of KeyResult
        """Write the index and return the receipt of the part.

        Raises:
            OutputError: If a disk is full.
        """
        index = self._index
        with writing(self._folder):
            index.write(self._idx.writer)
        return KeyResult(
            key=self._key,
            num_sequences=index.num_sequences,
            num_documents=index.num_documents,
            num_tokens=index.num_tokens,
            bin=self._bin.stored(),
            idx=self._idx.stored(),
            **own,
        )


def provenance_rows(
    offsets: NDArray[np.int64], lines: NDArray[np.int64], inputs: NDArray[np.int64] | int = 0
) -> memoryview:
    """Return rows of a shard's provenance.

    Args:
        offsets: Byte offset of each record's line in its input, shape [records].
        lines: Number of the line, counted from 0 at the start of the range; same shape.
        inputs: Number of the input, counted from the shard's first.
    """
    rows = np.empty(len(offsets), ROW)
    rows["input"], rows["offset"], rows["line"] = inputs, offsets, lines
    return rows.view(np.uint8).data


def check_unchanged(task: ShardTask) -> None:
    """Compare an input's size and time with the plan.

    Raises:
        InputError: If it is missing or has changed.
    """
    if not task.files:  # else each is compared as it is read
        require_unchanged(task.path, task.input_size_bytes, task.input_version)


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
    from dsindex.text.parts import TaskReader

    reader = TaskReader(task.files or task.part, settings.selection, max_record_bytes=settings.max_record_bytes)
    check_unchanged(task)
    with Attempt(settings.work_dir, task.shard) as attempt:
        shard = _Shard(attempt, task, settings)
        for block in reader.blocks():
            shard.add(*encode_block(sample_records(block, settings.samples), settings.tokenizer, settings.engine))
        check_unchanged(task)
        return shard.receipt(reader)


class _Shard:
    """Writes and counts the records of one attempt at a shard."""

    def __init__(self, attempt: Attempt, task: ShardTask, settings: ShardSettings) -> None:
        self._attempt = attempt
        self._task = task
        self._settings = settings
        self._bad = np.zeros(len(task.inputs), np.int64)
        self._samples = [_SampleWriter(sample, attempt, settings, len(self._bad)) for sample in settings.samples]

    def add(self, block: RecordBlock, encoded: Mapping[str, TokenBatch]) -> None:
        """Append encoded records to the datasets to which they go."""
        for record in block.bad:
            self._attempt.set_aside(record, self._task, self._settings)
            self._bad[record.file] += 1
        if len(self._samples) == 1:
            self._samples[0].add(block, encoded)
            return
        hashes = hash_records(block)
        for sample in self._samples:
            kept = sample.holds(hashes)
            places = np.flatnonzero(kept)
            sample.add(keep_records(block, kept), {key: batch.take(places) for key, batch in encoded.items()})

    def receipt(self, reader: TaskReader) -> ShardResult:
        """Return the receipt, once all records were read."""
        is_text = self._settings.selection.vocabulary_size is None
        lines, blank, text_bytes = (reader.counts[name].tolist() for name in ("lines", "blank", "text_bytes"))
        kept = zip(*(sample.kept.tolist() for sample in self._samples), strict=True)
        tokenized = np.concatenate([sample.tokenized for sample in self._samples]).T.tolist()
        columns = lines, blank, self._bad.tolist(), text_bytes, reader.fingerprints, kept
        return ShardResult(
            files=tuple(map(FileCounts, *columns, map(tuple, tokenized if is_text else [[]] * len(lines)))),
            keys=tuple(part for sample in self._samples for part in sample.results()),
            quarantine=self._attempt.quarantine(),
        )


class _SampleWriter:
    """The datasets of one sample: a part for each key, and the provenance that they share."""

    def __init__(self, sample: Sample, attempt: Attempt, settings: ShardSettings, num_files: int) -> None:
        self.holds = sample.holds
        self._keys = settings.keys
        dtype, prefix = np.dtype(settings.dtype), sample.prefix
        self._parts = [
            PartWriter(attempt, f"{prefix}{key}", dtype, name=f"{prefix}{number}")
            for number, key in enumerate(settings.keys)
        ]
        self._rows = attempt.open(f"{prefix}.prov".lstrip(".")) if settings.provenance else None
        self._facts: list[Counter[str]] = [Counter() for _ in settings.keys]
        lay_out = lay_out_pbin_documents
        if settings.layout == "megatron":
            lay_out = partial(lay_out_documents, empty_documents=settings.empty_documents)
        vocabulary_size = settings.tokenizer.vocabulary_size
        self._lay_out = partial(lay_out, dtype=dtype, eod_id=settings.eod_id, vocabulary_size=vocabulary_size)
        self.kept = np.zeros(num_files, np.int64)
        """Records of each file."""
        self.tokenized = np.zeros((len(settings.keys), num_files), np.int64)
        """Size of each key's texts in each file."""

    def add(self, block: RecordBlock, encoded: Mapping[str, TokenBatch]) -> None:
        """Append encoded records, all of which belong to the sample."""
        files = np.zeros(len(block.offsets), np.int64) if block.files is None else block.files
        self.kept += np.bincount(files, minlength=len(self.kept))
        is_document = None
        for number, (key, part) in enumerate(zip(self._keys, self._parts, strict=True)):
            batch = encoded[key]
            if batch.text_bytes and block.files is None:
                self.tokenized[number] += batch.text_bytes
            else:
                sizes = block.columns[key].sizes()
                self.tokenized[number] += np.bincount(files, sizes, len(self.kept)).astype(np.int64)
            documents = self._lay_out(batch)
            part.add(documents.tokens, documents.sequence_lengths, documents.sequences_per_document)
            self._facts[number].update(num_empty_documents=documents.num_empty, eod_in_text=documents.eod_in_text)
            is_document = documents.is_document
        if self._rows is not None:
            kept = slice(None) if is_document is None else is_document  # None but in a layout with one key
            self._rows.write(provenance_rows(block.offsets[kept], block.lines[kept], files[kept]))

    def results(self) -> list[KeyResult]:
        """Return the receipts of the parts."""
        rows = None if self._rows is None else self._rows.stored()
        return [part.result(provenance=rows, **facts) for part, facts in zip(self._parts, self._facts, strict=True)]
