"""The unit of work of an index job: build one cache, on any executor.

Tasks are small and picklable; they contain paths and counts. If two tasks build the same cache at the same time, one
waits for the other and then finds it built.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex import __version__
from dsindex.errors import InputError, LimitError
from dsindex.formats.mmididx import check_index, read_index
from dsindex.index import bigscience
from dsindex.index.blend import check_draws
from dsindex.index.cache import CacheFiles, SourceFingerprint, array_bytes, count_tokens, fingerprint, read_lengths
from dsindex.index.epochs import BLEND_DTYPES, DOCUMENT_DTYPE, sample_dtype, shuffle_dtype, split_bounds
from dsindex.index.needed_caches import PartCounts
from dsindex.index.slot import CacheSlot, has_recorded_files, lock_slot, read_record, write_slot
from dsindex.kernels.jit import compiled
from dsindex.store.reading import is_stored, stored_size
from dsindex.store.storage import make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from dsindex.index.epochs import EpochCounts, Part, SampleRule


# The arrays of caches: document, sample and shuffle index of a dataset, and the order of a blend's samples.
#
# The sample index is the position in the document index, and the token in that document, at which each sample begins.
# Sample k begins at token k*L of the part's documents laid end to end. Its row is the first position p in the document
# index whose end reaches k*L + x tokens, and the offset k*L minus the tokens before p:
#
#     lengths [20, 50, 60, 30, 100, 5], L = 30, x = 1: tokens before each 0 20 70 130 160 260
#     row 1: 31 tokens end in position 1, offset 30 - 20 = 10
#     row 4: 121 tokens end in position 2 at its offset 120 - 70 = 50
#
# The document index is cut into blocks; threads first count the tokens of each block, then write its rows.
#
# Source: docs/formats.md §2; megatron.core.datasets helpers.cpp, `build_sample_idx`.

BLOCK_POSITIONS = 1 << 20
"""Positions of the document index that one thread processes at a time."""

GATHERED = 512
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

    >>> from dsindex.index.epochs import SampleRule
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
    sums = _run(
        threads,
        lambda block: int(_count_tokens(sequence_lengths, begin, document_index, *block)),
        [(block,) for block in blocks],
    )
    ends = list(itertools.accumulate(sums))

    def walk(block: tuple[int, int], before: int) -> None:
        _walk_block(sequence_lengths, begin, document_index, *block, before, length, extra, rows)

    _run(threads, walk, [(block, end - count) for block, end, count in zip(blocks, ends, sums, strict=True)])
    total = ends[-1] if ends else 0
    reached = max(0, (total - extra) // length)
    if reached < num_samples:
        # A kept partial sample ends with the last token: its row is the last position, x tokens before the end.
        last_offset = int(sequence_lengths[int(document_index[-1]) - begin]) - extra
        if last_offset < 0:
            raise LimitError(
                "the last sequence is empty, so the end of the kept partial sample cannot be stored "
                "(Megatron also stops there); use another seed, or drop the partial sample"
            )
        rows[reached + 1 :] = (len(document_index) - 1, last_offset)
    return rows


def _run(threads: int, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    calls = list(calls)
    if threads == 1 or len(calls) == 1:
        return [function(*arguments) for arguments in calls]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda arguments: function(*arguments), calls))


@compiled
def _count_tokens(
    lengths: NDArray[np.int32], begin: int, document_index: NDArray[np.int32], first: int, end: int
) -> int:
    total: Any = 0
    for position in range(first, end):
        # Unsigned, since numba checks every signed index for counting from the end.
        total += np.int64(lengths[np.uint32(document_index[position]) - np.uint32(begin)])
    result: int = total
    return result


@compiled
def _walk_block(
    lengths: NDArray[np.int32],
    begin: int,
    document_index: NDArray[np.int32],
    first: int,
    end: int,
    before: int,
    length: int,
    extra: int,
    rows: NDArray[Any],
) -> None:
    """Write the rows of the samples whose first token, plus x, is in positions [first, end)."""
    # The first row with row * L + x > before; row 0 is (0, 0) whatever the lengths.
    row = max(1, (before - extra) // length + 1)
    target = row * length + extra
    tokens: Any = before
    gathered = np.empty(GATHERED, np.int32)
    for group in range(first, end, GATHERED):
        # Lengths are fetched together, since mispredicted branches would otherwise wait for each of them.
        count = min(GATHERED, end - group)
        for step in range(count):
            gathered[step] = lengths[np.uint32(document_index[group + step]) - np.uint32(begin)]
        for step in range(count):
            start = tokens
            tokens += np.int64(gathered[step])
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

STATE_WORDS = 624
BATCH = 128
"""Steps whose partners are drawn together."""


def shuffle_in_place(array: NDArray[Any], *, rng: np.random.RandomState) -> None:
    """Shuffle a one-dimensional array as `rng.shuffle(array)` does, advancing `rng` in the same way.

    Args:
        array: Contiguous. Only arrays of fewer than 2**32 items of 4 bytes are fast; numpy shuffles the others.
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


@compiled
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
            here, there = last - step, np.int64(partners[step])
            words[here], words[there] = words[there], words[here]
        last -= count
    return position


@compiled
def _draw_partners(
    partners: NDArray[np.uint32],
    count: int,
    last: int,
    key: NDArray[np.uint32],
    outputs: NDArray[np.uint32],
    position: int,
) -> int:
    """Draw the partners of `count` positions from `last` down, all above 0; return the generator's new position."""
    drawn = 0
    while drawn < count:
        # All positions in the upper half of a mask share it: among them, drawing again needs no branch.
        mask: Any = np.uint32(last)
        for shift in (1, 2, 4, 8, 16):
            mask |= mask >> np.uint32(shift)
        same_mask: Any = min(count, drawn + last - np.int64(mask >> np.uint32(1)))
        while drawn < same_mask:
            if position == STATE_WORDS:
                _next_state(key)
                _temper(key, outputs)
                position = 0
            while position < STATE_WORDS and drawn < same_mask:
                candidate = np.int64(outputs[position] & mask)
                position += 1
                partners[drawn] = candidate
                accepted: Any = np.int64(candidate <= last)
                drawn += accepted
                last -= accepted
    return position


@compiled
def _next_state(key: NDArray[np.uint32]) -> None:
    """Advance the generator by one whole state, by MT19937's recurrence."""
    upper, lower, twist = np.uint32(0x80000000), np.uint32(0x7FFFFFFF), np.uint32(0x9908B0DF)
    one, zero = np.uint32(1), np.uint32(0)
    for i in range(227):
        word = (key[i] & upper) | (key[i + 1] & lower)
        key[i] = key[i + 397] ^ (word >> one) ^ (twist if word & one else zero)
    for i in range(227, 623):
        word = (key[i] & upper) | (key[i + 1] & lower)
        key[i] = key[i - 227] ^ (word >> one) ^ (twist if word & one else zero)
    word = (key[623] & upper) | (key[0] & lower)
    key[623] = key[396] ^ (word >> one) ^ (twist if word & one else zero)


@compiled
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

    Raises:
        LimitError: If an id does not fit int32.

    >>> rng = np.random.RandomState(1234)
    >>> build_document_index(0, 3, 2, rng=rng, separate_final_epoch=True)
    array([0, 1, 2, 1, 2, 0], dtype=int32)
    """
    if end > np.iinfo(DOCUMENT_DTYPE).max:
        raise LimitError(f"expected sequence ids below 2**31, got {end} sequences")
    documents = np.empty((num_epochs, end - begin), DOCUMENT_DTYPE)
    if num_epochs:
        documents[0] = np.arange(begin, end, dtype=DOCUMENT_DTYPE)
        documents[1:] = documents[0]
    index = documents.reshape(-1)
    together = len(index)
    if separate_final_epoch and num_epochs > 1:
        together -= end - begin
    shuffle_in_place(index[:together], rng=rng)
    shuffle_in_place(index[together:], rng=rng)
    return index


# The shuffle index: the order in which the samples of an index are drawn.
#
# Source: docs/formats.md §2; megatron.core.datasets.gpt_dataset, `_build_shuffle_index`.


def build_shuffle_index(
    num_samples: int, *, shuffled_together: int | None = None, rng: np.random.RandomState
) -> NDArray[Any]:
    """Permute sample ids, advancing `rng` exactly as Megatron does.

    Args:
        num_samples: Samples in the index.
        shuffled_together: Permute [0, shuffled_together) first, then the rest by itself; None for all at once.
        rng: In the state left by build_document_index.

    Returns:
        Permutation of range(num_samples), shape [num_samples].

    >>> build_shuffle_index(6, shuffled_together=4, rng=np.random.RandomState(1234))
    array([0, 1, 2, 3, 5, 4], dtype=uint32)
    """
    index = np.arange(num_samples, dtype=shuffle_dtype(num_samples))
    together = num_samples if shuffled_together is None else shuffled_together
    shuffle_in_place(index[:together], rng=rng)
    shuffle_in_place(index[together:], rng=rng)
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


# Find out how much memory is available, and refuse or delay tasks that do not fit.

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Return the bytes available without swapping on the machine, or in the control group if that is less.

    Returns:
        None if the system does not report it.
    """
    limits = []
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        limits += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    for limit_path, usage_path in _CGROUP_FILES:
        # Absent, or without a limit "max"; v1 then reports a number near 2**63, which the minimum ignores.
        with contextlib.suppress(OSError, ValueError):
            limits.append(max(0, _read_number(limit_path) - _read_number(usage_path)))
    return min(limits, default=None)


def _read_number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def check_memory(needed_bytes: int, *, place: str, what: str) -> None:
    """Refuse work that does not fit into memory, before it allocates anything.

    Raises:
        LimitError: With the needed and the available memory.
    """
    available = available_memory()
    if available is not None and needed_bytes > available:
        raise LimitError(
            f"{place}: {what} takes {show_bytes(needed_bytes)} of memory and {show_bytes(available)} are available; "
            "use a machine with more, request fewer samples, or split the dataset and blend the parts"
        )


class MemoryGate:
    """Lets tasks of one process run concurrently as long as they fit into memory together; others wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reserved = 0

    @contextlib.contextmanager
    def reserve(self, needed_bytes: int, *, place: str, what: str) -> Iterator[None]:
        """Wait until `needed_bytes` fit beside the running tasks, then reserve them.

        Raises:
            LimitError: If they do not fit even alone.
        """
        with self._changed:
            while self._reserved:
                available = available_memory()
                # Running tasks may not have touched their memory yet, so their whole reservation counts.
                if available is None or self._reserved + needed_bytes <= available:
                    break
                self._changed.wait()
            else:
                check_memory(needed_bytes, place=place, what=what)
            self._reserved += needed_bytes
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= needed_bytes
                self._changed.notify_all()


def show_bytes(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> show_bytes(1536), show_bytes(5 << 30)
    ('1.5 KiB', '5.0 GiB')
    """
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


_GATE = MemoryGate()

LOOP_BYTES = 128 << 20
"""Memory that numba and its kernels take in addition to the arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """Task of counting the tokens of a dataset's parts in train, valid and test."""

    prefix: str
    parts: tuple[Part | None, ...]
    """The parts as shares; None for a part that is not needed."""
    bigscience_split: str | None = None
    """A split by BigScience's rule, which replaces `parts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTIndexTask:
    """Task of building the document, sample and shuffle index of one split of one dataset."""

    name: str
    """Name of the task for users."""
    prefix: str
    """Absolute, since the task may run in another folder or on another machine."""
    begin: int
    end: int
    seed: int
    epochs: EpochCounts
    rule: SampleRule
    array_paths: tuple[str, str, str]
    """Paths of the document, sample and shuffle index."""
    files: CacheFiles | None
    """Paths of description and record; None in a layout without them."""
    description: str | None
    """Text of the description, if there is one."""
    settings: Mapping[str, Any]
    """Options for the record that the hash does not cover."""
    threads: int = 1

    @property
    def slot(self) -> CacheSlot:
        """The files in the order in which they are written."""
        if self.files is not None:
            return self.files.slot
        return CacheSlot(paths=self.array_paths, record=bigscience.record_path(self.array_paths[0]))

    @property
    def num_positions(self) -> int:
        """Entries of the document index."""
        return self.epochs.num_epochs * (self.end - self.begin)

    @property
    def file_bytes(self) -> int:
        """Size of the arrays on disk."""
        samples = self.epochs.num_samples
        return (
            array_bytes(self.num_positions, DOCUMENT_DTYPE)
            + array_bytes(2 * (samples + 1), sample_dtype(self.num_positions))
            + array_bytes(samples, shuffle_dtype(samples))
        )

    @property
    def memory_bytes(self) -> int:
        """Peak memory: the arrays, the lengths and one epoch of ids."""
        return self.file_bytes + 2 * 4 * (self.end - self.begin) + LOOP_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendIndexTask:
    """Task of building the dataset index and dataset sample index of one split of a blend."""

    split: str
    prefixes: tuple[str, ...]
    lengths: tuple[int, ...]
    """Samples of each dataset's index."""
    weights: tuple[float, ...] | tuple[int, ...]
    size: int | None
    files: CacheFiles
    description: str
    surplus: float

    @property
    def name(self) -> str:
        """Name of the task for users."""
        return f"blend of {len(self.prefixes)}, split {self.split}"

    @property
    def num_samples(self) -> int:
        """Samples of the blend."""
        return int(sum(self.weights)) if self.size is None else self.size

    @property
    def file_bytes(self) -> int:
        """Size of the arrays on disk."""
        return sum(array_bytes(self.num_samples, dtype) for dtype in BLEND_DTYPES)

    @property
    def memory_bytes(self) -> int:
        """Peak memory: the arrays."""
        return self.file_bytes + LOOP_BYTES


IndexTask = GPTIndexTask | BlendIndexTask


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCache:
    """The result of one task."""

    name: str
    paths: tuple[str, ...]
    num_samples: int
    num_epochs: int | None
    """Number of epochs; None for a blend."""
    file_bytes: int
    seconds: float
    reused: bool
    """Whether the cache existed already, built from the same lengths with the same options."""


def count_parts(task: PartTask) -> list[PartCounts | None]:
    """Return the sequences and tokens of each part; None for a part that is not needed.

    Raises:
        InputError: If there is no such dataset.
        FormatError: If the `.idx` is damaged.
    """
    if not is_stored(f"{task.prefix}.idx"):
        raise InputError(f"{task.prefix}.idx: no such file; use the prefix of a .bin and .idx, without the suffix")
    index = read_index(f"{task.prefix}.idx")
    has_tokens = is_stored(f"{task.prefix}.bin")
    check_index(f"{task.prefix}.idx", index, bin_size_bytes=stored_size(f"{task.prefix}.bin") if has_tokens else None)
    lengths = index.sequence_lengths
    bounds: list[tuple[int, int] | None]
    if task.bigscience_split is None:
        bounds = [None if part is None else split_bounds(part, len(lengths)) for part in task.parts]
    else:
        bounds = list(bigscience.split_bounds(task.bigscience_split, len(lengths)))
    return [
        None if pair is None else PartCounts(begin=pair[0], end=pair[1], tokens=count_tokens(lengths[slice(*pair)]))
        for pair in bounds
    ]


def build_index_cache(task: IndexTask) -> BuiltCache:
    """Build one cache and write it, or keep an existing one that is still valid.

    Raises:
        LimitError: If it takes more memory than is available.
        FormatError: If the `.idx` changed since the task was planned.
        OutputError: If the cache cannot be written.
    """
    started = time.monotonic()
    with _GATE.reserve(task.memory_bytes, place=task.name, what="the index"):
        if isinstance(task, BlendIndexTask):
            return _build_blend(task, started)
        return _build_dataset(task, started)


def _build_dataset(task: GPTIndexTask, started: float) -> BuiltCache:
    slot = task.slot
    lengths = read_lengths(task.prefix, task.begin, task.end)
    source = fingerprint(task.prefix, task.begin, task.end, lengths)
    reused = _is_current(task, source) and not os.path.lexists(slot.lock)
    if not reused:
        make_folder(os.path.dirname(slot.record) or ".")
        with lock_slot(slot):
            reused = _is_current(task, source) or _write_dataset(task, lengths, source)
    return BuiltCache(
        name=task.name,
        paths=(slot.paths[-1], slot.record, *slot.paths[:-1]),
        num_samples=task.epochs.num_samples,
        num_epochs=task.epochs.num_epochs,
        file_bytes=task.file_bytes,
        seconds=time.monotonic() - started,
        reused=reused,
    )


def build_arrays(
    lengths: NDArray[np.int32], epochs: EpochCounts, *, begin: int, rule: SampleRule, seed: int, threads: int = 1
) -> tuple[NDArray[np.int32], NDArray[Any], NDArray[Any]]:
    """Build document, sample and shuffle index of the sequences [begin, begin + len(lengths)).

    Args:
        lengths: Tokens of each sequence.
        epochs: The result of `count_epochs` for the sum of the lengths.
        begin: Id of the first sequence.
        rule: How tokens are cut into samples.
        seed: Seed of the job; one generator serves all three indices, in this order.
        threads: Threads for the sample index.
    """
    rng = np.random.RandomState(seed)
    documents = build_document_index(
        begin, begin + len(lengths), epochs.num_epochs, rng=rng, separate_final_epoch=epochs.separate_final_epoch
    )
    samples = build_sample_index(lengths, documents, epochs.num_samples, rule=rule, begin=begin, threads=threads)
    order = build_shuffle_index(epochs.num_samples, shuffled_together=epochs.shuffled_together, rng=rng)
    return documents, samples, order


def _write_dataset(task: GPTIndexTask, lengths: NDArray[np.int32], source: SourceFingerprint) -> bool:
    arrays = build_arrays(lengths, task.epochs, begin=task.begin, rule=task.rule, seed=task.seed, threads=task.threads)
    described = () if task.description is None else (task.description.encode(),)
    record = {**_made_by(), "settings": dict(task.settings), "source": source.as_record()}
    return write_slot(task.slot, (*arrays, *described), record)


def _made_by() -> dict[str, Any]:
    return {"dsindex": __version__, "numpy": np.__version__}


def _is_current(task: GPTIndexTask, source: SourceFingerprint) -> bool:
    """Tell whether this cache exists with the recorded sizes, built from the same lengths and options."""
    record = read_record(task.slot.record)
    if record is None or record.get("settings") != dict(task.settings) or not has_recorded_files(task.slot, record):
        return False
    recorded = record.get("source")
    if not isinstance(recorded, dict) or recorded.get("lengths_digest") != source.lengths_digest:
        return False
    same_bounds = (recorded.get("begin"), recorded.get("end")) == (source.begin, source.end)
    return same_bounds and sum(map(os.path.getsize, task.array_paths)) == task.file_bytes


def _build_blend(task: BlendIndexTask, started: float) -> BuiltCache:

    if task.size is None:
        datasets, samples = blend_exhaustively([int(length) for length in task.weights])
    else:
        datasets, samples = blend_by_weights(task.weights, task.size)
    drawn = Counter(dict(enumerate(np.bincount(datasets, minlength=len(task.prefixes)).tolist())))
    check_draws(drawn, task.lengths, task.prefixes, place=task.name, surplus=task.surplus)
    slot = task.files.slot
    make_folder(os.path.dirname(slot.record) or ".")
    with lock_slot(slot):
        reused = write_slot(slot, (datasets, samples, task.description.encode()), _made_by())
    return BuiltCache(
        name=task.name,
        paths=(slot.paths[-1], slot.record, *slot.paths[:-1]),
        num_samples=len(datasets),
        num_epochs=None,
        file_bytes=task.file_bytes,
        seconds=time.monotonic() - started,
        reused=reused,
    )
