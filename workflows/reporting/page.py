"""Write a report as one HTML page that needs nothing else, and recognise such a page.

Every text is escaped by the template. Characters that would be invisible, or change the direction of what follows, are
shown as escapes. A content security policy allows the page's own script and style, by their hashes, and nothing else.

The first line after the document type names the digest of all that follows, which proves that dsindex wrote the page
and that nobody has changed it since.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from workflows.reporting.shown import show_lines

if TYPE_CHECKING:
    from workflows.reporting.model import Page

FOLDER = Path(__file__).parent
_HEAD = b"<!DOCTYPE html>\n<!-- dsindex report 1, xxh3_128 %s -->\n"
_KNOWN_HEAD = re.compile(_HEAD % rb"([0-9a-f]{32})")
HEAD_BYTES = len(_HEAD % (b"0" * 32))


def write_page(page: Page) -> bytes:
    """Return a report as HTML in UTF-8."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=_finalize)
    style, script = ((FOLDER / name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    template = environment.from_string((FOLDER / "page.html.jinja").read_text("utf-8"))
    text: str = template.render(page=page, policy=policy, style=Markup(style), script=Markup(script))
    body = text.encode()
    return _HEAD % xxhash.xxh3_128_hexdigest(body).encode() + body


def is_page(content: bytes) -> bool:
    """Tell whether a file is a page that `write_page` returned, unchanged."""
    head = _KNOWN_HEAD.match(content)
    return head is not None and head[1] == xxhash.xxh3_128_hexdigest(content[head.end() :]).encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _finalize(value: object) -> object:
    """Return a value in a form for the page; the template escapes it afterwards unless it is markup."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return show_lines(value)
