"""What the driver itself costs, as a program: plan very much, or drive a build whose tasks are only imagined.

    python -m tests.benchmarks.driver plan PATTERN
    python -m tests.benchmarks.driver build PATTERN --shards N --slots N --tokenizer FOLDER --output-prefix P

`build` runs the real driver, ledger, plan, merge plan and manifest included, with an executor that answers every call
at once with what its function would have returned. Calls are pickled, as a cluster would have it. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dsindex.engine.inputs
import dsindex.engine.start
from dsindex.engine.input_paths import find_paths
from dsindex.engine.inputs import choose_shard_size, look_at_inputs, plan_shards
from dsindex.engine.merge import MergeRange, RangeResult, merge_range
from dsindex.engine.shards.tokenize import KeyResult, ShardResult, ShardSettings, ShardTask, tokenize_shard
from dsindex.execution.calls import Call, Outcome
from dsindex.execution.progress.reporter import Reporter
from dsindex.jobs.build import run_build
from dsindex.options.build import BuildConfig
from dsindex.store.storage import DIGEST_BLOCK_BYTES, StoredFile

OUTCOMES_AT_ONCE = 500
TOKENS_PER_SHARD = 1_000
DIGEST = "99aa06d3014798d86001c324468d497f"


class ImaginedCluster:
    """Answers calls in the order in which they came, some hundred at a time."""

    kind = "imagined"
    is_cluster = is_on_this_machine = False
    shortage = waiting = note = None
    """Its nodes need no check: there are none."""

    def __init__(self, slots: int) -> None:
        self.slots = self.backlog = slots
        self.first_start: float | None = None
        self._running: deque[tuple[int, Call]] = deque()
        self._num_attempts = 0

    def share(self, value: object) -> object:
        return value

    def start(self, call: Call, *, beyond_slots: bool = False) -> int:  # noqa: ARG002 - always a slot free
        if self.first_start is None and call.function is tokenize_shard:
            self.first_start = time.perf_counter()
        self._num_attempts += 1
        small = [value for value in call.arguments if not isinstance(value, ShardSettings)]  # sent once, by ray.put
        pickle.dumps((call.function, small), protocol=5)
        self._running.append((self._num_attempts, call))
        return self._num_attempts

    def running_since(self, attempt_id: int) -> None:
        """Nothing is ever overdue."""

    def wait(self, timeout: float) -> list[Outcome]:  # noqa: ARG002 - nothing takes time here
        count = min(OUTCOMES_AT_ONCE, len(self._running))
        ended = [self._running.popleft() for _ in range(count)]
        return [Outcome(attempt_id=attempt_id, value=imagine(call)) for attempt_id, call in ended]

    def abandon(self, attempt_id: int) -> None:
        """Nothing runs that could be stopped."""

    def close(self) -> None:
        """Nothing is open."""


def imagine(call: Call) -> object:
    """Return what a call's function would have returned."""
    if call.function is tokenize_shard:
        return imagine_shard(*call.arguments)
    if call.function is merge_range:
        task: MergeRange = call.arguments[0]
        blocks = -(-(task.end - task.begin) // DIGEST_BLOCK_BYTES)
        return RangeResult(number=task.number, block_digests=(DIGEST,) * blocks)
    Path(call.arguments[1]).touch()  # an index or provenance, which is going to be published
    return StoredFile(name="", size_bytes=0, digest=DIGEST)


def imagine_shard(task: ShardTask, _settings: ShardSettings) -> ShardResult:
    """Return a shard of one document."""
    stem = f"shards/{task.shard // 10_000:04d}/{task.shard:08d}.{'0' * 32}"
    files = {
        suffix: StoredFile(name=f"{stem}.{suffix}", size_bytes=size, digest=DIGEST)
        for suffix, size in {"0.bin": 2 * TOKENS_PER_SHARD, "0.idx": 62, "prov": 16}.items()
    }
    key = KeyResult(
        key="text",
        num_sequences=1,
        num_documents=1,
        num_tokens=TOKENS_PER_SHARD,
        num_empty_documents=0,
        eod_in_text=0,
        bin=files["0.bin"],
        idx=files["0.idx"],
    )
    return ShardResult(
        shard=task.shard,
        num_lines=1,
        num_blank=0,
        num_records=1,
        num_quarantined=0,
        keys=(key,),
        provenance=files["prov"],
        quarantine=None,
        input_fingerprint=DIGEST if task.begin == 0 else None,
    )


def plan(pattern: str) -> dict[str, Any]:
    """Plan a build of all files that a pattern matches."""
    began = time.perf_counter()
    inputs = look_at_inputs(find_paths([pattern]))
    size = choose_shard_size(sum(file.size_bytes for file in inputs), 64 << 20)
    shards = sum(1 for _ in plan_shards(inputs, size))
    return {"files": len(inputs), "shards": shards, "seconds": time.perf_counter() - began}


def build(pattern: str, *, shards: int, slots: int, tokenizer: str, output_prefix: str) -> dict[str, Any]:
    """Drive a whole build on an imagined cluster."""
    total = sum(file.size_bytes for file in look_at_inputs(find_paths([pattern])))
    config = BuildConfig(
        input=(pattern,),
        tokenizer_model=tokenizer,
        append_eod=True,
        output_prefix=output_prefix,
        shard_size=max(1, -(-total // shards)),
    )
    cluster = ImaginedCluster(slots)
    began, cpu_began = time.perf_counter(), time.process_time()
    with (
        patch.object(dsindex.engine.start, "make_executor", return_value=cluster),
        patch.object(dsindex.engine.inputs, "MAX_SHARDS", 10 * shards),
        patch.object(dsindex.engine.inputs, "MANY_SMALL_SHARDS", 10 * shards),
    ):
        report = run_build(config, reporter=Reporter())
    cpu_seconds = time.process_time() - cpu_began
    if cluster.first_start is None:
        msg = "no shard was ever started"
        raise RuntimeError(msg)
    return {
        "shards": report.run.shards,
        "first_task_seconds": cluster.first_start - began,
        "seconds": time.perf_counter() - began,
        "cpu_microseconds_per_shard": 1e6 * cpu_seconds / report.run.shards,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


def main() -> None:
    """Plan or drive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["plan", "build"])
    parser.add_argument("pattern")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--tokenizer")
    parser.add_argument("--output-prefix", default=os.devnull)
    options = parser.parse_args()
    if options.what == "plan":
        found = plan(options.pattern)
    else:
        found = build(
            options.pattern,
            shards=options.shards,
            slots=options.slots,
            tokenizer=options.tokenizer,
            output_prefix=options.output_prefix,
        )
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
