"""`dsindex compare`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import enter_stores, read_config, requests_since
from dsindex.execution.progress.displays import make_reporter
from dsindex.execution.progress.standard_streams import write_json, write_lines
from dsindex.options.datasets import CompareConfig
from dsindex.tools.compare import DatasetComparison, run_compare

if TYPE_CHECKING:
    import argparse

DESCRIPTION = """\
Tell whether two datasets have the same tokens, and if not, where they first differ and by which rule:
what ends and begins documents (EOD, BOS), what became of empty texts, where documents end, or the
tokens of a text themselves. Both may be of any tool: MMIDIDX pairs or .pbin files. Where there are
manifests, differences of inputs, tokenizer, options and counts are listed, too.

Instruction data is compared with its loss masks and block layouts. Of two index caches, which may be
Megatron's own, every index is compared, and the settings in their descriptions.

The exit code is 1 if they differ."""
EXAMPLES = (
    "dsindex compare out/docs_text_document /old/docs_text_document",
    "dsindex compare out/cache /old/cache",
)
OPTIONS = (CompareConfig,)


def run(options: argparse.Namespace) -> int:
    """Compare two datasets or index caches and print what was found."""
    config = read_config(options, CompareConfig)
    before = enter_stores(config)
    with make_reporter() as reporter:
        report = run_compare(config, reporter=reporter)
    if config.as_json:
        found = _plain(report) if isinstance(report, DatasetComparison) else asdict(report)
        write_json(sys.stdout, {"is_same": report.is_same, **found})
    else:
        write_lines(report.lines() + requests_since(before))
    return 0 if report.is_same else 1


def _plain(report: DatasetComparison) -> dict[str, object]:
    sides = [
        {"path": side.path, "documents": side.num_documents, "tokens": side.num_tokens, "dtype": side.dtype}
        for side in report.sides
    ]
    return {
        "sides": sides,
        "comparison": asdict(report.comparison),
        "first_difference": [None if excerpt is None else asdict(excerpt) for excerpt in report.excerpts],
        "same_text": report.same_text,
        "settings": [{"name": name, "a": a, "b": b} for name, a, b in report.settings],
        **({} if report.masks is None else {"masks": asdict(report.masks)}),
    }
