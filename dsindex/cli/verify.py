"""`dsindex verify`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import add_executor_arguments, add_options, read_config
from dsindex.cli.stores import add_store_arguments, dataset_path, enter_stores, path_here, requests_since
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.tools.verify import VerifyConfig
from dsindex.tools.verify_pbin import check_options, verify_dataset
from dsindex.tools.verify_report import describe_verification

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Prove that a dataset is intact: sizes, and the structure and every entry of its .idx, or of a .pbin
of any version. If it has a manifest, also digests, token ids, EOD at the end of every document,
record counts and provenance. A path that ends in .pbin is a .pbin; the folder of an export of
`dsindex instruct` is one as well.

--cache checks index caches against the data: that descriptions, names and arrays agree, and that
every sample has the right tokens. --against-source reads and tokenizes the inputs again, and names
the first document that differs with its file and line.

Exit code 0: intact. 1: damaged; each finding is one line."""
EXAMPLES = (
    "dsindex verify out/docs_text_document",
    r"""dsindex verify out/docs_text_document --against-source --sample 1% \
  --tokenizer-model FOLDER""",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex verify`."""
    parser.add_argument(
        "prefix",
        nargs="+",
        metavar="PREFIX",
        type=dataset_path,
        help="datasets: paths without .bin and .idx, here or in an object store; or FILE.pbin",
    )
    add_options(parser, VerifyConfig, "cache", type=path_here)
    add_options(parser, VerifyConfig, "against_source", "sample", "tokenizer_model", "engine")
    parser.add_argument("--json", action="store_true", help="write one JSON object per dataset")
    add_store_arguments(parser)
    add_executor_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Verify every dataset and print what was found."""
    before = enter_stores(options)
    config = read_config(options, VerifyConfig, beside=("prefix", "json"))
    check_options(options.prefix, config)
    whole = True
    for given in options.prefix:
        with make_reporter() as reporter:
            report = verify_dataset(given, config, reporter=reporter)
        if options.json:
            write_json(sys.stdout, {"is_whole": report.is_whole, **asdict(report)})
        else:
            write_lines(describe_verification(report))
        whole = whole and report.is_whole
    if not options.json:
        write_lines(requests_since(before))
    return 0 if whole else 1
