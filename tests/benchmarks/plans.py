"""Planning very much, and driving a cluster that is only imagined (see driver.py)."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.processes import ROOT, Run, measure
from tests.benchmarks.rows import Curve, Row

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.setting import Setting

TERABYTE = 10**12
BYTES_PER_SHARD = 100
"""Of the input of an imagined build, whose tasks nobody runs."""


def measure_planning(setting: Setting) -> list[Row]:
    """Plan 100,000 files, and one file of 10 TB."""
    count = setting.size(100_000, 100_000)
    files = setting.fresh("files")
    for number in range(count):
        folder = files / f"{number // 1000:03d}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number:06d}.jsonl").write_bytes(b'{"text": "one of many"}\n')
    huge = setting.folder / "huge.jsonl"
    with huge.open("wb") as file:
        file.truncate(setting.size(10 * TERABYTE, 10 * TERABYTE))
    cases = {f"planning {count:,} files": str(files / "*" / "*.jsonl"), "planning a file of 10 TB": str(huge)}
    rows = []
    for name, pattern in cases.items():
        runs = [_drive("plan", pattern) for _ in range(setting.rounds)]
        rows.append(
            Row(
                group="scale",
                name=name,
                ours=tuple(run.values["seconds"] for run in runs),
                target=10,
                judged="ours at most",
                note=f"{runs[0].values['shards']:,} shards, {runs[0].peak_bytes / (1 << 20):.0f} MiB",
            )
        )
    rows += _many_inputs(setting, str(files / "*" / "*.jsonl"), count)
    setting.drop(files, huge)
    return rows


def _many_inputs(setting: Setting, pattern: str, count: int) -> list[Row]:
    """Drive a build with as many inputs: nothing in the driver may grow with the square of their number."""
    run = _build(setting, pattern, count)
    return [
        Row(
            group="scale",
            name=f"driving a build of {count:,} files, driver's CPU per shard",
            unit="µs",
            ours=(run.values["cpu_microseconds_per_shard"],),
            note=f"{run.values['seconds']:.1f} s in all, {run.peak_bytes / (1 << 30):.2f} GiB",
        )
    ]


def measure_cluster(setting: Setting) -> tuple[list[Row], list[Curve]]:
    """Drive builds of ever more shards on 10,000 imagined slots."""
    counts = [setting.size(10_000, 100_000), setting.size(50_000, 1_000_000)]
    runs = []
    for count in counts:
        source = setting.text(f"cluster-{count}", count * BYTES_PER_SHARD)
        runs.append(_build(setting, str(source), count))
        setting.drop(source)
    figures = {
        "driver's CPU per shard": ("µs", "cpu_microseconds_per_shard", 1.0),
        "time to the first task": ("s", "first_task_seconds", 1.0),
        "driver's peak memory per shard": ("kB", "peak_bytes", 1e-3 / runs[-1].values["shards"]),
    }
    rows = [
        Row(
            group="scale",
            name=f"imagined cluster, 10,000 slots, {runs[-1].values['shards']:,} shards: {name}",
            unit=unit,
            ours=(runs[-1].values[key] * factor,),
        )
        for name, (unit, key, factor) in figures.items()
    ]
    points = tuple((float(run.values["shards"]), run.values["seconds"]) for run in runs)
    curve = Curve(group="scale", name="driver on an imagined cluster", x_unit="shards", y_unit="seconds", points=points)
    return rows, [curve]


def _build(setting: Setting, pattern: str, shards: int) -> Run:
    output: Path = setting.fresh("ours") / "out"
    options = ["--shards", str(shards), "--tokenizer", str(setting.tokenizer), "--output-prefix", str(output)]
    run = _drive("build", pattern, *options)
    setting.drop(output.parent)
    return run


def _drive(*arguments: str) -> Run:
    run = measure([sys.executable, "-m", "tests.benchmarks.driver", *arguments], cwd=ROOT)
    return replace(run, values=json.loads(run.output.splitlines()[-1]))
