"""`dsindex index`."""

from __future__ import annotations

import sys
from typing import Any

from dsindex.cli.render import show
from dsindex.engine.standard_streams import show_lines
from dsindex.options.index import IndexConfig, TokenizerFlags, local_path, parse_replacements
from dsindex.options.pretrain_command import merge_command, take_command

DESCRIPTION = """\
Build the document, sample and shuffle index of each split of a dataset or blend, as the cache files
of a Megatron training job and under its names, so that the job finds them and builds nothing.

The hash in a cache's name covers the job's settings character by character: use the same
--seq-length, --split, --seed and paths as the job, and the tokenizer's identifiers
(--tokenizer-identifiers or --like). --explain says why a job would not find a cache.
Or give the job's command after --: what matters is taken, options before it override it."""
EXAMPLES = (
    r"""dsindex index --data-path out/docs_text_document --seq-length 4096 \
  --train-iters 5000 --global-batch-size 256 --eval-interval 1000 \
  --data-cache-path out/cache --like description.txt""",
    r"""dsindex index --megatron-release 0.19 --data-cache-path out/cache \
  -- torchrun pretrain_gpt.py --seq-length 4096 --train-iters 500 --bf16""",
    r"""dsindex index --data-path 0.9 web_text_document 0.1 code_text_document \
  --seq-length 4096 --num-samples 90000,1000,1000 --data-cache-path out/cache""",
)
OPTIONS = (
    IndexConfig,
    TokenizerFlags,
)
TAKES_COMMAND = True
"""Words after -- are a job's command."""


def run(values: dict[str, Any]) -> int:
    """Build or explain index caches, and print a summary."""
    from dsindex import functions  # loads what a help text does not need

    words = values.pop("words", None)
    if words:
        replacements = parse_replacements(values.get("dataset_path_as") or ())
        command = take_command(words, local_path=lambda path: local_path(path, replacements))
        values, notes = merge_command(values, command)
        sys.stderr.write(show_lines(f"dsindex: {note}" for note in notes))
    found = functions.build_index(**values)
    show(found)
    return 0 if found.ok else 1
