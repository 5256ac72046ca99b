"""Lay out the tokens of documents as Megatron-LM and Modalities store them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.errors import TokenizerError
from dsindex.formats.dtypes import require_fit, starts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.text.encoders import TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOutDocuments:
    """A batch of documents as stored on disk."""

    tokens: NDArray[Any]
    """Token ids in the on-disk type, including EOD; shape [tokens]."""
    sequence_lengths: NDArray[np.int64]
    """Tokens of each sequence including EOD, never 0; shape [sequences]."""
    sequences_per_document: NDArray[np.int64]
    """Sequences of each document, 0 for one without tokens; shape [documents]."""
    num_empty: int
    """Number of documents whose texts have no tokens."""
    eod_in_text: int
    is_document: NDArray[np.bool_] | None = None
    """Which records became documents, shape [records]; None if all did."""


def lay_out_documents(
    batch: TokenBatch,
    *,
    dtype: np.dtype[Any],
    eod_id: int | None,
    layout: Literal["keep", "eod", "pbin"] = "keep",
    vocabulary_size: int,
) -> LaidOutDocuments:
    """Arrange encoded texts as documents of Megatron-LM or Modalities.

    As in Megatron's preprocess_data.py, a text without tokens adds no sequence, and EOD is appended to the last
    sequence of a document that has tokens.

    Args:
        batch: The ids of all texts; for Modalities, one text per document.
        dtype: Token type on disk.
        eod_id: The EOD token; None to append no EOD.
        layout: How a document without tokens is stored: without a sequence (`keep`), or as EOD alone (`eod`), as in
            preprocess_data_fast.py. Modalities (`pbin`) drops it, and appends no EOD to a document that ends with EOD.
        vocabulary_size: Token ids of this size or more are refused.

    Raises:
        TokenizerError: If an id is outside the vocabulary.
        OverflowError: If an id does not fit `dtype`.

    Source: docs/formats.md sections 1 and 3; Megatron-LM tools/preprocess_data.py, Encoder.encode, and
    IndexedDatasetBuilder.add_documents, which preprocess_data_fast.py calls.
    """
    has_tokens, slots = batch.lengths > 0, batch.slots
    sequences_before = starts_of(has_tokens)
    counts = batch.texts_per_record
    ends = np.arange(1, len(has_tokens) + 1) if counts is None else np.cumsum(counts)
    begins = np.concatenate([[0], ends[:-1]])[: len(ends)]
    sequences_per_document = sequences_before[ends] - sequences_before[begins]
    is_empty = sequences_per_document == 0
    gets_eod = np.zeros(len(has_tokens), np.bool_)
    if eod_id is not None:
        last_texts = np.flatnonzero(has_tokens)[sequences_before[ends][~is_empty] - 1]
        gets_eod[last_texts] = layout != "pbin" or batch.spaced_ids[slots[last_texts] - 1] != eod_id
    check_ids(batch.spaced_ids, vocabulary_size)
    require_fit(batch.spaced_ids, dtype)
    tokens, eod_in_text = batch.spaced_ids.astype(dtype), 0
    tokens[slots[gets_eod]] = eod_id or 0
    if not gets_eod.all():
        tokens = np.delete(tokens, slots[~gets_eod])
    if eod_id is not None:
        eod_in_text = int(np.count_nonzero(tokens == eod_id) - np.count_nonzero(gets_eod))
    lengths = (batch.lengths + gets_eod)[has_tokens]
    if layout == "eod" and eod_id is not None:
        sequences = sequences_before[ends][is_empty]
        tokens = np.insert(tokens, starts_of(lengths)[sequences], eod_id)
        lengths = np.insert(lengths, sequences, 1)
        sequences_per_document = np.maximum(sequences_per_document, 1)
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=sequences_per_document[~is_empty] if layout == "pbin" else sequences_per_document,
        num_empty=int(np.count_nonzero(is_empty)),
        eod_in_text=eod_in_text,
        is_document=~is_empty if layout == "pbin" else None,
    )


def check_ids(tokens: NDArray[np.integer[Any]], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        TokenizerError: If there is one; the message names the largest id.
    """
    if tokens.size and int(tokens.max()) >= vocabulary_size:
        problem = f"the tokenizer returned the id {tokens.max()} though its vocabulary has {vocabulary_size} tokens"
        raise TokenizerError(problem)
