"""Folders that are not what they seem: every hint is followed, and gives the tokens that it promises."""

import json
import re

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers

from dsindex.engine.source import describe_folder
from dsindex.errors import TokenizerError
from dsindex.text.tokenizer import TokenizerOptions, load_tokenizer, reference_of
from tests.support import text_tokenizers as trained
from tests.support.foreign_tokenizers import sentencepiece_model, tiktoken_file
from tests.support.golden import TOKENIZERS

TEXTS = ["a text", " with  spaces", "Grüße 123\n\n"]


def hinted_options(message):
    """Return the flags that a message says to use, with their values."""
    return {flag.replace("-", "_"): value for flag, value in re.findall(r"--([a-z-]+) ([^\s,;]+)", message)}


def refusal(path):
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(str(path))
    return str(caught.value)


def tokens(path, options=None):
    reference = reference_of(load_tokenizer(path, options=options))
    return [reference.encode([text], add_special_tokens=False)[0].tolist() for text in TEXTS]


@pytest.mark.parametrize("shape", ["llama2", "gemma", "t5"])
def test_folder_with_a_model_leads_to_its_own_tokens(tmp_path, shape):
    content = sentencepiece_model(shape)
    (tmp_path / "tokenizer.model").write_bytes(content)
    hint = hinted_options(refusal(tmp_path))
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert tokens(hint["tokenizer_model"]) == [processor.encode(text) for text in TEXTS]


def test_folder_with_ranks_leads_to_them_in_two_steps(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(tiktoken_file())
    file = hinted_options(refusal(tmp_path))["tokenizer_model"]
    with pytest.raises(TokenizerError, match=r"expected --tiktoken-encoding, .* choose one"):
        load_tokenizer(file)
    assert tokens(file, TokenizerOptions(tiktoken_encoding="llama3"))


def test_folder_with_gpt2_files_leads_to_the_same_tokenizer(tmp_path):
    model = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{line}\n" for line in lines))
    hint = hinted_options(refusal(tmp_path))
    assert tokens(hint["vocab_file"], TokenizerOptions(**hint)) == tokens(str(TOKENIZERS["gpt2"]))


@pytest.mark.parametrize("config", [{"pad_token": "<pad>"}, {"add_bos_token": True, "bos_token": "<|bos|>"}])
def test_folder_that_contradicts_itself_leads_to_its_tokenizer_json(tmp_path, config):
    (tmp_path / "tokenizer.json").write_bytes(trained.byte_level())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    message = refusal(tmp_path)
    assert message.endswith(f"use --tokenizer-model {tmp_path}/tokenizer.json for the tokenizer.json alone")
    whole = tokenizers.Tokenizer.from_str(trained.byte_level().decode())
    expected = [whole.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert tokens(hinted_options(message)["tokenizer_model"]) == expected


def test_dropout_can_be_set_to_null(tmp_path):
    document = json.loads(trained.byte_level())
    document["model"]["dropout"] = 0.1
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert re.search('set "dropout" to null in a copy of it', refusal(tmp_path))
    document["model"]["dropout"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert len(tokens(str(tmp_path))) == len(TEXTS)


def test_other_model_in_a_folder_is_told_and_can_be_used(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(trained.byte_level())
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model("llama2"))
    [note] = describe_folder(str(tmp_path), load_tokenizer(str(tmp_path)))
    assert 'tokenizer.json is used, and tokenizer.model beside it gives other tokens, as for "The quick' in note
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model("llama2"))
    file = note.rpartition("--tokenizer-model ")[2]
    assert tokens(file) == [processor.encode(text) for text in TEXTS]
    assert describe_folder(file, load_tokenizer(file)) == []


def test_same_model_in_a_folder_is_not_told(tmp_path):
    content = sentencepiece_model("llama2")
    (tmp_path / "tokenizer.model").write_bytes(content)
    from dsindex.text.fast_tokenizers import json_for_gigatoken

    (tmp_path / "tokenizer.json").write_bytes(json_for_gigatoken(load_tokenizer(f"{tmp_path}/tokenizer.model")))
    assert describe_folder(str(tmp_path), load_tokenizer(str(tmp_path))) == []
    (tmp_path / "tokenizer.model").write_bytes(b"not read")
    assert describe_folder(str(tmp_path), load_tokenizer(str(tmp_path))) == []


def metaspace(prepend):
    """A tokenizer.json in the shape of Llama's, with or without a space before every text."""
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "t", "e", "x"]
    made = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    return made.to_str().encode()


@pytest.mark.parametrize(
    ("content", "config", "notes"),
    [
        (metaspace("never"), {"tokenizer_class": "LlamaTokenizerFast"}, ["adds a space"]),
        (metaspace("never"), {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, []),
        (metaspace("always"), {"tokenizer_class": "LlamaTokenizer"}, []),
        (metaspace("always"), {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, ["adds no space"]),
        (metaspace("always"), {"tokenizer_class": "GemmaTokenizer", "add_prefix_space": True}, ["adds no space"]),
        (metaspace("always"), {"tokenizer_class": "CodeLlamaTokenizer", "bos_token": "<s>"}, ["begins every text"]),
        (metaspace("never"), {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, []),
        (trained.byte_level(), {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, ["adds a space"]),
        (trained.byte_level(), {"tokenizer_class": "Qwen2Tokenizer"}, []),
        (trained.byte_level(), {"tokenizer_class": "LlamaTokenizer"}, []),
        (trained.byte_level(), {"tokenizer_class": ["GPT2Tokenizer"]}, []),
    ],
)
def test_class_that_changes_texts_is_told(tmp_path, content, config, notes):
    """The cases are those that were tried with transformers 5.23."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = describe_folder(str(tmp_path), load_tokenizer(str(tmp_path)))
    assert len(found) == len(notes)
    for note, wanted in zip(found, notes, strict=True):
        assert f"with which transformers {wanted}" in note
