"""What is at a path: the one detector, which goes by the content of files where their names do not say it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dsindex.chat.exports import EXPORT_MANIFEST
from dsindex.datasets.arguments import PBIN_SUFFIX
from dsindex.errors import FormatError, InputError
from dsindex.formats import PICKLE_START
from dsindex.formats.mmididx import refuse_foreign_index
from dsindex.formats.pbin import read_pbin_header
from dsindex.formats.raw_index import raw_index_path
from dsindex.megatron.cache import DESCRIPTION_SUFFIX, descriptions_in
from dsindex.store.listing import find_stored
from dsindex.store.local import open_file, what_is_no_file
from dsindex.store.read import is_stored
from dsindex.store.urls import is_url

KindName: TypeAlias = Literal["MMIDIDX", "pbin", "raw index", "index cache", "instruction data", "packs", "export"]

LINES_SUFFIX = ".jsonl"
TEXT_SUFFIX = "_text_document"
MASK_SUFFIX = "_loss_mask"
PACKING = re.compile(r"(.+)_packing_([0-9]{1,9})(?:_pad([0-9]{1,9}))?", re.DOTALL)
"""Prefix of packs: that of the instruction data, the sequence length, and the multiple to which packs are filled."""
_PREFIX_ENDINGS = (".bin", ".idx", ".manifest.json", ".provenance.parquet")
_CACHE_ENDINGS = (
    *(DESCRIPTION_SUFFIX, "-dsindex.json", "-document_index.npy", "-sample_index.npy", "-shuffle_index.npy"),
    *("-dataset_index.npy", "-dataset_sample_index.npy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a path leads to."""

    kind: KindName
    path: str
    """The prefix of MMIDIDX, instruction data and packs; the `.pbin`; the lines of a raw index; the folder or
    description of an index cache; the folder of an export."""

    @property
    def prefix(self) -> str:
        """What the paths of manifest and provenance begin with."""
        return self.path.removesuffix(PBIN_SUFFIX)


def tell_kind(path: str) -> Subject:
    """Tell what a path leads to. A damaged dataset is still recognized by the names of its files.

    Raises:
        InputError: If there is nothing, or nothing that dsindex knows, or it is unclear which dataset is meant.
        FormatError: If the file is in none of the known formats, or cannot be read.
    """
    if (refused := what_is_no_file(path)) is not None:
        raise InputError(f"{path}: expected a dataset, got {refused}")
    ending = next((each for each in _PREFIX_ENDINGS if path.endswith(each)), "")
    prefix = path.removesuffix(ending)
    subject = _at_prefix(prefix)
    if subject is not None or is_url(path):
        return subject or _nothing(path)
    if ending and os.path.isfile(path):
        raise InputError(
            f"{path}: expected the dataset {prefix} beside it, found none; move it there or build it again"
        )
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    if os.path.isfile(os.path.join(folder, EXPORT_MANIFEST)) and path.endswith((folder, ".parquet", EXPORT_MANIFEST)):
        return Subject(kind="export", path=folder)
    if descriptions_in(path):
        return Subject(kind="index cache", path=path)
    return _file(path) if os.path.isfile(path) else _nothing(path)


def _at_prefix(prefix: str) -> Subject | None:
    """Return the dataset of a prefix, here or in an object store."""
    if is_stored(f"{prefix}.idx"):
        head = b"" if is_url(prefix) else read_head(f"{prefix}.idx")
        if head.startswith(PICKLE_START):
            lines = f"{prefix}{LINES_SUFFIX}"
            if not os.path.isfile(lines):
                raise InputError(
                    f"{prefix}.idx: expected the file of this raw index as {lines}, found none; name the file"
                )
            return Subject(kind="raw index", path=lines)
        refuse_foreign_index(f"{prefix}.idx", head)
        return Subject(kind="packs" if PACKING.fullmatch(prefix) else "MMIDIDX", path=prefix)
    if is_stored(f"{prefix}.bin"):
        return Subject(kind="MMIDIDX", path=prefix)
    if all(is_stored(f"{prefix}{each}.idx") for each in (TEXT_SUFFIX, MASK_SUFFIX)):
        return Subject(kind="instruction data", path=prefix)
    packed = f"{prefix.removesuffix(PBIN_SUFFIX)}{PBIN_SUFFIX}"
    return Subject(kind="pbin", path=packed) if is_stored(packed) else None


def _file(path: str) -> Subject:
    ending = next((each for each in _CACHE_ENDINGS if path.endswith(each)), None)
    if ending is not None:
        return Subject(kind="index cache", path=f"{path.removesuffix(ending)}{DESCRIPTION_SUFFIX}")
    head = read_head(path)
    if path.endswith(LINES_SUFFIX) or head.lstrip().startswith(b"{"):
        if os.path.isfile(raw_index_path(path)):
            return Subject(kind="raw index", path=path)
        raise InputError(
            f"{path}: expected a dataset, got text without its raw index {raw_index_path(path)}; build a dataset from "
            f"it (dsindex build), or index its lines (dsindex raw-index)"
        )
    try:
        read_pbin_header(path)
    except FormatError as error:
        raise FormatError(
            f"{path}: expected a dataset of .bin and .idx, a .pbin, a raw index, an index cache, an export or a "
            f"manifest, got a file that begins with {head[:8]!r}"
        ) from error
    return Subject(kind="pbin", path=path)


def pack_layouts(prefix: str) -> dict[str, tuple[int, int]]:
    """Return the packs of instruction data: prefix → sequence length, and the multiple to which packs are filled."""
    paths = [path.removesuffix(".idx") for path in find_stored(f"{prefix}_packing_") if path.endswith(".idx")]
    found = {path: match for path in paths if (match := PACKING.fullmatch(path)) and match[1] == prefix}
    return {path: (int(match[2]), int(match[3] or 1)) for path, match in found.items()}


def _nothing(path: str) -> Subject:
    """Refuse a path that leads to no dataset.

    Raises:
        InputError: Always, with the datasets that may be meant.
    """
    near = [] if is_url(path) else [*find_stored(os.path.join(path, "")), *find_stored(f"{path}_")]
    names = [name.removesuffix(".idx") for name in near if name.endswith((".idx", PBIN_SUFFIX))]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    hint = f"choose one of {', '.join(names[:4])}{more}" if names else "check the path"
    got = "got a folder" if os.path.isdir(path) else f"found no file or folder, and no {path}.idx"
    raise InputError(f"{path}: there is no dataset: {got}; {hint}")


def read_head(path: str) -> bytes:
    """Return the first bytes of a file, by which its format is told.

    Raises:
        FormatError: If it cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(64)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
