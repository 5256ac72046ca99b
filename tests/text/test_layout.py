"""The tokens of documents on disk, against the rules of Megatron and Modalities one document at a time."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.errors import TokenizerError
from dsindex.text.encoders import TokenBatch
from dsindex.text.layout import lay_out_documents

EOD = 7
TOKENS = st.integers(0, 60_000) | st.just(EOD)
documents_strategy = st.lists(st.lists(st.lists(TOKENS, max_size=5), max_size=4), max_size=12)


def reference(documents, eod, *, fast=False):
    """Megatron's rule, one document at a time; the fast program appends EOD to a document without tokens as well."""
    tokens = []
    lengths = []
    per_document = []
    for texts in documents:
        sequences = [list(text) for text in texts if text] or ([[]] if fast else [])
        if sequences and eod is not None:
            sequences[-1].append(eod)
        per_document.append(len(sequences))
        for sequence in sequences:
            tokens += sequence
            lengths.append(len(sequence))
    return tokens, lengths, per_document


@given(documents=documents_strategy, eod=st.sampled_from([None, EOD]), fast=st.booleans(), lists=st.booleans())
def test_lay_out_documents_equals_reference(documents, eod, fast, lists):
    fast = fast and eod is not None
    if not lists:
        documents = [[text] for texts in documents for text in texts]
    per_record = np.array([len(texts) for texts in documents], np.int64) if lists else None
    batch = TokenBatch.of_rows([text for texts in documents for text in texts], texts_per_record=per_record)
    rule = "eod" if fast else "keep"
    laid_out = lay_out_documents(batch, dtype=np.dtype("<u2"), eod_id=eod, layout=rule, vocabulary_size=1 << 16)
    tokens, lengths, per_document = reference(documents, eod, fast=fast)
    assert laid_out.num_empty == sum(not any(texts) for texts in documents)
    assert laid_out.tokens.tolist() == tokens
    assert laid_out.sequence_lengths.tolist() == lengths
    assert laid_out.sequences_per_document.tolist() == per_document
    if eod is not None:
        assert laid_out.eod_in_text == sum(token == eod for texts in documents for text in texts for token in text)


def test_lay_out_documents_never_wraps_a_token():
    with pytest.raises(OverflowError, match="70000 does not fit uint16"):
        lay_out_documents(TokenBatch.of_rows([[1, 70_000]]), dtype=np.dtype("<u2"), eod_id=EOD, vocabulary_size=1 << 20)


@pytest.mark.parametrize("lay_out", [lay_out_documents, partial(lay_out_documents, layout="pbin")])
def test_ids_outside_the_vocabulary_are_refused_even_if_they_do_not_fit(lay_out):
    batch = TokenBatch.of_rows([[1, 2], [70_000]])
    with pytest.raises(TokenizerError, match="returned the id 70000 though its vocabulary has 70000 tokens"):
        lay_out(batch, dtype=np.dtype("<u2"), eod_id=EOD, vocabulary_size=70_000)
    fitting = lay_out(batch, dtype=np.dtype("<i4"), eod_id=EOD, vocabulary_size=70_001)
    assert fitting.tokens.max() == 70_000


@given(st.lists(st.lists(st.sampled_from([0, 1, EOD, 60_000]), max_size=4), max_size=12), st.sampled_from([None, EOD]))
def test_lay_out_pbin_documents_drops_empty_texts_and_never_repeats_eod(texts, eod):
    batch = TokenBatch.of_rows(texts)
    laid_out = lay_out_documents(batch, dtype=np.dtype("<u2"), eod_id=eod, layout="pbin", vocabulary_size=1 << 16)
    nonempty_texts = [text for text in texts if text]
    rows = [text if eod is None or text[-1] == eod else [*text, eod] for text in nonempty_texts]
    assert laid_out.tokens.tolist() == [token for text in rows for token in text]
    assert laid_out.sequence_lengths.tolist() == list(map(len, rows))
    assert laid_out.is_document.tolist() == list(map(bool, texts))
    assert laid_out.eod_in_text == (0 if eod is None else sum(text.count(eod) for text in nonempty_texts))
