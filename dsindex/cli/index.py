"""`dsindex index`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from dsindex.cli.options import (
    ConfigFile,
    read_options,
    without_megatron_flags,
)
from dsindex.engine.standard_streams import show_lines, write_lines
from dsindex.engine.start import make_executor
from dsindex.errors import InputError
from dsindex.options.config import UsageError, validated
from dsindex.options.index import (
    IndexConfig,
    TokenizerCommand,
    TrainingCommand,
    local_path,
    parse_replacements,
    take_job_tokenizer,
)
from dsindex.options.pretrain_command import (
    FILES,
    LENGTHS,
    PATHS,
    RARE_LENGTHS,
    given_variables,
    read_command_file,
    take_command,
)
from dsindex.options.shell_script import Command, Word

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

DEFAULT_TYPE = "GPT2BPETokenizer"
"""What pretrain_gpt.py makes without --tokenizer-type."""
MOST_SHOWN = 12


def merge_command(merged: dict[str, Any], script: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Return options with those of a training command, and tell what was taken and what was ignored.

    Args:
        merged: Options from flags and a file, which come first.
        script: The words of `--from-command`.
        words: The words after `--`.

    Raises:
        UsageError: If both are given, or the words are no command.
        InputError: If the command cannot be read, or is refused.
    """
    if script and words:
        raise UsageError("give --from-command or the command after --, not both")
    if words and not any(word.endswith(".py") or word.startswith("--") for word in words):
        raise UsageError(f"expected a flag, got {words[0]!r}")
    place = next((word for word in script if "=" not in word), "the script") if script else "the command"
    replacements = parse_replacements(merged.get("dataset_path_as") or ())
    command = take_command(
        read_command_file(script) if script else Command(tuple(map(Word, words)), line=0),
        place=place,
        environment=given_variables(script),
        local_path=lambda path: local_path(path, replacements),
    )
    options = command.options
    if not options:
        raise InputError(f"{place}: expected flags of pretrain_gpt.py, got none that its caches depend on")
    for name in (*PATHS, *FILES, "data_cache_path"):
        value = options.get(name)
        if isinstance(value, str):
            options[name] = local_path(value, replacements)
        elif value is not None:
            options[name] = [local_path(word, replacements) for word in value]
    _drop_overridden(options, merged)
    taken = ", ".join(f"--{name.replace('_', '-')}" for name in options if name not in merged)
    notes = [f"from {place}: {taken or 'nothing'}"]
    if command.ignored:
        ignored = list(dict.fromkeys(command.ignored))
        more = f" and {len(ignored) - MOST_SHOWN} others" if len(ignored) > MOST_SHOWN else ""
        notes.append(f"no cache depends on {', '.join(ignored[:MOST_SHOWN])}{more}")
    sys.stderr.write(show_lines(f"dsindex: {note}" for note in [*notes, *command.notes]))
    if merged.get("megatron_release") is not None and "like" not in merged and "tokenizer_identifiers" not in merged:
        options.setdefault("tokenizer_type", DEFAULT_TYPE)
    return {**options, **merged}


def _drop_overridden(options: dict[str, Any], merged: dict[str, Any]) -> None:
    """Drop what the command says about paths, lengths or the tokenizer if flags say it in another way."""
    if any(name in merged for name in (*PATHS, *FILES)):
        for name in (*PATHS, *FILES):
            options.pop(name, None)
    if any(name in merged for name in ("epochs", "num_samples")):
        for name in (*LENGTHS, *RARE_LENGTHS):
            options.pop(name, None)
    if merged.get("train_iters") is not None or merged.get("train_samples") is not None:
        options.pop("train_iters", None)
        options.pop("train_samples", None)


DESCRIPTION = """\
Build the document, sample and shuffle index of each split of a dataset or blend, as the cache files
of a Megatron training job and under its names, so that the job finds them and builds nothing.

The hash in a cache's name covers the job's settings character by character: use the same
--seq-length, --split, --seed and paths as the job, and the tokenizer's identifiers
(--tokenizer-identifiers or --like). --explain says why a job would not find a cache.
Flags of pretrain_gpt.py on which no cache depends are accepted, and named."""
EXAMPLES = (
    r"""dsindex index --data-path out/docs_text_document --seq-length 4096 \
  --train-iters 5000 --global-batch-size 256 --eval-interval 1000 \
  --data-cache-path out/cache --like description.txt""",
    r"""dsindex index --data-path 0.9 web_text_document 0.1 code_text_document \
  --seq-length 4096 --num-samples 90000,1000,1000 --data-cache-path out/cache""",
)
OPTIONS = (ConfigFile, TrainingCommand, IndexConfig, TokenizerCommand)
REQUIRED = {"data_path": "one for each split", "seq_length": "--like"}
TAKES_PRETRAIN_FLAGS = True


def read_index_config(options: argparse.Namespace) -> IndexConfig:
    """Read the options of an index job from a file and flags.

    Raises:
        UsageError: If they are invalid.
    """
    merged = read_options(options)
    job = [*(merged.pop("from_command", None) or ())], [*(merged.pop("command", None) or ())]
    if any(job):
        merged = merge_command(merged, *job)
    take_job_tokenizer(merged)
    return validated(without_megatron_flags(merged), IndexConfig)


def run(options: argparse.Namespace) -> int:
    """Build or explain index caches, and print a summary."""
    from dsindex.jobs.index import run_index  # loads what a help text does not need

    config = read_index_config(options)
    executor = make_executor(config)
    try:
        report = run_index(config, executor=executor)
    finally:
        executor.close()
    write_lines(report.lines())
    return 0 if report.ok else 1
