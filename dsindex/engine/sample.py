"""Encode a sample of the text, spread over all inputs, before a build and for its `--dry-run`.

It shows whether the engines agree, and how large the output will be.
"""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from dsindex.engine.inputs import TEXT_PER_STORED_BYTE
from dsindex.engine.room import Estimate
from dsindex.errors import InputError
from dsindex.text.compressed import measure_compression
from dsindex.text.forms import TextPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dsindex.engine.inputs import InputFile
    from dsindex.text.encoders import Encoder
    from dsindex.text.engines import Engine
    from dsindex.text.record_blocks import RecordBlock
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
_MEASURED_BYTES = 512 << 10
"""Compressed bytes by which the size of the text is estimated, at least."""
SAMPLED_RECORD_BYTES = 64 << 20
"""Size above which the driver does not hold a record to audit it: it may be a bad one of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The lines that begin in bytes [begin, end) of an input; in a compressed one, the first lines of a part there."""

    input: int
    begin: int
    end: int
    to_end: bool = field(default=False, repr=False)
    """Whether that part is read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceCounts:
    """The counts from encoding the records of a piece."""

    documents: int
    texts: int
    """Number of texts of all keys; a record may have several under one key."""
    tokens: int
    """Number of tokens of all keys, without EOD."""
    longest_text: int
    """Length of the longest text, in tokens."""
    bad_records: int
    stored_bytes: float
    """Size of its lines in the stored input, bad and left out ones too."""
    range_bytes: float
    """Size of the range in the stored input in which they begin."""


def extrapolate(counts: Sequence[PieceCounts], total_bytes: float, *, eod_per_document: int | None) -> Estimate:
    """Estimate a whole job from its sample.

    Tokens are estimated by the size of the lines, so that a long line which begins in a short piece counts as one;
    their margin is that of a ratio estimator, with Student's t for few pieces.

    Args:
        counts: Of the pieces, of which at least one has documents.
        total_bytes: Size of all inputs.
        eod_per_document: EOD tokens of each document; None for one after each text.
    """
    sizes, ranges, documents = (
        np.array([getattr(count, name) for count in counts], np.float64)
        for name in ("stored_bytes", "range_bytes", "documents")
    )
    eods = np.array(
        [count.texts if eod_per_document is None else count.documents * eod_per_document for count in counts]
    )
    tokens = np.array([count.tokens for count in counts]) + eods
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


def spread_pieces(sizes: Sequence[int], *, num_pieces: int, piece_bytes: int) -> list[Piece]:
    """Spread pieces evenly over the bytes of all inputs; they cover small inputs completely.

    Args:
        sizes: Sizes of the inputs, in bytes.
        num_pieces: Number of pieces, at least 1.
        piece_bytes: Size of each piece, unless its input ends before.

    Returns:
        The pieces, ascending and without overlap.

    >>> spread_pieces([10, 0, 20], num_pieces=2, piece_bytes=16)
    [Piece(input=0, begin=0, end=10), Piece(input=2, begin=0, end=16), Piece(input=2, begin=16, end=20)]
    >>> spread_pieces([600, 400], num_pieces=4, piece_bytes=16)[-1]
    Piece(input=1, begin=150, end=166)
    """
    total = sum(sizes)
    if total <= num_pieces * piece_bytes:
        return [
            Piece(input=number, begin=begin, end=min(begin + piece_bytes, size))
            for number, size in enumerate(sizes)
            for begin in range(0, size, piece_bytes)
        ]
    ends = np.cumsum(np.array(sizes, np.int64))
    pieces = []
    for piece in range(num_pieces):
        position = total * piece // num_pieces
        number = int(np.searchsorted(ends, position, side="right"))
        begin = position - int(ends[number]) + sizes[number]
        pieces.append(Piece(input=number, begin=begin, end=min(begin + piece_bytes, sizes[number])))
    return pieces


def join_pieces(pieces: Sequence[Piece], inputs: Sequence[InputFile]) -> list[Piece]:
    """Join pieces that would all be read from the beginning of one part of a compressed input or a table.

    If the pieces are all of the inputs, such parts are read to their ends.
    """
    if sum(piece.end - piece.begin for piece in pieces) == sum(file.size_bytes for file in inputs):
        groups = groupby(pieces, lambda piece: piece.input)
        return [each for number, group in groups for each in _whole(number, inputs[number], group)]

    def part(piece: Piece) -> tuple[int, int]:
        file = inputs[piece.input]
        return piece.input, piece.begin if file.form.can_seek else _part_number(piece, file)

    joined = []
    for _, group in groupby(pieces, part):
        first, *others = group
        size = first.end - first.begin + sum(piece.end - piece.begin for piece in others)
        joined.append(replace(first, end=first.begin + size))
    return joined


def _whole(number: int, file: InputFile, pieces: Iterable[Piece]) -> Iterable[Piece]:
    """Return the pieces of an input that is read as a whole: one for each part, if it has parts."""
    if file.form.can_seek:
        return pieces
    bounds, size = _bounds(file), file.size_bytes
    begins = [-(-bound * size // max(1, bounds[-1])) for bound in bounds]
    return [Piece(input=number, begin=begin, end=end, to_end=True) for begin, end in pairwise(begins)]


def encode_piece(
    piece: Piece,
    inputs: Sequence[InputFile],
    keys: Sequence[str],
    encoder: Encoder | None,
    *,
    selection: Selection | None = None,
    max_record_bytes: int | None = None,
    prepare: Callable[[Sequence[str]], Sequence[str]] | None = None,
) -> PieceCounts:
    """Read and encode the records of a piece. Bad records are only counted; making their shard reports them.

    Args:
        piece: The piece of one of the inputs.
        inputs: All inputs.
        keys: Keys of the texts.
        encoder: Encodes the texts; None if the values are token ids.
        selection: The records to keep and the values to read, if they are more than keys.
        max_record_bytes: Size above which a record is bad.
        prepare: Shortens the texts of a block before they are encoded; the number of lost tokens is estimated.

    """
    from dsindex.text.encoders import encode_leniently
    from dsindex.text.parts import read_part
    from dsindex.text.records import DEFAULT_BLOCK_BYTES
    from dsindex.text.token_ids import TokenColumn

    file = inputs[piece.input]
    part, stored_per_byte = _part_of(piece, file)
    part = replace(part, is_sample=True)
    size = piece.end - piece.begin
    most = size if stored_per_byte is None or piece.to_end else int(size / stored_per_byte)
    blocks = read_part(
        part,
        keys=keys,
        selection=selection,
        block_bytes=min(DEFAULT_BLOCK_BYTES, size),  # where a part is larger than the piece
        max_record_bytes=max_record_bytes,
    )
    documents = num_texts = tokens = longest = bad = text_bytes = 0
    for block in _first_blocks(blocks, file, max_bytes=None if piece.to_end else most):
        text_bytes += block.num_bytes
        documents += len(block.offsets)
        bad += len(block.bad)
        for column in block.columns.values():
            if isinstance(column, TokenColumn) or encoder is None:
                lengths = column.lengths if isinstance(column, TokenColumn) else np.empty(0, np.int64)
                num_texts += len(lengths)
                longest = max(longest, int(lengths.max(initial=0)))
                tokens += int(lengths.sum(dtype=np.int64))
                continue
            texts = column.texts if prepare is None else prepare(column.texts)
            batch, encoded = encode_leniently(encoder, texts)
            lengths = batch.lengths
            bad += len(texts) - len(encoded)
            num_texts += len(column.texts)
            longest = max(longest, int(lengths.max(initial=0)))
            tokens += int(lengths.sum(dtype=np.int64)) * sum(map(len, column.texts)) // max(1, sum(map(len, texts)))
    range_bytes: float = size
    if stored_per_byte is not None and not piece.to_end:
        is_read_to_end = file.form.container != "plain" and text_bytes < most
        range_bytes = part.end - part.begin if is_read_to_end else text_bytes * stored_per_byte
    return PieceCounts(
        documents=documents,
        texts=num_texts,
        tokens=tokens,
        longest_text=longest,
        bad_records=bad,
        stored_bytes=text_bytes if stored_per_byte is None else range_bytes,
        range_bytes=range_bytes,
    )


def examine_sample(
    inputs: Sequence[InputFile],
    keys: Sequence[str],
    tokenizer: Tokenizer,
    engine: Engine,
    selection: Selection | None = None,
) -> Estimate:
    """Audit the engine on a sample spread over all inputs, and estimate the output's size from it.

    Raises:
        TokenizerError: If the engines differ.
    """
    from dsindex.text.encoders import make_encoder
    from dsindex.text.engines import audit, clip_texts

    def clip_and_audit(texts: Sequence[str]) -> Sequence[str]:
        clipped = clip_texts(texts, most=AUDITED_TEXT_BYTES, total=AUDIT_MAX_BYTES)
        audit(tokenizer, engine, clipped)
        return clipped

    sizes = [file.size_bytes for file in inputs]
    has_ids = selection is not None and selection.vocabulary_size is not None
    encoder = None if has_ids else make_encoder(tokenizer, engine)
    first, *others = audited_pieces(sizes)

    def encode(piece: Piece) -> PieceCounts:
        limit = SAMPLED_RECORD_BYTES
        return encode_piece(
            piece, inputs, keys, encoder, selection=selection, max_record_bytes=limit, prepare=clip_and_audit
        )

    counts = [encode(first)]  # loads the tokenizers
    with ThreadPoolExecutor(AUDITED_AT_ONCE) as pool:
        counts += pool.map(encode, others)
    if not any(count.documents for count in counts):
        return Estimate(tokens=sum(sizes) / 3, documents=sum(sizes) / 1000)
    return extrapolate(counts, sum(sizes), eod_per_document=None)


def audited_pieces(sizes: Sequence[int]) -> list[Piece]:
    """Choose the pieces to audit before a build.

    Args:
        sizes: Sizes of the inputs, in bytes.
    """
    budget = min(sum(sizes) // AUDIT_SHARE, AUDIT_MAX_BYTES)
    num_pieces = max(1, -(-budget // AUDIT_PIECE_BYTES))
    return spread_pieces(sizes, num_pieces=num_pieces, piece_bytes=AUDIT_PIECE_BYTES)


def _part_of(piece: Piece, file: InputFile) -> tuple[TextPart, float | None]:
    """Return what to read, and for a compressed input, the size that a byte of its text has there."""
    if file.form.can_seek:
        return TextPart(path=file.absolute_path, begin=piece.begin, end=piece.end, form=file.form), None
    number = _part_number(piece, file)
    begin, end = _bounds(file)[number : number + 2]
    if file.form.container == "plain":
        text_bytes = None if file.parts is None else file.parts.text_bytes
        stored_per_byte = file.size_bytes / text_bytes if text_bytes else 1.0
        return TextPart(path=file.absolute_path, begin=begin, end=end, form=file.form), stored_per_byte
    try:
        num_bytes = piece.end - piece.begin
        stored_per_byte = measure_compression(
            file.absolute_path, file.form.container, num_bytes=max(_MEASURED_BYTES, num_bytes)
        )
    except InputError:  # reported by its shard
        stored_per_byte = 1 / TEXT_PER_STORED_BYTE
    return TextPart(path=file.absolute_path, begin=begin, end=end, form=file.form), stored_per_byte


def _bounds(file: InputFile) -> Sequence[int]:
    return (0, file.size_bytes) if file.parts is None else file.parts.bounds


def _part_number(piece: Piece, file: InputFile) -> int:
    bounds = _bounds(file)
    units = max(1, bounds[-1])
    return min(bisect_right(bounds, piece.begin * units // file.size_bytes), len(bounds) - 1) - 1


def _first_blocks(blocks: Iterator[RecordBlock], file: InputFile, *, max_bytes: int | None) -> Iterator[RecordBlock]:
    """Yield a piece's blocks; of a compressed input only the first ones, up to where it is damaged."""
    num_bytes = 0
    try:
        for block in blocks:
            yield block
            num_bytes += block.num_bytes
            if max_bytes is not None and num_bytes >= max_bytes and not file.form.can_seek:
                return
    except InputError:
        if file.form.container == "plain":
            raise  # damage in a compressed input is reported by its shard, after all records before it
