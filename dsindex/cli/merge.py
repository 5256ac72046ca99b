"""`dsindex merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.cli.options import ConfigFile, read_config
from dsindex.engine.standard_streams import write_lines
from dsindex.options.merge import MergeConfig

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Merge MMIDIDX datasets, whichever program wrote them, in the order given: the .bin in parallel by
ranges of the output, the .idx as a stream. Modes and all documents are kept, empty ones included.
Datasets of different token types, or with and without modes, are refused by name.

Inputs are prefixes: paths without .bin and .idx. They are merged in the order given, whereas
Megatron's merge_datasets.py takes a folder's names in lexicographic order (_10 before _2)."""
EXAMPLES = (
    r"""dsindex merge --input out/a_text_document out/b_text_document \
  --output-prefix out/all_text_document""",
)
OPTIONS = (ConfigFile, MergeConfig)


def run(options: argparse.Namespace) -> int:
    """Merge, show progress, and print a summary."""
    from dsindex.engine.progress import make_reporter
    from dsindex.jobs.merge import run_merge  # loads what a help text does not need

    config = read_config(options, MergeConfig)
    with make_reporter() as reporter:
        report = run_merge(config, reporter=reporter)
    write_lines(report.lines())
    return 0
