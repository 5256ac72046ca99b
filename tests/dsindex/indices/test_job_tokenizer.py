"""The tokenizer's identifiers of each release: golden ones, made by the releases themselves, and what is refused."""

import json
from collections import Counter

import pytest

from dsindex.cli.parser import make_parser, read_values
from dsindex.index.job_tokenizer import (
    RELEASES,
    JobTokenizer,
    describe_tokenizers,
    possible_releases,
    tokenizer_identifiers,
)
from dsindex.options.index import IndexConfig
from tests.support.golden import GOLDEN

GOLDEN_BLOCKS = json.loads((GOLDEN / "tokenizer_identifiers.json").read_bytes())


def from_flags(flags, release):
    """Return the tokenizer of a job's flags, as `dsindex index -- COMMAND` reads them."""
    words = ["--data-path", "x", "--seq-length", "8", "--epochs", "1", "--megatron-release", release]
    values = read_values(make_parser("index").parse_args(["index", *words]))
    config = IndexConfig(**values, command=["pretrain_gpt.py", *flags])
    assert config.job_tokenizer is not None
    return config.job_tokenizer


def test_golden_identifiers_come_out_as_each_release_writes_them():
    for case in GOLDEN_BLOCKS:
        ours = tokenizer_identifiers(from_flags(case["flags"], case["release"]), case["release"])
        assert json.dumps(ours, indent=4) == json.dumps(case["identifiers"], indent=4), case["flags"]
    counted = Counter(case["release"] for case in GOLDEN_BLOCKS)
    assert set(counted) == set(RELEASES)
    assert min(counted.values()) > 10


def test_release_of_identifiers_is_recognized():
    for case in GOLDEN_BLOCKS:
        assert case["release"] in possible_releases(case["identifiers"]), case
    for unknown in (None, "gpt2", {}, {"class": 3}, {"class": "tests.Tokenizer", "tokenizer_path": ["x"]}):
        assert possible_releases(unknown) == ()


def block(release, **flags):
    tokenizer = JobTokenizer(**{"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "m", **flags})
    return tokenizer_identifiers(tokenizer, release)


@pytest.mark.parametrize(("there", "wanted", "release", "expected"), [
    (block("0.17"), block("0.19"), "0.19", ["tokenizer: written by 0.16 or 0.17; the job is 0.19: chat_template"]),
    (
        block("0.18", tokenizer_model="n"),
        block("main"),
        None,
        [
            "tokenizer: written by 0.18 or 0.19; the job is main: use_gigatoken, class",
            "the tokenizer's tokenizer_path is 'n' in the cache and 'm' in the job: --tokenizer-model",
        ],
    ),
    (
        block("0.18"),
        block("0.19", trust_remote_code=True),
        "0.19",
        ["the tokenizer's trust_remote_code is 'False' in the cache and 'True' in the job: --trust-remote-code"],
    ),
    (block("0.18"), block("0.19"), "0.19", []),
    ({"class": "tests.Tokenizer"}, block("0.19"), "0.19", []),
    ("gpt2", block("0.19"), "0.19", []),
])  # fmt: skip
def test_differences_are_named_by_release_and_by_flag(there, wanted, release, expected):
    assert describe_tokenizers(there, wanted, release=release) == expected


@pytest.mark.parametrize(("release", "flags", "message"), [
    ("0.17", {"legacy_tokenizer": True}, "0.17 has no legacy tokenizers, which ended with 0.16"),
    ("0.16", {"tokenizer_type": "SFTTokenizer"}, "an SFTTokenizer needs --legacy-tokenizer"),
    ("main", {"tokenizer_type": "MultimodalTokenizer"}, "has no identifiers"),
    ("main", {"tokenizer_type": "Other"}, "expected one of BertWordPieceLowerCase, .*, got 'Other'"),
    ("main", {"tokenizer_type": None}, "expected one of BertWordPieceLowerCase, .*, got None"),
    ("main", {"tokenizer_model": None}, "HuggingFaceTokenizer needs --tokenizer-model"),
    ("main", {"tokenizer_type": "NullTokenizer"}, "NullTokenizer needs --vocab-size"),
    ("main", {"tiktoken_pattern": "v3"}, "expected v1 or v2, got 'v3'"),
    ("0.16", {"tokenizer_type": "GPT2BPETokenizer", "legacy_tokenizer": True}, "needs --vocab-file and --merge-"),
    ("0.16", {"tokenizer_type": "TikTokenizer", "legacy_tokenizer": True}, "needs --tiktoken-pattern"),
])  # fmt: skip
def test_tokenizer_that_a_release_cannot_make_is_refused(release, flags, message):
    with pytest.raises(ValueError, match=message):
        block(release, **flags)


@pytest.mark.parametrize(("release", "metadata", "name"), [
    ("0.16", {"model_type": "gpt"}, "models.gpt_tokenizer.GPTTokenizer"),
    ("0.16", {}, "models.default_tokenizer.DefaultTokenizerText"),
    ("0.19", {"model_type": "default-text"}, "models.default_tokenizer.DefaultTokenizerText"),
    ("0.19", {"model_type": None}, "models.default_tokenizer.DefaultTokenizerText"),
    ("main", {"class_name": "Mine", "class_path": "megatron.core.tokenizers.text.own"}, "own.Mine"),
    ("main", {"model_type": "gpt"}, "text_tokenizer.MegatronTokenizerText"),
])  # fmt: skip
def test_metadata_names_the_class(release, metadata, name):
    tokenizer = JobTokenizer(tokenizer_type="Llama2Tokenizer", tokenizer_model="m")
    found = tokenizer_identifiers(tokenizer, release, metadata=metadata)["class"]
    assert found == f"megatron.core.tokenizers.text.{name}"


def test_model_type_of_another_release_is_refused():
    tokenizer = JobTokenizer(tokenizer_type="Llama2Tokenizer", tokenizer_model="m")
    with pytest.raises(
        ValueError, match=r"Megatron 0\.19 expects a model_type of default-text, gpt, .*, got 'default'"
    ):
        tokenizer_identifiers(tokenizer, "0.19", metadata={"model_type": "default"})
