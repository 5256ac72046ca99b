"""The index files of MaxText's `grain_file_type=mmap_npy`, in the folder of `grain_train_files`.

    {md5}-document_index.npy, {md5}-sample_index.npy, {md5}-shuffle_index.npy     the arrays are Megatron's
    {md5}-dataset_index.npy, {md5}-dataset_sample_index.npy                       a blend's, in `blend_cache_dir`
    {md5}-dsindex.json                                                            dsindex's own record

A hash covers the epochs, not the samples. Documents count where Megatron counts sequences, so both must be the same.

Source: docs/formats.md §2; maxtext/input_pipeline, `_mmap_index_utils.compute_index_hash`,
`_mmap_datasource._ensure_npy_indices` and `_megatron_blending._cache_paths`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dsindex.index.cache import BLENDED_ARRAYS, CacheFiles, description_hash

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.index.epochs import EpochCounts

SPLITS = ("train", "eval")
"""The splits that a job reads: the first and the second of `mmap_npy_split`."""


def index_stem(
    prefix: str, *, epochs: EpochCounts, seed: int, sequence_length: int, split: str | None, part: int
) -> str:
    """Return how the names of one dataset's arrays begin.

    Args:
        prefix: As the job types it.
        epochs: The counts of the part.
        seed: The job's `data_shuffle_seed`.
        sequence_length: Its `max_target_length`.
        split: Its `mmap_npy_split` as typed; None without one.
        part: Number of the split.
    """
    settings = {
        "class": "MegatronNpyDataSource",
        "input_paths": [prefix],
        "num_epochs": epochs.num_epochs,
        "separate_final_epoch": epochs.separate_final_epoch,
        "seed": seed,
        "sequence_length": sequence_length,
        "split": split,
        "split_index": part,
        "add_extra_token": 1,
    }
    return description_hash(json.dumps(settings, indent=4))


def blend_files(
    folder: str, *, weights: Sequence[float], lengths: Sequence[int], size: int, split: str
) -> tuple[CacheFiles, str]:
    """Return the paths of a blend's order, and the text that is hashed.

    Args:
        folder: The job's `blend_cache_dir`.
        weights: Normalised twice.
        lengths: Samples of each dataset.
        size: Samples of the blend.
        split: One of SPLITS.
    """
    settings = {"weights": list(weights), "lengths": list(lengths), "size": size, "split": split}
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    stem = os.path.join(folder, description_hash(text))
    files = CacheFiles(
        stem=stem, arrays=BLENDED_ARRAYS, description=f"{stem}-blend.json", record=f"{stem}-dsindex.json"
    )
    return files, text
