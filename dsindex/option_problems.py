"""Values of options in messages: on one line, short, without secrets."""

from __future__ import annotations

from dsindex.json_text import show_name
from dsindex.locations import without_secrets

_LONGEST_VALUE = 80


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
