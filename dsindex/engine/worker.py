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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import xxhash

from dsindex.datasets.provenance import provenance_rows
from dsindex.engine.tasks import FileResult, KeyResult, ShardResult
from dsindex.engine.work_folder import require_marked
from dsindex.errors import BadRecordError, FormatError, InputError, OutputError
from dsindex.formats.mmididx import IndexBuilder
from dsindex.json_text import decode_json, encode_json
from dsindex.store.reading import digest_file, open_stored, require_unchanged
from dsindex.store.storage import (
    BUFFER_BYTES,
    DigestingWriter,
    StoredFile,
    holds_writes,
    make_folder,
    output_error,
)
from dsindex.store.store import open_output, store_of
from dsindex.store.urls import joined
from dsindex.text.blocks import ALL_RECORDS, Sample, TextColumn, hash_records, sample_records, text_sizes
from dsindex.text.layout import LaidOutDocuments, lay_out_documents, lay_out_pbin_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.tasks import ShardTask
    from dsindex.text.blocks import BadRecord, RecordBlock
    from dsindex.text.encoders import TokenBatch
    from dsindex.text.engines import Engine
    from dsindex.text.parts import TaskReader
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer


# Quarantined records: `<prefix>.quarantine.jsonl.zst`, one JSON line each, in the order of the inputs.
#
#     file     the input, as it was given
#     offset   byte offset of the line in that input's (unpacked) text; in a table, the row group
#     line     1-based number of the line, or of the row, in that input
#     reason   why it is bad
#     raw      the line itself if it is UTF-8, otherwise
#     raw_base64
#
# Of a line longer than --max-record-size, the first bytes are stored: at most that many, and at most 1 MiB. Shards
# write the same format uncompressed, with lines counted from 0 at the start of the range. The compressor gets chunks of
# a fixed size, so the file does not depend on how the build was cut into shards.

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardQuarantine:
    """The `.quarantine` of one shard, and the inputs and first line that its lines refer to."""

    path: str
    files: Sequence[str]
    """The paths of its inputs as the user gave them."""
    first_line: int
    """1-based line number of the shard's first line in its input."""
    first_offset: int = 0
    """Offset of the shard's first line, if its records' offsets count from there."""
    digest: str = ""
    """What `digest_file` returned for the file when it was written."""


def quarantine_line(path: str, record: BadRecord) -> bytes:
    """Return one line of a shard's quarantine file."""
    entry: dict[str, Any] = {
        "file": path,
        "offset": record.offset,
        "line": record.line,
        "reason": record.reason,
    }
    if record.file:
        entry["number"] = record.file
    try:
        entry["raw"] = record.line_bytes.decode("utf-8")
    except UnicodeDecodeError:
        entry["raw_base64"] = base64.b64encode(record.line_bytes).decode("ascii")
    return encode_json(entry, newline=True)


def write_quarantine(file: DigestingWriter, shards: Iterable[ShardQuarantine]) -> None:
    """Write the quarantined records of all shards, in order, compressed, with one line and one chunk in memory.

    Raises:
        InputError: If a shard's file is missing.
        FormatError: If a shard's file is damaged.
    """
    import pyarrow as pa

    compressor = pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), "zstd")
    with compressor:
        pending = bytearray()
        for shard in shards:
            for line in _renumbered(shard):
                pending += line
                while len(pending) >= CHUNK_BYTES:
                    compressor.write(bytes(pending[:CHUNK_BYTES]))
                    del pending[:CHUNK_BYTES]
        compressor.write(bytes(pending))


def first_entry(shards: Iterable[ShardQuarantine]) -> dict[str, Any]:
    """Return the first quarantined record of all shards, of which there must be one.

    Raises:
        InputError: If a shard's file is missing.
        FormatError: If a shard's file is damaged.
    """
    entry: dict[str, Any] = decode_json(next(line for shard in shards for line in _renumbered(shard)))
    return entry


def _renumbered(shard: ShardQuarantine) -> Iterator[bytes]:
    """Yield a shard's lines with the input's path as given and line numbers that count from the start of the input."""
    try:
        with open_stored(shard.path) as file:
            for line in file:
                entry = decode_json(line)
                entry["file"] = shard.files[entry.pop("number", 0)]
                entry["line"] += shard.first_line
                entry["offset"] += shard.first_offset
                yield encode_json(entry, newline=True)
    except OSError as error:
        msg = f"{shard.path}: cannot be read ({error.strerror}); run the same command again to rebuild the shard"
        raise InputError(msg) from error
    except (ValueError, TypeError, LookupError) as error:
        msg = f"{shard.path}: expected quarantined records ({error}); run the same command again to rebuild the shard"
        raise FormatError(msg) from error


# Settings, which are sent to every worker once.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """The settings that all shards of a build share; sent to every worker once."""

    tokenizer: Tokenizer
    engine: Engine
    keys: tuple[str, ...]
    selection: Selection
    """The records to keep and the values to read; the keys are its outputs."""
    dtype: str
    """Token type on disk."""
    eod_id: int | None
    """Appended to every document that has tokens; None to append nothing."""
    empty_documents: Literal["keep", "eod"] = "keep"
    """What a document without tokens becomes in the layout of Megatron, as `lay_out_documents` says."""
    layout: Literal["megatron", "pbin"]
    """`megatron` keeps empty documents and always appends EOD; `pbin` drops them and never repeats a final EOD."""
    quarantine: bool
    """Whether bad records are quarantined; otherwise the first one is an error."""
    max_record_bytes: int | None
    provenance: bool
    work_dir: str
    """The work folder, which holds the files of attempts."""
    samples: tuple[Sample, ...] = (ALL_RECORDS,)
    """The records to keep; each sample becomes a dataset of every key."""


def read_file_results(stored: StoredFile, work_dir: str) -> list[FileResult]:
    """Read the counts of a shard's files, in order.

    Raises:
        InputError: If they cannot be read.
        FormatError: If they are damaged.
    """
    path = joined(work_dir, stored.name)
    require_written(path, stored.digest)
    remedy = "run the same command again to rebuild the shard"
    try:
        with open_stored(path) as file:
            rows = decode_json(file.read())
        return [
            FileResult(
                num_lines=lines,
                num_blank=blank,
                num_records=kept,
                num_quarantined=quarantined,
                num_filtered=lines - blank - kept - quarantined,
                kept_of_groups=tuple(kept_of_groups),
                text_bytes=text_bytes,
                tokenized_bytes=tuple(tokenized_bytes),
                input_fingerprint=fingerprint,
            )
            for (lines, blank, kept, quarantined, text_bytes), fingerprint, kept_of_groups, tokenized_bytes in rows
        ]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: expected the counts of a shard's files ({error}); {remedy}") from error


# The files of one attempt at a task: written under names that are used once, synced and digested, removed if it fails.

SHARDS_PER_FOLDER = 10_000


def shard_folder(shard: int) -> str:
    """Return the folder of a shard's attempts, relative to the work folder.

    >>> shard_folder(42137)
    'shards/0004'
    """
    return f"shards/{shard // SHARDS_PER_FOLDER:04d}"


class Attempt:
    """Context manager for one attempt's files.

    Args:
        work_dir: The work folder, on a disk or in a bucket.
        folder: The folder for the files, relative to `work_dir`.
        name: Name of the task; the attempt makes it unique.
    """

    def __init__(self, work_dir: str, *, folder: str, name: str) -> None:
        self._work_dir = work_dir
        self._stem = f"{folder}/{name}.{secrets.token_hex(8)}"
        self._files: list[AttemptFile] = []
        self._indices: list[IndexBuilder] = []

    def __enter__(self) -> Attempt:
        require_marked(self._work_dir)  # a late attempt must not bring back what the driver removed
        if not holds_writes(self._work_dir):
            make_folder(os.path.dirname(joined(self._work_dir, self._stem)))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for index in self._indices:
            with contextlib.suppress(OSError):  # buffered data may not fit a full disk, and is not needed
                index.close()
        if kind is not None:
            for file in self._files:
                file.give_up()

    def open(self, suffix: str) -> AttemptFile:
        """Open another file of this attempt.

        Raises:
            OSError: If the file cannot be created; see `errors_named`.
        """
        file = AttemptFile(self._work_dir, f"{self._stem}.{suffix}")
        self._files.append(file)
        return file

    def open_part(self, suffix: str, dtype: np.dtype[Any]) -> PartWriter:
        """Open the `<suffix>.bin` and the `<suffix>.idx` of a part.

        Raises:
            OSError: If a file cannot be created; see `errors_named`.
        """
        folder = os.path.dirname(joined(self._work_dir, self._stem))
        index = IndexBuilder(dtype, folder=tempfile.gettempdir() if holds_writes(self._work_dir) else folder)
        self._indices.append(index)
        return PartWriter(self.open(f"{suffix}.bin"), self.open(f"{suffix}.idx"), index=index)

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn an OSError inside the block into an OutputError.

        Raises:
            OutputError: In place of an OSError.
        """
        try:
            yield
        except OSError as error:
            raise output_error(self._work_dir, error) from error


class AttemptFile:
    """One file of an attempt, open for sequential writing.

    Args:
        work_dir: The work folder.
        name: Name relative to it, which is used once.
    """

    def __init__(self, work_dir: str, name: str) -> None:
        self._name = name
        self._path = joined(work_dir, name)
        self._opened = contextlib.ExitStack()
        opened = open_output(self._path) if holds_writes(work_dir) else _new_file(self._path)
        self.writer = self._opened.enter_context(opened)

    def write(self, data: bytes | memoryview) -> None:
        """Append data."""
        self.writer.write(data)

    def finish(self) -> StoredFile:
        """Complete the file, and return its name, size and digest."""
        self._opened.close()
        return self.writer.as_stored(self._name)

    def give_up(self) -> None:
        """Remove the file; one that cannot be removed goes with the work folder."""
        with contextlib.suppress(_GivenUpError, OSError, OutputError):
            error = _GivenUpError()
            self._opened.__exit__(_GivenUpError, error, None)
        with contextlib.suppress(OSError, OutputError):
            store_of(self._path).delete([self._path])


class _GivenUpError(Exception):
    """Tells a store's writer that its file is not wanted."""


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[DigestingWriter]:
    """Open a new file for writing; it is synced when the block ends."""
    with open(path, "xb", buffering=BUFFER_BYTES) as file:
        yield DigestingWriter(file)
        file.flush()
        os.fsync(file.fileno())


class PartWriter:
    """A `.bin` and `.idx` to which documents are appended."""

    def __init__(self, bin_file: AttemptFile, idx_file: AttemptFile, *, index: IndexBuilder) -> None:
        self.index = index
        """Counts sequences, documents and tokens."""
        self._bin = bin_file
        self._idx = idx_file

    def add(
        self,
        tokens: NDArray[Any],
        sequence_lengths: NDArray[np.integer[Any]],
        sequences_per_document: NDArray[np.integer[Any]],
    ) -> None:
        """Append documents; the tokens must have the type on disk."""
        self._bin.write(tokens.data)
        self.index.add_documents(sequence_lengths, sequences_per_document)

    def finish(self) -> tuple[StoredFile, StoredFile]:
        """Write the index, sync both files and return their names, sizes and digests."""
        self.index.write(self._idx.writer)
        return self._bin.finish(), self._idx.finish()


class KeyWriter:
    """Lays out one key's tokens and writes them to a part."""

    def __init__(self, key: str, part: PartWriter, settings: ShardSettings) -> None:
        self.key = key
        self.part = part
        self._dtype = np.dtype(settings.dtype)
        self._vocabulary_size = settings.tokenizer.vocabulary_size
        self._eod_id = settings.eod_id
        self._empty_documents = settings.empty_documents
        self._layout = settings.layout
        self._empty = self._eod_in_text = self._reference_texts = 0
        self.tokenized_bytes = 0
        """Size of the texts so far, in UTF-8."""

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return self.part.index.num_tokens

    def add(self, batch: TokenBatch) -> LaidOutDocuments:
        """Append encoded texts."""
        if self._layout == "pbin":
            documents = lay_out_pbin_documents(
                batch, dtype=self._dtype, eod_id=self._eod_id, vocabulary_size=self._vocabulary_size
            )
        else:
            documents = lay_out_documents(
                batch,
                dtype=self._dtype,
                eod_id=self._eod_id,
                empty_documents=self._empty_documents,
                vocabulary_size=self._vocabulary_size,
            )
        self.part.add(documents.tokens, documents.sequence_lengths, documents.sequences_per_document)
        self._empty += documents.num_empty
        self._eod_in_text += documents.eod_in_text
        self._reference_texts += len(batch.by_reference)
        self.tokenized_bytes += batch.text_bytes
        return documents

    def result(self, bin: StoredFile, idx: StoredFile, **own: Any) -> KeyResult:  # noqa: ANN401 - fields of KeyResult
        """Return the result, given the files of the part."""
        index = self.part.index
        return KeyResult(
            num_sequences=index.num_sequences,
            num_documents=index.num_documents,
            num_tokens=index.num_tokens,
            num_empty_documents=self._empty,
            eod_in_text=self._eod_in_text,
            num_reference_texts=self._reference_texts,
            tokenized_bytes=self.tokenized_bytes,
            bin=bin,
            idx=idx,
            **own,
        )


def require_written(path: str, digest: str) -> None:
    """Compare a file of a shard with what its worker wrote; another one is removed, to be made again.

    Raises:
        OutputError: If they differ.
        InputError: If it cannot be read.
    """
    if digest_file(path) != digest:
        refuse_written(path)


def refuse_written(path: str) -> NoReturn:
    """Remove a file of a shard that has other bytes than its worker wrote, so that the next run makes it again.

    Raises:
        OutputError: Always.
    """
    store_of(path).delete([path])
    raise OutputError(
        f"{path}: expected what was written there, got other bytes, which are removed; run the same command again: "
        f"it makes what was lost; and check the disk"
    )


def check_unchanged(task: ShardTask) -> None:
    """Compare an input's size and time with the plan.

    Raises:
        InputError: If it is missing or has changed.
    """
    if not task.files:  # else each is compared as it is read
        require_unchanged(task.path, task.input_size_bytes, task.input_version)


def shard_attempt(task: ShardTask, work_dir: str) -> Attempt:
    """Return a new attempt at a shard."""
    return Attempt(work_dir, folder=shard_folder(task.shard), name=f"{task.shard:08d}")


def tokenize_shard(task: ShardTask, settings: ShardSettings) -> ShardResult:
    """Tokenize a part of the input into files under names unique to this attempt, synced to disk.

    Raises:
        BadRecordError: At the range's first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If a token id is outside the tokenizer's vocabulary, or the engine fails its audit.
        OutputError: If the work folder cannot be written.
    """
    from dsindex.text.parts import TaskReader  # loads pyarrow, only when needed

    reader = TaskReader(task.files or task.part, settings.selection, max_record_bytes=settings.max_record_bytes)
    check_unchanged(task)
    with shard_attempt(task, settings.work_dir) as attempt:
        writer = _ShardWriter(attempt, task, settings, reader)
        for block in reader.blocks():
            writer.add(sample_records(block, settings.samples))
        check_unchanged(task)
        return writer.finish()


class _SampleWriter:
    """The records of a sample: a part for each key, and where the records are from."""

    def __init__(self, sample: Sample, attempt: Attempt, settings: ShardSettings, num_files: int) -> None:
        self.sample = sample
        dtype = np.dtype(settings.dtype)
        self._parts = [attempt.open_part(f"{sample.prefix}{number}", dtype) for number, _ in enumerate(settings.keys)]
        self.keys = [KeyWriter(key, part, settings) for key, part in zip(settings.keys, self._parts, strict=True)]
        self._rows = attempt.open(f"{sample.prefix}.prov".lstrip(".")) if settings.provenance else None
        self.kept_of_files = np.zeros(num_files, np.int64)
        """Its records of each file, of several that are read together."""
        self.bytes_of_files = np.zeros((num_files, len(settings.keys)), np.int64)
        """Size of its texts of each file and key."""

    def add(
        self,
        encoded: Mapping[str, TokenBatch],
        offsets: NDArray[np.int64],
        lines: NDArray[np.int64],
        numbers: NDArray[np.int64] | None,
        sizes: Mapping[str, NDArray[np.int64]],
    ) -> None:
        """Append records.

        Args:
            encoded: Their tokens by key.
            offsets: Their offsets.
            lines: Their line numbers.
            numbers: The number of each record's file, of several that are read together.
            sizes: The sizes of their texts by key, of several files.
        """
        if numbers is not None:
            self.kept_of_files += np.bincount(numbers, minlength=len(self.kept_of_files))
            for place, key in enumerate(self.keys):
                if key.key in sizes:
                    np.add.at(self.bytes_of_files[:, place], numbers, sizes[key.key])
        for key in self.keys:
            is_document = key.add(encoded[key.key]).is_document
            if is_document is not None:  # only in a layout with one key
                offsets, lines = offsets[is_document], lines[is_document]
                numbers = None if numbers is None else numbers[is_document]
        if self._rows is not None:
            self._rows.write(provenance_rows(offsets, lines, numbers).data)

    def finish(self) -> list[KeyResult]:
        """Sync all files and return the results."""
        files = [part.finish() for part in self._parts]
        provenance = None if self._rows is None else self._rows.finish()
        return [
            key.result(*own, key=f"{self.sample.prefix}{key.key}", provenance=provenance)
            for key, own in zip(self.keys, files, strict=True)
        ]


class _ShardWriter:
    """Writes and counts the records of one attempt at a shard."""

    def __init__(self, attempt: Attempt, task: ShardTask, settings: ShardSettings, reader: TaskReader) -> None:
        self._attempt = attempt
        self._task = task
        self._reader = reader
        self._settings = settings
        self._lines = self._blank = self._records = self._quarantined = self._filtered = self._text_bytes = 0
        self._quarantine: AttemptFile | None = None
        self._bad_of_files = np.zeros(len(reader.counts), np.int64)
        with attempt.errors_named():
            self._samples = [_SampleWriter(sample, attempt, settings, len(task.files)) for sample in settings.samples]

    def add(self, block: RecordBlock) -> None:
        """Encode a block of records and append it to this attempt's files."""
        from dsindex.text.encoders import encode_block

        block, encoded = encode_block(block, self._settings.tokenizer, self._settings.engine)
        if block.bad and not self._settings.quarantine:
            raise self._bad_record(block.bad[0], num_more=len(block.bad) - 1)
        with self._attempt.errors_named():
            self._add_records(block, encoded, block.files)
            for record in block.bad:
                self._set_aside(record)
        self._lines += block.num_lines
        self._blank += block.num_blank
        self._filtered += block.num_filtered
        self._records += len(block.offsets)
        self._text_bytes += block.num_bytes

    def _add_records(
        self, block: RecordBlock, encoded: Mapping[str, TokenBatch], numbers: NDArray[np.int64] | None
    ) -> None:
        """Append a block's records to the outputs to which they go."""
        if len(self._samples) == 1:
            sizes = {} if numbers is None else _text_sizes(block)
            self._samples[0].add(encoded, block.offsets, block.lines, numbers, sizes)
            return
        hashes, sizes = hash_records(block), _text_sizes(block)
        for output in self._samples:
            records = np.flatnonzero(output.sample.holds(hashes))
            own = None if numbers is None else numbers[records]
            own_sizes = {key: each[records] for key, each in sizes.items()}
            tokens = {
                key: batch.take(records, text_bytes=int(own_sizes[key].sum()) if key in sizes else 0)
                for key, batch in encoded.items()
            }
            output.add(tokens, block.offsets[records], block.lines[records], own, own_sizes)

    def _bad_record(self, record: BadRecord, *, num_more: int) -> BadRecordError:
        task, offset, reason = self._task, record.offset, record.reason
        if task.files:
            file = task.files[record.file]
            is_row = file.form.is_table
            return BadRecordError(file.path, offset, reason, record.line + 1, is_row=is_row, num_more=num_more)
        place, is_row = (task.begin, record.line), task.form.is_table
        return BadRecordError(task.path, offset, reason, part=place, is_row=is_row, num_more=num_more)

    def _set_aside(self, record: BadRecord) -> None:
        if self._quarantine is None:
            self._quarantine = self._attempt.open("quarantine")
        self._quarantine.write(quarantine_line(self._task.path, record))
        self._quarantined += 1
        self._bad_of_files[record.file] += 1

    def finish(self) -> ShardResult:
        """Sync all files and return the result."""
        with self._attempt.errors_named():
            keys = tuple(key for sample in self._samples for key in sample.finish())
            provenance = None
            if len(self._samples) == 1:  # that of all keys
                provenance, keys = keys[0].provenance, tuple(replace(key, provenance=None) for key in keys)
            quarantine = self._quarantine.finish() if self._quarantine else None
            counts = None
            fingerprints = self._reader.fingerprints
            if self._task.files:
                file = self._attempt.open("files")
                read = self._reader.counts
                kept_of_files = sum(output.kept_of_files for output in self._samples)
                counted = [read["lines"], read["blank"], kept_of_files, self._bad_of_files, read["text_bytes"]]
                kept = [output.kept_of_files for output in self._samples if len(self._samples) != 1]
                num_bytes = [output.bytes_of_files for output in self._samples]
                rows = zip(
                    np.stack(counted, axis=1).tolist(),
                    fingerprints,
                    np.array(kept, np.int64).reshape(len(kept), len(self._task.files)).T.tolist(),
                    np.concatenate([np.empty((len(self._task.files), 0), np.int64), *num_bytes], axis=1).tolist(),
                    strict=True,
                )
                file.write(encode_json(list(rows)))
                counts = file.finish()
        return ShardResult(
            shard=self._task.shard,
            num_lines=self._lines,
            num_blank=self._blank,
            num_records=self._records,
            num_quarantined=self._quarantined,
            text_bytes=self._text_bytes,
            keys=keys,
            provenance=provenance,
            quarantine=quarantine,
            input_fingerprint=(
                xxhash.xxh3_128_hexdigest("\0".join(fingerprints).encode("utf-8", "surrogateescape"))
                if self._task.files
                else fingerprints[0]
            ),
            files=counts,
            num_filtered=self._filtered,
        )


def _text_sizes(block: RecordBlock) -> dict[str, NDArray[np.int64]]:
    """Return the size of each record's texts by key."""
    return {key: text_sizes(column) for key, column in block.columns.items() if isinstance(column, TextColumn)}
