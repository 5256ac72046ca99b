"""Encode batches of texts as batches of tokens: one protocol, and an encoder for each engine."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from dsindex.dtypes import starts_of
from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.blocks import TextColumn, TokenColumn, set_aside
from dsindex.text.engines import Engine, choose_engine
from dsindex.text.fast_tokenizers import fast_tokenizer
from dsindex.text.tokenizer import LibraryError, library_errors, reference_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.text.blocks import RecordBlock
    from dsindex.text.tokenizer import Tokenizer

__all__ = ["EncodedColumn", "Encoder", "Engine", "TokenBatch", "choose_engine", "encode_block", "make_encoder"]

REFERENCE_BATCH_BYTES = 512 * 1024
"""Text per call of a reference: up to 4 MiB is no faster and takes more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tokens of D texts, one after the other."""

    tokens: NDArray[np.uint32]
    """Token ids, shape [T]."""
    lengths: NDArray[np.int64]
    """Number of tokens of each text, shape [D]; they add up to T."""
    num_reference_texts: int = 0
    """Texts that the reference encoded because gigatoken can differ on them; 0 if the reference is the engine."""


class Encoder(Protocol):
    """Encodes texts as tokens, in the calling thread; threads may share it."""

    engine: Engine

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Encode texts, each on its own; special-token strings in a text become special tokens.

        Raises:
            UnencodableError: If the library fails on some of them.
        """
        ...


def make_encoder(tokenizer: Tokenizer, engine: Engine) -> Encoder:
    """Return an encoder; tokenizers are loaded once per process, when they are first used.

    Args:
        tokenizer: The tokenizer.
        engine: The engine that was chosen for this tokenizer.
    """
    return (GigatokenEncoder if engine.name == "gigatoken" else ReferenceEncoder)(tokenizer, engine)


EncodedColumn: TypeAlias = "tuple[TokenBatch, NDArray[np.int64] | None]"
"""The tokens of a column, and the number of sequences of each record, shape [records]; None if each record has one."""


def encode_block(
    block: RecordBlock, tokenizer: Tokenizer, engine: Engine
) -> tuple[RecordBlock, dict[str, EncodedColumn]]:
    """Encode the texts of all columns; token ids are returned as they are.

    Returns:
        The block, in which the records with a text on which the tokenizer's library fails are bad ones, and its tokens
        by key.
    """
    encoded: dict[str, EncodedColumn] = {}
    reasons: dict[int, str] = {}
    for key, column in block.columns.items():
        try:
            encoded[key] = _encode_column(column, tokenizer, engine)
        except UnencodableError as error:
            per_record = column.texts_per_record if isinstance(column, TextColumn) else None
            reasons = _by_record(per_record, error.reasons) | reasons
    return encode_block(set_aside(block, reasons), tokenizer, engine) if reasons else (block, encoded)


def split_encoded(column: EncodedColumn, groups: Sequence[NDArray[np.int64]]) -> list[EncodedColumn]:
    """Return the tokens of each group of records, given by their numbers; each record is in one group."""
    batch, counts = column
    records = np.concatenate(groups)
    own = None if counts is None else counts[records]
    sequences = records if counts is None else _gathered(counts, records)
    tokens, lengths = batch.tokens[_gathered(batch.lengths, sequences)], batch.lengths[sequences]
    ends = np.cumsum([len(group) for group in groups])[:-1]
    of_groups = [None] * len(groups) if own is None else np.split(own, ends)
    ends = ends if own is None else starts_of(own)[ends]
    parts = zip(np.split(tokens, starts_of(lengths)[ends]), np.split(lengths, ends), of_groups, strict=True)
    # The texts that the reference encoded are counted in the first group, as only their sum is told.
    num_reference_texts = [batch.num_reference_texts] + [0] * (len(groups) - 1)
    return [
        (TokenBatch(tokens=tokens, lengths=lengths, num_reference_texts=number), own)
        for (tokens, lengths, own), number in zip(parts, num_reference_texts, strict=True)
    ]


def _gathered(sizes: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of the items of ranges of these sizes, in another order of the ranges."""
    own = sizes[order]
    return np.repeat(starts_of(sizes)[order] - starts_of(own)[:-1], own) + np.arange(own.sum())


def encode_leniently(encoder: Encoder, texts: Sequence[str]) -> tuple[TokenBatch, Sequence[str]]:
    """Encode texts for a sample; return their tokens and the texts, without those on which the library fails."""
    try:
        return encoder.encode(texts), texts
    except UnencodableError as error:
        rest = [text for number, text in enumerate(texts) if number not in error.reasons]
        return encoder.encode(rest), rest


def _encode_column(column: TextColumn | TokenColumn, tokenizer: Tokenizer, engine: Engine) -> EncodedColumn:
    if isinstance(column, TokenColumn):
        return TokenBatch(tokens=column.tokens, lengths=column.lengths), column.sequences_per_record
    return make_encoder(tokenizer, engine).encode(column.texts), column.texts_per_record


def _by_record(texts_per_record: NDArray[np.int64] | None, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return the reason of the first text of each record that has one."""
    if texts_per_record is None:
        return dict(reasons)
    records = np.searchsorted(np.cumsum(texts_per_record), list(reasons), side="right").tolist()
    return dict(reversed(list(zip(records, reasons.values(), strict=True))))


class ReferenceEncoder:
    """The library that defines the tokenizer's format."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.engine = engine
        self._reference = reference_of(tokenizer)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Encode in calls of about 512 KiB, so that memory does not depend on the size of the batch."""
        tokens, lengths = [np.empty(0, np.uint32)], []
        name, first = "", 0
        reasons: dict[int, str] = {}
        for batch in _batches(texts, REFERENCE_BATCH_BYTES):
            try:
                ids, counts = self._reference.encode(batch, add_special_tokens=self.engine.add_special_tokens)
            except UnencodableError as error:
                name = error.name
                reasons.update((first + number, reason) for number, reason in error.reasons.items())
            else:
                tokens.append(ids)
                lengths.extend(counts)
            first += len(batch)
        if reasons:
            raise UnencodableError(name, reasons)
        return TokenBatch(tokens=np.concatenate(tokens), lengths=np.array(lengths, np.int64))


class GigatokenEncoder:
    """The fast engine, gigatoken; fixed tokens around a text are added afterwards.

    A text with a code point on which gigatoken can differ is encoded by the reference instead.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._fast = fast_tokenizer(tokenizer)
        self._differing = _code_points(engine.differing)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Encode all texts in one call, then encode again with the reference those on which gigatoken can differ."""
        if not texts:
            return TokenBatch(tokens=np.empty(0, np.uint32), lengths=np.empty(0, np.int64))
        spelt = list(map(str.encode, texts))
        try:
            with library_errors():
                tokens, lengths = self._fast.encode(spelt, self.engine.separator)
        except LibraryError as error:
            msg = f"{self._tokenizer.name}: gigatoken fails on a text ({error}); use --engine reference"
            raise TokenizerError(msg) from error
        numbers = self._differing.find_texts(spelt)
        if numbers.size:
            tokens, lengths = self._with_reference(texts, numbers, tokens, lengths)
        if self.engine.prefix or self.engine.suffix:
            tokens, lengths = self._with_added(tokens, lengths)
        return TokenBatch(tokens=tokens, lengths=lengths, num_reference_texts=numbers.size)

    def _with_reference(
        self,
        texts: Sequence[str],
        numbers: NDArray[np.int64],
        tokens: NDArray[np.uint32],
        lengths: NDArray[np.int64],
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Replace gigatoken's tokens of some texts with the reference's."""
        plain = replace(self.engine, name=self.engine.reference, add_special_tokens=False)
        try:
            wanted = ReferenceEncoder(self._tokenizer, plain).encode([texts[number] for number in numbers.tolist()])
        except UnencodableError as error:
            reasons = {int(numbers[number]): reason for number, reason in error.reasons.items()}
            raise UnencodableError(error.name, reasons) from error
        ends = np.cumsum(lengths)
        pieces, begin = [], 0
        for number, own in zip(numbers, np.split(wanted.tokens, np.cumsum(wanted.lengths)[:-1]), strict=True):
            pieces += [tokens[begin : ends[number] - lengths[number]], own]
            begin = ends[number]
        lengths = lengths.copy()
        lengths[numbers] = wanted.lengths
        return np.concatenate([*pieces, tokens[begin:]]), lengths

    def _with_added(
        self, tokens: NDArray[np.uint32], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Insert the fixed tokens around each text.

        For two texts of 2 and 0 tokens, BOS and EOS are inserted before tokens 0, 2, 2, 2, in this order.
        """
        ends = starts_of(lengths)
        before = np.repeat(ends[:-1, np.newaxis], len(self.engine.prefix), axis=1)
        after = np.repeat(ends[1:, np.newaxis], len(self.engine.suffix), axis=1)
        places = np.concatenate([before, after], axis=1).ravel()
        added = np.array([*self.engine.prefix, *self.engine.suffix], np.uint32)
        return np.insert(tokens, places, np.tile(added, lengths.size)), lengths + added.size


@functools.lru_cache(maxsize=8)
def _code_points(ranges: tuple[tuple[int, int], ...]) -> CodePoints:
    """Return a set that is prepared once per process, since every block of records gets a new encoder."""
    return CodePoints(ranges)


def _batches(texts: Sequence[str], batch_bytes: int) -> Iterator[Sequence[str]]:
    """Cut texts into lists of about `batch_bytes`; a longer text gets its own list."""
    begin = size = 0
    for number, text in enumerate(texts):
        if number > begin and size + len(text) > batch_bytes:
            yield texts[begin:number]
            begin, size = number, 0
        size += len(text)
    if texts:
        yield texts[begin:]


# Find the texts that contain one of a set of code points, at memory speed for texts that are mostly ASCII.

_NUM_CODE_POINTS = 0x110000


class CodePoints:
    """A set of code points outside ASCII, prepared for searching UTF-8."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Prepare a set.

        Args:
            ranges: First and last code point of each range, both included.
        """
        flags = np.zeros(_NUM_CODE_POINTS, np.uint8)
        for first, last in ranges:
            if not 0x80 <= first <= last < _NUM_CODE_POINTS:
                raise ValueError(f"expected ranges within U+0080 to U+10FFFF, got U+{first:04X} to U+{last:04X}")
            flags[first : last + 1] = 1
        self._members = np.packbits(flags, bitorder="little")
        self._pairs = np.zeros(1 << 16, np.bool_)
        """Whether a member has these first two bytes in UTF-8, as a big-endian number."""
        self._pairs[_first_bytes(np.flatnonzero(flags))] = True
        self._lowest = int(np.argmax(self._pairs)) >> 8
        self._is_empty = not flags.any()

    def find_texts(self, spelt: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the numbers of the texts, in UTF-8, that contain a member, ascending."""
        nothing = np.empty(0, np.int64)
        if self._is_empty or all(map(bytes.isascii, spelt)):
            return nothing
        data = np.frombuffer(b"".join(spelt), np.uint8)
        high = np.flatnonzero(data[:-1] >= self._lowest)  # few in most texts
        places = high[self._pairs[data[high].astype(np.int64) << 8 | data[high + 1]]]
        if not places.size:
            return nothing
        places = places[self._are_members(places, data, len(data))]
        ends = np.cumsum(np.fromiter(map(len, spelt), np.int64, len(spelt)))
        return np.unique(np.searchsorted(ends, places, side="right"))

    def _are_members(self, places: NDArray[np.int64], data: NDArray[np.uint8], end: int) -> NDArray[np.bool_]:
        """Decode the characters that begin at `places` and look them up."""
        first = data[places].astype(np.int64)
        sizes = 2 + (first >= 0xE0) + (first >= 0xF0)
        points = first & (0x7F >> sizes)
        for index in range(1, 4):
            following = data[np.minimum(places + index, end - 1)].astype(np.int64)
            points = np.where(index < sizes, points << 6 | following & 0x3F, points)
        points = np.where((places + sizes <= end) & (points < _NUM_CODE_POINTS), points, 0)
        are_members: NDArray[np.bool_] = (self._members[points >> 3] >> (points & 7).astype(np.uint8) & 1).astype(bool)
        return are_members


def _first_bytes(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first two UTF-8 bytes of each code point, none of them in ASCII, as a big-endian number."""
    two = 0xC080 | points >> 6 << 8 | points & 0x3F
    three = 0xE080 | points >> 12 << 8 | points >> 6 & 0x3F
    four = 0xF080 | points >> 18 << 8 | points >> 12 & 0x3F
    pairs: NDArray[np.int64] = np.select([points < 0x800, points < 0x10000], [two, three], four)
    return pairs
