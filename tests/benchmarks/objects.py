"""A build from a bucket into a bucket, on this machine, beside the same build on its disk.

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
    served = sum(run.values["server"] for run in runs["bucket"]) / len(runs["bucket"])
    note = f"same bytes; the store's own process: {served:.1f} CPU s"
    row = compare_runs("objects", name, "on a disk", ours=runs["bucket"], peer=runs["disk"], target=0.8, note=note)
    memory = tuple(run.peak_bytes / (1 << 20) for run in runs["bucket"])
    on_disk = tuple(run.peak_bytes / (1 << 20) for run in runs["disk"])
    return [row, Row(group="objects", name=f"its peak memory, {name}", unit="MiB", ours=memory, peer=on_disk)]


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
    command = [sys.executable, "-m", "tests.support.object_server", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), int(process.stdout.readline())
        finally:
            process.kill()
