"""`dsindex merge`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show
from dsindex.options.merge import MergeConfig

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
OPTIONS = (MergeConfig,)


def run(values: dict[str, Any]) -> int:
    """Merge, show progress, and print a summary."""
    from dsindex import functions  # loads what a help text does not need

    return show(functions.merge(**values, progress=True))
