"""Jobs that could not work are refused before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.workflows.submit.command_lines import parse
from workflows.cli import main
from workflows.cluster import submit

if TYPE_CHECKING:
    from pathlib import Path

# The command line.


def test_dry_run_says_what_would_happen_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = parse("submit", "--dry-run", "--address", "head:8265", "--", "build", "--config", "b.yaml", "--fresh")
    assert submit.run(arguments) == 0
    shown = capsys.readouterr().out
    assert "job server   http://head:8265\n" in shown
    assert "token        none\n" in shown
    assert "entry point  python -m workflows build --config b.yaml --fresh\n" in shown
    assert " workflows: " in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "expected a dsindex command after --"),
        (["--no-wait", "--"], "expected a dsindex command after --"),
        (["--", "logs", "--follow", "raysubmit_1"], "logs runs here, not on the cluster"),
        (
            ["--dry-run", "--", "bogus"],
            "expected a dsindex command after --, got 'bogus'; the commands are build, plan,",
        ),
        (["--dry-run", "--", "dsindex", "build"], "got 'dsindex'; leave the program's name out"),
        (["--dry-run", "--", "build", "--bogus"], "dsindex build: error: there is no flag --bogus"),
        (["--dry-run", "--", "build", "--workers", "many"], "argument --workers: expected an integer, got 'many'"),
        (["--dry-run", "--", "build", "--output-prefix", "a", "--output-prefix", "b"], "expected once, got 'a' and"),
        (["--dry-run", "--", "convert", "only-one"], "the following arguments are required: DST"),
        (["--no-wait", "--no-wait", "--", "build"], "argument --no-wait: expected once"),
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("submit", *words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


TEXT = "--input /in/*.jsonl --tokenizer-model gpt2 --output-prefix /out/x"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("build --output-prefix /out/x", "dsindex build: --input is required; --tokenizer-model is required"),
        (f"build {TEXT} --epochs 1 --seq-length 1", "dsindex build: --seq-length: expected at least 2, got 1"),
        ("verify /out/x --sample 1%", "dsindex verify: --sample needs --against-source"),
        ("convert /out/x /out/y", "dsindex convert: expected SRC or DST to end in .pbin"),
        ("repair /out/x.pbin --output /out/y", "dsindex repair: expected a .pbin as --output"),
        ("pack --merge /a.pbin --output /out/x", "dsindex pack: --output: expected the name of a new .pbin file"),
        ("build --config job.yaml --workers 1", "dsindex build: --output-prefix: expected an absolute path"),
        ("build --config /mnt/job.yaml --work-dir w", "dsindex build: --work-dir: expected an absolute path"),
        (f"build {TEXT} --repeat a.jsonl=2", "--repeat: expected an absolute path on storage that every node of the"),
        (f"build {TEXT} --data-cache-path c --epochs 1 --seq-length 8", "--data-cache-path: expected an absolute path"),
        (f"plan {TEXT.replace('/out', 'out')}", "dsindex plan: --output-prefix: expected an absolute path"),
        (f"build {TEXT.replace('gpt2', './gpt2')}", "--tokenizer-model: expected an absolute path"),
        (
            f"build {TEXT.replace('gpt2', 'here')}",
            "got 'here': the job would look for it in Ray's session folder; write",
        ),
        ("merge --input /a b --output-prefix /out/x", "dsindex merge: --input: expected an absolute path"),
        ("index --data-path 0.5 /a 0.5 b --epochs 1 --seq-length 8", "--data-path: expected an absolute path"),
        ("verify b", "dsindex verify: PREFIX: expected an absolute path"),
        ("raw-index shipped.jsonl", "dsindex raw-index: --output: expected an absolute path"),
        ("convert /out/x y.pbin", "dsindex convert: DST: expected an absolute path"),
        ("instruct chat.yaml", "dsindex instruct: --output-prefix: expected an absolute path"),
        ("pack modalities.yaml", "dsindex pack: --output: expected an absolute path"),
        (
            "demo",
            "got 'demo-output': the job would write it to Ray's session folder, which is deleted with the cluster",
        ),
    ],
)
def test_job_that_could_not_work_is_refused_before_anything_is_sent(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submit, "JobServer", None)  # nothing may reach it
    options = "input: [/in/a]\ntokenizer_model: gpt2\noutput_prefix: out/x\n"
    (tmp_path / "here").mkdir()
    (tmp_path / "shipped.jsonl").touch()
    (tmp_path / "job.yaml").write_text(options)
    (tmp_path / "chat.yaml").write_text("chat_template_file: /mnt/t\njob: {output_prefix: out/x}\n")
    (tmp_path / "modalities.yaml").write_text("settings: {src_path: /in/a, dst_path: out/x.pbin}\n")
    assert main(["submit", "--ship", "shipped.jsonl", "--", *command.split()]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_job_may_name_shipped_files_and_tokenizers_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "pack.yaml").write_text("output: /out/x.pbin\n")
    words = ["--dry-run", "--installed", "--ship", "tokenizer", "--"]
    for tokenizer in ("tokenizer", "openai/gpt2@main"):
        command = ["pack", "conf/pack.yaml", "--input", "/in/a", "--tokenizer-model", tokenizer]
        assert main(["submit", *words, *command]) == 0
        shown = capsys.readouterr().out
        assert f"python -m workflows pack pack.yaml --input /in/a --tokenizer-model {tokenizer}\n" in shown
        assert "pack.yaml: 1 files, 20 bytes\n" in shown


def test_file_of_options_that_is_nowhere_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--", "build", "--config", "nowhere.yaml"]) == 1
    assert "dsindex build: nowhere.yaml: expected a file of options, found none in" in capsys.readouterr().err


def test_job_server_is_named_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "--", "verify", "/out/x", "--address", "http://head:8265"]) == 1
    assert "got the job server http://head:8265; " in capsys.readouterr().err
