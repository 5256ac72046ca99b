"""Every option of a job is declared in its model, and offered by its command."""

import argparse
import ast
import importlib
import inspect
from collections import Counter
from pathlib import Path

import pytest

from dsindex.cli.parser import COMMANDS, make_parser
from dsindex.options.config import Options

NOT_FLAGS = {("IndexConfig", "job_tokenizer"), ("PackConfig", "output_prefix")}
"""What follows from other options."""


def models_of(command):
    """Return the models that a command's module reads its options with."""
    module = importlib.import_module(COMMANDS[command][1])
    return {
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Options) and value.__name__.endswith("Config")
    }


def actions_of(command):
    parsers = next(a for a in make_parser(command)._actions if isinstance(a, argparse._SubParsersAction))
    return list(parsers.choices[command]._actions)


WITH_MODELS = sorted(command for command in COMMANDS if models_of(command))


def test_the_commands_of_jobs_have_models():
    assert {"build", "merge", "index", "mix", "verify", "repair", "convert", "pack", "instruct"} <= {*WITH_MODELS}


@pytest.mark.parametrize("command", WITH_MODELS)
def test_every_option_of_a_model_is_a_flag_once(command):
    offered = Counter(action.dest for action in actions_of(command))
    for model in models_of(command):
        for name in model.model_fields:
            if (model.__name__, name) not in NOT_FLAGS:
                assert offered[name] == 1, f"{model.__name__}.{name}"


@pytest.mark.parametrize("command", WITH_MODELS)
def test_no_command_declares_an_option_of_its_model_again(command):
    source = Path(inspect.getfile(importlib.import_module(COMMANDS[command][1]))).read_text()
    written = {
        word.value.removeprefix("--").replace("-", "_")
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }
    assert not written & {name for model in models_of(command) for name in model.model_fields}


def subclasses(model):
    return {model}.union(*(subclasses(each) for each in model.__subclasses__()))


def test_no_two_models_declare_the_same_option():
    for command in COMMANDS:
        importlib.import_module(COMMANDS[command][1])
    declared = {}
    for model in sorted(subclasses(Options), key=lambda model: model.__name__):
        for name in inspect.get_annotations(model).keys() & model.model_fields.keys():
            text = model.model_fields[name].description
            if text is not None:
                first = declared.setdefault((name, text), model.__name__)
                assert first == model.__name__, f"{name} is declared by {first} and {model.__name__}"
