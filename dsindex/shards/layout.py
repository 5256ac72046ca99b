"""The layout of encoded texts on disk: the sequences of a document, EOD tokens and empty texts.

Megatron's rules and Modalities' rules, each as one vectorised function of a batch.
Source: docs/formats.md, sections 1 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dsindex.dtypes import cast_tokens, require_fit
from dsindex.errors import TokenizerError
from dsindex.kernels.loader import loaded_kernels

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
    texts_per_record: NDArray[np.int64] | None,
    *,
    dtype: np.dtype[Any],
    eod_id: int | None,
    empty_documents: Literal["keep", "eod"] = "keep",
) -> LaidOutDocuments:
    """Arrange encoded texts as Megatron's preprocess_data.py does: drop empty sequences, close documents with EOD.

    A text without ids adds no sequence. EOD is appended to the last sequence of a document that has any token. A
    document without tokens keeps only its boundary, or becomes EOD alone, as with preprocess_data_fast.py.

    Args:
        batch: Ids of all texts, one after the other.
        texts_per_record: Number of texts of each document, shape [documents]; None for one each.
        dtype: Token type on disk.
        eod_id: The EOD token; None to append none.
        empty_documents: What a document without tokens becomes: `keep` for an empty one, `eod` for one of EOD alone,
            which needs `eod_id`.

    Source: docs/formats.md section 1; Megatron-LM tools/preprocess_data.py, Encoder.encode, and
    IndexedDatasetBuilder.add_documents, which preprocess_data_fast.py calls.
    """
    has_tokens = batch.lengths > 0
    lengths = batch.lengths[has_tokens]
    if texts_per_record is None:
        sequences_per_document = has_tokens.astype(np.int64)
    else:
        kept_before = np.concatenate(([0], np.cumsum(has_tokens, dtype=np.int64)))
        ends = np.cumsum(texts_per_record)
        sequences_per_document = kept_before[ends] - kept_before[ends - texts_per_record]
    is_empty = sequences_per_document == 0
    if empty_documents == "eod":
        lengths = np.insert(lengths, np.cumsum(sequences_per_document)[is_empty], 0)  # each grows by EOD below
        sequences_per_document = np.maximum(sequences_per_document, 1)
    if eod_id is None:
        eod_in_text = 0
        tokens = cast_tokens(batch.tokens, dtype)
    else:
        last_sequences = np.cumsum(sequences_per_document)[sequences_per_document > 0] - 1
        lengths[last_sequences] += 1
        places = np.cumsum(lengths)[last_sequences] - 1
        tokens, eod_in_text = _insert_eod(batch.tokens, places, eod_id, dtype=dtype)
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=sequences_per_document,
        num_empty=int(np.count_nonzero(is_empty)),
        eod_in_text=eod_in_text,
    )


def lay_out_pbin_documents(batch: TokenBatch, *, dtype: np.dtype[Any], eod_id: int | None) -> LaidOutDocuments:
    """Arrange encoded texts as Modalities packs them: one sequence each, closed by EOD; empty texts are dropped.

    Args:
        batch: Ids of all texts, one text per document, one after the other.
        dtype: Token type on disk.
        eod_id: Appended to a document unless it is already its last token; None to append none.

    Source: docs/formats.md section 3.
    """
    has_tokens = batch.lengths > 0
    lengths = batch.lengths[has_tokens]
    if eod_id is None:
        eod_in_text = 0
        tokens = cast_tokens(batch.tokens, dtype)
    else:
        lacks_eod = batch.tokens[np.cumsum(lengths) - 1] != eod_id
        lengths = lengths + lacks_eod
        places = np.cumsum(lengths)[lacks_eod] - 1
        tokens, eod_in_text = _insert_eod(batch.tokens, places, eod_id, dtype=dtype)
    return LaidOutDocuments(
        tokens=tokens,
        sequence_lengths=lengths,
        sequences_per_document=np.ones(len(lengths), np.int64),
        num_empty=int(np.count_nonzero(~has_tokens)),
        eod_in_text=eod_in_text,
        is_document=has_tokens,
    )


def _insert_eod(
    tokens: NDArray[np.uint32], places: NDArray[np.int64], eod_id: int, *, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], int]:
    """Return the tokens, cast to `dtype`, with `eod_id` at the given places of the result.

    Returns:
        The result, and how many of the input tokens were `eod_id`.

    Raises:
        OverflowError: If an id does not fit.
    """
    result = np.empty(len(tokens) + len(places), dtype)
    kernels = loaded_kernels()
    if kernels is not None:
        largest, eod_in_text = kernels.insert_token(tokens, places, eod_id, result)
        require_fit(np.array([largest]), dtype)
        return result, eod_in_text
    require_fit(tokens, dtype)
    is_text = np.ones(len(result), np.bool_)
    is_text[places] = False
    result[is_text] = tokens
    result[places] = eod_id
    return result, int(np.count_nonzero(tokens == eod_id))


def check_ids(tokens: NDArray[np.uint32], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        TokenizerError: Naming the largest.
    """
    if tokens.size and int(tokens.max()) >= vocabulary_size:
        msg = (
            f"expected token ids below {vocabulary_size}, the size of the vocabulary, got {tokens.max()}; "
            f"the tokenizer is damaged"
        )
        raise TokenizerError(msg)
