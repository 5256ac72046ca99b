"""Encode texts as token ids: one call per block, by gigatoken or by the library that defines the tokenizer's format.

gigatoken returns the tokens of one text as an array, but the tokens of many texts as an awkward array, lists or padded
rows. So texts are joined by a special token of the tokenizer and encoded as one: a text is split at special tokens
before anything else. They are passed as a BytesSource, since gigatoken imports awkward (0.3 s of CPU time) to examine a
list. A block is so small that gigatoken encodes it in the calling thread; it holds no lock while it does.
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import threading
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from dsindex.errors import TokenizerError, UnencodableError
from dsindex.store.machine import available_memory
from dsindex.text.blocks import mark_bad
from dsindex.text.tiktoken_files import CL100K_PATTERN, PATTERNS, R50K_PATTERN, TiktokenEncoding, read_definition
from dsindex.text.tokenizer import LibraryError, flat_steps, library_errors, open_library, wrap_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.text.blocks import Column, RecordBlock
    from dsindex.text.tokenizer import LibraryName, Tokenizer


EngineName = Literal["gigatoken", "tokenizers", "sentencepiece", "tiktoken"]
Separator: TypeAlias = tuple[str, int]
"""A special token and its id."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of code points: first and last, both included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastEngine:
    """Settings for encoding with gigatoken."""

    version: str
    prefix: tuple[int, ...] = ()
    """Tokens added before every text, since gigatoken runs no post-processor."""
    suffix: tuple[int, ...] = ()
    """Tokens added after every text."""
    unsafe_ranges: Ranges = ()
    """Code points on which gigatoken differs; the reference encodes every text that contains one."""
    unsafe_strings: tuple[str, ...] = ()
    """Strings on which gigatoken differs; the reference encodes every text that contains one."""
    separator: Separator | None = None
    """Token between texts that are encoded as one; None to encode each text by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The chosen engine and its settings; its names and versions are part of a build's fingerprint."""

    reference: LibraryName = "tokenizers"
    """The library that defines the tokenizer's format."""
    reference_version: str
    add_special_tokens: bool
    """Whether the tokenizer's post-processor is applied."""
    fast: FastEngine | None = None
    """None if the reference encodes all texts."""
    reason: str = ""
    """Why gigatoken is not used; empty if it is used, or if the user chose the reference."""

    @property
    def name(self) -> EngineName:
        """Name of the package that encodes most texts."""
        return self.reference if self.fast is None else "gigatoken"

    @property
    def version(self) -> str:
        """Version of the package that encodes most texts."""
        return self.reference_version if self.fast is None else self.fast.version

    def describe(self) -> str:
        """Return a description of the engine for reports."""
        reference = f"{self.reference} {self.reference_version}"
        if self.fast is None:
            return f"{reference}, the reference"
        return f"gigatoken {self.version}, and with {reference} where the two can differ"

    def describe_fallback(self) -> str | None:
        """Return why gigatoken is not used and what that costs; None if it is used or the user chose the reference."""
        costs = f"{self.name} encodes, and not gigatoken, which is up to fifty times as fast"
        return f"{costs}: {self.reason}" if self.reason else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """The tokens of D texts, one after the other."""

    spaced_ids: NDArray[np.uint32]
    """Ids of each text, followed by one slot for an EOD, which may hold any value. Shape [T + D]."""
    lengths: NDArray[np.int64]
    """Number of tokens of each text, shape [D]; they add up to T."""
    texts_per_record: NDArray[np.int64] | None = None
    """Number of texts of each record; None if each record has one."""
    text_bytes: int = 0
    """UTF-8 size of the encoded texts; 0 if unknown."""

    @classmethod
    def of_rows(
        cls, rows: Sequence[Sequence[int]], *, texts_per_record: NDArray[np.int64] | None = None, text_bytes: int = 0
    ) -> TokenBatch:
        """Make a batch from the tokens of each text."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        spaced_ids = np.fromiter(itertools.chain.from_iterable((*row, 0) for row in rows), np.uint32)
        return cls(spaced_ids=spaced_ids, lengths=lengths, texts_per_record=texts_per_record, text_bytes=text_bytes)

    @property
    def slots(self) -> NDArray[np.int64]:
        """Index of the slot after each text, shape [D].

        >>> TokenBatch.of_rows([[5, 6], [], [7]]).slots
        array([2, 3, 5])
        """
        return np.cumsum(self.lengths + 1) - 1

    @property
    def tokens(self) -> NDArray[np.uint32]:
        """The token ids alone, shape [T]."""
        return np.delete(self.spaced_ids, self.slots)

    def split(self) -> list[NDArray[np.uint32]]:
        """Return the tokens of each text."""
        sizes = self.lengths.tolist()
        return [self.spaced_ids[end - size : end] for end, size in zip(self.slots.tolist(), sizes, strict=True)]

    def keep(self, is_kept: NDArray[np.bool_]) -> TokenBatch:
        """Return the tokens of the kept records."""
        counts = self.texts_per_record
        is_kept_text = is_kept if counts is None else np.repeat(is_kept, counts)
        return TokenBatch(
            spaced_ids=self.spaced_ids[np.repeat(is_kept_text, self.lengths + 1)],
            lengths=self.lengths[is_kept_text],
            texts_per_record=None if counts is None else counts[is_kept],
        )


def encode_block(block: RecordBlock, tokenizer: Tokenizer, engine: Engine) -> tuple[RecordBlock, dict[str, TokenBatch]]:
    """Encode the texts of all columns; token ids are returned unchanged.

    Returns:
        The block, and its tokens by key. A record is bad there if the tokenizer's library fails on one of its texts.
    """
    batches: dict[str, TokenBatch] = {}
    reasons: dict[int, str] = {}
    for key, column in block.columns.items():
        if column.holds_ids:
            batches[key] = TokenBatch.of_rows(column.items, texts_per_record=column.counts)
            continue
        try:
            batches[key] = replace(make_encoder(tokenizer, engine).encode(column.items), texts_per_record=column.counts)
        except UnencodableError as error:
            reasons = _reasons_by_record(column, error.reasons) | reasons
    return encode_block(mark_bad(block, reasons), tokenizer, engine) if reasons else (block, batches)


def _reasons_by_record(column: Column, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return the first reason of each record, given the reasons of texts."""
    if column.counts is None:
        return dict(reasons)
    records = np.searchsorted(np.cumsum(column.counts), list(reasons), side="right").tolist()
    return dict(reversed(list(zip(records, reasons.values(), strict=True))))


def encode_leniently(encoder: Encoder, texts: Sequence[str]) -> tuple[TokenBatch, Sequence[str]]:
    """Encode texts of a sample; return the tokens, and the texts without those on which the library fails."""
    try:
        return encoder.encode(texts), texts
    except UnencodableError as error:
        encodable_texts = [text for number, text in enumerate(texts) if number not in error.reasons]
        return encoder.encode(encodable_texts), encodable_texts


CACHE_BYTES_PER_THREAD = 256 << 20
"""Memory growth after which gigatoken's object is rebuilt: it caches words for each thread, and never removes one.
Its authors measured that this limit costs 3.5 % of time, and a quarter of it 20 %."""
CACHED_PER_BYTE = 10
"""Limit on cache growth in bytes per byte of text: 20 MB of random words take 190 MB."""


class Encoder:
    """Encodes texts as tokens, in the calling thread; threads may share it.

    With gigatoken, a text with a code point on which the libraries differ is encoded by the reference, and the
    post-processor's fixed tokens are added afterwards. Results do not depend on what was encoded before.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self.engine = engine
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        """Held while gigatoken's object is chosen or built, not while it encodes."""
        self._gigatoken: Backend | None = None
        self._threads: set[int] = set()
        self._text_bytes = 0
        self._resident_when_built = 0
        self._spare_bytes: float = 0
        """Memory growth that the free memory allows."""

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Encode texts, each on its own; special-token strings in a text become special tokens.

        Raises:
            UnencodableError: If the library fails on some texts.
        """
        return encode_all(self._encode, texts, self._tokenizer)

    def _encode(self, texts: Sequence[str]) -> TokenBatch:
        encoded_texts = list(map(str.encode, texts))
        text_bytes = sum(map(len, encoded_texts))
        if (fast := self.engine.fast) is None:
            rows = _call_library(self._tokenizer, texts, add_special_tokens=self.engine.add_special_tokens)
            return TokenBatch.of_rows(rows, text_bytes=text_bytes)
        with wrap_errors(f"{self._tokenizer.name}: gigatoken cannot encode a text", "use --engine reference"):
            batch = self._encode_fast(encoded_texts, fast.separator)
        numbers = find_texts(texts, encoded_texts, fast.unsafe_ranges)
        for string in fast.unsafe_strings:
            numbers = sorted({*numbers, *(number for number, text in enumerate(texts) if string in text)})
        if numbers:
            batch = self._replace_with_reference(texts, numbers, batch)
        return replace(_insert_affixes(batch, fast.prefix, fast.suffix), text_bytes=text_bytes)

    def _encode_fast(self, encoded_texts: Sequence[bytes], separator: Separator | None) -> TokenBatch:
        """Encode UTF-8 texts: joined as one if a separator allows it, otherwise each by itself."""
        from gigatoken.gigatoken_rs import BytesSource, PadTruncate

        backend = self._open_gigatoken(sum(map(len, encoded_texts)))
        if separator is not None:
            token, number = separator
            source = BytesSource([token.encode().join([*encoded_texts, b""])])
            [ids], _ = backend.encoder.encode_batch_padded(source, PadTruncate(0), parallel=True)
            ids = backend.rotate(ids)
            slots = np.flatnonzero(ids == number)
            if len(slots) == len(encoded_texts):  # otherwise some text contains the separator
                ids[slots] = 0  # TEXT_SEPARATOR is not in the vocabulary
                return TokenBatch(spaced_ids=ids, lengths=np.diff(slots, prepend=-1) - 1)
        batch = TokenBatch.of_rows(backend.encoder.encode_batch_list(BytesSource(list(encoded_texts)), parallel=True))
        return replace(batch, spaced_ids=backend.rotate(batch.spaced_ids))

    def _open_gigatoken(self, num_bytes: int) -> Backend:
        """Return gigatoken's object, rebuilt if its caches have grown too large."""
        with self._lock:
            growth = min(resident_bytes() - self._resident_when_built, CACHED_PER_BYTE * self._text_bytes)
            max_growth = min(CACHE_BYTES_PER_THREAD * len(self._threads), self._spare_bytes)
            if self._gigatoken is None or growth > max_growth:  # the process also grows for other reasons
                self._gigatoken = None  # frees the old tables before new ones are made, unless a call still uses them
                self._gigatoken = load_gigatoken(self._tokenizer)
                self._threads, self._text_bytes, self._resident_when_built = set(), 0, resident_bytes()
                self._spare_bytes = (available_memory() or math.inf) / 4
            self._threads.add(threading.get_ident())
            self._text_bytes += num_bytes
            return self._gigatoken

    def _replace_with_reference(self, texts: Sequence[str], numbers: Sequence[int], batch: TokenBatch) -> TokenBatch:
        """Replace gigatoken's tokens of some texts with the reference's."""
        rows = _call_library(self._tokenizer, [texts[number] for number in numbers], add_special_tokens=False)
        pieces = np.split(batch.spaced_ids, batch.slots[:-1] + 1)
        lengths = batch.lengths.copy()
        for number, row in zip(numbers, rows, strict=True):
            pieces[number], lengths[number] = np.array([*row, 0], np.uint32), len(row)
        return TokenBatch(spaced_ids=np.concatenate(pieces), lengths=lengths)


make_encoder = lru_cache(maxsize=4)(Encoder)
"""Returns the process-wide encoder of a tokenizer and the engine that was chosen for it."""


def _insert_affixes(batch: TokenBatch, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> TokenBatch:
    """Insert the prefix and suffix tokens around each text."""
    if not prefix and not suffix:
        return batch
    number, slots = len(batch.lengths), batch.slots
    indices = np.concatenate([np.repeat(slots - batch.lengths, len(prefix)), np.repeat(slots, len(suffix))])
    spaced_ids = np.insert(batch.spaced_ids, indices, [*prefix * number, *suffix * number])
    return TokenBatch(spaced_ids=spaced_ids, lengths=batch.lengths + len(prefix) + len(suffix))


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# Load a tokenizer of any format into gigatoken, whose own loaders read a tokenizer.json, tiktoken ranks and
# SentencePiece models. What these lack is added here: ids that do not begin at 0, SentencePiece symbols that have no
# meaning in a text, and a separator for texts that are encoded as one.


class Unsuitable(Exception):
    """The reason why gigatoken does not support a tokenizer."""


def require_dense(num_ids: int, num_tokens: int) -> None:
    """Refuse ids far beyond the number of tokens, since gigatoken allocates memory up to the largest id.

    Raises:
        Unsuitable: If there are more than 2**18 ids, and more than 16 per token.
    """
    if num_ids > max(1 << 18, 16 * num_tokens):
        raise Unsuitable(f"its ids have holes: {num_ids:,} ids for {num_tokens:,} tokens")


@dataclass(frozen=True, slots=True)
class Backend:
    """gigatoken's object for a tokenizer. Its ids are rotated: the tokenizer's id is (id + offset) % size."""

    encoder: Any
    offset: int = 0
    size: int = 0

    def rotate(self, ids: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Convert gigatoken's ids to the tokenizer's ids."""
        return (ids + np.uint32(self.offset)) % np.uint32(self.size) if self.offset else ids


def load_gigatoken(tokenizer: Tokenizer) -> Backend:
    """Return gigatoken's object for a tokenizer that `choose_engine` has found suitable."""
    import gigatoken

    if tokenizer.library == "tiktoken":
        return _load_ranks(read_definition(tokenizer.content))
    content = convert_sentencepiece(tokenizer)[0] if tokenizer.library == "sentencepiece" else tokenizer.content
    return Backend(gigatoken.Tokenizer.from_json(content).backend)


# tiktoken ranks: gigatoken requires ranks from 0 on, without holes, and knows patterns by name.

SCHEMES = {
    R50K_PATTERN: "gpt2",
    CL100K_PATTERN: "gpt4",
    PATTERNS["o200k"][0]: "o200k",
    PATTERNS["llama3"][0]: "olmo3",
    PATTERNS["nemotron"][0]: "nemotron",
}
"""Pattern → gigatoken's name, for the patterns that were compared."""


def check_ranks(encoding: TiktokenEncoding) -> str:
    """Return gigatoken's name for the pattern of an encoding.

    Raises:
        Unsuitable: If gigatoken cannot load the encoding.
    """
    if encoding.pattern not in SCHEMES:
        raise Unsuitable("its pattern is not among those that were compared")
    numbers = sorted(encoding.ranks.values())
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise Unsuitable("its ranks have holes")
    require_dense(encoding.vocabulary_size, len(numbers))
    return SCHEMES[encoding.pattern]


def _load_ranks(encoding: TiktokenEncoding) -> Backend:
    import gigatoken

    offset, size = min(encoding.ranks.values()), encoding.vocabulary_size
    tokens = sorted(encoding.ranks, key=encoding.ranks.__getitem__)
    special_tokens = {token: (number - offset) % size for token, number in encoding.special_tokens.items()}
    descriptor = os.memfd_create("ranks.tiktoken")
    with open(descriptor, "wb") as file:
        file.writelines(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
        file.flush()
        loaded = gigatoken.Tokenizer.from_tiktoken(f"/proc/self/fd/{descriptor}", check_ranks(encoding), special_tokens)
    return Backend(loaded.backend, offset, size)


# SentencePiece BPE models with byte fallback: gigatoken converts them to a tokenizer.json.

TEXT_SEPARATOR = "\U000fd51d<between two texts>\U000fd51e"
"""A string that real texts do not contain; the reference encodes a text that does."""
SPACE_MARK = "▁"
REPLACE_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
PREPEND_SPACE = {"type": "Prepend", "prepend": SPACE_MARK}
_MAX_SQUARED_LENGTHS = 1 << 26
_MAX_SPACED_SYMBOLS = 64


@lru_cache(maxsize=2)
def convert_sentencepiece(tokenizer: Tokenizer) -> tuple[bytes, tuple[str, ...]]:
    """Return the tokenizer.json with which gigatoken encodes as sentencepiece does, with TEXT_SEPARATOR as its last id.

    Control symbols have no meaning in a text. User-defined symbols are recognized in it, including marks for spaces. If
    a model adds a space before a text, gigatoken would also add one after each symbol, so the reference encodes texts
    with symbols.

    Returns:
        The tokenizer.json, and strings; the reference must encode every text that contains one of them.

    Raises:
        Unsuitable: If gigatoken would not encode as sentencepiece does.
        TokenizerError: If gigatoken cannot convert the model.
    """
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    processor = open_library(tokenizer)
    numbers = range(processor.get_piece_size())
    pieces: list[str] = [processor.id_to_piece(number) for number in numbers]
    if sum(len(piece) ** 2 for piece in pieces) > _MAX_SQUARED_LENGTHS or len(set(pieces)) < len(pieces):
        raise Unsuitable("its pieces are too long, or repeated")
    with wrap_errors(f"{tokenizer.name}: gigatoken cannot convert the model"):
        document = msgspec.json.decode(sentencepiece_to_tokenizer_json(tokenizer.content))
    steps = flat_steps(document["normalizer"])
    if steps not in ([REPLACE_SPACES], [PREPEND_SPACE, REPLACE_SPACES]):
        raise Unsuitable(f"its normalizer was not compared ({', '.join(step['type'] for step in steps)})")
    symbols = {token["content"]: token["id"] for token in document["added_tokens"] if not token["special"]}
    spaced_symbols = [*symbols] if steps[0] == PREPEND_SPACE else []
    if len(spaced_symbols) > _MAX_SPACED_SYMBOLS or any(SPACE_MARK in symbol for symbol in spaced_symbols):
        raise Unsuitable("it adds a space before a text, and has many user-defined symbols, or some of spaces")
    if any(map(processor.is_unused, numbers)):
        raise Unsuitable("it has unused pieces")
    kinds = (processor.is_control, processor.is_unknown, processor.is_byte)
    plain_pieces = {pieces[number] for number in numbers if not any(kind(number) for kind in kinds)}.difference(symbols)
    merged_ids = [number for number in numbers if len(pieces[number]) > 1 and pieces[number] in plain_pieces]
    scores = [processor.get_score(number) for number in merged_ids if pieces[number].strip(SPACE_MARK)]
    scores += {processor.get_score(number) for number in merged_ids if not pieces[number].strip(SPACE_MARK)}
    if len(set(scores)) < len(scores):  # runs of marks may have equal scores: the longest run is merged first
        raise Unsuitable("two of its pieces have the same score")
    merges = document["model"]["merges"]
    document["model"]["merges"] = [pair for pair in merges if {*pair, "".join(pair)} <= plain_pieces]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    contents = [(content.replace(SPACE_MARK, " "), number) for content, number in symbols.items() if not spaced_symbols]
    document["added_tokens"] = [
        {"id": number, "content": content, **flags} for content, number in [*contents, (TEXT_SEPARATOR, len(pieces))]
    ]
    return msgspec.json.encode(document), (TEXT_SEPARATOR, *spaced_symbols)


# The reference of each tokenizer: the library that defines its format, and is therefore correct.

TEXTS_PER_CALL = 32
"""Texts per call of `tokenizers`; a whole block per call takes twice the memory and a third longer."""

_T = TypeVar("_T")


def encode_by_reference(tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool) -> list[Sequence[int]]:
    """Encode texts, each on its own, with the tokenizer's own library.

    As in Megatron, sentencepiece adds nothing around a text, and tiktoken turns special-token strings in a text into
    special tokens. For `tokenizers`, TOKENIZERS_PARALLELISM is set to false in the process unless it is already set:
    with RAYON_NUM_THREADS=1 instead, all threads would wait for one.

    Args:
        tokenizer: The tokenizer.
        texts: The texts.
        add_special_tokens: Whether to run the post-processor, if the format has one.

    Returns:
        The token ids of each text.

    Raises:
        UnencodableError: If the library fails on some of the texts.
    """
    return encode_all(partial(_call_library, tokenizer, add_special_tokens=add_special_tokens), texts, tokenizer)


def _call_library(tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool) -> list[Sequence[int]]:
    loaded = open_library(tokenizer)
    if tokenizer.library == "sentencepiece":
        rows: list[Sequence[int]] = loaded.encode(texts, num_threads=1)
        return rows
    if tokenizer.library == "tiktoken":
        return [loaded.encode_to_numpy(text, allowed_special="all").tolist() for text in texts]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    batches = (texts[begin : begin + TEXTS_PER_CALL] for begin in range(0, len(texts), TEXTS_PER_CALL))
    call = partial(loaded.encode_batch_fast, add_special_tokens=add_special_tokens)
    return [encoding.ids for batch in batches for encoding in call(batch)]


def encode_all(encode: Callable[[Sequence[str]], _T], texts: Sequence[str], tokenizer: Tokenizer) -> _T:
    """Encode texts in one call; if the library fails, find the texts on which it fails.

    Each text is tried alone, without bisection: the library can take seconds for a text before it fails.

    Args:
        encode: Calls the library.
        texts: The texts.
        tokenizer: The tokenizer, for messages.

    Raises:
        UnencodableError: If the library fails on some of the texts.
    """
    try:
        with library_errors():
            return encode(texts)
    except LibraryError as failure:
        reasons: dict[int, str] = {}
        for number, text in enumerate(texts):
            try:
                with library_errors():
                    encode([text])
            except LibraryError as error:
                text_start = f"{text[:40]!r}{f'… ({len(text):,} characters)' if len(text) > 40 else ''}"
                reasons[number] = f"{tokenizer.library} cannot encode {text_start}: {error}"
        if not reasons:
            reason = f"{tokenizer.library} fails ({failure}) on {len(texts):,} texts together and on none of them alone"
            raise TokenizerError(f"{tokenizer.name}: {reason}") from failure
        raise UnencodableError(tokenizer.name, reasons) from failure


# Find the texts that contain one of a set of code points, at memory speed for texts that are mostly ASCII.


@lru_cache(maxsize=8)
def _build_lookup_tables(ranges: Ranges) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which code points are in the ranges, and which first two UTF-8 bytes (big-endian) they have."""
    is_member, is_first_pair = np.zeros(0x110000, np.bool_), np.zeros(1 << 16, np.bool_)
    for first, last in ranges:
        is_member[first : last + 1] = True
    is_first_pair[[int.from_bytes(chr(point).encode()[:2], "big") for point in np.flatnonzero(is_member)]] = True
    return is_member, is_first_pair


def find_texts(texts: Sequence[str], encoded_texts: Sequence[bytes], ranges: Ranges) -> list[int]:
    """Return the numbers of the texts that contain a non-ASCII code point in one of the ranges, ascending.

    Args:
        texts: The texts.
        encoded_texts: The same texts in UTF-8.
        ranges: The code points.
    """
    numbers = [number for number, text in enumerate(texts) if not text.isascii()]
    if not ranges or not numbers:
        return []
    is_member, is_first_pair = _build_lookup_tables(ranges)
    octets = np.frombuffer(b"".join([encoded_texts[number] for number in numbers]), np.uint8)
    high_positions = np.flatnonzero(octets >= int(np.argmax(is_first_pair)) >> 8)  # few in most texts
    if not is_first_pair[octets[high_positions].astype(np.int64) << 8 | octets[high_positions + 1]].any():
        return []
    return [number for number in numbers if is_member[np.frombuffer(texts[number].encode("utf-32-le"), "<u4")].any()]
