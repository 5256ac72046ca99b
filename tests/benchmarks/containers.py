"""Compressed inputs and tables, beside plain lines, decoding alone, and unpacking for Megatron's tool."""

from __future__ import annotations

import json
import os
import shlex
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from isal import igzip

from dsindex.store.reading import LocalFile
from dsindex.text.compressed import Decoder, detect_container
from tests.benchmarks.processes import Run, alternate, measure
from tests.benchmarks.rows import Row, absent, compare_runs
from tests.benchmarks.setting import check_same
from tests.support.compressed import zstd

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.setting import Setting

MEGABYTE = 1_000_000
NUM_FILES = 24
GZIP_LEVEL = 2
"""Of isal's levels the one whose files are about as large as gzip's own."""


def measure_containers(setting: Setting) -> list[Row]:
    """Compare builds of one text in many files and in one, by container."""
    source = setting.text("containers", setting.size(60 * MEGABYTE, 1200 * MEGABYTE))
    forms = _write_forms(setting, source)
    plain = setting.build(source)  # reads the input into the page cache, and compiles
    rows = []
    for name, paths in forms.items():
        contestants = {"ours": lambda _, paths=paths: _build(setting, paths)}
        contestants["plain"] = lambda _: setting.build(source)
        if setting.megatron is not None:
            contestants["unpack"] = lambda _, paths=paths: _unpack_and_preprocess(setting, paths)
        runs = alternate(contestants, setting.rounds)
        check_same(f"builds of {name} and of its text", [plain, *runs["ours"], *runs["plain"], *runs.get("unpack", ())])
        rate = source.stat().st_size / MEGABYTE / statistics.median(run.seconds for run in runs["ours"])
        alone = _decode_alone(paths, setting.workers)
        decoding = f", decoding alone {source.stat().st_size / MEGABYTE / alone:,.0f} MB/s" if alone else ""
        note = f"{rate:,.0f} MB/s of text{decoding}"
        rows.append(compare_runs("containers", name, "plain lines", ours=runs["ours"], peer=runs["plain"], note=note))
        against = "unpacked, then preprocess_data_fast.py"
        target = 4.0 if len(paths) > 1 else None
        if setting.megatron is None:
            rows.append(absent("containers", name, against, "name a checkout with --megatron", target=target))
        else:
            row = compare_runs("containers", name, against, ours=runs["ours"], peer=runs["unpack"], target=target)
            rows.append(row)
        if len(paths) == 1:
            busy = tuple(run.late_cpus / setting.workers for run in runs["ours"])
            rows.append(
                Row(
                    group="containers",
                    name=f"{name}: share of {setting.workers} CPUs in use, second half",
                    unit="",
                    ours=busy,
                    ratios=busy,
                    target=0.85,
                )
            )
    setting.drop(*(path for paths in forms.values() for path in paths))
    return rows


def _build(setting: Setting, paths: list[Path]) -> Run:
    first, *others = paths
    return setting.build(first, *(["--input", *map(str, others)] if others else []))


def _write_forms(setting: Setting, source: Path) -> dict[str, list[Path]]:
    """Write the text in many files and in one, in each container."""
    folder = setting.fresh("forms")
    with source.open("rb") as file:
        text = file.read()
    cuts = [0, *(text.index(b"\n", len(text) * part // NUM_FILES) + 1 for part in range(1, NUM_FILES)), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(cuts)]
    forms: dict[str, list[Path]] = {f"{NUM_FILES} .gz": [], f"{NUM_FILES} .zst": [], f"{NUM_FILES} .parquet": []}

    def write(number: int) -> tuple[Path, Path, Path]:
        paths = [folder / f"{number:02d}.{suffix}" for suffix in ("jsonl.gz", "jsonl.zst", "parquet")]
        paths[0].write_bytes(igzip.compress(pieces[number], GZIP_LEVEL))
        paths[1].write_bytes(zstd.compress(pieces[number]))
        texts = [json.loads(line)["text"] for line in pieces[number].splitlines()]
        pq.write_table(pa.table({"text": pa.array(texts, pa.large_string())}), paths[2], row_group_size=20_000)
        return paths[0], paths[1], paths[2]

    with ThreadPoolExecutor(setting.workers) as pool:
        for written in pool.map(write, range(NUM_FILES)):
            for name, path in zip(forms, written, strict=True):
                forms[name].append(path)
    one_gz, one_zst = folder / "one.jsonl.gz", folder / "one.jsonl.zst"
    one_gz.write_bytes(igzip.compress(text, GZIP_LEVEL))
    one_zst.write_bytes(zstd.compress(text))
    return {**forms, "one .gz": [one_gz], "one .zst": [one_zst]}


def _decode_alone(paths: list[Path], threads: int) -> float | None:
    """Return the seconds that decoding takes on so many threads; None for tables."""
    if paths[0].suffix == ".parquet":
        return None

    def decode(path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            decoder = Decoder(str(path), LocalFile(file), detect_container(os.pread(file.fileno(), 16, 0)))
            while not decoder.at_end:
                decoder.read(1 << 20)

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(decode, paths))
    return time.perf_counter() - began


def _unpack_and_preprocess(setting: Setting, paths: list[Path]) -> Run:
    """Unpack to one file, as Megatron's tool needs it, then run the tool."""
    unpacked = setting.folder / "unpacked.jsonl"
    names = " ".join(shlex.quote(str(path)) for path in paths)
    if paths[0].suffix == ".gz":
        command = ["sh", "-c", f"zcat {names} > {unpacked}"]
    elif paths[0].suffix == ".zst":
        command = ["sh", "-c", f"zstd -dcq {names} > {unpacked}"]
    else:
        code = (
            "import json, sys, pyarrow.parquet as pq\n"
            "with open(sys.argv[1], 'w') as out:\n"
            "    for path in sys.argv[2:]:\n"
            "        for batch in pq.ParquetFile(path).iter_batches():\n"
            "            for text in batch.column('text').to_pylist():\n"
            "                out.write(json.dumps({'text': text}) + '\\n')\n"
        )
        command = [sys.executable, "-c", code, str(unpacked), *map(str, paths)]
    first = measure(command)
    second = setting.preprocess(unpacked, fast=True)
    return replace(
        second,
        seconds=first.seconds + second.seconds,
        cpu_seconds=first.cpu_seconds + second.cpu_seconds,
        peak_bytes=max(first.peak_bytes, second.peak_bytes),
    )
