"""`dsindex demo`."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from workflows.demo.run import run_demo
from workflows.execution.ray_address import JOB_VARIABLE
from workflows.options.parser import COMMANDS, make_parser

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

DESCRIPTION = """\
Run the main job on a few megabytes of text that the demo generates: train a small tokenizer, build
with Ray in ten shards, merge, index 2.5 epochs, verify, and show a sample with its source."""
EXAMPLES = ("dsindex demo --documents 2000",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex demo`."""
    parser.add_argument("--output", default="demo-output", metavar="D", help="a folder (default: demo-output)")
    parser.add_argument("--documents", type=int, default=6000, metavar="N", help="documents to write (default: 6000)")


def run(options: argparse.Namespace) -> int:
    """Run the demo, on this machine: as a job of a cluster it runs there."""
    if JOB_VARIABLE not in os.environ:
        os.environ.pop("RAY_ADDRESS", None)
    return run_demo(options.output, num_documents=options.documents, run_command=_run_command)


def _run_command(arguments: Sequence[str]) -> int:
    """Run another dsindex command in this process; its errors propagate."""
    command = arguments[0]
    parsed = make_parser(command).parse_args(arguments)
    code: int = importlib.import_module(COMMANDS[command][1]).run(parsed)
    return code
