"""What Ray costs once its workers are warm, as a program: the same shards by Ray tasks and by threads, and empty tasks.

    python -m tests.benchmarks.warm INPUT --tokenizer FOLDER --folder EMPTY --workers 2 --rounds 3

Both executors make all shards once before anything is timed; then in turn. Their files are compared. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from dsindex.dtypes import dtype_for_vocabulary
from dsindex.engine.ledger import stored_files
from dsindex.engine.shards.tokenize import ShardSettings, tokenize_shard
from dsindex.engine.source import open_source
from dsindex.execution.calls import Call
from dsindex.execution.dispatch import run_calls
from dsindex.execution.local import ThreadExecutor
from dsindex.kernels.loader import load_kernels
from dsindex.options.build import BuildConfig
from dsindex.store.ownership import mark_folder
from tests.benchmarks.processes import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsindex.engine.source import TextSource
    from dsindex.execution.calls import Executor

EMPTY_CALLS = 400
"""For each slot."""


def do_nothing(number: int) -> int:
    """Be the task that is all overhead."""
    return number


def empty_call_seconds(executor: Executor) -> float:
    """Time what a slot loses with each task: from the end of one to the begin of the next."""
    count = EMPTY_CALLS * executor.slots
    calls = (
        (number, Call(name="empty", place="", function=do_nothing, arguments=(number,))) for number in range(count)
    )
    began = time.perf_counter()
    run_calls(executor, calls, on_result=lambda *_: None)
    return (time.perf_counter() - began) / EMPTY_CALLS


def make_shards(executor: Executor, source: TextSource, folder: str) -> tuple[float, list[str]]:
    """Make every shard of the input; give the seconds it took, and the digests of all files in plan order."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    mark_folder(folder)
    settings = ShardSettings(
        tokenizer=source.tokenizer,
        engine=source.engine,
        keys=source.config.json_keys,
        dtype=dtype_for_vocabulary(source.tokenizer.vocabulary_size).str,
        eod_id=source.eod_id,
        layout="megatron",
        quarantine=False,
        max_record_bytes=None,
        provenance=True,
        work_dir=folder,
    )
    shared = executor.share(settings)
    digests: dict[int, list[str]] = {}

    def calls() -> Iterator[tuple[int, Call]]:
        for task in source.tasks():
            call = Call(name="shard", place=task.path, function=tokenize_shard, arguments=(task, shared))
            yield task.shard, call

    def on_result(number: int, result: Any) -> None:
        digests[number] = [file.digest for file in stored_files(result)]

    began = time.perf_counter()
    run_calls(executor, calls(), on_result=on_result)
    seconds = time.perf_counter() - began
    return seconds, [digest for number in sorted(digests) for digest in digests[number]]


def compare(source: TextSource, folder: str, *, workers: int, rounds: int) -> dict[str, Any]:
    """Time both executors in turn.

    Raises:
        RunError: If they wrote different bytes.
    """
    from dsindex.execution.ray_executor import RayExecutor

    load_kernels()
    executors: dict[str, Executor] = {
        "ray": RayExecutor(address=None, workers=workers),
        "local": ThreadExecutor(workers),
    }
    seconds: dict[str, list[float]] = {name: [] for name in executors}
    empty: list[float] = []
    written: set[str] = set()
    try:
        for number in range(rounds + 1):
            for name, executor in executors.items():
                taken, digests = make_shards(executor, source, os.path.join(folder, name))
                written.add(" ".join(digests))
                if number:
                    seconds[name].append(taken)
            empty.append(empty_call_seconds(executors["ray"]))
    finally:
        for executor in executors.values():
            executor.close()
    if len(written) > 1:
        msg = "shards by Ray and by threads differ"
        raise RunError(msg)
    return {**seconds, "empty": empty[1:], "shards": len(source.tasks())}


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = BuildConfig(
        input=(options.input,),
        tokenizer_model=options.tokenizer,
        append_eod=True,
        output_prefix=os.path.join(options.folder, "out"),
    )
    source = open_source(config, append_eod=True)
    found = compare(source, options.folder, workers=options.workers, rounds=options.rounds)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
