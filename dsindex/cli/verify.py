"""`dsindex verify`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import read_config
from dsindex.engine.progress import make_reporter
from dsindex.engine.standard_streams import write_json, write_lines
from dsindex.options.datasets import VerifyCommand
from dsindex.tools.verify_report import describe_verifications

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Prove that a dataset is intact: sizes, and the structure and every entry of its .idx, or of a .pbin
of any version. If it has a manifest, also digests, token ids, EOD at the end of every document,
record counts and provenance. A path that ends in .pbin is a .pbin; the folder of an export of
`dsindex instruct` is one as well.

--cache checks index caches against the data: that descriptions, names and arrays agree, and that
every sample has the right tokens. --against-source reads and tokenizes the inputs again, and names
the first document that differs with its file and line. --same-as compares with another dataset, of
any tool, and names the first document that differs.

Exit code 0: intact. 1: damaged; each finding is one line."""
EXAMPLES = (
    "dsindex verify out/docs_text_document",
    r"""dsindex verify out/docs_text_document --against-source --sample 1% \
  --tokenizer-model FOLDER""",
)
OPTIONS = (VerifyCommand,)


def run(options: argparse.Namespace) -> int:
    """Verify every dataset and print what was found."""
    from dsindex.tools.verify_pbin import verify_dataset  # not for a help text

    config = read_config(options, VerifyCommand)
    reports = []
    for given in config.prefix:
        with make_reporter() as reporter:
            reports.append(verify_dataset(given, config, reporter=reporter))
        if config.as_json:
            write_json(sys.stdout, {"is_whole": reports[-1].is_whole, **asdict(reports[-1])})
    if not config.as_json:
        write_lines(describe_verifications(reports))
    return 0 if all(report.is_whole for report in reports) else 1
