"""Both engines give the ids of `tokenizers`, text by text, for every tokenizer that they accept."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.text import encoders
from tests.dsindex.text.encoded_texts import SUITABLE, TEXTS, encoded, encoder_of, expected, large
from tests.support import text_tokenizers as trained
from tests.support.golden import MODALITIES, TOKENIZERS

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.quick(8)
@pytest.mark.parametrize("special", [True, False], ids=["post-processed", "bare"])
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("content", SUITABLE.values(), ids=SUITABLE)
def test_engines_give_the_references_ids(content, engine, special):
    encoder = encoder_of(content, engine, special=special)
    assert encoder.engine.name == engine
    for text, got, wanted in zip(
        TEXTS, encoded(encoder, TEXTS), expected(content, TEXTS, special=special), strict=True
    ):
        assert got == wanted, text


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("texts", [[], [""], ["", "", ""], ["a", "", "b", ""]], ids=repr)
def test_empty_batches_and_texts(engine, texts):
    for name in ("byte-level", "both"):
        assert encoded(encoder_of(SUITABLE[name], engine), texts) == expected(SUITABLE[name], texts)


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_slices_are_read_where_they_lie(engine):
    encoder = encoder_of(SUITABLE["bos"], engine)
    array = large(TEXTS)
    for begin, end in [(0, 1), (3, 3), (5, 40), (len(TEXTS) - 2, len(TEXTS))]:
        batch = encoder.encode(array.slice(begin, end - begin))
        wanted = expected(SUITABLE["bos"], TEXTS[begin:end])
        assert batch.lengths.tolist() == [len(ids) for ids in wanted]
        assert batch.tokens.tolist() == [token for ids in wanted for token in ids]


@pytest.mark.parametrize("batch_bytes", [1, 7, 100])
def test_result_does_not_depend_on_the_batches(monkeypatch, batch_bytes):
    monkeypatch.setattr(encoders, "REFERENCE_BATCH_BYTES", batch_bytes)
    texts = ["", "", *TEXTS[:200], ""]
    assert encoded(encoder_of(SUITABLE["bos"], "tokenizers"), texts) == expected(SUITABLE["bos"], texts)


@pytest.mark.exhaustive
@settings(max_examples=80)
@given(texts=st.lists(st.text() | st.lists(st.sampled_from(trained.PIECES)).map("".join), max_size=8))
@pytest.mark.parametrize("name", ["bos", "nfc", "stripping-tokens", "sentencepiece-bpe"])
def test_engines_agree_on_any_text(name, texts):
    wanted = expected(SUITABLE[name], texts)
    assert encoded(encoder_of(SUITABLE[name], "gigatoken"), texts) == wanted
    assert encoded(encoder_of(SUITABLE[name], "tokenizers"), texts) == wanted


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_engines_agree_on_golden_documents(name):
    content = (TOKENIZERS[name] / "tokenizer.json").read_bytes()
    lines = (MODALITIES / "nonempty.jsonl").read_bytes().splitlines()
    texts = [json.loads(line)["text"] for line in lines] + TEXTS
    wanted = expected(content, texts)
    for engine in ("gigatoken", "tokenizers"):
        assert encoded(encoder_of(content, engine), texts) == wanted
