"""The generated pages have every command, flag and key."""

import argparse
import doctest
import importlib.util

import pytest

from dsindex.cli.main import COMMANDS, make_parser
from tests.docs.examples import ROOT


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs" / "hooks" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_has_a_page_of_its_own(reference):
    assert len(reference.write_pages()) == len(COMMANDS) + 3  # the list of commands, the options, and the changelog


@pytest.mark.quick(6)
@pytest.mark.parametrize("name", COMMANDS)
def test_page_of_a_command_has_all_its_flags(reference, name):
    page = reference.write_pages()[f"reference/commands/dsindex-{name}.md"]
    parser = reference.find_parser(make_parser(name), name)
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = [flag for action in shown for flag in action.option_strings]
    assert "--debug" in flags
    for flag in flags:
        assert f"`{flag}`" in page, flag


def test_options_page_has_all_keys(reference):
    page = reference.write_pages()["reference/options.md"]
    for model in [*reference.MODELS.values(), reference.INSTRUCTION_MODEL]:
        fields = reference.load(model).model_fields
        assert fields
        for name in fields:
            assert f"| {reference.breakable(name)}<br>" in page, f"{model}.{name}"


def test_generated_text_keeps_what_markdown_would_take_for_its_own(reference):
    assert reference.escape("P_KEY_document.* <x> [a] `a|b_c`") == r"P\_KEY\_document.\* &lt;x&gt; \[a\] `a|b_c`"


def test_doctests_of_the_generator_pass(reference):
    assert doctest.testmod(reference) == doctest.TestResults(failed=0, attempted=2)
