"""Instruction data against `apply_chat_template` in `datasets.map`, whose tokens and masks are ours."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import dsindex.instruction
from dsindex.datasets import IndexedDataset
from tests.benchmarks.builds import MEGABYTE, SLOW_ROUNDS
from tests.benchmarks.processes import Run, alternate, measure
from tests.benchmarks.rows import Row, absent, compare_runs
from tests.benchmarks.setting import check_same, has_module

if TYPE_CHECKING:
    from tests.benchmarks.setting import Setting

TEMPLATE = Path(dsindex.instruction.__file__).parent / "templates" / "qwen2.5.jinja"
PEER = Path(__file__).with_name("instruct_peer.py")
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
    return rows


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
    (output / "chat.yaml").write_text(f"chat_template_file: {TEMPLATE}\n", encoding="utf-8")
    options = ["--input", str(source), "--tokenizer-model", str(setting.tokenizer), "--workers", str(setting.workers)]
    run = setting.dsindex("instruct", str(output / "chat.yaml"), *options, "--output-prefix", str(output / "out"))
    return replace(run, digest=_digest(output))


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
