"""The unit of work of instruction data: encode the conversations of one byte range into partial datasets.

Each split has a `.bin`/`.idx` pair of tokens and one of masks (uint8, 1 = trainable), with the same sequences and
documents. A conversation is a document; it has more than one sequence only if it was too long and was split.
"""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dsindex.dtypes import cast_tokens
from dsindex.engine.manifest import Content
from dsindex.engine.output import Dataset, Output
from dsindex.engine.tasks import FileCounts, KeyResult, ShardResult
from dsindex.engine.worker import Attempt, check_unchanged, provenance_rows, quarantine_line
from dsindex.errors import BadRecordError, RecordProblem
from dsindex.instruction.encode import EncoderRecipe, make_instruction_encoder
from dsindex.instruction.splits import SPLITS, split_by_hash
from dsindex.instruction.statistics import InstructionStatistics, statistics_of
from dsindex.store.reading import fingerprint_input
from dsindex.store.urls import absolute, with_suffix
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.layout import check_ids
from dsindex.text.parts import read_part_lines
from dsindex.text.record_blocks import BadRecord, describe_long_line
from dsindex.text.streams import LongLine, cut_large

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsindex.engine.shards import Shards
    from dsindex.engine.tasks import ShardTask
    from dsindex.engine.worker import ShardFile
    from dsindex.instruction.encode import EncodedConversation
    from dsindex.options.instruct import InstructConfig
    from dsindex.store.storage import StoredFile
    from dsindex.text.streams import LineBlock


MASK_DTYPE = np.dtype(np.uint8)
BLOCK_BYTES = 1 << 20
"""Text encoded before it is written; a longer line takes memory for its own size."""


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


def split_prefix(prefix: str, split: str | None) -> str:
    """Return the prefix of a split's datasets, as expected by PackedInstructionDataset.

    >>> split_prefix("out/chat", "valid"), split_prefix("out/chat", None)
    ('out/chat_valid', 'out/chat')
    """
    return prefix if split is None else with_suffix(prefix, f"_{split}")


def text_key(split: str | None) -> str:
    """Return the key of a split's tokens in a shard's result, which is also the suffix to the job's prefix.

    >>> text_key(None), text_key("valid")
    ('text_document', 'valid_text_document')
    """
    return "text_document" if split is None else f"{split}_text_document"


def mask_key(split: str | None) -> str:
    """Return the key of a split's masks in a shard's result."""
    return "loss_mask" if split is None else f"{split}_loss_mask"


def split_counts(results: Iterable[ShardResult], split: str | None) -> dict[str, int]:
    """Return the statistics of a split over all shards, as named counts."""
    total: Counter[str] = Counter()
    beginning = f"{text_key(split)}."
    for result in results:
        for name, value in result.counts:
            if name.startswith(beginning):
                total[name.removeprefix(beginning)] += value
    return dict(total)


def bad_records_of(results: Iterable[ShardResult]) -> dict[str, int]:
    """Return the number of quarantined records over all shards, by kind of problem."""
    total: Counter[str] = Counter()
    for result in results:
        for name, count in result.counts:
            if name.startswith(_BAD):
                total[name.removeprefix(_BAD)] += count
    return dict(sorted(total.items()))


_BAD = "bad."


def encode_shard(task: ShardTask, settings: InstructionSettings) -> ShardResult:
    """Encode the conversations of a byte range into files under names unique to this attempt, synced to disk.

    Raises:
        BadRecordError: At the range's first bad record, unless bad records are quarantined.
        InputError: If the input is missing or has changed since the job was planned.
        TokenizerError: If the tokenizer is damaged.
        OutputError: If the work folder cannot be written.
    """
    check_unchanged(task)
    with Attempt(settings.work_dir, task.shard) as attempt:
        shard = _Shard(attempt, task, settings)
        for block in read_part_lines(task.part, block_bytes=BLOCK_BYTES, max_line_bytes=settings.max_record_bytes):
            with _collected_later():
                shard.add(block)
        check_unchanged(task)
        return shard.finish()


@contextlib.contextmanager
def _collected_later() -> Iterator[None]:
    """Put off the search for reference cycles: the objects of a block's records have none, and are many."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Shard:
    """Writes and counts the conversations of one attempt at a shard."""

    def __init__(self, attempt: Attempt, task: ShardTask, settings: InstructionSettings) -> None:
        self._attempt = attempt
        self._task = task
        self._settings = settings
        self._encoder = make_instruction_encoder(settings.recipe)
        self._lines = self._blank = self._text_bytes = 0
        self._bad: Counter[str] = Counter()
        self._quarantine: ShardFile | None = None
        self._splits = {split: _SplitWriter(split, attempt, settings) for split in split_names(settings.fractions)}

    def add(self, block: LineBlock | LongLine) -> None:
        """Encode lines and append them to this attempt's files."""
        if isinstance(block, LongLine):
            self._lines += 1
            self._text_bytes += block.num_bytes + 1
            self._refuse(block.offset, block.line, block.head, _too_large(block.num_bytes, block.limit))
            return
        offsets, sizes = block.offsets().tolist(), block.line_sizes().tolist()
        limit = self._settings.max_record_bytes
        lines = [block.text(number) for number in range(len(sizes))]
        is_blank = [not line.strip(JSON_WHITESPACE) for line in lines]
        is_large = [limit is not None and size > limit for size in sizes]
        encoded = self._encoder.encode_lines(
            [line for line, *left_out in zip(lines, is_blank, is_large, strict=True) if not any(left_out)]
        )
        for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            if is_blank[number]:
                self._blank += 1
                continue
            line = block.first_line + number
            outcome = _too_large(size, limit or 0) if is_large[number] else next(encoded)
            if isinstance(outcome, RecordProblem):
                self._refuse(offset, line, cut_large(block.line(number), limit), outcome)
            else:
                self._splits[self._split_of(outcome)].take(outcome, offset, line)
        self._lines += len(sizes)
        self._text_bytes += block.source_bytes
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
        if self._quarantine is None:
            self._quarantine = self._attempt.open("quarantine")
        self._quarantine.write(quarantine_line(record))
        self._bad[problem.kind] += 1

    def finish(self) -> ShardResult:
        """Sync all files and return the result."""
        counts = {f"{_BAD}{kind}": count for kind, count in self._bad.items()}
        for split in self._splits.values():
            counts |= split.counts()
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
            quarantine=None if self._quarantine is None else self._quarantine.stored(),
            counts=tuple(sorted(counts.items())),
        )


class _SplitWriter:
    """The tokens, masks and provenance of one split."""

    def __init__(self, split: str | None, attempt: Attempt, settings: InstructionSettings) -> None:
        self._split = split
        self._dtype = np.dtype(settings.dtype)
        self._vocabulary_size = settings.vocabulary_size
        self._tokens = attempt.open_part(text_key(split), self._dtype)
        self._masks = attempt.open_part(mask_key(split), MASK_DTYPE)
        self._provenance = attempt.open(f"{text_key(split)}.prov") if settings.provenance else None
        self._pending: list[EncodedConversation] = []
        self._places: list[tuple[int, int]] = []
        self.statistics: Counter[str] = Counter(InstructionStatistics().counts())

    @property
    def num_tokens(self) -> int:
        """Tokens written so far."""
        return self._tokens.index.num_tokens

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
        mask = np.concatenate([encoded.mask for encoded in self._pending])
        self.statistics.update(statistics_of(self._pending, learnt=int(np.count_nonzero(mask))))
        self._tokens.add(cast_tokens(tokens, self._dtype), lengths, per_document)
        self._masks.add(mask, lengths, per_document)
        if self._provenance is not None:
            offsets, lines = np.array(self._places, np.int64).T
            self._provenance.write(provenance_rows(offsets, lines))
        self._pending, self._places = [], []

    def finish(self) -> tuple[KeyResult, KeyResult]:
        """Sync the files and return the results for tokens and masks."""
        provenance = None if self._provenance is None else self._provenance.stored()
        return (
            self._tokens.result(text_key(self._split), provenance=provenance),
            self._masks.result(mask_key(self._split), is_aligned=True),
        )

    def counts(self) -> dict[str, int]:
        """Return the statistics as named counts, which are added up over shards."""
        return {f"{text_key(self._split)}.{name}": number for name, number in self.statistics.items()}


def _too_large(num_bytes: int, limit: int) -> RecordProblem:
    return RecordProblem("too-large", describe_long_line(num_bytes, limit))


# The outputs of `dsindex instruct` as data: the datasets of each split, their parts and their manifests.
#
# A split has two datasets: `<prefix>_text_document` (tokens) and `<prefix>_loss_mask` (uint8). With --split, `<prefix>`
# ends in `_train`, `_valid` or `_test`.


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOutputs:
    """The datasets of one split."""

    split: str | None
    number: int
    """Number of the split among those of the job."""
    config: InstructConfig
    dtype: np.dtype[Any]
    """Type of tokens on disk."""

    @property
    def prefix(self) -> str:
        """The prefix to open with PackedInstructionDataset."""
        return absolute(split_prefix(self.config.output_prefix, self.split))

    @property
    def prefixes(self) -> list[str]:
        """The prefixes of the datasets: tokens, masks."""
        return [with_suffix(self.prefix, f"_{name}") for name in ("text_document", "loss_mask")]

    def outputs(self, plan_id: str) -> list[Output]:
        """Return tokens and masks."""
        text, mask = self.prefixes
        return [
            Output(prefix=text, plan_id=plan_id, key=text_key(self.split), dtype=self.dtype),
            Output(prefix=mask, plan_id=plan_id, key=mask_key(self.split), dtype=MASK_DTYPE),
        ]

    def datasets(self, shards: Shards, outputs: Sequence[Output]) -> list[Dataset]:
        """Return the datasets to assemble; bad records belong to no split, so each split's tokens get all of them."""
        text, mask = outputs
        parts = tuple(mask.part_of(result, shards.job.work_dir) for _, result in shards.results)
        return [shards.dataset(text), Dataset(output=mask, parts=parts)]

    def contents(
        self, shards: Shards, instruction: Mapping[str, Any], files: Sequence[dict[str, StoredFile]]
    ) -> list[Content]:
        """Return the contents of the manifests of tokens and masks.

        Args:
            shards: The job's shards.
            instruction: The instruction configuration, in plain JSON types.
            files: The files of both.
        """
        results = [result for _, result in shards.results]
        options = shards.source.describe_options(
            split=None if self.config.split is None else list(self.config.split),
            split_seed=self.config.split_seed,
            split_name=self.split,
            instruction=dict(instruction),
        )
        content = shards.content(
            text_key(self.split),
            group=self.number,
            token_dtype=self.dtype.name,
            options=options,
            digests=files[0],
            statistics=split_counts(results, self.split),
            bad_records=bad_records_of(results),
        )
        return [
            self._with_others_elsewhere(content),
            Content(
                inputs=self._with_others_elsewhere(content).inputs,
                documents=content.documents,
                sequences=content.sequences,
                tokens=content.tokens,
                token_dtype=MASK_DTYPE.name,
                options=options,
                digests=files[1],
            ),
        ]

    def _with_others_elsewhere(self, content: Content) -> Content:
        """Return the content in which records of other splits are elsewhere, not filtered."""
        account = content.record_counts
        return msgspec.structs.replace(
            content,
            inputs=[replace(file, filtered=None, elsewhere=file.filtered or 0) for file in content.inputs],
            account=msgspec.structs.replace(account, filtered=0, elsewhere=account.filtered),
            eod_in_text=None,
        )
