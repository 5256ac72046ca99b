"""`dsindex plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.build import OPTIONS, REQUIRED, TAKES_PRETRAIN_FLAGS, read_build_options
from dsindex.engine.standard_streams import write_lines

if TYPE_CHECKING:
    import argparse


__all__ = ["DESCRIPTION", "EXAMPLES", "OPTIONS", "REQUIRED", "TAKES_PRETRAIN_FLAGS", "run"]

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
    from dsindex.tools.estimate import run_plan  # loads what a help text does not need

    config, _ = read_build_options(options)
    write_lines(run_plan(config).lines())
    return 0
