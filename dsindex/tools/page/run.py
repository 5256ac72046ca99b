"""How a dataset was made: its run, with the stages in the progress file, the records of its inputs, and digests."""

from __future__ import annotations

import calendar
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.amounts import count, format_speed, format_token_speed
from dsindex.execution.progress.progress_file import PROGRESS_SUFFIX, SERIES_FIELDS, read_progress
from dsindex.tools.page.drawing import COLOURS, NARROW, draw
from dsindex.tools.page.page import Block, Picture, Table, number, percent, seconds, size
from dsindex.tools.page.pictures import quantitative

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.engine.manifest import Content, Manifest, RecordedInput, Run

MOST_INTERVALS = 60
"""Intervals over which a speed is averaged."""
STARTED_APART_SECONDS = 120
"""How far the start of a job and that of its progress file may be apart."""
SHOWN_INPUTS = 30
MOST_STAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """A finished stage of a job."""

    name: str
    unit: str
    done: int
    tokens: int
    seconds: float
    retries: int
    lost_workers: int
    stragglers: int
    series: tuple[tuple[float, ...], ...]
    """Points of SERIES_FIELDS."""

    def describe(self) -> str:
        """Return its amounts and speeds in a few words."""
        amount = size(self.done) if self.unit == "bytes" else f"{number(self.done)} {self.unit}"
        words = [f"{amount} in {seconds(self.seconds)}"]
        if self.seconds and self.unit == "bytes":
            words.append(format_speed(self.done / self.seconds))
        if self.seconds and self.tokens:
            words.append(format_token_speed(self.tokens / self.seconds))
        return ", ".join(words)

    def speeds(self) -> list[tuple[float, float, float]]:
        """Return begin, end, and units per second of up to MOST_INTERVALS equal intervals."""
        if len(self.series) < 2 or self.series[-1][0] <= 0:
            return []
        times, amounts = [point[0] for point in self.series], [point[1] for point in self.series]
        edges = np.linspace(0.0, times[-1], min(MOST_INTERVALS, len(times) - 1) + 1)
        speeds = np.maximum(np.diff(np.interp(edges, times, amounts)), 0.0) / np.diff(edges)
        return list(zip(edges[:-1].tolist(), edges[1:].tolist(), speeds.tolist(), strict=True))

    def events(self) -> list[tuple[float, str]]:
        """Return when tasks were retried and workers lost."""
        found = []
        retries = lost = 0.0
        for point in self.series:
            if point[2] > retries:
                found.append((point[0], count(round(point[2] - retries), "repeated task")))
            if point[3] > lost:
                found.append((point[0], count(round(point[3] - lost), "lost worker")))
            retries, lost = point[2], point[3]
        return found


def read_stages(prefix: str, run: Run) -> tuple[list[StageRecord], str | None]:
    """Return the stages of the run that made a dataset, from the progress file beside it, and why there are none."""
    folder, name = os.path.split(prefix)
    while name:  # without the names of key and kind, one after the other: out/x_text_document, out/x
        path = os.path.join(folder, f"{name}.{PROGRESS_SUFFIX}")
        entry = read_progress(path)
        if entry is not None:
            began, file_began = _seconds_of(run.started), _seconds_of(entry.get("started"))
            is_own = began is not None and file_began is not None and abs(began - file_began) <= STARTED_APART_SECONDS
            if not is_own or entry.get("state") != "done":
                return [], f"{path} is of another run, so its throughput over time is not known"
            stages = entry.get("finished_stages")
            found = map(_stage, stages if isinstance(stages, list) else [])
            return [stage for stage in found if stage is not None], None
        name = name.rpartition("_")[0]
    return [], "there is no progress file beside the dataset, so its throughput over time is not known"


def _seconds_of(text: object) -> int | None:
    try:
        return calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None


def _stage(value: object) -> StageRecord | None:
    """Return a stage of a progress file; None if it is damaged."""
    if not isinstance(value, dict):
        return None
    amounts = [value.get(name, 0) for name in ("done", "tokens", "seconds", "retries", "lost_workers", "stragglers")]
    if not _are_amounts(amounts):
        return None
    series = value.get("series", [])
    points = series[:1000] if isinstance(series, list) else []
    done, tokens, took, retries, lost_workers, stragglers = amounts
    return StageRecord(
        name=str(value.get("stage"))[:80],
        unit=str(value.get("unit"))[:40],
        done=int(done),
        tokens=int(tokens),
        seconds=float(took),
        retries=int(retries),
        lost_workers=int(lost_workers),
        stragglers=int(stragglers),
        series=tuple(
            tuple(map(float, point))
            for point in points
            if isinstance(point, list) and len(point) == len(SERIES_FIELDS) and _are_amounts(point)
        ),
    )


def _are_amounts(values: Sequence[object]) -> bool:
    return all(type(value) in {int, float} and 0 <= value < 2**63 for value in values)  # type: ignore[operator]


def draw_throughput(stage: StageRecord) -> Picture:
    """Return the speed of a stage over its time, with marks where tasks were retried or workers lost."""
    speeds, events = stage.speeds(), stage.events()
    scale, unit = 1.0, f"{stage.unit} per second"
    if stage.unit == "bytes":
        largest = max(speed for _, _, speed in speeds)
        scale, unit = (1e6, "MB per second") if largest >= 1e6 else (1e3, "kB per second")
    values = [{"t": begin, "speed": speed / scale} for begin, _, speed in speeds]
    values.append({"t": speeds[-1][1], "speed": speeds[-1][2] / scale})
    marks = [{"t": time, "what": what} for time, what in events]

    def chart(width: int) -> dict[str, Any]:
        axis = {"title": "seconds", "grid": False, "tickCount": 5 if width == NARROW else 10, "labelOverlap": True}
        x = quantitative("t", axis, scale={"domain": [0, stage.seconds], "nice": False})
        area = {"type": "area", "interpolate": "step-after", "fill": COLOURS[0], "fillOpacity": 0.25}
        line = {
            "data": {"values": values},
            "mark": {**area, "line": {"stroke": COLOURS[0]}},
            "encoding": {"x": x, "y": quantitative("speed", {"title": unit, "tickCount": 4, "format": "~s"})},
        }
        rules = {
            "data": {"values": marks},
            "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
            "encoding": {"x": x},
        }
        return {"width": width, "height": 150, "layer": [line, rules] if marks else [line]}

    happened = "; ".join(f"{what} at {time:,.1f} s" for time, what in events[:5])
    title = f"Throughput of {stage.name}"
    rows = [(f"{begin:,.1f}-{end:,.1f}", f"{speed / scale:,.1f}") for begin, end, speed in speeds]
    return Picture(
        title=title,
        description=f"{stage.describe()}. {f'Dashed lines: {happened}.' if happened else 'Nothing was repeated.'}",
        drawing=draw(chart),
        table=Table(caption=title, head=("seconds", unit), rows=tuple(rows)),
    )


def show_run(prefix: str, manifest: Manifest) -> Block:
    """Return when, where and how fast a dataset was made."""
    run = manifest.run
    where = f" on {run.host}" if run.host else ""
    when = (
        f"Made {run.started or 'at an unknown time'}{where} in {seconds(run.seconds)} by dsindex {run.dsindex or '?'}"
    )
    amounts = f"{count(run.workers, 'worker')}, {count(run.shards, 'shard')}"
    troubles = f"{count(run.lost_workers, 'lost worker')}, {count(run.stragglers, 'straggler')}"
    sentences = [
        f"{when}; {run.executor or 'unknown'} executor, {amounts}.",
        f"Tasks that were repeated: {number(run.retries)}; {troubles}.",
    ]
    if run.engine is not None:
        texts = count(run.engine.reference_texts, "text")
        sentences.append(f"Engine: {run.engine.name} {run.engine.version}; the reference encoded {texts}.")
    stages, problem = read_stages(prefix, run)
    stages = stages[:MOST_STAGES]
    if problem is not None:
        sentences.append(f"{problem[0].upper()}{problem[1:]}.")
    tables = []
    if stages:
        rows = [
            (stage.name, stage.describe(), *map(number, (stage.retries, stage.lost_workers, stage.stragglers)))
            for stage in stages
        ]
        head = ("stage", "amount and speed", "retries", "lost workers", "stragglers")
        tables.append(
            Table(caption="Stages of the run that finished it", head=head, rows=tuple(rows), texts=frozenset({0, 1}))
        )
    return Block(
        title="Run",
        sentences=tuple(sentences),
        pictures=tuple(draw_throughput(stage) for stage in stages if len(stage.speeds()) > 2),
        tables=tuple(tables),
    )


def show_records(content: Content) -> Block:
    """Return what became of the records of each input."""
    account = content.account
    if account is None:
        return Block(title="Records")
    parts = {"kept": account.kept, "filtered": account.filtered, "quarantined": account.quarantined}
    parts["of another split"] = account.elsewhere
    shown = ", ".join(
        f"{number(amount)} {name} ({percent(amount, account.records)})"
        for name, amount in parts.items()
        if amount or name in {"kept", "quarantined"}
    )
    sentences = [f"{number(account.lines)} lines, {number(account.blank)} of them blank: {shown}."]
    sentences += [f"{file.path} was left out: {file.reason}." for file in (content.damaged_inputs or [])[:SHOWN_INPUTS]]
    if content.options.split_name is not None:
        sentences.append(_describe_split(content, account.kept, account.elsewhere))
    tables = [_records_table(content.inputs)] if len(content.inputs) > 1 else []
    for caption, amounts in (("Messages and tokens by role", content.statistics), ("Bad records", content.bad_records)):
        if amounts:
            rows = tuple((name, number(amount)) for name, amount in amounts.items())[:SHOWN_INPUTS]
            tables.append(Table(caption=caption, head=("kind", "amount"), rows=rows))
    return Block(title="Records", sentences=tuple(sentences), tables=tuple(tables))


def _describe_split(content: Content, kept: int, elsewhere: int) -> str:
    options = content.options
    names = ("train", "valid", "test")
    intended = ""
    if options.split is not None and options.split_name in names and sum(options.split) > 0:
        place = names.index(options.split_name)
        share = options.split[place] if place < len(options.split) else 0.0
        intended = f" {percent(share, sum(options.split))} intended,"
    return f"Split {options.split_name}:{intended} {percent(kept, kept + elsewhere)} of the records taken."


def _records_table(inputs: Sequence[RecordedInput]) -> Table:
    names = ("lines", "blank", "kept", "filtered", "quarantined", "elsewhere")
    ordered = sorted(range(len(inputs)), key=lambda place: -(inputs[place].quarantined or 0))
    shown = [inputs[place] for place in sorted(ordered[:SHOWN_INPUTS])]
    others = [inputs[place] for place in ordered[SHOWN_INPUTS:]]
    used = [name for name in names if any(getattr(file, name) for file in inputs)]
    rows = [(file.path, *(number(getattr(file, name) or 0) for name in used)) for file in shown]
    if others:
        sums = (number(sum(getattr(file, name) or 0 for file in others)) for name in used)
        rows.append((f"{count(len(others), 'other input')} with fewer quarantined records", *sums))
    return Table(caption="Records by source", head=("source", *used), rows=tuple(rows))


def show_digests(content: Content) -> Block:
    """Return the digests of a dataset's files."""
    rows = tuple((f".{suffix}", size(file.size_bytes), file.digest) for suffix, file in sorted(content.digests.items()))
    table = Table(
        caption="XXH3-128 over blocks of 64 MiB, as the manifest has them; dsindex verify compares them with the files",
        head=("file", "size", "digest"),
        rows=rows,
        texts=frozenset({0, 2}),
        code=frozenset({2}),
    )
    return Block(title="Digests", tables=(table,))
