"""`dsindex plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.cli.build import (
    REQUIRED,
    TAKES_PRETRAIN_FLAGS,
    add_arguments,
    read_build_options,
)
from dsindex.engine.start import WORKER_MEMORY_BYTES
from dsindex.execution.progress.displays import format_duration
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.tools.estimate import WRITE_BYTES_PER_SECOND, run_plan

if TYPE_CHECKING:
    import argparse

    from dsindex.tools.estimate import BuildEstimate

__all__ = ["DESCRIPTION", "EXAMPLES", "REQUIRED", "TAKES_PRETRAIN_FLAGS", "add_arguments", "describe_plan", "run"]

DESCRIPTION = """\
Estimate what `dsindex build` with the same options would need: shards, sizes, time and memory, and
the limits it would reach. Up to 64 MiB of the input are encoded and timed. Nothing is written, and
no cluster is joined: for an estimate on a cluster, set --workers to its number of CPUs."""
EXAMPLES = (
    r"""dsindex plan --input docs.jsonl --tokenizer-model FOLDER --append-eod \
  --output-prefix out/docs --workers 64""",
)


def run(options: argparse.Namespace) -> int:
    """Estimate a build, and print the estimate."""
    config, _ = read_build_options(options)
    write_lines(describe_plan(run_plan(config)))
    return 0


def describe_plan(estimate: BuildEstimate) -> list[str]:
    """Return the estimate as text."""
    source, sample = estimate.source, estimate.sample
    read = f"read and encoded by {source.engine.name}" if estimate.encodes else "of token ids read"
    rows = {
        "inputs": f"{len(source.inputs):,}, {_size(source.total_bytes)}",
        "sample": f"{_size(sample.sampled_bytes)} {read}, "
        f"{_size(sample.bytes_per_second)}/s with {count(sample.threads, 'thread')}",
        "shards": f"{estimate.num_shards:,} of at most {max(source.shard_sizes) / 2**20:,.3g} MiB of input",
        "documents": f"about {estimate.documents:,.0f}",
        "tokens": f"about {estimate.tokens:,.0f}, {estimate.token_dtype}",
        "output": f"about {_size(estimate.output_bytes)}: .bin {_size(estimate.bin_bytes)}, "
        f".idx {_size(estimate.idx_bytes)}, provenance {_size(estimate.provenance_bytes)}",
        "work folder": f"about {_size(estimate.work_bytes)} until the end",
        "time": f"about {format_duration(estimate.encode_seconds + estimate.write_seconds)} with "
        f"{count(estimate.workers, 'worker')}: encoding {format_duration(estimate.encode_seconds)}, "
        f"writing shards and output {format_duration(estimate.write_seconds)} at {_size(WRITE_BYTES_PER_SECOND)}/s",
        "memory": f"about {_size(estimate.memory_bytes)} locally; on Ray {_size(WORKER_MEMORY_BYTES)} per worker",
    }
    lines = [f"{name:12} {text}" for name, text in rows.items()]
    if sample.bad_records:
        lines.append(f"{'bad records':12} {sample.bad_records:,} in the sample: see --on-bad-record")
    lines += [f"{'note':12} {text}" for text in source.first_notes(encodes=estimate.encodes)]
    lines += [f"{'limit':12} {limit}" for limit in estimate.limits or ("none is near",)]
    return lines


def _size(size_bytes: float) -> str:
    """Return a size in the unit that suits it.

    >>> _size(999), _size(1.5e6), _size(2.5e13)
    ('999 B', '1.50 MB', '25.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 999.5:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:{_digits(size_bytes)}} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:{_digits(size_bytes)}} TB"


def _digits(value: float) -> str:
    return ".2f" if value < 9.995 else ".1f" if value < 99.95 else ",.0f"
