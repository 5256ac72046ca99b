"""Records on whose text the tokenizer's library fails are bad records like any other."""

import json

import pytest

from dsindex.errors import BadRecordError
from dsindex.options.build import BuildConfig
from tests.support import text_tokenizers as trained
from tests.support.jobs import config_of, run_config
from tests.support.published import read_pair

RUNAWAY = "x" * 40
"""Oniguruma gives up on the pattern after ten million steps, and tokenizers panics."""
TEXTS = ["one", RUNAWAY, ["two", "three"], "", ["four", RUNAWAY, "y"], "five"]
GOOD = [text for text in TEXTS if RUNAWAY not in text]


def build(path, folder, **options):
    folder.mkdir()
    splits = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    steps = {"type": "Sequence", "pretokenizers": [splits, last]}
    tokenizer = path.parent / "tokenizer.json"
    tokenizer.write_bytes(trained.byte_level_document(pre_tokenizer=steps))
    defaults = {"tokenizer_model": str(tokenizer), "append_eod": True, "eod_token": "<|eot|>"}
    defaults["output_prefix"] = str(folder / "x")
    return read_pair(run_config(config_of(BuildConfig, path, **{**defaults, **options})).prefixes[0])


def write_lines(path, texts):
    lines = "".join(json.dumps({"title": "t", "text": text}) + "\n" for text in texts)
    path.write_bytes(lines.encode())
    return path


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)], indirect=True)
def test_record_is_named_and_set_aside_by_every_executor(executor, tmp_path):
    path = write_lines(tmp_path / "in.jsonl", TEXTS)
    expected = build(write_lines(tmp_path / "good.jsonl", GOOD), tmp_path / "good")
    message = r"in\.jsonl, line 2: tokenizers cannot encode .*retry-limit"
    with pytest.raises(BadRecordError, match=message):
        build(path, tmp_path / "stopped", executor=executor)
    assert build(path, tmp_path / "out", executor=executor, on_bad_record="quarantine") == expected


def test_verify_leaves_out_what_the_build_has_set_aside(tmp_path, cli):
    build(write_lines(tmp_path / "in.jsonl", TEXTS), tmp_path / "out", on_bad_record="quarantine")
    output = cli(["verify", str(tmp_path / "out" / "x_text_document"), "--against-source"]).out
    assert "1 of 1 shards tokenized again" in output
