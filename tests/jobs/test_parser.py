"""What it means to give a flag twice: lists add up, single values are refused by name. For every command there is."""

import argparse

import pytest

from dsindex.cli.parser import COMMANDS, Parser, make_parser
from tests.support.golden import OWN

TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer))


def flags():
    """Every flag of every command but for --help and --version, which end the program."""
    for command in COMMANDS:
        parser = make_parser(command)
        subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for action in subparsers.choices[command]._actions:
            if action.option_strings and not isinstance(action, argparse._HelpAction):
                yield command, action


@pytest.mark.quick(40)
@pytest.mark.parametrize(
    ("command", "action"), [pytest.param(*flag, id=f"{flag[0]}{flag[1].option_strings[-1]}") for flag in flags()]
)
def test_no_flag_silently_replaces_an_earlier_one(command, action, capsys):
    flag = action.option_strings[-1]
    subparsers = next(a for a in make_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    count = action.nargs if isinstance(action.nargs, int) else 1
    words = [next(iter(action.choices or ["7"]))] * count
    parser = subparsers.choices[command]
    for other in parser._actions:  # what the command wants beside it
        other.required = False
    rest = ["--", "build"] if command == "submit" else []
    once = parser.parse_args([flag, *words, *rest])
    value = getattr(once, action.dest)
    if isinstance(value, list) and not isinstance(action.nargs, int):
        assert getattr(parser.parse_args([flag, *words, flag, *words, *rest]), action.dest) == value * 2
        return
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args([flag, *words, flag, *words, *rest])
    shown = capsys.readouterr().err
    assert flag in shown
    assert "expected once, got" in shown


def test_abbreviated_flag_is_the_same_flag(cli):
    assert "expected once" in cli(["build", "--output-pre", "x", "--output-prefix", "y"], 2).err


def test_one_parser_reads_several_command_lines():
    parser = Parser(prog="x")
    parser.add_argument("--one")
    parser.add_argument("--many", nargs="+", default=["default"])
    for _ in range(2):
        assert parser.parse_args(["--one", "1", "--many", "a", "--many", "b"]) == argparse.Namespace(
            one="1", many=["a", "b"]
        )
    assert parser.parse_args([]).many == ["default"]
