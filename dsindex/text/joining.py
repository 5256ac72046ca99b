"""Join the texts of several keys into one text per record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dsindex.text.blocks import TextColumn, by_record

if TYPE_CHECKING:
    from collections.abc import Sequence

JOINED = "text"
"""Name of the one output of several keys that are joined."""

_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "\\": "\\"}


def decode_separator(text: str) -> str:
    r"""Return a separator as it is written in an option, with its escapes \n, \t and \\ decoded.

    Raises:
        ValueError: If it has another escape, or characters without an encoding in UTF-8.

    >>> decode_separator(r"\n--\\")
    '\n--\\'
    """
    for escape in _ESCAPE.finditer(text):
        if escape[1] not in _ESCAPED:
            raise ValueError(rf"expected a backslash to be part of \n, \t or \\, got {escape[0]!r}")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"expected a separator in UTF-8, got {text!r}")
    return _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], text)


def join_columns(columns: Sequence[TextColumn], separator: str) -> TextColumn:
    """Join each record's texts with a separator, those of a list as well."""
    joined = [map(separator.join, by_record(column.texts, column.texts_per_record)) for column in columns]
    return TextColumn(texts=list(map(separator.join, zip(*joined, strict=True))), texts_per_record=None)
