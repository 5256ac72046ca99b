"""Which engine is taken for a tokenizer, and why not the other one."""

import copy
import json
import pickle

import pytest
from tokenizers import AddedToken, normalizers

from dsindex.errors import TokenizerError
from dsindex.text import engines
from dsindex.text.encoders import choose_engine
from tests.dsindex.text.encoded_texts import SUITABLE, TEXTS, encoded, encoder_of, expected
from tests.support import text_tokenizers as trained

pytestmark = pytest.mark.usefixtures("alone")

UNSUITABLE = {
    "word-piece": (trained.word_piece(), "its model is of the type 'WordPiece', not BPE"),
    "unigram": (trained.unigram(), "its model is of the type 'Unigram', not BPE"),
    "lowercase": (trained.lowercase(), "its normalizer is not among those that were compared (Lowercase())"),
    "no-pre-tokenizer": (
        trained.byte_level_document(pre_tokenizer=None),
        "its pre-tokenizer is not among those that were compared (none)",
    ),
    "a-sequence-of-one": (
        trained.byte_level_document(
            pre_tokenizer={"type": "Sequence", "pretokenizers": [json.loads(trained.byte_level())["pre_tokenizer"]]}
        ),
        "gigatoken says: Unsupported pre_tokenizer type",
    ),
    "single-word": (trained.with_added(AddedToken("Wheel", single_word=True)), "whole word only"),
    "late-behind-nfc": (trained.with_added(AddedToken("é."), normalizer=normalizers.NFC()), "after the normalizer"),
    "overlapping": (trained.with_added(AddedToken("|>a"), AddedToken("a", special=True)), "can overlap"),
    "strips": (
        trained.with_added(AddedToken("  "), AddedToken("a", special=True, rstrip=True)),
        "its added token 'a' strips the spaces that '  ' has",
    ),
    "strips-both": (trained.with_added(AddedToken("1"), AddedToken("a", special=True, rstrip=True)), "can overlap"),
    "composed": (
        trained.with_added(AddedToken("É", special=True, normalized=False), normalizer=normalizers.NFC()),
        "its added token 'É' can come out of another text",
    ),
    "twice": (trained.with_template("$A <|eot|> $A"), "holds the text 2 times"),
    "hole": (
        trained.byte_level_document(
            added_tokens=[
                {"id": 10**9, "content": "<far>", "special": True, "normalized": False}
                | dict.fromkeys(["single_word", "lstrip", "rstrip"], False)
            ],
        ),
        "ids have holes: 1000000000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("content", SUITABLE.values(), ids=SUITABLE)
def test_auto_takes_gigatoken_where_it_can(content):
    engine = choose_engine(trained.as_tokenizer(content), "auto", add_special_tokens=True)
    assert (engine.name, engine.reason) == ("gigatoken", "")
    assert engine.version


@pytest.mark.parametrize(("content", "reason"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_auto_falls_back_with_a_reason(content, reason):
    engine = choose_engine(trained.as_tokenizer(content), "auto", add_special_tokens=True)
    assert engine.name == "tokenizers"
    assert reason in engine.reason
    texts = TEXTS[:300]
    assert encoded(encoder_of(content, "auto"), texts) == expected(content, texts)


@pytest.mark.parametrize(("content", "reason"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_demanded_gigatoken_is_refused_with_the_reason(content, reason):
    with pytest.raises(TokenizerError, match=r"use --engine tokenizers$") as caught:
        choose_engine(trained.as_tokenizer(content), "gigatoken", add_special_tokens=True)
    assert reason in str(caught.value)


def test_post_processor_is_tried_and_not_only_read(monkeypatch):
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    monkeypatch.setattr(engines, "_fixed_tokens", lambda _: ((), (1,)))
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.name, engine.reason) == ("tokenizers", "its post-processor does more than to add fixed tokens")
    assert choose_engine(tokenizer, "auto", add_special_tokens=False).name == "gigatoken"


def test_fixed_tokens_are_part_of_the_engine():
    tokenizer = trained.as_tokenizer(SUITABLE["sequence"])
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.prefix, engine.suffix) == ((1, 0), (1,))
    assert copy.deepcopy(engine) == engine
    assert pickle.dumps(engine)


def test_wrong_engine_name_is_misuse():
    wrong = "fast"
    with pytest.raises(ValueError, match="expected an engine auto, gigatoken, reference or tokenizers, got 'fast'"):
        choose_engine(trained.as_tokenizer(trained.byte_level()), wrong, add_special_tokens=True)
