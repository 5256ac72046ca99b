"""How fast datasets and samples are read beside megatron-core's classes, in one process: prints JSON.

    python -m tests.benchmarks.reading BUILT_PREFIX DESCRIPTION

BUILT_PREFIX is a dataset, DESCRIPTION the description file of its cache. Needs megatron-core and torch.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets import GPTDataset, IndexedDataset

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5


def compare(ours: Callable[[], object], other: Callable[[], object]) -> list[tuple[float, float]]:
    """Return the CPU seconds of both in each round, after one that is not counted."""

    def measure(run: Callable[[], object]) -> float:
        began = time.process_time()
        run()
        return time.process_time() - began

    return [(measure(ours), measure(other)) for _ in range(ROUNDS + 1)][1:]


def open_megatron(prefix: str, description: str) -> tuple[Any, Any]:
    """Open the dataset and its train split, from the cache, with megatron-core."""
    from megatron.core.datasets.gpt_dataset import GPTDataset as MegatronGPTDataset
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronDataset
    from megatron.core.datasets.utils import Split

    with open(description, encoding="utf-8") as file:
        settings = json.load(file)
    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    config = GPTDatasetConfig(
        **{name: settings[name] for name in ("random_seed", "sequence_length", "split")},
        path_to_cache=description.rpartition("/")[0],
        tokenizer=SimpleNamespace(vocab_size=None, eod=0, unique_identifiers=settings["tokenizer"]),
        **dict.fromkeys(masks, False),
    )
    dataset = MegatronDataset(prefix)
    ids = np.arange(len(dataset), dtype=np.int32)
    return dataset, MegatronGPTDataset(dataset, prefix, ids, settings["num_samples"], Split.train, config)


def main() -> None:
    """Compare single documents, and whole samples with labels and masks."""
    warnings.simplefilter("ignore")
    prefix, description = sys.argv[1:]
    dataset, train = IndexedDataset(prefix), GPTDataset.open_cache(description)
    other_dataset, other_train = open_megatron(prefix, description)
    rng = np.random.default_rng(1)
    documents = rng.integers(0, len(dataset), 200_000).tolist()
    samples = rng.permutation(len(train))[:2000].tolist()
    for number in samples[:50]:
        mine, other = train[number], other_train[number]
        if not all(np.array_equal(mine[name], values.numpy()) for name, values in other.items()):
            sys.exit(f"sample {number} differs from megatron-core's")

    def read(items: Any, numbers: list[int]) -> None:
        for number in numbers:
            items[number]

    seconds_by_work = {
        "ds[i] at random": compare(lambda: read(dataset, documents), lambda: read(other_dataset, documents)),
        "whole samples": compare(lambda: read(train, samples), lambda: read(other_train, samples)),
    }
    sys.stdout.write("\n" + json.dumps(seconds_by_work) + "\n")


if __name__ == "__main__":
    main()
