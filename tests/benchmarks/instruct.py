"""Instruction data against `apply_chat_template` in `datasets.map`, whose tokens and masks are ours.

And packing against Megatron-Bridge's functions, which pack the same conversations otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import dsindex.instruction
from dsindex.datasets import IndexedDataset
from dsindex.engine.export_folder import read_export_manifest
from tests.benchmarks.builds import MEGABYTE, SLOW_ROUNDS
from tests.benchmarks.processes import Run, RunError, alternate, measure
from tests.benchmarks.rows import Row, absent, compare_runs
from tests.benchmarks.setting import check_same, has_module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.benchmarks.setting import Setting

TEMPLATE = Path(dsindex.instruction.__file__).parent / "templates" / "qwen2.5.jinja"
PEER = Path(__file__).with_name("instruct_peer.py")
ALGORITHMS = ("first_fit_shuffle", "first_fit_decreasing")
"""Megatron-Bridge's ways to pack, its default first."""
PACK_SIZE = 4096
CHATS_BYTES, LARGE_BYTES = 50 * MEGABYTE, 1000 * MEGABYTE


def measure_instruct(setting: Setting) -> list[Row]:
    """Compare whole jobs of two sizes with transformers, and measure one record."""
    rows = [_measure_one(setting)]
    for short, full, target in ((CHATS_BYTES // 10, CHATS_BYTES, 3), (CHATS_BYTES, LARGE_BYTES, 10)):
        size = setting.size(short, full)
        name = f"chats, {size / 1e6:g} MB, template of Qwen 2.5"
        if has_module(setting.transformers_python, "transformers") and has_module(
            setting.transformers_python, "datasets"
        ):
            rows.append(_compare(setting, name, size, target))
        else:
            remedy = "name an environment with transformers, jinja2 and datasets with --transformers-python"
            rows.append(absent("instruct", name, "apply_chat_template", remedy, target=target))
    return [*rows, *_measure_packs(setting)]


def _measure_one(setting: Setting) -> Row:
    source = write_chats(setting.folder / "chat.jsonl", 1, setting)
    _instruct(setting, source)
    runs = [_instruct(setting, source) for _ in range(setting.rounds)]
    seconds = tuple(run.seconds for run in runs)
    return Row(group="instruct", name="one chat, whole command", ours=seconds, target=1.5, judged="ours at most")


def _compare(setting: Setting, name: str, size_bytes: int, target: float) -> Row:
    source = write_chats(setting.folder / "chats.jsonl", size_bytes, setting)
    runs = alternate(
        {
            "ours": lambda _: _instruct(setting, source),
            "peer": lambda number: _apply_template(setting, source) if number < SLOW_ROUNDS else None,
        },
        setting.rounds,
    )
    check_same(name, [*runs["ours"], *runs["peer"]])
    setting.drop(source, setting.folder / "peer", setting.folder / "ours")
    return compare_runs(
        "instruct",
        name,
        f"apply_chat_template, map with {setting.workers} processes",
        ours=runs["ours"],
        peer=runs["peer"],
        target=target if setting.full else None,  # our start-up alone takes as long as a small input
        note="same tokens and masks",
    )


def _instruct(setting: Setting, source: Path) -> Run:
    output = setting.fresh("ours")
    run = setting.dsindex("instruct", *_options(setting, source, output))
    return replace(run, digest=_digest(output))


def _options(setting: Setting, source: Path, output: Path, more: str = "") -> list[str]:
    config = output / "chat.yaml"
    config.write_text(f"chat_template_file: {TEMPLATE}\n{more}", encoding="utf-8")
    options = ["--input", str(source), "--tokenizer-model", str(setting.tokenizer), "--workers", str(setting.workers)]
    return [str(config), *options, "--output-prefix", str(output / "out")]


def _measure_packs(setting: Setting) -> list[Row]:
    """Compare packs of finished chats: of ours the whole command, of the peer's algorithms the calls alone."""
    size = setting.size(CHATS_BYTES // 10, CHATS_BYTES)
    name = f"packs of {PACK_SIZE:,}, {size / 1e6:g} MB of chats"
    if setting.bridge is None or not has_module(setting.transformers_python, "datasets"):
        remedy = "name a checkout with --bridge, and an environment with datasets with --transformers-python"
        return [absent("instruct", name, "Megatron-Bridge", remedy)]
    source = write_chats(setting.folder / "chats.jsonl", size, setting)
    output = setting.fresh("ours")
    command = [
        "instruct",
        *_options(setting, source, output, "too_long: truncate\n"),
        "--seq-length",
        str(PACK_SIZE),
        "--export",
    ]
    setting.dsindex(*command, "hf")
    # The datasets are finished, so that an export alone is made.
    runs = alternate(
        {
            "ours": lambda _: _pack(setting, command, output),
            **{name: functools.partial(_pack_as_bridge, setting, output, name) for name in ALGORITHMS},
        },
        setting.rounds,
    )
    setting.drop(source, setting.folder / "ours")
    return [
        replace(
            compare_runs("instruct", name, f"Megatron-Bridge, {algorithm}", ours=runs["ours"], peer=runs[algorithm]),
            cpu_ratios=(),
            note=f"fill {_fill(runs['ours'])} and {_fill(runs[algorithm])}; of the peer the calls alone",
        )
        for algorithm in ALGORITHMS
    ]


def _pack(setting: Setting, command: Sequence[str], output: Path) -> Run:
    folder = output / f"out_bridge_{PACK_SIZE}"
    setting.drop(folder)
    run = setting.dsindex(*command, "bridge")
    made = read_export_manifest(str(folder))
    if made is None:
        msg = f"{folder}: no export was made"
        raise RunError(msg)
    [split] = made.content.splits.values()
    return replace(run, values={"fill": (split.tokens - split.sequences) / (split.rows * PACK_SIZE)})


def _pack_as_bridge(setting: Setting, output: Path, algorithm: str, number: int) -> Run | None:
    if number >= SLOW_ROUNDS:
        return None
    [chats] = (output / "out_hf").glob("*.parquet")
    words = [setting.bridge, chats, setting.folder / "packed.parquet", PACK_SIZE, algorithm]
    program = Path(__file__).with_name("bridge_peer.py")
    run = measure([setting.transformers_python, str(program), *map(str, words)], cwd=setting.folder)
    found = json.loads(run.output.splitlines()[-1])
    return replace(run, seconds=found["seconds"], values=found)


def _fill(runs: Sequence[Run]) -> str:
    return f"{100 * runs[-1].values['fill']:.2f} %"


def _digest(output: Path) -> str:
    digests = []
    for name, dtype in (("text_document", "<u4"), ("loss_mask", "u1")):
        dataset = IndexedDataset(output / f"out_{name}")
        hashed = hashlib.sha256()
        for begin in range(0, len(dataset), 1000):
            tokens, _ = dataset.take(range(begin, min(begin + 1000, len(dataset))))
            hashed.update(tokens.astype(dtype))
        digests.append(hashed.hexdigest())
    return " ".join(digests)


def _apply_template(setting: Setting, source: Path) -> Run:
    output = setting.fresh("peer")
    env = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(output / "home")}
    tokenizer = setting.tokenizer / "tokenizer.json"
    words = ["make", source, output, tokenizer, TEMPLATE, setting.workers]
    command = [setting.transformers_python, str(PEER)]
    run = measure([*command, *map(str, words)], cwd=setting.folder, env=env)
    found = measure([*command, "digest", str(output)], cwd=setting.folder, env=env)
    return replace(run, digest=found.output.strip().splitlines()[-1])


def write_chats(path: Path, size_bytes: int, setting: Setting) -> Path:
    """Write chats of two to six turns, of which replies are the longer ones, made from the texts of an input."""
    texts = setting.text("of-chats", int(1.6 * max(size_bytes, MEGABYTE)), seed=3)
    rng = random.Random(3)
    written, turns, wanted = 0, [], rng.choice((2, 4, 4, 6))
    with texts.open(encoding="utf-8") as lines, path.open("w", encoding="utf-8") as file:
        for number, line in enumerate(lines):
            role = ("user", "assistant")[len(turns) % 2]
            turns.append({"role": role, "content": json.loads(line)["text"][: 400 if role == "user" else None]})
            if len(turns) == wanted:
                # Escapes in every second chat, as files of many languages have them.
                written += file.write(json.dumps({"messages": turns}, ensure_ascii=number % 2 == 0) + "\n")
                turns, wanted = [], rng.choice((2, 4, 4, 6))
                if written >= size_bytes:
                    break
    setting.drop(texts)
    return path
