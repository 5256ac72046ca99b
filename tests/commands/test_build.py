"""The one law: the output depends on inputs, tokenizer and options alone, and is Megatron's byte for byte."""

import json
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.commands.build import run_build
from dsindex.errors import FormatError, PlanError, UsageError
from dsindex.formats.provenance import read_rows
from dsindex.options.build import BuildConfig
from dsindex.runtime.progress import Reporter
from tests.support.golden import FAST, OWN, golden_runs
from tests.support.jobs import run_config
from tests.support.published import published

RUNS = {**golden_runs(), "fast": FAST}

# Every value of every option at least twice; the product of all would say no more.
WAYS = [
    {"executor": "local", "shard_size": "64MiB", "workers": 1, "engine": "gigatoken"},
    {"executor": "local", "shard_size": "1KiB", "workers": 3, "engine": "gigatoken"},
    {"executor": "local", "shard_size": "64KiB", "workers": 3, "engine": "tokenizers"},
    {"executor": "local", "shard_size": "1KiB", "workers": 1, "engine": "tokenizers"},
]
RAY_WAYS = [
    {"executor": "ray", "shard_size": "64KiB", "workers": 1, "engine": "tokenizers"},
    {"executor": "ray", "shard_size": "4KiB", "workers": 3, "engine": "gigatoken"},
]


def build_and_compare(run, way, folder, reporter):
    config = BuildConfig(
        input=(str(run.input),), tokenizer_model=str(run.tokenizer), json_keys=run.json_keys, append_eod=run.append_eod,
        empty_documents="eod" if run is FAST else "keep",
        tokenizer_hf_no_include_special_tokens=not run.add_special_tokens, output_prefix=str(folder / run.name), **way,
    )  # fmt: skip
    run_build(config, reporter=reporter)
    for key, expected in run.prefixes.items():
        for suffix in ("bin", "idx"):
            got = (folder / f"{run.name}_{key}_document.{suffix}").read_bytes()
            assert got == expected.with_name(f"{expected.name}.{suffix}").read_bytes(), f"{key}.{suffix}"


@pytest.mark.quick(15)
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_build_equals_megatron(run, way, tmp_path):
    build_and_compare(run, way, tmp_path, Reporter())


@pytest.mark.quick(2)
@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
@pytest.mark.parametrize("way", RAY_WAYS, ids=str)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_build_on_ray_equals_megatron(run, way, tmp_path):
    build_and_compare(run, way, tmp_path, Reporter())


def test_build_on_processes_equals_megatron(tmp_path):
    way = {"executor": "processes", "shard_size": "16KiB", "workers": 2, "engine": "auto"}
    build_and_compare(OWN.run("keys"), way, tmp_path, Reporter())


@pytest.mark.parametrize("way", [{}, {"no_provenance": True}], ids=["provenance", "none"])
def test_documents_of_eod_alone_are_verified(way, make_config):
    options = {"input": (str(FAST.input),), "empty_documents": "eod"}
    prefix = run_config(make_config(**options, **way)).datasets[0].prefix
    content = json.loads(Path(f"{prefix}.manifest.json").read_bytes())["content"]
    assert (content["account"]["documents_with_tokens"], content["account"]["empty_documents"]) == (14, 4)
    assert main(["verify", prefix, *([] if way else ["--against-source"])]) == 0
    with pytest.raises(PlanError, match='empty-documents was "eod" and is not given'):
        run_config(make_config(input=options["input"], **way))


def test_empty_documents_get_no_eod_without_append_eod(make_config):
    with pytest.raises(UsageError, match="--empty-documents needs --append-eod"):
        make_config(empty_documents="eod", append_eod=False)


def test_several_inputs_are_one_after_the_other_for_any_cut(tmp_path, make_config):
    """Provenance and the manifest's content are under the law too."""
    outputs = []
    for number, (size, workers) in enumerate([("64MiB", 1), ("1KiB", 3), ("7KiB", 2)]):
        folder = tmp_path / str(number)
        config = make_config(
            input=(str(OWN.docs), str(OWN.sentences), str(OWN.docs)),
            output_prefix=str(folder / "x"),
            shard_size=size,
            workers=workers,
        )
        run_config(config)
        outputs.append(published(folder))
    assert outputs[0].keys() == {
        f"x_text_document.{suffix}" for suffix in ("bin", "idx", "manifest.json", "provenance.parquet")
    }
    assert outputs[0] == outputs[1] == outputs[2]
    docs, sentences = (
        run.prefixes["text"].with_suffix(".bin").read_bytes() for run in (OWN.run("eod"), OWN.run("sentences"))
    )
    assert outputs[0]["x_text_document.bin"] == docs + sentences + docs


def test_provenance_leads_back_to_the_line(tmp_path, make_config):
    text = b'\xef\xbb\xbf{"text": "zero"}\r\n\n  \n{"text": ""}\n{"text": "two"}'
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "three"}\n')
    paths = (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    report = run_config(make_config(input=paths, shard_size="9B"))
    path = f"{report.datasets[0].prefix}.provenance.parquet"
    inputs, offsets, lines = (column.tolist() for column in read_rows(path, 0, 4))
    assert (inputs, lines) == ([0, 0, 0, 1], [1, 4, 5, 1])
    # The first record's line begins at the file's first byte, byte order mark included.
    assert offsets == [0, text.index(b'{"text": ""'), text.index(b'{"text": "two'), 0]
    with pytest.raises(FormatError, match="it has 4 rows, and row 4 was asked for"):
        read_rows(path, 0, 5)
