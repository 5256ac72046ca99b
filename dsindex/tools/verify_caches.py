"""Check index caches against their descriptions and the data.

A document index must contain every sequence of its part once per epoch, a shuffle index must be a permutation, and a
sample index must step through the tokens by the sequence length. Arrays are read in chunks; multisets are compared by
the sums of a 64-bit mix of their items, which miss damage with a probability of 1 in 2**64.

Source of the rules: docs/formats.md, section 2.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.gpt import open_cached_index
from dsindex.errors import FormatError, InputError
from dsindex.formats.mmididx import read_index
from dsindex.index.cache import (
    BLENDED_CLASS,
    CacheFiles,
    changed_files,
    count_tokens,
    description_hash,
    descriptions_in,
    files_beside,
    find_description,
    leads_to,
    read_description,
    read_record,
    recorded_order,
    source_changes,
)
from dsindex.index.epochs import PLAN, SPLIT_NAMES, split_bounds
from dsindex.store.storage import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CHUNK_ITEMS = 1 << 20


def find_caches(folder: str, prefix: str) -> list[str]:
    """Return the descriptions of a dataset's caches, which name its path, or at least its last part.

    Raises:
        InputError: If there is no such folder.
    """
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: expected a folder with index caches, found none; check --cache")
    return [path for path in descriptions_in(folder) if _concerns(path, prefix)]


def _concerns(path: str, prefix: str) -> bool:
    try:
        parts = _dataset_parts(read_description(path))
    except FormatError:  # verify_cache says what is wrong with it
        return True
    return any(leads_to(part.get("dataset_path"), prefix) for part in parts)


def _dataset_parts(identifiers: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return what a description says of each dataset."""
    parts: Sequence[Mapping[str, Any]] = identifiers.get("datasets", [identifiers])
    return parts


def verify_cache(description: str, prefix: str) -> list[str]:
    """Check one cache, whichever program wrote it, and return the findings as sentences."""
    try:
        return list(_findings(description, prefix))
    except FormatError as error:
        return [f"{error}; move its files away and build the cache again: dsindex index"]


def _findings(description: str, prefix: str) -> Iterator[str]:
    identifiers = read_description(description)
    files = _files_of(description, identifiers)
    has_hash = os.path.basename(files.stem).startswith(description_hash(_text_of(description)))
    if not has_hash and all(part.get("tokenizer", True) for part in _dataset_parts(identifiers)):
        yield f"{description}: its name is not the hash of its content, so a job would not find it; build it again"
    arrays = {name: open_cached_index(description, name) for name in files.arrays}
    check = _check_dataset if identifiers["class"] != BLENDED_CLASS else _check_blend
    for sentence in check(files, identifiers, arrays, prefix):
        yield f"{files.stem}: {sentence}; move its files away and build the cache again: dsindex index"


def _text_of(path: str) -> str:
    with open_file(path) as file:
        return file.read().decode()


def _files_of(description: str, identifiers: Mapping[str, Any]) -> CacheFiles:
    """Return the paths of the cache of a description, whatever its name begins with.

    Raises:
        FormatError: If the description lacks a key, or would lead to files with another name or in another folder.
    """
    try:
        files = files_beside(description, identifiers)
    except (KeyError, TypeError) as error:
        raise FormatError(f"{description}: expected the description of a cache, got one without {error}") from error
    if os.path.basename(files.description) != os.path.basename(description):
        msg = f"{description}: expected the name that matches its content, {os.path.basename(files.description)!r}"
        raise FormatError(msg)
    return files


def _check_dataset(
    files: CacheFiles, identifiers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], prefix: str
) -> Iterator[str]:
    documents, samples, order = (arrays[name] for name in files.arrays)
    if len(samples) != len(order) + 1:
        shapes = ", ".join(str(array.shape) for array in arrays.values())
        yield f"expected a document index, a row more than samples, and a shuffle index of samples, got shapes {shapes}"
        return
    index = read_index(f"{prefix}.idx")
    begin, end = _part(identifiers, index.header.num_sequences, files.description)
    length = identifiers["sequence_length"]
    if not isinstance(length, int) or not 1 <= length < 2**31:
        yield f"expected a sequence length from 1 to {2**31 - 1} in the description, got {length!r}"
        return
    found = False
    record = read_record(files.record)
    is_planned = PLAN in (recorded_order(record) or {})
    for sentence in (*_check_documents(documents, begin, end, is_planned=is_planned), *_check_permutation(order)):
        found = True
        yield sentence
    if not found:
        yield from _check_samples(documents, samples, index.sequence_lengths, length)
        tokens = count_tokens(index.sequence_lengths[begin:end])
        if not is_planned:
            yield from _check_counts(identifiers, len(documents) // max(1, end - begin), tokens, len(order), length)
    if record is not None and "building" not in record:
        for name in changed_files(files, record):
            yield f"{name} changed since dsindex wrote it"
    if record is not None and isinstance(record.get("source"), dict):
        try:
            yield from source_changes(prefix, record["source"])
        except (KeyError, TypeError, ValueError) as error:
            yield f"its record {files.record} is damaged ({error!r})"


def _part(identifiers: Mapping[str, Any], num_sequences: int, description: str) -> tuple[int, int]:
    """Return the range of sequences that a cache draws from: all if the job had a path for each split."""
    matrix = identifiers.get("split_matrix")
    if matrix is None:
        return 0, num_sequences
    try:
        begin, end = matrix[SPLIT_NAMES.index(identifiers["index_split"])]
        bounds = split_bounds((float(begin), float(end)), num_sequences)
    except (TypeError, ValueError, LookupError, OverflowError) as error:
        msg = f"{description}: expected a split_matrix with the part of {identifiers['index_split']!r}, got {matrix!r}"
        raise FormatError(msg) from error
    if not 0 <= bounds[0] <= bounds[1] <= num_sequences:
        raise FormatError(f"{description}: expected a part between 0 and 1, got {begin} to {end}")
    return bounds


def _check_documents(documents: NDArray[Any], begin: int, end: int, *, is_planned: bool) -> Iterator[str]:
    """Check that the index contains every sequence of the part once per epoch.

    Of a cache that was planned over time, whose part may have grown, the digests in its record do that.
    """
    if end == begin:
        if len(documents):
            yield f"expected an empty document index for a part without sequences, got {len(documents)} entries"
        return
    epochs, rest = divmod(len(documents), end - begin)
    if (rest or not epochs) and not is_planned:
        yield f"expected {end - begin} sequences once per epoch in the document index, got {len(documents)} entries"
        return
    total = 0
    for chunk in _chunks(documents):
        if int(chunk.min()) < begin or int(chunk.max()) >= end:
            outside = chunk[(chunk < begin) | (chunk >= end)][0]
            yield f"expected sequences from {begin} to {end - 1} in the document index, got {outside}"
            return
        total += _mixed_sum(chunk)
    if not is_planned and total % 2**64 != epochs * _mixed_sum_of_range(begin, end) % 2**64:
        yield "expected every sequence once per epoch in the document index, but some are missing or repeated"


def _check_permutation(order: NDArray[Any]) -> Iterator[str]:
    total = 0
    for chunk in _chunks(order):
        if int(chunk.min()) < 0 or int(chunk.max()) >= len(order):
            yield f"expected samples below {len(order)} in the shuffle index, got {chunk.max()}"
            return
        total += _mixed_sum(chunk)
    if total % 2**64 != _mixed_sum_of_range(0, len(order)):
        yield "expected every sample once in the shuffle index, but some are missing or repeated"


def _check_samples(
    documents: NDArray[Any], samples: NDArray[Any], lengths: NDArray[np.int32], length: int
) -> Iterator[str]:
    """Check that row k is at token k * L of the concatenated documents, which makes all samples correct.

    Only the last row may be before that, if a partial sample was kept.
    """
    row = before = 0
    for first in range(0, len(documents), CHUNK_ITEMS):
        own = lengths[documents[first : first + CHUNK_ITEMS]].astype(np.int64)
        ends = before + np.cumsum(own)
        while row < len(samples):
            rows = np.asarray(samples[row : row + CHUNK_ITEMS], np.int64)
            inside = rows[: _leading(rows[:, 0] < first + len(own))]
            positions, offsets = inside[:, 0] - first, inside[:, 1]
            outside = (positions < 0) | (offsets < 0) | (offsets > own[np.maximum(positions, 0)])
            if outside.any():
                at = int(np.argmax(outside))
                yield f"expected row {row + at} of the sample index inside a sequence, got {inside[at].tolist()}"
                return
            tokens = ends[positions] - own[positions] + offsets
            wrong = tokens != (row + np.arange(len(inside))) * length
            if len(inside) and row + len(inside) == len(samples):
                # A kept partial sample ends with the tokens, or one before, which inputs and labels share.
                rest = (int(ends[-1]) - int(tokens[-1])) if first + len(own) == len(documents) else -1
                wrong[-1] &= rest not in {0, 1} or tokens[-1] > (len(samples) - 1) * length
            if wrong.any():
                at = int(np.argmax(wrong))
                expected = (row + at) * length
                yield f"expected row {row + at} of the sample index at token {expected}, got {tokens[at]}"
                return
            row += len(inside)
            if len(inside) < len(rows):
                break
        before = int(ends[-1])
    if row < len(samples) and not (row == 0 and len(samples) == 1):
        yield f"expected row {row} of the sample index inside the documents, got {samples[row].tolist()}"


def _check_counts(identifiers: Mapping[str, Any], epochs: int, tokens: int, samples: int, length: int) -> Iterator[str]:
    """Compare the number of samples with the tokens, by any rule that the description allows."""
    possible = {max(0, (epochs * tokens - extra) // length) for extra in (0, 1)}
    available = max(0, epochs * tokens - 1), epochs * tokens
    possible |= {math.ceil(np.float32(count) / np.float32(length)) for count in available}
    if samples not in possible:
        yield f"expected {min(possible)} samples of {epochs} epochs of {tokens} tokens, got {samples}"
    wanted = identifiers.get("num_samples")
    if wanted is None and epochs > 1:
        yield f"expected one epoch, since the description requests no number of samples, got {epochs}"
    elif isinstance(wanted, int) and samples < wanted:
        yield f"expected at least the {wanted} samples of the description, got {samples}"
    elif isinstance(wanted, int) and epochs > 1 and (epochs - 1) * tokens >= wanted * length + 1:
        yield f"expected no more epochs than {wanted} samples take, got {epochs}"


def _check_blend(
    files: CacheFiles, identifiers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], _prefix: str
) -> Iterator[str]:
    """Check that a blend takes the samples of each dataset in order from the first, and only existing ones."""
    datasets, samples = (arrays[name] for name in files.arrays)
    if samples.shape != datasets.shape:
        yield f"expected two indices of the same length, got shapes {datasets.shape} and {samples.shape}"
        return
    size, parts = identifiers.get("size"), identifiers["datasets"]
    if isinstance(size, int) and len(datasets) < size:
        yield f"expected at least the {size} samples of the description, got {len(datasets)}"
    taken = np.zeros(len(parts), np.int64)
    record = read_record(files.record)
    if record is not None and "building" not in record:
        for name in changed_files(files, record):
            yield f"{name} changed since dsindex wrote it"
    for begin in range(0, len(datasets), CHUNK_ITEMS):
        chunk = np.asarray(datasets[begin : begin + CHUNK_ITEMS], np.int64)
        if int(chunk.min()) < 0 or int(chunk.max()) >= len(parts):
            yield f"expected datasets from 0 to {len(parts) - 1} in the dataset index, got {chunk.max()}"
            return
        own = np.asarray(samples[begin : begin + CHUNK_ITEMS])
        by_dataset = np.argsort(chunk, kind="stable")
        counts = np.bincount(chunk, minlength=len(parts))
        ranks = np.arange(len(chunk)) - np.repeat(np.cumsum(counts) - counts, counts)
        expected = taken[chunk[by_dataset]] + ranks
        wrong = np.flatnonzero(own[by_dataset] != expected)
        if len(wrong):
            at = begin + int(by_dataset[wrong[0]])
            yield f"expected sample {expected[wrong[0]]} of dataset {datasets[at]} at position {at}, got {samples[at]}"
            return
        taken += counts
    yield from _check_taken(files, parts, taken)


def _check_taken(files: CacheFiles, parts: list[Any], taken: NDArray[np.int64]) -> Iterator[str]:
    """Compare the samples that a blend takes from each dataset with that dataset's cache, if there is one beside it."""
    folder = os.path.dirname(files.stem)
    for number, part in enumerate(parts):
        if part["index_split"] not in SPLIT_NAMES:
            continue
        description = find_description(folder, part)
        if not os.path.isfile(files_beside(description, part).array("shuffle_index")):
            continue
        there = len(open_cached_index(description, "shuffle_index"))
        if taken[number] > there:
            yield f"expected at most the {there} samples that dataset {number} has, got {taken[number]}"


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, len(array), CHUNK_ITEMS):
        yield np.asarray(array[begin : begin + CHUNK_ITEMS], np.int64)


def _leading(flags: NDArray[np.bool_]) -> int:
    """Return the number of leading flags that are set."""
    return len(flags) if flags.all() else int(np.argmin(flags))


def _mixed_sum(items: NDArray[np.int64]) -> int:
    """Return the sum of a 64-bit mix of each item, which does not depend on their order. Source: splitmix64."""
    mixed = items.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


def _mixed_sum_of_range(begin: int, end: int) -> int:
    return (
        sum(
            _mixed_sum(np.arange(at, min(at + CHUNK_ITEMS, end), dtype=np.int64))
            for at in range(begin, end, CHUNK_ITEMS)
        )
        % 2**64
    )
