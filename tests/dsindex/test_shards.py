import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.engine.tasks import ShardTask
from dsindex.engine.work_folder import write_marker
from dsindex.engine.worker import ShardSettings, lay_out_documents, lay_out_pbin_documents, tokenize_shard
from dsindex.errors import TokenizerError
from dsindex.text.encoders import TokenBatch
from dsindex.text.engines import choose_engine
from dsindex.text.tokenizer import load_tokenizer, shared_tokenizer
from tests.support.golden import OWN

EOD = 7
documents_strategy = st.lists(st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=4), max_size=12)


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


def batch_of(texts):
    flat = [token for text in texts for token in text]
    return TokenBatch(tokens=np.array(flat, np.uint32), lengths=np.array([len(text) for text in texts], np.int64))


@given(documents=documents_strategy, eod=st.sampled_from([None, EOD]), fast=st.booleans())
def test_lay_out_documents_equals_reference_for_lists_of_texts(documents, eod, fast):
    fast = fast and eod is not None
    batch = batch_of([text for texts in documents for text in texts])
    per_record = np.array([len(texts) for texts in documents], np.int64)
    rule = "eod" if fast else "keep"
    got = lay_out_documents(batch, per_record, dtype=np.dtype("<u2"), eod_id=eod, empty_documents=rule)
    tokens, lengths, per_document = reference(documents, eod, fast=fast)
    assert got.num_empty == sum(not any(texts) for texts in documents)
    assert got.tokens.tolist() == tokens
    assert got.sequence_lengths.tolist() == lengths
    assert got.sequences_per_document.tolist() == per_document
    if eod is not None:
        assert got.eod_in_text == sum(token == eod for texts in documents for text in texts for token in text)


@given(texts=st.lists(st.lists(st.integers(0, 60_000), max_size=5), max_size=12), eod=st.sampled_from([None, EOD]))
def test_lay_out_documents_equals_reference_for_one_text_each(texts, eod):
    got = lay_out_documents(batch_of(texts), None, dtype=np.dtype("<i4"), eod_id=eod)
    tokens, lengths, per_document = reference([[text] for text in texts], eod)
    assert (got.tokens.tolist(), got.sequence_lengths.tolist()) == (tokens, lengths)
    assert got.sequences_per_document.tolist() == per_document
    assert got.tokens.dtype == np.dtype("<i4")


@pytest.mark.parametrize("eod", [None, EOD])
def test_lay_out_documents_never_wraps_a_token(eod):
    with pytest.raises(OverflowError, match="70000 does not fit uint16"):
        lay_out_documents(batch_of([[1, 70_000]]), None, dtype=np.dtype("<u2"), eod_id=eod)


@pytest.mark.parametrize("eod", [None, EOD])
@pytest.mark.parametrize("lay_out", [lay_out_documents, lay_out_pbin_documents])
def test_ids_outside_the_vocabulary_are_refused_even_if_they_do_not_fit(lay_out, eod):
    batch = batch_of([[1, 2], [70_000]])
    arguments = (batch, None) if lay_out is lay_out_documents else (batch,)
    with pytest.raises(TokenizerError, match="below 70000, the size of the vocabulary, got 70000"):
        lay_out(*arguments, dtype=np.dtype("<u2"), eod_id=eod, vocabulary_size=70_000)
    fitting = lay_out(*arguments, dtype=np.dtype("<i4"), eod_id=eod, vocabulary_size=70_001)
    assert fitting.tokens.max() == 70_000


@pytest.mark.parametrize("num_ranges", [1, 2, 5])
def test_texts_of_the_reference_are_the_same_for_any_cut(tmp_path, num_ranges):
    new_letters = ["\u088f", "\u0c5c", "\ua7ce", "\U000323b0"]
    texts = [f"{number}{new_letters[number % 4] if number % 3 == 0 else 'x'}'s wheel\n\nturns" for number in range(90)]
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), encoding="utf-8")
    whole, shared = task_of(path), settings_in(tmp_path)
    cuts = [whole.end * cut // num_ranges for cut in range(num_ranges + 1)]
    tokens = []
    for begin, end in itertools.pairwise(cuts):
        [key] = tokenize_shard(replace(whole, begin=begin, end=end), shared).keys
        tokens += np.fromfile(tmp_path / "work" / key.bin.name, "<u2").tolist()
    wanted = [encoding.ids for encoding in shared_tokenizer(shared.tokenizer).encode_batch(texts)]
    assert tokens == [token for ids in wanted for token in ids]


def task_of(path):
    size, version = path.stat().st_size, str(path.stat().st_mtime_ns)
    return ShardTask(shard=0, input=0, path=str(path), begin=0, end=size, input_size_bytes=size, input_version=version)


def settings_in(folder):
    tokenizer = load_tokenizer(str(OWN.plain_tokenizer))
    work_dir = folder / "work"
    work_dir.mkdir(exist_ok=True)
    write_marker(str(work_dir))
    return ShardSettings(
        tokenizer=tokenizer,
        engine=choose_engine(tokenizer, "gigatoken", add_special_tokens=True),
        keys=("text",),
        dtype="<u2",
        eod_id=None,
        layout="megatron",
        quarantine=False,
        max_record_bytes=None,
        provenance=False,
        work_dir=str(work_dir),
    )
