"""Count the documents that the borders of samples cut.

Sample k takes the input tokens [k * L, (k + 1) * L) of the documents laid end to end (dsindex.index.arrays), so a
document is cut if it begins before a multiple of L and ends after it. One of at most L tokens need not be cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHUNK = 1 << 20
"""Documents counted at a time."""


def count_cut_documents(
    lengths: NDArray[np.int32], documents: NDArray[np.integer[Any]], *, sequence_length: int, num_samples: int
) -> tuple[int, int]:
    """Count the documents of 1 to L tokens of an index, whichever program built it, and those of them that are cut.

    Args:
        lengths: Tokens of each sequence of the dataset.
        documents: The document index.
        sequence_length: L.
        num_samples: Samples of the index; documents after the last of them are not counted.

    >>> lengths = np.array([5, 3, 6, 12, 2], np.int32)
    >>> count_cut_documents(lengths, np.array([0, 2, 1, 3, 4]), sequence_length=8, num_samples=3)
    (3, 1)
    """
    length, begin, counts = np.int64(sequence_length), np.int64(0), np.zeros(2, np.int64)
    for first in range(0, len(documents), CHUNK):
        own = np.asarray(lengths[documents[first : first + CHUNK]], np.int64)
        ends = begin + np.cumsum(own)
        starts, begin = ends - own, begin + own.sum()
        is_short = (starts < num_samples * length) & (own > 0) & (own <= length)
        last = np.minimum(ends[is_short], num_samples * length) - 1
        counts += [is_short.sum(), (last // length > starts[is_short] // length).sum()]
    return int(counts[0]), int(counts[1])
