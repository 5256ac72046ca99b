"""The unit of work of `dsindex instruct`: encode the conversations of a part of an input into tokens and masks.

Each split has a `.bin` and `.idx` of tokens and one of masks (uint8, 1 = trainable), with the same sequences and
documents. A conversation is a document; it has more than one sequence only if it was too long and was split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.dtypes import cast_tokens
from dsindex.engine.tasks import FileCounts, KeyResult, ShardResult
from dsindex.engine.worker import Attempt, PartWriter, check_unchanged, provenance_rows
from dsindex.errors import BadRecordError, RecordProblem
from dsindex.instruction.encode import EncoderRecipe, make_instruction_encoder
from dsindex.instruction.statistics import NOTE, SPLITS, split_by_hash
from dsindex.store.reading import fingerprint_input
from dsindex.text.blocks import BadRecord, describe_long_line
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.layout import check_ids
from dsindex.text.parts import LARGEST_RECORD_BYTES, read_part_lines
from dsindex.text.streams import LongLine, cut_large

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.tasks import ShardTask
    from dsindex.instruction.encode import EncodedConversation
    from dsindex.text.streams import LineBlock

MASK_DTYPE = np.dtype(np.uint8)
BLOCK_BYTES = 1 << 20
"""Text encoded before it is written; a longer line takes memory for its own size."""
BAD = "bad."
"""Beginning of the counts of bad records by kind in a shard's result; those of a split begin with its tokens' key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSettings:
    """The settings that all shards of a job share; sent to every worker once."""

    recipe: EncoderRecipe
    vocabulary_size: int
    dtype: str
    """Token type on disk."""
    fractions: tuple[float, float, float] | None
    """Shares of train, valid and test; None for a single dataset."""
    split_seed: int
    quarantine: bool
    """Whether bad records are quarantined; otherwise the first one is an error."""
    max_record_bytes: int | None
    provenance: bool
    work_dir: str
    """The work folder, which holds the files of attempts."""


def split_names(fractions: Sequence[float] | None) -> tuple[str | None, ...]:
    """Return the splits with a share above 0, or None alone for a single dataset.

    >>> split_names(None), split_names((0.9, 0.1, 0))
    ((None,), ('train', 'valid'))
    """
    if fractions is None:
        return (None,)
    return tuple(name for name, share in zip(SPLITS, fractions, strict=True) if share > 0)


def keys_of(split: str | None) -> tuple[str, str]:
    """Return the keys of a split's tokens and masks in a shard's result; after P_ they are the names of the datasets.

    >>> keys_of(None), keys_of("valid")
    (('text_document', 'loss_mask'), ('valid_text_document', 'valid_loss_mask'))
    """
    beginning = "" if split is None else f"{split}_"
    return f"{beginning}text_document", f"{beginning}loss_mask"


def encode_shard(task: ShardTask, settings: InstructionSettings) -> ShardResult:
    """Encode the conversations of a task into files under names unique to this attempt, synced to disk.

    Raises:
        BadRecordError: At the first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If the tokenizer is damaged.
        OutputError: If the work folder cannot be written.
    """
    check_unchanged(task)
    with Attempt(settings.work_dir, task.shard) as attempt:
        shard = _Shard(attempt, task, settings)
        for block in read_part_lines(task.part, block_bytes=BLOCK_BYTES, max_line_bytes=settings.max_record_bytes):
            shard.add(block)
        check_unchanged(task)
        return shard.finish()


class _Shard:
    """Writes and counts the conversations of one attempt at a shard."""

    def __init__(self, attempt: Attempt, task: ShardTask, settings: InstructionSettings) -> None:
        self._attempt = attempt
        self._task = task
        self._settings = settings
        self._encoder = make_instruction_encoder(settings.recipe)
        self._lines = self._blank = self._text_bytes = 0
        self._bad: Counter[str] = Counter()
        self._splits = {split: _SplitWriter(split, attempt, settings) for split in split_names(settings.fractions)}

    def add(self, block: LineBlock | LongLine) -> None:
        """Encode lines and append them to this attempt's files."""
        if isinstance(block, LongLine):
            self._lines += 1
            self._text_bytes += block.num_bytes + 1
            self._refuse(block.offset, block.line, block.head, _too_large(block.num_bytes, block.limit))
            return
        limit = self._settings.max_record_bytes or LARGEST_RECORD_BYTES
        offsets, sizes = block.offsets.tolist(), (block.ends - block.starts).tolist()
        lines = [block.text(number) for number in range(len(sizes))]
        records = [number for number, line in enumerate(lines) if line.strip(JSON_WHITESPACE)]
        fitting = [lines[number] for number in records if sizes[number] <= limit]
        outcomes = self._encoder.encode_lines(fitting, up_to_problem=not self._settings.quarantine)
        for number in records:
            size, line = sizes[number], block.first_line + number
            outcome = next(outcomes) if size <= limit else _too_large(size, limit)
            if isinstance(outcome, RecordProblem):
                self._refuse(offsets[number], line, cut_large(block.line(number), limit), outcome)
            else:
                self._splits[self._split_of(outcome)].take(outcome, offsets[number], line)
        self._lines += len(lines)
        self._blank += len(lines) - len(records)
        self._text_bytes += block.text_bytes
        for split in self._splits.values():
            split.write()

    def _split_of(self, encoded: EncodedConversation) -> str | None:
        fractions = self._settings.fractions
        if fractions is None:
            return None
        return split_by_hash(encoded.fingerprint, fractions=fractions, seed=self._settings.split_seed)

    def _refuse(self, offset: int, line: int, line_bytes: bytes, problem: RecordProblem) -> None:
        reason = f"{problem.reason} ({problem.kind})"
        if not self._settings.quarantine:
            place, is_row = (self._task.begin, line), self._task.form.is_table
            raise BadRecordError(self._task.path, offset, reason, part=place, is_row=is_row)
        record = BadRecord(offset=offset, line=line, line_bytes=line_bytes, reason=reason)
        self._attempt.set_aside(record)
        self._bad[problem.kind] += 1

    def finish(self) -> ShardResult:
        """Sync all files and return the result."""
        counts = {f"{BAD}{kind}": count for kind, count in self._bad.items()}
        for split in self._splits.values():
            counts |= {f"{split.keys[0]}.{name}": number for name, number in split.statistics.items()}
        return ShardResult(
            files=(
                FileCounts(
                    lines=self._lines,
                    blank=self._blank,
                    quarantined=self._bad.total(),
                    text_bytes=self._text_bytes,
                    fingerprint=fingerprint_input(self._task.path),
                    kept=tuple(split.statistics["conversations"] for split in self._splits.values()),
                ),
            ),
            keys=tuple(key for split in self._splits.values() for key in split.finish()),
            quarantine=self._attempt.quarantine(),
            counts=tuple(sorted(counts.items())),
        )


class _SplitWriter:
    """The tokens, masks and provenance of one split."""

    def __init__(self, split: str | None, attempt: Attempt, settings: InstructionSettings) -> None:
        self.keys = keys_of(split)
        self.statistics: Counter[str] = Counter()
        self._dtype = np.dtype(settings.dtype)
        self._vocabulary_size = settings.vocabulary_size
        self._tokens = PartWriter(attempt, self.keys[0], self._dtype)
        self._masks = PartWriter(attempt, self.keys[1], MASK_DTYPE)
        self._provenance = attempt.open(f"{self.keys[0]}.prov") if settings.provenance else None
        self._pending: list[EncodedConversation] = []
        self._places: list[tuple[int, int]] = []

    def take(self, encoded: EncodedConversation, offset: int, line: int) -> None:
        """Buffer a conversation until the next `write`."""
        self._pending.append(encoded)
        self._places.append((offset, line))

    def write(self) -> None:
        """Write the buffered conversations."""
        if not self._pending:
            return
        lengths = np.concatenate([encoded.lengths for encoded in self._pending])
        per_document = np.array([len(encoded.lengths) for encoded in self._pending], np.int64)
        tokens = np.concatenate([encoded.tokens for encoded in self._pending])
        check_ids(tokens, self._vocabulary_size)
        self._tokens.add(cast_tokens(tokens, self._dtype), lengths, per_document)
        mask = np.concatenate([encoded.mask for encoded in self._pending])
        self._masks.add(mask, lengths, per_document)
        if self._provenance is not None:
            offsets, lines = np.array(self._places, np.int64).T
            self._provenance.write(provenance_rows(offsets, lines))
        for encoded in self._pending:
            _count(encoded, self.statistics)
        self.statistics["learnt"] += int(np.count_nonzero(mask))
        self._pending, self._places = [], []

    def finish(self) -> list[KeyResult]:
        """Sync the files and return the results for tokens and masks."""
        provenance = None if self._provenance is None else self._provenance.stored()
        return [self._tokens.result(provenance=provenance), self._masks.result(is_aligned=True)]


def _count(encoded: EncodedConversation, counts: Counter[str]) -> None:
    """Add a conversation to named counts; the number of trainable tokens, `learnt`, is the caller's to add."""
    counts["conversations"] += 1
    counts["sequences"] += len(encoded.lengths)
    counts["tokens"] += len(encoded.tokens)
    counts["cut"] += encoded.cut
    counts["shortened"] += encoded.cut > 0 or len(encoded.lengths) > 1
    counts["special_in_text"] += encoded.special_in_text
    counts.update(f"{NOTE}{note}" for note in encoded.notes)


def _too_large(num_bytes: int, limit: int) -> RecordProblem:
    return RecordProblem("too-large", describe_long_line(num_bytes, limit))
