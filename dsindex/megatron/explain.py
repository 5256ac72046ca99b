"""Explain why a job would not find its cache: which settings differ, or what changed since the cache was built.

Megatron looks for a file named by a hash, and rebuilds everything if it is missing. This module compares the wanted
description with those in a folder, setting by setting.
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
    look_at,
    read_description,
    read_lengths,
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
    wanted: Mapping[str, Any], files: CacheFiles, *, prefix: str | None = None, settings: Settings | None = None
) -> Finding:
    """Find out whether a job finds its cache in a folder, and if not, why.

    Args:
        wanted: The job's description.
        files: The paths where the job looks for the cache.
        prefix: The dataset's files on this machine, which are checked for changes; None to skip the check.
        settings: The job's options that the hash does not cover; None to skip the comparison.
    """
    folder = os.path.dirname(files.stem) or "."
    what = wanted["dataset_path"] if wanted["class"] != BLENDED_CLASS else f"blend of {len(wanted['datasets'])}"
    name = f"{what}, split {split_of(wanted)}, {os.path.basename(files.stem)[:8]}…"
    missing = [os.path.basename(path) for path in files.paths if not os.path.isfile(path)]
    if missing:
        said = [f"the cache is incomplete, so the job builds it again: {', '.join(missing)} is missing"]
        sentences = _compare_with_nearest(wanted, folder) if len(missing) == len(files.paths) else said
        return Finding(name=name, found=False, sound=False, sentences=tuple(sentences))
    record = files.read_record()
    faults = tuple(_faults(files, record, prefix, settings))
    order = record.settings if record is not None and any(record.settings.order) else None
    notes = () if order is None else (f"it has {order.show_order()}: {MISSED_ORDER}",)
    return Finding(name=name, found=True, sound=not faults, sentences=faults + notes)


def _faults(
    files: CacheFiles, record: CacheRecord | None, prefix: str | None, settings: Settings | None
) -> Iterator[str]:
    """Yield sentences about changes that Megatron's hash does not cover."""
    asked = settings if settings is not None and any(settings.order) else None
    but, elsewhere = "the job finds this cache, but", "choose another --data-cache-path for that"
    if record is None:
        if asked is not None:
            yield f"{but} no {os.path.basename(files.record)} says that it has {asked.show_order()}: {elsewhere}"
        return
    if changed := files.changed(record):
        yield f"{but} {', '.join(changed)} changed since dsindex wrote it; move it away and build it again"
        return
    built = record.settings
    if asked is not None and built.order != asked.order:
        yield f"{but} it has {built.show_order()}, not {asked.show_order()}; {elsewhere}"
    for key in ("extra_token", "keep_partial") if settings is not None else ():
        was, now = getattr(built, key), getattr(settings, key)
        if was != now:
            yield f"{but} its {key} is {was}, not {now}; build it again"
    if prefix is not None and record.source is not None:
        yield from source_changes(prefix, record.source)


def source_changes(prefix: str, recorded: Fingerprint) -> list[str]:
    """Return sentences about how a dataset differs from its recorded fingerprint; empty if it does not.

    Lengths are only read if a size or a time differs: a copied or touched file with the same lengths still fits.
    """
    idx, begin, end = look_at(f"{prefix}.idx"), recorded.begin, recorded.end
    if idx is None:
        return [f"{prefix}.idx is missing, so it is unknown whether the cache still fits"]
    changes = []
    if idx != (recorded.idx_bytes, recorded.idx_modified_ns):
        try:
            lengths = read_lengths(prefix, begin, end, of_documents=recorded.of_documents)
            now = fingerprint(prefix, begin, end, lengths)
        except FormatError as error:
            return [f"the cache was built from another {prefix}.idx ({error})"]
        if now.lengths_digest != recorded.lengths_digest:
            changes.append(f"its sequences {begin} to {end} have other lengths, so the cache leads to wrong tokens")
        elif idx[0] != recorded.idx_bytes:
            changes.append(f"it has {idx[0]} bytes and had {recorded.idx_bytes}: the split is cut elsewhere now")
    sentences = [f"{prefix}.idx changed since the cache was built ({what}); build it again" for what in changes]
    was, now_bytes = recorded.bin_bytes, (look_at(f"{prefix}.bin") or (None,))[0]
    if now_bytes != was and None not in (now_bytes, was):
        sentences.append(f"{prefix}.bin changed since the cache was built (it has {now_bytes} bytes and had {was})")
    return sentences


def _compare_with_nearest(wanted: Mapping[str, Any], folder: str) -> Iterator[str]:
    """Yield sentences about the differences from the most similar description of the same kind."""
    found = []
    for path in descriptions_in(folder, "" if is_maxtext(wanted) else f"-{wanted['class']}-{split_of(wanted)}"):
        try:
            found.append((describe_differences(read_description(path), wanted), path))
        except FormatError:
            continue
    if not found:
        said = f"{folder} contains no cache of a {wanted['class']} for split {split_of(wanted)}"
        yield said if os.path.isdir(folder) else f"there is no folder {folder}"
        return
    differences, path = min(found, key=lambda each: len(each[0]))
    name = os.path.basename(path)
    if not differences:
        yield f"{name} is the same, but its name is not its hash: it was renamed or edited, so the job builds again"
        return
    nearby = f"the most similar of {len(found)} differs" if len(found) > 1 else "the only one in the folder differs"
    yield f"no cache with this hash; {nearby} ({name}):"
    yield from differences


def describe_differences(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return sentences about the settings in which two descriptions differ.

    >>> describe_differences({"class": "GPTDataset", "split": "9,1"}, {"class": "GPTDataset", "split": "9, 1"})
    ["split is '9,1' in the cache and '9, 1' in the job: --split, as typed: spaces change the hash"]
    """
    theirs, ours = dataset_parts(there), dataset_parts(wanted)
    if len(theirs) != len(ours):
        return [f"the cached blend has {len(theirs)} datasets and the job's has {len(ours)}"]
    by_sentence: dict[str, list[int]] = {}
    for number, pair in enumerate(zip(theirs, ours, strict=True)):
        for sentence in _compare(*map(_flatten, pair)):
            by_sentence.setdefault(sentence, []).append(number)
    if wanted.get("class") != BLENDED_CLASS:
        return list(by_sentence)
    sentences = list(_compare(*({key: blend.get(key) for key in ("weights", "size")} for blend in (there, wanted))))
    for sentence, numbers in by_sentence.items():
        is_shared = len(numbers) == len(ours) > 1
        place = "in every dataset, " if is_shared else f"dataset {', '.join(map(str, numbers))}: "
        sentences.append(f"{place}{sentence}")
    return sentences


def _flatten(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the tokenizer's identifiers among its settings."""
    tokenizer = described.get("tokenizer")
    if not isinstance(tokenizer, dict):
        return hashed_settings(described) if is_maxtext(described) else dict(described)
    flat = {f"the tokenizer's {name}": value for name, value in tokenizer.items()}
    return {**{key: value for key, value in described.items() if key != "tokenizer"}, **flat}


def _compare(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*wanted, *there]):
        # Compared as JSON, since 1 and 1.0 have different hashes.
        if key in there and key in wanted and json.dumps(there[key]) == json.dumps(wanted[key]):
            continue
        if key == "split_matrix" and there.get("split") != wanted.get("split"):
            continue  # follows from split
        shown = [repr(each[key])[:200] if key in each else "absent" for each in (there, wanted)]
        meaning = MEANINGS.get(key, "a flag of the job's tokenizer")
        if "absent" in shown or key.endswith("class"):
            meaning = "releases of Megatron differ in it (--megatron-release)"
        yield f"{key} is {shown[0]} in the cache and {shown[1]} in the job: {meaning}"
