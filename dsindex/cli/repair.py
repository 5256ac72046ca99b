"""`dsindex repair`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from dsindex.cli.options import add_executor_arguments, add_options, read_config
from dsindex.cli.stores import add_store_arguments, enter_stores, output_here, path_here
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.jobs.repair import RepairConfig, describe_packed_repair, run_pbin_repair, run_repair, with_fitting_output
from dsindex.jobs.rescue_files import describe_repair
from dsindex.store.urls import as_prefix

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Restore a damaged dataset in new files: NEW.bin and NEW.idx, and NEW.repair.json, which reports what
could not be saved.

The first of these that is certain is used: the shards of the work folder; what is left of the .idx;
the .bin alone, if the manifest says that every document ends with EOD and no text contains one; the
source, tokenized again; and last the complete documents that a crash of dsindex or Megatron-LM left.
A result that matches the manifest's digests is reported as proven.

A FILE.pbin that Modalities joined with low offsets is repaired as well."""
FOR_OBJECTS = "copy the dataset and its manifest here and repair the copy, or build it again with --fresh"
EXAMPLES = ("dsindex repair out/docs_text_document --output out/repaired_text_document",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex repair`."""
    parser.add_argument(
        "prefix",
        metavar="PREFIX",
        type=partial(path_here, instead=FOR_OBJECTS),
        help="the dataset: a path without .bin and .idx; or FILE.pbin",
    )
    add_options(parser, RepairConfig, "output", type=output_here, required=True)
    add_options(parser, RepairConfig, "way", flag="--from", dest="way")
    add_options(parser, RepairConfig, "index_only", "work_dir", "tokenizer_model", "engine", "dtype")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_store_arguments(parser)
    add_executor_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Repair one dataset and print what was saved."""
    enter_stores(options)
    config = read_config(options, RepairConfig, beside=("prefix", "json"))
    config = with_fitting_output(options.prefix, config)
    if options.prefix.endswith(".pbin"):
        joints = run_pbin_repair(options.prefix, config)
        write_lines(describe_packed_repair(options.prefix, config.output, joints))
        return 0
    with make_reporter() as reporter:
        report = run_repair(as_prefix(options.prefix), config, reporter=reporter)
    if options.json:
        write_json(sys.stdout, asdict(report))
    else:
        write_lines(describe_repair(options.prefix, report))
    return 0
