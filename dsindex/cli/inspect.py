"""`dsindex inspect`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsindex.cli.options import read_config
from dsindex.engine.standard_streams import write_json
from dsindex.json_text import encode_json
from dsindex.options.datasets import InspectConfig
from dsindex.tools.inspect import run_inspect

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Show what a path is, told from its files: a dataset of .bin and .idx, a .pbin of any version, a raw
index, an index cache, instruction data, the work folder of a job, or a manifest. Without a choice:
type, sizes, origin, quantiles of the documents' lengths, and documents drawn from all of it as text.

Tokens are divided by │, and characters that control a terminal are escaped. The tokenizer is the
one in the manifest, if it is unchanged; without one, ids are shown. Tokens of instruction data that
are trained on are green in a terminal, and in brackets elsewhere.

Exit code 0: readable. 1: damaged; each finding is one line."""
EXAMPLES = (
    "dsindex inspect out/docs_text_document",
    "dsindex inspect out/docs_text_document --document 7",
    "dsindex inspect out/cache --sample 3",
)
OPTIONS = (InspectConfig,)


def run(options: argparse.Namespace) -> int:
    """Look at one path and print what was seen."""
    config = read_config(options, InspectConfig)
    seen = run_inspect(config)
    if not config.as_json:
        sys.stdout.write("".join(f"{line}\n" for line in seen.lines()))
    elif sys.stdout.isatty():  # C1 control characters, which JSON allows, may control a terminal
        sys.stdout.write(encode_json(asdict(seen), newline=True, ascii_only=True).decode())
    else:
        write_json(sys.stdout, asdict(seen))
    return 1 if seen.findings else 0
