"""A loader of training samples with worker processes, as a program that says how fast it was.

    python -m tests.benchmarks.loader CACHE --batches 400 [--rate 200000] [--torch]

Workers are forked and take turns at the batches, in order, each with two batches ready at most, as torch's DataLoader
does it; with --torch it is that. Whoever trains takes the batches in order, either as fast as they come or at a rate.
The first batches do not count: processes start, indices are fetched, and nothing can be read ahead before a worker's
third batch tells its step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash

from dsindex.datasets.opening import open_dataset
from dsindex.store.requests import request_counts
from tests.benchmarks.processes import cpu_time_of, descendants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.queues import Queue

READY = 2
"""Batches of a worker that wait for whoever trains, as in torch."""
WARM_UP = 6
"""Batches of each worker that do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a worker says of a batch."""

    digest: int
    worker: int
    gets: int
    """Requests of the worker so far."""
    received_bytes: int


def describe(samples: Sequence[dict[str, Any]]) -> Batch:
    """Look at every token of a batch, and tell what this process has asked for by now."""
    digest = xxhash.xxh3_64()
    for sample in samples:
        digest.update(sample["tokens"].data)
    counts = request_counts()
    return Batch(digest=digest.intdigest(), worker=os.getpid(), gets=counts.gets, received_bytes=counts.received_bytes)


def load_plainly(dataset: Any, *, batches: int, batch_size: int, workers: int) -> Iterator[Batch]:
    """Yield the batches of forked workers, in order."""
    context = multiprocessing.get_context("fork")
    queues: list[Queue[Batch]] = [context.Queue(READY) for _ in range(workers)]
    is_over = context.Event()

    def work(worker: int) -> None:
        for number in range(worker, batches, workers):
            queues[worker].put(describe(dataset.__getitems__(range(number * batch_size, (number + 1) * batch_size))))
        is_over.wait()  # its CPU time is looked at before it ends

    processes = [context.Process(target=work, args=(worker,)) for worker in range(workers)]
    for process in processes:
        process.start()
    for number in range(batches):
        yield queues[number % workers].get()
    is_over.set()
    for process in processes:
        process.join()


def load_by_torch(dataset: Any, *, batches: int, batch_size: int, workers: int) -> Iterator[Batch]:
    """Yield the batches of torch's DataLoader, tensors and all."""
    from torch.utils.data import DataLoader, Subset, default_collate

    some = Subset(dataset, range(batches * batch_size))
    loader = DataLoader(
        some,
        batch_size=batch_size,
        num_workers=workers,
        multiprocessing_context="fork",
        prefetch_factor=READY,
        collate_fn=lambda samples: (describe(samples), default_collate(samples)),
    )
    for told, _ in loader:
        yield told


def main() -> None:
    """Load, and print what was measured as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", help="the folder of an index cache")
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=float, help="tokens a second of a job; without, as fast as possible")
    parser.add_argument("--torch", action="store_true", help="by torch's DataLoader")
    options = parser.parse_args()
    dataset = open_dataset(options.cache)
    batches = min(options.batches, len(dataset) // options.batch_size)
    if batches <= WARM_UP * options.workers:
        parser.error(f"expected more than {WARM_UP} batches for each worker, the cache has {batches} for all")
    tokens = options.batch_size * len(dataset[0]["tokens"])
    load = load_by_torch if options.torch else load_plainly
    loaded = load(dataset, batches=batches, batch_size=options.batch_size, workers=options.workers)
    warm = list(itertools.islice(loaded, WARM_UP * options.workers))
    before, last = ({batch.worker: batch for batch in warm} for _ in range(2))
    digests = [batch.digest for batch in warm]
    cpu_began, began = _cpu_seconds(), time.perf_counter()
    waited = 0.0
    for number in range(1, batches - len(warm) + 1):
        asked = time.perf_counter()
        batch = next(loaded)
        waited += time.perf_counter() - asked
        digests.append(batch.digest)
        last[batch.worker] = batch
        if options.rate:
            time.sleep(max(0.0, began + number * tokens / options.rate - time.perf_counter()))
    seconds, cpu_seconds = time.perf_counter() - began, _cpu_seconds() - cpu_began
    samples = (batches - len(warm)) * options.batch_size
    million_tokens = (batches - len(warm)) * tokens / 1e6
    gets, received_bytes = (
        sum(getattr(last[worker], name) - getattr(before[worker], name) for worker in last)
        for name in ("gets", "received_bytes")
    )
    found = {
        "tokens_per_second": 1e6 * million_tokens / seconds,
        "cpu_seconds_per_million_tokens": cpu_seconds / million_tokens,
        "waited_share": waited / seconds,
        "gets_per_sample": gets / samples,
        "received_bytes_per_sample": received_bytes / samples,
        "digest": xxhash.xxh3_128_hexdigest(repr(digests).encode()),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    for _ in loaded:
        pass


def _cpu_seconds() -> float:
    """Return what this process and all below it have computed so far."""
    return sum(cpu_time_of(pid)[1] for pid in {os.getpid(), *descendants(os.getpid())})


if __name__ == "__main__":
    main()
