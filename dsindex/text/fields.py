"""Read the wanted keys of one line of JSON, or say why the line is not a record.

The reference is Python's `json.loads` of the strictly decoded line. Two rules replace limits that depend on the
interpreter: integers may have any number of digits, and a line may nest at most MAX_NESTING objects and lists.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

Texts: TypeAlias = str | list[str]

MAX_NESTING = 900
"""Deepest nesting accepted; json.loads gives up at about 1,000 minus the depth of the call stack."""
JSON_WHITESPACE = b" \t\r"
"""Bytes that a blank line may contain."""

# Integers are parsed as floats: their values are not used, and int() refuses more than 4,300 digits.
_DECODER = json.JSONDecoder(parse_int=float)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_SHOWN_KEYS = 5
_SHOWN_CHARACTERS = 40
_TYPE_NAMES = {
    type(None): "null",
    bool: "a boolean",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def read_fields(line: bytes, keys: Sequence[str]) -> list[Texts] | str:
    """Read the wanted texts of one line.

    Args:
        line: The line without newline and BOM; not blank.
        keys: The wanted top-level keys of the object.

    Returns:
        The texts of each key, in the order of `keys`; or a string with the reason why the line is not a record.

    >>> read_fields(b'{"text": "a", "title": ["b", "c"]}', ["text", "title"])
    ['a', ['b', 'c']]
    >>> read_fields(b'{"text": null}', ["text"])
    "expected a string or a list of strings under the key 'text', got null"
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return (
            f"expected UTF-8, got byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line: {error.reason}"
        )
    if text.startswith("\ufeff"):
        return "expected JSON, got a byte order mark, which only a file's start may have"
    if is_too_deep(line):
        return f"expected at most {MAX_NESTING} objects and lists inside each other, got more"
    try:
        record = _decode(text)
    except json.JSONDecodeError as error:
        return f"expected JSON, got an error at column {error.pos + 1}: {error.msg}"
    if not isinstance(record, dict):
        return f"expected a JSON object, got {_TYPE_NAMES[type(record)]}"
    values: list[Texts] = []
    for key in keys:
        if key not in record:
            return f"expected the key {key!r}, got {_show_keys(record)}"
        wrong = _find_fault(record[key])
        if wrong is not None:
            return f"expected a string or a list of strings under the key {key!r}, got {wrong}"
        values.append(cast("Texts", record[key]))
    return values


def is_too_deep(line: bytes) -> bool:
    """Tell whether brackets outside strings nest deeper than MAX_NESTING; cheap for lines with few brackets."""
    if line.count(b"{") + line.count(b"[") <= MAX_NESTING:
        return False
    # Maps "[" to "{" and "]" to "}": 0x5b | 0x20 = 0x7b, 0x5d | 0x20 = 0x7d.
    folded = np.frombuffer(_STRING.sub(b"", line), np.uint8) | np.uint8(0x20)
    brackets = folded[(folded == 0x7B) | (folded == 0x7D)]
    depths = np.cumsum(np.where(brackets == 0x7B, 1, -1))
    return bool(depths.size and depths.max() > MAX_NESTING)


def _decode(text: str) -> object:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        # Only the caller's stack is too deep: a new thread starts with an empty one, which MAX_NESTING fits.
        with ThreadPoolExecutor(1) as fresh:
            return fresh.submit(_DECODER.decode, text).result()


def _find_fault(value: object) -> str | None:
    """Describe a value that is not a string or a list of strings; None if it is one."""
    if isinstance(value, str):
        return _find_surrogate(value)
    if not isinstance(value, list):
        return _TYPE_NAMES[type(value)]
    for number, item in enumerate(value, 1):
        fault = _find_surrogate(item) if isinstance(item, str) else _TYPE_NAMES[type(item)]
        if fault is not None:
            return f"a list with {fault} as item {number}"
    return None


def _find_surrogate(text: str) -> str | None:
    r"""Describe the first lone surrogate (\ud800 to \udfff) of a text, which UTF-8 cannot encode; None without one."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a string with the lone surrogate \\u{ord(text[error.start]):04x} at character {error.start + 1}"
    return None


def _show_keys(record: dict[str, object]) -> str:
    if not record:
        return "an object without keys"
    shown = [repr(key if len(key) <= _SHOWN_CHARACTERS else key[:_SHOWN_CHARACTERS] + "…") for key in record]
    more = f" and {len(shown) - _SHOWN_KEYS} more" if len(shown) > _SHOWN_KEYS else ""
    return f"only {', '.join(shown[:_SHOWN_KEYS])}{more}"


def type_name(value: object) -> str:
    """Return the type of a JSON value in words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
