"""Three datasets, from which jobs are drawn by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.support.datasets import write_dataset

if TYPE_CHECKING:
    from pathlib import Path

SIZES = {"web": 120, "books": 60, "code": 33}
"""Documents of each."""
NAMES = tuple(SIZES)


def write_three_datasets(folder: Path) -> None:
    rng = np.random.default_rng(4)
    for name, count in SIZES.items():
        lengths = rng.choice([1, 2, 30, 200, 500], count)
        write_dataset(folder / name, [[rng.integers(0, 90, length).tolist()] for length in lengths])
