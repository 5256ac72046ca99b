"""Three datasets, from which jobs are drawn by chance."""

import numpy as np

from tests.support.datasets import write_dataset

SIZES = {"web": 120, "books": 60, "code": 33}
"""Documents of each."""
NAMES = tuple(SIZES)


def write_three_datasets(folder):
    rng = np.random.default_rng(4)
    for name, count in SIZES.items():
        lengths = rng.choice([1, 2, 30, 200, 500], count)
        write_dataset(folder / name, [[rng.integers(0, 90, length).tolist()] for length in lengths])
