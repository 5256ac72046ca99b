"""Check index caches, whichever program wrote them, against their descriptions and the data.

A document index must contain every sequence of its part once per epoch, a shuffle index must be a permutation, and a
sample index must step through the tokens by the sequence length. Arrays are read in chunks; multisets are compared by
the sums of a 64-bit mix of their items, which miss damage with a probability of 1 in 2**64. Caches of dsindex are
compared with the digests in their records instead, and the dataset with its recorded fingerprint.

Source of the rules: docs/formats.md, section 2.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.documents import splitmix64
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import read_index
from dsindex.megatron.cache import (
    BLENDED_CLASS,
    dataset_parts,
    descriptions_in,
    files_of,
    is_maxtext,
    read_description,
    split_of,
)
from dsindex.megatron.epochs import SPLIT_NAMES, split_bounds
from dsindex.megatron.explain import source_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CHUNK_ITEMS = 1 << 20


def list_caches(folder: str) -> list[str]:
    """Return the descriptions in a folder.

    Raises:
        InputError: If there is no such folder.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: there is no such folder", hint="check --cache")
    return descriptions_in(folder)


def is_cache_of(path: str, prefix: str) -> bool:
    """Tell whether a description names a dataset, by its path or at least by the last part of its path."""
    try:
        description = read_description(path)
    except FormatError:  # verify_cache reports the damage
        return True
    return any(_leads_to(part["dataset_path"], prefix) for part in dataset_parts(description))


def read_blend(path: str, description: Mapping[str, Any]) -> tuple[list[int], list[float]]:
    """Return the samples that a blend draws from each dataset, and the weights of the datasets.

    Raises:
        FormatError: If its dataset index names other datasets, or not every dataset has a weight.
    """
    num_datasets, weights = len(description["datasets"]), description.get("weights")
    if not isinstance(weights, list) or [type(weight) in {int, float} for weight in weights] != [True] * num_datasets:
        problem = f"its weights are not one number for each of {num_datasets} datasets: {weights!r}"
        raise FormatError(f"{path}: {problem}", hint="build the cache again")
    num_drawn = np.zeros(num_datasets, np.int64)
    for chunk in _chunks(files_of(path).open("dataset_index")):
        if chunk.min() < 0 or chunk.max() >= num_datasets:
            problem = f"its dataset index names dataset {chunk.max()} of {num_datasets}"
            raise FormatError(f"{path}: {problem}", hint="build the cache again")
        num_drawn += np.bincount(chunk, minlength=num_datasets)
    return num_drawn.tolist(), weights


def verify_cache(path: str, prefix: str) -> list[str]:
    """Check one cache and return the findings as sentences."""
    remedy = "move its files away and build the cache again: dsindex index"
    try:
        return [f"{path}: {sentence}; {remedy}" for sentence in _findings(path, prefix)]
    except FormatError as error:
        return [f"{error.sentence}; {remedy}"]


def _leads_to(path: str, prefix: str) -> bool:
    """Tell whether a description's path leads to a dataset; a path of another machine only has to end like it."""
    if os.path.abspath(path) == os.path.abspath(prefix):
        return True
    try:
        return os.path.samefile(f"{path}.idx", f"{prefix}.idx")
    except OSError:
        return os.path.basename(path) == os.path.basename(prefix)


def _findings(path: str, prefix: str) -> Iterator[str]:
    description, files = read_description(path), files_of(path)
    ending = f"-{description['class']}-{split_of(description)}"
    if not is_maxtext(description) and not files.stem.endswith(ending):
        raise FormatError(f"{path}: its name does not match its content, which needs {ending!r}")
    arrays = list(map(files.open, files.arrays))
    record = files.read_record()
    if record is not None:  # dsindex wrote it, and the recorded digests show what changed
        yield from (f"{name} changed since dsindex wrote it" for name in files.find_changed(record))
        yield from source_changes(prefix, record.source) if record.source is not None else ()
    elif description["class"] == BLENDED_CLASS:
        yield from _check_blend(description, *arrays)
    else:
        yield from _check_dataset(path, description, prefix, arrays)


def _check_dataset(
    path: str, description: Mapping[str, Any], prefix: str, arrays: Sequence[NDArray[Any]]
) -> Iterator[str]:
    """Check the document, sample and shuffle index of one dataset."""
    documents, samples, order = arrays
    if len(samples) != len(order) + 1:
        yield f"the sample index has {len(samples)} rows, not one more than the {len(order)} samples"
        return
    index = read_index(f"{prefix}.idx")
    lengths = (index.join_sequences() if is_maxtext(description) else index).sequence_lengths
    findings = [
        *_check_repeats(documents, "sequence", *part_of(path, description, len(lengths))),
        *_check_repeats(order, "sample", 0, len(order)),
    ]
    yield from findings or _check_samples(documents, samples, lengths, description["sequence_length"])


def part_of(path: str, description: Mapping[str, Any], num_sequences: int) -> tuple[int, int]:
    """Return the range of sequences that a cache draws from: all if the job had a path for each split."""
    matrix = description.get("split_matrix")
    if matrix is None:
        return 0, num_sequences
    try:
        begin, end = matrix[SPLIT_NAMES.index(description["index_split"])]
        bounds = split_bounds((float(begin), float(end)), num_sequences)
        if not 0 <= bounds[0] <= bounds[1] <= num_sequences:
            raise ValueError("not between 0 and 1")
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        problem = f"its split_matrix does not say where {description['index_split']!r} is: {matrix!r}"
        raise FormatError(f"{path}: {problem}") from error
    return bounds


def _check_repeats(items: NDArray[Any], item_name: str, begin: int, end: int) -> Iterator[str]:
    """Check that an index has each of the items [begin, end) once per epoch."""
    epochs, remainder = divmod(len(items), max(1, end - begin))
    if remainder or (epochs == 0) != (begin == end):
        yield f"{len(items)} entries are no whole number of epochs of {end - begin} {item_name}s"
        return
    total = 0
    for chunk in _chunks(items):
        if int(chunk.min()) < begin or int(chunk.max()) >= end:
            outside = chunk[(chunk < begin) | (chunk >= end)][0]
            yield f"{item_name} {outside} is not from {begin} to {end - 1}"
            return
        total += _mixed_sum(chunk)
    chunks = (np.arange(at, min(at + CHUNK_ITEMS, end), dtype=np.int64) for at in range(begin, end, CHUNK_ITEMS))
    if total % 2**64 != epochs * sum(map(_mixed_sum, chunks)) % 2**64:
        yield f"not every {item_name} is there once per epoch: some are missing or repeated"


def _check_samples(
    documents: NDArray[Any], samples: NDArray[Any], lengths: NDArray[np.int32], length: int
) -> Iterator[str]:
    """Check that row k is at token k * L of the concatenated documents, which makes all samples correct.

    Only the last row may be earlier, if a partial sample was kept.
    """
    row = tokens_before = 0
    for first in range(0, len(documents), CHUNK_ITEMS):
        sizes = lengths[documents[first : first + CHUNK_ITEMS]].astype(np.int64)
        ends = tokens_before + np.cumsum(sizes)
        while row < len(samples):
            rows = np.asarray(samples[row : row + CHUNK_ITEMS], np.int64)
            is_here = rows[:, 0] < first + len(sizes)
            inside = rows if is_here.all() else rows[: int(np.argmin(is_here))]
            positions, offsets = inside[:, 0] - first, inside[:, 1]
            at = np.maximum(positions, 0)
            is_outside = (positions < 0) | (offsets < 0) | (offsets > sizes[at])
            tokens = ends[at] - sizes[at] + offsets
            is_wrong = is_outside | (tokens != (row + np.arange(len(inside))) * length)
            if len(inside) and row + len(inside) == len(samples) and not is_outside[-1]:
                # A kept partial sample ends at the end of the tokens, or one before it for the extra token.
                remaining_tokens = (int(ends[-1]) - int(tokens[-1])) if first + len(sizes) == len(documents) else -1
                is_wrong[-1] &= remaining_tokens not in {0, 1} or tokens[-1] > (len(samples) - 1) * length
            if is_wrong.any():
                index = int(np.argmax(is_wrong))
                place = f"outside, at {inside[index].tolist()}" if is_outside[index] else f"at token {tokens[index]}"
                yield f"row {row + index} of the sample index is {place} instead of token {(row + index) * length}"
                return
            row += len(inside)
            if len(inside) < len(rows):
                break
        tokens_before = int(ends[-1])
    if row < len(samples) and not (row == 0 and len(samples) == 1):
        yield f"row {row} of the sample index is outside the documents, at {samples[row].tolist()}"


def _check_blend(description: Mapping[str, Any], datasets: NDArray[Any], samples: NDArray[Any]) -> Iterator[str]:
    """Check that a blend takes the samples of each dataset in order from the first."""
    num_datasets = len(description["datasets"])
    if samples.shape != datasets.shape:
        yield f"the two indices have different shapes, {datasets.shape} and {samples.shape}"
        return
    num_taken = np.zeros(num_datasets, np.int64)
    for begin in range(0, len(datasets), CHUNK_ITEMS):
        chunk = np.asarray(datasets[begin : begin + CHUNK_ITEMS], np.int64)
        if int(chunk.min()) < 0 or int(chunk.max()) >= num_datasets:
            yield f"the dataset index names dataset {chunk.max()} of {num_datasets}"
            return
        chunk_samples = np.asarray(samples[begin : begin + CHUNK_ITEMS])
        by_dataset = np.argsort(chunk, kind="stable")
        counts = np.bincount(chunk, minlength=num_datasets)
        ranks = np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)
        expected = num_taken[chunk[by_dataset]] + ranks
        wrong = np.flatnonzero(chunk_samples[by_dataset] != expected)
        if len(wrong):
            at = begin + int(by_dataset[wrong[0]])
            yield f"position {at} has sample {samples[at]} of dataset {datasets[at]} instead of {expected[wrong[0]]}"
            return
        num_taken += counts


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(array), CHUNK_ITEMS):
        yield np.asarray(array[begin : begin + CHUNK_ITEMS], np.int64)


def _mixed_sum(items: NDArray[np.int64]) -> int:
    """Return the sum of a 64-bit mix of each item, which does not depend on their order."""
    return int(splitmix64(items.astype(np.uint64)).sum(dtype=np.uint64))
