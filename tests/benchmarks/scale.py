"""What the driver costs: its real code, with workers that answer at once and write nothing.

    python -m tests.benchmarks.scale [--executor local processes ray] [--shards 20000]

prints the CPU time and memory of the driver for each shard, and the time to read the journal again. Then follows what
these figures mean for 100 TB of text on 64,000 cores, as docs/sizing.md explains.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.options.build import BuildConfig
from dsindex.runtime import assembly
from dsindex.runtime.job import Output, open_job
from dsindex.runtime.plan import InputFile, choose_smallest_shard, make_plan
from dsindex.runtime.progress import Reporter
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.runtime.tasks import FileCounts, KeyResult, ShardFile, ShardResult
from dsindex.runtime.work_folder import Journal
from tests.support.jobs import config_of

SHARD_BYTES = 8 << 20
BIN_BYTES = 4_000_000
CORES = 64_000
JOBS = {"1 M files of 100 MB": (10**6, 10**8), "20,000 of 5 GB": (20_000, 5 * 10**9), "100 of 1 TB": (100, 10**12)}


def answer(task, _settings):
    """Stands in for a worker: the receipt of a shard of which no file exists."""
    blocks = ("0" * 16,)
    files = {
        end: ShardFile(f"shards/0000/{task.shard:08d}.{0:016x}.0.{end}", BIN_BYTES, blocks) for end in ("bin", "idx")
    }
    counts = FileCounts(4000, 0, 0, SHARD_BYTES, "0" * 32, (4000,), (SHARD_BYTES,))
    key = KeyResult(num_sequences=4000, num_documents=4000, num_tokens=BIN_BYTES // 2, **files)
    return ShardResult(files=(counts,), keys=(key,))


def merge(_task):
    """Stands in for a worker that merges a range."""
    return "0" * 32


def simulate(executor, num_shards, folder):
    """Return what the driver took for each shard: CPU seconds of its main thread and of all its threads, seconds, bytes
    of memory, and seconds to resume.
    """
    text = Path(folder, "a.jsonl")
    text.write_text('{"text": "a"}\n')
    own = {"executor": executor, "no_provenance": True, "output_prefix": str(Path(folder, executor, "x"))}
    source = open_source(config_of(BuildConfig, text, **own), append_eod=False)
    [part] = source.inputs[0].parts
    ranges = (range(number * SHARD_BYTES, (number + 1) * SHARD_BYTES) for number in range(num_shards))
    parts = tuple(replace(part, begin=span.start, end=span.stop, stored_bytes=SHARD_BYTES) for span in ranges)
    source = replace(source, inputs=(InputFile(path=str(text), parts=parts),))
    plan = make_plan({}, source.files)
    output = Output(prefix=own["output_prefix"], plan_id=plan.plan_id, dtype=dtype_for_vocabulary(1000))
    with (
        mock.patch.object(assembly, "merge_range", merge),
        open_job(source.config, plan, [output], reporter=Reporter()) as job,
    ):
        memory, began, cpu, main = _peak(), time.perf_counter(), time.process_time(), time.thread_time()
        Shards(job, source, None, function=answer).tokenize_and_merge()
        used = time.thread_time() - main, time.process_time() - cpu
        measured = *used, time.perf_counter() - began, _peak() - memory
        job.journal.log.sync()
        began = time.perf_counter()
        assert len(Journal(job.work_dir).shards) == num_shards
        return [each / num_shards for each in (*measured, time.perf_counter() - began)]


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", nargs="+", default=["local", "processes"])
    parser.add_argument("--shards", type=int, default=20_000)
    options = parser.parse_args()
    for executor in options.executor:
        with tempfile.TemporaryDirectory(prefix="dsindex-scale-") as folder:
            main_thread, cpu, seconds, memory, resume = simulate(executor, options.shards, folder)
        print(  # noqa: T201 - the report
            f"{executor}: {cpu * 1e3:.3f} ms of CPU for each shard, {main_thread * 1e3:.3f} in the main thread, "
            f"{memory / 1e3:.1f} kB of memory, "
            f"{1 / seconds:,.0f} shards/s, resume {resume * 1e6:.0f} us"
        )
        for name, (files, size) in JOBS.items():
            shard = max(choose_smallest_shard(files * size), 8 << 20)
            num_shards = files * -(-size // shard) if size > shard // 4 else files * size // shard
            hours = num_shards * max(cpu, seconds) / 3600
            print(f"    {name}: {num_shards:,} shards, {hours:.2f} h of the driver")  # noqa: T201 - the report


if __name__ == "__main__":
    from tests.benchmarks import scale  # under its own name, by which processes find the functions

    scale.main()
