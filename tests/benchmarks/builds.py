"""Whole builds against the peers, against encoding alone, through Ray; their memory and their growth; start-up."""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.processes import ROOT, Run, alternate, measure
from tests.benchmarks.rows import Curve, Row, absent, compare_runs
from tests.benchmarks.setting import check_same, has_module

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.setting import Setting

MEGABYTE = 1_000_000
GIVE_MEGATRON = "give a checkout with --megatron PATH"
SLOW_ROUNDS = 1
"""preprocess_data.py takes minutes: this many rounds of it stand for all."""


def measure_build(setting: Setting) -> list[Row]:
    """Compare a whole local build with Megatron's two programs, whose bytes are ours, and with datatrove."""
    source = setting.text("build", int(setting.megabytes * MEGABYTE))
    contestants = {"ours": lambda _: setting.build(source)}
    if setting.megatron is not None:
        contestants["slow"] = lambda number: setting.preprocess(source, fast=False) if number < SLOW_ROUNDS else None
        contestants["fast"] = lambda _: setting.preprocess(source, fast=True)
    if has_datatrove := has_module(setting.datatrove_python, "datatrove"):
        contestants["datatrove"] = lambda number: setting.datatrove(source) if number < SLOW_ROUNDS else None
    setting.build(source)  # reads the input into the page cache, and compiles
    runs = alternate(contestants, setting.rounds)
    check_same("local builds and Megatron-LM", [*runs["ours"], *runs.get("slow", ()), *runs.get("fast", ())])
    name = f"whole build, {setting.megabytes / 1000:g} GB JSONL"
    slow, fast = f"preprocess_data.py, {setting.workers} workers", "preprocess_data_fast.py"
    if setting.megatron is not None:
        rows = [
            compare_runs("build", name, slow, ours=runs["ours"], peer=runs["slow"], target=30, note="same bytes"),
            compare_runs("build", name, fast, ours=runs["ours"], peer=runs["fast"], target=2.5, note="same bytes"),
            _compare_memory(runs["ours"], runs["fast"], name, fast),
        ]
    else:
        rows = [
            absent("build", name, slow, GIVE_MEGATRON, target=30),
            absent("build", name, fast, GIVE_MEGATRON, target=2.5),
        ]
    if has_datatrove:
        peer = f"datatrove, {setting.workers} tasks, no merge"
        rows.append(compare_runs("build", name, peer, ours=runs["ours"], peer=runs["datatrove"]))
    else:
        rows.append(absent("build", name, "datatrove", "not installed; see --datatrove-python"))
    return rows


def _compare_memory(ours: list[Run], peer: list[Run], name: str, against: str) -> Row:
    mine, other = (tuple(run.peak_bytes / (1 << 30) for run in runs) for runs in (ours, peer))
    ratios = tuple(theirs / own for own, theirs in zip(mine, other, strict=True) if own)
    return Row(
        group="build",
        name=f"its peak memory, {name}",
        against=against,
        unit="GiB",
        ours=mine,
        peer=other,
        ratios=ratios,
    )


def measure_encoding(setting: Setting) -> list[Row]:
    """Compare what a build takes beyond its start-up with the engines alone on text that is parsed already."""
    rows = []
    nothing = setting.folder / "one.jsonl"
    nothing.write_text('{"text": "one record"}\n', encoding="utf-8")
    small = setting.size(8 * MEGABYTE, 40 * MEGABYTE)
    # The slow engine's input is less than one shard of the usual size: cut so that every worker has a part of it.
    sources = {
        "gigatoken": (setting.text("build", int(setting.megabytes * MEGABYTE)), 0.5, "bare gigatoken", ()),
        "tokenizers": (setting.text("slow", small), 0.9, "bare encode_batch", ("--shard-size", "2MiB")),
    }
    for engine, (source, target, peer, options) in sources.items():
        runs = alternate(
            {
                "start": lambda _, engine=engine: setting.build(nothing, engine=engine),
                "ours": lambda _, engine=engine, source=source, options=options: setting.build(
                    source, *options, engine=engine
                ),
                "bare": lambda _, engine=engine, source=source: setting.bare(source, engine),
            },
            setting.rounds,
        )
        start = statistics.median(run.seconds for run in runs["start"])
        start_cpu = statistics.median(run.cpu_seconds for run in runs["start"])
        beyond = [
            replace(run, seconds=max(run.seconds - start, 1e-3), cpu_seconds=max(run.cpu_seconds - start_cpu, 1e-3))
            for run in runs["ours"]
        ]
        name = f"build of {source.stat().st_size / 1e9:.2g} GB, start-up of {start:.1f} s apart, engine {engine}"
        against = f"{peer}, {setting.workers} threads"
        rows.append(compare_runs("encoding", name, against, ours=beyond, peer=runs["bare"], target=target))
    return rows


def measure_ray(setting: Setting) -> list[Row]:
    """Compare a whole build through Ray, its start included, with preprocess_data_fast.py and with a local build."""
    source = setting.text("ray", setting.size(60 * MEGABYTE, 2500 * MEGABYTE))
    contestants = {
        "ray": lambda _: setting.build(source, "--executor", "ray"),
        "local": lambda _: setting.build(source),
    }
    if setting.megatron is not None:
        contestants["fast"] = lambda _: setting.preprocess(source, fast=True)
    runs = alternate(contestants, setting.rounds if setting.full else 1)
    check_same("Ray, local and Megatron-LM", [run for group in runs.values() for run in group])
    setting.drop(source)
    name = f"whole build through Ray, its start included, {source_size(setting)}"
    fast = "preprocess_data_fast.py"
    rows = [compare_runs("ray", name, "our local build", ours=runs["ray"], peer=runs["local"], note="same bytes")]
    if setting.megatron is None:
        return [absent("ray", name, fast, GIVE_MEGATRON, target=1.5), *rows]
    target = 1.5 if setting.full else None  # Ray's start alone takes longer than a small build
    row = compare_runs("ray", name, fast, ours=runs["ray"], peer=runs["fast"], target=target, note="same bytes")
    return [row, *rows]


def measure_warm_ray(setting: Setting) -> list[Row]:
    """Find out what Ray costs once it runs: its part of a task, and the same shards in threads of one process."""
    source = setting.text("warm", setting.size(120 * MEGABYTE, 1200 * MEGABYTE))
    options = ["--tokenizer", str(setting.tokenizer), "--folder", str(setting.fresh("ours"))]
    options += ["--workers", str(setting.workers), "--rounds", str(setting.rounds)]
    run = measure([sys.executable, "-m", "tests.benchmarks.warm", str(source), *options], cwd=ROOT)
    setting.drop(source, setting.folder / "ours")
    found = json.loads(run.output.splitlines()[-1])
    ray, local, shards = found["ray"], found["local"], found["shards"]
    per_shard = [seconds * setting.workers / shards for seconds in ray]
    parts = zip(found["empty"], per_shard, strict=True)
    return [
        Row(
            group="ray",
            name="warm workers: an empty task through Ray, as a part of one shard's time",
            unit="%",
            ours=tuple(100 * empty / shard for empty, shard in parts),
            target=5,
            judged="ours at most",
            note=f"{1e3 * statistics.median(found['empty']):.1f} ms of {statistics.median(per_shard):.2f} s",
        ),
        Row(
            group="ray",
            name=f"warm workers: {shards} shards through Ray",
            against="in threads of one process",
            ours=tuple(ray),
            peer=tuple(local),
            ratios=tuple(theirs / own for own, theirs in zip(ray, local, strict=True)),
            note="same bytes",
        ),
    ]


def source_size(setting: Setting) -> str:
    """Name the size of Ray's input."""
    return f"{setting.size(60 * MEGABYTE, 2500 * MEGABYTE) / 1e9:g} GB"


def measure_growth(setting: Setting) -> tuple[list[Row], list[Curve]]:
    """Build inputs that grow tenfold and more: time in proportion, memory flat."""
    sizes = [setting.size(20 * MEGABYTE, 300 * MEGABYTE), setting.size(200 * MEGABYTE, 3000 * MEGABYTE)]
    if setting.full:
        sizes.append(setting.size(1, 10_000 * MEGABYTE))
    best: list[Run] = []
    for size in sizes:
        source = setting.text("growth", size, seed=size)
        runs = [setting.build(source) for _ in range(1 if size > 1e9 else setting.rounds)]
        best.append(min(runs, key=lambda run: run.seconds))
        setting.drop(source, setting.folder / "ours")
    small, large = best[0], best[1]
    memory = [run.peak_bytes / (1 << 30) for run in best]
    shown = " → ".join(f"{size / 1e9:g}" for size in sizes)
    rows = [
        Row(
            group="growth",
            name=f"time for 10 × the input ({shown} GB)",
            unit="× time",
            ours=(large.seconds / small.seconds,),
            target=10.5,
            judged="ours at most",
        ),
        Row(
            group="growth",
            name=f"peak memory, {setting.workers} workers ({shown} GB)",
            unit="GiB",
            ours=(max(memory),),
            target=1.0,
            judged="ours at most",
        ),
        Row(
            group="growth",
            name=f"peak memory, the largest input against the smallest ({shown} GB)",
            unit="×",
            ours=(memory[-1] / memory[0],),
            target=1.1,
            judged="ours at most",
        ),
    ]
    gigabytes = [size / 1e9 for size in sizes]
    points = {"seconds": [run.seconds for run in best], "GiB at the peak": memory}
    curves = [
        Curve(
            group="growth",
            name=f"whole local build, {setting.workers} workers",
            x_unit="GB of JSONL",
            y_unit=unit,
            points=tuple(zip(gigabytes, values, strict=True)),
        )
        for unit, values in points.items()
    ]
    return rows, curves


def measure_start(setting: Setting) -> list[Row]:
    """Time what is felt first: the help and a tiny build."""
    source: Path = setting.text("small", MEGABYTE)
    rounds = max(3, setting.rounds)
    runs = alternate(
        {"help": lambda _: setting.dsindex("--help"), "build": lambda _: setting.build(source)}, rounds + 1
    )
    limits = {"help": ("dsindex --help", 0.4), "build": ("local build of 1 MB", 1.5)}
    return [
        Row(
            group="start",
            name=name,
            ours=tuple(run.seconds for run in runs[key][1:]),
            target=limit,
            judged="ours at most",
        )
        for key, (name, limit) in limits.items()
    ]
