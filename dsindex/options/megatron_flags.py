"""The flags of Megatron-LM's preprocess_data.py and preprocess_data_fast.py that are no options of `dsindex build`.

With them, a command of preprocess_data.py becomes one of `dsindex build` by changing the program alone. They either
have no effect on its output, or would change it in a way that is not offered. Source: `get_args` of both programs and
`TokenizerConfig` of megatron/training/config.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, create_model

from dsindex.options.declare import option

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
    "find_optimal_num_workers": (bool, "all CPUs are used, or --workers"),
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
    if not reasons:
        return None
    shown = "; ".join(f"{_listed(flags)} ({reason})" for reason, flags in reasons.items())
    return f"without effect: {shown}"


def _listed(flags: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(flags[:-1]), flags[-1]]))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
