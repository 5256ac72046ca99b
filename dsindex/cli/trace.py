"""`dsindex trace`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import read_config
from dsindex.engine.standard_streams import write_json, write_lines
from dsindex.options.datasets import TraceConfig
from dsindex.tools.trace import run_trace

if TYPE_CHECKING:
    import argparse

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
OPTIONS = (TraceConfig,)


def run(options: argparse.Namespace) -> int:
    """Trace, and print what was found."""
    config = read_config(options, TraceConfig)
    report = run_trace(config)
    if config.as_json:
        write_json(sys.stdout, asdict(report))
    else:
        write_lines(report.lines())
    return 0
