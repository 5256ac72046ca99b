"""`dsindex index`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dsindex.cli.options import (
    ConfigFile,
    read_options,
    without_megatron_flags,
)
from dsindex.engine.standard_streams import show_lines, write_lines
from dsindex.engine.start import make_executor
from dsindex.options.config import validated
from dsindex.options.index import (
    IndexConfig,
    TokenizerCommand,
    TrainingCommand,
    local_path,
    parse_replacements,
    take_job_tokenizer,
)
from dsindex.options.pretrain_command import merge_command, take_command

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Build the document, sample and shuffle index of each split of a dataset or blend, as the cache files
of a Megatron training job and under its names, so that the job finds them and builds nothing.

The hash in a cache's name covers the job's settings character by character: use the same
--seq-length, --split, --seed and paths as the job, and the tokenizer's identifiers
(--tokenizer-identifiers or --like). --explain says why a job would not find a cache.
Or give the job's command after --: what matters is taken, options before it override it."""
EXAMPLES = (
    r"""dsindex index --data-path out/docs_text_document --seq-length 4096 \
  --train-iters 5000 --global-batch-size 256 --eval-interval 1000 \
  --data-cache-path out/cache --like description.txt""",
    r"""dsindex index --megatron-release 0.19 --data-cache-path out/cache \
  -- torchrun pretrain_gpt.py --seq-length 4096 --train-iters 500 --bf16""",
    r"""dsindex index --data-path 0.9 web_text_document 0.1 code_text_document \
  --seq-length 4096 --num-samples 90000,1000,1000 --data-cache-path out/cache""",
)
OPTIONS = (ConfigFile, TrainingCommand, IndexConfig, TokenizerCommand)
REQUIRED = {"data_path": "one for each split", "seq_length": "--like"}


def read_index_config(options: argparse.Namespace) -> IndexConfig:
    """Read the options of an index job from a file, flags and the job's command.

    Raises:
        UsageError: If they are invalid.
    """
    merged = read_options(options)
    words = merged.pop("command", None)
    if words:
        replacements = parse_replacements(merged.get("dataset_path_as") or ())
        command = take_command(words, local_path=lambda path: local_path(path, replacements))
        merged, notes = merge_command(merged, command)
        sys.stderr.write(show_lines(f"dsindex: {note}" for note in notes))
    take_job_tokenizer(merged)
    return validated(without_megatron_flags(merged), IndexConfig)


def run(options: argparse.Namespace) -> int:
    """Build or explain index caches, and print a summary."""
    from dsindex.jobs.index import run_index  # loads what a help text does not need

    config = read_index_config(options)
    executor = make_executor(config)
    try:
        report = run_index(config, executor=executor)
    finally:
        executor.close()
    write_lines(report.lines())
    return 0 if report.ok else 1
