"""Caches of a training job, made ahead from its command line: `dsindex index` against Megatron's prepare_cache.py."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dsindex.formats.mmididx import IndexBuilder
from dsindex.index.job_tokenizer import RELEASES
from dsindex.store.reading import digest_file
from dsindex.store.storage import atomic_writer
from tests.benchmarks.builds import GIVE_MEGATRON
from tests.benchmarks.processes import RunError, alternate
from tests.benchmarks.rows import Row, absent, compare_runs

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.processes import Run
    from tests.benchmarks.setting import Setting

PEER = "prepare_cache.py"
SHARES = {"web": 0.7, "books": 0.2, "code": 0.1}
MEAN_TOKENS = 780
MODEL = "--num-layers 1 --hidden-size 64 --num-attention-heads 1 --max-position-embeddings 8192 --lr 1e-4"
BATCHES = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --prepare-cache-world-size 8"


def measure_caches(setting: Setting) -> list[Row]:
    """Make all caches of a blend for about two epochs, from one command line."""
    documents = setting.size(500_000, 5_000_000)
    tokens = documents * MEAN_TOKENS
    name = f"caches of a blend of {len(SHARES)}, {documents / 1e6:g} M documents, {tokens / 1e9:.2g} G tokens"
    if setting.megatron is None:
        return [absent("caches", name, PEER, GIVE_MEGATRON, target=5)]
    if not (setting.megatron / "tools" / PEER).is_file():
        return [absent("caches", name, PEER, f"{setting.megatron} has none; it came with 0.18", target=5)]
    folder = setting.fresh("datasets")
    blend = []
    for seed, (dataset, share) in enumerate(SHARES.items()):
        write_sparse_dataset(folder / dataset, max(100, int(documents * share)), seed=seed)
        blend += [str(share), str(folder / dataset)]
    steps = max(1, 2 * tokens // (4096 * 256))
    job = f"{MODEL} {BATCHES} --split 98,1,1 --train-iters {steps} --eval-interval {steps} --eval-iters 1"
    tokenizer = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(setting.tokenizer)]
    words = [*job.split(), *tokenizer, "--data-path", *blend, "--data-cache-path", str(setting.folder / "caches")]
    release = release_of(setting.megatron)
    contestants = {
        "ours": lambda _: _prepare(setting, words, release),
        "megatron": lambda _: _prepare(setting, words, None),
    }
    for contestant in contestants.values():
        contestant(0)  # compiles, or loads what was compiled
    runs = alternate(contestants, setting.rounds)
    setting.drop(folder, setting.folder / "caches")
    if len({run.digest for each in runs.values() for run in each}) > 1:
        msg = f"caches: dsindex and {PEER} of Megatron {release} wrote different files"
        raise RunError(msg)
    files = runs["ours"][0].values["files"]
    memory = {who: tuple(run.peak_bytes / (1 << 20) for run in each) for who, each in runs.items()}
    return [
        compare_runs(
            "caches", name, PEER, ours=runs["ours"], peer=runs["megatron"], target=5, note=f"same {files} files"
        ),
        Row(
            group="caches",
            name="peak memory of the same",
            against=PEER,
            unit="MiB",
            ours=memory["ours"],
            peer=memory["megatron"],
            ratios=tuple(their / mine for mine, their in zip(memory["ours"], memory["megatron"], strict=True)),
        ),
    ]


def _prepare(setting: Setting, words: list[str], release: str | None) -> Run:
    """Make the caches of a command line, by ourselves for a release or by Megatron, and digest names and contents."""
    folder = setting.fresh("caches")
    if release is None:
        run = setting.megatron_tool(PEER, *words)
    else:
        run = setting.dsindex("index", "--megatron-release", release, "--", "python", PEER, *words)
    # Our record of a cache lies beside it; Megatron knows none.
    written = sorted(path for path in folder.iterdir() if not path.name.endswith("-dsindex.json"))
    contents = " ".join(f"{path.name} {digest_file(str(path))}" for path in written)
    digest = hashlib.sha256(contents.encode()).hexdigest()
    return replace(run, digest=digest, values={"files": len(written)})


def release_of(megatron: Path) -> str:
    """Return the release of a checkout, as `--megatron-release` names it."""
    text = (megatron / "megatron" / "core" / "package_info.py").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(MAJOR|MINOR) = (\d+)$", text, re.MULTILINE))
    release = f"{found.get('MAJOR')}.{found.get('MINOR')}"
    return release if release in RELEASES else "main"


def write_sparse_dataset(prefix: Path, documents: int, *, seed: int) -> None:
    """Write a dataset of 2-byte tokens whose `.bin` is one hole: for an index, only lengths matter."""
    lengths = (1 + np.random.default_rng(seed).exponential(MEAN_TOKENS, documents)).astype(np.int64)
    builder = IndexBuilder(np.dtype("<u2"), folder=str(prefix.parent))
    try:
        builder.add_documents(lengths, np.ones(documents, np.int64))
        with atomic_writer(f"{prefix}.idx") as file:
            builder.write(file)
    finally:
        builder.close()
    with open(f"{prefix}.bin", "wb") as file:
        file.truncate(2 * int(lengths.sum()))
