"""Tokenize the sequences of many records at once: rendered texts with spans or markers, and segments."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.errors import RecordProblem
from dsindex.instruction.construction import Segment
from dsindex.instruction.rendered import RenderedText
from dsindex.instruction.token_batches import MaskedTokens, encode_with_reference
from dsindex.instruction.tokens import mask_between_markers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.instruction.token_batches import FastTexts
    from dsindex.instruction.tokens import ChatTokenizer

Source = RenderedText | list[Segment]
"""What one sequence is made of: a text with its trainable spans, or segments."""


class SequenceTokenizer:
    """Tokenizes sequences, and masks their tokens.

    Args:
        tokenizer: The tokenizer.
        fast: Its fast engine; None for the reference.
        special_ids: Name -> id of the special tokens of segments.
        markers: Ids of the tokens that open and close a trainable part of a rendered text; empty to use its spans.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        fast: FastTexts | None,
        special_ids: Mapping[str, int],
        markers: Sequence[int],
    ) -> None:
        self._tokenizer = tokenizer
        self._fast = fast
        self._special_ids = special_ids
        self._markers = markers

    def tokenize(self, sources: Sequence[Source]) -> Sequence[MaskedTokens | RecordProblem]:
        """Tokenize sequences, which are all texts or all segments.

        Returns:
            For each its tokens and mask, or the problem of its markers.
        """
        if not sources:
            return []
        if isinstance(sources[0], list):
            return self._tokenize_segments([source for source in sources if isinstance(source, list)])
        rendered = [source for source in sources if isinstance(source, RenderedText)]
        if self._markers:
            texts = [text.spelt.decode() for text in rendered]
            return [self._mask_between(ids) for ids in _cut(*self._encode(texts))]
        if self._fast is not None:
            return self._fast.encode_spans(rendered)
        return [encode_with_reference(self._tokenizer, *text.in_characters()) for text in rendered]

    def _tokenize_segments(self, sequences: Sequence[Sequence[Segment]]) -> list[MaskedTokens]:
        segments = list(chain.from_iterable(sequences))
        is_text = np.array([segment.special is None for segment in segments], dtype=bool)
        tokens, counts = self._encode([segment.text for segment in segments if segment.special is None])
        lengths = np.ones(len(segments), np.int64)
        lengths[is_text] = counts
        from_text = np.repeat(is_text, lengths)
        joined = np.empty(len(from_text), np.uint32)
        joined[from_text] = tokens
        joined[~from_text] = [self._special_ids[segment.special] for segment in segments if segment.special is not None]
        mask = np.repeat(np.array([segment.trainable for segment in segments], np.uint8), lengths)
        ends = np.cumsum(lengths)[np.cumsum([len(sequence) for sequence in sequences]) - 1]
        in_sequences = np.diff(ends, prepend=0)
        return [
            MaskedTokens(tokens=own, mask=own_mask)
            for own, own_mask in zip(_cut(joined, in_sequences), _cut(mask, in_sequences), strict=True)
        ]

    def _encode(self, texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the tokens of texts, one after the other, and the number of tokens of each."""
        if self._fast is not None:
            batch = self._fast.encode(texts)
            return batch.tokens, batch.lengths
        return self._tokenizer.encode_ids(texts)

    def _mask_between(self, ids: NDArray[np.uint32]) -> MaskedTokens | RecordProblem:
        begin_id, end_id = self._markers
        try:
            return MaskedTokens(tokens=ids, mask=mask_between_markers(ids, begin_id=begin_id, end_id=end_id))
        except RecordProblem as problem:
            return problem


def text_of(rendered: RenderedText | RecordProblem) -> RenderedText:
    """Return a rendered text.

    Raises:
        RecordProblem: If it was not rendered.
    """
    if isinstance(rendered, RecordProblem):
        raise rendered
    return rendered


def tokens_of(tokens: MaskedTokens | RecordProblem) -> MaskedTokens:
    """Return tokens.

    Raises:
        RecordProblem: If there is a problem in their place.
    """
    if isinstance(tokens, RecordProblem):
        raise tokens
    return tokens


def _cut(values: NDArray[np.generic], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    ends = [0, *np.cumsum(lengths).tolist()]
    return [values[begin:end] for begin, end in pairwise(ends)]
