"""The unit of work: tokenize one byte range of one input into a partial `.bin`/`.idx` pair per key.

`tokenize_shard` runs unchanged on any executor. Every attempt writes under unique names, and the driver alone decides
which attempt counts (workflows.state.ledger). A worker holds a few parsed blocks, never a whole range.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.errors import BadRecordError
from dsindex.objects.requests import request_counts
from dsindex.objects.urls import is_url
from dsindex.shards.attempt import Attempt, shard_folder
from dsindex.shards.inputs import check_unchanged, fingerprint_input, require_unpacked
from dsindex.shards.key_writer import KeyWriter
from dsindex.shards.provenance import provenance_rows
from dsindex.shards.quarantine import quarantine_line
from dsindex.shards.reporting import report
from dsindex.shards.tasks import ShardResult, ShardTask
from dsindex.text.record_blocks import TextColumn

if TYPE_CHECKING:
    from dsindex.shards.attempt import AttemptFile
    from dsindex.shards.tasks import ShardSettings
    from dsindex.text.record_blocks import BadRecord, RecordBlock


def tokenize_shard(task: ShardTask, settings: ShardSettings) -> ShardResult:
    """Tokenize a byte range into files under names unique to this attempt, synced to disk.

    Raises:
        BadRecordError: At the range's first bad record, unless bad records are quarantined.
        RecordLimitError: At the first record for which the pattern takes too much time or memory.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If a token id is outside the tokenizer's vocabulary, or the engine fails its audit.
        OutputError: If the work folder cannot be written.
    """
    from dsindex.text.parts import read_part  # loads pyarrow, only when needed
    from dsindex.text.sampling import sample_records

    check_unchanged(task)
    shares = tuple(share for share in (settings.sample, task.share) if share is not None)
    with shard_attempt(task, settings.work_dir) as attempt:
        writer = _ShardWriter(attempt, task, settings)
        for block in read_part(
            task.part,
            keys=settings.keys,
            pattern=settings.pattern,
            selection=settings.selection,
            max_record_bytes=settings.max_record_bytes,
        ):
            writer.add(sample_records(block, shares) if shares else block)
            report(*writer.so_far)
        check_unchanged(task)
        require_unpacked(task)
        result = writer.finish()
        attempt.commit()
    asked = request_counts() if is_url(task.path) or is_url(settings.work_dir) else None
    return replace(result, requests=asked)


def shard_attempt(task: ShardTask, work_dir: str) -> Attempt:
    """Return a new attempt at a shard."""
    return Attempt(work_dir, folder=shard_folder(task.shard), name=f"{task.shard:08d}")


class _ShardWriter:
    """Writes and counts the records of one attempt at a shard."""

    def __init__(self, attempt: Attempt, task: ShardTask, settings: ShardSettings) -> None:
        self._attempt = attempt
        self._task = task
        self._settings = settings
        self._lines = self._blank = self._records = self._quarantined = self._filtered = self._text_bytes = 0
        self._chosen: list[str] = []
        self._audited = 0
        """Bytes of text from which `_chosen` was drawn, where offsets do not say it."""
        self._quarantine: AttemptFile | None = None
        with attempt.errors_named():
            dtype = np.dtype(settings.dtype)
            self._keys = [
                KeyWriter(key, attempt.open_part(str(number), dtype), settings)
                for number, key in enumerate(settings.keys)
            ]
            self._provenance = attempt.open("prov") if settings.provenance else None

    @property
    def so_far(self) -> tuple[int, int, int]:
        """Bytes of text, documents and tokens so far."""
        return self._text_bytes, self._records, sum(key.num_tokens for key in self._keys)

    def add(self, block: RecordBlock) -> None:
        """Encode a block of records and append it to this attempt's files."""
        from dsindex.text.encoders import encode_column

        if block.bad and not self._settings.quarantine:
            self._audit()  # errors in the text before the bad record go first
            first = block.bad[0]
            place, is_row = (self._task.begin, first.line), self._task.form.is_table
            raise BadRecordError(self._task.path, first.offset, first.reason, part=place, is_row=is_row)
        offsets, lines = block.offsets, block.lines
        with self._attempt.errors_named():
            for key in self._keys:
                column = block.columns[key.key]
                if isinstance(column, TextColumn):
                    self._choose_audit(block, column)
                batch, per_record = encode_column(column, self._settings.tokenizer, self._settings.engine)
                is_document = key.add(batch, per_record).is_document
                if is_document is not None:  # only in a layout with one key
                    offsets, lines = offsets[is_document], lines[is_document]
            if self._provenance is not None:
                self._provenance.write(provenance_rows(offsets, lines).data)
            for record in block.bad:
                self._set_aside(record)
        self._lines += block.num_lines
        self._blank += block.num_blank
        self._filtered += block.num_filtered
        self._records += len(block.offsets)
        self._text_bytes += block.num_bytes

    def _choose_audit(self, block: RecordBlock, column: TextColumn) -> None:
        """Collect the few texts drawn for the audit, which are compared together: a call per block would be slower."""
        from dsindex.text.audit import choose_audit
        from dsindex.text.encoders import string_buffers

        settings = self._settings
        if settings.engine.name != "gigatoken":
            return
        per_record = column.texts_per_record
        offsets = block.offsets if per_record is None else np.repeat(block.offsets, per_record)
        input_number = self._task.input
        if not self._task.form.can_seek:  # offsets that do not say where in the input a text is
            sizes = np.diff(string_buffers(column.texts)[0])
            offsets = np.cumsum(sizes) - sizes + self._audited
            self._audited += int(sizes.sum())
            input_number = xxhash.xxh3_64_intdigest(struct.pack("<QQ", input_number, self._task.begin))
        chosen = choose_audit(
            column.texts, offsets, input_number=input_number, special_tokens=settings.tokenizer.special_tokens
        )
        self._chosen += chosen.to_pylist()

    def _audit(self) -> None:
        """Compare the fast engine with the reference on the texts collected so far."""
        if self._chosen:
            import pyarrow as pa

            from dsindex.text.audit import audit

            audit(self._settings.tokenizer, self._settings.engine, pa.array(self._chosen, pa.large_string()))
        self._chosen.clear()

    def _set_aside(self, record: BadRecord) -> None:
        if self._quarantine is None:
            self._quarantine = self._attempt.open("quarantine")
        self._quarantine.write(quarantine_line(self._task.path, record))
        self._quarantined += 1

    def finish(self) -> ShardResult:
        """Audit, sync all files and return the result."""
        self._audit()
        with self._attempt.errors_named():
            keys = tuple(key.finish() for key in self._keys)
            provenance = self._provenance.finish() if self._provenance else None
            quarantine = self._quarantine.finish() if self._quarantine else None
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
            input_fingerprint=fingerprint_input(self._task.path),
            decoder=None if self._task.unpacked is None else self._task.unpacked.decoder,
            num_filtered=self._filtered,
        )
