"""Raw index and packing against Modalities, whose bytes are ours: our whole command against its call alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dsindex.store.reading import digest_file
from tests.benchmarks.builds import MEGABYTE, SLOW_ROUNDS
from tests.benchmarks.processes import Run, alternate, measure
from tests.benchmarks.rows import Row, absent, compare_runs
from tests.benchmarks.setting import check_same, has_module

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.setting import Setting

EOD = "<|endoftext|>"


def measure_packing(setting: Setting) -> list[Row]:
    """Compare `raw-index` and `pack` with what Modalities' own commands call."""
    if not has_module(setting.modalities_python, "modalities"):
        remedy = "name an environment with modalities with --modalities-python"
        return [
            absent("packing", "raw index", "Modalities", remedy, target=10),
            absent("packing", "packing", "Modalities", remedy, target=30),
        ]
    return [_measure_index(setting), _measure_pack(setting)]


def _measure_index(setting: Setting) -> Row:
    source = setting.text("raw-index", setting.size(60 * MEGABYTE, 2400 * MEGABYTE))
    mine, theirs = setting.folder / "ours.idx", setting.folder / "theirs.idx"

    def ours(_: int) -> Run:
        mine.unlink(missing_ok=True)
        options = ["--output", str(mine), "--workers", str(setting.workers)]
        return replace(setting.dsindex("raw-index", str(source), *options), digest=digest_file(str(mine)))

    def peer(number: int) -> Run | None:
        return _run_modalities(setting, theirs, "index", source, theirs) if number < SLOW_ROUNDS else None

    ours(0)  # reads the input into the page cache, and compiles
    row = _compare(setting, f"raw index of {source.stat().st_size / 1e9:.2g} GB", ours, peer, target=10)
    setting.drop(source)
    return row


def _measure_pack(setting: Setting) -> Row:
    source = setting.text("pack", setting.size(10 * MEGABYTE, 1000 * MEGABYTE))
    index, theirs = source.with_suffix(".idx"), setting.folder / "theirs.pbin"
    setting.dsindex("raw-index", str(source))

    def ours(_: int) -> Run:
        packed = setting.fresh("ours") / "out.pbin"
        command = ["pack", "--input", str(source), "--tokenizer-model", str(setting.tokenizer), "--eod-token", EOD]
        run = setting.dsindex(*command, "--output", str(packed), "--workers", str(setting.workers))
        return replace(run, digest=digest_file(str(packed)))

    def peer(number: int) -> Run | None:
        if number >= SLOW_ROUNDS:
            return None
        theirs.unlink(missing_ok=True)
        return _run_modalities(setting, theirs, "pack", source, index, theirs, setting.tokenizer, str(setting.workers))

    row = _compare(setting, f"packing of {source.stat().st_size / 1e9:.2g} GB", ours, peer, target=30)
    setting.drop(source, index, theirs, setting.folder / "ours")
    return row


def _run_modalities(setting: Setting, written: Path, *words: str | Path) -> Run:
    program = Path(__file__).with_name("modalities_peer.py")
    env = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    run = measure([setting.modalities_python, str(program), *map(str, words)], cwd=setting.folder, env=env)
    seconds = json.loads(run.output.splitlines()[-1])["seconds"]
    return replace(run, seconds=seconds, digest=digest_file(str(written)))


def _compare(
    setting: Setting, name: str, ours: Callable[[int], Run], peer: Callable[[int], Run | None], *, target: float
) -> Row:
    runs = alternate({"ours": ours, "peer": peer}, setting.rounds)
    check_same(name, [*runs["ours"], *runs["peer"]])
    target_if_full = target if setting.full else None  # our start-up alone takes as long as a small input
    row = compare_runs(
        "packing",
        name,
        f"Modalities, {setting.workers} processes" if "packing" in name else "Modalities",
        ours=runs["ours"],
        peer=runs["peer"],
        target=target_if_full,
        note="same bytes; of Modalities the call alone, of ours the whole command",
    )
    return replace(row, cpu_ratios=())
