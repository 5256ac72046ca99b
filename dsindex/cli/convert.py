"""`dsindex convert`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.options import add_executor_arguments, add_options, read_config
from dsindex.cli.stores import add_store_arguments, dataset_path, enter_stores, output_here, requests_since
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.jobs.conversion import ConvertConfig, convert_dataset

if TYPE_CHECKING:
    import argparse


OWN_OPTIONS = ("pbin_era", "flatten", "token_type")

DESCRIPTION = """\
Convert a tokenized dataset without loss: MMIDIDX (Megatron-LM; a prefix, or its .bin or .idx) to
.pbin (Modalities) or back, or a .pbin to another version. A path that ends in .pbin is a .pbin.

Documents and tokens stay the same, empty documents included. A .pbin has no sequences within a
document: --flatten joins them. It stores the size of a token but not its type: 1, 2 and 4 bytes
are read as uint8, uint16 and int32, unless --token-type names another type. The version of a .pbin
is detected; `spec`, the oldest, has 4-byte tokens only."""
EXAMPLES = ("dsindex convert out/docs_text_document out/docs.pbin",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex convert`."""
    parser.add_argument(
        "source", metavar="SRC", type=dataset_path, help="PREFIX or FILE.pbin, here or in an object store"
    )
    parser.add_argument("destination", metavar="DST", type=output_here, help="FILE.pbin or PREFIX; it must not exist")
    add_options(parser, ConvertConfig, *OWN_OPTIONS)
    add_store_arguments(parser)
    add_executor_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Convert one dataset and print what was written."""
    before = enter_stores(options)
    config = read_config(options, ConvertConfig, beside=("source", "destination"))
    conversion = convert_dataset(config, source=options.source, destination=options.destination)
    write_lines(conversion.lines() + requests_since(before))
    return 0
