"""Texts on which gigatoken differs are encoded by the reference, and only versions that were compared are taken."""

import functools
import importlib.metadata
import random
from dataclasses import replace

import pytest
from tokenizers import AddedToken

from dsindex.errors import TokenizerError
from dsindex.text import encoders
from dsindex.text.encoders import make_encoder
from dsindex.text.engines import choose_engine
from tests.agreement import vocabularies as v
from tests.support import text_tokenizers as trained
from tests.text.test_engines import encoded, encoder_of, expected


@functools.cache
def splitting(name="gpt2", normalizer=None):
    """A tokenizer that shows in its ids where it splits."""
    added = {"normalizer": normalizer and {"type": normalizer}, "pre_tokenizer": v.pattern_splits(name)}
    return v.with_model(v.bpe(v.joining_merges()), **added)


@pytest.mark.parametrize(("name", "normalizer", "text"), [
    ("gpt2", None, "\u088f's"),
    ("gpt2", None, "\U000323b0's"),
    ("o200k", None, "a\U0001e6e3B"),
    ("gpt2", "NFC", "a\u0301\u0898\u0323"),
])  # fmt: skip
def test_what_is_new_to_a_part_is_the_references(name, normalizer, text):
    content = splitting(name, normalizer)
    encoder = encoder_of(content, "gigatoken")
    assert encoded(encoder, [text]) == expected(content, [text])
    alone = make_encoder(
        trained.as_tokenizer(content), replace(encoder.engine, fast=replace(encoder.engine.fast, differing=()))
    )
    assert encoded(alone, [text]) != expected(content, [text])


@pytest.mark.quick(3)
@pytest.mark.parametrize("content", [
    trained.byte_level(),
    trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    trained.with_added(AddedToken("Wheel", lstrip=True, special=True)),
], ids=["plain", "around", "added"])  # fmt: skip
def test_batches_with_both_kinds_of_text_keep_their_order(content, monkeypatch):
    monkeypatch.setattr(encoders, "TEXTS_PER_CALL", 4)
    rng = random.Random(7)
    pieces = [*trained.PIECES, "'s", " Wheel", "\u088f", "\ua7ce", "\U000323b0"]
    texts = ["", *("".join(rng.choices(pieces, k=rng.randint(0, 12))) for _ in range(300)), "\u088f's", ""]
    wanted = expected(content, texts)
    for begin, end in [(0, 303), (0, 1), (3, 3), (7, 150), (301, 303)]:
        assert encoded(encoder_of(content, "gigatoken"), texts[begin:end]) == wanted[begin:end]


def test_plain_texts_never_load_the_reference(monkeypatch):
    encoder = encoder_of(splitting(), "gigatoken")
    monkeypatch.setattr(encoders, "_call_library", None)
    assert encoded(encoder, trained.SENTENCES) == expected(splitting(), trained.SENTENCES)


@pytest.mark.parametrize("package", ["gigatoken", "tokenizers"])
def test_versions_that_were_not_compared_are_not_taken(package, monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.99" if name == package else real(name))
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == "tokenizers"
    assert "was not compared with tokenizers" in engine.reason
    assert "0.10.99" in engine.reason
    with pytest.raises(TokenizerError, match=r"was not compared with tokenizers .*\nhint: use --engine reference$"):
        choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    assert choose_engine(tokenizer, "tokenizers", add_special_tokens=True).reason == ""
