"""Showing results: a table, a JSON file, a picture per group; all of them name the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.rows import Curve, Row


def describe_machine() -> dict[str, Any]:
    """Name the machine, and say how busy it is."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def make_table(rows: Sequence[Row], machine: dict[str, Any]) -> Table:
    """Return the table of all rows."""
    title = "{cpu}, {cores} cores, {memory_gib} GiB, Linux {kernel}, Python {python}".format(**machine)
    table = Table(title=f"{title}\nmedians of the rounds; a ratio says how many times as fast as the peer we are")
    table.add_column("what", overflow="fold", ratio=3)
    table.add_column("against", overflow="fold", ratio=2)
    for name in ("ours", "peer", "ratio min", "median", "by CPU", "target"):
        table.add_column(name, justify="right")
    table.add_column("")
    for number, row in enumerate(rows):
        is_last = number + 1 == len(rows) or rows[number + 1].group != row.group
        table.add_row(*_cells(row), end_section=is_last)
    return table


def _cells(row: Row) -> list[str]:
    verdict = {True: "[green]met", False: "[red]missed", None: ""}[row.is_met]
    sign = "≥" if row.judged == "ratio at least" else "≤"
    name = f"{escape(row.name)} [dim]({escape(row.note)})[/dim]" if row.note else escape(row.name)
    return [
        name,
        row.against,
        _shown(row.ours, row.unit),
        _shown(row.peer, row.unit),
        f"{min(row.ratios):.2f}" if row.ratios else "",
        f"{statistics.median(row.ratios):.2f}" if row.ratios else "",
        f"{statistics.median(row.cpu_ratios):.2f}" if row.cpu_ratios else "",
        "" if row.target is None else f"{sign} {row.target:g}",
        verdict,
    ]


def _shown(figures: Sequence[float], unit: str) -> str:
    if not figures:
        return ""
    middle = statistics.median(figures)
    return f"{middle:,.0f} {unit}" if middle >= 1000 else f"{middle:.3g} {unit}"


def write_json(path: Path, rows: Sequence[Row], curves: Sequence[Curve], machine: dict[str, Any], **more: Any) -> None:
    """Write everything that was measured."""
    content = {
        "machine": machine,
        **more,
        "rows": [row.to_json() for row in rows],
        "curves": [curve.to_json() for curve in curves],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def draw(folder: Path, rows: Sequence[Row], curves: Sequence[Curve], machine: dict[str, Any]) -> list[Path]:
    """Draw a picture per group: bars side by side, and curves log-log; nothing where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        return []
    mpl.use("agg")
    import matplotlib.pyplot as plt

    paths = []
    groups = dict.fromkeys(item.group for item in (*rows, *curves))
    for group in groups:
        bars = [row for row in rows if row.group == group and row.ours]
        lines = [curve for curve in curves if curve.group == group]
        panels = bool(bars) + len(lines)
        if not panels:
            continue
        figure, axes = plt.subplots(1, panels, figsize=(6.5 * panels, 1.8 + 0.5 * max(5, len(bars))), squeeze=False)
        places = iter(axes[0])
        if bars:
            _draw_bars(next(places), bars)
        for curve in lines:
            _draw_curve(next(places), curve)
        figure.suptitle(f"{group}: {machine['cpu']}, {machine['cores']} cores", fontsize=10)
        figure.tight_layout()
        paths.append(folder / f"{group}.png")
        figure.savefig(paths[-1], dpi=110)
        plt.close(figure)
    return paths


def _draw_bars(axes: Any, rows: Sequence[Row]) -> None:
    """Draw ours and the peer's as shares of the larger: rows of several units stand in one picture."""
    for number, row in enumerate(rows):
        figures = [(row.ours, "tab:green", "dsindex", -0.2), (row.peer, "tab:gray", row.against, 0.2)]
        medians = [statistics.median(values) for values, *_ in figures if values]
        for values, color, who, shift in figures:
            if values:
                share = statistics.median(values) / max(medians)
                axes.barh(number + shift, share, 0.38, color=color)
                axes.text(share, number + shift, f" {who} {_shown(values, row.unit)}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=7)
    axes.set_xlim(0, 2.3)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_curve(axes: Any, curve: Curve) -> None:
    sizes, values = zip(*curve.points, strict=True)
    axes.loglog(sizes, values, "o-", color="tab:green")
    axes.loglog(sizes, [values[0] * size / sizes[0] for size in sizes], ":", color="tab:gray", label="in proportion")
    axes.set_xlabel(curve.x_unit)
    axes.set_ylabel(curve.y_unit)
    axes.set_title(curve.name, fontsize=9)
    axes.legend(fontsize=7)
    axes.grid(visible=True, which="both", alpha=0.2)
