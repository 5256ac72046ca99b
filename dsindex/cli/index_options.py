"""The flags of index caches, which `dsindex index` and `dsindex build` share; other commands need not load them."""

from __future__ import annotations

import argparse
from typing import get_type_hints

from dsindex.cli.options import add_flag, add_options, settings_of
from dsindex.index.job_tokenizer import JobTokenizer
from dsindex.options.index import TOKENIZER_NAMES, IndexConfig

_JOB_TOKENIZER = {
    "tokenizer_type": "the job's kind of tokenizer, such as HuggingFaceTokenizer",
    "tokenizer_model": "its path or name, spelled as in the job; nothing is loaded",
    "vocab_file": "of a GPT2BPETokenizer or a Bert tokenizer",
    "merge_file": "of a GPT2BPETokenizer",
    "vocab_size": "of a NullTokenizer or TikTokenizer",
    "tokenizer_special_tokens": "as in the job",
}
_TOKENIZER_METAVARS = {
    "tokenizer_type": "TYPE",
    **dict.fromkeys(("vocab_file", "merge_file"), "PATH"),
    **dict.fromkeys(("tokenizer_special_tokens", "tiktoken_special_tokens"), "T"),
}
_DATA = (
    *("data_path", "train_data_path", "valid_data_path", "test_data_path", "data_args_path"),
    *("per_split_data_args_path", "multiple_validation_sets", "per_dataset_sequences_path"),
)
_SAMPLES = (
    *("seq_length", "epochs", "num_samples", "train_iters", "train_samples", "global_batch_size", "eval_interval"),
    *("eval_iters", "full_validation", "skip_train", "start_eval_at_iter", "eval_global_batch_size"),
    *("phase_transition_iterations", "rampup_batch_size", "step_batch_size_schedule"),
)
_ORDER = (
    *("split", "seed", "document_order", "document_order_splits", "shuffle_epochs"),
    *("no_extra_token", "keep_partial_validation", "mid_level_dataset_surplus"),
)
_NAMES = ("data_cache_path", "megatron_release", "tokenizer_identifiers", "like", "dataset_path_as", "dataset_class")


def add_index_arguments(parser: argparse.ArgumentParser, *, paths: bool = True) -> None:
    """Add the flags that say which indices to build.

    Args:
        parser: The parser of `dsindex index`, or of a job that indexes its own output.
        paths: Whether to add the flags that name datasets.
    """
    if paths:
        data = parser.add_argument_group("data", "prefixes are paths without .bin and .idx")
        add_options(data, IndexConfig, *_DATA)
        add_options(parser, IndexConfig, "explain", "check")
        text = (
            "for --megatron-release, all flags of pretrain_gpt.py that begin with --tokenizer, --tiktoken or "
            "--null-tokenizer, and"
        )
        tokenizer = parser.add_argument_group("the job's tokenizer", text)
        types = get_type_hints(JobTokenizer)
        for name in TOKENIZER_NAMES:
            settings = settings_of(
                types[name], _TOKENIZER_METAVARS.get(name, "N" if "int" in str(types[name]) else "X")
            )
            add_flag(tokenizer, name, _JOB_TOKENIZER.get(name, argparse.SUPPRESS), **settings)
    samples = parser.add_argument_group("samples", "how long the job trains, in one of four ways")
    add_options(samples, IndexConfig, *_SAMPLES)
    add_options(parser.add_argument_group("order"), IndexConfig, *_ORDER)
    text = "Megatron finds a cache by a hash of its settings, so they must be spelled as in the job"
    names = parser.add_argument_group("names", text)
    add_options(names, IndexConfig, *_NAMES)
    add_flag(names, "fim_data", "the same as --dataset-class GPTFIMDataset", action="store_true")
    add_options(names, IndexConfig, "layout", "final_epoch_threshold")
