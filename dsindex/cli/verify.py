"""`dsindex verify`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.amounts import count
from dsindex.cli.options import add_executor_arguments, add_options, read_config
from dsindex.cli.stores import add_store_arguments, dataset_path, enter_stores, path_here, requests_since
from dsindex.datasets.exports import export_folder_of
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.options.config import UsageError
from dsindex.options.pack import PBIN_SUFFIX
from dsindex.tools.verify import VerifyConfig, run_verify, verify_export
from dsindex.tools.verify_pbin import run_pbin_verify

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from dsindex.execution.progress.reporter import Reporter
    from dsindex.tools.verify_report import VerifyReport

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


def check_options(prefixes: Sequence[str], config: VerifyConfig) -> None:
    """Refuse options that contradict each other or do not apply to one of the datasets.

    Raises:
        UsageError: If there are such options.
    """
    if "sample" in config.model_fields_set and not config.against_source:
        msg = "--sample needs --against-source: it is the share of documents to compare with the source"
        raise UsageError(msg)
    exports = [prefix for prefix in prefixes if os.path.isdir(prefix) and export_folder_of(prefix) is not None]
    if exports and (config.cache is not None or config.against_source):
        msg = f"--cache and --against-source are for datasets, not for the export {exports[0]}; leave one of them out"
        raise UsageError(msg)
    packed = [prefix for prefix in prefixes if prefix.endswith(PBIN_SUFFIX)]
    if packed and config.cache is not None:
        msg = f"--cache checks Megatron's index caches, which {packed[0]} cannot have; leave one of them out"
        raise UsageError(msg)


def verify_dataset(given: str, config: VerifyConfig, *, reporter: Reporter) -> VerifyReport:
    """Verify one dataset: a `.pbin`, the folder of an export, or an MMIDIDX pair by its prefix or one of its files."""
    if given.endswith(PBIN_SUFFIX):
        return run_pbin_verify(given, config, reporter=reporter)
    if os.path.isdir(given) and export_folder_of(given) is not None:
        return verify_export(given, reporter=reporter)
    return run_verify(as_prefix(given), config, reporter=reporter)


def as_prefix(path: str) -> str:
    """Return the prefix `x` of `x.bin` or `x.idx`, which a shell's completion yields."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in {".bin", ".idx"} else path


def describe_verification(report: VerifyReport) -> list[str]:
    """Return a report as text."""
    if not report.is_there:
        return [f"{report.prefix}: {finding}" for finding in report.findings]
    lines = [f"{report.prefix}: {'intact' if report.is_whole else 'DAMAGED'}"]
    if report.counts is not None:
        counts = report.counts
        sequences = f"{count(counts.num_sequences, 'sequence')}, " if report.version is None else ""
        lines.append(
            f"  {count(counts.num_documents, 'document')} ({counts.num_empty_documents:,} empty), "
            f"{sequences}{count(counts.num_tokens, 'token')} of type {counts.token_dtype}"
        )
    if report.version is not None:
        lines.append(f"  version of the .pbin: {report.version}")
    lines += [f"  checked: {check}" for check in report.checks]
    lines += [f"  note: {note}" for note in report.notes]
    lines += [f"  FOUND: {finding}" for finding in report.findings]
    return lines
