"""`dsindex demo`."""

from __future__ import annotations

import os
import runpy
from typing import TYPE_CHECKING

from dsindex.demo.run import run_demo
from dsindex.execution.ray_address import JOB_VARIABLE
from dsindex.options.numbers import integer

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Run the main job on a few megabytes of text that the demo generates: train a small tokenizer, build
with Ray in ten shards, merge, index 2.5 epochs, verify, and show a sample with its source. Script and
options are left in the folder, to be changed and run again."""
EXAMPLES = ("dsindex demo --documents 2000",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex demo`."""
    parser.add_argument("--output", default="demo-output", metavar="D", help="a folder (default: demo-output)")
    parser.add_argument(
        "--documents", type=integer(3, 10**7), default=6000, metavar="N", help="documents to write (default: 6000)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the demo, on this machine: as a job of a cluster it runs there."""
    if JOB_VARIABLE not in os.environ:
        os.environ.pop("RAY_ADDRESS", None)
    return run_demo(options.output, num_documents=options.documents, run_workflow=_run_workflow)


def _run_workflow(script: str, options: str) -> int:
    """Run a workflow in this process; its errors propagate."""
    code: int = runpy.run_path(script)["main"](options)
    return code
