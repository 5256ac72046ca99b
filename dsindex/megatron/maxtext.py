"""The caches that MaxText reads with `grain_file_type=mmap_npy`, and how they differ from Megatron's.

    {md5}-document_index.npy, -sample_index.npy, -shuffle_index.npy    one split of one dataset
    dataset_index.npy, dataset_sample_index.npy                        a blend, in its `blend_index_dir`

The arrays are built as Megatron builds them, from the same generator, but:

    documents are split, shuffled and cut into samples, not sequences
    the hash has the number of epochs instead of the number of samples, and no tokenizer
    a blend has exactly as many samples as the job reads; Megatron's has the sum of the rounded-up shares

MaxText ignores descriptions. `{md5}-description.txt` contains the text whose MD5 is in the names.

Source: MaxText 0.2.5, src/maxtext/input_pipeline: _mmap_index_utils.py, _mmap_datasource.py, _megatron_blending.py and
grain_data_processing.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dsindex.errors import UsageError
from dsindex.megatron.epochs import SPLIT_NAMES, parse_split, split_matrix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsindex.megatron.epochs import EpochCounts, SplitMatrix
    from dsindex.megatron.flags import Sizes, TrainingLength

MAXTEXT_CLASS = "MegatronNpyDataSource"
MAXTEXT_BLEND = "maxtext-blend"
"""Name of the description of a blend whose arrays have the fixed names."""
SPLITS_READ = ("train", "eval")
"""MaxText's names of the splits that it reads; it has no test split."""
DEFAULT_SEED = 0
"""MaxText's `data_shuffle_seed`."""


def describe_dataset(
    path: str, epochs: EpochCounts, *, split: str | None, split_index: int, seed: int, sequence_length: int
) -> dict[str, Any]:
    """Return the settings that MaxText hashes for one split, in its order, and again under Megatron's names."""
    hashed = {
        "class": MAXTEXT_CLASS,
        "input_paths": [path],
        "num_epochs": epochs.num_epochs,
        "separate_final_epoch": epochs.separate_final_epoch,
        "seed": seed,
        "sequence_length": sequence_length,
        "split": split,
        "split_index": split_index,
        "add_extra_token": 1,
    }
    return add_megatron_names(hashed)


def add_megatron_names(hashed: Mapping[str, Any]) -> dict[str, Any]:
    """Add the settings of a description under Megatron's names, so that other modules read both kinds alike."""
    return {
        **hashed,
        "dataset_path": hashed["input_paths"][0],
        "index_split": SPLIT_NAMES[hashed["split_index"]],
        "random_seed": hashed["seed"],
        "split_matrix": None if hashed["split"] is None else parse_shares(hashed["split"]),
        "tokenizer": None,
    }


def hashed_settings(identifiers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that MaxText hashes, without those that `add_megatron_names` added."""
    return dict(list(identifiers.items())[: list(identifiers).index("add_extra_token") + 1])


def parse_shares(text: str) -> SplitMatrix:
    """Return the parts of `mmap_npy_split`, as shares of the documents.

    `math.fsum`, because MaxText needs Python 3.12, where `sum` of floats no longer accumulates rounding errors.

    Raises:
        UsageError: If MaxText cannot read the text, even if Megatron can.

    >>> parse_shares("99,1")
    ((0, 0.99), (0.99, 1.0), None)
    """
    parse_split(text)
    try:
        shares = [float(share) for share in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--split: MaxText cannot read {text!r}", hint="separate shares by commas: 99,1") from error
    total = math.fsum(shares)
    train, valid, test = [share / total for share in shares] + [0.0] * (len(SPLIT_NAMES) - len(shares))
    return split_matrix((train, valid, test))


def samples_for_steps(length: TrainingLength) -> list[Sizes]:
    """Return the samples that a job reads: `steps` of train, and `eval_steps` for every `eval_interval` of them."""
    steps, batch = length.train_iters, length.global_batch_size
    if steps is None or batch is None:
        hint = "give --train-iters and --global-batch-size, or --num-samples"
        raise UsageError("the number of samples is unknown", hint=hint)
    valid = None
    if length.eval_interval is not None:
        valid = -(-steps // length.eval_interval) * length.eval_iters * (length.eval_global_batch_size or batch)
    return [(steps * batch, valid, None)]


def show_settings(folder: str, blends: Mapping[str, tuple[Sequence[str], Sequence[float]]], split: str | None) -> str:
    """Return the MaxText settings for reading caches.

    Args:
        folder: The cache folder.
        blends: Split → its datasets as the job types them, and their weights.
        split: The value of --split.

    >>> show_settings("cache", {"train": (["web", "books"], [7.0, 3.0])}, None)
    "grain_file_type=mmap_npy grain_train_files='cache|web,7.0;cache|books,3.0' blend_index_dir=cache"
    """
    words = ["grain_file_type=mmap_npy"]
    for name, (paths, weights) in blends.items():
        entries = [f"{folder}|{path},{weight}" for path, weight in zip(paths, weights, strict=True)]
        files = ";".join(entries) if len(entries) > 1 else f"{folder}|{paths[0]}"
        words.append(f"grain_{name}_files='{files}'")
    words += [f"blend_index_dir={folder}"] if any(len(paths) > 1 for paths, _ in blends.values()) else []
    return " ".join([*words, *([f"mmap_npy_split='{split}'"] if split is not None else [])])
