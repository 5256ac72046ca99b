"""The flags of Megatron-LM's programs that dsindex accepts or refuses by name.

Those of pretrain_gpt.py that say which caches a job looks for are options of `dsindex index`. The others are taken
from the command line before it is parsed, not abbreviated, as in Megatron: they either have no effect on the caches,
or change them in a way that is not offered. Source: `get_train_valid_test_num_samples` of
megatron/training/training.py and `core_gpt_dataset_config_from_args` of pretrain_gpt.py.

With those of preprocess_data.py and preprocess_data_fast.py, a command of preprocess_data.py becomes one of `dsindex
build` by changing the program alone. Flags that mean the same are options of the build; those here either have no
effect on its output, or would change it in a way that is not offered. Source: `get_args` of both programs and
`TokenizerConfig` of megatron/training/config.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, create_model

from dsindex.options.declare import option

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_NAMES = Path(__file__).with_name("pretrain_gpt_flags.txt").read_text(encoding="ascii")
WITHOUT_VALUE, WITH_VALUE, WITH_VALUES = (
    frozenset(block.partition("\n")[2].split()) for block in _NAMES.split("# ")[1:]
)
"""The flags of pretrain_gpt.py by how many values follow them: none, one, any number.

Source: the parser of megatron/training/arguments.py at commit d98e8a64, and some flags of older releases and of
Megatron-DeepSpeed.
"""


PRETRAIN_FLAGS = WITHOUT_VALUE | WITH_VALUE | WITH_VALUES

_OWN_OUTPUT = "a build indexes its own output; leave it out"
REFUSED_OF_JOBS = {
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
_TOKENIZER_FLAG = re.compile(r"tokenizer-|tiktoken-|null-tokenizer-|vocab-(file|size)$|merge-file$")
_REASONS = {
    **dict.fromkeys(filter(_TOKENIZER_FLAG.match, PRETRAIN_FLAGS), _TOKENIZER_REASON),
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
        if flag in own or name == flag or name not in PRETRAIN_FLAGS:
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
        if name in REFUSED_OF_JOBS:
            raise ValueError(f"--{name}: {REFUSED_OF_JOBS[name]}")
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
        raise ValueError(f"--{name}: expected one value, as in pretrain_gpt.py, got {' '.join(values) or 'none'}")
    if name in WITHOUT_VALUE and values:
        raise ValueError(f"--{name}: expected no value, as in pretrain_gpt.py, got {' '.join(values)}")


WITHOUT_EFFECT: dict[str, tuple[Any, str]] = {
    "partitions": (int, "documents keep the order of the input"),
    "keep_sequential_samples": (bool, "documents keep the order of the input"),
    "log_interval": (int, "progress is shown all the time"),
    "max_documents": (int, "it belongs to --find-optimal-num-workers"),
    "workers_to_check": (tuple[int, ...], "it belongs to --find-optimal-num-workers"),
    "keep_newlines": (bool, "it belongs to --split-sentences"),
    "lang": (str, "it belongs to --split-sentences"),
    "use_gigatoken": (bool, "gigatoken is used where it returns the same tokens: see --engine"),
    "trust_remote_code": (bool, "no code of a tokenizer is run"),
    "chat_template": (str, "texts have no chat template"),
    "padded_vocab_size": (int, "it is a setting of the model"),
    "no_pad_vocab_size": (bool, "it is a setting of the model"),
    "disable_pad_vocab_size": (bool, "it is a setting of the model"),
    "vocab_extra_ids": (int, "preprocess_data.py sets it to 0"),
    "null_tokenizer_pad_id": (int, "there is no padding"),
    "dataset_impl": (str, "the only format is mmap"),
}
"""Flags that change no output, by their names as options: their types, and why they have no effect."""
REFUSED: dict[str, tuple[Any, str]] = {
    "split_sentences": (
        bool,
        "sentences are not split, which would change the output; give a list of sentences per record as its text",
    ),
    "find_optimal_num_workers": (bool, "use `dsindex plan`, which times a sample of the input"),
    "tokenizer_metadata": (str, "name the kind of tokenizer with --tokenizer-type"),
    "tokenizer_hf_no_use_fast": (
        bool,
        "tokenizers written in Python are not run; leave it out to use tokenizer.json",
    ),
    "tokenizer_sentencepiece_legacy": (
        bool,
        "special tokens are not added to a SentencePiece model; leave it out for the model's own tokens",
    ),
    "no_tokenizer_sentencepiece_ignore_extra_whitespaces": (
        bool,
        "spaces that a model removes are not restored; use a model that keeps them",
    ),
    "disable_tokenizer_sentencepiece_ignore_extra_whitespaces": (
        bool,
        "spaces that a model removes are not restored; use a model that keeps them",
    ),
    "null_tokenizer_eod_id": (int, "there is no NullTokenizer, whose texts are numbers"),
}
"""Flags that would change the output in a way that is not offered, and what to do instead."""
ONLY_FOR_RANKS = ("vocab_size", "tiktoken_pattern", "tiktoken_num_special_tokens")
"""Options of the build that only a TikTokenizer has; Megatron ignores them for all others."""
ONLY_IMPLEMENTATION = "mmap"


_FLAGS: dict[str, Any] = {name: (kind, option(None, "")) for name, (kind, _) in (WITHOUT_EFFECT | REFUSED).items()}
PreprocessCommand: type[BaseModel] = create_model(
    "PreprocessCommand", __config__=ConfigDict(defer_build=True), **_FLAGS
)
"""The flags that a build accepts without effect, or refuses with a reason; the help leaves them out."""


def take_megatron_flags(merged: dict[str, Any]) -> str | None:
    """Remove the flags that have no effect from options, and return the note about them; None if there are none.

    Flags of pretrain_gpt.py are among them, as `pretrain_flags`.

    Raises:
        ValueError: If a flag is refused, saying why.
    """
    for name, (_, reason) in REFUSED.items():
        if merged.pop(name, None):
            raise ValueError(f"{_flag(name)}: {reason}")
    if merged.get("dataset_impl") not in {None, ONLY_IMPLEMENTATION}:
        msg = f"--dataset-impl: expected {ONLY_IMPLEMENTATION}, the only format, got {merged['dataset_impl']!r}"
        raise ValueError(msg)
    unused = {name: reason for name, (_, reason) in WITHOUT_EFFECT.items()}
    if merged.get("tokenizer_type") not in {None, "TikTokenizer"}:
        unused |= dict.fromkeys(ONLY_FOR_RANKS, "for a TikTokenizer only")
    reasons: dict[str, list[str]] = {}
    for name, reason in unused.items():
        if merged.pop(name, None):
            reasons.setdefault(reason, []).append(_flag(name))
    if isinstance(merged.get("pretrain_flags"), tuple):  # the parser's, not a key of a file
        reasons |= describe_pretrain_flags(merged.pop("pretrain_flags"))
    if not reasons:
        return None
    shown = "; ".join(f"{_listed(flags)} ({reason})" for reason, flags in reasons.items())
    return f"without effect: {shown}"


def _listed(flags: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(flags[:-1]), flags[-1]]))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
