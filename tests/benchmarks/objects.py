"""A build from a bucket into a bucket, and one from the Hub, on this machine, beside the same build on its disk.

The server of the tests stands for the store, in a process of its own whose CPU time is told apart: it shares the
machine's CPUs with the build, which a real store does not.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from tests.benchmarks.processes import ROOT, Run, alternate, cpu_time_of, measure
from tests.benchmarks.rows import Row, absent, compare_runs
from tests.benchmarks.setting import check_same, digest_dataset, has_module
from tests.support.object_server import ACCESS_KEY, SECRET_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.benchmarks.setting import Setting

CHUNK_BYTES = 4 << 20


def measure_objects(setting: Setting) -> list[Row]:
    """Compare a build from and to a loopback store with one from and to a disk."""
    name = f"whole build in a bucket, {setting.megabytes / 1000:g} GB JSONL"
    if not (has_module(sys.executable, "boto3") and has_module(sys.executable, "obstore")):
        return [absent("objects", name, "on a disk", "install the extra `objects`", target=0.8)]
    text = setting.text("build", int(setting.megabytes * 1_000_000))
    root = setting.fresh("store")
    bucket = root / "in"
    bucket.mkdir()
    os.link(text, bucket / "text.jsonl")
    with serving(root) as (url, server):
        contestants = {
            "bucket": lambda number: _build_in_bucket(setting, url, server, number),
            "disk": lambda _: setting.build(text),
        }
        setting.build(text)  # reads the input into the page cache, and compiles
        runs = alternate(contestants, setting.rounds)
    check_same("builds in a bucket and on a disk", [*runs["bucket"], *runs["disk"]])
    setting.drop(root)
    return _rows("objects", name, "on a disk", ours=runs["bucket"], peer=runs["disk"], target=0.8)


def measure_hub(setting: Setting) -> list[Row]:
    """Compare a build from Parquet on a loopback Hub, which answers after 30 ms, with one from a disk."""
    name = f"whole build from the Hub, {setting.megabytes / 1000:g} GB of text in Parquet"
    if not has_module(sys.executable, "obstore"):
        return [absent("objects", name, "from a disk", "install the extra `objects`", target=0.9)]
    folder = setting.fresh("hub")
    table = pa.json.read_json(setting.text("build", int(setting.megabytes * 1_000_000)))
    pq.write_table(table, folder / "text.parquet", row_group_size=1000, compression="snappy")
    command = [sys.executable, "-m", "tests.support.hub_server", str(folder), "0.03"]
    with _running(command) as (url, server):

        def build_from_hub(_: int) -> Run:
            before = cpu_time_of(server)[1]
            run = setting.build("hf://datasets/org/name", env={"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"})
            return replace(run, values={"server": cpu_time_of(server)[1] - before})

        contestants = {"hub": build_from_hub, "disk": lambda _: setting.build(folder / "text.parquet")}
        setting.build(folder / "text.parquet")
        runs = alternate(contestants, setting.rounds)
    check_same("builds from the Hub and a disk", [*runs["hub"], *runs["disk"]])
    setting.drop(folder)
    return _rows("objects", name, "from a disk", ours=runs["hub"], peer=runs["disk"], target=0.9)


def _rows(group: str, name: str, against: str, *, ours: list[Run], peer: list[Run], target: float) -> list[Row]:
    """Return rows for time and memory, with the server's own time."""
    served = sum(run.values["server"] for run in ours) / len(ours)
    note = f"same bytes; the server's own process: {served:.1f} CPU s"
    memory, of_peer = (tuple(run.peak_bytes / (1 << 20) for run in runs) for runs in (ours, peer))
    return [
        compare_runs(group, name, against, ours=ours, peer=peer, target=target, note=note),
        Row(group=group, name=f"its peak memory, {name}", unit="MiB", ours=memory, peer=of_peer),
    ]


def _build_in_bucket(setting: Setting, url: str, server: int, number: int) -> Run:
    prefix = f"s3://out/round-{number}/x"
    before = cpu_time_of(server)[1]
    command = ["build", "--input", "s3://in/text.jsonl", "--output-prefix", prefix]
    command += ["--tokenizer-model", str(setting.tokenizer), "--append-eod"]
    run = measure(
        [sys.executable, "-m", "dsindex", *command, "--workers", str(setting.workers)],
        cwd=ROOT,
        env={**variables_for(url), "PYTHONPATH": str(ROOT)},
    )
    served = cpu_time_of(server)[1] - before
    digest = digest_dataset(_fetch(setting, f"{url}/out/round-{number}/x_text_document"))
    return replace(run, digest=digest, values={"server": served})


def _fetch(setting: Setting, address: str) -> Path:
    """Copy a dataset of the store's public bucket to a disk; return its prefix."""
    prefix = setting.fresh("fetched") / "x"
    for suffix in ("bin", "idx"):
        with (
            urllib.request.urlopen(f"{address}.{suffix}") as answer,
            prefix.with_suffix(f".{suffix}").open("wb") as file,
        ):
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
    return prefix


def variables_for(url: str) -> dict[str, str]:
    """Return the variables by which programs find the server."""
    return {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@contextlib.contextmanager
def serving(folder: Path, *, delay: float = 0.0) -> Iterator[tuple[str, int]]:
    """Run the server of the tests while the block runs; yield its address and process id.

    Args:
        folder: Its folders are buckets, beside an empty bucket `out`.
        delay: Seconds before each GET of an object is answered.
    """
    options = ["--folder", str(folder), "--bucket", "out", "--public", "out", "--fast", "--delay", str(delay)]
    with _running([sys.executable, "-m", "tests.support.object_server", *options]) as found:
        yield found


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[tuple[str, int]]:
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), int(process.stdout.readline())
        finally:
            process.kill()
