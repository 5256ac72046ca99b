"""Which engine is taken, the same ids from both, and the objects that a process shares."""

import functools
import itertools
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Reference

from dsindex.text import encoders, engines
from dsindex.text.encoders import make_encoder
from dsindex.text.engines import choose_engine
from tests.support import text_tokenizers as trained

pytestmark = pytest.mark.usefixtures("alone")

FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
TEXTS = [*trained.NASTY, *trained.mixed_texts(700, seed=1)]


@functools.cache
def chosen(content, requested, special):
    return choose_engine(trained.as_tokenizer(content), requested, add_special_tokens=special)


def encoder_of(content, requested, *, special=True):
    engine = chosen(content, requested, special)
    return make_encoder(trained.as_tokenizer(content), engine)


def encoded(encoder, texts):
    batch = encoder.encode(texts)
    assert (batch.tokens.dtype, batch.lengths.dtype) == (np.uint32, np.int64)
    assert batch.lengths.shape == (len(texts),)
    assert batch.lengths.sum() == batch.tokens.size
    return [part.tolist() for part in batch.split()]


def expected(content, texts, *, special=True):
    reference = Reference.from_buffer(content)
    reference.no_truncation()
    reference.no_padding()
    return [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=special)]


def with_limits():
    def change(tokenizer):
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=8)

    return trained.byte_level(change)


SUITABLE = {
    "byte-level": trained.byte_level(),
    "bos": trained.with_template("<|bos|> $A"),
    "both": trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    "nfc": trained.with_added(normalizer=normalizers.NFC()),
    "stripping-tokens": trained.with_added(
        AddedToken("Wheel", lstrip=True, special=True), AddedToken("12", normalized=False)
    ),
    "late-tokens": trained.byte_level_document(
        added_tokens=[{**token, "normalized": True} for token in json.loads(trained.byte_level())["added_tokens"]]
    ),
    "truncation-and-padding": with_limits(),
    "sentencepiece-bpe": trained.sentencepiece_bpe(),
}


@pytest.mark.quick(16)
@pytest.mark.parametrize("special", [True, False], ids=["post-processed", "bare"])
@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
@pytest.mark.parametrize("content", SUITABLE.values(), ids=SUITABLE)
def test_engines_give_the_references_ids(content, engine, special):
    encoder = encoder_of(content, engine, special=special)
    assert encoder.engine.name == ("gigatoken" if engine == "auto" else engine)
    for text, got, wanted in zip(
        TEXTS, encoded(encoder, TEXTS), expected(content, TEXTS, special=special), strict=True
    ):
        assert got == wanted, text


UNSUITABLE = {
    "word-piece": (trained.word_piece(), "its model is of the type 'WordPiece', not BPE"),
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
        "its added token '  ' has spaces that 'a' strips",
    ),
    "composed": (
        trained.with_added(AddedToken("É", special=True, normalized=False), normalizer=normalizers.NFC()),
        "its added token 'É' can come out of another text",
    ),
    "twice": (trained.with_template("$A <|eot|> $A"), "its post-processor does more than to add tokens around a text"),
    "hole": (
        trained.byte_level_document(
            added_tokens=[
                {"id": 10**9, "content": "<far>", "special": True} | dict.fromkeys(FLAGS, False)
            ],
        ),
        "its added token '<far>' has another id than the file says",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_auto_falls_back_with_a_reason(content, reason):
    engine = choose_engine(trained.as_tokenizer(content), "auto", add_special_tokens=True)
    assert engine.name == "tokenizers"
    assert reason in engine.reason
    texts = TEXTS[:300]
    assert encoded(encoder_of(content, "auto"), texts) == expected(content, texts)


def test_post_processor_is_tried_and_not_only_read(monkeypatch):
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    monkeypatch.setattr(engines, "tokens_around", lambda _: ((), (1,)))
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.name, engine.reason) == ("tokenizers", "gigatoken gives other ids than tokenizers for ' '")
    assert choose_engine(tokenizer, "auto", add_special_tokens=False).name == "gigatoken"


def test_token_that_overlaps_itself_is_not_put_between_texts():
    token = {"id": 500, "content": "||", "special": True} | dict.fromkeys(FLAGS, False)
    content = trained.byte_level_document(added_tokens=[token])
    texts = ["a wheel|", "b", "|c", ""]
    assert encoded(encoder_of(content, "gigatoken"), texts) == expected(content, texts)


def count_loads(monkeypatch):
    import gigatoken

    loaded = []
    from_json = gigatoken.Tokenizer.from_json
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda data: loaded.append(data) or from_json(data))
    return loaded


@pytest.mark.parametrize(("threads", "memory", "loads"), [(1, None, 2), (2, None, 1), (2, 1 << 30, 2)])
def test_gigatoken_is_built_again_when_caches_of_its_threads_are_full(threads, memory, loads, monkeypatch):
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    sizes = itertools.chain([0], [100] * threads, [101 + (256 << 20)], itertools.repeat(0))
    encoders.make_encoder.cache_clear()
    monkeypatch.setattr(encoders, "CACHED_PER_BYTE", 1 << 36)
    monkeypatch.setattr(encoders, "available_memory", lambda: memory)
    monkeypatch.setattr(encoders, "resident_bytes", lambda: next(sizes))
    built = count_loads(monkeypatch)
    encoder = make_encoder(tokenizer, engine)
    alive = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        [first, *_] = pool.map(lambda _: (alive.wait(), encoded(encoder, TEXTS[:50]))[1], range(threads))
    assert len(built) == 1
    assert encoded(encoder, TEXTS[:50]) == first
    assert len(built) == loads


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["bos", "sentencepiece-bpe"])
def test_threads_share_an_object_and_each_gets_its_own_tokens(name, monkeypatch):
    """More threads than CPUs, with calls of little text, of much, and a rebuild now and then in between."""
    grown = itertools.count(0, 1 << 20)
    monkeypatch.setattr(encoders, "resident_bytes", lambda: next(grown))
    monkeypatch.setattr(encoders, "CACHE_BYTES_PER_THREAD", 1 << 18)
    tokenizer = trained.as_tokenizer(SUITABLE[name])
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "gigatoken", add_special_tokens=True))
    wanted = expected(SUITABLE[name], TEXTS)
    wrong = []
    began = threading.Barrier(6)

    def work(thread):
        began.wait()
        for step in range(30):
            first = (thread * 211 + step * 37) % len(TEXTS)
            last = min(len(TEXTS), first + (5, 60, 400)[step % 3])
            if encoded(encoder, TEXTS[first:last]) != wanted[first:last]:
                wrong.append(first)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert not wrong


def test_threads_of_ours_keep_tokenizers_in_each(monkeypatch):
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "tokenizers", add_special_tokens=True)
    for before, after in [(None, "false"), ("true", "true")]:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
        if before is not None:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        make_encoder(tokenizer, engine).encode(["a"])
        assert os.environ.get("TOKENIZERS_PARALLELISM") == after
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
