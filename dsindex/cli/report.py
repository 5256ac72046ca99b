"""`dsindex report`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show
from dsindex.options.datasets import ReportConfig

DESCRIPTION = """\
Write one HTML page about one or several datasets, from their manifests and one pass over their
tokens: sources, lengths, tokens, repeated documents and examples; with --cache, what a mixture draws.
The page works offline.

Datasets of any tool are taken: .bin and .idx, .pbin, instruction data. What is not recorded is left
out and named. A file is replaced only if it is such a page.

The exit code is 1 if something is damaged; the page is written all the same."""
EXAMPLES = (
    "dsindex report out/docs_text_document -o report.html",
    r"""dsindex report out/web_text_document out/books_text_document \
  --cache out/cache -o report.html""",
)
OPTIONS = (ReportConfig,)


def run(values: dict[str, Any]) -> int:
    """Write a report and say what is in it."""
    from dsindex import functions  # loads what a help text does not need

    found = functions.report(**values, progress=True)
    return show(found, 0 if found.ok else 1)
