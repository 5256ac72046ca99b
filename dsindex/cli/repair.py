"""`dsindex repair`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.cli.options import add_executor_arguments, add_options, read_config
from dsindex.cli.stores import add_store_arguments, enter_stores, output_here, path_here
from dsindex.cli.verify import as_prefix
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.jobs.repair import RepairConfig, run_pbin_repair, run_repair
from dsindex.options.config import UsageError

if TYPE_CHECKING:
    import argparse

    from dsindex.jobs.rescue_files import RepairReport

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


def with_fitting_output(prefix: str, config: RepairConfig) -> RepairConfig:
    """Return the options with the output as a prefix, or a `.pbin` for packed data.

    Raises:
        UsageError: If it is of the other kind.
    """
    if prefix.endswith(".pbin"):
        if not config.output.endswith(".pbin"):
            msg = f"expected a .pbin as --output for {prefix}, got {config.output}"
            raise UsageError(msg)
        return config
    if config.output.endswith(".pbin"):
        msg = f"expected a prefix as --output for the prefix {prefix}, got {config.output}"
        raise UsageError(msg)
    return config.model_copy(update={"output": as_prefix(config.output)})


def describe_packed_repair(path: str, output: str, num_joints: int) -> list[str]:
    """Return the result for a `.pbin` as text."""
    said = f"{num_joints} joints with low offsets repaired, written to {output}" if num_joints else "intact"
    return [f"{path}: {said}"]


def describe_repair(prefix: str, report: RepairReport) -> list[str]:
    """Return the result as text."""
    if not report.outputs:
        return [f"{prefix}: intact, nothing to repair and nothing written"]
    how = "restored IN PART" if report.lost else "restored"
    documents = count(report.num_documents, "document")
    lines = [
        f"{prefix}: {how} from {report.way}",
        f"  {documents}, {count(report.num_sequences, 'sequence')}, {count(report.num_tokens, 'token')}",
    ]
    lines += [f"  wrote: {path}" for path in report.outputs]
    lines += [f"  LOST: {loss}" for loss in report.lost]
    lines += [f"  note: {note}" for note in report.notes]
    return lines
