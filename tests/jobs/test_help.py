"""Help at 80 columns, with required options and examples that parse; and what a mistyped flag is told."""

import argparse
import re
import shlex

import pytest

from dsindex.cli.main import main
from dsindex.cli.parser import COMMANDS, Parser, make_parser

COLUMNS = 80


def parser_of(command):
    parser = make_parser(command)
    found = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return found.choices[command]


def examples_in(text):
    """Return the words of the commands in the indented lines at the end of a help text."""
    lines = re.findall(r"^  (?!-)(.*)$", text.rpartition("example")[2], flags=re.MULTILINE)
    return [shlex.split(line) for line in "\n".join(lines).replace("\\\n", "").splitlines()]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_into_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    shown = parser_of(command).format_help()
    assert "Options:" in shown
    assert [
        line for line in [*shown.splitlines(), *make_parser(None).format_help().splitlines()] if len(line) > 80
    ] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_a_command_parse(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    examples = examples_in(parser_of(command).format_help())
    assert examples
    for program, *words in examples:
        assert (program, words[0]) == ("dsindex", command)
        make_parser(command).parse_args(words)


@pytest.mark.parametrize(("command", "usage", "marked"), [
    ("build", "dsindex build --input PATH [PATH ...] --tokenizer-model PATH --output-prefix P [options]",
     ["--input", "--tokenizer-model", "--output-prefix"]),
    ("index", "dsindex index --data-path P [P ...] --seq-length L [options]", ["--data-path", "--seq-length"]),
    ("repair", "dsindex repair PREFIX --output NEW [options]", ["--output"]),
])  # fmt: skip
def test_required_options_are_marked(command, usage, marked, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    parser = parser_of(command)
    first = parser.format_help().partition("\n\n")[0]
    assert " ".join(first.split()) == f"Usage: {usage}"
    found = [action.option_strings[-1] for action in parser._actions if "(required" in str(action.help)]
    assert sorted(found) == sorted(marked)


@pytest.mark.parametrize(("words", "message"), [
    (["build", "--ouput-prefix", "x"], "there is no flag --ouput-prefix; did you mean --output-prefix?"),
    (["build", "--qqq"], "there is no flag --qqq; dsindex build --help lists all flags"),
    (["build", "--chunk-size", "5"], "there is no flag --chunk-size; leave it out, or set the bytes"),
    (["build", "--vocab", "v"], "there is no flag --vocab; use --vocab-file"),
    (["build", "--tokenizer-name-or-path=x"], "there is no flag --tokenizer-name-or-path; use --tokenizer-model"),
    (["convert", "--vocab", "v"], "there is no flag --vocab; dsindex convert --help lists all flags"),
    (["build", "-q"], "there is no flag -q; dsindex build --help lists all flags"),
    (["build", "--input", "a", "--fresh", "b"], "expected a flag, got 'b' (inputs follow --input)"),
    (["repair", "x", "--ouptut", "y"], "there is no flag --ouptut; did you mean --output?"),
    (["submit", "--adress", "x", "--", "build"], "there is no flag --adress; did you mean --address?"),
    (["submit", "--", "build", "--inptu", "x"], "there is no flag --inptu; did you mean --input"),
    (["build", "--workers", "four"], "argument --workers: expected an integer, got 'four'"),
    (["build", "--shard-deadline", "soon"], "argument --shard-deadline: expected a number, got 'soon'"),
    (["biuld", "--input", "x"], "there is no command 'biuld'; did you mean build?"),
    (["--verison"], "there is no flag --verison; did you mean --version?"),
])  # fmt: skip
def test_mistyped_words_are_told_the_nearest_one(words, message, capsys):
    command = next((word for word in words if word in COMMANDS), None)
    with pytest.raises(SystemExit, match="2"):
        make_parser(command).parse_args(words)
    shown = capsys.readouterr().err
    assert message in shown
    job = "build" if "--inptu" in words else command
    assert f"Usage: dsindex {job or '[-h]'}" in shown


def test_help_and_version_are_also_commands(capsys):
    shown = []
    for words in (["help"], ["--help"], ["help", "merge"], ["merge", "--help"], ["version"], ["--version"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        shown.append(capsys.readouterr().out)
    assert shown[::2] == shown[1::2]


def test_value_that_looks_like_a_flag_is_no_mistake():
    parser = Parser(prog="x")
    parser.add_argument("--where")
    parser.add_argument("rest", nargs="*")
    assert parser.parse_args(["--where=--x", "--", "--y"]) == argparse.Namespace(where="--x", rest=["--y"])
