"""`dsindex verify`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show, show_json
from dsindex.options.config import JsonOutput
from dsindex.options.datasets import VerifyConfig

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
OPTIONS = (
    VerifyConfig,
    JsonOutput,
)


def run(values: dict[str, Any]) -> int:
    """Verify every dataset and print what was found."""
    from dsindex import functions  # loads what a help text does not need

    as_json = values.pop("as_json", False)
    found = functions.verify(**values, progress=True)
    for each in found.reports if as_json else ():
        show_json(each, verdict=each.verdict, is_whole=each.is_whole, findings=each.findings)
    return (0 if found else 1) if as_json else show(found, 0 if found else 1)
