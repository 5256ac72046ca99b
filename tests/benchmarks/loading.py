"""Training samples that four workers of a loader read from a bucket, beside the same samples from a disk.

The server of the tests stands for the store, as in `objects.py`: one that takes as long to answer as real ones do, and
with --full one that answers at once. A job of 8 GPUs takes 100,000 to 200,000 tokens a second, and should not wait.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.benchmarks.loader import WARM_UP
from tests.benchmarks.objects import serving, variables_for
from tests.benchmarks.processes import ROOT, Run, alternate, cpu_time_of, measure
from tests.benchmarks.reading import write_random_dataset
from tests.benchmarks.rows import Row, absent
from tests.benchmarks.setting import check_same, has_module

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.benchmarks.setting import Setting

DELAYS = (0.0, 0.03)
"""Seconds that the store takes to answer."""
JOB_RATE = 200_000
SEQUENCE_LENGTH = 4096
MEAN_TOKENS = 600
"""Of a document."""
TOKEN_BYTES = 2
PARTS = 4
"""Datasets of the blend."""
WORKERS = 4
BATCH_SIZE = 8


def measure_loading(setting: Setting) -> list[Row]:
    """Compare loaders that read shuffled samples of one dataset, and of a blend, from a store and from a disk."""
    name = f"samples of {SEQUENCE_LENGTH:,} tokens by {WORKERS} workers"
    if not has_module(sys.executable, "obstore"):
        return [absent("loading", name, "from a disk", "install the extra `objects`")]
    root = setting.fresh("loading")
    data = root / "in"
    data.mkdir()
    count = max(5_000, setting.size(60_000, 150_000))
    for number in range(PARTS):
        write_random_dataset(data / f"part{number}", count, mean_tokens=MEAN_TOKENS, seed=number)
    rows = []
    for delay in DELAYS if setting.full else DELAYS[-1:]:
        with serving(root, delay=delay) as (url, server):
            for shape in ("one dataset", f"a blend of {PARTS}"):
                setting.drop(root / "caches")
                rows += _compare(setting, root, url, server, f"{name}, {shape}, {delay * 1000:.0f} ms", shape)
    setting.drop(root)
    return rows


def _compare(setting: Setting, root: Path, url: str, server: int, name: str, shape: str) -> list[Row]:
    variables = {**variables_for(url), "XDG_CACHE_HOME": str(root / "kept"), "PYTHONPATH": str(ROOT)}
    parts = [f"part{number}" for number in range(1 if shape == "one dataset" else PARTS)]
    caches = {}
    for place, folder in (("bucket", "s3://in"), ("disk", str(root / "in"))):
        caches[place] = root / "caches" / place
        weighted = [word for part in parts for word in ("1", f"{folder}/{part}")]
        _index(setting, weighted if len(parts) > 1 else [f"{folder}/{parts[0]}"], caches[place], variables)

    def load(place: str, *options: str) -> Run:
        command = [sys.executable, "-m", "tests.benchmarks.loader", str(caches[place]), "--workers", str(WORKERS)]
        command += ["--batch-size", str(BATCH_SIZE)]
        before = cpu_time_of(server)[1]
        run = measure([*command, "--batches", str(_batches(setting)), *options], cwd=ROOT, env=variables)
        found = {**json.loads(run.output), "server": cpu_time_of(server)[1] - before}
        return replace(run, digest=found["digest"], values=found)

    runs = alternate(
        {
            "bucket": lambda _: load("bucket"),
            "disk": lambda _: load("disk"),
            "job": lambda _: load("bucket", "--rate", str(JOB_RATE)),
        },
        setting.rounds,
    )
    check_same(name, [run for some in runs.values() for run in some])
    bucket, disk = _figures(runs["bucket"], "tokens_per_second"), _figures(runs["disk"], "tokens_per_second")
    memory = {place: tuple(run.peak_bytes / (1 << 20) for run in runs[place]) for place in ("bucket", "disk")}
    rate = Row(
        group="loading",
        name=name,
        against="from a disk",
        unit="tokens/s",
        ours=bucket,
        peer=disk,
        ratios=tuple(mine / other for mine, other in zip(bucket, disk, strict=True)),
        note=_describe(runs["bucket"]),
    )
    waiting = tuple(100 * share for share in _figures(runs["job"], "waited_share"))
    shown = f"a job of {JOB_RATE:,} tokens/s waits, {name}"
    cpu = statistics.median(_figures(runs["job"], "cpu_seconds_per_million_tokens")) * JOB_RATE / 1e6
    return [
        rate,
        Row(group="loading", name=f"its peak memory, {name}", unit="MiB", ours=memory["bucket"], peer=memory["disk"]),
        Row(
            group="loading",
            name=shown,
            unit="%",
            ours=waiting,
            target=2.0,
            judged="ours at most",
            note=f"{cpu:.2f} of a CPU for all workers",
        ),
    ]


def _batches(setting: Setting) -> int:
    return max(2 * WARM_UP * WORKERS, setting.size(120, 400))


def _index(setting: Setting, data_path: Sequence[str], cache: Path, variables: Mapping[str, str]) -> None:
    """Build a cache, whose order of documents and samples is shuffled as in Megatron."""
    job = [
        "--train-samples",
        str(_batches(setting) * BATCH_SIZE),
        "--global-batch-size",
        str(BATCH_SIZE),
        "--eval-interval",
        "1000",
    ]
    words = ["index", "--data-path", *data_path, "--seq-length", str(SEQUENCE_LENGTH), "--split", "1"]
    words += [*job, "--data-cache-path", str(cache)]
    measure([sys.executable, "-m", "dsindex", *words], cwd=ROOT, env=variables)


def _describe(runs: Sequence[Run]) -> str:
    """Return what the samples cost."""
    last = runs[-1].values
    read = last["received_bytes_per_sample"] / (SEQUENCE_LENGTH * TOKEN_BYTES)
    cpu = statistics.median(_figures(runs, "cpu_seconds_per_million_tokens"))
    served = statistics.median(_figures(runs, "server"))
    return (
        f"{last['gets_per_sample']:.1f} requests a sample, {read:.2f} bytes read for a byte "
        f"used, {cpu:.2f} CPU s for a million tokens; the store's own process: {served:.1f} CPU s"
    )


def _figures(runs: Sequence[Run], name: str) -> tuple[float, ...]:
    return tuple(run.values[name] for run in runs)
