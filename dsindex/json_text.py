r"""Write and read dsindex's own JSON, including file names that are not UTF-8, and show such names in messages.

File names are bytes. Python decodes bytes that are not UTF-8 as lone surrogates, U+DC80 to U+DCFF (PEP 383), and
encodes them again when it opens the file. JSON stores such a surrogate as the escape `\udc80`; messages show the same.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from dsindex.locations import Location, without_secrets

LONGEST_VALUE = 80
"""Characters of a value in a message."""
# Control characters, lone surrogates, line separators, characters that change the direction of writing, marks without
# width, and characters that stand for tags.
_MAYBE_SECRET = re.compile(rb"://[^\"]*[@?#]|\\/|\\u00", re.IGNORECASE)
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def encode_json(
    value: object,
    *,
    newline: bool = False,
    sort_keys: bool = False,
    ascii_only: bool = False,
) -> bytes:
    r"""Return a value as JSON, including names that are not UTF-8.

    Args:
        value: Dicts with text keys, lists, tuples, dataclasses, text, numbers, booleans, None.
        newline: End with a newline.
        sort_keys: Sort the keys of every object.
        ascii_only: Escape all characters outside ASCII.

    Raises:
        TypeError: If the value is of another type.

    >>> encode_json({"file": "a\udcff.jsonl"})
    b'{"file":"a\\udcff.jsonl"}'
    """
    text = json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, ensure_ascii=ascii_only, default=_as_plain)
    try:
        return text.encode() + (b"\n" if newline else b"")
    except UnicodeEncodeError:  # names that are not UTF-8
        return encode_json(value, newline=newline, sort_keys=sort_keys, ascii_only=True)


def decode_json(text: bytes) -> Any:  # noqa: ANN401 - JSON holds anything
    r"""Parse JSON, including names that are not UTF-8; the addresses in it become Locations.

    dsindex stores no user information and no query of an address, but others may have written the file.

    Raises:
        ValueError: If it is not JSON; `json.JSONDecodeError` if the position is known.

    >>> decode_json(b'{"file": "a\\udcff.jsonl"}')
    {'file': 'a\udcff.jsonl'}
    """
    try:
        decoded = json.loads(text.decode())
    except RecursionError as error:
        raise ValueError("expected JSON, got brackets nested too deeply") from error
    return _located(decoded) if _MAYBE_SECRET.search(text) else decoded


def _located(value: Any) -> Any:  # noqa: ANN401 - JSON holds anything
    if isinstance(value, str):
        return Location(value) if "://" in value else value
    if isinstance(value, list):
        return [_located(item) for item in value]
    return {key: _located(item) for key, item in value.items()} if isinstance(value, dict) else value


def show_name(name: str) -> str:
    r"""Return a name in a form for messages and tables: on one line, without control characters.

    >>> print(show_name("naïve\n\x1b[2J\udcff.jsonl"))
    naïve\n\x1b[2J\udcff.jsonl
    """
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), name)


def show_value(value: object) -> str:
    """Return a value on one line for messages, without secrets, and cut off if it is long."""
    shown = show_name(without_secrets(repr(value)))
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[:LONGEST_VALUE]}…"


def _as_plain(value: object) -> Any:  # noqa: ANN401 - what `json` can write
    """Return a dataclass as a dict."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
