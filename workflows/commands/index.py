"""`dsindex index`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.commands.index_command import add_command_arguments, merge_command
from workflows.commands.options import (
    add_config_argument,
    add_executor_arguments,
    read_options,
    validated,
    without_megatron_flags,
)
from workflows.commands.stores import add_store_arguments, enter_stores, requests_since
from workflows.jobs.index import describe_index, run_index
from workflows.options.index import IndexConfig
from workflows.options.index_arguments import add_index_arguments
from workflows.options.index_tokenizer import take_job_tokenizer
from workflows.progress.standard_streams import write_lines
from workflows.stages.start import start_with_nodes

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Build the document, sample and shuffle index of each split of a dataset or blend, as the cache files
of a Megatron training job and under its names, so that the job finds them and builds nothing.

The hash in a cache's name covers the job's settings character by character: use the same
--seq-length, --split, --seed and paths as the job, and the tokenizer's identifiers
(--tokenizer-identifiers or --like). --explain says why a job would not find a cache.
Flags of pretrain_gpt.py on which no cache depends are accepted, and named."""
EXAMPLES = (
    r"""dsindex index --data-path out/docs_text_document --seq-length 4096 \
  --train-iters 5000 --global-batch-size 256 --eval-interval 1000 \
  --data-cache-path out/cache --like description.txt""",
    r"""dsindex index --data-path 0.9 web_text_document 0.1 code_text_document \
  --seq-length 4096 --num-samples 90000,1000,1000 --data-cache-path out/cache""",
)
REQUIRED = {"data_path": "one for each split", "seq_length": "--like"}
TAKES_PRETRAIN_FLAGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex index`."""
    add_config_argument(parser)
    add_index_arguments(parser)
    add_command_arguments(parser)
    add_store_arguments(parser)
    add_executor_arguments(parser)


def read_index_config(options: argparse.Namespace) -> IndexConfig:
    """Read the options of an index job from a file and flags.

    Raises:
        UsageError: If they are invalid.
    """
    merged = read_options(options)
    job = [*(merged.pop("from_command", None) or ())], [*(merged.pop("command", None) or ())]
    if any(job):
        merged = merge_command(merged, *job)
    take_job_tokenizer(merged)
    return validated(without_megatron_flags(merged), IndexConfig)


def run(options: argparse.Namespace) -> int:
    """Build or explain index caches, and print a summary."""
    before = enter_stores(options)
    config = read_index_config(options)
    executor = start_with_nodes(config)
    try:
        report = run_index(config, executor=executor)
    finally:
        executor.close()
    write_lines(describe_index(report) + requests_since(before))
    return 0 if report.ok else 1
