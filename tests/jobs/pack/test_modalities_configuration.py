"""Modalities' own configuration as the options of `pack`."""

import json

import pytest
import yaml

from dsindex.formats.pbin import read_pbin_header
from dsindex.formats.raw_index import create_raw_index
from tests.jobs.pack.packing import golden_texts, packed_by_hand, said
from tests.support.golden import OWN

# Modalities' own configuration files.


def modalities_config(folder, **changes):
    """The example of Modalities, over the golden text; changes are given by their path: settings__num_cpus=2."""
    (folder / "docs.jsonl").write_bytes(OWN.docs.read_bytes())
    config = {
        "settings": {"src_path": str(folder / "docs.jsonl"), "dst_path": str(folder / "docs.pbin"),
         "index_path": str(folder / "docs.idx"), "jq_pattern": ".text", "num_cpus": "${node_env:num_cpus}",
         "eod_token": "<|endoftext|>", "processing_batch_size": 10, "raw_samples_queue_size": 20,
         "processed_samples_queue_size": 20},
        "tokenizer": {"component_key": "tokenizer", "variant_key": "pretrained_hf_tokenizer",
         "config": {"pretrained_model_name_or_path": str(OWN.plain_tokenizer), "padding": False, "truncation": False}},
    }  # fmt: skip
    for path, value in changes.items():
        *parents, name = path.split("__")
        part = config
        for parent in parents:
            part = part[parent]
        part[name] = value
    return config


def write_config(folder, config):
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder / "config.yaml"


def test_modalities_configuration_is_taken_as_it_is(tmp_path, capsys):
    special = {"pad_token": "<|pad|>", "additional_special_tokens": ["<|endoftext|>"]}
    config = modalities_config(tmp_path, tokenizer__config__special_tokens=special, tokenizer__config__max_length=512)
    create_raw_index(str(tmp_path / "docs.jsonl"))
    code, shown = said(capsys, write_config(tmp_path, config), "--executor", "local")
    assert code == 0
    assert "ignored, since dsindex works in shards: settings.processing_batch_size, settings.raw_samples_queue" in shown
    expected = packed_by_hand(golden_texts(), str(OWN.plain_tokenizer), version="current", token_bytes=2)
    assert (tmp_path / "docs.pbin").read_bytes() == expected


def test_flags_win_over_modalities_configuration(tmp_path, capsys):
    config = modalities_config(tmp_path, settings__num_cpus=3)
    del config["settings"]["dst_path"]
    path = write_config(tmp_path, config)
    assert said(capsys, "--config", path, "--pbin-era", "spec", "--executor", "local")[0] == 0
    assert read_pbin_header(str(tmp_path / "docs.pbin")).version.name == "spec"
    run = json.loads((tmp_path / "docs.manifest.json").read_bytes())["run"]
    assert run["workers"] == 3
    assert said(capsys, path, "--output", tmp_path / "other.pbin", "--executor", "local")[0] == 0
    assert read_pbin_header(str(tmp_path / "other.pbin")).version.name == "current"


NOT_HONOURED = {
    "interpolation": (
        {"settings__src_path": "${modalities_env:config_folder_path}/docs.jsonl"},
        "settings.src_path: expected a plain value, got the interpolation '${modalities_env:config_folder_path}",
    ),
    "interpolation in depth": (
        {"tokenizer__config__special_tokens": {"additional_special_tokens": ["^", "${settings.eod_token}"]}},
        "tokenizer.config.special_tokens.additional_special_tokens[1]: expected a plain value",
    ),
    "number of CPUs from elsewhere": ({"settings__num_cpus": "${cuda_env:RANK}"}, "settings.num_cpus"),
    "truncation": (
        {"tokenizer__config__truncation": True},
        "tokenizer.config.truncation: .*does not truncate documents",
    ),
    "padding": ({"tokenizer__config__padding": "max_length"}, "tokenizer.config.padding: .*does not pad documents"),
    "sentencepiece": (
        {"tokenizer__variant_key": "pretrained_sp_tokenizer"},
        "tokenizer.variant_key: expected pretrained_hf_tokenizer, got 'pretrained_sp_tokenizer'; dsindex pack reads",
    ),
    "unknown setting": ({"settings__sequence_length": 2048}, "settings.sequence_length: unknown, so"),
    "missing": ({"settings": {}}, "settings.src_path is required"),
    "special token": (
        {"tokenizer__config__special_tokens": {"pad_token": "[PAD]"}},
        "special_tokens.pad_token: expected a special token of the tokenizer, got '\\[PAD\\]'",
    ),
}


@pytest.mark.parametrize(("changes", "message"), NOT_HONOURED.values(), ids=NOT_HONOURED)
def test_what_cannot_be_honoured_is_refused_by_name(changes, message, tmp_path, capsys):
    import re

    path = write_config(tmp_path, modalities_config(tmp_path, **changes))
    code, shown = said(capsys, path)
    assert code == 1
    assert re.search(message, shown) or message in shown, shown
    assert shown.startswith(f"dsindex pack: {path}: ")
    assert not (tmp_path / "docs.pbin").exists()


@pytest.mark.parametrize("tail", ["", "\n"])
def test_raw_index_that_leaves_lines_out_is_refused(tail, tmp_path, capsys):
    config = modalities_config(tmp_path)
    path = tmp_path / "docs.jsonl"
    path.write_text('{"text": "a"}\nbroken\n{"text": "b"}\n{' + tail)
    create_raw_index(str(path), drop_faulty_entries=True)
    code, shown = said(capsys, write_config(tmp_path, config), "--executor", "local")
    assert code == 1
    assert "settings.index_path: expected an index of every line" in shown
    assert "the line at byte 14" in shown
    path.write_text('{"text": "a"}\n{' + tail)
    path.with_suffix(".idx").unlink()
    create_raw_index(str(path), drop_faulty_entries=True)
    assert "the line at byte 14" in said(capsys, write_config(tmp_path, config))[1]
    path.write_text('{"text": "a"}' + tail)
    path.with_suffix(".idx").unlink()
    create_raw_index(str(path))
    assert said(capsys, write_config(tmp_path, config), "--executor", "local")[0] == 0
