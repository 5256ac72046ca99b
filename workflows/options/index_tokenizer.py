"""The flags of a job that decide the names of its caches, in the release that it runs on: those of the tokenizer."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from dsindex.indices.cache import FIM_CLASS
from dsindex.indices.job_tokenizer import AUTOMODEL, RELEASES, JobTokenizer

NAMES = tuple(field.name for field in fields(JobTokenizer))
"""The flags as names of options."""
_TEXTS = {
    "tokenizer_type": ("TYPE", "the job's kind of tokenizer, such as HuggingFaceTokenizer"),
    "tokenizer_model": ("X", "its path or name, spelled as in the job; nothing is loaded"),
    "vocab_file": ("PATH", "of a GPT2BPETokenizer or a Bert tokenizer"),
    "merge_file": ("PATH", "of a GPT2BPETokenizer"),
    "tiktoken_pattern": ("v1|v2", "of a TikTokenizer"),
    "chat_template": ("T", "as in the job, from 0.18 on"),
    "tokenizer_metadata": ("FILE", "the job's file, which is read: it may name the tokenizer's class"),
    "sft_tokenizer_prompt_format": ("F", "of an SFTTokenizer"),
}
_NUMBERS = {
    "vocab_size": "of a NullTokenizer or TikTokenizer",
    "tiktoken_num_special_tokens": "of a TikTokenizer (default: 1000)",
    "null_tokenizer_eod_id": "of a NullTokenizer",
    "null_tokenizer_pad_id": "of a NullTokenizer (default: -1)",
    "vocab_extra_ids": "of a legacy tokenizer (default: 0)",
}
_LISTS = ("tokenizer_special_tokens", "tiktoken_special_tokens")
_SHOWN = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "vocab_size", "tokenizer_special_tokens")


def add_release_argument(group: argparse._ArgumentGroup) -> None:
    """Add `--megatron-release`."""
    group.add_argument(
        "--megatron-release",
        choices=[*RELEASES, AUTOMODEL],
        help="the job's release of megatron-core, by which the flags of its tokenizer become part of the names",
    )


def add_job_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job's tokenizer; the help shows the most frequent ones."""
    group = parser.add_argument_group(
        "the job's tokenizer",
        "for --megatron-release, all flags of pretrain_gpt.py that begin with --tokenizer, --tiktoken or "
        "--null-tokenizer, and",
    )
    for name in NAMES:
        settings: dict[str, Any] = {"action": "store_true"}
        text = ""
        if name in _TEXTS:
            metavar, text = _TEXTS[name]
            settings = {"metavar": metavar}
        elif name in _NUMBERS:
            settings, text = {"type": int, "metavar": "N"}, _NUMBERS[name]
        elif name in _LISTS:
            settings, text = {"nargs": "+", "metavar": "T"}, "as in the job"
        shown = text if name in _SHOWN else argparse.SUPPRESS
        group.add_argument(f"--{name.replace('_', '-')}", default=None, help=shown, **settings)


def take_job_tokenizer(merged: dict[str, Any]) -> None:
    """Collect the tokenizer's flags as one option for a known release; without one they are flags without effect."""
    _take_class(merged)
    given = {name: merged.pop(name) for name in NAMES if name in merged}
    if merged.get("megatron_release") is not None:
        if given:
            merged["job_tokenizer"] = given
    elif given:
        flags = tuple(name.replace("_", "-") for name in given)
        merged["pretrain_flags"] = (*flags, *merged.get("pretrain_flags", ()))


def copy_job_tokenizer(merged: dict[str, Any]) -> None:
    """For a known release, let a build's own tokenizer be the job's: its flags count for both."""
    _take_class(merged)
    if merged.get("megatron_release") is not None and "job_tokenizer" not in merged:
        given = {name: merged[name] for name in NAMES if merged.get(name) is not None}
        if given:
            merged["job_tokenizer"] = given


def _take_class(merged: dict[str, Any]) -> None:
    if merged.pop("fim_data", None):
        merged["dataset_class"] = FIM_CLASS
