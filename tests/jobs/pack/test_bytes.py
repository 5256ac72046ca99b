"""The bytes that are packed: those of Modalities, for any cut, version, token size and executor."""

import json
from pathlib import Path
from typing import get_args

import pytest

from dsindex.datasets.provenance import count_rows, read_source
from dsindex.engine import merge as ranges
from dsindex.errors import TokenizerError
from dsindex.execution.progress.reporter import Reporter
from dsindex.formats.pbin import PBIN_VERSIONS, read_pbin_header
from dsindex.jobs.pack import choose_token_bytes, run_pack
from dsindex.options.pack import PackConfig
from dsindex.store.reading import digest_file
from dsindex.text.tokenizer import load_tokenizer
from tests.jobs.pack.packing import golden_texts, packed_by_hand, words
from tests.support.golden import MODALITIES, OWN
from tests.support.jobs import run_config
from tests.support.pbin_files import VERSION_NAMES, pbin_bytes
from tests.support.published import published

WAYS = [
    {"executor": "local", "shard_size": "1KiB", "engine": "gigatoken"},
    {"executor": "local", "shard_size": "64KiB", "engine": "tokenizers"},
    {"executor": "local", "shard_size": "64MiB", "engine": "gigatoken", "jq_pattern": '.["text"]'},
    {"executor": "processes", "shard_size": "64KiB", "engine": "tokenizers", "jq_pattern": ".text | ."},
]

RAY_WAYS = [
    {"executor": "ray", "shard_size": "64KiB", "engine": "gigatoken"},
    {"executor": "ray", "shard_size": "64MiB", "engine": "tokenizers", "jq_pattern": "[.text] | first"},
]


def pack_nonempty(way, folder, reporter):
    config = PackConfig(
        input=(str(MODALITIES / "nonempty.jsonl"),), tokenizer_model=str(MODALITIES / "gpt2"),
        eod_token="<|endoftext|>", output=str(folder / "x.pbin"), workers=2, **way,
    )  # fmt: skip
    run_pack(config, reporter=reporter)
    return (folder / "x.pbin").read_bytes()


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_pack_equals_modalities(way, tmp_path):
    assert pack_nonempty(way, tmp_path, Reporter()) == (MODALITIES / "nonempty.pbin").read_bytes()


@pytest.mark.quick(1)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
@pytest.mark.parametrize("way", RAY_WAYS, ids=str)
def test_pack_on_ray_equals_modalities(way, tmp_path):
    assert pack_nonempty(way, tmp_path, Reporter()) == (MODALITIES / "nonempty.pbin").read_bytes()


@pytest.mark.quick(3)
@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize(("num_words", "token_bytes"), [(256, 1), (257, 2), (70_000, 4)])
def test_every_era_and_token_size_is_what_is_packed_by_hand(version, num_words, token_bytes, tmp_path, make_pack):
    tokenizer = words(tmp_path / "words", num_words)
    report = run_config(make_pack(tokenizer_model=tokenizer, pbin_era=version, shard_size="30KiB"))
    size = 4 if version == "spec" else token_bytes
    packed = packed_by_hand(golden_texts(), tokenizer, version=version, token_bytes=size)
    assert Path(report.path).read_bytes() == packed
    assert report.token_dtype == {1: "uint8", 2: "uint16", 4: "uint32"}[size]
    assert report.num_documents + report.num_empty == len(golden_texts())
    assert report.files["pbin"].digest == digest_file(report.path)


def test_eras_in_the_configuration_are_those_of_the_format():
    assert get_args(PackConfig.model_fields["pbin_era"].annotation) == tuple(PBIN_VERSIONS)


@pytest.mark.parametrize("version", ["spec", "2024-01-30", "current"])
def test_ranges_of_the_output_may_end_anywhere_in_it(version, make_pack, monkeypatch):
    """Head, shards and index in one range, and each in many, with buffers that end inside of all of them."""
    whole = run_config(make_pack(pbin_era=version))
    expected = Path(whole.path).read_bytes()
    monkeypatch.setattr(ranges, "range_bytes", lambda _total: 1 << 12)
    monkeypatch.setattr(ranges, "COPY_BYTES", 1 << 8)
    run_config(make_pack(pbin_era=version, fresh=True))
    assert Path(whole.path).read_bytes() == expected
    assert read_pbin_header(whole.path).version.name == version


def test_every_file_is_the_same_for_any_cut(make_pack, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(OWN.docs.read_bytes() + b'\n{"text": 1}\n' + OWN.docs.read_bytes())
    outputs = []
    for size in ("3KiB", "31KiB", "64MiB"):
        out = tmp_path / size
        inputs = (str(tmp_path / "in.jsonl"), str(OWN.docs))
        config = make_pack(input=inputs, output=str(out / "x.pbin"), shard_size=size, on_bad_record="quarantine")
        run_config(config)
        outputs.append(published(out))
    names = {f"x.{suffix}" for suffix in ("pbin", "manifest.json", "provenance.parquet", "quarantine.jsonl.zst")}
    assert outputs[0].keys() == names
    assert outputs[0] == outputs[1] == outputs[2]


def test_texts_without_tokens_are_counted_and_no_documents(make_pack, tmp_path):
    text = b'{"text": ""}\n\n{"text": "a"}\nbroken\n{"text": "<|endoftext|>"}\n{"text": ""}\n{"text": "b"}'
    (tmp_path / "a.jsonl").write_bytes(text)
    config = make_pack(input=(str(tmp_path / "a.jsonl"),), on_bad_record="quarantine", shard_size="9B")
    report = run_config(config)
    assert (report.num_documents, report.num_empty) == (3, 2)
    counts = report.counts
    assert (counts.lines, counts.blank, counts.records, counts.kept, counts.quarantined) == (7, 1, 6, 5, 1)
    tokenizer = str(OWN.plain_tokenizer)
    by_hand = packed_by_hand(["a", "<|endoftext|>", "b"], tokenizer, version="current", token_bytes=2)
    assert Path(report.path).read_bytes() == by_hand
    content = json.loads((tmp_path / "out" / "docs.manifest.json").read_bytes())["content"]
    assert (content["account"]["documents_with_tokens"], content["account"]["empty_documents"]) == (3, 2)
    assert content["eod_in_text"] == 1
    provenance = str(tmp_path / "out" / "docs.provenance.parquet")
    assert [read_source(provenance, number).line for number in range(count_rows(provenance))] == [3, 5, 7]


def test_nothing_but_texts_without_tokens_makes_an_empty_file(make_pack, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n' * 3)
    report = run_config(make_pack(input=(str(tmp_path / "a.jsonl"),)))
    assert Path(report.path).read_bytes() == pbin_bytes([], version="current", token_bytes=2)


# Token sizes.


@pytest.mark.parametrize(
    ("num_words", "token_bytes"), [(256, 1), (257, 2), (65_536, 2), (65_537, 4)], ids=lambda value: str(value)
)
def test_token_size_is_that_of_the_vocabulary(num_words, token_bytes, tmp_path):
    tokenizer = load_tokenizer(words(tmp_path, num_words))
    assert choose_token_bytes(tokenizer, PBIN_VERSIONS["current"]) == token_bytes
    assert choose_token_bytes(tokenizer, PBIN_VERSIONS["spec"]) == 4


def test_added_token_that_does_not_fit_is_refused_by_name(make_pack, tmp_path):
    tokenizer = words(tmp_path / "words", 256, added=["<new>"])
    with pytest.raises(TokenizerError, match=r"expected ids that fit 1 bytes.*256 entries.*got 256 for '<new>'"):
        run_config(make_pack(tokenizer_model=tokenizer))
    assert not (tmp_path / "out").exists()
    run_config(make_pack(tokenizer_model=tokenizer, pbin_era="spec"))
    choose_token_bytes(load_tokenizer(words(tmp_path / "fits", 255, added=["<new>"])), PBIN_VERSIONS["current"])
