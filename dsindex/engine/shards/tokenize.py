"""The unit of work: tokenize one byte range of one input into a partial `.bin`/`.idx` pair per key.

`tokenize_shard` runs unchanged on any executor. Every attempt writes under unique names, and the driver alone decides
which attempt counts (dsindex.engine.ledger). A worker holds a few parsed blocks, never a whole range.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import xxhash

from dsindex.datasets.provenance import provenance_rows
from dsindex.engine.shards.attempt import (
    Attempt,
    LaidOutDocuments,
    lay_out_documents,
    lay_out_pbin_documents,
    shard_folder,
)
from dsindex.errors import BadRecordError, FormatError, InputError
from dsindex.json_text import decode_json, encode_json
from dsindex.store.reading import fingerprint_input, open_stored, require_unchanged
from dsindex.store.requests import (
    RequestCounts,
    leave_slot,
    requests_so_far,
)
from dsindex.store.storage import (
    ArrowSink,
    StoredFile,
    StoredSection,
)
from dsindex.store.urls import joined, pin_object
from dsindex.text.forms import JSON_LINES, InputForm, SmallFile, TextPart
from dsindex.text.record_blocks import TextColumn, text_sizes
from dsindex.text.sampling import ALL_RECORDS, Sample, hash_records, sample_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.engine.shards.attempt import AttemptFile, PartWriter
    from dsindex.engine.shards.places import TokenPlaces
    from dsindex.store.storage import DigestingWriter
    from dsindex.text.encoders import EncodedColumn, TokenBatch
    from dsindex.text.engines import Engine
    from dsindex.text.record_blocks import BadRecord, RecordBlock
    from dsindex.text.selection import Selection
    from dsindex.text.small_files import SmallFiles
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

    compressor = pa.CompressedOutputStream(pa.PythonFile(ArrowSink(file), mode="w"), "zstd")
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


# What a worker is sent: the settings of all shards once, and a task per shard; and what it sends back.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """The settings that all shards of a build share; sent to every worker once."""

    tokenizer: Tokenizer
    engine: Engine
    keys: tuple[str, ...]
    selection: Selection | None = None
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
    places: TokenPlaces | None = None
    """Where shards write tokens in place, if they are made in threads of the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedText:
    """The text of a part that the driver unpacked for it."""

    path: str
    """A plain file with the part's lines."""
    size_bytes: int
    decoder: str
    """Name and version of the decompressor, on which it depends where the text of a part ends."""
    error: str | None = None
    """Why the input could not be unpacked beyond this text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """A part of an input: the lines that begin in the byte range [begin, end), or row groups of a table."""

    shard: int
    """Number in plan order, over all inputs."""
    input: int
    """Number of the input in plan order."""
    path: str
    begin: int
    end: int
    input_size_bytes: int
    input_version: str
    """Modification time in ns when the job was planned."""
    form: InputForm = JSON_LINES
    is_of_stream: bool = False
    """Whether the part can only be decoded after all parts before it; then `unpacked` has its text."""
    stored_bytes: int = 0
    """Size of its part of the file, for progress."""
    unpacked: UnpackedText | None = None
    files: tuple[SmallFile, ...] = ()
    """Consecutive inputs that are read as a whole, of which `input` and `path` are the first; empty for a part of one.

    Sizes are those of all, and the version is a digest of theirs.
    """

    @property
    def inputs(self) -> range:
        """Numbers of its inputs in plan order."""
        return range(self.input, self.input + max(1, len(self.files)))

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of its inputs."""
        return tuple(file.path for file in self.files) or (self.path,)

    @property
    def place(self) -> str:
        """What it reads, for messages."""
        if self.files:
            return f"{len(self.files):,} files from {self.path} to {self.files[-1].path}"
        return f"{self.path}, {'row groups' if self.form.is_table else 'bytes'} {self.begin} to {self.end}"

    @property
    def text_bytes(self) -> int | None:
        """Size of its text, as far as it is known before it is read."""
        if self.unpacked is not None:
            return self.unpacked.size_bytes
        return self.end - self.begin if self.form.container == "plain" and not self.form.is_table else None

    @property
    def part(self) -> TextPart:
        """The part of a file to read."""
        if self.unpacked is not None:
            form = InputForm(format=self.form.format)
            return TextPart(
                path=self.unpacked.path,
                begin=0,
                end=self.unpacked.size_bytes,
                form=form,
                expected_size=self.unpacked.size_bytes,
                is_file_start=self.begin == 0,
                name=self.path,
            )
        return TextPart(
            path=self.path,
            begin=self.begin,
            end=self.end,
            form=self.form,
            expected_size=self.input_size_bytes,
            is_file_start=self.begin == 0,
        )


def task_key(task: ShardTask) -> str:
    """Return a shard's key, made of what it reads: it stays the same when inputs are added."""
    return f"{task.path}\0{task.input_size_bytes}\0{task.input_version}\0{task.begin}\0{task.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """How earlier runs cut their inputs, so that their shards are found again wherever the inputs are now."""

    places: Mapping[tuple[str, int, str], int] = field(default_factory=dict)
    """Input → its place in the run that cut it last."""
    shards: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """Key of a committed shard that begins where its first input does → the path of that one, and the size of all."""


NO_CUTS = Cuts()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyResult:
    """One key's part of a shard."""

    key: str
    num_sequences: int
    num_documents: int
    num_tokens: int
    num_empty_documents: int
    """Documents whose texts have no tokens; they keep a boundary and have no sequence, or one of EOD alone."""
    eod_in_text: int
    """Tokens equal to EOD that came from the text itself."""
    bin: StoredSection | StoredFile
    """A section if its tokens are in place in the token file of all shards."""
    idx: StoredFile
    provenance: StoredFile | None = None
    """Provenance of this key's documents if they differ from those of the other keys."""
    num_reference_texts: int = 0
    """Texts that `tokenizers` encoded because gigatoken, the engine in use, may differ on them."""
    tokenized_bytes: int | None = None
    """Size of the texts that were tokenized, in UTF-8; None in shards of versions that did not count it."""
    is_aligned: bool = False
    """Whether the part holds a value for each token of another key, such as a loss mask, instead of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """The result of one attempt at a shard: small, and all that the driver needs."""

    shard: int
    num_lines: int
    num_blank: int
    num_records: int
    """Records kept."""
    num_quarantined: int
    text_bytes: int = 0
    """Size of its lines in the unpacked text."""
    keys: tuple[KeyResult, ...]
    provenance: StoredFile | None
    quarantine: StoredFile | None
    input_fingerprint: str | None
    """Fingerprint of the whole input when this shard was read, or of all its files."""
    files: StoredFile | None = None
    """The counts and the fingerprint of each file, as JSON, if the shard reads several."""
    num_filtered: int = 0
    """Records that `--where` or a sample leaves out."""
    decoder: str | None = None
    """The decompressor of a part of a stream; with another one, the part might end elsewhere."""
    counts: tuple[tuple[str, int], ...] = ()
    """Further named counts of a kind of shard, to be added up over shards."""
    requests: RequestCounts | None = None
    """The requests to object stores that this process has made so far; for the driver, and not recorded."""

    def find_part(self, key: str) -> KeyResult:
        """Return the part of a key."""
        return next(part for part in self.keys if part.key == key)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The counts of one of several files of a shard, named as those of a shard."""

    num_lines: int
    num_blank: int
    num_records: int
    num_quarantined: int
    num_filtered: int
    kept_of_groups: tuple[int, ...]
    """Records kept in each sample; () if there is one."""
    text_bytes: int
    tokenized_bytes: tuple[int, ...] | None
    """Of each key; None in shards of versions that did not count it."""
    input_fingerprint: str


Counts = TypeVar("Counts", ShardResult, FileResult)


def keep_only(counts: Counts, num_kept: int) -> Counts:
    """Return the counts with all but `num_kept` of their records filtered."""
    return replace(counts, num_records=num_kept, num_filtered=counts.num_filtered + counts.num_records - num_kept)


def read_file_results(stored: StoredFile, work_dir: str) -> list[FileResult]:
    """Read the counts of a shard's files, in order.

    Raises:
        InputError: If they cannot be read.
        FormatError: If they are damaged.
    """
    path = pin_object(joined(work_dir, stored.name), stored.size_bytes)
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
                tokenized_bytes=tuple(*tokenized_bytes) if tokenized_bytes else None,
                input_fingerprint=fingerprint,
            )
            for (lines, blank, kept, quarantined, text_bytes), fingerprint, kept_of_groups, *tokenized_bytes in rows
        ]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: expected the counts of a shard's files ({error}); {remedy}") from error


# Lay out the tokens of one key of a shard, and write them to its part.


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

    def add(self, batch: TokenBatch, texts_per_record: NDArray[np.int64] | None) -> LaidOutDocuments:
        """Append encoded texts; the number of texts of each record is None if each has one."""
        if self._layout == "pbin":
            documents = lay_out_pbin_documents(
                batch, dtype=self._dtype, eod_id=self._eod_id, vocabulary_size=self._vocabulary_size
            )
        else:
            documents = lay_out_documents(
                batch,
                texts_per_record,
                dtype=self._dtype,
                eod_id=self._eod_id,
                empty_documents=self._empty_documents,
                vocabulary_size=self._vocabulary_size,
            )
        self.part.add(documents.tokens, documents.sequence_lengths, documents.sequences_per_document)
        self._empty += documents.num_empty
        self._eod_in_text += documents.eod_in_text
        self._reference_texts += batch.num_reference_texts
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


# Whether the input of a shard is still the one of the plan.


def check_unchanged(task: ShardTask) -> None:
    """Compare an input's size and time with the plan.

    Raises:
        InputError: If it is missing or has changed.
    """
    if not task.files:  # else each is compared as it is read
        require_unchanged(task.path, task.input_size_bytes, task.input_version)


def fingerprint_inputs(paths: Sequence[str]) -> str:
    """Return the fingerprint of the inputs of a shard.

    Raises:
        InputError: If one cannot be read.
    """
    if len(paths) == 1:
        return fingerprint_input(paths[0])
    return _join_fingerprints(map(fingerprint_input, paths))


def _join_fingerprints(fingerprints: Iterable[str]) -> str:
    return xxhash.xxh3_128_hexdigest("\0".join(fingerprints).encode("utf-8", "surrogateescape"))


def require_unpacked(task: ShardTask) -> None:
    """Refuse a part whose text is incomplete; its records so far were read, so an earlier bad record goes first.

    Raises:
        InputError: If its input could not be unpacked.
    """
    if task.unpacked is not None and task.unpacked.error is not None:
        raise InputError(task.unpacked.error)


def tokenize_shard(task: ShardTask, settings: ShardSettings) -> ShardResult:
    """Tokenize a byte range into files under names unique to this attempt, synced to disk.

    Raises:
        BadRecordError: At the range's first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If a token id is outside the tokenizer's vocabulary, or the engine fails its audit.
        OutputError: If the work folder cannot be written.
    """
    from dsindex.text.parts import read_part  # loads pyarrow, only when needed
    from dsindex.text.small_files import SmallFiles

    reading: dict[str, Any] = {
        "keys": settings.keys,
        "selection": settings.selection,
        "max_record_bytes": settings.max_record_bytes,
    }
    files = SmallFiles(task.files, **reading) if task.files else None
    check_unchanged(task)
    with shard_attempt(task, settings.work_dir, settings.places) as attempt:
        writer = _ShardWriter(attempt, task, settings, files)
        for block in read_part(task.part, **reading) if files is None else files.blocks():
            writer.add(sample_records(block, settings.samples))
        check_unchanged(task)
        require_unpacked(task)
        result = writer.finish()
        attempt.commit()
    return replace(result, requests=requests_so_far(task.path, settings.work_dir))


def shard_attempt(task: ShardTask, work_dir: str, places: TokenPlaces | None = None) -> Attempt:
    """Return a new attempt at a shard, which writes tokens in place if it can."""
    claim = None if places is None else partial(places.claim, task.shard)
    return Attempt(work_dir, folder=shard_folder(task.shard), name=f"{task.shard:08d}", claim=claim)


class _SampleWriter:
    """The records of a sample: a part for each key, and where the records are from."""

    def __init__(self, sample: Sample, attempt: Attempt, settings: ShardSettings, num_files: int) -> None:
        self.sample = sample
        dtype = np.dtype(settings.dtype)
        self._parts = [
            attempt.open_part(f"{sample.prefix}{number}", dtype, key=f"{sample.prefix}{key}")
            for number, key in enumerate(settings.keys)
        ]
        self.keys = [KeyWriter(key, part, settings) for key, part in zip(settings.keys, self._parts, strict=True)]
        self._rows = attempt.open(f"{sample.prefix}.prov".lstrip(".")) if settings.provenance else None
        self.kept_of_files = np.zeros(num_files, np.int64)
        """Its records of each file, of several that are read together."""
        self.bytes_of_files = np.zeros((num_files, len(settings.keys)), np.int64)
        """Size of its texts of each file and key."""

    def add(
        self,
        encoded: Mapping[str, EncodedColumn],
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
            sizes: The sizes of their texts by key.
        """
        if numbers is not None:
            self.kept_of_files += np.bincount(numbers, minlength=len(self.kept_of_files))
        for place, key in enumerate(self.keys):
            if key.key in sizes:
                key.tokenized_bytes += int(sizes[key.key].sum())
                if numbers is not None:
                    np.add.at(self.bytes_of_files[:, place], numbers, sizes[key.key])
        for key in self.keys:
            is_document = key.add(*encoded[key.key]).is_document
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

    def __init__(
        self, attempt: Attempt, task: ShardTask, settings: ShardSettings, files: SmallFiles | None = None
    ) -> None:
        self._attempt = attempt
        self._task = task
        self._files = files
        self._settings = settings
        self._lines = self._blank = self._records = self._quarantined = self._filtered = self._text_bytes = 0
        self._quarantine: AttemptFile | None = None
        with attempt.errors_named():
            self._samples = [_SampleWriter(sample, attempt, settings, len(task.files)) for sample in settings.samples]

    @property
    def so_far(self) -> tuple[int, int, int]:
        """Bytes of text, documents and tokens so far."""
        return self._text_bytes, self._records, sum(key.num_tokens for sample in self._samples for key in sample.keys)

    def add(self, block: RecordBlock) -> None:
        """Encode a block of records and append it to this attempt's files."""
        from dsindex.text.encoders import encode_block

        block, encoded = encode_block(block, self._settings.tokenizer, self._settings.engine)
        numbers = None
        if self._files is not None:
            block, numbers = self._files.place(block)
        if block.bad and not self._settings.quarantine:
            raise self._bad_record(block.bad[0], num_more=len(block.bad) - 1)
        with self._attempt.errors_named():
            self._add_records(block, encoded, numbers)
            for record in block.bad:
                self._set_aside(record)
        self._lines += block.num_lines
        self._blank += block.num_blank
        self._filtered += block.num_filtered
        self._records += len(block.offsets)
        self._text_bytes += block.num_bytes

    def _add_records(
        self, block: RecordBlock, encoded: Mapping[str, EncodedColumn], numbers: NDArray[np.int64] | None
    ) -> None:
        """Append a block's records to the outputs to which they go."""
        from dsindex.text.encoders import split_encoded

        columns = {key: column for key, column in block.columns.items() if isinstance(column, TextColumn)}
        sizes = {key: text_sizes(column) for key, column in columns.items()}
        if len(self._samples) == 1:
            self._samples[0].add(encoded, block.offsets, block.lines, numbers, sizes)
            return
        hashes = hash_records(block)
        groups = [np.flatnonzero(output.sample.holds(hashes)) for output in self._samples]
        split = {key: split_encoded(column, groups) for key, column in encoded.items()}
        for at, (output, records) in enumerate(zip(self._samples, groups, strict=True)):
            own = None if numbers is None else numbers[records]
            tokens = {key: parts[at] for key, parts in split.items()}
            own_sizes = {key: each[records] for key, each in sizes.items()}
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

    def finish(self) -> ShardResult:
        """Sync all files and return the result."""
        with self._attempt.errors_named():
            self._attempt.tell_sizes()
            leave_slot()  # the rest waits for the disk, and for the shards before this one
            keys = tuple(key for sample in self._samples for key in sample.finish())
            provenance = None
            if len(self._samples) == 1:  # that of all keys
                provenance, keys = keys[0].provenance, tuple(replace(key, provenance=None) for key in keys)
            quarantine = self._quarantine.finish() if self._quarantine else None
            counts = None
            if self._files is not None:
                file = self._attempt.open("files")
                kept = [output.kept_of_files for output in self._samples if len(self._samples) != 1]
                num_bytes = [output.bytes_of_files for output in self._samples]
                rows = zip(
                    self._files.counts.tolist(),
                    self._files.fingerprints,
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
                fingerprint_input(self._task.path)
                if self._files is None
                else _join_fingerprints(self._files.fingerprints)
            ),
            files=counts,
            decoder=None if self._task.unpacked is None else self._task.unpacked.decoder,
            num_filtered=self._filtered,
        )
