"""Help, examples and flags of every command: the options of its model, read as text, and numbers in a range."""

import argparse
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.cli.parser import COMMANDS, EveryCommand, load_model, make_parser, read_values
from dsindex.options.model import options_of


def parser_of(command):
    parser = make_parser(command)
    return next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = parser_of(command).format_help() + make_parser(None).format_help()
    too_long = [line for line in text.splitlines() if len(line) > 80 and "{" not in line]
    assert too_long == []
    assert "options:" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_a_command_parse(command):
    examples = inspect.getdoc(load_model(command)).partition("Examples:\n")[2]
    for text in re.findall(r"dsindex (?:[^\n]*\\\n)*.*", examples):
        program, *words = shlex.split(text.replace("\\\n", ""))
        assert (program, words[0]) == ("dsindex", command)
        make_parser(command).parse_args(words[: words.index("--")] if "--" in words else words)


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_a_command_are_the_options_of_its_model(command):
    option_names = options_of(load_model(command)).keys() | options_of(EveryCommand).keys()
    actions = [action for action in parser_of(command)._actions if action.dest not in {"help", "ignored"}]
    api_only = {"progress", "output_prefix", "command", "job_tokenizer"}
    assert option_names - api_only <= {action.dest for action in actions} <= option_names


def test_build_has_at_most_60_arguments():
    assert len([action for action in parser_of("build")._actions if action.help != argparse.SUPPRESS]) <= 60


@pytest.mark.parametrize(("words", "message"), [
    (["build", "--ouput-prefix", "x"], "error: there is no option --ouput-prefix\nhint: did you mean --output-"),
    (["build", "--input", "a", "--replace", "b"], "error: unexpected argument: b\nhint: `dsindex build -h` lists"),
    (["--json", "build", "--inptu", "x"], "error: there is no option --inptu\nhint: did you mean --input"),
    (["help", "biuld"], "error: there is no command 'biuld'\nhint: did you mean `build`?\n"),
    (["--inptu"], "error: there is no option --inptu\nhint: `dsindex -h` lists"),
])  # fmt: skip
def test_mistyped_words_get_the_nearest_one_as_a_hint(words, message, cli):
    assert cli(words, 2).err.startswith(message)


def test_short_help_lists_the_common_options_and_full_help_has_index_caches_last(cli):
    assert len(re.findall(r"^  --", cli(["build", "-h"]).out, re.MULTILINE)) in range(10, 14)
    assert re.search(r"\n  PREFIX .*\n  --against-source ", cli(["verify", "-h"]).out, re.DOTALL)
    output = cli(["help", "build"]).out
    assert output == cli(["build", "--help"]).out
    assert "--replace" in output
    assert re.findall(r"^(\S.*):$", output, re.MULTILINE)[-2:] == ["index caches (optional)", "examples"]


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_errors_are_coloured_on_a_terminal_and_wrapped_between_words(no_colour, monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    path = "/no/" + "such-folder/" * 6 + "docs.jsonl"
    assert main(["build", "--sampel=1"]) == 2
    assert main(["inspect", path]) == 1
    error = capsys.readouterr().err
    assert ("\x1b[1;31merror:\x1b[0m there is" in error, "\x1b[1;36mhint:\x1b[0m did" in error) == (not no_colour,) * 2
    assert [line for line in error.splitlines() if len(line) > 60 and " " in line] == []
    assert f"\n{path}:\n" in error


def test_flags_are_read_as_megatron_spells_them_and_lists_add_up(tmp_path):
    words = ["build", "--json_keys", "a", "b", "--json-keys", "c", "--input=x_y", "--split=1_0"]
    values = read_values(make_parser("build").parse_args(words))
    assert values == {"json_keys": ["a", "b", "c"], "input": ["x_y"], "split": "1_0"}
    (tmp_path / "o.yaml").write_text("json-keys: [a]\nappend_eod: true\nworkers: 3\n")
    words = ["build", "--config", str(tmp_path / "o.yaml"), "--workers", "4"]
    values = read_values(make_parser("build").parse_args(words))
    assert values == {"json_keys": ["a"], "append_eod": True, "workers": "4"}


@pytest.mark.parametrize("words", [["build", "--help"], ["build", "--inptu"]])
def test_help_and_mistyped_flags_load_little(words):
    among = "{'numpy', 'pyarrow', 'yaml', 'tokenizers', 'pydantic', 'rich', 'concurrent.futures'}"
    code = f"import atexit, sys; atexit.register(lambda: print(*sorted({among} & set(sys.modules)), file=sys.stderr)); "
    code += "from dsindex.cli.main import main; main(sys.argv[1:])"
    process = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert process.stderr.splitlines()[-1:] == [""]


def test_version_says_what_a_bug_report_needs_and_no_secret(cli, monkeypatch):
    assert cli(["--version"]).out == f"dsindex {dsindex.__version__}\n"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-planted")
    output = cli(["--version", "--verbose"]).out
    assert re.search(r"^Python 3\.\d+.*\n\d+ of \d+ CPUs, [\d.,]+ .B of memory for jobs", output, re.MULTILINE)
    assert re.search(r"^numpy [\d.]+$", output, re.MULTILINE)
    assert "hunter2" not in output


IN_BASH = r"""
eval "$(register-python-argcomplete dsindex)"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
IFS=" " read -ra COMP_WORDS <<< "$1"
[[ $1 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
"$(complete -p dsindex | sed "s/.* -F \\([^ ]*\\) .*/\\1/")" dsindex
printf "%s\n" "${COMPREPLY[@]}"
"""
"""What bash does when Tab is pressed at the end of a line, after the command that the page of operations names."""


@pytest.mark.parametrize(("line", "words"), [
    ("dsindex bu", ["build"]),
    ("dsindex build --on-bad-record ", ["fail", "quarantine"]),
])  # fmt: skip
def test_bash_completes_commands_flags_and_choices(line, words):
    pytest.importorskip("argcomplete")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    bash = ["bash", "--norc", "--noprofile", "-c", IN_BASH, "bash", line]
    process = subprocess.run(bash, env=environment, capture_output=True, text=True, check=False)
    assert sorted(process.stdout.split()) == words, process.stderr
