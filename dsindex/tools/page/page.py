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
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

import xxhash
from markupsafe import Markup

from dsindex.amounts import short_number
from dsindex.errors import MissingPackageError
from dsindex.tools.token_text import show_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Draw charts as SVG that is put into a page: with the page's colours and fonts, and nothing that could act.
#
# Charts are Vega-Lite specifications, drawn by vl-convert without a browser. A chart is drawn twice, for wide and
# narrow screens, since letters must not shrink with the picture.

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v5.json"
"""The name of the language's version, which is not fetched."""
WIDE, NARROW = 740, 290
"""Widths of the plotted area in CSS pixels."""
COLOURS = tuple(f"var(--c{number})" for number in range(1, 7))
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3])

_TAGS = frozenset({"svg", "g", "path", "line", "rect", "circle", "text", "tspan"})
_ATTRIBUTES = frozenset(
    {
        *("d", "x", "y", "x2", "y2", "dx", "dy", "cx", "cy", "r", "width", "height", "viewBox", "transform"),
        *("fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "stroke-miterlimit"),
        *("stroke-linecap", "stroke-linejoin", "opacity", "display", "text-anchor", "font-size", "font-weight"),
    }
)
_DEFAULTS = frozenset({("opacity", "1"), ("stroke-width", "1"), ("transform", "translate(0,0)")})
_NO_XML = re.compile("[\ufffe\uffff]")
_DECIMALS = re.compile(r"-?\d+\.\d{2,}")


class Drawing(NamedTuple):
    """The same chart for two widths of the page, as elements without `<svg>` and the size that they need."""

    wide: Figure
    narrow: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The content of an `<svg>`."""

    width: float
    height: float
    content: Markup


def require_drawing() -> None:
    """Raise MissingPackageError unless charts can be drawn."""
    try:
        import vl_convert  # noqa: F401 - only whether it is there
    except ImportError as error:
        msg = "a report needs the package vl-convert-python, which draws its pictures: pip install 'dsindex[report]'"
        raise MissingPackageError(msg) from error


def draw(make: Callable[[int], dict[str, Any]]) -> Drawing:
    """Draw a chart for wide and narrow screens.

    Args:
        make: Returns the Vega-Lite specification of the chart for the width of the plotted area.
    """
    return Drawing(wide=_draw(make(WIDE)), narrow=_draw(make(NARROW)))


def _draw(specification: dict[str, Any]) -> Figure:
    import vl_convert

    svg = vl_convert.vegalite_to_svg(
        {"$schema": VEGA_LITE, "background": None, "padding": 2, "config": _CONFIG, **_shown(specification)},
        vl_version="5.21",
        allowed_base_urls=[],
    )
    root = ET.fromstring(svg)
    _clean(root)
    inner = "".join(ET.tostring(child, encoding="unicode") for child in root)
    return Figure(width=float(root.get("width", "0")), height=float(root.get("height", "0")), content=Markup(inner))


def _shown(value: Any) -> Any:  # noqa: ANN401 - a specification or a part of it
    """Return a specification whose texts have no characters that XML lacks, which would end the process."""
    if isinstance(value, str):
        return _NO_XML.sub("\ufffd", show_text(value))
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return {name: _shown(each) for name, each in value.items()} if isinstance(value, dict) else value


def _clean(element: ET.Element) -> None:
    """Keep only shapes, texts and how they look, in few bytes; names of elements lose their namespace, as in HTML."""
    element.tag = element.tag.rpartition("}")[2]
    is_background = element.get("class") == "background" and not {"fill", "stroke"} & set(element.keys())
    for name, value in list(element.items()):
        if name not in _ATTRIBUTES or (name, value) in _DEFAULTS:
            del element.attrib[name]
        elif name in {"d", "transform"}:
            element.set(name, _DECIMALS.sub(lambda match: f"{float(match[0]):.1f}", value))
    for child in list(element):
        _clean(child)
        is_nothing = child.get("display") == "none" or (child.tag == "g" and not len(child))
        if child.tag not in _TAGS or is_nothing or (child.tag == "path" and not child.get("d")):
            element.remove(child)
    if is_background:
        element.set("d", "")


_CONFIG: dict[str, Any] = {
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "domainColor": "var(--line)",
        "gridColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelLimit": 260,
    },
    "legend": {"labelColor": "var(--ink)", "titleColor": "var(--muted)", "labelFontSize": 12, "labelLimit": 260},
    "bar": {"fill": COLOURS[0]},
    "line": {"stroke": COLOURS[0], "strokeWidth": 2},
    "rule": {"stroke": COLOURS[1]},
    "text": {"fill": "var(--ink)", "fontSize": 12},
}


# What a report shows, in the order of the page; all text is plain and is escaped when the page is written.


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose first column names the row."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    texts: frozenset[int] = frozenset({0})
    """Columns of text; the others hold numbers."""
    code: frozenset[int] = frozenset()
    """Columns with text of a dataset, in which every space counts."""
    is_folded: bool = False
    """Whether it is shown on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture, and the same as a sentence and as a table."""

    title: str
    description: str
    drawing: Drawing
    table: Table


def distinct(names: Sequence[str]) -> list[str]:
    """Return names of which those that occur several times are numbered.

    >>> distinct(["a", "b", "a"])
    ['a (1)', 'b', 'a (2)']
    """
    total = Counter(names)
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if total[name] == 1 else f"{name} ({seen[name]})")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of a section under one heading."""

    title: str
    sentences: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to show."""
        return not (self.sentences or self.pictures or self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A document to read."""

    document: int
    num_tokens: int
    kinds: tuple[str, ...]
    """Why it was chosen: drawn, longest, shortest, repeated."""
    facts: tuple[str, ...]
    """What is known of it, such as its source and its number of copies."""
    text: str
    """The beginning of its text, or of its ids without a tokenizer."""
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One dataset."""

    name: str
    kind: str
    tiles: tuple[tuple[str, str], ...] = ()
    """The main numbers: name and value."""
    facts: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name and values."""
    notes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    blocks: tuple[Block, ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A report."""

    title: str
    version: str
    """Version of dsindex that wrote it."""
    mixture: tuple[Block, ...] = ()
    """What is about all datasets: the mixture, splits, epochs and blends."""
    overview: tuple[Block, ...] = ()
    """What compares the datasets with each other."""
    sections: tuple[Section, ...] = ()


# Texts in a form for a page.

_KEPT = re.compile("([\n\t])")


def show_lines(text: str) -> str:
    r"""Return a text whose invisible characters, and those that change the direction of others, are shown as escapes.

    >>> show_lines("one\n\ttwo\u200b")
    'one\n\ttwo\\u200b'
    """
    return "".join(part if part in {"\n", "\t"} else show_text(part) for part in _KEPT.split(text))


# How a report writes numbers.


def number(value: int) -> str:
    """Return an integer with separators.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,}"


def size(size_bytes: int) -> str:
    """Return a size.

    >>> size(999), size(7_300_000)
    ('999 B', '7.3 MB')
    """
    text = short_number(size_bytes).replace(" B", " G")
    return f"{text}B" if " " in text else f"{text} B"


def percent(part: float, total: float) -> str:
    """Return a share; it is 0% or 100% only if it is none or all.

    >>> percent(1, 3), percent(0, 3), percent(1, 1_000_000), percent(999_999, 1_000_000), percent(3, 3), percent(0, 0)
    ('33.3%', '0%', '<0.1%', '>99.9%', '100%', '-')
    """
    if not total:
        return "-"
    share = part / total
    if share in (0, 1):
        return f"{share:.0%}"
    return "<0.1%" if share < 0.0005 else ">99.9%" if share > 0.9995 else f"{share:.1%}"


def seconds(value: float) -> str:
    """Return a duration.

    >>> seconds(0.34), seconds(75), seconds(7260)
    ('0.3 s', '1 min 15 s', '2 h 1 min')
    """
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


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
