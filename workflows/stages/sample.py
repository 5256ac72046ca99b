"""A sample of the text, spread over all inputs and encoded: for a look before hours are spent, and for `dsindex plan`.

Do the engines agree on it, how large will the output be, and how fast is it made?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import RecordLimitError
from workflows.stages.room import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from dsindex.text.encoders import Encoder
    from dsindex.text.engines import Engine
    from dsindex.text.patterns import TextPattern
    from dsindex.text.records import RecordBlock
    from dsindex.text.tokenizer import Tokenizer
    from workflows.state.inputs import InputFile

AUDIT_SHARE = 4000
"""What is audited before a build is this part of the input,"""
AUDIT_MAX_BYTES = 4 << 20
"""at most so much,"""
AUDIT_PIECE_BYTES = 16 << 10
"""in pieces of this size, and at least one."""
AUDITED_TEXT_BYTES = 16 << 10
"""A long text of the sample is cut here: the audit costs time with `tokenizers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes [begin, end) of an input, which stand for the lines that begin in them."""

    input: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceCounts:
    """What encoding the records of a piece showed."""

    documents: int
    texts: int
    """Over all keys; a record may have several under one."""
    tokens: int
    """Over all keys, without EOD."""
    longest_text: int
    """In tokens."""
    bad_records: int


def spread_pieces(sizes: Sequence[int], *, num_pieces: int, piece_bytes: int) -> list[Piece]:
    """Spread pieces evenly over the bytes of all inputs; where they would hold all, they do.

    Args:
        sizes: Of the inputs, in bytes.
        num_pieces: At least 1.
        piece_bytes: Of each, unless its input ends before.

    Returns:
        Ascending and without overlap.

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


def encode_piece(
    piece: Piece,
    inputs: Sequence[InputFile],
    keys: Sequence[str],
    encoder: Encoder,
    *,
    pattern: TextPattern | None = None,
    max_record_bytes: int | None = None,
    prepare: Callable[[pa.LargeStringArray], pa.LargeStringArray] | None = None,
) -> PieceCounts:
    """Read and encode the records of a piece. Bad ones are counted: the shard that meets one says so with its place.

    Args:
        piece: Of one of the inputs.
        inputs: All of them.
        keys: Of the texts.
        encoder: Of the build.
        pattern: What texts are, where that is more than keys.
        max_record_bytes: Longer records are bad.
        prepare: Shortens the texts of a block before they are encoded; the tokens that this loses are estimated.

    Raises:
        RecordLimitError: If the pattern takes too much time or memory for a record.
    """
    from dsindex.text.records import read_records

    path = inputs[piece.input].absolute_path
    blocks = read_records(path, piece.begin, piece.end, keys=keys, pattern=pattern, max_record_bytes=max_record_bytes)
    documents = num_texts = tokens = longest = bad = 0
    for block in _with_line_numbers(blocks):
        documents += len(block.offsets)
        bad += len(block.bad)
        for column in block.columns.values():
            texts = column.texts if prepare is None else prepare(column.texts)
            lengths = encoder.encode(texts).lengths
            num_texts += len(column.texts)
            longest = max(longest, int(lengths.max(initial=0)))
            tokens += int(lengths.sum(dtype=np.int64)) * column.texts.nbytes // max(1, texts.nbytes)
    return PieceCounts(documents=documents, texts=num_texts, tokens=tokens, longest_text=longest, bad_records=bad)


def examine_sample(
    inputs: Sequence[InputFile],
    keys: Sequence[str],
    tokenizer: Tokenizer,
    engine: Engine,
    *,
    pattern: TextPattern | None = None,
) -> Estimate:
    """Audit the engine on a sample spread over all inputs, and estimate the output's size from it.

    Raises:
        TokenizerError: If the engines differ.
        RecordLimitError: If the pattern takes too much time or memory for a record of the sample.
    """
    from dsindex.text.audit import audit, clip_texts
    from dsindex.text.encoders import make_encoder

    def clip_and_audit(texts: pa.LargeStringArray) -> pa.LargeStringArray:
        clipped = clip_texts(texts, text_bytes=AUDITED_TEXT_BYTES, total_bytes=AUDIT_MAX_BYTES)
        audit(tokenizer, engine, clipped)
        return clipped

    sizes = [file.size_bytes for file in inputs]
    encoder = make_encoder(tokenizer, engine)
    pieces = audited_pieces(sizes)
    counts = [encode_piece(piece, inputs, keys, encoder, pattern=pattern, prepare=clip_and_audit) for piece in pieces]
    documents = sum(count.documents for count in counts)
    if not documents:
        return Estimate(tokens=sum(sizes) / 3, documents=sum(sizes) / 1000)
    # On average, the lines that begin in a piece are as long as it. Each text may end with EOD.
    scale = sum(sizes) / sum(piece.end - piece.begin for piece in pieces)
    tokens = sum(count.tokens + count.texts for count in counts)
    return Estimate(tokens=tokens * scale, documents=documents * scale)


def audited_pieces(sizes: Sequence[int]) -> list[Piece]:
    """Choose what is audited before a build.

    Args:
        sizes: Of the inputs, in bytes.
    """
    budget = min(sum(sizes) // AUDIT_SHARE, AUDIT_MAX_BYTES)
    num_pieces = max(1, -(-budget // AUDIT_PIECE_BYTES))
    return spread_pieces(sizes, num_pieces=num_pieces, piece_bytes=AUDIT_PIECE_BYTES)


def _with_line_numbers(blocks: Iterator[RecordBlock]) -> Iterator[RecordBlock]:
    from dsindex.text.lines import count_lines

    try:
        yield from blocks
    except RecordLimitError as error:
        raise error.with_line(count_lines(error.path, error.offset)) from error
