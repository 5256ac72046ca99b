"""`dsindex convert`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from dsindex.amounts import count
from dsindex.cli.options import add_executor_arguments, read_config
from dsindex.cli.stores import add_store_arguments, dataset_path, enter_stores, output_here, requests_since
from dsindex.engine.nodes import require_shared
from dsindex.engine.start import start_with_nodes
from dsindex.execution.dispatch import RetryPolicy, ordered_runner
from dsindex.execution.progress.standard_streams import write_lines
from dsindex.formats.pbin import CURRENT_VERSION, PBIN_VERSIONS
from dsindex.jobs.conversion import convert_to_indexed, convert_to_pbin, convert_version
from dsindex.options.config import ExecutorConfig, UsageError

if TYPE_CHECKING:
    import argparse

from dsindex.jobs.conversion import Conversion

OWN_FLAGS = ("source", "destination", "pbin_era", "flatten", "token_type")

DESCRIPTION = """\
Convert a tokenized dataset without loss: MMIDIDX (Megatron-LM; a prefix, or its .bin or .idx) to
.pbin (Modalities) or back, or a .pbin to another version. A path that ends in .pbin is a .pbin.

Documents and tokens stay the same, empty documents included. A .pbin has no sequences within a
document: --flatten joins them. It stores the size of a token but not its type: 1, 2 and 4 bytes
are read as uint8, uint16 and int32, unless --token-type names another type. The version of a .pbin
is detected; `spec`, the oldest, has 4-byte tokens only."""
EXAMPLES = ("dsindex convert out/docs_text_document out/docs.pbin",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `dsindex convert`."""
    parser.add_argument(
        "source", metavar="SRC", type=dataset_path, help="PREFIX or FILE.pbin, here or in an object store"
    )
    parser.add_argument("destination", metavar="DST", type=output_here, help="FILE.pbin or PREFIX; it must not exist")
    parser.add_argument(
        "--pbin-era",
        choices=list(PBIN_VERSIONS),
        help=f"version of the .pbin to write (default: {CURRENT_VERSION.name}), or to read if DST is MMIDIDX",
    )
    parser.add_argument("--flatten", action="store_true", help="join the sequences of each document")
    parser.add_argument(
        "--token-type",
        choices=["uint8", "uint16", "int32"],
        help="token type of the MMIDIDX dataset to write (default: by the tokens' size)",
    )
    add_store_arguments(parser)
    add_executor_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Convert one dataset and print what was written."""
    before = enter_stores(options)
    config = read_config(options, ExecutorConfig, beside=OWN_FLAGS)
    own = {name: getattr(options, name) for name in OWN_FLAGS}
    write_lines(describe_conversion(convert_dataset(config, **own)) + requests_since(before))
    return 0


def convert_dataset(
    config: ExecutorConfig,
    *,
    source: str,
    destination: str,
    pbin_era: str | None = None,
    flatten: bool = False,
    token_type: str | None = None,
) -> Conversion:
    """Convert one dataset; the names determine the formats.

    Raises:
        UsageError: If neither name ends in `.pbin`.
        DsindexError: If it cannot be converted as asked; final names then never refer to incomplete files.
    """
    check_names(source, destination)
    version = PBIN_VERSIONS[pbin_era] if pbin_era else None
    executor = start_with_nodes(config)
    try:
        ends = ("",) if _is_packed(source) else (".bin", ".idx")
        require_shared(
            executor,
            files=(f"{source if _is_packed(source) else _prefix(source)}{end}" for end in ends),
            folders=[os.path.dirname(os.path.abspath(destination))],
        )
        policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        run_tasks = ordered_runner(executor, name="convert", policy=policy)
        if not _is_packed(source):
            return convert_to_pbin(
                _prefix(source), destination, version=version or CURRENT_VERSION, flatten=flatten, run_tasks=run_tasks
            )
        if _is_packed(destination):
            return convert_version(source, destination, version=version or CURRENT_VERSION, run_tasks=run_tasks)
        dtype = np.dtype(token_type) if token_type else None
        return convert_to_indexed(source, _prefix(destination), version=version, dtype=dtype, run_tasks=run_tasks)
    finally:
        executor.close()


def check_names(source: str, destination: str) -> None:
    """Refuse two names of which neither is packed data's.

    Raises:
        UsageError: If neither ends in `.pbin`.
    """
    if not (_is_packed(source) or _is_packed(destination)):
        msg = f"expected SRC or DST to end in .pbin, got {source} and {destination}"
        raise UsageError(msg)


def describe_conversion(conversion: Conversion) -> list[str]:
    """Return the closing summary."""
    line = (
        f"{' and '.join(conversion.outputs)}: {count(conversion.num_documents, 'document')}, "
        f"{count(conversion.num_tokens, 'token')} of type {conversion.dtype}"
    )
    return [line]


def _is_packed(path: str) -> bool:
    return path.endswith(".pbin")


def _prefix(path: str) -> str:
    """Return the prefix `x` of `x.bin` or `x.idx`, which a shell's completion yields."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix in {".bin", ".idx"} else path
