"""`--log-json`: progress, results and errors as JSON lines."""

import json
import sys

import pytest

from dsindex.cli.main import main
from dsindex.execution.progress.standard_streams import is_asked_for
from tests.support.golden import OWN


def test_errors_are_json_lines_too(tmp_path, cli):
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / "x")]
    line = json.loads(cli([*words, "--input", "/nowhere.jsonl", "--log-json"], 1).err)
    assert (line["event"], line["exit_code"]) == ("error", 1)
    assert "/nowhere.jsonl: cannot be read" in line["message"]
    (tmp_path / "c.yaml").write_text(f"log_json: true\ninput: [{tmp_path}/none]\n")
    assert json.loads(cli([*words, "--config", str(tmp_path / "c.yaml")], 1).err)["event"] == "error"


@pytest.mark.parametrize(("words", "message"), [
    (["--shard-size"], "dsindex build: argument --shard-size: expected one argument"),
    (["--fresh", "--fresh"], "dsindex build: argument --fresh: expected once, got it twice; leave one out"),
    (["--workers", "0"], "dsindex build: "),
], ids=["argument", "twice", "value"])  # fmt: skip
@pytest.mark.parametrize("flag", ["--log-json", "--log-j"])
def test_wrong_usage_is_a_json_line_too(words, message, flag, capsys):
    before = sys.stderr
    assert main(["build", flag, *words]) == 2
    assert sys.stderr is before
    shown = capsys.readouterr()
    line = json.loads(shown.err)
    assert (line["event"], line["exit_code"]) == ("error", 2)
    assert line["message"].startswith(message)
    assert shown.out == ""


def test_log_of_a_whole_job_is_json_lines(tmp_path, cli):
    prefix = str(tmp_path / "x")
    words = ["build", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", prefix, "--executor", "local"]
    options = tmp_path / "c.yaml"
    options.write_text("log_json: true\n")
    for flags in (["--log-json", "--log-interval", "5"], ["--config", str(options)]):  # a note about a flag
        shown = cli([*words, "--input", str(OWN.docs), *flags])
        assert shown.out == ""
        lines = [json.loads(line) for line in shown.err.splitlines()]
        summary = lines[-1]
        assert summary["event"] == "summary"
        assert "lines = " in summary["message"]
        [output] = summary["outputs"]
        assert output["prefix"] == f"{prefix}_text_document"
        assert output["tokens"] > output["documents"] > 0
        assert summary["already_complete"] == (len(lines) == 1)
        if len(lines) > 1:
            assert [line["event"] for line in lines] == ["message", "stage", "stage", "summary"]
            assert "--log-interval" in lines[0]["message"]


def test_submitted_command_has_flags_of_its_own():
    assert is_asked_for(["build", "--log-json"])
    assert not is_asked_for(["build", "--input", "--", "--log-json"])
    assert not is_asked_for(["build", "--l", "--log-jsonl", "-"])
