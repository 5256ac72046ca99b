"""Encode a sample of the text, spread over all inputs, before a build and for its `--dry-run`.

It shows whether the engines agree, and how large the output will be.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dsindex.engine.inputs import TEXT_PER_STORED_BYTE
from dsindex.engine.room import Estimate
from dsindex.errors import InputError
from dsindex.text.compressed import measure_compression
from dsindex.text.forms import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.engine.inputs import InputFile
    from dsindex.text.blocks import RecordBlock
    from dsindex.text.engines import Engine
    from dsindex.text.selection import Selection
    from dsindex.text.tokenizer import Tokenizer

AUDIT_SHARE = 4000
"""One part in this many of the input is audited before a build, up to AUDIT_MAX_BYTES."""
AUDIT_MAX_BYTES = 4 << 20
"""Largest size of the audited sample."""
AUDIT_PIECE_BYTES = 16 << 10
"""Size of each piece of the audited sample, which has at least one."""
AUDITED_AT_ONCE = 3
"""Pieces that are examined at a time before a build: some wait for a store while others are encoded."""
AUDITED_TEXT_BYTES = 16 << 10
"""Characters to which long texts are cut for the audit, since `tokenizers` is slow."""
SAMPLED_RECORD_BYTES = 64 << 20
"""Size above which the driver does not hold a record to audit it: it may be a bad one of any size."""
_MEASURED_BYTES = 512 << 10
"""Compressed bytes by which the size of the text is estimated, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is read of one input: the lines that begin in a range, or the first records of a part."""

    file: InputFile
    begin: int
    """Where the part begins: in bytes, or in row groups."""
    end: int
    stored_bytes: int
    """Its size in the stored input."""
    is_whole: bool = True
    """Whether the part is read to its end; otherwise about the stored bytes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceCounts:
    """The counts from encoding the records of a piece."""

    documents: int
    tokens: int
    """Number of tokens of all keys, without EOD."""
    bad_records: int
    stored_bytes: float
    """Size of its lines in the stored input, bad and left out ones too."""
    range_bytes: float
    """Size of the range in the stored input in which they begin."""


def spread_pieces(inputs: Sequence[InputFile], *, num_pieces: int, piece_bytes: int) -> list[Piece]:
    """Spread pieces evenly over the bytes of all inputs; they are all of small inputs.

    Args:
        inputs: The inputs.
        num_pieces: Number of pieces, at least 1. Those in one part that cannot be cut become one.
        piece_bytes: Size of each piece, unless its input ends before.
    """
    total = sum(file.size_bytes for file in inputs)
    if total <= num_pieces * piece_bytes:
        return [piece for file in inputs for piece in _all_of(file, piece_bytes)]
    ends = np.cumsum([file.size_bytes for file in inputs], dtype=np.int64)
    starts: Counter[tuple[int, int]] = Counter()
    for piece in range(num_pieces):
        position = total * piece // num_pieces
        number = int(np.searchsorted(ends, position, side="right"))
        begin = position - int(ends[number]) + inputs[number].size_bytes
        starts[number, _part_begin(inputs[number], begin)] += 1
    return [_first_of(inputs[number], begin, times * piece_bytes) for (number, begin), times in starts.items()]


def _part_begin(file: InputFile, position: int) -> int:
    """Return where what is read for a byte begins: there, or where a part begins."""
    if file.bounds is None:
        return position
    units = max(1, file.bounds[-1])
    return file.bounds[min(bisect_right(file.bounds, position * units // file.size_bytes), len(file.bounds) - 1) - 1]


def _first_of(file: InputFile, begin: int, num_bytes: int) -> Piece:
    """Return the piece of a number of stored bytes from a begin."""
    if file.bounds is None:
        end = min(begin + num_bytes, file.size_bytes)
        return Piece(file=file, begin=begin, end=end, stored_bytes=end - begin)
    end = file.bounds[file.bounds.index(begin) + 1]
    return Piece(file=file, begin=begin, end=end, stored_bytes=num_bytes, is_whole=False)


def _all_of(file: InputFile, piece_bytes: int) -> Iterator[Piece]:
    bounds = file.bounds or (*range(0, file.size_bytes, piece_bytes), file.size_bytes)
    units, size = max(1, bounds[-1]), file.size_bytes
    for begin, end in pairwise(bounds):
        yield Piece(file=file, begin=begin, end=end, stored_bytes=end * size // units - begin * size // units)


def encode_piece(
    piece: Piece,
    selection: Selection,
    tokenizer: Tokenizer,
    engine: Engine,
    *,
    max_record_bytes: int | None,
    audits: bool = False,
) -> PieceCounts:
    """Read and encode the records of a piece. Bad records are only counted; making their shard reports them.

    Args:
        piece: The piece of one of the inputs.
        selection: The records to keep and the values to read.
        tokenizer: The tokenizer of the texts.
        engine: The engine that encodes them.
        max_record_bytes: Size above which a record is bad.
        audits: Compare the engine with the reference, on texts that are cut short; the lost tokens are estimated.

    Raises:
        TokenizerError: If the engines differ.
    """
    from dsindex.text.encoders import encode_leniently, make_encoder
    from dsindex.text.engines import audit, clip_texts
    from dsindex.text.parts import read_part
    from dsindex.text.records import DEFAULT_BLOCK_BYTES

    file = piece.file
    part = TextPart(path=file.absolute_path, begin=piece.begin, end=piece.end, form=file.form, is_sample=True)
    stored_per_byte = None if piece.is_whole else _stored_per_byte(piece)
    most = None if stored_per_byte is None else int(piece.stored_bytes / stored_per_byte)
    blocks = read_part(
        part,
        selection,
        block_bytes=max(1, min(DEFAULT_BLOCK_BYTES, piece.stored_bytes)),
        max_record_bytes=max_record_bytes,
    )
    documents = tokens = bad = text_bytes = 0
    for block in _first_blocks(blocks, file, most):
        text_bytes += block.num_bytes
        documents += len(block.offsets)
        bad += len(block.bad)
        for column in block.columns.values():
            texts = column.items
            if column.holds_ids:
                tokens += sum(map(len, texts))
                continue
            if audits:
                texts = clip_texts(texts, most=AUDITED_TEXT_BYTES, total=AUDIT_MAX_BYTES)
                audit(tokenizer, engine, texts)
            batch, encoded = encode_leniently(make_encoder(tokenizer, engine), texts)
            bad += len(texts) - len(encoded)
            tokens += len(batch.tokens) * sum(map(len, column.items)) // max(1, sum(map(len, texts)))
    stored = piece.stored_bytes if stored_per_byte is None else min(text_bytes * stored_per_byte, file.size_bytes)
    return PieceCounts(
        documents=documents,
        tokens=tokens,
        bad_records=bad,
        stored_bytes=text_bytes if file.bounds is None else stored,
        range_bytes=stored,
    )


def _stored_per_byte(piece: Piece) -> float:
    """Return the size that a byte of an input's text has in the stored file, about."""
    file = piece.file
    if file.form.container == "plain":
        return file.size_bytes / max(1, file.text_bytes)
    try:
        num_bytes = max(_MEASURED_BYTES, piece.stored_bytes)
        return measure_compression(file.absolute_path, file.form.container, num_bytes=num_bytes)
    except InputError:  # reported by its shard
        return 1 / TEXT_PER_STORED_BYTE


def _first_blocks(blocks: Iterator[RecordBlock], file: InputFile, most: int | None) -> Iterator[RecordBlock]:
    """Yield blocks up to a number of bytes of text; of a compressed input, up to where it is damaged."""
    num_bytes = 0
    try:
        for block in blocks:
            yield block
            num_bytes += block.num_bytes
            if most is not None and num_bytes >= most:
                return
    except InputError:
        if file.form.container == "plain":
            raise  # damage in a compressed input is reported by its shard, after all records before it


def extrapolate(counts: Sequence[PieceCounts], total_bytes: float, *, eod_per_document: int) -> Estimate:
    """Estimate a whole job from its sample.

    Tokens are estimated by the size of the lines, so that a long line which begins in a short piece counts as one;
    their margin is that of a ratio estimator, with Student's t for few pieces.

    Args:
        counts: Of the pieces, of which at least one has documents.
        total_bytes: Size of all inputs.
        eod_per_document: EOD tokens of each document, of all keys.
    """
    sizes, ranges, documents, tokens = (
        np.array([getattr(count, name) for count in counts], np.float64)
        for name in ("stored_bytes", "range_bytes", "documents", "tokens")
    )
    tokens += documents * eod_per_document
    sampled, num = max(float(sizes.sum()), 1.0), len(counts)
    ratio = tokens.sum() / sampled
    unread = max(0.0, 1 - ranges.sum() / total_bytes)
    if unread < 1e-9:  # what the metadata of a table says of its size is an estimate
        unread, total_bytes = 0.0, sampled
    margin = ratio if unread else 0.0  # a single piece says nothing about others
    if num > 1:
        student = 1.96 + 2.4 / (num - 1) + 8.4 / (num - 1) ** 2
        deviation = np.sqrt(unread * num / (num - 1) * np.square(tokens - ratio * sizes).sum()) / sampled
        margin = student * deviation
    return Estimate(
        tokens=float(ratio * total_bytes),
        documents=float(documents.sum() * (total_bytes / ranges.sum() if unread else 1)),
        token_margin=float(margin * total_bytes),
    )


def examine_sample(inputs: Sequence[InputFile], selection: Selection, tokenizer: Tokenizer, engine: Engine) -> Estimate:
    """Audit the engine on a sample spread over all inputs, and estimate the output's size from it.

    Raises:
        TokenizerError: If the engines differ.
    """

    def encode(piece: Piece) -> PieceCounts:
        limit = SAMPLED_RECORD_BYTES
        return encode_piece(piece, selection, tokenizer, engine, max_record_bytes=limit, audits=True)

    total = sum(file.size_bytes for file in inputs)
    num_pieces = max(1, -(-min(total // AUDIT_SHARE, AUDIT_MAX_BYTES) // AUDIT_PIECE_BYTES))
    first, *others = spread_pieces(inputs, num_pieces=num_pieces, piece_bytes=AUDIT_PIECE_BYTES)
    counts = [encode(first)]  # loads the tokenizers
    with ThreadPoolExecutor(AUDITED_AT_ONCE) as pool:
        counts += pool.map(encode, others)
    if not any(count.documents for count in counts):
        return Estimate(tokens=total / 3, documents=total / 1000)
    return extrapolate(counts, total, eod_per_document=len(selection.outputs))
