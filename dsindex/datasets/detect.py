"""Detect which dataset, index cache or export a path leads to, from file names or, failing that, from content."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NoReturn, TypeAlias

from dsindex.datasets.arguments import PBIN_SUFFIX
from dsindex.errors import FormatError, InputError
from dsindex.formats import PICKLE_START
from dsindex.formats.manifest import EXPORT_MANIFEST
from dsindex.formats.mmididx import refuse_foreign_index
from dsindex.formats.pbin import read_pbin_header
from dsindex.formats.pickled_pairs import raw_index_path
from dsindex.megatron.cache import DESCRIPTION_SUFFIX, descriptions_in
from dsindex.megatron.plan import read_list
from dsindex.store.errors import reading
from dsindex.store.listing import find_with_beginning
from dsindex.store.local import describe_special_file
from dsindex.store.read import is_stored, open_stored
from dsindex.store.urls import local_paths

KindName: TypeAlias = Literal[
    "MMIDIDX", "pbin", "raw index", "index cache", "instruction data", "packs", "export", "list"
]

LINES_SUFFIX = ".jsonl"
TEXT_SUFFIX = "_text_document"
MASK_SUFFIX = "_loss_mask"
PACKING = re.compile(r"(.+)_packing_([0-9]{1,9})(?:_pad([0-9]{1,9}))?", re.DOTALL)
"""Path of packs: prefix of the instruction data, sequence length, and the multiple that conversations are padded to."""
_PREFIX_ENDINGS = (".bin", ".idx", ".manifest.json", ".provenance.parquet")
_CACHE_ENDINGS = (
    *(DESCRIPTION_SUFFIX, "-dsindex.json", "-document_index.npy", "-sample_index.npy", "-shuffle_index.npy"),
    *("-dataset_index.npy", "-dataset_sample_index.npy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedDataset:
    """A dataset, index cache or export that a path leads to."""

    kind: KindName
    path: str
    """The prefix of MMIDIDX, instruction data and packs; the `.pbin`; the JSONL file of a raw index; the folder or
    description of an index cache; the folder of an export; the file of a list of datasets."""

    @property
    def prefix(self) -> str:
        """The path of the manifest and provenance without their suffixes."""
        return self.path.removesuffix(PBIN_SUFFIX)


def detect_dataset(path: str) -> DetectedDataset:
    """Detect what a path leads to. A damaged dataset is still recognized by the names of its files.

    Raises:
        InputError: If the path is missing, or has nothing that dsindex reads.
        FormatError: If the file has none of the known formats, or cannot be read.
    """
    if (file_kind := describe_special_file(path)) is not None:
        raise InputError(f"{path}: {file_kind} is not a dataset")
    ending = next((suffix for suffix in _PREFIX_ENDINGS if path.endswith(suffix)), "")
    prefix = path.removesuffix(ending)
    detected = _detect_prefix(prefix)
    if detected is None and read_list(path) is not None:
        return DetectedDataset(kind="list", path=path)
    if detected is not None:
        return detected
    if ending and os.path.isfile(path) and os.path.basename(path) != EXPORT_MANIFEST:
        hint = "move the other files of the dataset there, or build it again"
        raise InputError(f"{path}: there is no dataset {prefix} next to it", hint=hint)
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if os.path.isfile(os.path.join(folder, EXPORT_MANIFEST)) and path.endswith((folder, ".parquet", EXPORT_MANIFEST)):
        return DetectedDataset(kind="export", path=folder)
    if descriptions_in(path):
        return DetectedDataset(kind="index cache", path=path)
    return _detect_file(path) if os.path.isfile(path) else _refuse_missing(path)


def _detect_prefix(prefix: str) -> DetectedDataset | None:
    """Return the dataset of a prefix, on a disk or in an object store."""
    if is_stored(f"{prefix}.idx"):
        head = read_head(f"{prefix}.idx")
        if head.startswith(PICKLE_START):
            lines = f"{prefix}{LINES_SUFFIX}"
            if not os.path.isfile(lines):
                raise InputError(f"{prefix}.idx: a raw index without its file {lines}", hint="name the JSONL file")
            return DetectedDataset(kind="raw index", path=lines)
        refuse_foreign_index(f"{prefix}.idx", head)
        return DetectedDataset(kind="packs" if PACKING.fullmatch(prefix) else "MMIDIDX", path=prefix)
    if is_stored(f"{prefix}.bin"):
        return DetectedDataset(kind="MMIDIDX", path=prefix)
    if all(is_stored(f"{prefix}{suffix}.idx") for suffix in (TEXT_SUFFIX, MASK_SUFFIX)):
        return DetectedDataset(kind="instruction data", path=prefix)
    pbin_path = f"{prefix.removesuffix(PBIN_SUFFIX)}{PBIN_SUFFIX}"
    return DetectedDataset(kind="pbin", path=pbin_path) if is_stored(pbin_path) else None


def _detect_file(path: str) -> DetectedDataset:
    ending = next((suffix for suffix in _CACHE_ENDINGS if path.endswith(suffix)), None)
    if ending is not None:
        return DetectedDataset(kind="index cache", path=f"{path.removesuffix(ending)}{DESCRIPTION_SUFFIX}")
    head = read_head(path)
    if path.endswith(LINES_SUFFIX) or head.lstrip().startswith(b"{"):
        if os.path.isfile(raw_index_path(path)):
            return DetectedDataset(kind="raw index", path=path)
        raise InputError(
            f"{path}: text, and no raw index {raw_index_path(path)} next to it",
            hint="build a dataset from it (dsindex build), or index its lines (dsindex raw-index)",
        )
    try:
        read_pbin_header(path)
    except FormatError as error:
        formats = ".bin and .idx, .pbin, raw index, index cache, export, manifest"
        raise FormatError(f"{path}: begins with {head[:8]!r}, which is no known format ({formats})") from error
    return DetectedDataset(kind="pbin", path=path)


def pack_layouts(prefix: str) -> dict[str, tuple[int, int]]:
    """Return the packs of instruction data: prefix → sequence length, multiple that conversations are padded to."""
    paths = [path.removesuffix(".idx") for path in find_with_beginning(f"{prefix}_packing_") if path.endswith(".idx")]
    matches = {path: match for path in paths if (match := PACKING.fullmatch(path)) and match[1] == prefix}
    return {path: (int(match[2]), int(match[3] or 1)) for path, match in matches.items()}


def _refuse_missing(path: str) -> NoReturn:
    """Refuse a path without a dataset, and suggest datasets near it."""
    beginnings = (beginning for place in local_paths([path]) for beginning in (os.path.join(place, ""), f"{place}_"))
    paths = chain.from_iterable(map(find_with_beginning, beginnings))
    names = [name.removesuffix(".idx") for name in paths if name.endswith((".idx", PBIN_SUFFIX))]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    hint = f"choose one of {', '.join(names[:4])}{more}" if names else "check the path"
    problem = "only a folder" if os.path.isdir(path) else f"no file or folder, and no {path}.idx"
    raise InputError(f"{path}: there is no dataset: {problem}", hint=hint)


def read_head(path: str) -> bytes:
    """Return the first bytes of a file, from which its format is detected.

    Raises:
        FormatError: If it cannot be read.
    """
    with reading(path, FormatError), open_stored(path) as file:
        return file.read(64)
