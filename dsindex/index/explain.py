"""Explain why a job would not find its cache: which settings differ, or what changed since the cache was built.

Megatron looks for a file named by a hash, and builds everything again if it is missing. This module compares the
existing descriptions with the wanted one, setting by setting.
"""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsindex.errors import FormatError
from dsindex.index.cache import BLENDED_CLASS, CacheFiles, cache_files, read_description, source_changes
from dsindex.index.job_tokenizer import describe_tokenizers
from dsindex.index.slot import read_record

if TYPE_CHECKING:
    from collections.abc import Mapping

MEANINGS = {
    "dataset_path": "the path, exactly as the job types it (--dataset-path-as)",
    "num_samples": "the number of samples, from the job's iterations and batch size",
    "random_seed": "--seed",
    "sequence_length": "--seq-length",
    "split": "--split, as typed: spaces change the hash",
    "split_matrix": "the shares computed from --split",
    "tokenizer": "the tokenizer's identifiers (--tokenizer-identifiers or --like); they change with Megatron's version",
    "weights": "the blend's normalised weights",
    "size": "the number of samples of the blend",
}
UNHASHED = {
    "extra_token": "add_extra_token_to_sequence (--no-extra-token)",
    "keep_partial": "whether the last partial validation sample is kept (--keep-partial-validation)",
    "threshold": "the threshold below which the final epoch is shuffled by itself (--final-epoch-threshold)",
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
    wanted: Mapping[str, Any],
    folder: str,
    *,
    prefix: str | None = None,
    settings: Mapping[str, Any] | None = None,
    release: str | None = None,
) -> Finding:
    """Find out whether a job finds its cache in a folder, and if not, why.

    Args:
        wanted: The job's description.
        folder: The cache folder.
        prefix: The dataset's files on this machine, which are checked for changes; None to skip the check.
        settings: The job's options that the hash does not cover, named as in the record; None to skip the comparison.
        release: The job's release of Megatron, if it is known.
    """
    files = cache_files(folder, wanted)
    what = wanted["dataset_path"] if wanted["class"] != BLENDED_CLASS else f"blend of {len(wanted['datasets'])}"
    name = f"{what}, split {_split_of(wanted)}, {os.path.basename(files.stem)[:8]}…"
    if not os.path.isdir(folder):
        return Finding(name=name, found=False, sound=False, sentences=(f"there is no folder {folder}",))
    if files.exist():
        faults = _faults(files, wanted, prefix, settings)
        said = faults or ["the job finds this cache and builds nothing"]
        return Finding(name=name, found=True, sound=not faults, sentences=tuple(said))
    missing = [path for path in (files.description, *map(files.array, files.arrays)) if not os.path.isfile(path)]
    if len(missing) <= len(files.arrays):
        names = ", ".join(os.path.basename(path) for path in missing)
        said = [f"the cache is incomplete, so the job builds it again: {names} is missing"]
    else:
        said = _compare_with_nearest(wanted, folder, release)
    return Finding(name=name, found=False, sound=False, sentences=tuple(said))


def _faults(
    files: CacheFiles, wanted: Mapping[str, Any], prefix: str | None, settings: Mapping[str, Any] | None
) -> list[str]:
    """Return sentences about changes that Megatron's hash does not cover."""
    if wanted["class"] == BLENDED_CLASS:
        return []
    record = read_record(files.record)
    if record is None:
        # Without a record, all that can be detected is that the data are newer.
        idx = f"{prefix}.idx"
        if prefix is not None and os.path.isfile(idx) and os.path.getmtime(idx) > os.path.getmtime(files.description):
            doubt = f"{idx} is newer than the cache, which was not built by dsindex and may not fit"
            return [f"{doubt}; move it away and build it again"]
        return []
    if "building" in record:
        return ["dsindex was stopped while building this cache; build it again"]
    faults = []
    for key, value in (settings or {}).items():
        built = record.get("settings", {}).get(key)
        if built != value:
            faults.append(
                f"the job finds this cache, but {UNHASHED.get(key, key)} was {built} when it was built and is {value} "
                "now; the hash does not cover that: build it again, or change the job"
            )
    if prefix is not None and isinstance(record.get("source"), dict):
        faults += source_changes(prefix, record["source"])
    return faults


def _compare_with_nearest(wanted: Mapping[str, Any], folder: str, release: str | None) -> list[str]:
    """Return sentences about the settings in which the most similar description of the same kind differs."""
    nearest: tuple[int, str, list[str]] | None = None
    count = 0
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"*-{wanted['class']}-*-description.txt"))):
        try:
            there = read_description(path)
        except FormatError:
            continue
        if _split_of(there) != _split_of(wanted):
            continue
        count += 1
        differences = describe_differences(there, wanted, release=release)
        if nearest is None or len(differences) < nearest[0]:
            nearest = (len(differences), path, differences)
    if nearest is None:
        return [f"{folder} contains no cache of a {wanted['class']} for split {_split_of(wanted)}"]
    _, path, differences = nearest
    if not differences:
        name = os.path.basename(path)
        return [f"{name} is the same, but its name is not its hash: it was renamed or edited, so the job builds again"]
    nearby = f"the most similar of {count} differs" if count > 1 else "the only one in the folder differs"
    return [f"no cache with this hash; {nearby} ({os.path.basename(path)}):", *differences]


def describe_differences(
    there: Mapping[str, Any], wanted: Mapping[str, Any], *, release: str | None = None
) -> list[str]:
    """Return sentences about the settings in which two descriptions differ; `release` is the job's, if known.

    >>> describe_differences({"class": "GPTDataset", "split": "9,1"}, {"class": "GPTDataset", "split": "9, 1"})
    ["split is '9,1' in the cache and '9, 1' in the job: --split, as typed: spaces change the hash"]
    """
    if wanted.get("class") == BLENDED_CLASS and there.get("class") == BLENDED_CLASS:
        return _blend_differences(there, wanted, release)
    keys = list(dict.fromkeys([*wanted, *there]))
    sentences = []
    for key in keys:
        # Compared as written, since the hash depends on the order of keys and tells 1 from 1.0.
        if key in there and key in wanted and json.dumps(there[key]) == json.dumps(wanted[key]):
            continue
        if key == "split_matrix" and there.get("split") != wanted.get("split"):
            continue  # follows from split
        if key == "tokenizer" and (said := describe_tokenizers(there.get(key), wanted.get(key), release=release)):
            sentences += said
            continue
        meaning = f": {MEANINGS[key]}" if key in MEANINGS else ""
        sentences.append(f"{key} is {_show(there, key)} in the cache and {_show(wanted, key)} in the job{meaning}")
    return sentences


def _blend_differences(there: Mapping[str, Any], wanted: Mapping[str, Any], release: str | None) -> list[str]:
    theirs, ours = there["datasets"], wanted["datasets"]
    if len(theirs) != len(ours):
        return [f"the cached blend has {len(theirs)} datasets and the job's has {len(ours)}"]
    sentences = [
        f"{key} is {_show(there, key)} in the cache and {_show(wanted, key)} in the job: {MEANINGS[key]}"
        for key in ("weights", "size")
        if there.get(key) != wanted.get(key)
    ]
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        sentences += [f"dataset {number}: {sentence}" for sentence in describe_differences(their, our, release=release)]
    # A difference that all datasets share is reported once.
    shared = {sentence.partition(": ")[2] for sentence in sentences if sentence.startswith("dataset 0: ")}
    for common in sorted(shared):
        same = [f"dataset {number}: {common}" for number in range(len(ours))]
        if len(same) > 1 and all(sentence in sentences for sentence in same):
            sentences = [f"in every dataset, {common}", *(s for s in sentences if s not in same)]
    return sentences


def _split_of(identifiers: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever a file says
    return identifiers.get("index_split") if identifiers["class"] != BLENDED_CLASS else identifiers.get("split")


def _show(identifiers: Mapping[str, Any], key: str) -> str:
    text = repr(identifiers[key]) if key in identifiers else "absent"
    return text if len(text) <= 200 else text[:200] + "…"
