"""What is wrong with a value of an option, as a sentence: the problems that pydantic finds, in the project's words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsindex.json_text import show_name
from dsindex.locations import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_VALUE = 80
_EXPECTED: dict[str, str] = {
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text; quote it if it looks like a number",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "dataclass": "a mapping",
    "date": "a date such as 2026-01-31",
    "path": "a path",
    "model": "a mapping",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length}",
    "too_long": "at most {max_length}",
}
"""Beginning of a problem's type → what was expected, with the names of its context."""


def describe_problem(problem: Mapping[str, Any]) -> str:
    """Return what was expected and what is there instead.

    Args:
        problem: An entry of `errors()` of a ValidationError.

    >>> describe_problem({"type": "int_parsing", "msg": "Input should be …", "input": "four"})
    "expected an integer, got 'four'"
    """
    kind, given = problem["type"], problem.get("input")
    if kind == "value_error":
        return str(problem["msg"]).removeprefix("Value error, ")
    if kind == "too_short" and not given:
        return "expected at least one, got none"
    known = next((wanted for name, wanted in _EXPECTED.items() if kind == name or kind.startswith(f"{name}_")), None)
    if known is None:
        return str(problem["msg"])
    wanted, _, remedy = known.format(**_plain(problem.get("ctx") or {})).partition("; ")
    return f"expected {wanted}, got {show_value(given)}" + (f"; {remedy}" if remedy else "")


def _plain(context: Mapping[str, Any]) -> dict[str, Any]:
    """Return a context in which choices have no quotes, and several of them begin with `one of`."""
    if "expected" not in context:
        return dict(context)
    choices = re.sub(r"'([^']*)'", r"\1", str(context["expected"]))
    return {**context, "expected": f"one of {choices}" if " or " in choices else choices}


def show_value(value: object) -> str:
    """Return a value on one line for messages, cut off if it is long."""
    shown = show_name(without_secrets(repr(value)))
    return shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}…"


def name_kind(value: object) -> str:
    """Return what a value of a configuration is, for messages.

    >>> name_kind(None), name_kind(["a"]), name_kind(2.5)
    ('nothing', 'a list', 'a number')
    """
    kinds = {type(None): "nothing", str: "text", list: "a list", dict: "a mapping", bool: "true or false"}
    return kinds.get(type(value), "a number" if isinstance(value, int | float) else "a value of another kind")
