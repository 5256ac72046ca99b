"""`dsindex inspect`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show, show_json
from dsindex.options.config import JsonOutput
from dsindex.options.datasets import InspectConfig

DESCRIPTION = """\
Show what a path is, told from its files: a dataset of .bin and .idx, a .pbin of any version, a raw
index, an index cache, instruction data, the work folder of a job, or a manifest. Without a choice:
type, sizes, origin, quantiles of the documents' lengths, and documents drawn from all of it as text.

Tokens are divided by │, and characters that control a terminal are escaped. The tokenizer is the
one in the manifest, if it is unchanged; without one, ids are shown. Tokens of instruction data that
are trained on are in brackets.

Exit code 0: readable. 1: damaged; each finding is one line."""
EXAMPLES = (
    "dsindex inspect out/docs_text_document",
    "dsindex inspect out/docs_text_document --document 7",
    "dsindex inspect out/cache --sample 3",
)
OPTIONS = (
    InspectConfig,
    JsonOutput,
)


def run(values: dict[str, Any]) -> int:
    """Look at one path and print what was seen."""
    from dsindex import functions  # loads what a help text does not need

    as_json = values.pop("as_json", False)
    found = functions.inspect(**values)
    code = 1 if found.findings else 0
    return show_json(found, code) if as_json else show(found, code)
