"""Histograms and lines of a report as Vega-Lite specifications, each with a description and its data as a table."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dsindex.tools.page.drawing import COLOURS, DASHES, NARROW, draw
from dsindex.tools.page.page import Picture, Table, distinct, number, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.tools.page.stages import StageRecord
    from dsindex.tools.report_measures import LengthBin


# Horizontal bars of shares, as Vega-Lite specifications, with a description and the data as a table.

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


_LABELS = {
    "labelExpr": "datum.value < 1024 ? datum.value : datum.value < 1048576 ? datum.value / 1024 + ' Ki' : "
    "datum.value / 1048576 + ' Mi'",
    "labelOverlap": True,
}
"""How an axis of powers of two is labelled."""


def draw_lengths(bins: Sequence[LengthBin]) -> Picture:
    """Return the histogram of documents and of their tokens, by length on a logarithmic scale."""
    documents, tokens = sum(each.documents for each in bins), sum(each.tokens for each in bins)
    values = [
        {"begin": each.begin, "end": each.end, "documents": each.documents, "tokens": each.tokens} for each in bins
    ]
    scale = {"type": "log", "base": 2, "domain": [bins[0].begin, max(bins[-1].end, bins[0].begin + 1)], "nice": False}

    def panel(width: int, field: str, colour: str, *, axis: str | None) -> dict[str, Any]:
        labels = {**_LABELS, "values": _powers(bins[0].begin, bins[-1].end, 7 if width == NARROW else 14)}
        return {
            "width": width,
            "height": 130,
            "mark": {"type": "bar", "fill": colour, "binSpacing": 1},
            "encoding": {
                "x": {
                    "field": "begin",
                    "bin": "binned",
                    "type": "quantitative",
                    "scale": scale,
                    "axis": {"title": axis, "grid": False, **labels},
                },
                "x2": {"field": "end"},
                "y": {
                    "field": field,
                    "type": "quantitative",
                    "axis": {"title": field, "format": "~s", "tickCount": 4},
                },
            },
        }

    most = max(bins, key=lambda each: each.documents)
    heaviest = max(bins, key=lambda each: each.tokens)
    return Picture(
        title="Lengths of documents",
        description=(
            f"The largest group of documents, {percent(most.documents, documents)}, has {_range(most)} tokens; the "
            f"largest share of tokens, {percent(heaviest.tokens, tokens)}, in documents of {_range(heaviest)}."
        ),
        drawing=draw(
            lambda width: {
                "data": {"values": values},
                "spacing": 10,
                "vconcat": [
                    panel(width, "documents", COLOURS[0], axis=None),
                    panel(width, "tokens", COLOURS[1], axis="tokens of a document (logarithmic)"),
                ],
            }
        ),
        table=Table(
            caption="Documents and tokens by length",
            head=("tokens of a document", "documents", "share", "tokens", "share"),
            rows=tuple(
                (
                    _range(each),
                    number(each.documents),
                    percent(each.documents, documents),
                    number(each.tokens),
                    percent(each.tokens, tokens),
                )
                for each in bins
            ),
        ),
    )


def draw_lengths_of_many(bins: Mapping[str, Sequence[LengthBin]]) -> Picture:
    """Return lines of the share of tokens by length, one for each dataset."""
    bins = dict(zip(distinct([shorten(name, LONG_LABEL) for name in bins]), bins.values(), strict=True))
    totals = {name: sum(each.tokens for each in own) for name, own in bins.items()}
    edges = sorted({each.begin for own in bins.values() for each in own})
    shares = {name: {each.begin: each.tokens / totals[name] for each in own} for name, own in bins.items()}
    values = [
        {"dataset": name, "begin": edge, "share": own.get(edge, 0.0)} for name, own in shares.items() for edge in edges
    ]
    end = max(own[-1].end for own in bins.values())
    values += [{"dataset": name, "begin": end, "share": own.get(edges[-1], 0.0)} for name, own in shares.items()]
    names = list(bins)
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(names))]
    dashes = [DASHES[place % len(DASHES)] for place in range(len(names))]

    def chart(width: int) -> dict[str, Any]:
        labels = {**_LABELS, "values": _powers(edges[0], end, 7 if width == NARROW else 14)}
        legend = {"orient": "top", "title": None, "columns": 1, "labelLimit": width, "symbolStrokeWidth": 2}
        return {
            "width": width,
            "height": 200,
            "data": {"values": values},
            "mark": {"type": "line", "interpolate": "step-after"},
            "encoding": {
                "x": {
                    "field": "begin",
                    "type": "quantitative",
                    "scale": {"type": "log", "base": 2, "domain": [edges[0], end], "nice": False},
                    "axis": {"title": "tokens of a document (logarithmic)", "grid": False, **labels},
                },
                "y": {
                    "field": "share",
                    "type": "quantitative",
                    "axis": {"title": "share of its tokens", "format": "%", "tickCount": 5},
                },
                "stroke": {"field": "dataset", "scale": {"domain": names, "range": colours}, "legend": legend},
                "strokeDash": {"field": "dataset", "scale": {"domain": names, "range": dashes}, "legend": legend},
            },
        }

    return Picture(
        title="Lengths of documents, by dataset",
        description="For each dataset, the share of its tokens that is in documents of each length.",
        drawing=draw(chart),
        table=Table(
            caption="Share of tokens by length of the document",
            head=("from … tokens", *names),
            rows=tuple((number(edge), *(percent(shares[name].get(edge, 0.0), 1) for name in names)) for edge in edges),
        ),
    )


def draw_ranks(counts: Sequence[int]) -> Picture:
    """Return how often ids occur by rank, on logarithmic scales.

    Args:
        counts: Occurrences of the ids that occur, descending.
    """
    total = sum(counts)
    steps = min(len(counts), 120)
    last = math.log(len(counts)) if len(counts) > 1 else 0.0
    ranks = sorted({round(math.exp(last * step / max(steps - 1, 1))) for step in range(steps)})
    values = [{"rank": rank, "count": counts[rank - 1]} for rank in ranks]
    shown = [
        rank
        for rank in (1, 2, 5, 10, 20, 50, *(10**power for power in range(2, 7)), len(counts))
        if rank <= len(counts)
    ]
    below = _running(counts)

    def axis(title: str) -> dict[str, Any]:
        return {"title": title, "format": "~s", "tickCount": 5}

    def chart(width: int) -> dict[str, Any]:
        return {
            "width": width,
            "height": 200,
            "data": {"values": values},
            "mark": "line",
            "encoding": {
                "x": {
                    "field": "rank",
                    "type": "quantitative",
                    "scale": {"type": "log", "nice": False},
                    "axis": {**axis("rank of the id (logarithmic)"), "grid": False},
                },
                "y": {
                    "field": "count",
                    "type": "quantitative",
                    "scale": {"type": "log"},
                    "axis": axis("occurrences (logarithmic)"),
                },
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
                for rank in dict.fromkeys(shown)
            ),
        ),
    )


def draw_throughput(stage: StageRecord) -> Picture:
    """Return the speed of a stage over its time, with marks where tasks were retried or workers lost."""
    speeds, events = stage.speeds(), stage.events()
    scale, unit = _unit_of(max((speed for _, _, speed in speeds), default=0.0), stage.unit)
    values = [{"t": begin, "speed": speed / scale} for begin, _, speed in speeds]
    values.append({"t": speeds[-1][1], "speed": speeds[-1][2] / scale})
    marks = [{"t": time, "what": what} for time, what in events]

    def chart(width: int) -> dict[str, Any]:
        x = {
            "field": "t",
            "type": "quantitative",
            "scale": {"domain": [0, stage.seconds], "nice": False},
            "axis": {
                "title": "seconds",
                "grid": False,
                "tickCount": 5 if width == NARROW else 10,
                "labelOverlap": True,
            },
        }
        line = {
            "data": {"values": values},
            "mark": {
                "type": "area",
                "interpolate": "step-after",
                "fill": COLOURS[0],
                "fillOpacity": 0.25,
                "line": {"stroke": COLOURS[0]},
            },
            "encoding": {
                "x": x,
                "y": {
                    "field": "speed",
                    "type": "quantitative",
                    "axis": {"title": unit, "tickCount": 4, "format": "~s"},
                },
            },
        }
        rules = {
            "data": {"values": marks},
            "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
            "encoding": {"x": x},
        }
        return {"width": width, "height": 150, "layer": [line, rules] if marks else [line]}

    happened = "; ".join(f"{what} at {time:,.1f} s" for time, what in events[:5])
    return Picture(
        title=f"Throughput of {stage.name}",
        description=f"{stage.describe()}. {f'Dashed lines: {happened}.' if happened else 'Nothing was repeated.'}",
        drawing=draw(chart),
        table=Table(
            caption=f"Throughput of {stage.name}",
            head=("seconds", unit),
            rows=tuple((f"{begin:,.1f}-{end:,.1f}", f"{speed / scale:,.1f}") for begin, end, speed in speeds),
        ),
    )


def _range(each: LengthBin) -> str:
    last = each.end - 1
    return number(each.begin) if last == each.begin else f"{number(each.begin)}-{number(last)}"


def _powers(begin: int, end: int, most: int) -> list[int]:
    """Return powers of two from begin to end, at most about `most` of them."""
    first, last = math.ceil(math.log2(max(begin, 1))), math.floor(math.log2(max(end, 2)))
    step = max(1, -(-(last - first + 1) // most))
    return [2**power for power in range(first, last + 1, step)]


def _running(counts: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for each in counts:
        total += each
        sums.append(total)
    return sums


def _unit_of(largest: float, unit: str) -> tuple[float, str]:
    if unit != "bytes":
        return 1.0, f"{unit} per second"
    return (1e6, "MB per second") if largest >= 1e6 else (1e3, "kB per second")
