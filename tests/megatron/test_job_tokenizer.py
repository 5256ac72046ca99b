"""The tokenizer's identifiers of each release: golden ones, made by the releases themselves, and what is refused."""

import json
from collections import Counter

import pytest

from dsindex.errors import InputError, UsageError
from dsindex.megatron.explain import describe_differences
from dsindex.megatron.flags import RELEASES, JobTokenizer, find_identifiers
from dsindex.options.index import IndexConfig
from tests.support.golden import GOLDEN

GOLDEN_BLOCKS = json.loads((GOLDEN / "tokenizer_identifiers.json").read_bytes())


def test_golden_identifiers_come_out_as_each_release_writes_them():
    """The tokenizer is that of a job's flags, as `dsindex index -- COMMAND` reads them."""
    job = {"data_path": ["x"], "seq_length": 8, "epochs": 1}
    for case in GOLDEN_BLOCKS:
        command = ["pretrain_gpt.py", *case["flags"]]
        config = IndexConfig(**job, megatron_release=case["release"], command=command)
        ours = find_identifiers(config.job_tokenizer, case["release"])
        assert json.dumps(ours, indent=4) == json.dumps(case["identifiers"], indent=4), case["flags"]
    counted = Counter(case["release"] for case in GOLDEN_BLOCKS)
    assert set(counted) == set(RELEASES)
    assert min(counted.values()) > 10


def block(release, **flags):
    tokenizer = JobTokenizer(**{"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "m", **flags})
    return find_identifiers(tokenizer, release)


@pytest.mark.parametrize(("cache_ids", "job_ids", "expected"), [
    (block("0.17"), block("0.19"),
     ["chat_template is absent in the cache and 'None' in the job: releases of Megatron differ in it"]),
    (block("0.18", tokenizer_model="n"), block("0.19", trust_remote_code=True),
     ["tokenizer_path is 'n' in the cache and 'm' in the job: a flag of the job's tokenizer",
      "trust_remote_code is 'False' in the cache and 'True' in the job: a flag of the job's tokenizer"]),
])  # fmt: skip
def test_differences_are_named(cache_ids, job_ids, expected):
    differences = describe_differences(*({"class": "GPTDataset", "tokenizer": ids} for ids in (cache_ids, job_ids)))
    assert len(differences) == len(expected)
    assert all(said.startswith(f"the tokenizer's {start}") for said, start in zip(differences, expected, strict=True))


@pytest.mark.parametrize(("release", "flags", "message"), [
    ("main", {"tokenizer_type": "Other"}, "'Other' is not one of BertWordPieceLowerCase, "),
    ("main", {"tokenizer_type": "NullTokenizer"}, "NullTokenizer needs --vocab-size"),
    ("main", {"tiktoken_pattern": "v3"}, "'v3' is not v1 or v2"),
    ("0.16", {"tokenizer_type": "GPT2BPETokenizer", "legacy_tokenizer": True}, "as --like"),
])  # fmt: skip
def test_tokenizer_that_a_release_cannot_make_is_refused(release, flags, message):
    with pytest.raises(UsageError, match=message):
        block(release, **flags)


@pytest.mark.parametrize(("release", "metadata", "name"), [
    ("0.16", {"model_type": "gpt"}, "models.gpt_tokenizer.GPTTokenizer"),
    ("0.19", {"model_type": None}, "models.default_tokenizer.DefaultTokenizerText"),
    ("main", {"class_name": "Mine", "class_path": "megatron.core.tokenizers.text.own"}, "own.Mine"),
    ("main", {"model_type": "gpt"}, "text_tokenizer.MegatronTokenizerText"),
])  # fmt: skip
def test_metadata_names_the_class(release, metadata, name, tmp_path):
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    tokenizer = {"tokenizer_type": "Llama2Tokenizer", "tokenizer_metadata": str(tmp_path / "metadata.json")}
    assert block(release, **tokenizer)["class"] == f"megatron.core.tokenizers.text.{name}"
    (tmp_path / "metadata.json").write_text('{"model_type": "another"}')
    if release != "main":
        with pytest.raises(InputError, match=r"model_type 'another': Megatron .* knows default"):
            block(release, **tokenizer)
