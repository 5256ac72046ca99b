"""`dsindex trace`."""

from __future__ import annotations

from typing import Any

from dsindex.cli.render import show, show_json
from dsindex.options.config import JsonOutput
from dsindex.options.datasets import TraceConfig

DESCRIPTION = """\
Show which documents and lines of the inputs a training sample or step consists of, or which
samples and steps have a document or a line. Works on the index caches of dsindex and Megatron,
and on packs of `dsindex instruct`: P_packing_L, or the folder of the export bridge.

Samples and documents count from 0; steps, epochs and lines from 1. Token ranges such as 12:140
end before the second number, and count from the document's first token. A step is one of
Megatron's iterations with --dataloader-type single and a fixed --global-batch-size."""
EXAMPLES = (
    "dsindex trace out/cache --sample 3",
    "dsindex trace out/cache --step 1200 --global-batch-size 1024",
    "dsindex trace out/cache --line docs.jsonl:180",
    "dsindex trace out/cache --consumed 400000",
    "dsindex trace out/chat_packing_4096 --line chat.jsonl:7",
)
OPTIONS = (
    TraceConfig,
    JsonOutput,
)


def run(values: dict[str, Any]) -> int:
    """Trace, and print what was found."""
    from dsindex import functions  # loads what a help text does not need

    as_json = values.pop("as_json", False)
    return (show_json if as_json else show)(functions.trace(**values))
