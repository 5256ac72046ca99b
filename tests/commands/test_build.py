"""The one law: the output depends on inputs, tokenizer and options alone, and is Megatron's byte for byte."""

import json
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.datasets import IndexedDataset
from dsindex.errors import PlanError
from dsindex.formats.provenance import read_rows
from dsindex.options.build import BuildConfig
from tests.support.golden import FAST, golden_runs
from tests.support.jobs import config_of, run_config
from tests.support.published import read_pair

RUNS = {**golden_runs(), "fast": FAST}
ON_RAY = pytest.mark.ray

# Every value of every option at least twice; the product of all would say no more.
WAYS = [
    {"executor": "local", "shard_size": "64MiB", "workers": 1, "engine": "gigatoken"},
    {"executor": "local", "shard_size": "1KiB", "workers": 3, "engine": "gigatoken"},
    {"executor": "local", "shard_size": "64KiB", "workers": 3, "engine": "tokenizers"},
    {"executor": "local", "shard_size": "1KiB", "workers": 1, "engine": "tokenizers"},
    {"executor": "processes", "shard_size": "16KiB", "workers": 2, "engine": "auto"},
    pytest.param({"executor": "ray", "shard_size": "64KiB", "workers": 1, "engine": "tokenizers"}, marks=ON_RAY),
    pytest.param({"executor": "ray", "shard_size": "4KiB", "workers": 3, "engine": "gigatoken"}, marks=ON_RAY),
]


@pytest.mark.quick(17)
@pytest.mark.parametrize("way", WAYS, ids=str, indirect=True)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_build_equals_megatron(run, way, tmp_path):
    options = {"tokenizer_model": str(run.tokenizer), "json_keys": run.json_keys, "append_eod": run.append_eod}
    options |= {"empty_documents": "eod" if run is FAST else "keep", "output_prefix": f"{tmp_path}/{run.name}"}
    options["tokenizer_hf_no_include_special_tokens"] = not run.add_special_tokens
    run_config(config_of(BuildConfig, run.input, **options, **way))
    for key, expected in run.prefixes.items():
        assert read_pair(tmp_path / f"{run.name}_{key}_document") == read_pair(expected), key


@pytest.mark.parametrize("way", [{}, {"no_provenance": True}], ids=["provenance", "none"])
def test_documents_of_eod_alone_are_verified(way, make_config):
    options = {"input": (str(FAST.input),), "empty_documents": "eod"}
    prefix = run_config(make_config(**options, **way)).datasets[0].prefix
    content = json.loads(Path(f"{prefix}.manifest.json").read_bytes())["content"]
    assert (content["account"]["documents_with_tokens"], content["account"]["empty_documents"]) == (14, 4)
    assert main(["verify", prefix, *([] if way else ["--against-source"])]) == 0
    with pytest.raises(PlanError, match='empty-documents was "eod" and is not given'):
        run_config(make_config(input=options["input"], **way))


def test_inputs_are_one_after_the_other_and_provenance_leads_back_to_the_line(tmp_path, make_config):
    text = b'\xef\xbb\xbf{"text": "zero"}\r\n\n  \n{"text": ""}\n{"text": "two"}'
    (tmp_path / "b.jsonl").write_bytes(text)
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "three"}\n')
    paths = (str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl"))
    [dataset] = run_config(make_config(input=paths, shard_size="9B")).datasets
    documents = IndexedDataset(dataset.prefix)
    for number, word in ((0, "zero"), (2, "two"), (3, "three")):
        assert documents.decode_document(number) == f"{word}<|endoftext|>"
    inputs, offsets, lines = (column.tolist() for column in read_rows(f"{dataset.prefix}.provenance.parquet", 0, 4))
    assert (inputs, lines) == ([0, 0, 0, 1], [1, 4, 5, 1])
    # The first record's line begins at the file's first byte, byte order mark included.
    assert offsets == [0, text.index(b'{"text": ""'), text.index(b'{"text": "two'), 0]
