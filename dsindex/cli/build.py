"""`dsindex build`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.cli.options import ConfigFile, read_options, without_megatron_flags
from dsindex.engine.standard_streams import write_lines
from dsindex.options.build import BuildConfig
from dsindex.options.index import IndexOptions, copy_job_tokenizer, split_options
from dsindex.options.megatron_flags import PreprocessCommand

if TYPE_CHECKING:
    import argparse


DESCRIPTION = """\
Tokenize text (JSONL, compressed files, Parquet and more) in parallel into shards, merge them, and
publish one dataset per key: PREFIX_KEY_document.bin and .idx, byte for byte what Megatron-LM's
preprocess_data.py writes, with a manifest (record counts and digests) and the provenance of every
document.

Run the same command again to continue an interrupted build. Every option can also be set in a YAML
file (--config), with underscores for dashes. A command of preprocess_data.py works as it stands:
its other flags are accepted, and those without effect are named."""
EXAMPLES = (
    r"""dsindex build --input docs.jsonl --tokenizer-model FOLDER --append-eod \
  --output-prefix out/docs""",
    r"""dsindex build --input data/ --json-keys text title --tokenizer-model gpt2 \
  --output-prefix out/web --address auto --workers 64""",
    r"""dsindex build --config build.yaml --seq-length 4096 --epochs 2 \
  --data-cache-path out/cache""",
)
OPTIONS = (ConfigFile, BuildConfig, IndexOptions, PreprocessCommand)
REQUIRED = {"input": "--input-list", "tokenizer_model": "--vocab-file and --merge-file"}


def run(options: argparse.Namespace) -> int:
    """Build, show progress, and print a summary."""
    from dsindex.engine.progress import make_reporter
    from dsindex.jobs.build import run_build  # loads what a help text does not need

    config, index = read_build_options(options)
    if config.dry_run:
        from dsindex.tools.estimate import estimate_build

        write_lines(estimate_build(config).lines())
        return 0
    with make_reporter() as reporter:
        report = run_build(config, reporter=reporter, index=index)
    write_lines(report.lines())
    return 0


def read_build_options(options: argparse.Namespace) -> tuple[BuildConfig, dict[str, Any] | None]:
    """Read the options of a build from a file and flags, split as by `split_options`.

    Raises:
        UsageError: If they are invalid.
    """
    merged = read_options(options)
    copy_job_tokenizer(merged)
    return split_options(without_megatron_flags(merged))
