"""`dsindex pack`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsindex.amounts import count
from dsindex.cli.options import ConfigFile, read_options
from dsindex.engine.dispatch import RetryPolicy, ordered_runner
from dsindex.engine.standard_streams import show_lines, write_lines
from dsindex.engine.start import make_executor
from dsindex.formats.pbin import CURRENT_VERSION, PBIN_VERSIONS, join_pbin_files
from dsindex.options.config import ExecutorConfig, UsageError, validated
from dsindex.options.datasets import PBIN_SUFFIX
from dsindex.options.pack import (
    MODALITIES_PARTS,
    PackCommand,
    PackConfig,
    is_modalities_config,
    read_modalities_config,
)
from dsindex.store.urls import refuse_address

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Tokenize text into packed data for Modalities, FILE.pbin, byte for byte what its own command
`data pack_encoded_data` writes, with a manifest and the provenance of every document beside it.

A text without tokens makes no document; it is counted. Run the same command again to continue an
interrupted job. CONFIG is a file of options, or Modalities' own configuration file: settings that
cannot be honoured are refused by name.

--merge joins .pbin files of any version, in the order given, with correct offsets."""
EXAMPLES = (
    r"""dsindex pack --input docs.jsonl --tokenizer-model FOLDER \
  --eod-token '<|endoftext|>' --output out/docs.pbin""",
    "dsindex pack --merge out/a.pbin out/b.pbin --output out/all.pbin",
)
OPTIONS = (PackCommand, ConfigFile, PackConfig)
REQUIRED = {"input": "--input-list, CONFIG or --merge", "tokenizer_model": "CONFIG or --merge", "output": "CONFIG"}


def run(options: argparse.Namespace) -> int:
    """Pack or merge, and print a summary."""
    from dsindex.engine.progress import make_reporter
    from dsindex.jobs.pack import run_pack  # loads what a help text does not need

    merged = read_pack_options(options)
    if "merge" in merged:
        return _merge(merged)
    config = validated(merged, PackConfig)
    with make_reporter() as reporter:
        report = run_pack(config, reporter=reporter)
    write_lines(report.lines())
    return 0


def read_pack_options(options: argparse.Namespace) -> dict[str, Any]:
    """Read a configuration file, dsindex's or Modalities', and override it with flags.

    Raises:
        UsageError: If two files are named.
        InputError: If the file cannot be read, or a setting cannot be honoured.
    """
    if options.config_file and options.config:
        raise UsageError(f"expected one file of options, got {options.config_file} and --config {options.config}")
    path = options.config = options.config_file or options.config
    merged = read_options(options)
    merged.pop("config_file", None)
    if is_modalities_config(merged):
        theirs = {name: merged.pop(name) for name in MODALITIES_PARTS if name in merged}
        translated, ignored = read_modalities_config(path, theirs)
        if ignored:
            sys.stderr.write(show_lines([f"{path}: ignored, since dsindex works in shards: {', '.join(ignored)}"]))
        merged = {**translated, **merged}
    if "output_prefix" in merged:
        raise UsageError("there is no option 'output_prefix'; use --output FILE.pbin")
    return merged


def read_merge_options(merged: dict[str, Any]) -> tuple[list[str], str, str, ExecutorConfig]:
    """Return the inputs of `--merge`, the output, its version, and the options of the executor.

    Raises:
        UsageError: If they are invalid.
    """
    rest = {name: value for name, value in merged.items() if name not in {"merge", "output", "pbin_era"}}
    output, version = merged.get("output"), merged.get("pbin_era", CURRENT_VERSION.name)
    if not isinstance(output, str) or not output.endswith(PBIN_SUFFIX):
        raise UsageError(f"--output: expected the name of a new {PBIN_SUFFIX} file for --merge, got {output!r}")
    refuse_address(
        output, "expected a path for --output with --merge, got an address; join here, then copy", UsageError
    )
    if version not in PBIN_VERSIONS:
        raise UsageError(f"--pbin-era: expected one of {', '.join(PBIN_VERSIONS)}, got {version!r}")
    foreign = sorted(rest.keys() - ExecutorConfig.model_fields.keys())
    if foreign:
        msg = f"--{foreign[0].replace('_', '-')} does not go with --merge, which joins packed files as they are"
        raise UsageError(msg)
    return merged["merge"], output, version, validated(rest, ExecutorConfig)


def _merge(merged: dict[str, Any]) -> int:
    """Join `.pbin` files."""
    paths, output, version, config = read_merge_options(merged)
    executor = make_executor(config)
    try:
        policy = RetryPolicy(deadline_seconds=config.shard_deadline)
        header = join_pbin_files(
            paths,
            output,
            version=PBIN_VERSIONS[version],
            run_tasks=ordered_runner(executor, name="merge", policy=policy),
        )
    finally:
        executor.close()
    tokens = f"{count(header.num_tokens, 'token')} of {count(header.token_bytes, 'byte')}"
    write_lines([f"{output}: {tokens}, from {count(len(paths), 'file')}"])
    return 0
