"""`dsindex report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.stores import (
    add_store_arguments,
    dataset_path,
    enter_stores,
    output_here,
    path_here,
    requests_since,
)
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.tools.report import ReportOptions, run_report

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Write one HTML page about one or several datasets, from their manifests and one pass over their
tokens: records, lengths, tokens, vocabulary, repeated documents, throughput, digests, and examples to
leaf through and search. The page works offline and holds at most some MB.

Datasets of any tool are taken: .bin and .idx, .pbin, instruction data. What is not recorded is left
out and named. A file is replaced only if it is a report that nobody has changed.

The exit code is 1 if something is damaged; the page is written all the same."""
EXAMPLES = (
    "dsindex report out/docs_text_document -o report.html",
    r"""dsindex report out/web_text_document out/books_text_document \
  --cache out/cache -o report.html""",
)
REQUIRED = {"output": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex report`."""
    parser.add_argument(
        "prefix",
        nargs="+",
        metavar="PREFIX",
        type=dataset_path,
        help="a dataset: a prefix, one of its files, or a .pbin, here or in an object store",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, type=output_here, help="the page to write, such as report.html"
    )
    parser.add_argument(
        "--tokenizer-model", metavar="T", help="decode with this tokenizer (default: the one in each manifest)"
    )
    parser.add_argument(
        "--cache",
        nargs="+",
        metavar="D",
        type=path_here,
        help="folders of index caches: show splits, epochs and blends, too",
    )
    add_store_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Write a report and say what is in it."""
    before = enter_stores(options)
    with make_reporter() as reporter:
        report = run_report(
            options.prefix,
            ReportOptions(
                output=options.output,
                tokenizer_model=options.tokenizer_model,
                cache=tuple(options.cache or ()),
            ),
            reporter=reporter,
        )
    write_lines(report.lines() + requests_since(before))
    return 0 if report.ok else 1
