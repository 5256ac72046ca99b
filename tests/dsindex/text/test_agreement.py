"""Texts on which gigatoken differs are encoded by the reference, and only versions that were compared are taken."""

import functools
import importlib.metadata
import random
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Reference

from dsindex.errors import TokenizerError
from dsindex.text import encoders
from dsindex.text.encoders import make_encoder
from dsindex.text.engines import (
    choose_engine,
)
from tests.agreement import vocabularies as v
from tests.support import text_tokenizers as trained


@functools.cache
def splitting(name="gpt2", normalizer=None):
    """A tokenizer that shows in its ids where it splits."""
    added = {"normalizer": normalizer and {"type": normalizer}, "pre_tokenizer": v.pattern_splits(name)}
    return v.with_model(v.bpe(v.joining_merges()), **added)


@functools.cache
def loaded(content):
    tokenizer = trained.as_tokenizer(content)
    return tokenizer, choose_engine(tokenizer, "gigatoken", add_special_tokens=True)


def encoded(content, texts, *, differing=True):
    """Encode with gigatoken, or with gigatoken alone as if it agreed everywhere."""
    tokenizer, engine = loaded(content)
    if not differing:
        engine = replace(engine, differing=())
    return make_encoder(tokenizer, engine).encode(texts)


def reference(content, texts):
    return [encoding.ids for encoding in Reference.from_buffer(content).encode_batch(texts)]


def by_text(batch):
    return [part.tolist() for part in np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])]


@pytest.mark.parametrize(("name", "normalizer", "text"), [
    ("gpt2", None, "\u088f's"),
    ("gpt2", None, "\U000323b0's"),
    ("o200k", None, "a\U0001e6e3B"),
    ("gpt2", "NFC", "a\u0301\u0898\u0323"),
])  # fmt: skip
def test_what_is_new_to_a_part_is_the_references(name, normalizer, text):
    content = splitting(name, normalizer)
    wanted = reference(content, [text])
    assert by_text(encoded(content, [text], differing=False)) != wanted
    batch = encoded(content, [text])
    assert by_text(batch) == wanted


@pytest.mark.quick(3)
@pytest.mark.parametrize("content", [
    trained.byte_level(),
    trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    trained.with_added(AddedToken("Wheel", lstrip=True, special=True)),
], ids=["plain", "around", "added"])  # fmt: skip
def test_batches_with_both_kinds_of_text_keep_their_order(content, monkeypatch):
    monkeypatch.setattr(encoders, "REFERENCE_BATCH_BYTES", 50)
    rng = random.Random(7)
    pieces = [*trained.PIECES, "'s", " Wheel", "\u088f", "\ua7ce", "\U000323b0"]
    texts = ["", *("".join(rng.choices(pieces, k=rng.randint(0, 12))) for _ in range(300)), "\u088f's", ""]
    wanted = reference(content, texts)
    batch = encoded(content, texts)
    assert by_text(batch) == wanted
    for begin, end in [(0, 1), (0, 7), (3, 3), (7, 150), (301, 303)]:
        part = make_encoder(*loaded(content)).encode(texts[begin:end])
        assert part.tokens.tolist() == [token for ids in wanted[begin:end] for token in ids]
        assert part.lengths.tolist() == [len(ids) for ids in wanted[begin:end]]


def test_plain_texts_never_load_the_reference(monkeypatch):
    content = splitting()
    encoder = make_encoder(*loaded(content))
    wanted = reference(content, trained.SENTENCES)
    monkeypatch.setattr(encoders, "encode_by_reference", None)
    batch = encoder.encode(trained.SENTENCES)
    assert by_text(batch) == wanted


@pytest.fixture
def installed(monkeypatch):
    real = importlib.metadata.version

    def install(package, version):
        monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == package else real(name))

    return install


@pytest.mark.parametrize("package", ["gigatoken", "tokenizers"])
def test_versions_that_were_not_compared_are_not_taken(package, installed):
    installed(package, "0.10.99")
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == "tokenizers"
    assert "was not compared with tokenizers" in engine.reason
    assert "0.10.99" in engine.reason
    with pytest.raises(TokenizerError, match=r"was not compared with tokenizers .*; use --engine tokenizers$"):
        choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    assert choose_engine(tokenizer, "tokenizers", add_special_tokens=True).reason == "asked for"
