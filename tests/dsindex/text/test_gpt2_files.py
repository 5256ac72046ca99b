"""GPT-2's vocab.json and merges.txt: the same tokens as the tokenizer.json of the same model."""

import json

import pytest
from tokenizers import Tokenizer as Loaded
from tokenizers import models, pre_tokenizers

from dsindex.errors import TokenizerError
from dsindex.text.encoders import choose_engine
from dsindex.text.tokenizer import TokenizerOptions, load_tokenizer, shared_tokenizer
from tests.dsindex.text.conversion_texts import fixed_texts
from tests.support.golden import TOKENIZERS

GPT2 = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
MERGES = "#version: 0.2\n" + "".join(
    f"{merge if isinstance(merge, str) else ' '.join(merge)}\n" for merge in GPT2["merges"]
)


def options(folder, vocabulary, merges):
    (folder / "gpt2-vocab.json").write_text(vocabulary)
    (folder / "gpt2-merges.txt").write_text(merges)
    return TokenizerOptions(
        tokenizer_type="GPT2BPETokenizer",
        vocab_file=str(folder / "gpt2-vocab.json"),
        merge_file=str(folder / "gpt2-merges.txt"),
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_two_files_are_the_tokenizer_of_gpt2(tmp_path, newline):
    given = options(tmp_path, json.dumps(GPT2["vocab"]), MERGES.replace("\n", newline))
    tokenizer = load_tokenizer(given.vocab_file or "", options=given)
    assert (tokenizer.name, tokenizer.vocabulary_size, tokenizer.eod_id) == ("gpt2-vocab.json", 50257, 50256)
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).name == "gigatoken"
    texts = fixed_texts(["<|endoftext|>"], seed=5)
    whole = shared_tokenizer(load_tokenizer(str(TOKENIZERS["gpt2"])))
    assert [e.ids for e in shared_tokenizer(tokenizer).encode_batch(texts)] == [
        e.ids for e in whole.encode_batch(texts)
    ]


def test_two_files_are_read_as_the_library_reads_them(tmp_path):
    given = options(tmp_path, json.dumps(GPT2["vocab"]), MERGES)
    library = Loaded(models.BPE.from_file(str(given.vocab_file), str(given.merge_file)))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own = shared_tokenizer(load_tokenizer("", options=given))
    texts = fixed_texts([], seed=6)
    texts = [text for text in texts if "<|endoftext|>" not in text]
    assert [e.ids for e in own.encode_batch(texts)] == [e.ids for e in library.encode_batch(texts)]


@pytest.mark.parametrize(
    ("vocabulary", "merges", "message"),
    [
        ("[]", "", "expected a JSON object with an id for each token"),
        ('{"a": "b"}', "", "expected a JSON object with an id for each token"),
        ('{"a": 0, "b": 1}', "a b\n", r"line 1 of the merges: expected two tokens .*, got 'a b'"),
        ('{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\nab\n", r"line 3 of the merges: .*, got 'ab'"),
        ("{", "", r"gpt2-vocab.json: expected JSON, but it cannot be read"),
    ],
)
def test_other_files_are_refused(tmp_path, vocabulary, merges, message):
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer("", options=options(tmp_path, vocabulary, merges))
