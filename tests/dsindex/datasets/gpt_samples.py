"""A dataset of five sequences, and three samples of it."""

import numpy as np

from dsindex.datasets import GPTDataset, IndexedDataset, SampleOptions
from tests.support.datasets import write_dataset

EOD = 9

# Five sequences in the order 2, 0, 1, 3, 4, one of them without tokens: 4 5 6 9 | 1 2 9 | | 3 9 | 7 8 9
SEQUENCES = [[1, 2, EOD], [], [4, 5, 6, EOD], [3, EOD], [7, 8, EOD]]

DOCUMENT_INDEX = np.array([2, 0, 1, 3, 4], np.int32)


def small(folder, *, options=None, dtype=np.uint16, **changes):
    """Twelve tokens: samples 4 5 6 9 1, 1 2 9 3 9, and 9 7 8 9 with one token missing, in the order 2, 0, 1."""
    settings = {
        "document_index": DOCUMENT_INDEX,
        "sample_index": np.array([[0, 0], [1, 0], [3, 1], [4, 2]], np.int32),
        "shuffle_index": np.array([2, 0, 1], np.uint32),
        "sequence_length": 4,
        "options": options or SampleOptions(),
    }
    prefix = write_dataset(folder / "d", [[sequence] for sequence in SEQUENCES], dtype=dtype)
    return GPTDataset(IndexedDataset(prefix), **{**settings, **changes})
