"""What the driver costs: its real code, with workers that answer at once and write nothing.

    python -m tests.benchmarks.scale [--executor local processes ray] [--shards 20000]

prints the CPU time and memory of the driver for each shard, and the time to read the journal again. Then it measures
what one task does alone for a dataset, and prints the hours that follow for 100 TB of text in datasets of 1 TB.

Assumed: 64,000 cores, a file system of 0.5 TB/s, 0.3 ms for each call of it, 1 byte of tokens for 2 bytes of text, 2 kB
of text in a document. Ranges of an output cost the driver as much as shards.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
from obstore.store import MemoryStore
from xxhash import xxh3_64_hexdigest

from dsindex.formats.dtypes import dtype_for_vocabulary
from dsindex.formats.mmididx import IndexBuilder, IndexHeader
from dsindex.formats.provenance import ROW
from dsindex.options.build import BuildConfig
from dsindex.runtime import assembly
from dsindex.runtime.input_paths import find_paths
from dsindex.runtime.job import RANGE_BYTES, Output, open_job
from dsindex.runtime.merge import make_index, make_provenance, merge_whole
from dsindex.runtime.plan import InputFile, choose_smallest_shard, examine_inputs, make_plan
from dsindex.runtime.progress import Reporter
from dsindex.runtime.shards import Shards
from dsindex.runtime.source import open_source
from dsindex.runtime.tasks import FileCounts, KeyResult, Segment, ShardFile, ShardResult, SourceFile
from dsindex.runtime.tokenize import BLOCK_BYTES
from dsindex.runtime.work_folder import Journal
from dsindex.store.protocol import open_output
from tests.support.jobs import config_of

SHARD_BYTES = 8 << 20
BIN_BYTES = 4_000_000
TEXT_BYTES = 10**14
DATASET_BYTES = 10**12
DOCUMENT_BYTES = 2000
FILE_SYSTEM_BYTES, FILE_SYSTEM_CALL = 0.5e12, 0.3e-3
"""Bytes per second, and seconds per call."""
REMOVING_THREADS = 16
JOBS = {"1 M files of 100 MB": (10**6, 10**8), "20,000 of 5 GB": (20_000, 5 * 10**9), "100 of 1 TB": (100, 10**12)}


def make_receipt(task, _settings):
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
    options = {"executor": executor, "no_provenance": True, "output_prefix": str(Path(folder, executor, "x"))}
    source = open_source(config_of(BuildConfig, text, **options), append_eod=False)
    [part] = source.inputs[0].parts
    ranges = (range(number * SHARD_BYTES, (number + 1) * SHARD_BYTES) for number in range(num_shards))
    parts = tuple(replace(part, begin=span.start, end=span.stop, stored_bytes=SHARD_BYTES) for span in ranges)
    source = replace(source, inputs=(InputFile(path=str(text), parts=parts),))
    plan = make_plan({}, source.files)
    output = Output(prefix=options["output_prefix"], plan_id=plan.plan_id, dtype=dtype_for_vocabulary(1000))
    with (
        mock.patch.object(assembly, "merge_range", merge),
        open_job(source.config, plan, [output], reporter=Reporter()) as job,
    ):
        memory, began, cpu, main = _peak(), time.perf_counter(), time.process_time(), time.thread_time()
        Shards(job, source, None, function=make_receipt).tokenize_and_merge()
        used = time.thread_time() - main, time.process_time() - cpu
        measured = *used, time.perf_counter() - began, _peak() - memory
        job.journal.log.sync()
        began = time.perf_counter()
        assert len(Journal(job.work_dir).shards) == num_shards
        return [measure / num_shards for measure in (*measured, time.perf_counter() - began)]


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_file(folder):
    """Return the CPU seconds for finding and looking at one input."""
    paths = [Path(folder, f"{number:04d}.jsonl") for number in range(4000)]
    for path in paths:
        path.write_text('{"text": "a"}\n')
    began = time.process_time()
    examine_inputs(find_paths([folder]))
    return (time.process_time() - began) / len(paths)


def measure_alone(function, folder):
    """Return the CPU seconds that merging one kind of file takes for each document, and for each shard."""
    rows = np.zeros(10**6, ROW)
    rows["line"], rows["offset"] = np.arange(len(rows)), np.arange(len(rows)) * DOCUMENT_BYTES
    seconds = []
    for shards, documents in ((10, 200_000), (1000, 10)):
        with open_output(f"{folder}/shard.idx") as file:
            builder = IndexBuilder(np.dtype("<u2"), folder=folder)
            builder.add_documents(np.full(documents, 500), np.ones(documents, np.int64))
            builder.write(file)
        with open_output(f"{folder}/shard.prov") as file:
            file.write(rows[:documents].tobytes())
        sources = {}
        for end in ("idx", "prov"):
            content = Path(folder, f"shard.{end}").read_bytes()
            blocks = [content[begin : begin + BLOCK_BYTES] for begin in range(0, len(content), BLOCK_BYTES)]
            sources[end] = SourceFile(f"{folder}/shard.{end}", len(content), tuple(map(xxh3_64_hexdigest, blocks)))
        header = IndexHeader(
            dtype=np.dtype("<u2"), num_sequences=documents, num_boundaries=documents + 1, has_modes=False
        )
        segment = Segment(bin=sources["idx"], idx=sources["idx"], header=header, provenance=sources["prov"])
        began = time.process_time()
        function([segment] * shards, f"{folder}/merged")
        seconds.append(time.process_time() - began)
    per_document = seconds[0] / 10 / 200_000
    return per_document, seconds[1] / 1000 - per_document * 10


def measure_object(folder):
    """Return the CPU seconds for writing one byte of a token file into a bucket that answers at once."""
    Path(folder, "a").write_bytes(bytes(RANGE_BYTES))
    source = SourceFile(f"{folder}/a", RANGE_BYTES)
    with mock.patch("dsindex.store.objects._client_of", return_value=(MemoryStore(), "x.bin")):
        began = time.process_time()
        merge_whole([source] * 4, "s3://bucket/x.bin")
    return (time.process_time() - began) / RANGE_BYTES / 4


def tell_hours(driver, folder):
    """Yield the hours of each stage of each job, given the driver's seconds for each call."""
    file = measure_file(folder)
    index, rows = (measure_alone(function, folder) for function in (make_index, partial(make_provenance, seed=None)))
    byte = measure_object(folder)
    costs = (
        f"looking at an input {file * 1e6:.0f} us",
        f".idx {index[0] * 1e9:.0f} ns for each document, {index[1] * 1e3:.2f} ms for each shard",
        f"provenance {rows[0] * 1e9:.0f} ns, {rows[1] * 1e3:.2f} ms",
        f"an object {1e-6 / byte:,.0f} MB/s",
    )
    yield "; ".join(costs)
    for name, (files, size) in JOBS.items():
        shard = max(choose_smallest_shard(TEXT_BYTES), SHARD_BYTES)
        num_shards = files * -(-size // shard) if size > shard // 4 else files * size // shard
        datasets, documents = TEXT_BYTES // DATASET_BYTES, DATASET_BYTES // DOCUMENT_BYTES
        ranges = TEXT_BYTES // 2 // RANGE_BYTES
        stages = {
            "look at inputs": files * file,
            "driver": (num_shards + ranges) * driver,
            "read and encode": TEXT_BYTES / FILE_SYSTEM_BYTES,
            "merge on a disk": TEXT_BYTES / FILE_SYSTEM_BYTES,  # reads and writes half of it
            "merge in a bucket": DATASET_BYTES / 2 * byte,
            ".idx": documents * index[0] + num_shards / datasets * index[1],
            "provenance": documents * rows[0] + num_shards / datasets * rows[1],
            "remove the work folder": 3 * num_shards * FILE_SYSTEM_CALL / REMOVING_THREADS,
        }
        hours = ", ".join(f"{stage} {seconds / 3600:.2f}" for stage, seconds in stages.items())
        yield f"{name}: {num_shards:,} shards; hours: {hours}"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", nargs="+", default=["local", "processes"])
    parser.add_argument("--shards", type=int, default=20_000)
    options = parser.parse_args()
    dearest = 0.0
    for executor in options.executor:
        with tempfile.TemporaryDirectory(prefix="dsindex-scale-") as folder:
            main_thread, cpu, seconds, memory, resume = simulate(executor, options.shards, folder)
        dearest = max(dearest, cpu)
        print(  # noqa: T201 - the report
            f"{executor}: {cpu * 1e3:.3f} ms of CPU for each shard, {main_thread * 1e3:.3f} in the main thread, "
            f"{memory / 1e3:.1f} kB of memory, "
            f"{1 / seconds:,.0f} shards/s, resume {resume * 1e6:.0f} us"
        )
    with tempfile.TemporaryDirectory(prefix="dsindex-scale-") as folder:
        print("    " + "\n    ".join(tell_hours(dearest, folder)))  # noqa: T201 - the report


if __name__ == "__main__":
    from tests.benchmarks import scale  # under its own name, by which processes find the functions

    scale.main()
