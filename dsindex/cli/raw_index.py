"""`dsindex raw-index`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.cli.options import read_config
from dsindex.engine.dispatch import RetryPolicy, ordered_runner
from dsindex.engine.standard_streams import write_lines
from dsindex.engine.start import make_executor
from dsindex.formats.raw_index import create_raw_index
from dsindex.options.datasets import RawIndexConfig

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Write the raw index of a JSONL file: where each line begins and how long it is, as Modalities'
`create_raw_index` writes it, byte for byte, in parallel ranges of the file.

Every line must be JSON by the rules of Python's json.loads; a blank line is faulty. The first
faulty line is an error, unless --drop-faulty-entries leaves such lines out of the index.

An existing file is never replaced; if it is the same index already, the command succeeds."""
EXAMPLES = ("dsindex raw-index docs.jsonl --output docs.idx",)
OPTIONS = (RawIndexConfig,)


def run(options: argparse.Namespace) -> int:
    """Index one file and print its line counts."""
    config = read_config(options, RawIndexConfig)
    executor = make_executor(config)
    try:
        executor.require_seen([config.file])
        account = create_raw_index(
            config.file,
            config.output,
            drop_faulty_entries=config.drop_faulty_entries,
            run_tasks=ordered_runner(
                executor, name="raw-index", policy=RetryPolicy(deadline_seconds=config.shard_deadline)
            ),
        )
    finally:
        executor.close()
    lines = [
        f"{account.index_path}: {count(account.num_entries, 'line')}, {account.num_dropped:,} faulty ones left out"
    ]
    lines += [f"  left out: {config.file}, line {line} (byte {offset})" for line, offset in account.dropped]
    if account.num_dropped > len(account.dropped):
        lines.append(f"  and {account.num_dropped - len(account.dropped):,} more")
    write_lines(lines)
    return 0
