"""Histograms and lines of a report as Vega-Lite specifications, each with a description and its data as a table."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dsindex.amounts import shorten, split_names
from dsindex.tools.page.page import COLOURS, DASHES, NARROW, Picture, Table, distinct, draw, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.tools.lengths import LengthBin

ROW_HEIGHT = 44
"""Height of a bar with its name above it and the gap, in CSS pixels."""
LABEL, LONG_LABEL = 22, 66
"""Characters of a name on narrow and wide screens."""
_LABELS = {
    "format": ",",
    "labelOverlap": True,
}
"""How an axis of powers of two is labelled."""
_LENGTH_AXIS = "tokens of a document (logarithmic)"


def quantitative(name: str, axis: dict[str, Any] | None, **more: object) -> dict[str, Any]:
    """Return the encoding of a quantitative field."""
    return {"field": name, "type": "quantitative", "axis": axis, **more}


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
    rows = {
        each: {"amount": amount, "label": f"{number(amount)} · {percent(amount, total)}"}
        for each, amount in shown.items()
    }
    largest = max(shown, key=lambda each: shown[each])
    return _bars(
        rows,
        quantitative("amount", None, scale={"nice": False}),
        title=title,
        description=f"{largest} has the largest share: {percent(shown[largest], total)} of the {unit}.",
        head=(name, unit, "share"),
        cells=[(each, number(amount), percent(amount, total)) for each, amount in shown.items()],
    )


def draw_drawn(title: str, intended: Mapping[str, float], drawn: Mapping[str, float]) -> Picture:
    """Return the drawn share of each dataset of a blend as a bar, and a mark where it was intended to be."""
    rows = {
        name: {"drawn": drawn[name], "intended": share, "label": f"{drawn[name]:.2%} of {share:.2%}"}
        for name, share in intended.items()
    }
    scale = {"domain": [0, max(*drawn.values(), *intended.values())], "nice": False}
    tick = {"type": "tick", "fill": COLOURS[1], "thickness": 3, "height": 20, "yOffset": 10, "opacity": 1}
    farthest = max(intended, key=lambda name: abs(intended[name] - drawn[name]))
    return _bars(
        rows,
        quantitative("drawn", None, scale=scale),
        marks=[(tick, quantitative("intended", None))],
        title=title,
        description=f"Bars are drawn shares, marks intended ones. They differ by at most "
        f"{100 * abs(intended[farthest] - drawn[farthest]):.3f} percentage points ({farthest}).",
        head=("dataset", "drawn", "intended"),
        cells=[(name, f"{drawn[name]:.3%}", f"{share:.3%}") for name, share in intended.items()],
    )


def _bars(
    rows: Mapping[str, dict[str, Any]],
    x: dict[str, Any],
    *,
    marks: Sequence[tuple[dict[str, Any], dict[str, Any]]] = (),
    title: str,
    description: str,
    head: tuple[str, ...],
    cells: Sequence[tuple[str, ...]],
) -> Picture:
    """Return horizontal bars, each with its name and label above it, so that long names fit on a phone."""

    def chart(width: int) -> dict[str, Any]:
        length = LABEL if width == NARROW else LONG_LABEL
        names = list(rows) if max(map(len, rows)) <= length else split_names(list(rows))[1]
        y = {"field": "place", "type": "ordinal", "axis": None}
        text = {"type": "text", "baseline": "middle", "yOffset": -8}
        layers: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"type": "bar", "height": 12, "yOffset": 10, "cornerRadius": 2}, {"x": x}),
            *((mark, {"x": at}) for mark, at in marks),
            ({**text, "align": "left"}, {"x": {"value": 0}, "text": {"field": "name"}}),
            ({**text, "align": "right"}, {"x": {"value": width}, "text": {"field": "label"}}),
        ]
        named = zip(names, rows.values(), strict=True)
        values = [{"place": place, "name": shorten(name, length), **row} for place, (name, row) in enumerate(named)]
        return {
            "width": width,
            "height": {"step": ROW_HEIGHT},
            "data": {"values": values},
            "layer": [{"mark": mark, "encoding": {"y": y, **encoding}} for mark, encoding in layers],
        }

    table = Table(caption=title, head=head, rows=tuple(cells))
    return Picture(title=title, description=description, drawing=draw(chart), table=table)


def draw_lengths(bins: Sequence[LengthBin]) -> Picture:
    """Return the histogram of documents and of their tokens, by length on a logarithmic scale."""
    documents, tokens = sum(each.documents for each in bins), sum(each.tokens for each in bins)
    values = [
        {"begin": each.begin, "end": each.end, "documents": each.documents, "tokens": each.tokens} for each in bins
    ]
    begin, end = bins[0].begin, bins[-1].end
    scale = {"type": "log", "base": 2, "domain": [begin, max(end, begin + 1)], "nice": False}

    def panel(width: int, field: str, colour: str, *, title: str | None) -> dict[str, Any]:
        axis = {"title": title, "grid": False, **_LABELS, "values": _powers(begin, end, width)}
        return {
            "width": width,
            "height": 130,
            "mark": {"type": "bar", "fill": colour, "binSpacing": 1},
            "encoding": {
                "x": quantitative("begin", axis, bin="binned", scale=scale),
                "x2": {"field": "end"},
                "y": quantitative(field, {"title": field, "format": "~s", "tickCount": 4}),
            },
        }

    def chart(width: int) -> dict[str, Any]:
        panels = [
            panel(width, "documents", COLOURS[0], title=None),
            panel(width, "tokens", COLOURS[1], title=_LENGTH_AXIS),
        ]
        return {"data": {"values": values}, "spacing": 10, "vconcat": panels}

    most = max(bins, key=lambda each: each.documents)
    heaviest = max(bins, key=lambda each: each.tokens)
    rows = [
        (
            _range(each),
            *(number(each.documents), percent(each.documents, documents)),
            *(number(each.tokens), percent(each.tokens, tokens)),
        )
        for each in bins
    ]
    head = ("tokens of a document", "documents", "share", "tokens", "share")
    return Picture(
        title="Lengths of documents",
        description=(
            f"The largest group of documents, {percent(most.documents, documents)}, has {_range(most)} tokens; the "
            f"largest share of tokens, {percent(heaviest.tokens, tokens)}, in documents of {_range(heaviest)}."
        ),
        drawing=draw(chart),
        table=Table(caption="Documents and tokens by length", head=head, rows=tuple(rows)),
    )


def draw_lengths_of_many(bins: Mapping[str, Sequence[LengthBin]]) -> Picture:
    """Return lines of the share of tokens by length, one for each dataset."""
    bins = dict(zip(distinct([shorten(name, LONG_LABEL) for name in bins]), bins.values(), strict=True))
    names = list(bins)
    totals = {name: sum(each.tokens for each in own) for name, own in bins.items()}
    edges = sorted({each.begin for own in bins.values() for each in own})
    shares = {name: {each.begin: each.tokens / totals[name] for each in own} for name, own in bins.items()}
    end = max(own[-1].end for own in bins.values())
    values = [
        {"dataset": name, "begin": edge, "share": own.get(edge, 0.0)} for name, own in shares.items() for edge in edges
    ]
    values += [{"dataset": name, "begin": end, "share": own.get(edges[-1], 0.0)} for name, own in shares.items()]

    def chart(width: int) -> dict[str, Any]:
        legend = {"orient": "top", "title": None, "columns": 1, "labelLimit": width, "symbolStrokeWidth": 2}

        def style(kinds: Sequence[object]) -> dict[str, Any]:
            chosen = [kinds[place % len(kinds)] for place in range(len(names))]
            return {"field": "dataset", "scale": {"domain": names, "range": chosen}, "legend": legend}

        axis = {"title": _LENGTH_AXIS, "grid": False, **_LABELS, "values": _powers(edges[0], end, width)}
        scale = {"type": "log", "base": 2, "domain": [edges[0], end], "nice": False}
        return {
            "width": width,
            "height": 200,
            "data": {"values": values},
            "mark": {"type": "line", "interpolate": "step-after"},
            "encoding": {
                "x": quantitative("begin", axis, scale=scale),
                "y": quantitative("share", {"title": "share of its tokens", "format": "%", "tickCount": 5}),
                "stroke": style(COLOURS),
                "strokeDash": style(DASHES),
            },
        }

    rows = [(number(edge), *(percent(shares[name].get(edge, 0.0), 1) for name in names)) for edge in edges]
    return Picture(
        title="Lengths of documents, by dataset",
        description="For each dataset, the share of its tokens that is in documents of each length.",
        drawing=draw(chart),
        table=Table(
            caption="Share of tokens by length of the document", head=("from … tokens", *names), rows=tuple(rows)
        ),
    )


def draw_ranks(counts: Sequence[int]) -> Picture:
    """Return how often ids occur by rank, on logarithmic scales.

    Args:
        counts: Occurrences of the ids that occur, descending.
    """
    total, below = sum(counts), list(accumulate(counts))
    steps = min(len(counts), 120)
    last = math.log(len(counts)) if len(counts) > 1 else 0.0
    ranks = sorted({round(math.exp(last * step / max(steps - 1, 1))) for step in range(steps)})
    values = [{"rank": rank, "count": counts[rank - 1]} for rank in ranks]
    listed = sorted({*(1, 2, 5, 10, 20, 50), *(10**power for power in range(2, 7)), len(counts)})

    def chart(width: int) -> dict[str, Any]:
        x, y = (
            {"title": f"{title} (logarithmic)", "format": "~s", "tickCount": 5}
            for title in ("rank of the id", "occurrences")
        )
        return {
            "width": width,
            "height": 200,
            "data": {"values": values},
            "mark": "line",
            "encoding": {
                "x": quantitative("rank", {**x, "grid": False}, scale={"type": "log", "nice": False}),
                "y": quantitative("count", y, scale={"type": "log"}),
            },
        }

    return Picture(
        title="How often ids occur",
        description=f"The most frequent id makes up {percent(counts[0], total)} of all tokens; of the {len(counts):,} "
        f"ids that occur, {counts.count(1):,} do so only once.",
        drawing=draw(chart),
        table=Table(
            caption="Occurrences by rank",
            head=("rank", "occurrences", "share of tokens up to this rank"),
            rows=tuple(
                (number(rank), number(counts[rank - 1]), percent(below[rank - 1], total))
                for rank in listed
                if rank <= len(counts)
            ),
        ),
    )


def _range(each: LengthBin) -> str:
    last = each.end - 1
    return number(each.begin) if last == each.begin else f"{number(each.begin)}-{number(last)}"


def _powers(begin: int, end: int, width: int) -> list[int]:
    """Return powers of two from begin to end, at most about as many as an axis has room for."""
    first, last = math.ceil(math.log2(max(begin, 1))), math.floor(math.log2(max(end, 2)))
    step = max(1, -(-(last - first + 1) // (7 if width == NARROW else 14)))
    return [2**power for power in range(first, last + 1, step)]
