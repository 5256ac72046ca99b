"""How fast indices are built, side by side with megatron-core in one process: rounds alternate, calls are timed.

    python -m tests.benchmarks.indices [--full]

Needs megatron-core and torch (extra `peers`). Peak memory is that of a process of its own, above what it held before.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.index.arrays import blend_by_weights
from dsindex.index.blend import samples_wanted
from dsindex.index.cache import count_tokens
from dsindex.index.epochs import EpochCounts, SampleRule, count_epochs, normalise
from dsindex.index.task import build_arrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROUNDS = 5
SEED = 1234
MEAN_TOKENS = 277
RULE = SampleRule(sequence_length=2048)
THREADS = len(os.sched_getaffinity(0))


def measure_indices(*, rounds: int = ROUNDS, documents: int = 10_000_000, epochs: int = 3) -> dict[str, Any]:
    """Compare document + sample + shuffle index; megatron-core's must be equal."""
    lengths = random_lengths(documents)
    plan = plan_for(lengths, epochs)
    build_with_dsindex(lengths[:1000], plan_for(lengths[:1000], epochs))  # compiles, or loads what was compiled
    for mine, their in zip(build_with_dsindex(lengths, plan), build_with_megatron(lengths, plan), strict=True):
        if mine.dtype != their.dtype or not np.array_equal(mine, their):
            msg = "the arrays differ from megatron-core's"
            raise ValueError(msg)
    seconds = alternate(
        lambda: build_with_dsindex(lengths, plan), lambda: build_with_megatron(lengths, plan), rounds=rounds
    )
    return {**seconds, "documents": documents, "epochs": plan.num_epochs, "samples": plan.num_samples, "target": 4}


def measure_memory(*, documents: int = 10_000_000, epochs: int = 3) -> dict[str, Any]:
    """Compare peak memory of the same, each in a fresh process."""
    ours, theirs = (
        _in_process(build, documents, epochs)["bytes"] for build in (build_with_dsindex, build_with_megatron)
    )
    return {"dsindex_bytes": ours, "megatron_bytes": theirs, "ratio": round(ours / theirs, 2), "target": "at most 1"}


def measure_blend(*, rounds: int = ROUNDS, datasets: int = 10, size: int = 10_000_000) -> dict[str, Any]:
    """Compare the order of a weighted blend with megatron-core's C++."""
    from megatron.core.datasets import helpers

    weights = normalise(normalise(np.random.default_rng(1).random(datasets).tolist()))
    size = sum(samples_wanted(weights, size))

    def theirs() -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        index, samples = np.zeros(size, np.int16), np.zeros(size, np.int64)
        helpers.build_blending_indices(index, samples, weights, datasets, size, False)
        return index, samples

    for mine, their in zip(blend_by_weights(weights, size), theirs(), strict=True):
        if not np.array_equal(mine, their):
            msg = "the blend differs from megatron-core's"
            raise ValueError(msg)
    seconds = alternate(lambda: blend_by_weights(weights, size), theirs, rounds=rounds)
    return {**seconds, "datasets": datasets, "samples": size, "target": 1}


def measure_large(*, documents: int = 200_000_000, epochs: int = 2) -> dict[str, Any]:
    """Build a large index once, in a fresh process."""
    return {**_in_process(build_with_dsindex, documents, epochs), "documents": documents, "epochs": epochs}


def measure_compilation() -> dict[str, Any]:
    """Tell how long the first call takes with an empty compile cache, and with a full one."""
    import subprocess
    import tempfile

    code = (
        "import time, numpy as np; from tests.benchmarks.indices import *; lengths = random_lengths(1000);"
        "began = time.perf_counter(); build_with_dsindex(lengths, plan_for(lengths, 2)); blend_by_weights([.5, .5], 9);"
        "print(time.perf_counter() - began)"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        cold, warm = (
            float(subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)) for _ in range(2)
        )
    return {"cold_seconds": round(cold, 2), "warm_seconds": round(warm, 2)}


def random_lengths(documents: int) -> NDArray[np.int32]:
    """Draw lengths that vary as texts do: many short, few long."""
    lengths = np.random.default_rng(SEED).exponential(MEAN_TOKENS, documents)
    return (1 + lengths).astype(np.int32)


def plan_for(lengths: NDArray[np.int32], epochs: int) -> EpochCounts:
    tokens = count_tokens(lengths)
    return count_epochs(tokens, (epochs * tokens - 1) // RULE.sequence_length, rule=RULE, place="benchmark")


def build_with_dsindex(lengths: NDArray[np.int32], plan: EpochCounts) -> tuple[NDArray[Any], ...]:
    return build_arrays(lengths, plan, begin=0, rule=RULE, seed=SEED, threads=THREADS)


def build_with_megatron(lengths: NDArray[np.int32], plan: EpochCounts) -> tuple[NDArray[Any], ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import gpt_dataset, helpers

    rng = np.random.RandomState(SEED)
    ids = np.arange(len(lengths), dtype=np.int32)
    documents = gpt_dataset._build_document_index(ids, plan.num_epochs, rng, plan.separate_final_epoch)
    samples = helpers.build_sample_idx(
        lengths, documents, RULE.sequence_length, plan.num_epochs, plan.tokens_per_epoch, True, True
    )
    order = gpt_dataset._build_shuffle_index(plan.shuffled_together, plan.num_samples, rng)
    return documents, samples, order


def alternate(ours: Callable[[], Any], theirs: Callable[[], Any], *, rounds: int) -> dict[str, Any]:
    """Time both in turn and give the medians, and the median of the rounds' ratios."""
    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds)]
    return {
        "dsindex_seconds": round(statistics.median(mine for mine, _ in pairs), 3),
        "megatron_seconds": round(statistics.median(their for _, their in pairs), 3),
        "ratio": round(statistics.median(their / mine for mine, their in pairs), 2),
    }


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def _in_process(build: Callable[..., Any], documents: int, epochs: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure_peak, args=(theirs, build, documents, epochs))
    process.start()
    theirs.close()
    result: dict[str, Any] = ours.recv()
    process.join()
    return result


def _measure_peak(pipe: Any, build: Callable[..., Any], documents: int, epochs: int) -> None:
    few = random_lengths(1000)
    build(few, plan_for(few, epochs))  # imports and compiles
    lengths = random_lengths(documents)
    plan = plan_for(lengths, epochs)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # forget the peak so far
    before = _status("VmRSS")
    seconds = _seconds(lambda: build(lengths, plan))
    pipe.send({"seconds": round(seconds, 2), "bytes": _status("VmHWM") - before, "peak_bytes": _status("VmHWM")})


def _status(field: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{field}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also 200 M documents x 2 epochs: 10 GB of memory")
    arguments = parser.parse_args()
    measures = [measure_compilation, measure_indices, measure_memory, measure_blend]
    for measure in measures + ([measure_large] if arguments.full else []):
        sys.stdout.write(json.dumps({measure.__name__: measure()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
