"""How fast datasets are read, side by side with megatron-core in one process: rounds alternate, ratios are per round.

    python -m tests.benchmarks.reading [--full]

Needs megatron-core and torch (extra `peers`). Each `measure_*` makes its own input in a folder that it is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets import GPTDataset, IndexedDataset
from dsindex.formats.mmididx import IndexBuilder
from dsindex.store.storage import atomic_writer

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
SEQUENCE_LENGTH = 2048


def measure_indexed(folder: Path, *, rounds: int = ROUNDS, num_sequences: int = 1_000_000) -> dict[str, Any]:
    """Compare sequences per second: at random, in order, parts, slices of 100, and `take` with a loop over `ds[i]`."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronDataset

    prefix = write_random_dataset(folder / "short", num_sequences, mean_tokens=100)
    ours, theirs = IndexedDataset(prefix), MegatronDataset(prefix)
    rng = np.random.default_rng(1)
    array = rng.integers(0, num_sequences, min(num_sequences, 200_000))
    ids, count = array.tolist(), len(array)

    def every(dataset: Any, numbers: Any) -> None:
        for index in numbers:
            dataset[index]

    def parts(dataset: Any) -> None:
        for index in ids:
            dataset.get(index, 0, 1)

    def slices(dataset: Any) -> None:
        for begin in range(0, count, 100):
            dataset[begin : begin + 100]

    ours.take(array[:10])  # compiles
    return {
        "ds[i] at random": compare(lambda: every(ours, ids), lambda: every(theirs, ids), count, rounds, target=2),
        "ds[i] in order": compare(
            lambda: every(ours, range(count)), lambda: every(theirs, range(count)), count, rounds, target=2
        ),
        "ds.get(i, offset, length)": compare(lambda: parts(ours), lambda: parts(theirs), count, rounds, target=2),
        "ds[a:a + 100]": compare(lambda: slices(ours), lambda: slices(theirs), count, rounds, target=2),
        "ds.take(ids)": compare(lambda: ours.take(array), lambda: every(theirs, ids), count, rounds, target=2),
    }


def measure_gpt(
    folder: Path, *, rounds: int = ROUNDS, num_sequences: int = 200_000, mean_tokens: int = 800
) -> dict[str, Any]:
    """Compare samples per second: tokens alone, whole samples, and 32 at a time."""
    ours, theirs = open_gpt(folder, num_sequences=num_sequences, mean_tokens=mean_tokens)
    ids = np.random.default_rng(1).permutation(len(ours))[:2_000].tolist()
    for index in ids[:100]:
        expected, sample = theirs[index], ours[index]
        if not all(np.array_equal(sample[name], values.numpy()) for name, values in expected.items()):
            msg = f"sample {index} differs from megatron-core's: a figure would mean nothing"
            raise RuntimeError(msg)

    def whole(dataset: Any) -> None:
        for index in ids:
            dataset[index]

    def each(read: Callable[[int], object]) -> None:
        for index in ids:
            read(index)

    def batches() -> None:
        for begin in range(0, len(ids), 32):
            ours.batch(ids[begin : begin + 32])

    peer_tokens = theirs._query_document_sample_shuffle_indices
    count = len(ids)
    ours.batch(ids[:2])
    return {
        "tokens of a sample": compare(lambda: each(ours.tokens), lambda: each(peer_tokens), count, rounds, target=1.5),
        "tokens of 32 samples": compare(batches, lambda: each(peer_tokens), count, rounds, target=1.5),
        "whole sample": compare(lambda: whole(ours), lambda: whole(theirs), count, rounds, target=5),
    }


def measure_loader(
    folder: Path, *, rounds: int = ROUNDS, num_sequences: int = 200_000, workers: int = 2
) -> dict[str, Any]:
    """Compare samples per second through a torch DataLoader with worker processes, their start included."""
    from torch.utils.data import DataLoader, Subset

    datasets = open_gpt(folder, num_sequences=num_sequences, mean_tokens=800)
    count = min(8_000, len(datasets[0]))

    def load(dataset: Any) -> None:
        for _ in DataLoader(Subset(dataset, range(count)), batch_size=16, num_workers=workers):
            pass

    ours, theirs = datasets
    return {
        f"DataLoader, {workers} workers": compare(
            lambda: load(ours), lambda: load(theirs), count, rounds, clock=time.perf_counter
        )
    }


def compare(
    ours: Callable[[], object],
    peer: Callable[[], object],
    count: int,
    rounds: int,
    *,
    target: float | None = None,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, Any]:
    """Run both in turn, once unmeasured, and give their rates and the ratios of each round.

    The clock counts this process's CPU time, which others on the machine do not blur; worker processes need another.
    """
    rates: dict[str, list[float]] = {"ours": [], "peer": []}
    for number in range(rounds + 1):
        for name, run in (("ours", ours), ("peer", peer)):
            started = clock()
            run()
            seconds = clock() - started
            if number:
                rates[name].append(count / seconds)
    ratios = [mine / other for mine, other in zip(rates["ours"], rates["peer"], strict=True)]
    return {
        "unit": "items/s",
        "ours": round(statistics.median(rates["ours"])),
        "peer": round(statistics.median(rates["peer"])),
        "ratio_min": round(min(ratios), 2),
        "ratio_median": round(statistics.median(ratios), 2),
        "target": target,
    }


def write_random_dataset(prefix: Path, num_sequences: int, *, mean_tokens: int, seed: int = 0) -> str:
    """Write one-sequence documents of log-normal length, each token drawn at random."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(rng.lognormal(np.log(mean_tokens) - 0.5, 1.0, num_sequences), 1).astype(np.int32)
    builder = IndexBuilder(np.dtype("<u2"), folder=str(prefix.parent))
    with atomic_writer(f"{prefix}.bin") as file:
        for begin in range(0, num_sequences, 100_000):
            chunk = lengths[begin : begin + 100_000]
            file.write(rng.integers(0, 50_000, chunk.sum(), dtype=np.uint16).data)
            builder.add_documents(chunk, np.ones(len(chunk), np.int64))
    with atomic_writer(f"{prefix}.idx") as file:
        builder.write(file)
    builder.close()
    return str(prefix)


def open_gpt(folder: Path, *, num_sequences: int, mean_tokens: int) -> tuple[GPTDataset, Any]:
    """Return ours and megatron-core's dataset over one cache, which megatron-core builds."""
    from megatron.core.datasets.gpt_dataset import GPTDataset as MegatronGPTDataset
    from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset as MegatronDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        vocab_size = None
        eod = 0
        unique_identifiers: dict[str, str] = {}  # noqa: RUF012 - as Megatron's tokenizers have it

    folder = Path(tempfile.mkdtemp(dir=folder))  # the cache's name does not know what is in the dataset
    prefix = write_random_dataset(folder / "gpt", num_sequences, mean_tokens=mean_tokens)
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=SEQUENCE_LENGTH,
        split="1",
        path_to_cache=str(folder / "cache"),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sequences = np.arange(num_sequences, dtype=np.int32)
    arguments = (MegatronDataset(prefix), prefix, sequences, None, Split.train, config)
    built = MegatronGPTDataset(*arguments)
    theirs = MegatronGPTDataset(*arguments)  # from the cache, mapped, as in a job
    description = folder / "cache" / f"{built.unique_description_hash}-GPTDataset-train-description.txt"
    return GPTDataset.open_cache(description), theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="larger datasets and more rounds")
    scale, rounds = (5, 9) if parser.parse_args().full else (1, ROUNDS)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        results = {
            **measure_indexed(Path(name), rounds=rounds, num_sequences=scale * 1_000_000),
            **measure_gpt(Path(name), rounds=rounds, num_sequences=scale * 100_000),
            **measure_loader(Path(name), rounds=rounds, num_sequences=scale * 20_000),
        }
    sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
