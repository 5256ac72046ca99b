"""`dsindex mix`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import ConfigFile, read_options
from dsindex.engine.standard_streams import write_json, write_lines
from dsindex.options.config import validated
from dsindex.options.mix import MixCommand
from dsindex.tools.mix import run_mix

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Plan a mixture from the tokens that the datasets really have: Megatron's --data-path with weights,
and the tokens and epochs that it draws of each dataset. With --data-path, show what the weights of
a job mean.

A sample has tokens of one dataset only, so a weight is the dataset's share of the tokens that are
drawn, whatever its size. Only .idx files are read, and no cluster is joined."""
EXAMPLES = (
    r"""dsindex mix web_text_document books_text_document=2epochs \
  code_text_document=20% --tokens 300B --global-batch-size 1024""",
    "dsindex mix --data-path 0.3 web_text_document 0.7 books_text_document",
    "dsindex mix code=30% books=max2epochs web --tokens 1.2T --global-batch-size 1024",
)
OPTIONS = (MixCommand, ConfigFile)


def run(options: argparse.Namespace) -> int:
    """Plan a mixture and print it."""
    config = validated(read_options(options), MixCommand)
    report = run_mix(config)
    if config.as_json:
        write_json(sys.stdout, asdict(report) | {"data_path": list(report.data_path), "tokens": report.tokens})
    else:
        write_lines(report.lines())
    return 0
