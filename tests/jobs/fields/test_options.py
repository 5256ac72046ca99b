"""What `--json-keys`, `--join`, `--where` and `--token-ids` may be, and where plans record them."""

import json
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import dsindex
from dsindex.cli.main import main
from dsindex.errors import PlanError
from dsindex.options.build import BuildConfig
from tests.jobs.fields.field_builds import KINDS, arguments, config_of
from tests.support.golden import OWN
from tests.support.jobs import run_config


@pytest.mark.parametrize(("first", "second", "change"), [
    ({}, {"where": ".n"}, r'where was not set and is "\.n"'),
    ({"where": ".n"}, {"where": ".n > 1"}, r'where was "\.n" and is "\.n > 1"'),
    ({"join": "a"}, {"join": "b"}, 'join was "a" and is "b"'),
    ({"json_keys": ("x=.meta.text",)}, {"json_keys": ("x=.text",)}, r"json-keys was \[\"x=\.meta\.text\"\] and is"),
    ({"token_ids": "x=.lists"}, {"token_ids": "x=.meta.ids"}, r'token-ids was "x=\.lists" and is'),
])  # fmt: skip
def test_other_fields_are_another_plan(first, second, change, source, tmp_path):
    run_config(config_of(source, tmp_path, **first))
    assert run_config(config_of(source, tmp_path, **first)).already_complete
    with pytest.raises(PlanError, match=change):
        run_config(config_of(source, tmp_path, **second))


def test_plan_and_manifest_of_plain_keys_have_nothing_new(make_config):
    report = run_config(make_config())
    manifest = json.loads(Path(f"{report.datasets[0].prefix}.manifest.json").read_bytes())
    assert manifest["content"]["options"].keys() == {
        *("json_key", "append_eod", "tokenizer_hf_no_include_special_tokens", "on_bad_record", "max_record_size"),
    }  # fmt: skip
    assert "filtered" not in manifest["content"]["account"]
    assert "filtered" not in manifest["content"]["inputs"][0]
    assert manifest["run"]["plan"]["settings"].keys() == {
        *("tokenizer", "engine", "append-eod", "tokenizer-hf-no-include-special-tokens", "shard-size"),
        *("no-provenance", "on-bad-record", "max-record-size", "json-keys", "output-prefix"),
    }  # fmt: skip


@pytest.mark.parametrize(("options", "message"), [
    ({"json_keys": (".a | .b",)}, r"--json-keys: .* pattern '\.a \| \.b'; name its output, as in NAME=\.a \| \.b "),
    ({"json_keys": ('.["a/b"]',)}, r"can be part of a file name, got 'a/b'; write NAME="),
    ({"json_keys": ("a/b=.c",)}, "can be part of a file name, got 'a/b'"),
    ({"json_keys": (".",)}, r"name its output, as in NAME=\. "),
    ({"json_keys": (r'."\u0000"',)}, "can name a file"),
    ({"json_keys": (r'."\ud800"',)}, "can name a file"),
    ({"json_keys": ('.""',)}, "can be part of a file name, got ''"),
    ({"json_keys": ("text", ".text")}, r"a different name for each output, got 'text' for text and \.text"),
    ({"json_keys": ("text", "text")}, "expected each key once"),
    ({"json_keys": ("text", "text"), "join": ""}, "expected each key once"),
    ({"json_keys": ("text",), "token_ids": "ids"}, "either --token-ids or --json-keys, got both"),
    ({"token_ids": "ids", "join": ""}, "either --token-ids or --join, got both"),
    ({"token_ids": "x=.a[0]"}, r"--token-ids: expected a name or a path .*, got the jq pattern 'x=\.a\[0\]'"),
    ({"token_ids": "a/b"}, "--token-ids: expected keys that can be part of a file name"),
    ({"where": " "}, "expected a jq condition"),
    ({"join": "\\x"}, "expected a backslash to be part of"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        BuildConfig(input=("a",), tokenizer_model="t", output_prefix="o", **options)


@pytest.mark.parametrize(("flags", "message"), [
    (("--where", ".n |"), r"jq pattern '\.n \|': syntax error"),
    (("--where", "now > 1"), "'now' is not allowed"),
    (("--json-keys", "x=.n |"), r"jq pattern '\.n \|': syntax error"),
    (("--json-keys", ".meta.none"), r"a\.jsonl, line 1: expected the key 'none' at \.meta, got only"),
    (("--where", ".n + {}"), r"a\.jsonl, line 1: pattern `\.n \+ \{\}` fails"),
    (("--token-ids", "text"), r"line 1: expected a list of token ids from 0 to \d+ under the key 'text', got a s"),
    (("--token-ids", ".meta.big"), r"line 1: expected a list of token ids .* at \.meta\.big, got a list with 9999"),
])  # fmt: skip
def test_bad_fields_get_one_sentence(flags, message, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "text": "a", "meta": {"x": 1, "big": [1, 9999999]}}\n')
    words = ("build", "--input", tmp_path / "a.jsonl", "--tokenizer-model", OWN.plain_tokenizer, *flags)
    assert main([*map(str, words), "--output-prefix", str(tmp_path / "out" / "x"), "--executor", "local"]) == 1
    shown = capsys.readouterr().err.splitlines()[-1]
    assert shown.startswith("dsindex build: ")
    assert re.search(message, shown), shown
    assert not list(tmp_path.glob("out/*.bin"))


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", KINDS)
def test_estimate_knows_the_fields(kind, source, tmp_path):
    config = config_of(source, tmp_path, **KINDS[kind])
    estimate = dsindex.estimate(**arguments(config))
    built = dsindex.build(**arguments(config))
    assert estimate.documents == built.datasets[0].num_documents
    assert estimate.tokens == pytest.approx(sum(dataset.num_tokens for dataset in built.datasets), rel=0.05)


def test_check_reads_the_fields(source, tmp_path, cli):
    (tmp_path / "build.yaml").write_text(
        f"input: [{source}/a.jsonl]\ntokenizer_model: {OWN.plain_tokenizer}\noutput_prefix: {tmp_path}/out/x\n"
        'json_keys: [text, .meta.text]\njoin: "\\n"\nwhere: .n < 3\nexecutor: local\n'
    )
    assert "audited" in cli(["build", "--config", str(tmp_path / "build.yaml"), "--check"]).out
    assert "3 kept" in cli(["build", "--config", str(tmp_path / "build.yaml"), "--on-bad-record", "quarantine"]).out
