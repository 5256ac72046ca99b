"""Parse one line of JSON, and describe what is wrong with a line that is not a record.

The reference is Python's `json.loads` of the strictly decoded line. Two rules replace limits that depend on the
interpreter: integers may have any number of digits, and a line may nest at most MAX_NESTING objects and lists.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

import numpy as np

from dsindex.errors import RecordProblem

Texts: TypeAlias = str | list[str]
Path: TypeAlias = tuple[str, ...]
"""The keys that lead to a value, from the top-level object down; at least one."""

MAX_NESTING = 900
"""Deepest nesting accepted; json.loads gives up at about 1,000 minus the depth of the call stack."""
JSON_WHITESPACE = b" \t\r"
"""Bytes that a blank line may contain."""

STEP = (
    r"""\.(?P<name>[A-Za-z_]\w*) | \.?\s*\[\s*(?P<bracket>"(?:[^"\\]|\\.)*")\s*\] | \.(?P<quoted>"(?:[^"\\]|\\.)*")"""
)
"""Matches one key of a path (re.VERBOSE, re.ASCII, re.DOTALL)."""
_STEP = re.compile(STEP, re.VERBOSE | re.ASCII | re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_SHOWN_KEYS = 5
_SHOWN_CHARACTERS = 40
_TYPE_NAMES = {
    type(None): "null",
    bool: "a boolean",
    float: "a number",
    int: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def type_name(value: object) -> str:
    """Return the type of a JSON value in words; bytes are a table's text that is not UTF-8."""
    return _TYPE_NAMES.get(type(value), "a text that is not UTF-8")


def parse_record(line: bytes) -> dict[str, Any]:
    """Return the object of one line as `json.loads` reads it, which defines what a record is.

    Args:
        line: The line without newline and BOM; not blank.

    Raises:
        RecordProblem: If it is not UTF-8, not JSON, not an object, or nested too deeply.

    >>> parse_record(b'{"id": 1}')
    {'id': 1}
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line ({error.reason})"
        raise RecordProblem("bad-json", reason + _ENCODING_REMEDY) from error
    if is_too_deep(line):
        raise RecordProblem("bad-json", _TOO_DEEP)
    if text.startswith("\0"):
        raise RecordProblem("bad-json", "NUL bytes, as an interrupted write leaves them")
    if text.startswith("\ufeff"):
        raise RecordProblem("bad-json", "a byte order mark, which only the start of a file may have")
    try:
        record = _DECODER.decode(text)
    except RecursionError:  # the caller's stack may be deep, too
        raise RecordProblem("bad-json", _TOO_DEEP) from None
    except json.JSONDecodeError as error:
        is_part = error.msg == "Extra data" or error.pos >= len(text.rstrip())
        hint = _ARRAY_HINT if text.lstrip().startswith("[") else _SEVERAL_LINES_HINT if is_part else ""
        hint = hint or (_PLAIN_TEXT_HINT if error.pos == 0 else "")
        reason = error.msg.removesuffix(" at")  # as in "Unterminated string starting at"
        raise RecordProblem("bad-json", f"not valid JSON: {reason} at column {error.pos + 1}{hint}") from error
    if not isinstance(record, dict):
        is_list = isinstance(record, list)
        raise RecordProblem("bad-json", f"not a JSON object but {type_name(record)}{_ARRAY_HINT if is_list else ''}")
    return record


_TOO_DEEP = f"more than {MAX_NESTING} objects and lists inside each other"
_ENCODING_REMEDY = "; `iconv -f WINDOWS-1252 -t UTF-8` converts a file, if that is its encoding"
_ARRAY_HINT = "; if the file is one array, `jq -c '.[]'` writes each of its records on a line"
_PLAIN_TEXT_HINT = "; --input-format lines reads plain text"
_SEVERAL_LINES_HINT = "; `jq -c .` writes each record on a line of its own"


def _parse_int(text: str) -> float:
    try:
        return int(text)
    except ValueError:  # int() refuses more than 4,300 digits
        return float("-inf" if text.startswith("-") else "inf")


_DECODER = json.JSONDecoder(parse_int=_parse_int)


def find_value(record: dict[str, object], path: Path) -> object:
    """Return the value at a path.

    Raises:
        RecordProblem: If a key is missing, or a value before the end of the path is not an object.

    >>> find_value({"a": {"b": 1}}, ("a", "b"))
    1
    >>> find_value({"a": {"b": 1}}, ("a", "c"))
    Traceback (most recent call last):
    dsindex.errors.RecordProblem: no key 'c' at .a; it has 'b'
    """
    value: object = record
    for depth, key in enumerate(path):
        if not isinstance(value, dict):
            raise RecordProblem("bad-field", f"{show_path(path[:depth])} is {type_name(value)}, not an object")
        if key not in value:
            subject = "it" if depth else "the record"
            location = f" at {show_path(path[:depth])}" if depth else ""
            outer, dot, _ = key.partition(".")
            hint = ""
            if dot and not depth and outer in value:
                hint = f"; for a key inside {outer!r}, write .{key}"
            elif re.search(r"[,+ ]", key):
                hint = "; write several keys as `text title`, and a jq expression as `NAME=.a + .b`"
            raise RecordProblem("missing-field", f"no key {key!r}{location}; {subject} has {_show_keys(value)}{hint}")
        value = value[key]
    return value


def parse_path(source: str) -> Path | None:
    """Return the keys of a path; None for a jq program."""
    source, path, position = source.strip(), [], 0
    while position < len(source):
        match = _STEP.match(source, position)
        if match is None or (position == 0 and not match[0].startswith(".")):
            return None
        try:
            path.append(match["name"] or json.loads(match["bracket"] or match["quoted"]))
        except ValueError:  # an escape of jq that is not one of JSON, such as an interpolation
            return None
        position = match.end()
    return tuple(path) if path else None


def show_path(path: Path) -> str:
    """Return a path as a user writes it in an option.

    >>> show_path(("meta", "my text"))
    '.meta."my text"'
    """
    return "".join(f".{key if _PLAIN_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)}" for key in path)


def show_place(path: Path) -> str:
    """Return where a value is, for messages.

    >>> show_place(("text",)), show_place(("meta", "text"))
    ("under the key 'text'", 'at .meta.text')
    """
    return f"under the key {path[0]!r}" if len(path) == 1 else f"at {show_path(path)}"


def is_too_deep(line: bytes) -> bool:
    """Whether brackets outside strings nest deeper than MAX_NESTING; cheap for lines with few brackets."""
    if line.count(b"{") + line.count(b"[") <= MAX_NESTING:
        return False
    # Maps "[" to "{" and "]" to "}": 0x5b | 0x20 = 0x7b, 0x5d | 0x20 = 0x7d.
    folded = np.frombuffer(_STRING.sub(b"", line), np.uint8) | np.uint8(0x20)
    brackets = folded[(folded == 0x7B) | (folded == 0x7D)]
    depths = np.cumsum(np.where(brackets == 0x7B, 1, -1))
    return bool(depths.size and depths.max() > MAX_NESTING)


def find_fault(value: object) -> str | None:
    """Describe what is wrong with a value that must be a string or a list of strings; None if nothing is wrong."""
    if isinstance(value, str):
        return _find_surrogate(value)
    if not isinstance(value, list):
        return type_name(value)
    for number, item in enumerate(value, 1):
        fault = _find_surrogate(item) if isinstance(item, str) else type_name(item)
        if fault is not None:
            return f"a list with {fault} as item {number}"
    return None


def _find_surrogate(text: str) -> str | None:
    r"""Describe a text's first lone surrogate (\ud800 to \udfff), which UTF-8 cannot encode; None if it has none."""
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a string with the lone surrogate \\u{ord(text[error.start]):04x} at character {error.start + 1}"
    return None


def _show_keys(record: dict[str, object]) -> str:
    if not record:
        return "no keys"
    names = [repr(key if len(key) <= _SHOWN_CHARACTERS else key[:_SHOWN_CHARACTERS] + "…") for key in record]
    more = f" and {len(names) - _SHOWN_KEYS} more" if len(names) > _SHOWN_KEYS else ""
    return f"{', '.join(names[:_SHOWN_KEYS])}{more}"


# Join the texts of several keys.

JOINED = "text"
"""Name of the output with the joined texts."""

_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}


def decode_separator(text: str) -> str:
    r"""Decode the escapes \n, \t and \\ in a separator from an option.

    Raises:
        ValueError: If it has another escape, or a lone surrogate, which UTF-8 cannot encode.

    >>> decode_separator(r"\n--\\")
    '\n--\\'
    """
    for escape in _ESCAPE.finditer(text):
        if escape[1] not in _ESCAPED:
            raise ValueError(rf"{escape[0]!r} is not an escape; write \n, \t or \\")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{text!r} cannot be encoded in UTF-8")
    return _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], text)
