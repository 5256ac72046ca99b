"""Texts in a form for a page."""

from __future__ import annotations

import re

from dsindex.inspection.borders import show_text

_KEPT = re.compile("([\n\t])")


def show_lines(text: str) -> str:
    r"""Return a text whose invisible characters, and those that change the direction of others, are shown as escapes.

    >>> show_lines("one\n\ttwo\u200b")
    'one\n\ttwo\\u200b'
    """
    return "".join(part if part in {"\n", "\t"} else show_text(part) for part in _KEPT.split(text))
