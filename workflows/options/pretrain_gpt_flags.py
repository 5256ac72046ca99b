"""The flags of Megatron-LM's pretrain_gpt.py, given to a command that builds index caches.

Those that say which caches a job looks for are options of the command. The others are taken from the command line
before it is parsed: they either have no effect on the caches, or change them in a way that is not offered. As in
Megatron, they are not abbreviated. Source: `get_train_valid_test_num_samples` of megatron/training/training.py and
`core_gpt_dataset_config_from_args` of pretrain_gpt.py.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workflows.options.pretrain_gpt_names import WITH_VALUE, WITH_VALUES, WITHOUT_VALUE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

NAMES = WITHOUT_VALUE | WITH_VALUE | WITH_VALUES

_OWN_OUTPUT = "a build indexes its own output; leave it out"
REFUSED = {
    "mock-data": "such a job makes up its data and looks for no caches",
    "sft": "such a job has an SFTDataset, which looks for no caches",
    "encoder-seq-length": "pretrain_gpt.py cuts samples by --seq-length; use that",
    "yaml-cfg": "dsindex index reads it in a job's command: --from-command, or after --; or pass its settings as flags",
    **dict.fromkeys(
        (
            *("data-path", "train-data-path", "valid-data-path", "test-data-path"),
            *("data-args-path", "per-split-data-args-path", "multiple-validation-sets"),
        ),
        _OWN_OUTPUT,
    ),
}
"""Flags that change which caches the job looks for, and what to do instead."""

_TOKENIZER_REASON = "the caches' names have the tokenizer from --like or --tokenizer-identifiers"
_TOKENIZER_FLAGS = frozenset(
    """
tokenizer-type tokenizer-model vocab-file merge-file vocab-size tokenizer-metadata tokenizer-special-tokens
tiktoken-pattern tiktoken-num-special-tokens tokenizer-sentencepiece-legacy tokenizer-hf-no-use-fast
tokenizer-hf-no-include-special-tokens null-tokenizer-eod-id null-tokenizer-pad-id
""".split()  # noqa: SIM905 - as in pretrain_gpt_names
)
_REASONS = {
    **dict.fromkeys(_TOKENIZER_FLAGS, _TOKENIZER_REASON),
    "micro-batch-size": "the number of samples follows from --global-batch-size",
}
_REASON = "no cache depends on it"
_REASON_OF_SEVERAL = "no cache depends on them"

_NEGATIVE_NUMBER = re.compile(r"-(\d|\.\d)")


def split_pretrain_flags(words: Sequence[str], *, own: Collection[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Separate the flags of pretrain_gpt.py from a command line.

    Args:
        words: The command line, after the name of the command.
        own: The command's own flags, with dashes; they stay.

    Returns:
        The remaining words, and the flags without dashes with their values.

    Raises:
        ValueError: If a flag has too few or too many values.
    """
    remaining: list[str] = []
    found: dict[str, tuple[str, ...]] = {}
    place = 0
    while place < len(words):
        word = words[place]
        if word == "--":
            return [*remaining, *words[place:]], found
        place += 1
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        if flag in own or name == flag or name not in NAMES:
            remaining.append(word)
            continue
        values = [value] if equals else []
        while place < len(words) and is_flag_value(words[place]):
            values.append(words[place])
            place += 1
        _check_values(name, values)
        found[name] = tuple(values)
    return remaining, found


def describe_pretrain_flags(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the flags without effect by the reason why they have none.

    Args:
        names: Flags without dashes.

    Raises:
        ValueError: If one of them is refused, saying why.
    """
    reasons: dict[str, list[str]] = {}
    for name in names:
        if name in REFUSED:
            msg = f"--{name}: {REFUSED[name]}"
            raise ValueError(msg)
        reasons.setdefault(_REASONS.get(name, _REASON), []).append(f"--{name}")
    if len(reasons.get(_REASON, ())) > 1:
        reasons[_REASON_OF_SEVERAL] = reasons.pop(_REASON)
    return reasons


def is_flag_value(word: str) -> bool:
    """Tell whether a word is a value and no flag, as argparse does."""
    return not word.startswith("-") or word == "-" or _NEGATIVE_NUMBER.match(word) is not None


def _check_values(name: str, values: Sequence[str]) -> None:
    """Refuse other numbers of values than Megatron has, so that no word is lost."""
    if name in WITH_VALUE and len(values) != 1:
        msg = f"--{name}: expected one value, as in pretrain_gpt.py, got {' '.join(values) or 'none'}"
        raise ValueError(msg)
    if name in WITHOUT_VALUE and values:
        msg = f"--{name}: expected no value, as in pretrain_gpt.py, got {' '.join(values)}"
        raise ValueError(msg)
