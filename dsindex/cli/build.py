"""`dsindex build`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count, format_size, format_speed
from dsindex.cli.object_requests import describe_requests
from dsindex.cli.options import (
    add_config_argument,
    add_format_arguments,
    add_input_arguments,
    add_text_arguments,
    read_options,
    without_megatron_flags,
)
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import show_lines, write_summary
from dsindex.jobs.build import run_build
from dsindex.jobs.index import describe_index
from dsindex.options.index import add_index_arguments, copy_job_tokenizer, split_options
from dsindex.options.megatron_flags import add_megatron_arguments
from dsindex.tools.check import describe_check, run_check

if TYPE_CHECKING:
    import argparse

    from dsindex.jobs.build import BuildReport
    from dsindex.options.build import BuildConfig

DESCRIPTION = """\
Tokenize text (JSONL, compressed files, Parquet and more) in parallel into shards, merge them, and
publish one dataset per key: PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's
preprocess_data.py writes, with a manifest (record counts and digests) and the provenance of every
document.

Run the same command again to continue an interrupted build. Every option can also be set in a YAML
file (--config), with underscores for dashes. A command of preprocess_data.py works as it stands:
its other flags are accepted, and those without effect are named; so are those of pretrain_gpt.py."""
EXAMPLES = (
    r"""dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod \
  --output-prefix out/docs""",
    r"""dsindex build --input data/ --json-keys text title --tokenizer-model gpt2 \
  --output-prefix out/web --address auto --workers 64""",
    r"""dsindex build --config build.yaml --seq-length 4096 --epochs 2 \
  --data-cache-path out/cache""",
)
REQUIRED = {"input": "--input-list", "tokenizer_model": "--vocab-file and --merge-file", "output_prefix": ""}
TAKES_PRETRAIN_FLAGS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex build`."""
    add_config_argument(parser)
    data = parser.add_argument_group("input and output")
    add_input_arguments(data)
    data.add_argument(
        "--json-keys",
        nargs="+",
        metavar="KEY",
        help="keys whose texts are tokenized: names, paths (.meta.text) or jq patterns (NAME=.a + .b) (default: text)",
    )
    data.add_argument(
        "--join", metavar="SEPARATOR", help=r"join the texts of all keys to one; \n, \t and \\ are escapes"
    )
    data.add_argument("--where", metavar="CONDITION", help="leave out records for which this jq condition is not true")
    data.add_argument(
        "--token-ids", metavar="KEY", help="take lists of token ids from this name or path, instead of --json-keys"
    )
    data.add_argument(
        "--output-prefix", metavar="P", help="outputs are named P_KEY_document.*, here or in a bucket (s3://, gs://)"
    )
    data.add_argument(
        "--shuffle-documents",
        metavar="SEED",
        help="put the documents of all inputs into a random order, which depends on this number alone",
    )
    data.add_argument("--sample", metavar="SHARE", help="keep this share of the records (10%% or 0.1), by their texts")
    data.add_argument(
        "--repeat",
        nargs="+",
        metavar="FILE=TIMES",
        help="read these inputs several times or in part: 2.5 is twice, then a sample of one half",
    )
    data.add_argument("--append-eod", action="store_true", default=None, help="end every document with the EOD token")
    data.add_argument(
        "--empty-documents",
        choices=("keep", "eod"),
        help="store texts without tokens as empty documents, as Megatron's preprocess_data.py does, or as EOD alone, "
        "as its preprocess_data_fast.py does (default: keep)",
    )
    add_text_arguments(parser)
    add_format_arguments(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        default=None,
        help="build nothing: check on every node that inputs and folders are visible, there is enough disk space, "
        "versions agree and the tokenizer works",
    )
    add_index_arguments(parser, paths=False)
    add_megatron_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Build, show progress, and print a summary."""
    config, index = read_build_options(options)
    if config.check:
        return _check(config)
    with make_reporter(log_json=config.log_json) as reporter:
        report = run_build(config, reporter=reporter, index=index)
    write_summary(
        describe_build(report),
        seconds=round(report.seconds, 3),
        already_complete=report.already_complete,
        outputs=[
            {"prefix": dataset.prefix, "documents": dataset.num_documents, "tokens": dataset.num_tokens}
            for dataset in report.datasets
        ],
    )
    return 0


def _check(config: BuildConfig) -> int:
    with make_reporter(log_json=config.log_json) as reporter:
        report = run_check(config, reporter=reporter)
    write_summary(describe_check(report))
    sys.stderr.write(show_lines(report.faults))
    return 1 if report.faults else 0


def read_build_options(options: argparse.Namespace) -> tuple[BuildConfig, dict[str, Any] | None]:
    """Read the options of a build from a file and flags, split as by `split_options`.

    Raises:
        UsageError: If they are invalid.
    """
    merged = read_options(options)
    copy_job_tokenizer(merged)
    return split_options(without_megatron_flags(merged))


def describe_build(report: BuildReport) -> list[str]:
    """Return the summary: what was built, how fast, and the digests by which two builds are compared."""
    counts = report.counts
    lines = []
    if report.already_complete:
        lines.append("already complete: the same plan was built before, nothing was done")
    else:
        lines.append(
            f"done in {report.seconds:.1f} s: {format_size(report.input_bytes)} of input, "
            f"{format_speed(report.input_bytes / max(report.seconds, 1e-6))}, "
            f"{count(report.run.shards, 'shard')}, {report.run.executor} executor, "
            f"{count(report.run.workers, 'worker')}, "
            f"{report.engine}"
        )
    filtered = f"{counts.filtered:,} filtered + " if "filtered" in counts.model_fields_set else ""
    lines.append(
        f"{count(counts.lines, 'line')} = {counts.kept:,} kept + {filtered}{counts.quarantined:,} quarantined + "
        f"{counts.blank:,} blank"
    )
    lines += [*describe_requests(report.requests), *report.input_notes]
    for dataset in report.datasets:
        lines.append(
            f"{dataset.prefix}: {count(dataset.num_documents, 'document')}, "
            f"{count(dataset.num_sequences, 'sequence')}, {count(dataset.num_tokens, 'token')}"
        )
        lines += [f"  .{suffix:4} {dataset.files[suffix].digest}" for suffix in ("bin", "idx")]
    for indices in report.indices:
        lines += describe_index(indices)
    return lines
