"""`dsindex export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.options import read_config
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.jobs.trainers import export_dataset
from dsindex.options.datasets import ExportCommand
from dsindex.store.urls import as_prefix

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Prepare a dataset (a prefix, or its .bin or .idx) for another trainer, and print the trainer's
settings. Tokens are not copied: the trainer gets a link to the .bin, and a file of the documents'
borders. For nanotron, tokens of 1 and 8 bytes are copied. MaxText needs nothing more.

An existing file is never replaced; if it has the same content already, the command succeeds."""
EXAMPLES = ("dsindex export out/docs_text_document --for olmo",)
OPTIONS = (ExportCommand,)


def run(options: argparse.Namespace) -> int:
    """Export one dataset and print what was written."""
    config = read_config(options, ExportCommand)
    write_lines(export_dataset(config, prefix=as_prefix(config.prefix)).lines())
    return 0
