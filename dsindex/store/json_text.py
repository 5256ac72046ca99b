r"""Write and read dsindex's own JSON, including file names that are not UTF-8.

File names are bytes. Python decodes bytes that are not UTF-8 as lone surrogates, U+DC80 to U+DCFF (PEP 383), and
encodes them again when it opens the file. JSON stores such a surrogate as the escape `\udc80`; messages show the same.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from dsindex.store.urls import Location

_MAYBE_SECRET = re.compile(rb"://[^\"]*[@?#]|\\/|\\u00", re.IGNORECASE)
BRACKETS, BYTES_PER_BRACKET = 100_000, 32
"""A JSON text may have this many lists and objects, plus one per 32 bytes; an input in a plan takes 33 bytes."""
_OPTIONS = frozenset({"options", "settings"})
"""Keys of a manifest or a journal that hold the user's options, such as a separator. Their texts never become
Locations, which drop queries: two different options must not become equal."""


def encode_json(value: object, *, newline: bool = False, sort_keys: bool = False, ascii_only: bool = False) -> bytes:
    r"""Return a value as JSON, including names that are not UTF-8.

    Args:
        value: Dicts with text keys, lists, tuples, dataclasses, text, numbers, booleans, None.
        newline: End with a newline.
        sort_keys: Sort the keys of every object.
        ascii_only: Escape all characters outside ASCII.

    Raises:
        TypeError: If the value has any other type.

    >>> encode_json({"file": "a\udcff.jsonl"})
    b'{"file":"a\\udcff.jsonl"}'
    """
    text = json.dumps(value, separators=(",", ":"), sort_keys=sort_keys, ensure_ascii=ascii_only, default=_as_plain)
    try:
        return text.encode() + (b"\n" if newline else b"")
    except UnicodeEncodeError:  # names that are not UTF-8
        return encode_json(value, newline=newline, sort_keys=sort_keys, ascii_only=True)


def decode_json(text: bytes) -> Any:  # noqa: ANN401 - JSON holds anything
    r"""Parse a manifest or a journal, including names that are not UTF-8; addresses become Locations.

    dsindex never stores credentials, but another program may have written the file, and a Location hides them. Read
    user data with `json.loads` instead, which changes nothing.

    Raises:
        ValueError: If it is not JSON; `json.JSONDecodeError` if the position is known.

    >>> decode_json(b'{"file": "a\\udcff.jsonl"}')
    {'file': 'a\udcff.jsonl'}
    """
    decoded = parse_json(text)
    try:
        return _hide_secrets(decoded) if _MAYBE_SECRET.search(text) else decoded
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error


def parse_json(text: bytes) -> Any:  # noqa: ANN401 - JSON holds anything
    """Parse untrusted JSON in at most 20 times its size plus some MiB of memory; a list of `[]` would take 27 times.

    Raises:
        ValueError: If it is not JSON, or has more brackets per byte than any file of dsindex or Megatron.
    """
    if text.count(b"[") + text.count(b"{") > BRACKETS + len(text) // BYTES_PER_BRACKET:
        raise ValueError("it has too many brackets for its size")
    try:
        return json.loads(text.decode())
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error


def _hide_secrets(value: Any) -> Any:  # noqa: ANN401 - JSON holds anything
    if isinstance(value, str):
        return Location(value) if "://" in value else value
    if isinstance(value, list):
        return [_hide_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: item if key in _OPTIONS else _hide_secrets(item) for key, item in value.items()}


def _as_plain(value: object) -> Any:  # noqa: ANN401 - what `json` can write
    """Convert a dataclass to a dict."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")
