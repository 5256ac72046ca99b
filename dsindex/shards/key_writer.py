"""Lay out the tokens of one key of a shard, and write them to its part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.shards.layout import LaidOutDocuments, check_ids, lay_out_documents, lay_out_pbin_documents
from dsindex.shards.tasks import KeyResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dsindex.shards.attempt import PartWriter
    from dsindex.shards.tasks import ShardSettings
    from dsindex.text.encoders import TokenBatch


class KeyWriter:
    """Lays out one key's tokens and writes them to a part."""

    def __init__(self, key: str, part: PartWriter, settings: ShardSettings) -> None:
        self.key = key
        self._part = part
        self._dtype = np.dtype(settings.dtype)
        self._vocabulary_size = settings.tokenizer.vocabulary_size
        self._eod_id = settings.eod_id
        self._empty_documents = settings.empty_documents
        self._layout = settings.layout
        self._empty = self._eod_in_text = self._reference_texts = 0

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return self._part.index.num_tokens

    def add(self, batch: TokenBatch, texts_per_record: NDArray[np.int64] | None) -> LaidOutDocuments:
        """Append encoded texts; the number of texts of each record is None if each has one."""
        check_ids(batch.tokens, self._vocabulary_size)
        if self._layout == "pbin":
            documents = lay_out_pbin_documents(batch, dtype=self._dtype, eod_id=self._eod_id)
        else:
            documents = lay_out_documents(
                batch,
                texts_per_record,
                dtype=self._dtype,
                eod_id=self._eod_id,
                empty_documents=self._empty_documents,
            )
        self._part.add(documents.tokens, documents.sequence_lengths, documents.sequences_per_document)
        self._empty += documents.num_empty
        self._eod_in_text += documents.eod_in_text
        self._reference_texts += batch.num_reference_texts
        return documents

    def finish(self) -> KeyResult:
        """Sync the part and return the result."""
        bin_file, idx_file = self._part.finish()
        index = self._part.index
        return KeyResult(
            key=self.key,
            num_sequences=index.num_sequences,
            num_documents=index.num_documents,
            num_tokens=index.num_tokens,
            num_empty_documents=self._empty,
            eod_in_text=self._eod_in_text,
            num_reference_texts=self._reference_texts,
            bin=bin_file,
            idx=idx_file,
        )
