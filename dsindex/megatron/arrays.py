"""The arrays of caches: document, sample and shuffle index of a dataset, and the order of a blend's samples.

The sample index is the position in the document index, and the token in that document, at which each sample begins.
Sample k begins at token k*L of the part's documents laid end to end. Its row is the first position p in the document
index whose end reaches k*L + x tokens, and the offset k*L minus the tokens before p:

    lengths [20, 50, 60, 30, 100, 5], L = 30, x = 1: tokens before each 0 20 70 130 160 260
    row 1: 31 tokens end in position 1, offset 30 - 20 = 10
    row 4: 121 tokens end in position 2 at its offset 120 - 70 = 50

The document index is cut into blocks; threads first count the tokens of each block, then write its rows.

Source: docs/formats.md §2; megatron.core.datasets helpers.cpp, `build_sample_idx`.
"""

from __future__ import annotations

import glob
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numba import njit

from dsindex.errors import LimitError
from dsindex.megatron.epochs import BLEND_DTYPES, DOCUMENT_DTYPE, sample_dtype, shuffle_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from dsindex.megatron.epochs import SampleRule
    from dsindex.megatron.plan import WeightCurve


BLOCK_POSITIONS = 1 << 20
"""Positions of the document index that one thread processes at a time."""

FETCHED_LENGTHS = 512
"""Lengths fetched at a time."""


def build_sample_index(
    sequence_lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    num_samples: int,
    *,
    rule: SampleRule,
    begin: int = 0,
    threads: int = 1,
) -> NDArray[Any]:
    """Find the first token of each sample.

    Args:
        sequence_lengths: Tokens of the sequences [begin, begin + n), shape [n], none negative.
        document_index: Ids in [begin, begin + n), shape [D].
        num_samples: The result of `epochs.count_samples` for the sum of the lengths in the document index.
        rule: How tokens are cut into samples.
        begin: The sequence id of sequence_lengths[0].
        threads: Threads to use; the result does not depend on it.

    Returns:
        Rows (position in the document index, token offset), shape [num_samples + 1, 2]. The last row is the end of the
        last sample.

    Raises:
        LimitError: If the last row would be negative, which Megatron also refuses.

    >>> from dsindex.megatron.epochs import SampleRule
    >>> lengths = np.array([20, 50, 60, 30, 100, 5], np.int32)
    >>> rows = build_sample_index(lengths, np.arange(6, dtype=np.int32), 8, rule=SampleRule(sequence_length=30))
    >>> rows.tolist()
    [[0, 0], [1, 10], [1, 40], [2, 20], [2, 50], [3, 20], [4, 20], [4, 50], [4, 80]]
    """
    rows = np.zeros((num_samples + 1, 2), sample_dtype(len(document_index)))
    length, extra = rule.sequence_length, int(rule.extra_token)
    blocks = [
        (first, min(first + BLOCK_POSITIONS, len(document_index)))
        for first in range(0, len(document_index), BLOCK_POSITIONS)
    ]
    sums = _run_calls(
        threads,
        lambda block: int(_count_tokens(sequence_lengths, begin, document_index, *block)),
        [(block,) for block in blocks],
    )
    ends = list(itertools.accumulate(sums))

    def walk(block: tuple[int, int], tokens_before: int) -> None:
        _walk_block(sequence_lengths, begin, document_index, *block, tokens_before, length, extra, rows)

    _run_calls(threads, walk, [(block, end - count) for block, end, count in zip(blocks, ends, sums, strict=True)])
    num_tokens = ends[-1] if ends else 0
    num_whole = max(0, (num_tokens - extra) // length)
    if num_whole < num_samples:
        # A kept partial sample ends with the last token: its row is the last position, x tokens before the end.
        last_offset = int(sequence_lengths[int(document_index[-1]) - begin]) - extra
        if last_offset < 0:
            hint = "use another seed, or drop the partial sample"
            raise LimitError("the last sequence is empty, so Megatron stops at the partial last sample", hint=hint)
        rows[num_whole + 1 :] = (len(document_index) - 1, last_offset)
    return rows


def _run_calls(threads: int, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    calls = list(calls)
    if threads == 1 or len(calls) == 1:
        return [function(*arguments) for arguments in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda arguments: function(*arguments), calls))


@njit(cache=True, nogil=True)
def _count_tokens(
    lengths: NDArray[np.int32], begin: int, document_index: NDArray[np.int32], first: int, end: int
) -> int:
    total: Any = 0
    for position in range(first, end):
        # Unsigned, since numba tests every signed index for being negative.
        total += np.int64(lengths[np.uint32(document_index[position]) - np.uint32(begin)])
    result: int = total
    return result


@njit(cache=True, nogil=True)
def _walk_block(
    lengths: NDArray[np.int32],
    begin: int,
    document_index: NDArray[np.int32],
    first: int,
    end: int,
    tokens_before: int,
    length: int,
    extra: int,
    rows: NDArray[Any],
) -> None:
    """Write the rows of the samples whose first token, plus x, is in positions [first, end)."""
    # The first row with row * L + x > before; row 0 is (0, 0) whatever the lengths.
    row = max(1, (tokens_before - extra) // length + 1)
    target = row * length + extra
    tokens: Any = tokens_before
    fetched = np.empty(FETCHED_LENGTHS, np.int32)
    for group in range(first, end, FETCHED_LENGTHS):
        # Fetch lengths together: otherwise every mispredicted branch waits for one from memory.
        count = min(FETCHED_LENGTHS, end - group)
        for step in range(count):
            fetched[step] = lengths[np.uint32(document_index[group + step]) - np.uint32(begin)]
        for step in range(count):
            start = tokens
            tokens += np.int64(fetched[step])
            while tokens >= target and row < rows.shape[0]:
                rows[row, 0] = group + step
                rows[row, 1] = row * length - start
                row += 1
                target += length


# numpy.random.RandomState.shuffle, three to four times faster, with the same permutation and final generator state.
#
# RandomState shuffles by Fisher-Yates from the end. The partner of position i is the next 32-bit output of MT19937
# under the smallest mask 2**b - 1 that covers i, drawn again while it is larger than i. Partners are drawn for many
# steps at a time, without a branch that the processor would mispredict.
#
# Source: numpy/random/mtrand.pyx (`shuffle`, `_shuffle_raw`), numpy/random/src/mt19937, `random_interval`.


def are_kernels_compiled() -> bool:
    """Tell whether this machine has compiled kernels from an earlier run."""
    folder = _shuffle_words.stats.cache_path
    return bool(glob.glob(os.path.join(glob.escape(folder), f"arrays.{_shuffle_words.__name__}-*.nbi")))


STATE_WORDS = 624
BATCH = 128
"""Steps whose partners are drawn together."""


def shuffle_in_place(array: NDArray[Any], *, rng: np.random.RandomState) -> None:
    """Shuffle a one-dimensional array as `rng.shuffle(array)` does, advancing `rng` in the same way.

    Args:
        array: Contiguous. Only arrays of fewer than 2**32 items of 4 bytes are fast; numpy shuffles all others.
        rng: Left in the state in which numpy's own shuffle leaves it.

    >>> ours, numpys = np.arange(1000, dtype=np.int32), np.arange(1000, dtype=np.int32)
    >>> shuffle_in_place(ours, rng=np.random.RandomState(1234))
    >>> np.random.RandomState(1234).shuffle(numpys)
    >>> bool((ours == numpys).all())
    True
    """
    if array.dtype.itemsize != np.uint32().itemsize or len(array) > np.iinfo(np.uint32).max:
        rng.shuffle(array)
        return
    state = rng.get_state(legacy=False)
    key = state["state"]["key"].astype(np.uint32)
    position = _shuffle_words(array.view(np.uint32), key, state["state"]["pos"])
    state["state"] = {"key": key, "pos": position}
    rng.set_state(state)


@njit(cache=True, nogil=True)
def _shuffle_words(words: NDArray[np.uint32], key: NDArray[np.uint32], position: int) -> int:
    """Shuffle the words and return the generator's new position."""
    outputs = np.empty(STATE_WORDS, np.uint32)
    _temper(key, outputs)
    partners = np.empty(BATCH, np.uint32)
    last = len(words) - 1
    while last > 0:
        count = min(BATCH, last)
        position = _draw_partners(partners, count, last, key, outputs, position)
        for step in range(count):
            place, partner = last - step, np.int64(partners[step])
            words[place], words[partner] = words[partner], words[place]
        last -= count
    return position


@njit(cache=True, nogil=True)
def _draw_partners(
    partners: NDArray[np.uint32],
    count: int,
    last: int,
    key: NDArray[np.uint32],
    outputs: NDArray[np.uint32],
    position: int,
) -> int:
    """Draw the partners of `count` positions from `last` down, all above 0; return the generator's new position."""
    num_drawn = 0
    while num_drawn < count:
        # All positions in the upper half of a mask share it: among them, drawing again needs no branch.
        mask: Any = np.uint32(last)
        for shift in (1, 2, 4, 8, 16):
            mask |= mask >> np.uint32(shift)
        num_same_mask: Any = min(count, num_drawn + last - np.int64(mask >> np.uint32(1)))
        while num_drawn < num_same_mask:
            if position == STATE_WORDS:
                _advance_state(key)
                _temper(key, outputs)
                position = 0
            while position < STATE_WORDS and num_drawn < num_same_mask:
                candidate = np.int64(outputs[position] & mask)
                position += 1
                partners[num_drawn] = candidate
                accepted: Any = np.int64(candidate <= last)
                num_drawn += accepted
                last -= accepted
    return position


@njit(cache=True, nogil=True)
def _advance_state(key: NDArray[np.uint32]) -> None:
    """Advance the generator by one whole state, by MT19937's recurrence."""
    upper, lower, twist = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)
    uint_one, uint_zero = np.uint32(1), np.uint32(0)
    for i in range(227):
        word = (key[i] & upper) | (key[i + 1] & lower)
        key[i] = key[i + 397] ^ (word >> uint_one) ^ (twist if word & uint_one else uint_zero)
    for i in range(227, 623):
        word = (key[i] & upper) | (key[i + 1] & lower)
        key[i] = key[i - 227] ^ (word >> uint_one) ^ (twist if word & uint_one else uint_zero)
    word = (key[623] & upper) | (key[0] & lower)
    key[623] = key[396] ^ (word >> uint_one) ^ (twist if word & uint_one else uint_zero)


@njit(cache=True, nogil=True)
def _temper(key: NDArray[np.uint32], outputs: NDArray[np.uint32]) -> None:
    """Write MT19937's output for every word of a state."""
    for i in range(STATE_WORDS):
        word = key[i]
        word ^= word >> np.uint32(11)
        word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
        word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
        outputs[i] = word ^ (word >> np.uint32(18))


# The document index: every sequence id of a part once per epoch, in the order in which training reads them.
#
# Source: docs/formats.md §2; megatron.core.datasets.gpt_dataset, `_build_document_index`.


def build_document_index(
    begin: int, end: int, num_epochs: int, *, rng: np.random.RandomState, separate_final_epoch: bool
) -> NDArray[np.int32]:
    """Repeat the ids [begin, end) for each epoch and shuffle them, advancing `rng` exactly as Megatron does.

    Args:
        begin: First sequence id of the part.
        end: One past the last sequence id.
        num_epochs: At least 1.
        rng: Freshly seeded with the job's seed.
        separate_final_epoch: Shuffle all epochs but the last together, then the last by itself.

    Returns:
        Sequence ids, shape [num_epochs * (end - begin)].

    >>> rng = np.random.RandomState(1234)
    >>> build_document_index(0, 3, 2, rng=rng, separate_final_epoch=True)
    array([0, 1, 2, 1, 2, 0], dtype=int32)
    """
    index = np.tile(np.arange(begin, end, dtype=DOCUMENT_DTYPE), num_epochs)
    num_together = len(index) - (end - begin if separate_final_epoch and num_epochs > 1 else 0)
    shuffle_in_place(index[:num_together], rng=rng)
    shuffle_in_place(index[num_together:], rng=rng)
    return index


# The shuffle index: the order in which the samples of an index are drawn.
#
# Source: docs/formats.md §2; megatron.core.datasets.gpt_dataset, `_build_shuffle_index`.


def build_shuffle_index(num_samples: int, *, borders: Sequence[int] = (), rng: np.random.RandomState) -> NDArray[Any]:
    """Permute sample ids, advancing `rng` exactly as Megatron does.

    Args:
        num_samples: Samples in the index.
        borders: Sample numbers, ascending, that no exchange crosses. Megatron has at most one, the first sample of a
            final epoch that is shuffled by itself.
        rng: In the state left by build_document_index.

    Returns:
        Permutation of range(num_samples), shape [num_samples].

    >>> build_shuffle_index(6, borders=[4], rng=np.random.RandomState(1234))
    array([0, 1, 2, 3, 5, 4], dtype=uint32)
    """
    index = np.arange(num_samples, dtype=shuffle_dtype(num_samples))
    for begin, end in itertools.pairwise([0, *borders, num_samples]):
        shuffle_in_place(index[begin:end], rng=rng)
    return index


# The order of a blend's samples: at each step, the dataset that lags most behind its weight supplies the next one.
#
# The lag of dataset d at sample i is w[d] * max(i, 1) - taken[d] in float64, one product and one difference, never
# fused; the first dataset wins ties.
#
# Source: docs/formats.md §2; megatron.core.datasets helpers.cpp, `build_blending_indices` and
# `build_exhaustive_blending_indices`.


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
    datasets, samples = _allocate_blend(size)
    _blend_greedily(np.array(weights, np.float64), np.full(len(weights), np.inf), datasets, samples)
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
    datasets, samples = _allocate_blend(total)
    limits = np.array(lengths, np.float64)
    _blend_greedily(limits / np.float64(total), limits, datasets, samples)
    return datasets, samples


def blend_by_schedule(curve: WeightCurve, taken: Sequence[int]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Order the samples of a blend whose weights change, so that each dataset stays within a sample of its integral.

    The next sample of a dataset is released when the integral of its weight comes within 1 - delta of it, and due when
    it would lag by more than 1 - delta, with delta = 1 / (2n - 2). The released dataset that is due first comes next.
    For any weights there is an order in which no dataset is late.

    Args:
        curve: The weights.
        taken: Samples of each dataset that were drawn before.

    Returns:
        As `blend_by_weights`, shape [curve.num_samples].

    Source: R. Tijdeman, "The chairman assignment problem", 1980; G. Steiner and S. Yeomans, "Level schedules for
        mixed-model, just-in-time processes", 1993.
    """
    datasets, samples = _allocate_blend(curve.num_samples)
    pieces = np.diff(curve.starts)[:, np.newaxis]
    integrals = curve.weights[:-1] * pieces + curve.slopes[:-1] * pieces * pieces / 2
    sums = np.concatenate([np.zeros((1, curve.weights.shape[1])), np.cumsum(integrals, axis=0)])
    _blend_by_due_dates((curve.starts, curve.weights, curve.slopes, sums), np.array(taken, np.int64), datasets, samples)
    return datasets, samples


_Curve: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]"
"""The arrays of a WeightCurve, and the integral of the weights at the start of each piece."""


@njit(cache=True, nogil=True)
def _blend_by_due_dates(
    curve: _Curve, taken: NDArray[np.int64], datasets: NDArray[np.int16], samples: NDArray[np.int64]
) -> None:
    count = curve[1].shape[1]
    delta = 1.0 / max(2, 2 * count - 2)
    pieces = np.zeros(count, np.int64)
    num_drawn = np.zeros(count)
    release_dates = np.empty(count)
    due_dates = np.empty(count)
    for dataset in range(count):
        release_dates[dataset] = _find_crossing(curve, dataset, delta, pieces)
        due_dates[dataset] = _find_crossing(curve, dataset, 1.0 - delta, pieces)
    for sample in range(len(datasets)):
        best, best_due = -1, np.inf
        last_resort, last_resort_due = 0, np.inf
        for dataset in range(count):
            if release_dates[dataset] <= sample + 1.0 and (due_dates[dataset] < best_due or best < 0):
                best, best_due = dataset, due_dates[dataset]
            if due_dates[dataset] < last_resort_due:
                last_resort, last_resort_due = dataset, due_dates[dataset]
        if best < 0:  # only rounding can lead here
            best = last_resort
        datasets[sample] = best
        samples[sample] = taken[best]
        taken[best] += 1
        num_drawn[best] += 1.0
        release_dates[best] = _find_crossing(curve, best, num_drawn[best] + delta, pieces)
        due_dates[best] = _find_crossing(curve, best, num_drawn[best] + 1.0 - delta, pieces)


@njit(cache=True, nogil=True, forceinline=True)
def _find_crossing(curve: _Curve, dataset: int, target: float, pieces: NDArray[np.int64]) -> float:
    """Return the sample at which the integral of a dataset's weight reaches a target, which grows from call to call."""
    starts, weights, slopes, sums = curve
    piece = pieces[dataset]
    while piece + 1 < len(starts) and sums[piece + 1, dataset] < target:
        piece += 1
    pieces[dataset] = piece
    remaining, weight, slope = target - sums[piece, dataset], weights[piece, dataset], slopes[piece, dataset]
    if remaining <= 0.0:
        return float(starts[piece])
    square = weight * weight + 2.0 * slope * remaining
    divisor = weight + np.sqrt(max(0.0, square))
    if divisor <= 0.0:
        return float(np.inf)
    return float(starts[piece] + 2.0 * remaining / divisor)


def _allocate_blend(size: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    datasets, samples = BLEND_DTYPES
    return np.empty(size, datasets), np.empty(size, samples)


@njit(cache=True, nogil=True)
def _blend_greedily(
    weights: NDArray[np.float64], limits: NDArray[np.float64], datasets: NDArray[np.int16], samples: NDArray[np.int64]
) -> None:
    # Both halves are searched for the largest lag in one loop, since the processor overlaps the two searches. A weight
    # of -inf pads the shorter half.
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
        if taken[best] == limits[best]:
            shares[best] = -np.inf
