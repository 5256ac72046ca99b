"""`dsindex mix`."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count
from dsindex.cli.options import add_config_argument, add_options, read_config
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.options.mix import MixConfig
from dsindex.options.mix_amounts import show_epochs, show_percent
from dsindex.tools.mix import MixReport, run_mix

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from dsindex.tools.mixture import DrawnBlend, MixedSource

DESCRIPTION = """\
Plan a mixture from the tokens that the datasets really have: Megatron's --data-path with weights,
and the tokens and epochs that it draws of each dataset. With --data-path, show what the weights of
a job mean. With --check, compare with what the index caches of a job draw.

A sample has tokens of one dataset only, so a weight is the dataset's share of the tokens that are
drawn, whatever its size. Only .idx files are read, and no cluster is joined."""
EXAMPLES = (
    r"""dsindex mix web_text_document books_text_document=2epochs \
  code_text_document=20% --tokens 300B --global-batch-size 1024""",
    "dsindex mix --data-path 0.3 web_text_document 0.7 books_text_document",
    r"""dsindex mix web_text_document=60% books_text_document=40% \
  --check --data-cache-path out/cache""",
)
_HEADINGS = ("dataset", "tokens", "of all", "weight", "drawn", "of drawn", "epochs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex mix`."""
    add_options(parser, MixConfig, "source", positional=True, nargs="*")
    add_options(parser, MixConfig, "data_path")
    parser.add_argument("--json", action="store_true", help="write the plan as one JSON object")
    length = parser.add_argument_group(
        "length of the run",
        "default: what the amounts in tokens and epochs add up to; with shares only, until the first dataset has been "
        "read once",
    )
    add_options(length, MixConfig, "tokens", "train_samples", "train_iters", "global_batch_size")
    job = parser.add_argument_group("the job")
    add_options(job, MixConfig, "seq_length", "split", "per_split_data_args_path", "valid_data_path", "test_data_path")
    add_options(parser.add_argument_group("check"), MixConfig, "check", "data_cache_path")
    add_config_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Plan a mixture and print it; the exit code is 1 if caches draw something else."""
    if not options.source:
        options.source = None
    report = run_mix(read_config(options, MixConfig, beside=("json",)))
    if options.json:
        write_json(sys.stdout, as_json(report))
    else:
        write_lines(describe_mix(report))
    return 0 if report.ok else 1


def as_json(report: MixReport) -> dict[str, Any]:
    """Return a report in a form for JSON."""
    mixture = report.mixture
    return {
        "data_path": list(mixture.data_path),
        "split": report.split,
        "sequence_length": mixture.sequence_length,
        "num_samples": mixture.num_samples,
        "num_iterations": report.num_iterations,
        "tokens": mixture.tokens,
        "datasets": [
            {
                "prefix": source.prefix,
                "tokens": source.tokens,
                "share_of_all": source.share_of_all,
                "weight": source.weight,
                "share": source.share,
                "num_samples": source.num_samples,
                "tokens_drawn": source.tokens_drawn,
                "epochs": source.epochs,
                "index_epochs": source.index_epochs,
                "epochs_shuffled_together": source.epochs_shuffled_together,
            }
            for source in mixture.sources
        ],
        "first_to_run_out": mixture.first_to_run_out.prefix,
        "per_split_data_args_path": report.per_split_data_args_path,
        "warnings": list(report.warnings),
        "caches": [
            {
                "split": blend.split,
                "description": blend.description,
                "num_samples": list(blend.num_samples),
                "sequence_length": blend.sequence_length,
                "findings": list(blend.findings),
            }
            for blend in report.drawn
        ],
        "ok": report.ok,
    }


def describe_mix(report: MixReport) -> list[str]:
    """Return a report as text: the table, the length of the run, warnings, and what to give to Megatron."""
    mixture = report.mixture
    rows = [_HEADINGS, *map(_row, mixture.sources)]
    total = sum(source.tokens for source in mixture.sources)
    rows.append(("total", f"{total:,}", "100%", "", f"{mixture.tokens:,}", "100%", show_epochs(mixture.tokens / total)))
    lines = [*_align(rows), "", *_describe_run(report), *_describe_first(report)]
    lines += [f"warning: {warning}" for warning in report.warnings]
    for blend in report.drawn:
        lines += _describe_drawn(report, blend)
    lines.append("")
    if report.per_split_data_args_path is not None:
        lines.append(f"--per-split-data-args-path {shlex.quote(report.per_split_data_args_path)}")
    else:
        lines.append(f"--data-path {shlex.join(mixture.data_path)}")
    return lines


def _row(source: MixedSource) -> tuple[str, ...]:
    return (
        source.prefix,
        f"{source.tokens:,}",
        show_percent(source.share_of_all),
        source.weight or "-",
        f"{source.tokens_drawn:,}",
        show_percent(source.share),
        show_epochs(source.epochs),
    )


def _align(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _describe_run(report: MixReport) -> Iterator[str]:
    mixture = report.mixture
    part = "all of each dataset" if report.split is None else f"the train split of {report.split!r}"
    iterations = ""
    if report.num_iterations is not None:
        iterations = f", {count(report.num_iterations, 'iteration')} of {report.global_batch_size:,}"
    yield (
        f"draws {count(mixture.num_samples, 'sample')} of {mixture.sequence_length:,} tokens from {part}{iterations}: "
        f"--train-samples {mixture.num_samples}"
    )


def _describe_first(report: MixReport) -> Iterator[str]:
    mixture = report.mixture
    source = mixture.first_to_run_out
    after = mixture.tokens_until_read_once(source)
    if source.tokens_drawn > source.tokens + mixture.sequence_length:
        at = f", at iteration {_iteration(report, after):,}" if report.global_batch_size else ""
        yield f"first to run out: {source.prefix}, after {after:,} of {mixture.tokens:,} tokens{at}"
        if source.epochs_shuffled_together > 1:
            together = f"{source.epochs_shuffled_together:,} epochs are shuffled together"
            yield f"  its {together}, so some of its tokens come again before all have come once"
    else:
        yield f"nothing runs out before the end; {source.prefix} would be the first, after {after:,} tokens"


def _iteration(report: MixReport, tokens: int) -> int:
    return tokens // (report.mixture.sequence_length * (report.global_batch_size or 1))


def _describe_drawn(report: MixReport, blend: DrawnBlend) -> Iterator[str]:
    size = sum(blend.num_samples)
    yield f"{blend.description}: draws {'something else' if blend.findings else 'what is intended'}"
    epoch = {source.prefix: source.tokens for source in report.mixture.sources} if blend.split == "train" else {}
    for prefix, num, share in zip(blend.prefixes, blend.num_samples, blend.shares, strict=True):
        tokens = num * blend.sequence_length
        epochs = f", {show_epochs(tokens / epoch[prefix])} epochs" if prefix in epoch else ""
        yield f"  {prefix}: {num:,} of {count(size, 'sample')}, {show_percent(share)}; {tokens:,} tokens{epochs}"
    for finding in blend.findings:
        yield f"  FOUND: {finding}"
