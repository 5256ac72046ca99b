"""`dsindex demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.demo.run import run_demo

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
The main job on a few megabytes of text that the demo writes itself: train a small tokenizer, build
through Ray in ten shards, merge, index 2.5 epochs, verify, and show a sample with its source."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex demo`."""
    parser.add_argument("--output", default="demo-output", metavar="D", help="a folder (default: demo-output)")
    parser.add_argument("--documents", type=int, default=6000, metavar="N", help="documents to write (default: 6000)")


def run(options: argparse.Namespace) -> int:
    """Run the demo."""
    from workflows.cli import main

    return run_demo(options.output, num_documents=options.documents, run_command=main)
