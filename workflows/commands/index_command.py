"""`dsindex index --from-command`: options taken from the command of the training job, overridden by flags."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dsindex.errors import InputError
from workflows.commands.options import UsageError
from workflows.options.index_paths import local_path, parse_replacements
from workflows.options.pretrain_command import (
    FILES,
    LENGTHS,
    PATHS,
    RARE_LENGTHS,
    given_variables,
    read_command_file,
    take_command,
)
from workflows.options.shell_words import Word

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_TYPE = "GPT2BPETokenizer"
"""What pretrain_gpt.py makes without --tokenizer-type."""
MOST_SHOWN = 12


def add_command_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--from-command`, and the words after `--`."""
    parser.add_argument(
        "--from-command",
        nargs="+",
        metavar="SCRIPT",
        help="take what matters from the script that starts the job, which is read and not run; NAME=VALUE before it "
        "and words after it are its variables and arguments. The command itself can be given after --, as in "
        "`dsindex index --megatron-release 0.19 -- torchrun … pretrain_gpt.py …`. Flags override it",
    )
    parser.add_argument("command", nargs="*", default=None, help=argparse.SUPPRESS)  # its usage is in the text above


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
        msg = "give --from-command or the command after --, not both"
        raise UsageError(msg)
    if words and not any(word.endswith(".py") or word.startswith("--") for word in words):
        msg = f"expected a flag, got {words[0]!r}"
        raise UsageError(msg)
    place = next((word for word in script if "=" not in word), "the script") if script else "the command"
    replacements = parse_replacements(merged.get("dataset_path_as") or ())
    command = take_command(
        read_command_file(script) if script else list(map(Word, words)),
        place=place,
        environment=given_variables(script),
        local_path=lambda path: local_path(path, replacements),
    )
    options = command.options
    if not options:
        msg = f"{place}: expected flags of pretrain_gpt.py, got none that its caches depend on"
        raise InputError(msg)
    for name in (*PATHS, *FILES, "data_cache_path", "per_dataset_sequences_path"):
        value = options.get(name)
        if isinstance(value, str):
            options[name] = local_path(value, replacements)
        elif value is not None:
            options[name] = [local_path(word, replacements) for word in value]
    _drop_overridden(options, merged)
    taken = ", ".join(f"--{name.replace('_', '-')}" for name in options if name not in merged)
    sys.stderr.write(f"dsindex: from {place}: {taken or 'nothing'}\n")
    if command.ignored:
        ignored = list(dict.fromkeys(command.ignored))
        more = f" and {len(ignored) - MOST_SHOWN} others" if len(ignored) > MOST_SHOWN else ""
        sys.stderr.write(f"dsindex: no cache depends on {', '.join(ignored[:MOST_SHOWN])}{more}\n")
    sys.stderr.writelines(f"dsindex: {note}\n" for note in command.notes)
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
