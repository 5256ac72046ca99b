"""Evaluate the commonest jq patterns without jq: names of fields, and messages selected by the text under a key.

The results are those of jq. So a record is left to jq if a value in use has a number, which jq may write differently,
or anything else in which the two could differ.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dsindex.text.jq import PatternAnswers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.text.jq import FieldPattern, MaskPattern

_NAME = r"""\.(?:(?P<name{0}>[A-Za-z_]\w*)|\s*\[\s*"(?P<bracket{0}>[^"\\]+)"\s*\]|"(?P<quoted{0}>[^"\\]+)")"""
_FIELD = re.compile(rf"\s*{_NAME.format('')}\s*", re.ASCII)
_TEST = re.compile(rf"""\s*{_NAME.format("")}\s*(?P<operator>==|!=)\s*"(?P<text>[^"\\]*)"\s*""", re.ASCII)
_SELECT = re.compile(r"\s*select\s*\((?P<tests>.*)\)\s*", re.DOTALL)
_OR = re.compile(r"or\b")
_DEEPEST = 64
"""Nesting of a record up to which it is read without jq."""
_PLAIN_INTEGER = 1 << 53

_Test = tuple[str, bool, str]
"""Key of a message, whether its value must be the text or must not be, and the text."""


class PlainPatterns:
    """Patterns that need no jq. Made by `plain_patterns`.

    Args:
        fields: Name -> key of the record.
        masks: For each mask its field, and tests of which a message must pass one to be selected; None for all.
    """

    def __init__(self, fields: Mapping[str, str], masks: Sequence[tuple[str, Sequence[_Test] | None]]) -> None:
        self._fields = dict(fields)
        self._masks = list(masks)

    def read(self, record: Mapping[str, Any]) -> PatternAnswers | None:
        """Return what jq would return for a record, or None if that is not certain."""
        fields = {name: record.get(key) for name, key in self._fields.items()}
        in_use = set(self._fields.values())
        for key, value in record.items():
            if not _is_plain(value, has_numbers=key not in in_use, depth=_DEEPEST):
                return None
        if any(tests is not None and not _are_messages(fields[name]) for name, tests in self._masks):
            return None
        masks = [_select(fields[name], tests) for name, tests in self._masks]
        return PatternAnswers(
            fields={name: {"value": value} for name, value in fields.items()},
            masks=[None if mask is None else {"value": mask} for mask in masks],
        )


def plain_patterns(fields: Sequence[FieldPattern], masks: Sequence[MaskPattern]) -> PlainPatterns | None:
    """Return patterns that need no jq, or None if one of them does.

    >>> from dsindex.text.jq import parse_field_patterns, parse_mask_pattern
    >>> mask = parse_mask_pattern('.turns | select(.from == "human" or .from == "system")')
    >>> found = plain_patterns(parse_field_patterns([".turns"]), [mask])
    >>> found.read({"turns": [{"from": "human"}, {"from": "gpt"}]}).selected(0)
    [True, False]
    """
    keys = {field.name: _FIELD.fullmatch(field.pattern) for field in fields}
    found = [(mask.field, None if mask.rest is None else _read_tests(mask.rest)) for mask in masks]
    needs_jq = any(mask.rest is not None and tests is None for mask, (_, tests) in zip(masks, found, strict=True))
    named = {name: _key_of(match) for name, match in keys.items() if match is not None}
    return None if needs_jq or len(named) < len(keys) else PlainPatterns(named, found)


def _are_messages(value: object) -> bool:
    """Tell whether a value is missing, or has objects only, whose keys jq can look up."""
    if value is None or isinstance(value, dict):
        return True
    return isinstance(value, list) and all(isinstance(element, dict) for element in value)


def _select(value: Any, tests: Sequence[_Test] | None) -> list[bool] | None:  # noqa: ANN401 - any JSON value
    """Return which elements of a value are selected; None if there is no value."""
    if value is None:
        return None
    elements = value if isinstance(value, list) else [value]
    if tests is None:
        return [True] * len(elements)
    return [any((element.get(key) == text) is wanted for key, wanted, text in tests) for element in elements]


def _read_tests(rest: str) -> list[_Test] | None:
    selected = _SELECT.fullmatch(rest)
    if selected is None:
        return None
    tests = []
    position, text = 0, selected["tests"]
    while (test := _TEST.match(text, position)) is not None:
        tests.append((_key_of(test), test["operator"] == "==", test["text"]))
        position = test.end()
        if position == len(text):
            return tests
        if (joined := _OR.match(text, position)) is None:
            return None
        position = joined.end()
    return None


def _key_of(match: re.Match[str]) -> str:
    return str(match["name"] or match["bracket"] or match["quoted"])


def _is_plain(value: object, *, has_numbers: bool, depth: int) -> bool:
    """Tell whether jq returns a value as it is, or reads it without fail if it may have numbers."""
    if isinstance(value, str):
        return "\0" not in value
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return has_numbers and -_PLAIN_INTEGER < value < _PLAIN_INTEGER
    if depth == 0 or not isinstance(value, (dict, list)):
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(item, has_numbers=has_numbers, depth=depth - 1) for item in items)
