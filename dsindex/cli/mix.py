"""`dsindex mix`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsindex.cli.options import add_config_argument, add_options, read_config
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.options.mix import MixConfig
from dsindex.tools.mix import MixResult, run_mix

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Plan a mixture from the tokens that the datasets really have: Megatron's --data-path with weights,
and the tokens and epochs that it draws of each dataset. With --data-path, show what the weights of
a job mean. With --check, compare with what the index caches of a job draw.

A sample has tokens of one dataset only, so a weight is the dataset's share of the tokens that are
drawn, whatever its size. Only .idx files are read, and no cluster is joined."""
EXAMPLES = (
    r"""dsindex mix web_text_document books_text_document=2epochs \
  code_text_document=20% --tokens 300B --global-batch-size 1024""",
    "dsindex mix --data-path 0.3 web_text_document 0.7 books_text_document",
    r"""dsindex mix web_text_document=60% books_text_document=40% \
  --check --data-cache-path out/cache""",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex mix`."""
    add_options(parser, MixConfig, "source", positional=True, nargs="*")
    add_options(parser, MixConfig, "data_path")
    parser.add_argument("--json", action="store_true", help="write the plan as one JSON object")
    length = parser.add_argument_group(
        "length of the run",
        "default: what the amounts in tokens and epochs add up to; with shares only, until the first dataset has been "
        "read once",
    )
    add_options(length, MixConfig, "tokens", "train_samples", "train_iters", "global_batch_size")
    job = parser.add_argument_group("the job")
    add_options(job, MixConfig, "seq_length", "split", "per_split_data_args_path", "valid_data_path", "test_data_path")
    add_options(parser.add_argument_group("check"), MixConfig, "check", "data_cache_path")
    add_config_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Plan a mixture and print it; the exit code is 1 if caches draw something else."""
    if not options.source:
        options.source = None
    report = run_mix(read_config(options, MixConfig, beside=("json",)))
    if options.json:
        write_json(sys.stdout, as_json(report))
    else:
        write_lines(report.lines())
    return 0 if report.ok else 1


def as_json(report: MixResult) -> dict[str, Any]:
    """Return a report in a form for JSON."""
    mixture = report.mixture
    return {
        "data_path": list(mixture.data_path),
        "split": report.split,
        "sequence_length": mixture.sequence_length,
        "num_samples": mixture.num_samples,
        "num_iterations": report.num_iterations,
        "tokens": mixture.tokens,
        "datasets": [
            {
                "prefix": source.prefix,
                "tokens": source.tokens,
                "share_of_all": source.share_of_all,
                "weight": source.weight,
                "share": source.share,
                "num_samples": source.num_samples,
                "tokens_drawn": source.tokens_drawn,
                "epochs": source.epochs,
                "index_epochs": source.index_epochs,
                "epochs_shuffled_together": source.epochs_shuffled_together,
            }
            for source in mixture.sources
        ],
        "first_to_run_out": mixture.first_to_run_out.prefix,
        "per_split_data_args_path": report.per_split_data_args_path,
        "warnings": list(report.warnings),
        "caches": [
            {
                "split": blend.split,
                "description": blend.description,
                "num_samples": list(blend.num_samples),
                "sequence_length": blend.sequence_length,
                "findings": list(blend.findings),
            }
            for blend in report.drawn
        ],
        "ok": report.ok,
    }
