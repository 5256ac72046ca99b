"""Datasets in notebooks: a small table of facts, as HTML in which all names are escaped."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING

from dsindex.amounts import format_size
from dsindex.datasets.decoding import read_named_tokenizer
from dsindex.errors import FormatError, InputError
from dsindex.json_text import show_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def html_table(title: str, facts: Mapping[str, object]) -> str:
    """Return a table with a row for each fact; integers get separators, and facts that are None are left out.

    >>> html_table("Dataset", {"path": "<a>", "documents": 1200})
    '<table><caption>Dataset</caption><tr><th>path</th><td>&lt;a&gt;</td></tr><tr><th>documents</th><td>1,200</td></tr></table>'
    """
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_shown(value))}</td></tr>"
        for name, value in facts.items()
        if value is not None
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def describe_files(paths: Iterable[str]) -> str | None:
    """Return the size of files together; None if one of them is gone."""
    try:
        return format_size(sum(os.path.getsize(path) for path in paths))
    except (OSError, ValueError):
        return None


def describe_tokenizer(prefix: str) -> str | None:
    """Return the tokenizer in a dataset's manifest; None if there is no manifest that can be read, or it names none."""
    try:
        named = read_named_tokenizer(prefix)
    except (FormatError, InputError):
        return None
    return None if named is None else f"{named.name}, sha256 {named.sha256[:16]}…"


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return show_name(str(value))
