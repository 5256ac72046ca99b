"""`dsindex convert`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dsindex.convert import convert_era, convert_to_indexed, convert_to_packed
from dsindex.formats.pbin import CURRENT_ERA, ERAS
from workflows.commands.options import UsageError, add_executor_arguments, read_config
from workflows.execution.choice import make_executor
from workflows.execution.dispatch import RetryPolicy
from workflows.execution.ordered import ordered_runner
from workflows.options.config import ExecutorConfig
from workflows.progress.standard_streams import write_lines

if TYPE_CHECKING:
    import argparse

    from dsindex.convert import Conversion
    from dsindex.formats.raw_index import RunTasks

OWN_FLAGS = ("source", "destination", "pbin_era", "flatten", "token_type")

DESCRIPTION = """\
Convert a tokenized dataset without loss: MMIDIDX (Megatron-LM; a prefix, or its .bin or .idx) to
.pbin (Modalities) or back, or a .pbin to another version. A path that ends in .pbin is a .pbin.

Documents and tokens stay the same, empty documents included. A .pbin has no sequences within a
document: --flatten joins them. It stores the size of a token but not its type: 1, 2 and 4 bytes
are read as uint8, uint16 and int32, unless --token-type names another type. The version of a .pbin
is detected; `spec`, the oldest, has 4-byte tokens only."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex convert`."""
    parser.add_argument("source", metavar="SRC", help="PREFIX or FILE.pbin")
    parser.add_argument("destination", metavar="DST", help="FILE.pbin or PREFIX; it must not exist")
    parser.add_argument(
        "--pbin-era",
        choices=list(ERAS),
        help=f"version of the .pbin to write (default: {CURRENT_ERA.name}), or to read if DST is an MMIDIDX dataset",
    )
    parser.add_argument("--flatten", action="store_true", help="join the sequences of each document")
    parser.add_argument(
        "--token-type",
        choices=["uint8", "uint16", "int32"],
        help="token type of the MMIDIDX dataset to write (default: by the tokens' size)",
    )
    add_executor_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Convert one dataset and print what was written."""
    config = read_config(options, ExecutorConfig, beside=OWN_FLAGS)
    if not (_is_packed(options.source) or _is_packed(options.destination)):
        msg = f"expected SRC or DST to end in .pbin, got {options.source} and {options.destination}"
        raise UsageError(msg)
    executor = make_executor(config)
    try:
        policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        conversion = _convert(options, ordered_runner(executor, name="convert", policy=policy))
    finally:
        executor.close()
    write_lines(
        f"{' and '.join(conversion.outputs)}: {conversion.num_documents:,} documents, "
        f"{conversion.num_tokens:,} tokens of type {conversion.dtype}\n"
    )
    return 0


def _convert(options: argparse.Namespace, run_tasks: RunTasks) -> Conversion:
    era = ERAS[options.pbin_era] if options.pbin_era else None
    if not _is_packed(options.source):
        source = _prefix(options.source)
        return convert_to_packed(
            source, options.destination, era=era or CURRENT_ERA, flatten=options.flatten, run_tasks=run_tasks
        )
    if _is_packed(options.destination):
        return convert_era(options.source, options.destination, era=era or CURRENT_ERA, run_tasks=run_tasks)
    dtype = np.dtype(options.token_type) if options.token_type else None
    return convert_to_indexed(options.source, _prefix(options.destination), era=era, dtype=dtype, run_tasks=run_tasks)


def _is_packed(path: str) -> bool:
    return path.endswith(".pbin")


def _prefix(path: str) -> str:
    """Return the prefix `x` of `x.bin` or `x.idx`, which a shell's completion yields."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in {".bin", ".idx"} else path
