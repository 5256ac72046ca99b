"""Index caches on disk: Megatron's description, its hash and its file names, with dsindex's record beside them.

    {md5}-GPTDataset-{split}-description.txt              {md5}-BlendedDataset-{split}-description.txt
                            -document_index.npy                                       -dataset_index.npy
                            -sample_index.npy                                         -dataset_sample_index.npy
                            -shuffle_index.npy
                            -dsindex.json                                             -dsindex.json

The last file is dsindex's: it records what Megatron's hash does not cover, and which files dsindex wrote
(dsindex.index.slot). md5 is the hash of the description, which Megatron writes with json.dumps(indent=4); a job looks
for exactly these names. Without the tokenizer's identifiers the hash is unknown, and the dataset's name replaces it.

Source: docs/formats.md §2; megatron.core.datasets, megatron_dataset.py, gpt_dataset.py and blended_dataset.py.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import reprlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from dsindex.errors import FormatError, InputError, MissingObjectError
from dsindex.formats.mmididx import read_index
from dsindex.index.defaults import FIM_CLASS
from dsindex.index.slot import CacheSlot, read_record
from dsindex.store.reading import input_status, version_number
from dsindex.store.storage import open_file
from dsindex.store.urls import absolute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from dsindex.index.epochs import SplitMatrix


GPT_CLASS = "GPTDataset"
GPT_CLASSES = (GPT_CLASS, FIM_CLASS)
BLENDED_CLASS = "BlendedDataset"
GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLENDED_ARRAYS = ("dataset_index", "dataset_sample_index")
DESCRIPTION_SUFFIX = "-description.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class GPTDescription:
    """Megatron's identifiers of one split of one dataset, in the order of the description's keys."""

    dataset_path: str
    """The prefix as the job types it."""
    num_samples: int | None
    index_split: str
    random_seed: int
    sequence_length: int
    split: str | None
    """As typed; None if each split has its own path."""
    split_matrix: SplitMatrix | None
    tokenizer: Mapping[str, Any] | str | None
    """The tokenizer's `unique_identifiers`, or its name for NeMo Automodel; None if they are not known."""
    class_name: str = GPT_CLASS

    def identifiers(self) -> dict[str, Any]:
        """Return the description as the JSON object that is written."""
        matrix = None if self.split_matrix is None else [None if p is None else list(p) for p in self.split_matrix]
        # NeMo Automodel has the tokenizer's name here, instead of its identifiers at the end.
        named = {"tokenizer": self.tokenizer} if isinstance(self.tokenizer, str) else {}
        described: dict[str, Any] = {}
        if not isinstance(self.tokenizer, str):
            described = {"tokenizer": None if self.tokenizer is None else dict(self.tokenizer)}
        return {
            "class": self.class_name,
            "dataset_path": self.dataset_path,
            "num_samples": self.num_samples,
            "index_split": self.index_split,
            **named,
            "random_seed": self.random_seed,
            "sequence_length": self.sequence_length,
            "split": self.split,
            "split_matrix": matrix,
            **described,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendedDescription:
    """Megatron's identifiers of one split of a blend."""

    datasets: tuple[GPTDescription, ...]
    split: str
    weights: tuple[float, ...] | tuple[int, ...]
    """Weights, normalised twice; the datasets' lengths if `size` is None."""
    size: int | None

    def identifiers(self) -> dict[str, Any]:
        """Return the description as the JSON object that is written."""
        tokenizer = self.datasets[0].tokenizer
        named = {"tokenizer": tokenizer} if isinstance(tokenizer, str) else {}
        return {
            "class": BLENDED_CLASS,
            "datasets": [dataset.identifiers() for dataset in self.datasets],
            "split": self.split,
            "weights": list(self.weights),
            "size": self.size,
            **named,
        }


def description_text(identifiers: Mapping[str, Any]) -> str:
    """Return the text of a description as Megatron writes it."""
    return json.dumps(identifiers, indent=4)


def description_hash(text: str) -> str:
    """Return the hash that begins the names of a cache's files."""
    import hashlib  # slow to import for readers

    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFiles:
    """The paths of one cache, which need not exist."""

    stem: str
    """Path without endings such as `-description.txt`."""
    arrays: tuple[str, ...]
    """Names of the arrays, such as `document_index`."""
    description: str
    """Path of the description."""
    record: str
    """Path of dsindex's record."""

    def array(self, name: str) -> str:
        """Return the path of an array.

        Raises:
            ValueError: If this kind of cache has no such array.
        """
        if name not in self.arrays:
            raise ValueError(f"expected one of {', '.join(self.arrays)}, got {name!r}")
        return f"{self.stem}-{name}.npy"

    @property
    def slot(self) -> CacheSlot:
        """The files in the order in which they are written: the description comes last."""
        return CacheSlot(paths=(*map(self.array, self.arrays), self.description), record=self.record)

    def exist(self) -> bool:
        """Tell whether Megatron would use the cache; it only checks that the files exist."""
        return self.slot.exists()


def cache_files(folder: str, identifiers: Mapping[str, Any], *, name: str | None = None) -> CacheFiles:
    """Return the paths of a cache.

    Args:
        folder: The cache folder (`--data-cache-path`).
        identifiers: Those of a GPTDescription or BlendedDescription, or read from a description.txt.
        name: Replaces the hash, for caches without one.

    >>> identifiers = {"class": "GPTDataset", "index_split": "train"}
    >>> cache_files("cache", identifiers).array("sample_index")
    'cache/ea5bb378baa5a235645b597098926baf-GPTDataset-train-sample_index.npy'
    """
    kind = identifiers["class"]
    split = identifiers["index_split"] if kind != BLENDED_CLASS else identifiers["split"]
    begin = description_hash(description_text(identifiers)) if name is None else name
    stem = os.path.join(folder, f"{begin}-{kind}-{split}")
    return CacheFiles(
        stem=stem,
        arrays=GPT_ARRAYS if kind != BLENDED_CLASS else BLENDED_ARRAYS,
        description=f"{stem}{DESCRIPTION_SUFFIX}",
        record=f"{stem}-dsindex.json",
    )


def files_beside(description: str, identifiers: Mapping[str, Any]) -> CacheFiles:
    """Return the paths of the cache of a description, whatever its name begins with."""
    folder, name = os.path.split(description)
    ending = cache_files("", identifiers, name="").description
    return cache_files(folder, identifiers, name=name.removesuffix(ending))


def array_beside(description: str, name: str) -> str:
    """Return the path of an array beside a description, such as `sample_index`."""
    return f"{description.removesuffix(DESCRIPTION_SUFFIX)}-{name}.npy"


def record_beside(description: str) -> dict[str, Any] | None:
    """Return dsindex's record beside a description; None if there is none that this version can read."""
    return read_record(f"{description.removesuffix(DESCRIPTION_SUFFIX)}-dsindex.json")


def descriptions_in(folder: str, pattern: str = "*") -> list[str]:
    """Return the paths of the descriptions in a folder whose names before the suffix match a pattern."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), f"{pattern}{DESCRIPTION_SUFFIX}")))


def leads_to(path: object, prefix: str) -> bool:
    """Tell whether a path of a description is this dataset's; data of another machine is known by its name."""
    if not isinstance(path, str) or os.path.abspath(path) == os.path.abspath(prefix):
        return isinstance(path, str)
    try:
        return os.path.samefile(f"{path}.idx", f"{prefix}.idx")
    except OSError:
        return os.path.basename(path) == os.path.basename(prefix)


def find_description(folder: str, identifiers: Mapping[str, Any]) -> str:
    """Return the path of a cache's description: under its hash or, as in caches without hashes, under any other name.

    If there is none, the path under its hash is returned.
    """
    hashed = cache_files(folder, identifiers).description
    if os.path.lexists(hashed):
        return hashed
    ending = os.path.basename(cache_files("", identifiers, name="").description)
    for entry in sorted(name for name in _names(folder) if name.endswith(ending)):
        path = os.path.join(folder, entry)
        with contextlib.suppress(FormatError):  # whose file it is, is not known
            if read_description(path) == identifiers:
                return path
    return hashed


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def default_folder(prefix: str, *, class_name: str = GPT_CLASS) -> str:
    """Return the folder that Megatron uses for a dataset if the job names none; blends are not cached then.

    >>> default_folder("data/web_text_document")
    'data/web_text_document/cache/GPTDataset_indices'
    """
    return os.path.join(prefix, "cache", f"{class_name}_indices")


_SETTINGS: tuple[tuple[str, type, int | None, bool], ...] = (
    ("index_split", str, None, False),
    ("num_samples", int, 0, True),
    ("random_seed", int, None, False),
    ("sequence_length", int, 1, False),
    ("split", str, None, True),
)
"""Settings in a description: name, type, least value, and whether it may be null."""


def read_description(path: str) -> dict[str, Any]:
    """Read a description.txt.

    Raises:
        FormatError: If it cannot be read or is not the description of a GPTDataset or a blend of them.
    """
    expected = f"the description of a {GPT_CLASS} or {BLENDED_CLASS}"
    try:
        with open_file(path) as file:
            identifiers = json.loads(file.read().decode())
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: expected {expected}, got a file that is not JSON ({error})") from error
    if not isinstance(identifiers, dict) or not _describes_cache(identifiers):
        raise FormatError(f"{path}: expected {expected}, got another JSON value")
    is_blend = identifiers["class"] == BLENDED_CLASS
    for described in identifiers["datasets"] if is_blend else [identifiers]:
        _check_settings(path, described)
    return identifiers


def _check_settings(path: str, described: Mapping[str, Any]) -> None:
    """Refuse a setting of another type than Megatron writes."""
    for name, kind, least, optional in _SETTINGS:
        value = described.get(name)
        if value is None and (optional or name not in described):
            continue
        if type(value) is kind and (least is None or (isinstance(value, int) and value >= least)):
            continue
        wanted = "a text" if kind is str else "an integer" if least is None else f"an integer of at least {least}"
        raise FormatError(f"{path}: expected `{name}` to be {wanted}, got {reprlib.repr(value)}")


def _describes_cache(identifiers: Mapping[str, Any]) -> bool:
    if identifiers.get("class") in GPT_CLASSES:
        return {"dataset_path", "index_split", "random_seed", "sequence_length", "tokenizer"} <= identifiers.keys()
    datasets = identifiers.get("datasets")
    return (
        identifiers.get("class") == BLENDED_CLASS
        and "split" in identifiers
        and isinstance(datasets, list)
        and len(datasets) > 0
        and all(isinstance(dataset, dict) and _describes_cache(dataset) for dataset in datasets)
    )


def array_bytes(count: int, dtype: np.dtype[Any]) -> int:
    """Return the size on disk of an array of `count` items; numpy pads its header to 128 bytes."""
    return 128 + count * dtype.itemsize


# The source of an index: the sequence lengths in an `.idx`, and a fingerprint that detects changes.

PIECE = 1 << 22
"""Sequence lengths read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFingerprint:
    """The state of a dataset's files when an index was built from them."""

    prefix: str
    idx_bytes: int
    idx_modified_ns: int
    bin_bytes: int | None
    """Size of the `.bin`; None if there was none beside the `.idx`."""
    bin_modified_ns: int | None
    begin: int
    """First sequence that the index draws from."""
    end: int
    """One past the last sequence."""
    lengths_digest: str
    """XXH3-128 of the lengths of these sequences, int32 little-endian: all that an index depends on."""

    def as_record(self) -> dict[str, Any]:
        """Return the fingerprint in a form for JSON."""
        return asdict(self)


def read_lengths(prefix: str, begin: int, end: int) -> NDArray[np.int32]:
    """Read the lengths of sequences [begin, end) into memory and check that none is negative.

    Raises:
        FormatError: If the `.idx` is damaged, has fewer sequences, or a negative length.
    """
    path = f"{prefix}.idx"
    index = read_index(path)
    if end > index.header.num_sequences:
        msg = f"{path}: expected at least {end} sequences, got {index.header.num_sequences}; it changed, run again"
        raise FormatError(msg)
    lengths = np.array(index.sequence_lengths[begin:end], dtype=np.int32, order="C")
    if len(lengths) and lengths.min() < 0:
        sequence = begin + int(np.argmax(lengths < 0))
        msg = f"{path}: expected no length below 0, got {lengths[sequence - begin]} for sequence {sequence}"
        raise FormatError(msg)
    return lengths


def count_tokens(sequence_lengths: NDArray[np.int32]) -> int:
    """Return the sum of lengths in int64, computed in pieces so that a mapped file does not stay in memory.

    >>> count_tokens(np.array([2**31 - 1, 2**31 - 1], np.int32))
    4294967294
    """
    pieces = range(0, len(sequence_lengths), PIECE)
    return sum(int(sequence_lengths[at : at + PIECE].sum(dtype=np.int64)) for at in pieces)


def fingerprint(prefix: str, begin: int, end: int, lengths: NDArray[np.int32]) -> SourceFingerprint:
    """Return a fingerprint of the files and lengths that an index is built from.

    Raises:
        InputError: If the `.idx` is missing, or cannot be read.
    """
    path = f"{prefix}.idx"
    try:
        idx = _look_at(path)
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror}); make it readable and run the same command again"
        raise InputError(msg) from error
    tokens = _state(f"{prefix}.bin")
    return SourceFingerprint(
        prefix=absolute(prefix),
        idx_bytes=idx[0],
        idx_modified_ns=idx[1],
        bin_bytes=None if tokens is None else tokens[0],
        bin_modified_ns=None if tokens is None else tokens[1],
        begin=begin,
        end=end,
        lengths_digest=xxhash.xxh3_128_hexdigest(lengths.astype("<i4", copy=False).data),
    )


def source_changes(prefix: str, recorded: Mapping[str, Any]) -> list[str]:
    """Return sentences about how a dataset differs from its recorded fingerprint; empty if it does not.

    Lengths are only read if a size or a time differs: a copied or touched file with the same lengths still fits.
    """
    idx = _state(f"{prefix}.idx")
    if idx is None:
        return [f"{prefix}.idx is missing, so it is unknown whether the cache still fits"]
    begin, end = int(recorded["begin"]), int(recorded["end"])
    changes = []
    if idx != (recorded["idx_bytes"], recorded["idx_modified_ns"]):
        try:
            now = fingerprint(prefix, begin, end, read_lengths(prefix, begin, end))
        except FormatError as error:
            return [f"the cache was built from another {prefix}.idx ({error})"]
        if now.lengths_digest != recorded["lengths_digest"]:
            changes.append(f"its sequences {begin} to {end} have other lengths, so the cache leads to wrong tokens")
        elif idx[0] != recorded["idx_bytes"]:
            changes.append(f"it has {idx[0]} bytes and had {recorded['idx_bytes']}: the split is cut elsewhere now")
    sentences = [f"{prefix}.idx changed since the cache was built ({what}); build it again" for what in changes]
    tokens = _state(f"{prefix}.bin")
    bin_bytes = None if tokens is None else tokens[0]
    if bin_bytes != recorded["bin_bytes"] and None not in (bin_bytes, recorded["bin_bytes"]):
        was = recorded["bin_bytes"]
        sentences.append(f"{prefix}.bin changed since the cache was built (it has {bin_bytes} bytes and had {was})")
    return sentences


def _state(path: str) -> tuple[int, int] | None:
    """Return what `_look_at` does; None if it is not there."""
    try:
        return _look_at(path)
    except (OSError, MissingObjectError):
        return None


def _look_at(path: str) -> tuple[int, int]:
    """Return size and time of a file, or size and a hash of the version of an object.

    Raises:
        OSError: If a file cannot be looked at.
        InputError: If an object cannot.
    """
    status = input_status(path)
    return status.size_bytes, version_number(status)
