r"""JSON that we write and read ourselves, and names from disk within it and in messages.

A name on disk is bytes. Python reads those that are not UTF-8 as halves of surrogate pairs, U+DC80 to U+DCFF (PEP 383),
and gives the bytes back when it opens the file. In JSON such a half is the escape `\udc80`, as Python's own `json` has
it; in a message for people it is spelt the same.

Everything else is written by orjson, byte for byte as if this module did not exist.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import orjson

# Control characters, halves of surrogate pairs, and what breaks a line or turns the direction of writing.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def encode_json(
    value: object, *, indent: bool = False, newline: bool = False, sort_keys: bool = False, ascii_only: bool = False
) -> bytes:
    r"""Return a value as JSON, names that are not UTF-8 included.

    Args:
        value: What orjson takes: dicts with text for keys, lists, tuples, dataclasses, text, numbers, booleans, None.
        indent: Write a line per item, indented by two spaces.
        newline: End with a newline.
        sort_keys: Write the keys of every object in order.
        ascii_only: Write all other letters as escapes.

    Raises:
        TypeError: If the value is no such value.

    >>> encode_json({"file": "a\udcff.jsonl"})
    b'{"file":"a\\udcff.jsonl"}'
    """
    options = (
        (orjson.OPT_INDENT_2 if indent else 0)
        | (orjson.OPT_APPEND_NEWLINE if newline else 0)
        | (orjson.OPT_SORT_KEYS if sort_keys else 0)
    )
    try:
        encoded = orjson.dumps(value, option=options)
    except TypeError as error:
        if "surrogates" not in str(error):
            raise
    else:
        if not ascii_only or encoded.isascii():
            return encoded
    text = json.dumps(
        value,
        indent=2 if indent else None,
        separators=(",", ": " if indent else ":"),
        sort_keys=sort_keys,
        default=_as_plain,
    )
    return text.encode("ascii") + (b"\n" if newline else b"")


def decode_json(text: bytes) -> Any:  # noqa: ANN401 - JSON holds anything
    r"""Return what JSON says, names that are not UTF-8 included.

    Raises:
        ValueError: If it is no JSON; `json.JSONDecodeError` where a place can be named.

    >>> decode_json(b'{"file": "a\\udcff.jsonl"}')
    {'file': 'a\udcff.jsonl'}
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        if b"\\ud" not in text.lower():
            raise
    try:
        return json.loads(text.decode("utf-8"))
    except RecursionError as error:
        msg = "expected JSON, got brackets nested too deeply"
        raise ValueError(msg) from error


def name_bytes(text: str) -> bytes:
    r"""Return the bytes of a text that may hold names that are not UTF-8, to compute a digest of it.

    The UTF-8 form wherever there is one; different texts have different bytes.

    >>> name_bytes("é"), name_bytes("\udcff")
    (b'\xc3\xa9', b'\xed\xb3\xbf')
    """
    return text.encode("utf-8", "surrogatepass")


def show_name(name: str) -> str:
    r"""Return a name as a message or a table may show it: on one line, and nothing in it moves the terminal's cursor.

    >>> print(show_name("naïve\n\x1b[2J\udcff.jsonl"))
    naïve\n\x1b[2J\udcff.jsonl
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), name)


def _as_plain(value: object) -> Any:  # noqa: ANN401 - what `json` can write
    """Return a dataclass as a dict, as orjson writes it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    msg = f"Type is not JSON serializable: {type(value).__name__}"
    raise TypeError(msg)
