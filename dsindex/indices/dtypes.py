"""The types of the index arrays, which depend on their sizes.

Source: docs/formats.md §2; megatron.core.datasets, gpt_dataset.py and helpers.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

DOCUMENT_DTYPE = np.dtype("<i4")
BLEND_DTYPES = (np.dtype("<i2"), np.dtype("<i8"))
"""Types of the dataset index and the dataset sample index."""


def sample_dtype(num_positions: int) -> np.dtype[Any]:
    """Return the type of a sample index: int32 unless positions in the document index need int64.

    Megatron also considers the longest sequence, but lengths are int32 in the file.

    >>> sample_dtype(2**31 - 1), sample_dtype(2**31)
    (dtype('int32'), dtype('int64'))
    """
    return np.dtype("<i4") if num_positions <= np.iinfo(np.int32).max else np.dtype("<i8")


def shuffle_dtype(num_samples: int) -> np.dtype[Any]:
    """Return the type of a shuffle index: uint32, or int64 from 2**32 - 2 samples.

    >>> shuffle_dtype(2**32 - 3), shuffle_dtype(2**32 - 2)
    (dtype('uint32'), dtype('int64'))
    """
    return np.dtype("<i8") if num_samples >= np.iinfo(np.uint32).max - 1 else np.dtype("<u4")
