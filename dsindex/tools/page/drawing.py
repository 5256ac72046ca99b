"""Draw charts as SVG that is put into a page: with the page's colours and fonts, and nothing that could act.

Charts are Vega-Lite specifications, drawn by vl-convert without a browser. A chart is drawn twice, for wide and narrow
screens, since letters must not shrink with the picture.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree as ET

from markupsafe import Markup

from dsindex.errors import MissingPackageError
from dsindex.tools.inspect_excerpts import show_text

if TYPE_CHECKING:
    from collections.abc import Callable

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
