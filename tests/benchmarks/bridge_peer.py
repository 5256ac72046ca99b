"""Pack tokenized chats as Megatron-Bridge does, with its own functions; for an environment with numpy, tqdm, pyarrow.

python bridge_peer.py CHECKOUT CHATS.parquet PACKED.parquet PACK_SIZE ALGORITHM

CHATS.parquet has `input_ids` and `labels`, which are −100 where nothing is learnt. Prints the seconds of packing and
writing, without those of reading, and what was packed.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGES = ("megatron", "megatron.core", "megatron.bridge", "megatron.bridge.data", "megatron.bridge.data.packing")


def main() -> None:
    """Pack what the arguments name."""
    import pyarrow.parquet as pq

    checkout, source, packed, size, algorithm = sys.argv[1:]
    _without_cuda(Path(checkout) / "src")
    algorithms: Any = importlib.import_module("megatron.bridge.data.packing.algorithms")
    parquet: Any = importlib.import_module("megatron.bridge.data.packing.parquet")
    table = pq.read_table(source, columns=["input_ids", "labels"])
    columns = [table[name].combine_chunks() for name in ("input_ids", "labels")]
    ids, labels = (column.to_numpy(zero_copy_only=False) for column in columns)
    chats = [{"input_ids": own, "loss_mask": learnt != -100} for own, learnt in zip(ids, labels, strict=True)]
    began = time.perf_counter()
    sequences, histogram = algorithms.create_hist(chats, int(size))
    assignments, facts = algorithms.create_packing_strategy(histogram, int(size), algorithm)
    rows = algorithms.fill_packing_strategy(assignments, sequences, int(size), 0)
    parquet.write_packed_parquet(rows, packed)
    found = {"seconds": time.perf_counter() - began, "packs": len(rows), "fill": facts["packing_efficiency"] / 100}
    sys.stdout.write(json.dumps(found) + "\n")


def _without_cuda(sources: Path) -> None:
    """Let modules be imported without the packages above them, and without what only training needs."""
    for name in (*PACKAGES, "megatron.bridge.utils"):
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [str(sources.joinpath(*name.split(".")))]
    no_client = type("MultiStorageClientFeature", (), {"is_enabled": staticmethod(lambda: False)})
    stubs: dict[str, dict[str, Any]] = {
        "megatron.core.msc_utils": {"MultiStorageClientFeature": no_client},
        "megatron.bridge.data.packing.gpt_sft": {"GPTSFTPackedDataset": object},
    }
    for name, contents in stubs.items():
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__dict__.update(contents)


if __name__ == "__main__":
    main()
