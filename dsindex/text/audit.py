"""Compare gigatoken with the reference on the build's own text: on a sample before it starts, on excerpts as it runs.

The excerpts are a function of the input alone. Every input is cut into strata of 8 MiB by byte offset, and a hash of
(input, stratum) draws four byte positions in each. The record whose text covers a position is audited there: at the
first position always, at the others only if a character outside ASCII or a special token is near. An excerpt has at
most 512 bytes, so 64 MiB of input give at most 8 * 4 * 512 = 16 KiB per key, which takes `tokenizers` 7 ms.
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from dsindex.errors import TokenizerError
from dsindex.text.encoders import encode_leniently, make_encoder
from dsindex.text.record_blocks import string_buffers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from dsindex.text.encoders import Engine
    from dsindex.text.tokenizer import Tokenizer

STRATUM_BYTES = 8 * 1024**2
POSITIONS_PER_STRATUM = 4
EXCERPT_BYTES = 512
SEARCHED_BYTES = 8 * 1024
"""Bytes after a position that are searched for an unusual character."""


def audit(tokenizer: Tokenizer, engine: Engine, texts: pa.LargeStringArray) -> None:
    """Encode texts with both engines and compare the tokens; does nothing if the engine is the reference.

    A text on which the reference fails is left out: there is nothing to compare.

    Raises:
        TokenizerError: At the first text that they encode differently.
    """
    if engine.name != "gigatoken" or len(texts) == 0:
        return
    wanted, texts = encode_leniently(make_encoder(tokenizer, replace(engine, name=engine.reference)), texts)
    batch = make_encoder(tokenizer, engine).encode(texts)
    if np.array_equal(batch.lengths, wanted.lengths) and np.array_equal(batch.tokens, wanted.tokens):
        return
    pairs = (np.split(each.tokens, np.cumsum(each.lengths)[:-1]) for each in (batch, wanted))
    for text, got, expected in zip(texts.to_pylist(), *pairs, strict=False):  # of no texts, there is an empty piece
        if not np.array_equal(got, expected):
            library = tokenizer.library
            raise TokenizerError(
                f"{tokenizer.name}: expected the same tokens from gigatoken and {library}, but they differ on "
                f"{_difference(text, got.tolist(), expected.tolist(), library)}; "
                f"use --engine {'tokenizers' if library == 'tokenizers' else 'reference'}"
            )


def choose_audit(
    texts: pa.LargeStringArray,
    offsets: NDArray[np.int64],
    *,
    input_number: int,
    special_tokens: Sequence[str] = (),
) -> pa.LargeStringArray:
    """Choose the excerpts of a block of whole records to audit, independently of how records are grouped into blocks.

    Args:
        texts: Texts of one key, in file order; the texts of one record are adjacent.
        offsets: Byte offset in the input of each text's record, shape [D], ascending.
        input_number: Number of the input, counted from 0.
        special_tokens: Strings that become one token.

    Returns:
        Excerpts, cut between characters; few or none.
    """
    from dsindex.arrow import text_array

    excerpts: list[str] = []
    if len(texts):
        ends, data = string_buffers(texts)
        lengths = np.diff(ends)
        begins = _text_positions(offsets, lengths)
        positions, is_open = _drawn_positions(input_number, int(begins[0]), int(begins[-1] + lengths[-1]))
        texts_hit = np.searchsorted(begins, positions, side="right") - 1
        inside = (texts_hit >= 0) & (positions < begins[texts_hit] + lengths[texts_hit])
        for position, index, plain in zip(positions[inside], texts_hit[inside], is_open[inside], strict=True):
            text = data.data[ends[index] : ends[index + 1]]
            begin = _unusual_place(text, int(position - begins[index]), tuple(special_tokens))
            if begin is None and plain:
                begin = int(position - begins[index])
            if begin is not None:
                excerpts.append(_cut_at_characters(text, begin))
    return text_array(excerpts)


def clip_texts(texts: pa.LargeStringArray, *, text_bytes: int, total_bytes: int) -> pa.LargeStringArray:
    """Shorten each text to `text_bytes`, and drop the last texts, so that the sample has at most `total_bytes`."""
    from dsindex.arrow import text_array

    ends, data = string_buffers(texts)
    lengths = np.minimum(np.diff(ends), text_bytes)
    num_texts = int(np.searchsorted(np.cumsum(lengths), total_bytes, side="right"))
    view = data.data
    clipped = [_cut_at_characters(view[ends[i] : ends[i + 1]], 0, text_bytes) for i in range(num_texts)]
    return text_array(clipped)


def _text_positions(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign each text a stretch of its record's line, one after the other from the line's first byte.

    JSON is never shorter than the UTF-8 that it encodes, so the stretches of different records do not overlap.
    """
    before = np.cumsum(lengths) - lengths
    is_first = np.diff(offsets, prepend=offsets[0] - 1) != 0
    first = np.maximum.accumulate(np.where(is_first, np.arange(offsets.size), 0))
    positions: NDArray[np.int64] = offsets + before - before[first]
    return positions


def _drawn_positions(input_number: int, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the positions of every stratum that [begin, end) touches, ascending, and which of them take any text."""
    strata = range(begin // STRATUM_BYTES, (end - 1) // STRATUM_BYTES + 1)
    drawn = sorted(
        (stratum * STRATUM_BYTES + _hash(input_number, stratum, draw) % STRATUM_BYTES, draw == 0)
        for stratum in strata
        for draw in range(POSITIONS_PER_STRATUM)
    )
    return np.array([position for position, _ in drawn], np.int64), np.array([is_open for _, is_open in drawn])


def _hash(input_number: int, stratum: int, draw: int) -> int:
    return xxhash.xxh3_64_intdigest(struct.pack("<QQQ", input_number, stratum, draw))


def _unusual_place(text: memoryview, begin: int, special_tokens: tuple[str, ...]) -> int | None:
    """Return where an excerpt with something unusual should begin, shortly after `begin`; None if nothing is near."""
    found = _unusual(special_tokens).search(text, begin, min(begin + SEARCHED_BYTES, len(text)))
    return None if found is None else max(begin, found.start() - EXCERPT_BYTES // 4)


@functools.lru_cache(maxsize=4)
def _unusual(special_tokens: tuple[str, ...]) -> re.Pattern[bytes]:
    return re.compile(b"|".join([rb"[\x80-\xff]", *(re.escape(token.encode()) for token in special_tokens if token)]))


def _cut_at_characters(text: memoryview, begin: int, size: int = EXCERPT_BYTES) -> str:
    """Cut an excerpt of whole characters out of UTF-8, dropping partial characters at both ends."""
    return bytes(text[begin : begin + size]).decode("utf-8", errors="ignore")


def _difference(text: str, got: list[int], expected: list[int], library: str) -> str:
    same = next(
        (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), min(len(got), len(expected))
    )
    begin = max(0, same - 2)
    shown = repr(text) if len(text) <= 120 else f"{text[:60]!r} … {text[-60:]!r}"
    return f"{shown} from token {begin}: gigatoken {got[begin : same + 4]}, {library} {expected[begin : same + 4]}"
