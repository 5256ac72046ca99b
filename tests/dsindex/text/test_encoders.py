"""Both engines give the ids of `tokenizers`, text by text, for every tokenizer that they accept."""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Reference

from dsindex.errors import TokenizerError
from dsindex.text import encoders, engines, fast_tokenizers
from dsindex.text.encoders import Encoder, Engine, choose_engine, encoder_for_thread, release_encoder
from tests.dsindex.text import trained

SHARED = Path(__file__).parents[3] / "../shared"
TEXTS = [*trained.NASTY, *trained.mixed_texts(1500, seed=1)]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setattr(fast_tokenizers, "_SPARE", {})


def large(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


@functools.cache
def chosen(content: bytes, requested: Literal["auto", "gigatoken", "tokenizers"], special: bool) -> Engine:
    return choose_engine(trained.as_tokenizer(content), requested, add_special_tokens=special)


def encoder_of(
    content: bytes, requested: Literal["auto", "gigatoken", "tokenizers"], *, special: bool = True
) -> Encoder:
    engine = chosen(content, requested, special)
    return encoder_for_thread(trained.as_tokenizer(content), engine)


def encoded(encoder: Encoder, texts: list[str]) -> list[list[int]]:
    batch = encoder.encode(large(texts))
    assert (batch.tokens.dtype, batch.lengths.dtype) == (np.uint32, np.int64)
    assert batch.lengths.shape == (len(texts),)
    assert batch.lengths.sum() == batch.tokens.size
    return [part.tolist() for part in np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])] if texts else []


def expected(content: bytes, texts: list[str], *, special: bool = True) -> list[list[int]]:
    reference = Reference.from_buffer(content)
    reference.no_truncation()
    reference.no_padding()
    return [encoding.ids for encoding in reference.encode_batch(texts, add_special_tokens=special)]


def with_limits() -> bytes:
    def change(tokenizer: Reference) -> None:
        tokenizer.enable_truncation(4)
        tokenizer.enable_padding(length=8)

    return trained.byte_level(change)


SUITABLE = {
    "byte-level": trained.byte_level(),
    "no-post-processor": trained.byte_level_document(post_processor=None),
    "bos": trained.with_template("<|bos|> $A"),
    "eos": trained.with_template("$A <|eot|>"),
    "both": trained.with_template("<|bos|> <|eot|> $A <|eot|>"),
    "roberta": trained.byte_level_document(
        post_processor={"type": "RobertaProcessing", "sep": ["<|eot|>", 0], "cls": ["<|bos|>", 1]}
        | {"trim_offsets": True, "add_prefix_space": False}
    ),
    "sequence": trained.byte_level_document(
        post_processor={
            "type": "Sequence",
            "processors": [
                json.loads(trained.byte_level())["post_processor"],
                json.loads(trained.with_template("<|bos|> <|eot|> $A <|bos|>"))["post_processor"],
            ],
        }
    ),
    "two-templates": trained.byte_level_document(
        post_processor={
            "type": "Sequence",
            "processors": [
                json.loads(trained.with_template(single))["post_processor"] for single in ("<|bos|> $A", "$A <|eot|>")
            ],
        }
    ),
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
UNSUITABLE = {
    "word-piece": (trained.word_piece(), "gigatoken says"),
    "unigram": (trained.unigram(), "gigatoken says: Unsupported model type"),
    "lowercase": (trained.lowercase(), "gigatoken says: Unsupported normalizer"),
    "no-pre-tokenizer": (trained.byte_level_document(pre_tokenizer=None), "gigatoken gives other ids than tokenizers"),
    "single-word": (trained.with_added(AddedToken("Wheel", single_word=True)), "whole word only"),
    "late-behind-nfc": (trained.with_added(AddedToken("é."), normalizer=normalizers.NFC()), "after the normalizer"),
    "overlapping": (trained.with_added(AddedToken("|>a"), AddedToken("a", special=True)), "can overlap"),
    "strips": (trained.with_added(AddedToken("  "), AddedToken("a", special=True, rstrip=True)), "can overlap"),
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


@pytest.mark.parametrize("special", [True, False], ids=["post-processed", "bare"])
@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("content", SUITABLE.values(), ids=SUITABLE)
def test_engines_give_the_references_ids(content: bytes, engine: Any, special: bool) -> None:
    encoder = encoder_of(content, engine, special=special)
    assert encoder.engine.name == engine
    for text, got, wanted in zip(
        TEXTS, encoded(encoder, TEXTS), expected(content, TEXTS, special=special), strict=True
    ):
        assert got == wanted, text


@pytest.mark.parametrize("content", SUITABLE.values(), ids=SUITABLE)
def test_auto_takes_gigatoken_where_it_can(content: bytes) -> None:
    engine = choose_engine(trained.as_tokenizer(content), "auto", add_special_tokens=True)
    assert (engine.name, engine.reason) == ("gigatoken", "")
    assert engine.version


@pytest.mark.parametrize(("content", "reason"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_auto_falls_back_with_a_reason(content: bytes, reason: str) -> None:
    engine = choose_engine(trained.as_tokenizer(content), "auto", add_special_tokens=True)
    assert engine.name == "tokenizers"
    assert reason in engine.reason
    texts = TEXTS[:300]
    assert encoded(encoder_of(content, "auto"), texts) == expected(content, texts)


@pytest.mark.parametrize(("content", "reason"), UNSUITABLE.values(), ids=UNSUITABLE)
def test_demanded_gigatoken_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(TokenizerError, match=r"use --engine tokenizers$") as caught:
        choose_engine(trained.as_tokenizer(content), "gigatoken", add_special_tokens=True)
    assert reason in str(caught.value)


def test_post_processor_is_tried_and_not_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    monkeypatch.setattr(engines, "_fixed_tokens", lambda _: ((), (1,)))
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.name, engine.reason) == ("tokenizers", "its post-processor does more than to add fixed tokens")
    assert choose_engine(tokenizer, "auto", add_special_tokens=False).name == "gigatoken"


def test_fixed_tokens_are_part_of_the_engine() -> None:
    tokenizer = trained.as_tokenizer(SUITABLE["sequence"])
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.prefix, engine.suffix) == ((1, 0), (1,))
    assert copy.deepcopy(engine) == engine
    assert pickle.dumps(engine)


def test_wrong_engine_name_is_misuse() -> None:
    wrong: Any = "fast"
    with pytest.raises(ValueError, match="expected an engine auto, gigatoken or tokenizers, got 'fast'"):
        choose_engine(trained.as_tokenizer(trained.byte_level()), wrong, add_special_tokens=True)


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
@pytest.mark.parametrize("texts", [[], [""], ["", "", ""], ["a", "", "b", ""]], ids=repr)
def test_empty_batches_and_texts(engine: Any, texts: list[str]) -> None:
    for name in ("byte-level", "both"):
        assert encoded(encoder_of(SUITABLE[name], engine), texts) == expected(SUITABLE[name], texts)


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_slices_are_read_where_they_lie(engine: Any) -> None:
    encoder = encoder_of(SUITABLE["bos"], engine)
    array = large(TEXTS)
    for begin, end in [(0, 1), (3, 3), (5, 40), (len(TEXTS) - 2, len(TEXTS))]:
        batch = encoder.encode(array.slice(begin, end - begin))
        wanted = expected(SUITABLE["bos"], TEXTS[begin:end])
        assert batch.lengths.tolist() == [len(ids) for ids in wanted]
        assert batch.tokens.tolist() == [token for ids in wanted for token in ids]


@pytest.mark.parametrize("batch_bytes", [1, 7, 100])
def test_result_does_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch, batch_bytes: int) -> None:
    monkeypatch.setattr(encoders, "TOKENIZERS_BATCH_BYTES", batch_bytes)
    texts = ["", "", *TEXTS[:200], ""]
    assert encoded(encoder_of(SUITABLE["bos"], "tokenizers"), texts) == expected(SUITABLE["bos"], texts)


@pytest.mark.parametrize(
    ("resident", "most_bytes"),
    [([100, 100 + 193 * 1024**2], 1 << 30), ([None, None], 1 << 30), ([100, 100], 1000)],
    ids=["grown", "unknown", "much text"],
)
def test_gigatoken_is_built_again_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch, resident: list[int | None], most_bytes: int
) -> None:
    import gigatoken

    sizes = iter([*resident, 0])
    monkeypatch.setattr(encoders, "REBUILD_AFTER_BYTES", most_bytes)
    monkeypatch.setattr(encoders, "_LIVE", weakref.WeakSet())
    monkeypatch.setattr(encoders, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(encoders, "REBUILD_AFTER_SECONDS", 0)
    built: list[bytes] = []
    from_json = gigatoken.Tokenizer.from_json
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    encoder = encoders.GigatokenEncoder(tokenizer, choose_engine(tokenizer, "gigatoken", add_special_tokens=True))
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda data: built.append(data) or from_json(data))
    first = encoded(encoder, TEXTS[:50])
    num_built = len(built)
    assert encoded(encoder, TEXTS[:50]) == first
    assert len(built) == num_built + 1


def test_gigatoken_is_kept_while_the_process_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    import gigatoken

    monkeypatch.setattr(encoders, "resident_bytes", lambda: 100)
    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    encoder = encoders.GigatokenEncoder(tokenizer, choose_engine(tokenizer, "gigatoken", add_special_tokens=True))
    first = encoded(encoder, TEXTS[:50])
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda _: pytest.fail("built again"))
    assert encoded(encoder, TEXTS[:50]) == first


def test_encoder_is_kept_per_thread() -> None:
    tokenizer = trained.as_tokenizer(trained.byte_level())
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)
    mine = encoder_for_thread(tokenizer, engine)
    assert encoder_for_thread(copy.deepcopy(tokenizer), engine) is mine
    others: list[Encoder] = []
    thread = threading.Thread(target=lambda: others.append(encoder_for_thread(tokenizer, engine)))
    thread.start()
    thread.join()
    assert others[0] is not mine


def test_what_a_thread_gives_up_another_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import gigatoken

    tokenizer = trained.as_tokenizer(SUITABLE["bos"])
    engine = choose_engine(tokenizer, "gigatoken", add_special_tokens=True)  # loads it, to try it
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda _: pytest.fail("loaded again"))
    mine = encoder_for_thread(tokenizer, engine)
    first = encoded(mine, TEXTS[:50])
    release_encoder()
    assert encoder_for_thread(tokenizer, engine) is not mine
    others: list[list[list[int]]] = []

    def work() -> None:
        others.append(encoded(encoder_for_thread(tokenizer, engine), TEXTS[:50]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert others == [first] == [expected(SUITABLE["bos"], TEXTS[:50])]
    release_encoder()
    assert not fast_tokenizers._SPARE[tokenizer.sha256]  # the other thread still has it


def test_one_thread_keeps_tokenizers_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for before, num_threads, after in [(None, 1, "false"), ("true", 1, "true"), (None, 2, None)]:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
        if before is not None:
            monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
        tokenizer = trained.as_tokenizer(trained.byte_level())
        encoders.TokenizersEncoder(
            tokenizer, choose_engine(tokenizer, "tokenizers", add_special_tokens=True), num_threads=num_threads
        )
        assert os.environ.get("TOKENIZERS_PARALLELISM") == after
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.text() | st.lists(st.sampled_from(trained.PIECES)).map("".join), max_size=8))
@pytest.mark.parametrize("name", ["bos", "nfc", "stripping-tokens", "sentencepiece-bpe"])
def test_engines_agree_on_any_text(name: str, texts: list[str]) -> None:
    wanted = expected(SUITABLE[name], texts)
    assert encoded(encoder_of(SUITABLE[name], "gigatoken"), texts) == wanted
    assert encoded(encoder_of(SUITABLE[name], "tokenizers"), texts) == wanted


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared corpus")
@pytest.mark.parametrize("name", ["gpt2", "bos8k"])
def test_engines_agree_on_golden_documents(name: str) -> None:
    content = (SHARED / "corpus" / name / "tokenizer.json").read_bytes()
    lines = (SHARED / "golden/docs.jsonl").read_bytes().splitlines()
    texts = [json.loads(line)["text"] for line in lines] + TEXTS
    wanted = expected(content, texts)
    for engine in ("gigatoken", "tokenizers"):
        assert encoded(encoder_of(content, engine), texts) == wanted  # type: ignore[arg-type]
