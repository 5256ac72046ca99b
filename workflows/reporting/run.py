"""What is recorded of a dataset's making: the run, its stages, the records of its inputs, and digests."""

from __future__ import annotations

import calendar
import itertools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_speed, format_token_speed
from workflows.progress.progress_file import PROGRESS_SUFFIX, read_progress
from workflows.progress.series import SERIES_FIELDS
from workflows.reporting.amounts import number, percent, seconds, size
from workflows.reporting.model import Block, Table
from workflows.reporting.pictures import draw_throughput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from workflows.state.manifest import Content, Manifest, RecordedInput, Run

SHOWN_INPUTS = 30
MOST_STAGES = 8
STARTED_APART_SECONDS = 120
"""How far the start of a job and that of its progress file may be apart."""
_FIELDS = len(SERIES_FIELDS)


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
        """Return begin, end, and units per second of the intervals between its points."""
        points = [(0.0, self.series[0][1] if self.series else 0.0), *((point[0], point[1]) for point in self.series)]
        return [
            (time, later, max(0.0, amount - before) / (later - time))
            for (time, before), (later, amount) in itertools.pairwise(points)
            if later > time
        ]

    def events(self) -> list[tuple[float, str]]:
        """Return when tasks were retried and workers lost."""
        found = []
        retries = lost = 0.0
        for point in self.series:
            if point[3] > retries:
                found.append((point[0], count(round(point[3] - retries), "retry").replace("retrys", "retries")))
            if point[4] > lost:
                found.append((point[0], count(round(point[4] - lost), "lost worker")))
            retries, lost = point[3], point[4]
        return found


def read_stages(prefix: str, run: Run) -> tuple[list[StageRecord], str | None]:
    """Return the stages of the run that made a dataset, from the progress file beside it, and why there are none."""
    for stem in _stems(prefix):
        entry = read_progress(f"{stem}.{PROGRESS_SUFFIX}")
        if entry is None:
            continue
        if not _is_of(entry, run):
            return [], f"{stem}.{PROGRESS_SUFFIX} is of another run, so its throughput over time is not known"
        stages = entry.get("finished_stages")
        return [stage for stage in map(_stage, stages if isinstance(stages, list) else []) if stage is not None], None
    return [], "there is no progress file beside the dataset, so its throughput over time is not known"


def _stems(prefix: str) -> Iterator[str]:
    """Yield the prefix, and what it may have been before the names of key and kind: out/x_text_document, out/x."""
    folder, name = os.path.split(prefix)
    while name:
        yield os.path.join(folder, name)
        name = name.rpartition("_")[0]


def _is_of(entry: dict[str, Any], run: Run) -> bool:
    began, file_began = _seconds_of(run.started), _seconds_of(entry.get("started"))
    if began is None or file_began is None:
        return False
    return entry.get("state") == "done" and abs(began - file_began) <= STARTED_APART_SECONDS


def _seconds_of(text: object) -> int | None:
    try:
        return calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return None


def _stage(value: object) -> StageRecord | None:
    """Return a stage as it is in a progress file; None if it is something else."""
    if not isinstance(value, dict):
        return None
    amounts = [value.get(name, 0) for name in ("done", "tokens", "seconds", "retries", "lost_workers", "stragglers")]
    if not all(_is_amount(amount) for amount in amounts):
        return None
    series = value.get("series", [])
    points = series if isinstance(series, list) else []
    done, tokens, took, *events = amounts
    return StageRecord(
        name=str(value.get("stage"))[:80],
        unit=str(value.get("unit"))[:40],
        done=int(done),
        tokens=int(tokens),
        seconds=float(took),
        retries=int(events[0]),
        lost_workers=int(events[1]),
        stragglers=int(events[2]),
        series=tuple(tuple(map(float, point)) for point in points[:1000] if _is_point(point)),
    )


def _is_point(value: object) -> bool:
    return isinstance(value, list) and len(value) == _FIELDS and all(map(_is_amount, value))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**63


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
            (
                stage.name,
                stage.describe(),
                number(stage.retries),
                number(stage.lost_workers),
                number(stage.stragglers),
            )
            for stage in stages
        ]
        head = ("stage", "amount and speed", "retries", "lost workers", "stragglers")
        tables.append(
            Table(caption="Stages of the run that finished it", head=head, rows=tuple(rows), texts=frozenset({0, 1}))
        )
    return Block(
        title="Run",
        sentences=tuple(sentences),
        pictures=tuple(draw_throughput(stage) for stage in stages if len(stage.speeds()) > 1),
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
