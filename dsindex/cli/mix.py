"""`dsindex mix`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dsindex.cli.options import ConfigFile, read_options
from dsindex.engine.standard_streams import write_json, write_lines
from dsindex.options.config import validated
from dsindex.options.mix import MixCommand
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
OPTIONS = (MixCommand, ConfigFile)


def run(options: argparse.Namespace) -> int:
    """Plan a mixture and print it; the exit code is 1 if caches draw something else."""
    config = validated(read_options(options), MixCommand)
    report = run_mix(config)
    if config.as_json:
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
        "flags": list(report.flags),
        "warnings": list(report.warnings),
        "caches": [
            {
                "split": blend.split,
                "description": blend.description,
                "num_samples": list(blend.num_samples),
                "sequence_length": blend.sequence_length,
                "documents_cut": [None if cuts is None else asdict(cuts) for cuts in blend.cuts],
                "phases": [asdict(phase) for phase in blend.phases],
                "findings": list(blend.findings),
            }
            for blend in report.drawn
        ],
        "ok": report.ok,
    }
