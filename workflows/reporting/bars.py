"""Horizontal bars of shares, as Vega-Lite specifications, with a description and the data as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflows.reporting.amounts import number, percent
from workflows.reporting.drawing import COLOURS, NARROW, draw
from workflows.reporting.model import Picture, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

ROW_HEIGHT = 44
"""Height of a bar with its name above it and the gap, in CSS pixels."""
LABEL = 22
"""Characters of a name on a narrow screen."""
LONG_LABEL = 66


def draw_shares(
    title: str, name: str, amounts: Mapping[str, int], *, unit: str, rest: tuple[str, int] | None = None
) -> Picture:
    """Return horizontal bars of amounts, with their shares.

    Args:
        title: Title of the picture.
        name: What has amounts, such as `source`.
        amounts: Name -> amount, in the order of the bars.
        unit: What is counted.
        rest: The name and amount of what is not shown by itself.
    """
    shown = {**amounts, **({} if rest is None else {rest[0]: rest[1]})}
    total = sum(shown.values())
    rows = [
        {"place": place, "amount": amount, "label": f"{number(amount)} · {percent(amount, total)}"}
        for place, amount in enumerate(shown.values())
    ]

    def chart(width: int) -> dict[str, Any]:
        length = LABEL if width == NARROW else LONG_LABEL
        named = [{**row, "name": shorten(each, length)} for row, each in zip(rows, shown, strict=True)]
        y = {"field": "place", "type": "ordinal", "axis": None}
        # The name stands above its bar, so that bars have room beside long names on a phone.
        return {
            "width": width,
            "height": {"step": ROW_HEIGHT},
            "data": {"values": named},
            "layer": [
                {
                    "mark": {"type": "bar", "height": 12, "yOffset": 10, "cornerRadius": 2},
                    "encoding": {
                        "y": y,
                        "x": {"field": "amount", "type": "quantitative", "axis": None, "scale": {"nice": False}},
                    },
                },
                {
                    "mark": {"type": "text", "align": "left", "baseline": "middle", "yOffset": -8},
                    "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "name"}},
                },
                {
                    "mark": {"type": "text", "align": "right", "baseline": "middle", "yOffset": -8},
                    "encoding": {"y": y, "x": {"value": width}, "text": {"field": "label"}},
                },
            ],
        }

    largest = max(shown, key=lambda each: shown[each])
    return Picture(
        title=title,
        description=f"{largest} has the largest share: {percent(shown[largest], total)} of the {unit}.",
        drawing=draw(chart),
        table=Table(
            caption=title,
            head=(name, unit, "share"),
            rows=tuple((each, number(amount), percent(amount, total)) for each, amount in shown.items()),
        ),
    )


def draw_drawn(title: str, intended: Mapping[str, float], drawn: Mapping[str, float]) -> Picture:
    """Return the drawn share of each dataset of a blend as a bar, and a mark where it was intended to be."""
    rows = [
        {"place": place, "drawn": drawn[name], "intended": share, "label": f"{drawn[name]:.2%} of {share:.2%}"}
        for place, (name, share) in enumerate(intended.items())
    ]

    def chart(width: int) -> dict[str, Any]:
        length = LABEL if width == NARROW else LONG_LABEL
        named = [{**row, "name": shorten(name, length)} for row, name in zip(rows, intended, strict=True)]
        y = {"field": "place", "type": "ordinal", "axis": None}
        scale = {"domain": [0, max(*drawn.values(), *intended.values())], "nice": False}
        return {
            "width": width,
            "height": {"step": ROW_HEIGHT},
            "data": {"values": named},
            "layer": [
                {
                    "mark": {"type": "bar", "height": 12, "yOffset": 10, "cornerRadius": 2},
                    "encoding": {"y": y, "x": {"field": "drawn", "type": "quantitative", "axis": None, "scale": scale}},
                },
                {
                    "mark": {
                        "type": "tick",
                        "fill": COLOURS[1],
                        "thickness": 3,
                        "height": 20,
                        "yOffset": 10,
                        "opacity": 1,
                    },
                    "encoding": {"y": y, "x": {"field": "intended", "type": "quantitative", "axis": None}},
                },
                {
                    "mark": {"type": "text", "align": "left", "baseline": "middle", "yOffset": -8},
                    "encoding": {"y": y, "x": {"value": 0}, "text": {"field": "name"}},
                },
                {
                    "mark": {"type": "text", "align": "right", "baseline": "middle", "yOffset": -8},
                    "encoding": {"y": y, "x": {"value": width}, "text": {"field": "label"}},
                },
            ],
        }

    farthest = max(intended, key=lambda name: abs(intended[name] - drawn[name]))
    return Picture(
        title=title,
        description=f"Bars are drawn shares, marks intended ones. They differ by at most "
        f"{100 * abs(intended[farthest] - drawn[farthest]):.3f} percentage points ({farthest}).",
        drawing=draw(chart),
        table=Table(
            caption=title,
            head=("dataset", "drawn", "intended"),
            rows=tuple((name, f"{drawn[name]:.3%}", f"{share:.3%}") for name, share in intended.items()),
        ),
    )


def shorten(name: str, length: int) -> str:
    """Return a name with its middle left out if it is long.

    >>> shorten("data/corpus/part-0001.jsonl", 15)
    'data/co…1.jsonl'
    """
    if len(name) <= length:
        return name
    end = length // 2
    return f"{name[: length - end - 1]}…{name[-end:]}"
