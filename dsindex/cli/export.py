"""`dsindex export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.options import add_options, read_config
from dsindex.cli.stores import output_here
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.jobs.trainers import ExportConfig, export_dataset
from dsindex.store.urls import as_prefix

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Prepare a dataset (a prefix, or its .bin or .idx) for another trainer, and print the trainer's
settings. Tokens are not copied: the trainer gets a link to the .bin, and a file of the documents'
borders. For nanotron, tokens of 1 and 8 bytes are copied. MaxText needs nothing more.

An existing file is never replaced; if it has the same content already, the command succeeds."""
EXAMPLES = ("dsindex export out/docs_text_document --for olmo",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex export`."""
    parser.add_argument("prefix", metavar="P", type=output_here, help="PREFIX of a .bin and .idx on this machine")
    add_options(parser, ExportConfig, "trainer", flag="--for", dest="trainer", required=True)


def run(options: argparse.Namespace) -> int:
    """Export one dataset and print what was written."""
    config = read_config(options, ExportConfig, beside=("prefix",))
    write_lines(export_dataset(config, prefix=as_prefix(options.prefix)).lines())
    return 0
