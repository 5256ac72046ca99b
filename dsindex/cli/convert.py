"""`dsindex convert`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show
from dsindex.options.datasets import ConvertCommand

DESCRIPTION = """\
Convert a tokenized dataset without loss: MMIDIDX (Megatron-LM; a prefix, or its .bin or .idx) to
.pbin (Modalities) or back, or a .pbin to another version. A path that ends in .pbin is a .pbin.

Documents and tokens stay the same, empty documents included. A .pbin has no sequences within a
document: --flatten joins them. It stores the size of a token but not its type: 1, 2 and 4 bytes
are read as uint8, uint16 and int32, unless --token-type names another type. The version of a .pbin
is detected; `spec`, the oldest, has 4-byte tokens only."""
EXAMPLES = ("dsindex convert out/docs_text_document out/docs.pbin",)
OPTIONS = (ConvertCommand,)


def run(values: dict[str, Any]) -> int:
    """Convert one dataset and print what was written."""
    from dsindex import functions  # loads what a help text does not need

    return show(functions.convert(**values))
