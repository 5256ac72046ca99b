"""Explain why a job would not find its cache: which settings differ, or what changed since the cache was built.

Megatron looks for a file named by a hash, and rebuilds everything if it is missing. This module compares the job's
description with the descriptions in a folder, setting by setting.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError
from dsindex.megatron.cache import (
    BLENDED_CLASS,
    CacheFiles,
    CacheRecord,
    Fingerprint,
    Settings,
    dataset_parts,
    descriptions_in,
    fingerprint,
    is_maxtext,
    read_description,
    read_lengths,
    size_and_version,
    split_of,
)
from dsindex.megatron.maxtext import hashed_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MISSED_ORDER = "a job that misses it silently trains in its own order, unless it has --dataloader-defer-npy-index-mmap"
MEANINGS = {
    "dataset_path": "the path, exactly as the job types it (--dataset-path-as)",
    "num_samples": "the number of samples, from the job's iterations and batch size",
    "random_seed": "--seed",
    "sequence_length": "--seq-length",
    "split": "--split, as typed: spaces change the hash",
    "split_matrix": "the shares computed from --split",
    "tokenizer": "the tokenizer's identifiers (--tokenizer-identifiers or --like)",
    "weights": "the blend's normalised weights",
    "size": "the number of samples of the blend",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The verdict on one cache that a job would look for."""

    name: str
    """Name such as `web_text_document, split train, 5898ffc3…`."""
    found: bool
    """Whether a job would use the cache."""
    sound: bool
    """Whether the cache has no known fault."""
    sentences: tuple[str, ...]


def explain_cache(
    job: Mapping[str, Any], files: CacheFiles, *, prefix: str | None = None, settings: Settings | None = None
) -> Finding:
    """Find out whether a job finds its cache in a folder, and if not, why.

    Args:
        job: The job's description.
        files: The paths where the job looks for the cache.
        prefix: Prefix of the dataset's files on this machine, which are checked for changes; None to skip the check.
        settings: The job's options that the hash does not cover; None to skip the comparison.
    """
    folder = os.path.dirname(files.stem) or "."
    dataset = job["dataset_path"] if job["class"] != BLENDED_CLASS else f"blend of {len(job['datasets'])}"
    name = f"{dataset}, split {split_of(job)}, {os.path.basename(files.stem)[:8]}…"
    missing_files = [os.path.basename(path) for path in files.paths if not os.path.isfile(path)]
    if missing_files:
        reasons = [f"the cache is incomplete, so the job builds it again: {', '.join(missing_files)} is missing"]
        sentences = _compare_with_nearest(job, folder) if len(missing_files) == len(files.paths) else reasons
        return Finding(name=name, found=False, sound=False, sentences=tuple(sentences))
    record = files.read_record()
    faults = tuple(_find_faults(files, record, prefix, settings))
    order = record.settings if record is not None and any(record.settings.order) else None
    notes = () if order is None else (f"it has {order.show_order()}: {MISSED_ORDER}",)
    return Finding(name=name, found=True, sound=not faults, sentences=faults + notes)


def _find_faults(
    files: CacheFiles, record: CacheRecord | None, prefix: str | None, settings: Settings | None
) -> Iterator[str]:
    """Yield sentences about changes that Megatron's hash does not cover."""
    job_settings = settings if settings is not None and any(settings.order) else None
    start, remedy = "the job finds this cache, but", "choose another --data-cache-path for that"
    if record is None:
        if job_settings is not None:
            yield f"{start} no {os.path.basename(files.record)} says that it has {job_settings.show_order()}: {remedy}"
        return
    if changed := files.find_changed(record):
        yield f"{start} {', '.join(changed)} changed since dsindex wrote it; move it away and build it again"
        return
    cache_settings = record.settings
    if job_settings is not None and cache_settings.order != job_settings.order:
        yield f"{start} it has {cache_settings.show_order()}, not {job_settings.show_order()}; {remedy}"
    for key in ("extra_token", "keep_partial") if settings is not None else ():
        cache_value, job_value = getattr(cache_settings, key), getattr(settings, key)
        if cache_value != job_value:
            yield f"{start} its {key} is {cache_value}, not {job_value}; build it again"
    if prefix is not None and record.source is not None:
        yield from source_changes(prefix, record.source)


def source_changes(prefix: str, recorded: Fingerprint) -> list[str]:
    """Return sentences about how a dataset differs from its recorded fingerprint; empty if it does not.

    Lengths are only read if a size or a time differs: a copied or touched file with the same lengths still fits.
    """
    idx, begin, end = size_and_version(f"{prefix}.idx"), recorded.begin, recorded.end
    if idx is None:
        return [f"{prefix}.idx is missing, so it is unknown whether the cache still fits"]
    changes = []
    if idx != (recorded.idx_bytes, recorded.idx_modified_ns):
        try:
            lengths = read_lengths(prefix, begin, end, of_documents=recorded.of_documents)
            source = fingerprint(prefix, begin, end, lengths)
        except FormatError as error:
            return [f"the cache was built from another {prefix}.idx ({error})"]
        if source.lengths_digest != recorded.lengths_digest:
            changes.append(f"its sequences {begin} to {end} have other lengths, so the cache leads to wrong tokens")
        elif idx[0] != recorded.idx_bytes:
            changes.append(f"it has {idx[0]} bytes and had {recorded.idx_bytes}: the split is cut elsewhere now")
    sentences = [f"{prefix}.idx changed since the cache was built ({change}); build it again" for change in changes]
    old_size, new_size = recorded.bin_bytes, (size_and_version(f"{prefix}.bin") or (None,))[0]
    if new_size != old_size and None not in (new_size, old_size):
        sentences.append(f"{prefix}.bin changed since the cache was built (it has {new_size} bytes and had {old_size})")
    return sentences


def _compare_with_nearest(job: Mapping[str, Any], folder: str) -> Iterator[str]:
    """Yield sentences about the differences from the most similar description of the same kind."""
    pairs = []
    for path in descriptions_in(folder, "" if is_maxtext(job) else f"-{job['class']}-{split_of(job)}"):
        try:
            pairs.append((describe_differences(read_description(path), job), path))
        except FormatError:
            continue
    if not pairs:
        sentence = f"{folder} contains no cache of a {job['class']} for split {split_of(job)}"
        yield sentence if os.path.isdir(folder) else f"there is no folder {folder}"
        return
    differences, path = min(pairs, key=lambda pair: len(pair[0]))
    name = os.path.basename(path)
    if not differences:
        yield f"{name} is the same, but its name is not its hash: it was renamed or edited, so the job builds again"
        return
    comparison = f"the most similar of {len(pairs)} differs" if len(pairs) > 1 else "the only one in the folder differs"
    yield f"no cache with this hash; {comparison} ({name}):"
    yield from differences


def describe_differences(cached: Mapping[str, Any], job: Mapping[str, Any]) -> list[str]:
    """Return sentences about the settings in which two descriptions differ.

    >>> describe_differences({"class": "GPTDataset", "split": "9,1"}, {"class": "GPTDataset", "split": "9, 1"})
    ["split is '9,1' in the cache and '9, 1' in the job: --split, as typed: spaces change the hash"]
    """
    cache_parts, job_parts = dataset_parts(cached), dataset_parts(job)
    if len(cache_parts) != len(job_parts):
        return [f"the cached blend has {len(cache_parts)} datasets and the job's has {len(job_parts)}"]
    by_sentence: dict[str, list[int]] = {}
    for number, pair in enumerate(zip(cache_parts, job_parts, strict=True)):
        for sentence in _diff_settings(*map(_flatten, pair)):
            by_sentence.setdefault(sentence, []).append(number)
    if job.get("class") != BLENDED_CLASS:
        return list(by_sentence)
    sentences = list(_diff_settings(*({key: blend.get(key) for key in ("weights", "size")} for blend in (cached, job))))
    for sentence, numbers in by_sentence.items():
        is_shared = len(numbers) == len(job_parts) > 1
        place = "in every dataset, " if is_shared else f"dataset {', '.join(map(str, numbers))}: "
        sentences.append(f"{place}{sentence}")
    return sentences


def _flatten(identifiers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the tokenizer's identifiers among its settings."""
    tokenizer = identifiers.get("tokenizer")
    if not isinstance(tokenizer, dict):
        return hashed_settings(identifiers) if is_maxtext(identifiers) else dict(identifiers)
    flat = {f"the tokenizer's {name}": value for name, value in tokenizer.items()}
    return {**{key: value for key, value in identifiers.items() if key != "tokenizer"}, **flat}


def _diff_settings(cached: Mapping[str, Any], job: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*job, *cached]):
        # Compared as JSON, since 1 and 1.0 have different hashes.
        if key in cached and key in job and json.dumps(cached[key]) == json.dumps(job[key]):
            continue
        if key == "split_matrix" and cached.get("split") != job.get("split"):
            continue  # follows from split
        shown = [repr(settings[key])[:200] if key in settings else "absent" for settings in (cached, job)]
        meaning = MEANINGS.get(key, "a flag of the job's tokenizer")
        if "absent" in shown or key.endswith("class"):
            meaning = "releases of Megatron differ in it (--megatron-release)"
        yield f"{key} is {shown[0]} in the cache and {shown[1]} in the job: {meaning}"
