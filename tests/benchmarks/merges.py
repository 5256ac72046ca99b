"""Merging against merge_datasets.py and against copying; many shards; an index of very many documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.storage import atomic_writer
from tests.benchmarks.builds import GIVE_MEGATRON, MEGABYTE
from tests.benchmarks.processes import Run, alternate, measure
from tests.benchmarks.rows import Curve, Row, absent, compare_runs, median_of
from tests.benchmarks.setting import check_same, digest_dataset

if TYPE_CHECKING:
    from tests.benchmarks.setting import Setting

TOKENS_PER_DOCUMENT = 300


def measure_merge(setting: Setting) -> list[Row]:
    """Merge 64 shards: as merge_datasets.py, and as fast as the bytes can be copied."""
    total = setting.size(150 * MEGABYTE, 2000 * MEGABYTE)
    parts, tiny = setting.fresh("parts"), setting.fresh("tiny")
    prefixes = write_shards(parts, 64, total // 64)
    tiny_prefixes = write_shards(tiny, 64, 2_000)
    contestants = {
        "start": lambda _: _merge(setting, tiny_prefixes),
        "ours": lambda _: _merge(setting, prefixes),
        "cp": lambda _: _copy(setting, setting.folder / "ours" / "out.bin"),
    }
    if setting.megatron is not None:
        contestants["megatron"] = lambda _: _merge_by_megatron(setting, parts)
    runs = alternate(contestants, setting.rounds)
    check_same("merge and merge_datasets.py", [*runs["ours"], *runs.get("megatron", ())])
    start = median_of(runs["start"], lambda run: run.seconds)
    beyond = [replace(run, seconds=max(run.seconds - start, 1e-3)) for run in runs["ours"]]
    setting.drop(parts, tiny, setting.folder / "ours", setting.folder / "peer")
    name = f"merge of 64 shards, {total / 1e9:g} GB"
    apart = f"{name}, start-up of {start:.1f} s apart"
    copied = replace(
        compare_runs("merge", apart, "cp + fsync", ours=beyond, peer=runs["cp"], target=0.6), cpu_ratios=()
    )
    if setting.megatron is None:
        return [absent("merge", name, "merge_datasets.py", GIVE_MEGATRON, target=5), copied]
    peer = runs["megatron"]
    row = compare_runs("merge", name, "merge_datasets.py", ours=runs["ours"], peer=peer, target=5, note="same bytes")
    return [row, copied]


def _merge(setting: Setting, prefixes: list[str]) -> Run:
    output = setting.fresh("ours") / "out"
    config = setting.folder / "merge.yaml"  # 4,096 prefixes are too many for a command line's readers
    config.write_text("input:\n" + "".join(f"- {prefix}\n" for prefix in prefixes), encoding="utf-8")
    run = setting.dsindex("merge", "--config", str(config), "--output-prefix", str(output))
    return replace(run, digest=digest_dataset(output))


def _merge_by_megatron(setting: Setting, parts: Path) -> Run:
    output = setting.fresh("peer") / "out"
    run = setting.megatron_tool("merge_datasets.py", "--input", str(parts), "--output-prefix", str(output))
    return replace(run, digest=digest_dataset(output))


def _copy(setting: Setting, source: Path) -> Run:
    target = setting.folder / "copy.bin"
    target.unlink(missing_ok=True)
    run = measure(["sh", "-c", 'cp "$0" "$1" && sync "$1"', str(source), str(target)])
    target.unlink()
    return run


def measure_many_shards(setting: Setting) -> list[Row]:
    """Merge 4,096 shards."""
    count = setting.size(4096, 4096)
    parts = setting.fresh("parts")
    prefixes = write_shards(parts, count, 20_000)
    runs = [_merge(setting, prefixes) for _ in range(setting.rounds)]
    setting.drop(parts, setting.folder / "ours")
    return [
        Row(
            group="scale",
            name=f"merge of {count:,} shards of 20 kB",
            ours=tuple(run.seconds for run in runs),
            target=10,
            judged="ours at most",
        )
    ]


def measure_many_documents(setting: Setting) -> tuple[list[Row], list[Curve]]:
    """Merge datasets of ever more documents, one token each: what counts is the index, and that memory stays flat."""
    counts = [setting.size(1_000_000, 10_000_000), setting.size(10_000_000, 100_000_000)]
    runs = []
    for count in counts:
        parts = setting.fresh("parts")
        prefixes = [write_tiny_documents(parts / f"part-{number}", count // 4) for number in range(4)]
        runs.append(_merge(setting, prefixes))
        setting.drop(parts, setting.folder / "ours")
    memory = [run.peak_bytes / (1 << 20) for run in runs]
    rows = [
        Row(
            group="scale",
            name=f"merge of an index of {counts[-1]:,} documents: memory beyond that of {counts[0]:,}",
            unit="MiB",
            ours=(memory[-1] - memory[0],),
            target=64,
            judged="ours at most",
            note=f"{runs[-1].seconds:.1f} s, {memory[-1]:.0f} MiB",
        )
    ]
    points = tuple((float(count), run.seconds) for count, run in zip(counts, runs, strict=True))
    curve = Curve(group="scale", name="merge of an index", x_unit="documents", y_unit="seconds", points=points)
    return rows, [curve]


def write_shards(folder: Path, count: int, bin_bytes: int) -> list[str]:
    """Write datasets of random 2-byte tokens in documents of about 300, under names that sort as they count."""
    rng = np.random.default_rng(0)
    prefixes = []
    for number in range(count):
        prefix = folder / f"part-{number:05d}"
        tokens = rng.integers(0, 50_000, max(1, bin_bytes // 2), dtype=np.uint16)
        ends = np.unique(np.append(rng.integers(1, len(tokens) + 1, len(tokens) // TOKENS_PER_DOCUMENT), len(tokens)))
        builder = IndexBuilder(np.dtype("<u2"), folder=str(folder))
        builder.add_documents(np.diff(ends, prepend=0), np.ones(len(ends), np.int64))
        _write(prefix, builder, tokens.data)
        prefixes.append(str(prefix))
    return prefixes


def write_tiny_documents(prefix: Path, count: int) -> str:
    """Write a dataset of one-token documents."""
    builder = IndexBuilder(np.dtype("<u2"), folder=str(prefix.parent))
    for begin in range(0, count, 1_000_000):
        ones = np.ones(min(1_000_000, count - begin), np.int64)
        builder.add_documents(ones, ones)
    _write(prefix, builder, bytes(2 * count))
    return str(prefix)


def _write(prefix: Path, builder: IndexBuilder, data: bytes | memoryview) -> None:
    Path(f"{prefix}.bin").write_bytes(data)
    with atomic_writer(f"{prefix}.idx") as file:
        builder.write(file)
    builder.close()
