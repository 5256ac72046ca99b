"""SentencePiece models, files of ranks and GPT-2 files: the same tokens as their own libraries, with every engine."""

import json
from dataclasses import replace

import pytest
import sentencepiece
import tiktoken
import tokenizers
from tiktoken_ext import openai_public
from tokenizers import models, pre_tokenizers

from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.encoders import TEXT_SEPARATOR, make_encoder
from dsindex.text.engines import PATTERNS, choose_engine
from dsindex.text.tiktoken_files import (
    CL100K_PATTERN,
    MEGATRON_PATTERNS,
    R50K_PATTERN,
    TokenizerOptions,
    read_definition,
)
from dsindex.text.tokenizer import decode, load_tokenizer, shared_tokenizer
from tests.support import text_tokenizers as trained
from tests.support.foreign_tokenizers import (
    SENTENCEPIECE_SHAPES,
    rank_entries,
    ranks,
    sentencepiece_model,
    tiktoken_file,
)
from tests.support.golden import TOKENIZERS


def load(path, content, options=None):
    path.write_bytes(content)
    return load_tokenizer(str(path), options=options)


TEXTS = [*trained.NASTY, *trained.mixed_texts(100, seed=1)]


def encoded(tokenizer, texts, name="gigatoken"):
    """Ids of each text by the engine that is chosen, whose name is checked: in one call, and in a few."""
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == name, engine.reason
    encoder = make_encoder(tokenizer, engine)
    parts = [encoder.encode(texts[begin : begin + 20]) for begin in range(0, len(texts), 20)]
    rows = [ids.tolist() for ids in encoder.encode(texts).split()]
    assert rows == [ids.tolist() for part in parts for ids in part.split()]
    assert max(part.spaced_ids.max() for part in parts) < tokenizer.vocabulary_size
    return rows


@pytest.mark.parametrize("shape", SENTENCEPIECE_SHAPES)
def test_tokens_are_those_of_the_library(tmp_path, shape):
    tokenizer = load(tmp_path / "tokenizer.model", sentencepiece_model(shape))
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.content)
    texts = [*TEXTS, *(processor.id_to_piece(number) for number in range(100)), f"a{TEXT_SEPARATOR}b"]
    name = "sentencepiece" if shape == "t5" else "gigatoken"
    assert encoded(tokenizer, texts, name) == processor.encode(texts, num_threads=1)


@pytest.mark.parametrize(("change", "reason"), [
    ({"remove_extra_whitespaces": True}, "its normalizer was not compared (Strip, Replace, Prepend, Replace)"),
    ({"normalization_rule_name": "nmt_nfkc"}, "its normalizer was not compared (Precompiled, Prepend, Replace)"),
    ({"byte_fallback": False}, "only byte_fallback sentencepiece models are supported"),
    ({"user_defined_symbols": ["\u2581\u2581"]}, "it adds a space before a text, and has many user-defined symbols"),
])  # fmt: skip
def test_other_models_are_encoded_by_sentencepiece(tmp_path, monkeypatch, change, reason):
    monkeypatch.setitem(SENTENCEPIECE_SHAPES, "other", {**SENTENCEPIECE_SHAPES["llama2"], **change})
    sentencepiece_model.cache_clear()
    tokenizer = load(tmp_path / "tokenizer.model", sentencepiece_model("other"))
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == "sentencepiece"
    assert reason in engine.reason


MEGATRON = TokenizerOptions(tokenizer_type="TikTokenizer", vocab_size=580, tiktoken_num_special_tokens=20)


def harmony_special_tokens():
    """As tiktoken has them, whose function fetches the ranks as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
        return openai_public.o200k_harmony()["special_tokens"]


@pytest.mark.parametrize(("family", "pattern", "ids", "size"), [
    ("gpt2", R50K_PATTERN, {"<|endoftext|>": 50256}, 50257),
    ("cl100k_base", CL100K_PATTERN, {"<|endoftext|>": 100257, "<|endofprompt|>": 100276}, 100277),
    ("o200k_base", PATTERNS["o200k"][0], {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}, 200019),
    ("o200k_harmony", PATTERNS["o200k"][0], {"<|call|>": 200012, "<|reserved_200018|>": 200018}, 201088),
    ("llama3", PATTERNS["llama3"][0], {"<|eot_id|>": 569, "<|reserved_special_token_250|>": 815}, 816),
    ("llama3.1", PATTERNS["llama3"][0], {"<|python_tag|>": 570, "<|reserved_special_token_245|>": 815}, 816),
])  # fmt: skip
def test_ranks_are_encoded_as_tiktoken_does_with_the_published_special_tokens(tmp_path, family, pattern, ids, size):
    tokenizer = load(tmp_path / f"{family}.tiktoken", tiktoken_file())
    special = dict(read_definition(tokenizer.content).special_tokens)
    library = tiktoken.Encoding(name="x", pat_str=pattern, mergeable_ranks=ranks(), special_tokens=special)
    texts = [*TEXTS, *special, *(token.decode(errors="ignore") for token in ranks())]
    assert encoded(tokenizer, texts) == [library.encode(text, allowed_special="all") for text in texts]
    assert {token: special[token] for token in ids} == ids
    assert family != "o200k_harmony" or special == harmony_special_tokens()
    eod = "<|end_of_text|>" if family.startswith("llama") else "<|endoftext|>"
    assert (tokenizer.vocabulary_size, tokenizer.eod_id) == (size, special[eod])
    assert decode(tokenizer, [ranks()[b"a"], special[eod]]) == f"a{eod}"
    with pytest.raises(TokenizerError, match=r"--engine tokenizers needs a tokenizer\.json"):
        choose_engine(tokenizer, "tokenizers", add_special_tokens=True)


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_ranks_of_megatron_are_read_as_its_class_does(tmp_path, name):
    options = replace(MEGATRON, vocab_size=520, tiktoken_pattern=name)
    tokenizer = load(tmp_path / "ranks.json", json.dumps(rank_entries()).encode(), options)
    names = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>", *(f"<SPECIAL_{n}>" for n in range(7, 20))]
    special = {token: number for number, token in enumerate(names)}
    kept_ranks = {token: rank + 20 for token, rank in ranks().items() if rank < 500}
    options = {"pat_str": MEGATRON_PATTERNS[name], "mergeable_ranks": kept_ranks, "special_tokens": special}
    library = tiktoken.Encoding(name="x", explicit_n_vocab=520, **options)
    assert (tokenizer.vocabulary_size, tokenizer.eod_id, tokenizer.special_tokens) == (520, 2, tuple(names))
    texts = [*TEXTS, *names]
    engine = "gigatoken" if name == "v2" else "tiktoken"
    assert encoded(tokenizer, texts, engine) == [library.encode(text, allowed_special="all") for text in texts]


@pytest.mark.parametrize(("content", "options", "message"), [
    (rank_entries(), TokenizerOptions(), "560 ranks, and a vocabulary of 131072 needs 130072"),
    (rank_entries(), TokenizerOptions(vocab_size=10), "a vocabulary of more; it has 10"),
    (rank_entries(), TokenizerOptions(tokenizer_special_tokens=("<s>",)), "Megatron needs <unk> <s> </s> <mask>"),
    ([{**rank_entries()[0], "token_bytes": "?"}], MEGATRON, "entry 0 is not a token in base64"),
    ([rank_entries()[0]] * 2, MEGATRON, "entry 1 of the list has rank 0"),
])  # fmt: skip
def test_other_ranks_are_refused(tmp_path, content, options, message):
    with pytest.raises(TokenizerError, match=f"ranks.json: .*{message}"):
        load(tmp_path / "ranks.json", json.dumps(content).encode(), options)


def test_text_that_tiktoken_cannot_split_is_named(tmp_path):
    tokenizer = load(tmp_path / "llama3.tiktoken", tiktoken_file())
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "reference", add_special_tokens=True))
    with pytest.raises(UnencodableError, match=r"tiktoken cannot encode .*\(2,000,001 characters\)"):
        encoder.encode(["a" + " " * 2_000_000])


GPT2 = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
PAIRS = [merge if isinstance(merge, str) else " ".join(merge) for merge in GPT2["merges"]]
MERGES = "".join(f"{line}\n" for line in ["#version: 0.2", *PAIRS])


def options(folder, vocabulary, merges):
    (folder / "gpt2-vocab.json").write_text(vocabulary)
    (folder / "gpt2-merges.txt").write_text(merges)
    files = {"vocab_file": str(folder / "gpt2-vocab.json"), "merge_file": str(folder / "gpt2-merges.txt")}
    return TokenizerOptions(tokenizer_type="GPT2BPETokenizer", **files)


@pytest.mark.quick(1)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_two_files_are_the_tokenizer_of_gpt2(tmp_path, newline):
    file_options = options(tmp_path, json.dumps(GPT2["vocab"]), MERGES.replace("\n", newline))
    tokenizer = load_tokenizer(file_options.vocab_file or "", options=file_options)
    assert (tokenizer.name, tokenizer.vocabulary_size, tokenizer.eod_id) == ("gpt2-vocab.json", 50257, 50256)
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).name == "gigatoken"
    texts = [*TEXTS, "a<|endoftext|>b"]
    both = [shared_tokenizer(loaded) for loaded in (tokenizer, load_tokenizer(str(TOKENIZERS["gpt2"])))]
    rows, gpt2_rows = ([encoding.ids for encoding in loaded.encode_batch(texts)] for loaded in both)
    assert rows == gpt2_rows


@pytest.mark.parametrize(("vocabulary", "merges", "message"), [
    ('{"a": "b"}', "", "they have no tokens"),
    ('{"a": 0, "b": 1}', "a b\n", "not the vocabulary and the merges of GPT-2: "),
    ('{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\nab\n", "invalid at line 2"),
    ("{", "", "gpt2-vocab.json and .*: not the vocabulary"),
])  # fmt: skip
def test_other_files_are_refused(tmp_path, vocabulary, merges, message):
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer("", options=options(tmp_path, vocabulary, merges))


def metaspace(prepend):
    """A tokenizer.json in the shape of Llama's, with or without a space before every text."""
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "t", "e", "x"]
    tokenizer = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    return tokenizer.to_str().encode()


@pytest.mark.parametrize(("content", "config", "space"), [
    (metaspace("never"), {"tokenizer_class": "LlamaTokenizerFast"}, "adds a space"),
    (metaspace("always"), {"tokenizer_class": "LlamaTokenizer"}, None),
    (metaspace("always"), {"tokenizer_class": "GemmaTokenizer", "add_prefix_space": True}, "adds no space"),
    (trained.byte_level(), {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, "adds a space"),
    (trained.byte_level(), {"tokenizer_class": "LlamaTokenizer"}, None),
    (trained.byte_level(), {"tokenizer_class": "GPT2TokenizerFast"}, None),
    (trained.byte_level(), {"tokenizer_class": "Qwen2Tokenizer"}, "5 may split texts differently"),
    ((TOKENIZERS["bos"] / "tokenizer.json").read_bytes(), {"tokenizer_class": "GPT2Tokenizer"}, "5 may split texts"),
])  # fmt: skip
def test_class_that_changes_texts_is_told(tmp_path, content, config, space):
    """The cases are those that were tried with transformers 5.23 and 5.24."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    note = load_tokenizer(str(tmp_path)).note
    assert note is None if space is None else f"with which transformers {space}" in note
