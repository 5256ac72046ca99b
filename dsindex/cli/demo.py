"""`dsindex demo`."""

from __future__ import annotations

import os
import runpy
from typing import TYPE_CHECKING

from dsindex.cli.options import read_config
from dsindex.demo.run import run_demo
from dsindex.engine.start import JOB_VARIABLE
from dsindex.options.config import Options
from dsindex.options.declare import option

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Run the main job on a few megabytes of text that the demo generates: train a small tokenizer, build
with Ray in a dozen shards, merge, index 2.5 epochs, verify, and show a sample with its source. Script
and options are left in the folder, to be changed and run again."""
EXAMPLES = ("dsindex demo --documents 2000",)


class DemoConfig(Options):
    """`dsindex demo`: generated text."""

    output: str = option("demo-output", "a folder (default: demo-output)", "D")
    documents: int = option(6000, "documents to write (default: 6000)", "N", ge=3, le=10**7)


OPTIONS = (DemoConfig,)


def run(options: argparse.Namespace) -> int:
    """Run the demo, on this machine: as a job of a cluster it runs there."""
    if JOB_VARIABLE not in os.environ:
        os.environ.pop("RAY_ADDRESS", None)
    config = read_config(options, DemoConfig)
    return run_demo(config.output, num_documents=config.documents, run_workflow=_run_workflow)


def _run_workflow(script: str, options: str) -> int:
    """Run a workflow in this process; its errors propagate."""
    code: int = runpy.run_path(script)["main"](options)
    return code
