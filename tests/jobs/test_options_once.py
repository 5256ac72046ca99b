"""Every option of every command is declared once, in a model from which its flag is made."""

import argparse
import ast
import importlib
import inspect
from collections import Counter
from pathlib import Path

import pytest

import dsindex
from dsindex.cli.options import EveryCommand
from dsindex.cli.parser import COMMANDS, make_parser
from dsindex.options.config import Options
from dsindex.options.declare import GROUPS, declared_options

NO_OPTIONS = {"--version": "parser", "command_line": "submit"}
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
