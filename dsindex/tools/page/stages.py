"""The stages of the run that made a dataset, from the progress file that stays beside it."""

from __future__ import annotations

import calendar
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.amounts import count, format_speed, format_token_speed
from dsindex.execution.progress.progress_file import PROGRESS_SUFFIX, SERIES_FIELDS, read_progress
from dsindex.tools.page.page import number, seconds, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.engine.manifest import Run

MOST_INTERVALS = 60
"""Intervals over which a speed is averaged."""
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
