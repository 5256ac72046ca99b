"""The order of a blend's samples: at each step, the dataset that lags most behind its weight supplies the next one.

The lag of dataset d at sample i is w[d] * max(i, 1) - taken[d] in float64, one product and one difference, never fused;
the first dataset wins ties.

Source: docs/formats.md §2; megatron.core.datasets helpers.cpp, `build_blending_indices` and
`build_exhaustive_blending_indices`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.index.epochs import BLEND_DTYPES
from dsindex.kernels.jit import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def blend_by_weights(weights: Sequence[float], size: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Order the samples of a weighted blend.

    Args:
        weights: Normalised weights, at most MAX_DATASETS.
        size: Samples in the blend.

    Returns:
        The dataset of each sample and its number in that dataset, both shape [size].

    >>> datasets, samples = blend_by_weights([0.5, 0.25, 0.25], 6)
    >>> datasets.tolist(), samples.tolist()
    ([0, 1, 2, 0, 0, 1], [0, 0, 0, 1, 2, 1])
    """
    datasets, samples = _empty(size)
    _greedy(np.array(weights, np.float64), datasets, samples)
    return datasets, samples


def blend_exhaustively(lengths: Sequence[int]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Order all samples of all datasets; exhausted datasets drop out.

    Args:
        lengths: Samples of each dataset, all positive.

    Returns:
        As `blend_by_weights`, shape [sum(lengths)].

    >>> blend_exhaustively([3, 1])[0].tolist()
    [0, 1, 0, 0]
    """
    total = sum(lengths)
    datasets, samples = _empty(total)
    limits = np.array(lengths, np.int64)
    _greedy_until_spent(limits / np.float64(total), limits, datasets, samples)
    return datasets, samples


def _empty(size: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    datasets, samples = BLEND_DTYPES
    return np.empty(size, datasets), np.empty(size, samples)


@compiled
def _greedy(weights: NDArray[np.float64], datasets: NDArray[np.int16], samples: NDArray[np.int64]) -> None:
    # The processor overlaps a search for the largest lag in both halves; a weight of -inf makes them equally long.
    half = (len(weights) + 1) // 2
    shares = np.full(2 * half, -np.inf)
    shares[: len(weights)] = weights
    taken = np.zeros(2 * half)  # in float64, counts below 2**53 are exact
    for sample in range(len(datasets)):
        step = max(float(sample), 1.0)
        best, largest = 0, shares[0] * step - taken[0]
        other, largest_other = half, shares[half] * step - taken[half]
        for dataset in range(1, half):
            lag = shares[dataset] * step - taken[dataset]
            lag_other = shares[half + dataset] * step - taken[half + dataset]
            if lag > largest:
                best, largest = dataset, lag
            if lag_other > largest_other:
                other, largest_other = half + dataset, lag_other
        if largest_other > largest:
            best = other
        datasets[sample] = best
        samples[sample] = np.int64(taken[best])
        taken[best] += 1.0


@compiled
def _greedy_until_spent(
    weights: NDArray[np.float64], limits: NDArray[Any], datasets: NDArray[np.int16], samples: NDArray[np.int64]
) -> None:
    taken = np.zeros(len(weights), np.int64)
    unspent = np.arange(len(weights))
    count = len(unspent)
    for sample in range(len(datasets)):
        step = max(float(sample), 1.0)
        best, largest = 0, -np.inf
        for place in range(count):
            lag = weights[unspent[place]] * step - float(taken[unspent[place]])
            if lag > largest:
                best, largest = place, lag
        dataset = unspent[best]
        datasets[sample] = dataset
        samples[sample] = taken[dataset]
        taken[dataset] += 1
        if taken[dataset] == limits[dataset]:
            count -= 1
            for place in range(best, count):  # keeps the order, which decides ties
                unspent[place] = unspent[place + 1]
