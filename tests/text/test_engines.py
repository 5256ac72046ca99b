"""Which engine is taken, the same ids from both, and the objects that a process shares."""

import functools
import importlib.metadata
import itertools
import json
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gigatoken
import numpy as np
import pytest
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Reference

from dsindex.errors import TokenizerError
from dsindex.text import encoders, engines
from dsindex.text.encoders import find_texts, make_encoder
from dsindex.text.engines import audit, choose_engine, clip_texts
from tests.agreement import vocabularies as v
from tests.support import text_tokenizers as trained

pytestmark = pytest.mark.usefixtures("alone")

NO_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
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


STRIPPING = AddedToken("Wheel", lstrip=True, special=True)
ADDED = json.loads(trained.byte_level())["added_tokens"]


def limit(tokenizer):
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)


SUITABLE = {
    "byte-level": trained.byte_level(),
    "bos": trained.with_template("<|bos|> $A"),
    "both": trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    "nfc": trained.with_added(normalizer=normalizers.NFC()),
    "stripping-tokens": trained.with_added(STRIPPING, AddedToken("12", normalized=False)),
    "late-tokens": trained.byte_level_document(added_tokens=[{**token, "normalized": True} for token in ADDED]),
    "truncation-and-padding": trained.byte_level(limit),
    "sentencepiece-bpe": trained.sentencepiece_bpe(),
}


@pytest.mark.quick(16)
@pytest.mark.parametrize("special", [True, False], ids=["post-processed", "bare"])
@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
@pytest.mark.parametrize("content", SUITABLE.values(), ids=SUITABLE)
def test_engines_give_the_references_ids(content, engine, special):
    encoder = encoder_of(content, engine, special=special)
    assert encoder.engine.name == ("gigatoken" if engine == "auto" else engine)
    ids, reference_ids = encoded(encoder, TEXTS), expected(content, TEXTS, special=special)
    assert [text for text, *rows in zip(TEXTS, ids, reference_ids, strict=True) if rows[0] != rows[1]] == []


UNSUITABLE = {
    "word-piece": (trained.word_piece(), "its model is of the type 'WordPiece', not BPE"),
    "a-sequence-of-one": (
        trained.byte_level_document(pre_tokenizer=v.sequence(json.loads(trained.byte_level())["pre_tokenizer"])),
        "gigatoken says: Unsupported pre_tokenizer type",
    ),
    "single-word": (trained.with_added(AddedToken("Wheel", single_word=True)), "whole word only"),
    "late-behind-nfc": (trained.with_added(AddedToken("é."), normalizer=normalizers.NFC()), "after the normalizer"),
    "overlapping": (trained.with_added(AddedToken("|>a"), AddedToken("a", special=True)), "can overlap"),
    "strips": (trained.with_added(AddedToken("  "), AddedToken("a", special=True, rstrip=True)),
        "its added token '  ' has spaces that 'a' strips"),
    "composed": (trained.with_added(AddedToken("É", special=True, normalized=False), normalizer=normalizers.NFC()),
        "its added token 'É' can come out of another text"),
    "twice": (trained.with_template("$A <|eot|> $A"), "its post-processor does more than to add tokens around a text"),
    "hole": (
        trained.byte_level_document(added_tokens=[{"id": 10**9, "content": "<far>", "special": True} | NO_FLAGS]),
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
    token = {"id": 500, "content": "||", "special": True} | NO_FLAGS
    content = trained.byte_level_document(added_tokens=[token])
    texts = ["a wheel|", "b", "|c", ""]
    assert encoded(encoder_of(content, "gigatoken"), texts) == expected(content, texts)


@pytest.mark.parametrize(("threads", "memory", "loads"), [(1, None, 2), (2, None, 1), (2, 1 << 30, 2)])
def test_gigatoken_is_built_again_when_caches_of_its_threads_are_full(threads, memory, loads, monkeypatch):
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    sizes = itertools.chain([0], [100] * threads, [101 + (256 << 20)], itertools.repeat(0))
    encoders.make_encoder.cache_clear()
    monkeypatch.setattr(encoders, "CACHED_PER_BYTE", 1 << 36)
    monkeypatch.setattr(encoders, "available_memory", lambda: memory)
    monkeypatch.setattr(encoders, "resident_bytes", lambda: next(sizes))
    built, from_json = [], gigatoken.Tokenizer.from_json
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda data: built.append(data) or from_json(data))
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
    reference_ids = expected(SUITABLE[name], TEXTS)
    wrong = []
    began = threading.Barrier(6)

    def work(thread):
        began.wait()
        for step in range(30):
            first = (thread * 211 + step * 37) % len(TEXTS)
            last = min(len(TEXTS), first + (5, 60, 400)[step % 3])
            if encoded(encoder, TEXTS[first:last]) != reference_ids[first:last]:
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


# Texts on which gigatoken differs are encoded by the reference, and only versions that were compared are taken.


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
    engine = replace(encoder.engine, fast=replace(encoder.engine.fast, unsafe_ranges=()))
    alone = make_encoder(trained.as_tokenizer(content), engine)
    assert encoded(alone, [text]) != expected(content, [text])


@pytest.mark.quick(3)
@pytest.mark.parametrize("content", [
    trained.byte_level(),
    trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    trained.with_added(STRIPPING),
], ids=["plain", "around", "added"])  # fmt: skip
def test_batches_with_both_kinds_of_text_keep_their_order(content, monkeypatch):
    monkeypatch.setattr(encoders, "TEXTS_PER_CALL", 4)
    rng = random.Random(7)
    pieces = [*trained.PIECES, "'s", " Wheel", "\u088f", "\ua7ce", "\U000323b0"]
    texts = ["", *("".join(rng.choices(pieces, k=rng.randint(0, 12))) for _ in range(300)), "\u088f's", ""]
    reference_ids = expected(content, texts)
    for begin, end in [(0, 303), (0, 1), (3, 3), (7, 150), (301, 303)]:
        assert encoded(encoder_of(content, "gigatoken"), texts[begin:end]) == reference_ids[begin:end]


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


def test_audit_catches_a_wrong_engine(monkeypatch):
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    original = encoders.Encoder._encode_fast

    def wrong(self, *texts):
        batch = original(self, *texts)
        return replace(batch, spaced_ids=np.where(batch.spaced_ids == batch.tokens[-1], 7, batch.spaced_ids))

    monkeypatch.setattr(encoders.Encoder, "_encode_fast", wrong)
    with pytest.raises(TokenizerError, match=r"^trained: .* return different tokens for 'wheel'\nhint: use --engine"):
        audit(tokenizer, engine, ["wheel"])
    with pytest.raises(TokenizerError, match=r"'(x ){30}' … '( x){30}'"):
        audit(tokenizer, engine, ["x " * 500 + " x" * 500 + "wheel" + " x" * 30])


def test_texts_are_clipped():
    texts = ["éé", "abcdefgh", "", "水"]
    assert clip_texts(texts, max_characters=5, max_total=100) == ["éé", "abcde", "", "水"]
    assert clip_texts(texts, max_characters=5, max_total=7) == ["éé", "abcde", ""]
    assert clip_texts(texts[1:], max_characters=5, max_total=0) == []


# Texts with a wanted code point are found, wherever in the text and the buffer it stands.

RANGES = [(0x88F, 0x88F), (0xA7CE, 0xA7CF), (0x10940, 0x10959), (0x323B0, 0x33479)]
EDGES = [0x88E, 0x88F, 0x890, 0xA7CD, 0xA7CE, 0xA7CF, 0xA7D0, 0x1093F, 0x10940, 0x10959, 0x1095A, 0x323AF, 0x323B0,
         0x33479, 0x3347A, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x10000, 0x10FFFF]  # fmt: skip
PLAIN = ["a", "plain words, ", "é", "Привет ", "中文", "😀"]


@pytest.mark.parametrize("ranges", [RANGES, [(0x80, 0x80), (0x7FF, 0x7FF)], [(0x10FFFF, 0x10FFFF)]], ids=str)
def test_texts_with_a_member_are_found(ranges):
    rng = random.Random(3)
    pieces = [*PLAIN * 180, *map(chr, EDGES)]
    texts = ["".join(rng.choices(pieces, k=rng.randint(0, 60))) for _ in range(800)]
    points = {point for first, last in ranges for point in range(first, last + 1)}
    numbers = [number for number, text in enumerate(texts) if points.intersection(map(ord, text))]
    assert 0 < len(numbers) < len(texts)
    assert find_texts(texts, list(map(str.encode, texts)), tuple(ranges)) == numbers
