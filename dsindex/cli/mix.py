"""`dsindex mix`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show, show_json
from dsindex.options.config import JsonOutput
from dsindex.options.mix import MixConfig

DESCRIPTION = """\
Plan a mixture from the tokens that the datasets really have: Megatron's --data-path with weights,
and the tokens and epochs that it draws of each dataset. With --data-path, show what the weights of
a job mean.

A sample has tokens of one dataset only, so a weight is the dataset's share of the tokens that are
drawn, whatever its size. Only .idx files are read, and no cluster is joined."""
EXAMPLES = (
    r"""dsindex mix web_text_document books_text_document=2epochs \
  code_text_document=20% --tokens 300B --global-batch-size 1024""",
    "dsindex mix --data-path 0.3 web_text_document 0.7 books_text_document",
    "dsindex mix code=30% books=max2epochs web --tokens 1.2T",
)
OPTIONS = (
    MixConfig,
    JsonOutput,
)


def run(values: dict[str, Any]) -> int:
    """Plan a mixture and print it."""
    from dsindex import functions  # loads what a help text does not need

    as_json = values.pop("as_json", False)
    found = functions.mix(**values)
    if as_json:
        return show_json(found, data_path=list(found.data_path), tokens=found.tokens)
    return show(found)
