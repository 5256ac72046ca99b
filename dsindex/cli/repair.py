"""`dsindex repair`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import enter_stores, read_config
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.jobs.repair import describe_packed_repair, run_pbin_repair, run_repair
from dsindex.jobs.rescue_files import describe_repair
from dsindex.options.datasets import RepairCommand
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
EXAMPLES = ("dsindex repair out/docs_text_document --output out/repaired_text_document",)
OPTIONS = (RepairCommand,)


def run(options: argparse.Namespace) -> int:
    """Repair one dataset and print what was saved."""
    config = read_config(options, RepairCommand)
    enter_stores(config)
    if config.prefix.endswith(".pbin"):
        joints = run_pbin_repair(config.prefix, config)
        write_lines(describe_packed_repair(config.prefix, config.output, joints))
        return 0
    with make_reporter() as reporter:
        report = run_repair(as_prefix(config.prefix), config, reporter=reporter)
    if config.as_json:
        write_json(sys.stdout, asdict(report))
    else:
        write_lines(describe_repair(config.prefix, report))
    return 0
