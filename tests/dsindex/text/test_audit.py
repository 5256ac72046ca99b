"""A wrong engine is caught, and what is audited depends on the input alone."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.errors import TokenizerError
from dsindex.text import audit as module
from dsindex.text import encoders
from dsindex.text.audit import audit, choose_audit, clip_texts
from dsindex.text.encoders import choose_engine
from tests.support import text_tokenizers as trained

MIB = 1024**2


def large(texts):
    return pa.array(texts, pa.large_string())


@pytest.fixture
def small_strata(monkeypatch):
    monkeypatch.setattr(module, "STRATUM_BYTES", 2048)


def records(count, *, seed, plain=False):
    """Texts and the offsets of their lines, with one to three texts in a record."""
    rng = random.Random(seed)
    texts = []
    offsets = []
    offset = 0
    for _ in range(count):
        parts = [rng.choice(["plain words only. ", *trained.mixed_texts(3, seed=rng.random())]) * rng.randint(0, 60)
                 for _ in range(rng.randint(1, 3))]  # fmt: skip
        parts = ["plain words only. " * rng.randint(0, 60)] if plain else parts
        texts += parts
        offsets += [offset] * len(parts)
        offset += sum(len(part.encode()) for part in parts) + rng.randint(12, 40)
    return texts, offsets


def chosen(texts, offsets, **options):
    array = choose_audit(large(texts), np.array(offsets, np.int64), input_number=3, **options)
    return array.to_pylist()


@pytest.mark.parametrize("special", [True, False])
def test_audit_accepts_equal_engines(special, monkeypatch):
    tokenizer = trained.as_tokenizer(trained.with_template("<|bos|> $A <|eot|>"))
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=special)
    assert engine.name == "gigatoken"  # of the reference there is nothing to audit
    compared = []
    monkeypatch.setattr(module, "make_encoder", lambda *asked: compared.append(1) or encoders.make_encoder(*asked))
    audit(tokenizer, engine, large(trained.NASTY))
    assert compared == [1, 1]
    audit(tokenizer, engine, large([]))
    assert compared == [1, 1]


@pytest.mark.parametrize(("damage", "shown"), [
    (lambda tokens: np.where(tokens == tokens[-1], 7, tokens), r"from token \d+: gigatoken \[.*7"),
    (lambda tokens: tokens + 1, r"from token 0: gigatoken \["),
], ids=["one-id", "all"])  # fmt: skip
def test_audit_catches_a_wrong_engine(monkeypatch, damage, shown):
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    original = encoders.GigatokenEncoder.encode

    def wrong(self, texts):
        batch = original(self, texts)
        return encoders.TokenBatch(tokens=damage(batch.tokens), lengths=batch.lengths)

    monkeypatch.setattr(encoders.GigatokenEncoder, "encode", wrong)
    with pytest.raises(TokenizerError, match=rf"^trained: .* differ on 'wheel' {shown}.*; use --engine tokenizers$"):
        audit(tokenizer, engine, large(["wheel"]))
    with pytest.raises(TokenizerError, match=r"'(x ){30}' … '( x){30}'"):
        audit(tokenizer, engine, large(["x " * 500 + " x" * 500 + "wheel" + " x" * 30]))


@pytest.mark.usefixtures("small_strata")
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), cuts=st.sets(st.integers(0, 60)))
def test_choice_does_not_depend_on_blocks(seed, cuts):
    texts, offsets = records(60, seed=seed)
    starts = sorted(set(offsets))
    whole = chosen(texts, offsets, special_tokens=("<|eot|>",))
    edges = [0, *(offsets.index(starts[cut]) for cut in sorted(cuts) if cut < len(starts)), len(texts)]
    parts = [chosen(texts[a:b], offsets[a:b], special_tokens=("<|eot|>",)) for a, b in itertools.pairwise(edges)]
    assert [excerpt for part in parts for excerpt in part] == whole


@pytest.mark.usefixtures("small_strata")
def test_choice_depends_on_the_input_number():
    texts, offsets = records(300, seed=5)
    found = {
        tuple(choose_audit(large(texts), np.array(offsets), input_number=number).to_pylist()) for number in range(5)
    }
    assert len(found) == 5


def test_choice_keeps_its_budget():
    """At most 16 KiB for 64 MiB of input, at least half of it where every text has something unusual."""
    text = "wörter " * 4096
    size = len(text.encode())
    num_texts = 128 * MIB // (size + 20)
    array = pa.DictionaryArray.from_arrays(np.zeros(num_texts, np.int32), large([text])).cast(pa.large_string())
    offsets = np.arange(num_texts, dtype=np.int64) * (size + 20)
    excerpts = choose_audit(array, offsets, input_number=0).to_pylist()
    total = sum(len(excerpt.encode()) for excerpt in excerpts)
    assert 16 * 1024 <= total <= 32 * 1024
    assert all(excerpt in text for excerpt in excerpts)


@pytest.mark.usefixtures("small_strata")
def test_choice_prefers_unusual_texts():
    plain = chosen(*records(2000, seed=1, plain=True))
    texts, offsets = records(2000, seed=1, plain=True)
    mixed = chosen([text.replace("only", "<|o|>") for text in texts], offsets, special_tokens=("<|o|>",))
    assert 0 < len(plain) < len(mixed) / 2
    assert all("<|o|>" in excerpt or len(excerpt) < 20 for excerpt in mixed if excerpt not in plain)


def test_clip_cuts_texts_at_characters():
    texts = large(["é" * 10, "abc", "", "水" * 10, "last"])
    assert clip_texts(texts, text_bytes=5, total_bytes=100).to_pylist() == ["éé", "abc", "", "水", "last"]
    assert clip_texts(texts, text_bytes=5, total_bytes=8).to_pylist() == ["éé", "abc", ""]
    assert clip_texts(texts.slice(3), text_bytes=5, total_bytes=0).to_pylist() == []


def test_choice_reads_slices():
    texts = ["é" * 9000] * 3
    offsets = np.array([2000 * MIB, 2001 * MIB, 2009 * MIB])
    array = large(["x", *texts])
    sliced = choose_audit(array.slice(1), offsets, input_number=0).to_pylist()
    assert sliced == choose_audit(large(texts), offsets, input_number=0).to_pylist()
