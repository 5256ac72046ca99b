"""Tokenize many texts at once, with the fast engine where it also says which characters a token is made of.

The fast engine returns ids alone. **A token of byte-level BPE is a run of the text's own bytes**, so the lengths of the
tokens in bytes, added up, are their places in the text. This holds if the vocabulary is written in byte characters, no
space is put before the text, and the text is what the normalizer makes of it. Whether it holds is decided in four
steps: from the tokenizer's parts; by probes, whose places are compared with the reference's; for each text, whose
tokens must have as many bytes as it has (an added token that swallows blanks has fewer, for one); and by an audit of
some texts. A text for which it does not hold is left to the reference.
"""

from __future__ import annotations

import functools
import unicodedata
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import xxhash

from dsindex.errors import TokenizerError
from dsindex.instruction.tokens import mask_from_spans
from dsindex.text.encoders import make_encoder
from dsindex.text.probes import FIXED_PROBES, probes_of
from dsindex.text.structures import adds_prefix_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.instruction.rendered import RenderedText
    from dsindex.instruction.tokens import ChatTokenizer, Span
    from dsindex.text.encoders import TokenBatch
    from dsindex.text.engines import Engine
    from dsindex.text.tokenizer import Tokenizer

AUDITED_SHARE = 512
"""One text in so many is tokenized with the reference as well, chosen by a hash of it."""
AUDITED_BYTES = 64 << 10
"""Longest text that is audited: the reference needs seconds for some MB."""


LONGEST_SPLIT_PROBE = 4
"""Characters of the probes that only show where a text is split; there are more than 2,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedTokens:
    """The tokens of a text with their mask."""

    tokens: NDArray[np.uint32]
    mask: NDArray[np.uint8]
    """1 for trainable, 0 for masked; same shape as tokens."""


class FastTexts:
    """The fast engine for instruction data. Picklable; threads may share it.

    Args:
        tokenizer: The tokenizer.
        engine: An engine for it other than the reference, without the post-processor.
        reference: The same tokenizer with offsets.

    Raises:
        ValueError: If the engine is the reference.
    """

    def __init__(self, tokenizer: Tokenizer, engine: Engine, reference: ChatTokenizer) -> None:
        if engine.name == engine.reference or engine.add_special_tokens:
            raise ValueError(f"expected a fast engine without post-processor, got {engine.describe()}")
        self._tokenizer, self._engine, self._reference = tokenizer, engine, reference
        self._encoder = make_encoder(tokenizer, engine)

    def __reduce__(self) -> tuple[Any, ...]:
        return FastTexts, (self._tokenizer, self._engine, self._reference)

    def encode(self, texts: Sequence[str]) -> TokenBatch:
        """Tokenize texts, each on its own.

        Raises:
            TokenizerError: If the engine and the reference return other tokens for an audited text.
        """
        spelt = [text.encode() for text in texts]
        batch = self._encode(spelt)
        for text, data, tokens in zip(texts, spelt, _cut(batch.tokens, batch.lengths), strict=True):
            if _is_audited(data) and not np.array_equal(tokens, self._reference.encode(text).ids):
                raise self._differs(text)
        return batch

    def encode_spans(self, texts: Sequence[RenderedText]) -> list[MaskedTokens]:
        """Tokenize texts, each on its own, and mask the tokens without a trainable byte.

        Args:
            texts: Texts with their trainable spans.

        Raises:
            TokenizerError: If the engine and the reference return other tokens or masks for an audited text.
        """
        batch = self._encode([text.spelt for text in texts])
        ends = np.cumsum(self._lengths.take(batch.tokens), dtype=np.int64)
        # Where each text begins, in bytes of tokens.
        bases = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(batch.lengths)])]
        mask = _mask_tokens(ends, _places_of_spans(texts, bases))
        found = [
            MaskedTokens(tokens=tokens, mask=own)
            for tokens, own in zip(_cut(batch.tokens, batch.lengths), _cut(mask, batch.lengths), strict=True)
        ]
        is_placed = (np.diff(bases) == [len(text.spelt) for text in texts]).tolist()
        for number, rendered in enumerate(texts):
            placed = is_placed[number] and self._is_unchanged(rendered.spelt)
            if placed and not _is_audited(rendered.spelt):
                continue
            text, spans = rendered.in_characters()
            wanted = encode_with_reference(self._reference, text, spans)
            if placed and not _are_equal(found[number], wanted):
                raise self._differs(text)
            found[number] = wanted
        return found

    def why_unplaced(self) -> str | None:
        """Return why the places of tokens cannot be told from their bytes; None if they can."""
        document = self._document
        if document["model"].get("byte_fallback"):
            return "masks need the characters of each token, which it tells for byte-level BPE alone"
        if adds_prefix_space(document):
            return "masks need the characters of each token, and the tokenizer puts a space before each text"
        added = [token["content"] for token in document.get("added_tokens") or []]
        for content in added:
            if not content.isascii() and content in document["model"]["vocab"]:
                return f"masks need the characters of each token, and {content!r} stands for itself and for other bytes"
        # Where a pre-tokenizer splits was probed with the engine; places depend on the kinds of characters and tokens.
        texts = [*FIXED_PROBES, *(probe for probe in probes_of(added) if len(probe) > LONGEST_SPLIT_PROBE)]
        for text, places in zip(texts, self._places(texts), strict=True):
            if places is not None and not np.array_equal(places, self._reference.encode(text).offsets):
                return f"masks need the characters of each token, which it tells wrongly for {text[:40]!r}"
        return None

    def _places(self, texts: Sequence[str]) -> list[NDArray[np.int64] | None]:
        """Return the offsets of each text's tokens; None where the reference is asked."""
        spelt = [text.encode() for text in texts]
        batch = self._encode(spelt)
        places: list[NDArray[np.int64] | None] = []
        for text, data, tokens in zip(texts, spelt, _cut(batch.tokens, batch.lengths), strict=True):
            ends = np.cumsum(self._lengths[tokens], dtype=np.int64)
            if (int(ends[-1]) if len(ends) else 0) != len(data) or not self._is_unchanged(data):
                places.append(None)
                continue
            character = np.repeat(np.arange(len(text)), [len(letter.encode()) for letter in text])
            begins = np.concatenate([[0], ends])[:-1]
            places.append(np.stack([character[begins], character[ends - 1] + 1], axis=1).reshape(-1, 2))
        return places

    def _encode(self, spelt: Sequence[bytes]) -> TokenBatch:
        """Return the tokens of texts in UTF-8."""
        import pyarrow as pa

        offsets = np.concatenate([[0], np.cumsum(list(map(len, spelt)), dtype=np.int64)])
        data = b"".join(spelt)
        column = pa.LargeStringArray.from_buffers(len(spelt), pa.py_buffer(offsets), pa.py_buffer(data))
        return self._encoder.encode(column)

    def _is_unchanged(self, spelt: bytes) -> bool:
        """Tell whether the normalizer leaves a text as it is: NFC is the only one that the fast engine has."""
        return not self._normalizes or spelt.isascii() or unicodedata.is_normalized("NFC", spelt.decode())

    def _differs(self, text: str) -> TokenizerError:
        shown = repr(text) if len(text) <= 120 else f"{text[:60]!r} … {text[-60:]!r}"
        return TokenizerError(
            f"{self._tokenizer.name}: expected the same tokens from {self._engine.name} and {self._engine.reference}, "
            f"but they differ on {shown}; use --engine reference"
        )

    @functools.cached_property
    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = orjson.loads(self._tokenizer.json)
        return document

    @functools.cached_property
    def _normalizes(self) -> bool:
        return self._document.get("normalizer") is not None

    @functools.cached_property
    def _lengths(self) -> NDArray[np.int32]:
        """Bytes of each token by id; 0 for an id without one."""
        vocabulary: dict[str, int] = self._document["model"]["vocab"]
        added = self._document.get("added_tokens") or []
        size = 1 + max(chain(vocabulary.values(), (token["id"] for token in added)), default=0)
        lengths = np.zeros(size, np.int32)
        # A character stands for a byte; a token in other characters is an added one.
        lengths[list(vocabulary.values())] = list(map(len, vocabulary))
        for token in added:
            lengths[token["id"]] = len(token["content"].encode())
        return lengths


def make_fast_texts(tokenizer: Tokenizer, engine: Engine, reference: ChatTokenizer) -> FastTexts | None:
    """Return the fast engine; None if the engine is the reference."""
    return None if engine.name == engine.reference else FastTexts(tokenizer, engine, reference)


def as_reference(engine: Engine, reason: str) -> Engine:
    """Return the reference in place of an engine, with the reason why it is used."""
    return replace(
        engine,
        name=engine.reference,
        version=engine.reference_version,
        prefix=(),
        suffix=(),
        differing=(),
        reason=reason,
    )


def encode_with_reference(tokenizer: ChatTokenizer, text: str, spans: Sequence[Span]) -> MaskedTokens:
    """Tokenize a text and mask the tokens without a trainable character, by the offsets of the reference."""
    encoded = tokenizer.encode(text)
    mask = mask_from_spans(encoded.offsets, spans, num_characters=len(text))
    return MaskedTokens(tokens=encoded.ids, mask=mask)


def _places_of_spans(texts: Sequence[RenderedText], bases: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (first byte, one past the last) of all spans that are not empty, shape [spans, 2].

    If a text's tokens have fewer bytes than it, its spans end with its tokens, so that they touch no other text.
    """
    counts = [len(text.ends) for text in texts]
    ends = np.fromiter(chain.from_iterable(text.ends for text in texts), np.int64, count=sum(counts))
    spans = (ends + np.repeat(bases[:-1], counts)).reshape(-1, 2)
    after = np.repeat(bases[1:], counts)[::2]
    spans[:, 1] = np.minimum(spans[:, 1], after)
    return spans[spans[:, 0] < spans[:, 1]]


def _mask_tokens(ends: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Mark the tokens that have a byte in a span.

    For tokens of 2, 3 and 1 bytes, `ends` is [2, 5, 6]; the span (1, 3) has the first two.
    """
    first = np.searchsorted(ends, spans[:, 0], side="right")
    after = np.searchsorted(ends, spans[:, 1], side="left") + 1
    mask = np.zeros(len(ends), np.uint8)
    for begin, end in zip(first.tolist(), after.tolist(), strict=True):
        mask[begin:end] = 1
    return mask


def _cut(values: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    return [values[begin:end] for begin, end in pairwise(ends)]


def _is_audited(spelt: bytes) -> bool:
    return len(spelt) <= AUDITED_BYTES and xxhash.xxh3_64_intdigest(spelt) % AUDITED_SHARE == 0


def _are_equal(first: MaskedTokens, second: MaskedTokens) -> bool:
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.mask, second.mask)
