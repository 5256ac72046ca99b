"""The unit of work of `dsindex instruct`: encode the conversations of one shard's inputs into tokens and masks.

For each split, a shard has a `.bin` and `.idx` of tokens, and another pair of masks (uint8, 1 = trainable) with the
same sequences and documents. A conversation is a document; it has several sequences only if it was too long and was
split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.chat.encode import EncoderRecipe, make_instruction_encoder
from dsindex.chat.statistics import NOTE, SPLITS, split_by_hash
from dsindex.errors import RecordProblem
from dsindex.formats.dtypes import cast_tokens, dtype_for_vocabulary
from dsindex.runtime.tasks import ShardResult
from dsindex.runtime.tokenize import Attempt, GroupWriter, WorkSettings
from dsindex.text.blocks import BadRecord, describe_long_line
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.layout import check_ids
from dsindex.text.reader import TaskReader
from dsindex.text.streams import cut_large

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.chat.encode import EncodedConversation, InstructionEncoder
    from dsindex.runtime.tasks import ShardTask
    from dsindex.text.streams import LineBlock

MASK_DTYPE = np.dtype(np.uint8)
BLOCK_BYTES = 1 << 20
"""How much text is encoded before it is written; a longer line takes memory in proportion to its length."""
BAD = "bad."
"""Prefix of the counts of bad records, by kind, in a shard's result. The prefix of a split's counts is the key of its
tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionSettings(WorkSettings):
    """The settings that all shards of a job share."""

    recipe: EncoderRecipe
    fractions: tuple[float, float, float] | None
    """Shares of train, valid and test; None for a single dataset without splits."""
    split_seed: int


def split_names(fractions: Sequence[float] | None) -> tuple[str | None, ...]:
    """Return the splits with a share above 0, or (None,) for a single dataset without splits.

    >>> split_names(None), split_names((0.9, 0.1, 0))
    ((None,), ('train', 'valid'))
    """
    if fractions is None:
        return (None,)
    return tuple(name for name, share in zip(SPLITS, fractions, strict=True) if share > 0)


def keys_of(split: str | None) -> tuple[str, str]:
    """Return the keys of a split's tokens and masks; a dataset's name is the output prefix, `_`, and its key.

    >>> keys_of(None), keys_of("valid")
    (('text_document', 'loss_mask'), ('valid_text_document', 'valid_loss_mask'))
    """
    beginning = "" if split is None else f"{split}_"
    return f"{beginning}text_document", f"{beginning}loss_mask"


def encode_shard(task: ShardTask, settings: InstructionSettings) -> ShardResult:
    """Encode the conversations of a task into files with names unique to this attempt, and sync them to disk.

    Raises:
        BadRecordError: At the first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If the tokenizer is damaged.
        OutputError: If the work folder cannot be written.
    """
    encoder = make_instruction_encoder(settings.recipe)
    with Attempt(task, settings) as attempt:
        splits = {split: _Split(split, attempt, settings) for split in split_names(settings.fractions)}
        bad_kinds: Counter[str] = Counter()
        reader, held_bytes = TaskReader(task.parts), 0
        for part, block in reader.lines(block_bytes=BLOCK_BYTES, max_line_bytes=settings.max_record_bytes):
            num_records = 0
            for offset, line, outcome, line_bytes in encode_block(block, encoder, settings):
                num_records += 1
                if isinstance(outcome, RecordProblem):
                    reason = f"{outcome.reason} ({outcome.kind})"
                    bad_kinds[outcome.kind] += 1
                    attempt.quarantine_record(
                        BadRecord(part=part, offset=offset, line=line, line_bytes=line_bytes, reason=reason)
                    )
                else:
                    splits[_split_of(outcome, settings)].hold(outcome, part, offset, line)
            reader.counts[part]["blank"] += block.num_lines - num_records
            held_bytes += block.text_bytes
            if held_bytes >= BLOCK_BYTES:
                for split in splits.values():
                    split.write()
                held_bytes = 0
        for split in splits.values():
            split.write()
        counts = {f"{BAD}{kind}": count for kind, count in bad_kinds.items()}
        for split in splits.values():
            counts |= {f"{split.name}.{name}": number for name, number in split.statistics.items()}
        return ShardResult(
            files=attempt.count_files(reader, [split.num_by_part for split in splits.values()]),
            keys=tuple(key for split in splits.values() for key in split.write_indices()),
            quarantine=attempt.quarantine(),
            counts=tuple(sorted(counts.items())),
        )


def encode_block(
    block: LineBlock, encoder: InstructionEncoder, settings: InstructionSettings
) -> Iterator[tuple[int, int, EncodedConversation | RecordProblem, bytes]]:
    """Encode the records of a block; blank lines are skipped.

    Yields:
        For each record: its byte offset (or row group), its line number (from 0), the encoded conversation or the
        problem, and the bytes of its line that go to quarantine (empty unless there is a problem).
    """
    limit, sizes = settings.max_record_bytes, block.sizes.tolist()
    lines = [block.text(number) for number in range(block.num_lines)]
    records = [number for number, line in enumerate(lines) if sizes[number] > limit or line.strip(JSON_WHITESPACE)]
    fitting_lines = [lines[number] for number in records if sizes[number] <= limit]
    outcomes = encoder.encode_lines(fitting_lines, up_to_problem=not settings.quarantine)
    for number in records:
        size, line_bytes = sizes[number], b""
        if size > limit:
            outcome: EncodedConversation | RecordProblem = RecordProblem("too-large", describe_long_line(size, limit))
        else:
            outcome = next(outcomes)
        if isinstance(outcome, RecordProblem):
            line_bytes = cut_large(block.line(number), limit)
        yield int(block.offsets[number]), int(block.lines[number]), outcome, line_bytes


def _split_of(conversation: EncodedConversation, settings: InstructionSettings) -> str | None:
    if settings.fractions is None:
        return None
    return split_by_hash(conversation.fingerprint, fractions=settings.fractions, seed=settings.split_seed)


class _Split(GroupWriter):
    """Writes the tokens and masks of a split, and counts its conversations."""

    def __init__(self, split: str | None, attempt: Attempt, settings: InstructionSettings) -> None:
        self.name = keys_of(split)[0]
        self.statistics: Counter[str] = Counter()
        self._vocabulary_size = settings.recipe.tokenizer.vocabulary_size
        self._dtype = dtype_for_vocabulary(self._vocabulary_size)
        super().__init__(attempt, split or "0", [self._dtype, MASK_DTYPE], provenance=settings.provenance)
        self.num_by_part = np.zeros(len(attempt.num_bad), np.int64)
        """Number of conversations from each part of the input."""
        self._conversations: list[tuple[EncodedConversation, int, int, int]] = []

    def hold(self, conversation: EncodedConversation, part: int, offset: int, line: int) -> None:
        """Count a conversation and hold it until the next `write`."""
        self._conversations.append((conversation, part, offset, line))
        self.num_by_part[part] += 1
        self.statistics.update(
            conversations=1,
            sequences=len(conversation.lengths),
            tokens=len(conversation.tokens),
            trainable=int(np.count_nonzero(conversation.mask)),
            cut=conversation.cut,
            shortened=int(conversation.cut > 0 or len(conversation.lengths) > 1),
            special_in_text=int(conversation.special_in_text),
        )
        self.statistics.update(f"{NOTE}{note}" for note in conversation.notes)

    def write(self) -> None:
        """Write the held conversations, and release them."""
        if not self._conversations:
            return
        conversations, *positions = zip(*self._conversations, strict=True)
        lengths = np.concatenate([conversation.lengths for conversation in conversations])
        per_document = np.array([len(conversation.lengths) for conversation in conversations], np.int64)
        tokens = np.concatenate([conversation.tokens for conversation in conversations])
        check_ids(tokens, self._vocabulary_size)
        self.add(0, cast_tokens(tokens, self._dtype), lengths, per_document)
        self.add(1, np.concatenate([conversation.mask for conversation in conversations]), lengths, per_document)
        parts, offsets, lines = np.array(positions, np.int64)
        self.add_provenance(offsets, lines, parts)
        self._conversations = []
