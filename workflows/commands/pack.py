"""`dsindex pack`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsindex.formats.pbin import CURRENT_ERA, ERAS
from dsindex.formats.pbin_join import merge_packed
from workflows.commands.options import UsageError, add_config_argument, add_text_arguments, read_options, validated
from workflows.execution.choice import make_executor
from workflows.execution.dispatch import RetryPolicy
from workflows.execution.ordered import ordered_runner
from workflows.jobs.pack import run_pack
from workflows.options.config import ExecutorConfig
from workflows.options.pack import (
    MODALITIES_PARTS,
    PACKED_SUFFIX,
    PackConfig,
    is_modalities_config,
    read_modalities_config,
)
from workflows.progress.choice import make_reporter
from workflows.progress.standard_streams import write_lines

if TYPE_CHECKING:
    import argparse

    from workflows.jobs.pack import PackReport

DESCRIPTION = """\
Tokenize JSONL into packed data for Modalities, FILE.pbin, byte for byte what its own command
`data pack_encoded_data` writes, with a manifest and the provenance of every document beside it.

A text without tokens makes no document; it is counted. The same command again continues where an
interrupted one stopped. CONFIG is a file of options, or Modalities' own configuration file: what of
it cannot be honoured is refused by name.

--merge joins .pbin files of any era, in the order given, with right offsets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex pack`."""
    parser.add_argument("config_file", nargs="?", metavar="CONFIG", help="the same as --config CONFIG")
    add_config_argument(parser)
    data = parser.add_argument_group("input and output")
    data.add_argument("--input", nargs="+", metavar="PATH", help="JSONL files or patterns, in the order of the output")
    data.add_argument(
        "--jq-pattern",
        metavar="JQ",
        help="gives the text of a record (default: .text); a pattern that is more than one key runs per record, slower",
    )
    data.add_argument("--output", metavar="FILE.pbin", help="the packed data")
    data.add_argument(
        "--pbin-era", choices=list(ERAS), help=f"layout, by when Modalities wrote it (default: {CURRENT_ERA.name})"
    )
    data.add_argument("--merge", nargs="+", metavar="FILE.pbin", help="join these files instead of packing text")
    add_text_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Pack or merge, and close with a summary."""
    merged = _read_options(options)
    if "merge" in merged:
        return _merge(merged)
    config = validated(merged, PackConfig)
    with make_reporter(log_json=config.log_json) as reporter:
        report = run_pack(config, reporter=reporter)
    write_lines(describe_pack(report))
    return 0


def _read_options(options: argparse.Namespace) -> dict[str, Any]:
    """Join flags with a file in our own form or in Modalities'; flags win.

    Raises:
        UsageError: If there are two files.
        InputError: If the file cannot be read, or asks for what cannot be done.
    """
    if options.config_file and options.config:
        msg = f"expected one file of options, got {options.config_file} and --config {options.config}"
        raise UsageError(msg)
    path = options.config = options.config_file or options.config
    merged = read_options(options)
    merged.pop("config_file", None)
    if is_modalities_config(merged):
        theirs = {name: merged.pop(name) for name in MODALITIES_PARTS if name in merged}
        translated, ignored = read_modalities_config(path, theirs)
        if ignored:
            sys.stderr.write(
                f"{path}: without effect here: {', '.join(ignored)}; shards are read and written instead\n"
            )
        merged = {**translated, **merged}
    if "output_prefix" in merged:
        msg = "there is no option 'output_prefix'; give --output FILE.pbin"
        raise UsageError(msg)
    return merged


def _merge(merged: dict[str, Any]) -> int:
    """Join `.pbin` files."""
    paths, output = merged.pop("merge"), merged.pop("output", None)
    era = merged.pop("pbin_era", CURRENT_ERA.name)
    if not isinstance(output, str) or not output.endswith(PACKED_SUFFIX):
        msg = f"--merge needs the name of a {PACKED_SUFFIX} file to make as --output, got {output!r}"
        raise UsageError(msg)
    if era not in ERAS:
        msg = f"--pbin-era: expected one of {', '.join(ERAS)}, got {era!r}"
        raise UsageError(msg)
    foreign = sorted(merged.keys() - ExecutorConfig.model_fields.keys())
    if foreign:
        msg = f"--merge joins packed files as they are, and --{foreign[0].replace('_', '-')} means nothing to it"
        raise UsageError(msg)
    config = validated(merged, ExecutorConfig)
    executor = make_executor(config)
    try:
        policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        header = merge_packed(
            paths, output, era=ERAS[era], run_tasks=ordered_runner(executor, name="merge", policy=policy)
        )
    finally:
        executor.close()
    write_lines(f"{output}: {header.num_tokens:,} tokens of {header.token_bytes} bytes, from {len(paths)} files\n")
    return 0


def describe_pack(report: PackReport) -> str:
    """Return the closing summary: what was packed, at which speed, and the line that two people compare."""
    counts = report.counts
    if report.already_complete:
        first = "already complete: the same plan was packed before, nothing was done"
    else:
        speed = report.input_bytes / max(report.seconds, 1e-6) / 1e6
        first = (
            f"done in {report.seconds:.1f} s: {report.input_bytes / 1e6:,.1f} MB of input, {speed:,.3g} MB/s, "
            f"{report.run.shards:,} shards, {report.run.executor} executor, {report.run.workers} workers, "
            f"{report.engine}"
        )
    return (
        f"{first}\n"
        f"{counts.lines:,} lines = {counts.kept:,} kept + {counts.quarantined:,} quarantined "
        f"+ {counts.blank:,} blank\n"
        f"{report.path}: {report.num_documents:,} documents, {report.num_tokens:,} tokens of type {report.token_dtype}"
        f"; {report.num_empty:,} texts without tokens\n"
        f"  .pbin {report.files['pbin'].digest}\n"
    )
