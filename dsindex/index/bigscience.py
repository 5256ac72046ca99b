"""The index files of BigScience's and OpenGPT-X's Megatron-DeepSpeed, which are stored beside the data.

    {prefix}_{split}_indexmap_{N}ns_{L}sl_{seed}s_{doc,sample,shuffle}_idx.npy
                                                  dsindex.json   dsindex's own record

The arrays are Megatron's. The split differs, being rounded part by part, and so do the samples requested from a blend's
datasets, being rounded once. A sample always has L + 1 tokens; the order of a blend is not cached.

Source: docs/formats.md §2; Megatron-DeepSpeed, megatron/data/gpt_dataset.py and dataset_utils.py
(`get_train_valid_test_split_`, `get_datasets_weights_and_num_samples`).
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from dsindex.index.epochs import SPLIT_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

ARRAY_NAMES = {"document_index": "doc_idx", "sample_index": "sample_idx", "shuffle_index": "shuffle_idx"}

SURPLUS = 1.005


def index_path(
    prefix: str, *, split: str, num_samples: int, sequence_length: int, seed: int, array: str = "document_index"
) -> str:
    """Return the path of one array of one split.

    >>> index_path("web_text_document", split="train", num_samples=900, sequence_length=2048, seed=1234)
    'web_text_document_train_indexmap_900ns_2048sl_1234s_doc_idx.npy'
    """
    return f"{prefix}_{split}_indexmap_{num_samples}ns_{sequence_length}sl_{seed}s_{ARRAY_NAMES[array]}.npy"


def record_path(document_index: str) -> str:
    """Return the path of dsindex's record beside the arrays; see dsindex.index.slot.

    >>> record_path("web_text_document_train_indexmap_900ns_2048sl_1234s_doc_idx.npy")
    'web_text_document_train_indexmap_900ns_2048sl_1234s_dsindex.json'
    """
    return re.sub(r"(doc_idx|document_index)\.npy$", "dsindex.json", document_index)


def split_bounds(text: str, num_sequences: int) -> list[tuple[int, int]]:
    """Return the range of sequence ids of train, valid and test.

    Args:
        text: Up to three shares, separated by commas or else by slashes; further ones are dropped, as in the original.
        num_sequences: Sequences of the dataset.

    Raises:
        ValueError: If the shares are not numbers, one is negative, or their sum is 0.

    >>> split_bounds("969, 30, 1", 50)
    [(0, 48), (48, 50), (50, 50)]
    >>> split_bounds("1,1,0", 5)
    [(0, 3), (3, 5), (5, 5)]
    """
    separator = "," if "," in text else "/"
    try:
        shares = [float(share) for share in text.split(separator)]
    except ValueError:
        raise ValueError(f"expected a split such as '969, 30, 1', got {text!r}") from None
    shares = (shares + [0.0] * len(SPLIT_NAMES))[: len(SPLIT_NAMES)]
    total = sum(shares)
    if not total > 0 or min(shares) < 0:
        raise ValueError(f"expected shares that are not negative and not all 0, got the split {text!r}")
    ends = [0]
    for share in shares:
        ends.append(ends[-1] + round(share / total * float(num_sequences)))
    # The rounded parts may not add up to the number of sequences: all ends but the first 0 are shifted by the excess.
    excess = ends[-1] - num_sequences
    ends = [0, *(end - excess for end in ends[1:])]
    return list(itertools.pairwise(ends))


def samples_wanted(weights: Sequence[float], num_samples: int) -> list[int]:
    """Return the samples requested from each dataset of a blend.

    >>> samples_wanted([0.9, 0.1], 900)
    [815, 91]
    """
    total = 0.0
    for weight in weights:
        total += weight
    return [math.ceil(num_samples * (weight / total) * SURPLUS) for weight in weights]
