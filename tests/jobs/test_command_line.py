"""Help, examples and flags of every command: declared once, given once, numbers in a range."""

import argparse
import ast
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.cli.options import EveryCommand
from dsindex.cli.parser import COMMANDS, make_parser
from dsindex.options.config import Options
from dsindex.options.declare import GROUPS, declared_options
from tests.support.golden import OWN

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
    (["build", "--chunk-size", "5"], "there is no flag --chunk-size; leave it out, or set the bytes"),
    (["build", "--vocab", "v"], "there is no flag --vocab; use --vocab-file"),
    (["build", "--tokenizer", "x"], "there is no flag --tokenizer; use --tokenizer-model FOLDER"),
    (["build", "--tokenizer-name-or-path=x"], "there is no flag --tokenizer-name-or-path; use --tokenizer-model"),
    (["build", "--input", "a", "--replace", "b"], "expected a flag, got 'b' (inputs follow --input)"),
    (["build", "--inptu", "x"], "there is no flag --inptu; did you mean --input"),
    (["build", "--shard-deadline", "soon"], "argument --shard-deadline: expected a number, got 'soon'"),
    (["biuld", "--input", "x"], "there is no command 'biuld'; did you mean build?"),
    (["vesrion"], "there is no command 'vesrion'; did you mean version?"),
])  # fmt: skip
def test_mistyped_words_are_told_the_nearest_one(words, message, capsys):
    command = next((word for word in words if word in COMMANDS), None)
    with pytest.raises(SystemExit, match="2"):
        make_parser(command).parse_args(words)
    shown = capsys.readouterr().err
    assert message in shown
    assert f"Usage: dsindex {command or '[-h]'}" in shown


def test_mistyped_flag_of_a_build_loads_little():
    """It and --help are answered before the libraries of a build are imported."""
    among = "{'numpy', 'pyarrow', 'yaml', 'tokenizers', 'concurrent.futures'}"
    code = f"import atexit, sys; atexit.register(lambda: print(*sorted({among} & set(sys.modules)))); "
    code += "from dsindex.cli.main import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "build", "--inptu"]
    shown = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "--inptu" in shown.stderr
    assert shown.stdout.split() == []


def test_help_and_version_are_also_commands(capsys):
    shown = []
    for words in (["help"], ["--help"], ["help", "merge"], ["merge", "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        shown.append(capsys.readouterr().out)
    assert shown[::2] == shown[1::2]


def test_version_says_what_a_bug_report_needs_and_no_secret(cli, monkeypatch):
    assert cli(["--version"]).out == cli(["version"]).out == f"dsindex {dsindex.__version__}\n"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-planted")
    shown = cli(["--version", "--verbose"]).out
    assert re.search(r"^Python 3\.\d+.*\n\d+ of \d+ CPUs for jobs", shown, re.MULTILINE)
    assert re.search(r"^numpy [\d.]+$", shown, re.MULTILINE)
    assert "hunter2" not in shown


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
    ("dsindex build --input a.jsonl --shard-", ["--shard-deadline", "--shard-size"]),
    ("dsindex build --on-bad-record ", ["fail", "quarantine"]),
    ("dsindex trace cache --fie", ["--fields"]),
])  # fmt: skip
def test_bash_completes_commands_flags_and_choices(line, words):
    pytest.importorskip("argcomplete")
    own = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    bash = ["bash", "--norc", "--noprofile", "-c", IN_BASH, "bash", line]
    shown = subprocess.run(bash, env=own, capture_output=True, text=True, check=False)
    assert sorted(shown.stdout.split()) == words, shown.stderr


TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_silently_replaces_an_earlier_one(command, capsys):
    """Lists add up, single values are refused by name."""
    parser = parser_of(command)
    actions = [a for a in parser._actions if a.option_strings and not isinstance(a, argparse._HelpAction)]
    for action in parser._actions:  # what the command wants beside the flag
        action.required = False
    for action in actions:
        flag = action.option_strings[-1]
        given = [flag, *[next(iter(action.choices or ["7"]))] * (action.nargs if isinstance(action.nargs, int) else 1)]
        value = getattr(parser.parse_args([*given]), action.dest)
        if isinstance(value, list) and not isinstance(action.nargs, int):
            assert getattr(parser.parse_args([*given, *given]), action.dest) == value * 2
            continue
        with pytest.raises(SystemExit, match="2"):
            parser.parse_args([*given, *given])
        shown = capsys.readouterr().err
        assert flag in shown
        assert "expected once, got" in shown


def test_abbreviated_flag_is_the_same_flag(cli):
    assert "expected once" in cli(["build", "--output-pre", "x", "--output-prefix", "y"], 2).err


NO_OPTIONS = {"--version": "parser", "--verbose": "parser"}
"""What the command line takes beside options, and the modules that add it."""


def actions_of(command):
    parsers = next(a for a in make_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    return [action for action in parsers.choices[command]._actions if action.dest not in {"help", *NO_OPTIONS}]


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_a_command_are_its_declared_options(command):
    models = (*importlib.import_module(COMMANDS[command][1]).OPTIONS, EveryCommand)
    declared = {name for name, (_, shown) in declared_options(*models).items() if shown.flags != ()}
    assert Counter(action.dest for action in actions_of(command)) == Counter(declared)


def test_no_module_adds_an_argument_by_hand():
    root = Path(dsindex.__file__).parent
    added = {
        ast.unparse(call.args[0]).strip("'"): path.stem
        for path in root.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        if path != root / "cli" / "options.py"
    }
    assert added == NO_OPTIONS


def subclasses(model):
    return {model}.union(*(subclasses(each) for each in model.__subclasses__()))


def test_no_two_models_declare_the_same_option():
    for command in COMMANDS:
        importlib.import_module(COMMANDS[command][1])
    declared = {}
    for model in sorted(subclasses(Options), key=lambda model: model.__name__):
        options = declared_options(model)
        for name in inspect.get_annotations(model).keys() & options.keys():
            shown = options[name][1]
            assert not shown.group or shown.group in GROUPS, f"{model.__name__}.{name}"
            if shown.help:
                first = declared.setdefault((name, shown.help), model.__name__)
                assert first == model.__name__, f"{name} is declared by {first} and {model.__name__}"


INDEX = ["--seq-length", "16", "--epochs", "1"]
STEPS = ["--seq-length", "16", "--train-iters", "9", "--global-batch-size", "4", "--eval-interval", "1"]
STEPS += ["--plain-names"]
LONG = "9" * 5000


def build(folder, *words):
    given = ["--input", str(OWN.docs), "--tokenizer-model", str(OWN.plain_tokenizer), "--executor", "local"]
    return main(["build", *given, "--output-prefix", str(folder / "x"), *words])


@pytest.mark.parametrize(("words", "message"), [
    (["--max-record-size", str(2**63)], "--max-record-size: expected at most 9223372036854775807, got '92233"),
    (["--max-record-size", "9" * 400], "--max-record-size: expected a size such as 64kB, 64MiB or 1.5GB, got '999"),
    (["--shard-size", "64"], "--shard-size: expected a size with a unit, got 64; say 64MiB, or 64B for bytes"),
    (["--shard-size", "9999999999GiB"], "--shard-size: expected at most"),
    (["--workers", str(2**20 + 1)], "--workers: expected at most 1048576, got 1048577"),
    (["--sample", "1" * 400], "--sample: expected a share above 0"),
    (["--max-bad-records", LONG], "--max-bad-records: expected a number such as 100"),
    (["--shard-deadline", "inf"], "--shard-deadline: expected "),
    ([*INDEX[2:], "--seq-length", str(2**31 - 1)], "--seq-length: expected less than 2147483647, got 2147483647"),
    ([*INDEX[:2], "--epochs", LONG], "--epochs: expected a positive number of epochs"),
    ([*INDEX[:2], "--num-samples", LONG], "--num-samples: expected one to three numbers"),
    ([*INDEX, "--mid-level-dataset-surplus", "inf"], "--mid-level-dataset-surplus: expected a finite number"),
], ids=lambda words: " ".join(words)[:40] if isinstance(words, list) else "")  # fmt: skip
def test_numbers_out_of_range_are_refused_before_work(words, message, tmp_path, capsys):
    assert build(tmp_path / "out", *words) == 2
    [shown] = capsys.readouterr().err.splitlines()
    assert f"dsindex build: {message}" in shown
    assert len(shown) < 300
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.parametrize(("words", "message"), [
    ([*INDEX, "--split", "one"], "--split: expected one to three shares"),
    ([*INDEX, "--split", "0,1,0"], "--epochs counts epochs of train, which has no data"),
    ([*INDEX, "--like", "missing.txt"], "missing.txt: "),
    ([*STEPS, "--step-batch-size-schedule", "7"], "--step-batch-size-schedule: expected"),
], ids=lambda words: " ".join(words)[-40:] if isinstance(words, list) else "")  # fmt: skip
def test_options_of_indices_that_fit_no_data_are_refused_before_the_build(words, message, tmp_path, capsys):
    assert build(tmp_path / "out", *words) == 1
    assert message in capsys.readouterr().err
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_integer_of_a_command_line_has_a_range(command, capsys):
    parser = parser_of(command)
    for action in [action for action in parser._actions if action.type is int]:
        for number in (str(2**63), LONG, "1_0", "٣", "1.5", "", "nan"):
            with pytest.raises(SystemExit, match="2"):
                parser.parse_args([f"{action.option_strings[-1]}={number}"])
            shown = capsys.readouterr().err.splitlines()[-1]
            assert f"{action.option_strings[-1]}: expected " in shown
            assert len(shown) < 300
