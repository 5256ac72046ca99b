"""The tokens of documents as they are on disk, in the layouts of Megatron-LM and Modalities."""

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
    """A batch in its layout on disk."""

    tokens: NDArray[Any]
    """Token ids in their type on disk, including EOD; shape [tokens]."""
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
    empty_documents: Literal["keep", "eod"] = "keep",
    vocabulary_size: int,
) -> LaidOutDocuments:
    """Arrange encoded texts as Megatron's preprocess_data.py does: drop empty sequences, close documents with EOD.

    A text without ids adds no sequence. EOD is appended to the last sequence of a document that has any token. A
    document without tokens keeps only its boundary, or becomes EOD alone, as with preprocess_data_fast.py.

    Args:
        batch: The ids of all texts.
        dtype: Token type on disk.
        eod_id: The EOD token; None to append none.
        empty_documents: What a document without tokens becomes: `keep` for an empty one, `eod` for one of EOD alone,
            which needs `eod_id`.
        vocabulary_size: Larger token ids are refused.

    Raises:
        TokenizerError: If an id is outside the vocabulary.
        OverflowError: If an id does not fit.

    Source: docs/formats.md section 1; Megatron-LM tools/preprocess_data.py, Encoder.encode, and
    IndexedDatasetBuilder.add_documents, which preprocess_data_fast.py calls.
    """
    has_tokens = batch.lengths > 0
    kept_before = starts_of(has_tokens)
    counts = batch.texts_per_record
    ends = np.arange(1, len(has_tokens) + 1) if counts is None else np.cumsum(counts)
    begins = np.concatenate([[0], ends[:-1]])[: len(ends)]
    sequences_per_document = kept_before[ends] - kept_before[begins]
    is_empty = sequences_per_document == 0
    gets_eod = np.zeros(len(has_tokens), np.bool_)
    if eod_id is not None:
        last_sequences = kept_before[ends][~is_empty] - 1
        gets_eod[np.flatnonzero(has_tokens)[last_sequences]] = True
    tokens, eod_in_text = _place_eod(batch, gets_eod, eod_id, dtype=dtype, vocabulary_size=vocabulary_size)
    lengths = (batch.lengths + gets_eod)[has_tokens]
    if empty_documents == "eod" and eod_id is not None:
        sequences = kept_before[ends][is_empty]
        tokens = np.insert(tokens, starts_of(lengths)[sequences], eod_id)
        lengths = np.insert(lengths, sequences, 1)
        sequences_per_document = np.maximum(sequences_per_document, 1)
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=sequences_per_document,
        num_empty=int(np.count_nonzero(is_empty)),
        eod_in_text=eod_in_text,
    )


def lay_out_pbin_documents(
    batch: TokenBatch, *, dtype: np.dtype[Any], eod_id: int | None, vocabulary_size: int
) -> LaidOutDocuments:
    """Arrange encoded texts as Modalities packs them: one sequence each, closed by EOD; empty texts are dropped.

    Args:
        batch: The ids of all texts, one text per document.
        dtype: Token type on disk.
        eod_id: Appended to a document unless it is already its last token; None to append none.
        vocabulary_size: Larger token ids are refused.

    Raises:
        TokenizerError: If an id is outside the vocabulary.
        OverflowError: If an id does not fit.

    Source: docs/formats.md section 3.
    """
    has_tokens = batch.lengths > 0
    gets_eod = np.zeros(len(has_tokens), np.bool_)
    if eod_id is not None:
        gets_eod[has_tokens] = batch.spaced[batch.places[has_tokens] - 1] != eod_id
    tokens, eod_in_text = _place_eod(batch, gets_eod, eod_id, dtype=dtype, vocabulary_size=vocabulary_size)
    lengths = (batch.lengths + gets_eod)[has_tokens]
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=np.ones(len(lengths), np.int64),
        num_empty=int(np.count_nonzero(~has_tokens)),
        eod_in_text=eod_in_text,
        is_document=has_tokens,
    )


def _place_eod(
    batch: TokenBatch,
    gets_eod: NDArray[np.bool_],
    eod_id: int | None,
    *,
    dtype: np.dtype[Any],
    vocabulary_size: int,
) -> tuple[NDArray[Any], int]:
    """Return the tokens in `dtype`, with EOD after the texts that get one, and the number of EODs among the others."""
    check_ids(batch.spaced, vocabulary_size)
    require_fit(batch.spaced, dtype)
    tokens, places = batch.spaced.astype(dtype), batch.places
    if eod_id is None:
        return np.delete(tokens, places), 0
    tokens[places[gets_eod]] = eod_id
    if not gets_eod.all():
        tokens = np.delete(tokens, places[~gets_eod])
    return tokens, int(np.count_nonzero(tokens == eod_id) - np.count_nonzero(gets_eod))


def check_ids(tokens: NDArray[np.integer[Any]], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        TokenizerError: Naming the largest.
    """
    if tokens.size and int(tokens.max()) >= vocabulary_size:
        raise TokenizerError(
            f"the tokenizer returned the id {tokens.max()} though its vocabulary has {vocabulary_size} tokens"
        )
