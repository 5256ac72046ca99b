"""Encode a sample of the text, spread over all inputs, before a build and for `--dry-run`.

The sample shows whether the engines agree, and how large the output will be. Every job compares the disk space that it
needs with the free space.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from dsindex.errors import InputError, OutputError
from dsindex.formats.quarantine import BadRecords, group_bad_records
from dsindex.messages import format_size
from dsindex.options.common import work_folder_path
from dsindex.runtime.plan import TEXT_PER_STORED_BYTE
from dsindex.runtime.work_folder import SHARDS_FOLDER
from dsindex.store.local import disk_of, free_bytes
from dsindex.store.machine import available_cpus
from dsindex.store.urls import folder_of, join_path
from dsindex.text.compressed import measure_compression

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dsindex.options.common import WorkConfig
    from dsindex.runtime.plan import InputFile
    from dsindex.runtime.source import TextSource
    from dsindex.text.blocks import RecordBlock
    from dsindex.text.input_format import TextPart
    from dsindex.text.selection import Selection

AUDIT_SHARE = 4000
"""Before a build, one part in this many of the input is audited, up to AUDIT_MAX_BYTES."""
AUDIT_MAX_BYTES = 4 << 20
"""Largest size of the audited sample."""
AUDIT_PIECE_BYTES = 16 << 10
"""Size of each piece of the audited sample, which has at least one piece."""
AUDITED_AT_ONCE = 3
"""Pieces examined at a time before a build, so that some wait for a store while others are encoded."""
AUDITED_TEXT_BYTES = 16 << 10
"""Longer texts are cut to this many characters for the audit, since `tokenizers` is slow."""
SAMPLED_RECORD_BYTES = 64 << 20
"""Larger records count as bad in the audit, since the driver would hold them in memory, whatever their size."""
_MEASURED_BYTES = 512 << 10
"""Compressed bytes from which the size of the text is estimated, at least."""
IDX_BYTES = 4 + 8 + 8
"""Bytes per document in an `.idx`: length, pointer and boundary."""
PROVENANCE_BYTES = 16
"""Bytes per document in the provenance of a shard."""
LATE_SHARE = 0.3
"""Share of the shards that is on a disk at the same time, since tokens are deleted as they are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The size of a job, extrapolated from a sample."""

    tokens: float
    """Tokens of all keys, EOD included."""
    documents: float
    """Documents of all inputs."""
    is_exact: bool = True
    """Whether the whole input was read."""
    bad: tuple[BadRecords, ...] = ()
    """Bad records of the sample; line numbers count from the start of their piece."""

    def scale(self, share: float) -> Estimate:
        """Return the estimate for a share of the records."""
        return replace(self, tokens=self.tokens * share, documents=self.documents * share)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceCounts:
    """Counts from encoding the records of one piece."""

    documents: int
    tokens: int
    """Number of tokens of all keys, without EOD."""
    bad: tuple[BadRecords, ...]
    """Bad records; line numbers count from the start of the piece."""
    line_bytes: float
    """Size of its lines in the stored input, including bad and filtered records."""
    range_bytes: float
    """Size of the range of the stored input in which these lines begin."""


def spread_pieces(inputs: Sequence[InputFile], *, num_pieces: int, piece_bytes: int) -> list[TextPart]:
    """Spread pieces evenly over the bytes of all inputs; small inputs are covered completely.

    Args:
        inputs: The inputs.
        num_pieces: Number of pieces, at least 1. Pieces in a part that cannot be cut are joined.
        piece_bytes: Size of each piece; smaller if the next piece begins or the part ends before.

    Returns:
        The parts to read; a piece's `stored_bytes` is about the size of its records, not of all bytes read for them.
    """
    parts = [part for file in inputs for part in file.parts if part.stored_bytes]
    ends = list(accumulate(part.stored_bytes for part in parts)) or [0]
    bytes_by_piece: Counter[tuple[int, int, int]] = Counter()
    for piece in range(num_pieces):
        begin, next_begin = (ends[-1] * number // num_pieces for number in (piece, piece + 1))
        number, end = bisect_right(ends, begin), min(begin + piece_bytes, next_begin)
        while begin < end:
            part, stop = parts[number], min(end, ends[number])
            part_begin, part_end = part.begin, part.end
            if part.form.can_seek:
                part_begin, part_end = (part.end - ends[number] + place for place in (begin, stop))
            bytes_by_piece[number, part_begin, part_end] += stop - begin
            begin, number = stop, number + 1
    return [
        replace(
            parts[number],
            begin=part_begin,
            end=part_end,
            stored_bytes=size,
            text_bytes=parts[number].text_bytes * size // parts[number].stored_bytes,
        )
        for (number, part_begin, part_end), size in bytes_by_piece.items()
    ]


def encode_piece(
    part: TextPart, source: TextSource, selection: Selection, *, max_record_bytes: int, audits: bool
) -> PieceCounts:
    """Read and encode the records of a piece. Bad records are only counted; the shard that has them reports them.

    Args:
        part: The piece.
        source: Provides the tokenizer and the engine.
        selection: The records to keep and the values to read.
        max_record_bytes: Size above which a record is bad.
        audits: Whether to compare the engine with the reference, on shortened texts; the count is then extrapolated.

    Raises:
        TokenizerError: If the engines differ.
    """
    from dsindex.text.encoders import encode_leniently, make_encoder
    from dsindex.text.engines import audit, clip_texts
    from dsindex.text.reader import TaskReader
    from dsindex.text.records import DEFAULT_BLOCK_BYTES

    stored_per_byte = _stored_per_byte(part)
    size = max(1, min(DEFAULT_BLOCK_BYTES, part.stored_bytes))
    blocks = TaskReader([part]).records(selection, block_bytes=size, max_record_bytes=max_record_bytes)
    bad: list[BadRecords] = []
    documents = tokens = text_bytes = 0
    for block in _first_blocks(blocks, part, int(part.stored_bytes / stored_per_byte)):
        text_bytes += block.text_bytes
        documents += len(block.offsets)
        bad += (BadRecords(file=part.path, reason=record.reason, line=record.line + 1) for record in block.bad_records)
        for column in block.columns.values():
            texts = column.items
            if column.holds_ids:
                tokens += sum(map(len, texts))
                continue
            if audits:
                texts = clip_texts(texts, max_characters=AUDITED_TEXT_BYTES, max_total=AUDIT_MAX_BYTES)
                audit(source.tokenizer, source.engine, texts)
            batch, encoded = encode_leniently(make_encoder(source.tokenizer, source.engine), texts)
            unencodable = BadRecords(file=part.path, reason="the tokenizer's library fails on the text", line=0)
            bad += [unencodable] * (len(texts) - len(encoded))
            tokens += len(batch.tokens) * sum(map(len, column.items)) // max(1, sum(map(len, texts)))
    line_bytes = text_bytes * stored_per_byte
    return PieceCounts(
        documents=documents,
        tokens=tokens,
        bad=group_bad_records(bad),
        line_bytes=line_bytes,
        range_bytes=part.stored_bytes if part.form.can_seek else line_bytes,
    )


def _stored_per_byte(part: TextPart) -> float:
    """Return the approximate number of stored bytes for each byte of a part's text."""
    if part.form.container == "plain":
        return part.stored_bytes / max(1, part.text_bytes)
    try:
        num_bytes = max(_MEASURED_BYTES, part.stored_bytes)
        return measure_compression(part.path, part.form.container, num_bytes=num_bytes)
    except InputError:  # damage is reported by its shard
        return 1 / TEXT_PER_STORED_BYTE


def _first_blocks(blocks: Iterator[RecordBlock], part: TextPart, num_bytes: int) -> Iterator[RecordBlock]:
    """Yield blocks of a part: the first `num_bytes` if it cannot be cut, and the blocks before damage if compressed."""
    try:
        for block in blocks:
            yield block
            num_bytes -= block.text_bytes
            if num_bytes <= 0 and not part.form.can_seek:
                return
    except InputError:
        if part.form.container == "plain":
            raise  # damage in a compressed input is reported by its shard, after all records before it


def examine_sample(
    source: TextSource,
    selection: Selection,
    *,
    num_pieces: int | None = None,
    piece_bytes: int = AUDIT_PIECE_BYTES,
    max_record_bytes: int = SAMPLED_RECORD_BYTES,
) -> Estimate:
    """Estimate the size of a job from a sample spread over all inputs.

    Tokens are scaled by the size of the lines, because a long line may begin in a piece and end far beyond it.

    Args:
        source: The inputs and the tokenizer.
        selection: The records to keep and the values to read.
        num_pieces: Number of pieces, if this is only an estimate; None to audit the engine on a share of the input.
        piece_bytes: Size of each piece.
        max_record_bytes: Size above which a record is bad.

    Raises:
        TokenizerError: If the engines differ.
    """
    audits, total, inputs = num_pieces is None, source.total_bytes, source.inputs
    if num_pieces is None:
        num_pieces = max(1, -(-min(total // AUDIT_SHARE, AUDIT_MAX_BYTES) // AUDIT_PIECE_BYTES))
    encode = partial(encode_piece, source=source, selection=selection, max_record_bytes=max_record_bytes, audits=audits)
    pieces = spread_pieces(inputs, num_pieces=num_pieces, piece_bytes=piece_bytes)
    counts = list(map(encode, pieces[:1]))  # the first loads the tokenizers; tables without rows have no pieces
    with ThreadPoolExecutor(AUDITED_AT_ONCE if audits else available_cpus()) as pool:
        counts += pool.map(encode, pieces[1:])
    documents = sum(count.documents for count in counts)
    bad = group_bad_records(record for count in counts for record in count.bad)
    if not documents:
        guessed_bytes = total if audits else 0
        return Estimate(tokens=guessed_bytes / 3, documents=guessed_bytes / 1000, bad=bad)
    tokens = sum(count.tokens for count in counts)
    tokens += documents * len(selection.outputs) if source.eod_id is not None else 0
    share = min(1.0, sum(count.range_bytes for count in counts) / total) or 1.0  # a table may have no text at all
    if share == 1 and all(file.parts[0].form.can_seek for file in inputs):
        return Estimate(tokens=tokens, documents=documents, bad=bad)
    line_bytes = sum(count.line_bytes for count in counts) or total
    return Estimate(tokens=tokens * total / max(1.0, line_bytes), documents=documents / share, is_exact=False, bad=bad)


# Disk space.


def check_room(
    config: WorkConfig, estimate: Estimate, *, itemsize: int, num_keys: int, is_shuffled: bool = False
) -> None:
    """Refuse a job whose shards and output would not fit on disk, unless an earlier run began it.

    Args:
        config: The options of the job.
        estimate: Its estimated size.
        itemsize: Bytes per token on disk.
        num_keys: Number of keys, each of which makes a dataset.
        is_shuffled: Whether documents are shuffled, from a temporary file with all tokens.

    Raises:
        OutputError: If space is short, naming the folder and the needed and free space.
    """
    output_folder, work_dir = folder_of(config.output_prefix), work_folder_path(config)
    if os.path.exists(join_path(work_dir, SHARDS_FOLDER)):
        return
    output_bytes = int(estimate.tokens * itemsize + estimate.documents * num_keys * IDX_BYTES)
    shard_bytes = output_bytes + int(estimate.documents * PROVENANCE_BYTES)
    if not (config.keep_shards or disk_of(output_folder) is None or is_shuffled):
        shard_bytes = int(LATE_SHARE * shard_bytes)
    output_bytes *= 2 if is_shuffled else 1
    require_room({output_folder: output_bytes, work_dir: shard_bytes}, purpose="shards and output")


def require_room(needs: Mapping[str, int], *, purpose: str) -> None:
    """Refuse to write more than fits on disk.

    Args:
        needs: Folder → estimated bytes; folders on the same disk are added up.
        purpose: Purpose of the space, for the message.

    Raises:
        OutputError: If fewer bytes are free.
    """
    disks = {folder: disk for folder in needs if (disk := disk_of(folder)) is not None}
    for folder, disk in disks.items():
        needed_bytes = sum(needs[other_folder] for other_folder in disks if disks[other_folder] == disk)
        if needed_bytes > (free := free_bytes(folder)):
            sizes = f"about {format_size(needed_bytes)} are needed for {purpose}, {format_size(free)} are free"
            raise OutputError(f"{folder}: {sizes}", hint="make room, or move the output or --work-dir elsewhere")
