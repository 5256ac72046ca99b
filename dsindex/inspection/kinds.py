"""Tell what a path is, from the files themselves rather than from their names alone."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Literal

from dsindex.datasets.opening import (
    DESCRIPTION_SUFFIX,
    LINES_SUFFIX,
    MASK_SUFFIX,
    PBIN_SUFFIX,
    TEXT_SUFFIX,
    read_head,
)
from dsindex.errors import FormatError, InputError
from dsindex.exports.reading import export_folder_of, read_facts
from dsindex.formats.mmididx import MAGIC
from dsindex.formats.pbin import PICKLE_START, read_pbin_header
from dsindex.formats.raw_index import raw_index_path
from dsindex.objects.urls import is_url
from dsindex.readable import is_stored
from dsindex.regular_files import what_is_no_file
from dsindex.shards.ownership import MARKER_FILE

KindName = Literal["MMIDIDX", "pbin", "raw index", "index cache", "instruction data", "export", "work folder"]

BESIDE_SUFFIXES = (".manifest.json", ".provenance.parquet")
"""Endings of files that lie beside a dataset and lead to it."""
_ARRAYS = ("-document_index.npy", "-sample_index.npy", "-shuffle_index.npy", "-dataset_index.npy")
_CACHE_SUFFIXES = (DESCRIPTION_SUFFIX, *_ARRAYS, "-dataset_sample_index.npy", "-dsindex.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a path leads to."""

    kind: KindName
    path: str
    """The prefix of MMIDIDX and instruction data; the `.pbin`; the `.idx` of a raw index; the folder or description of
    an index cache; the folder or file of an export; the work folder."""


def tell_kind(path: str) -> Subject:
    """Tell what a path leads to. A damaged dataset is still recognized by the names of its files.

    Raises:
        InputError: If there is nothing, or nothing that dsindex knows, or it is unclear which dataset is meant.
        FormatError: If the file is in none of the known formats, or cannot be read.
    """
    if is_url(path):
        return _in_store(path)
    refused = what_is_no_file(path)
    if refused is not None or "\0" in path:
        msg = f"{path}: expected a dataset, got {refused or 'a name with a NUL character'}"
        raise InputError(msg)
    if os.path.isdir(path):
        folder = _folder(path)
        if folder is not None:
            return folder
    elif os.path.isfile(path):
        return _file(path)
    subject = _prefix(path)
    if subject is None:
        raise InputError(_nothing(path))
    return subject


def _in_store(url: str) -> Subject:
    """Tell which dataset an address in an object store leads to, where nothing is listed.

    Raises:
        InputError: If there is none, or it cannot be looked at.
    """
    endings = (".bin", ".idx", *BESIDE_SUFFIXES)
    prefix = next((url.removesuffix(ending) for ending in endings if url.endswith(ending)), url)
    if prefix.endswith(PBIN_SUFFIX):
        return Subject(kind="pbin", path=prefix)
    if is_stored(f"{prefix}.idx") or is_stored(f"{prefix}.bin"):
        return Subject(kind="MMIDIDX", path=prefix)
    if is_stored(f"{prefix}{TEXT_SUFFIX}.idx") and is_stored(f"{prefix}{MASK_SUFFIX}.idx"):
        return Subject(kind="instruction data", path=prefix)
    if is_stored(f"{prefix}{PBIN_SUFFIX}"):
        return Subject(kind="pbin", path=f"{prefix}{PBIN_SUFFIX}")
    msg = (
        f"{url}: there is no dataset: expected the prefix of a .bin and .idx, or a .pbin, found none; index caches, "
        f"raw indices and folders are looked at on this machine only"
    )
    raise InputError(msg)


def _folder(path: str) -> Subject | None:
    if os.path.isfile(os.path.join(path, MARKER_FILE)):
        return Subject(kind="work folder", path=path)
    if glob.glob(os.path.join(glob.escape(path), f"*{DESCRIPTION_SUFFIX}")):
        return Subject(kind="index cache", path=path)
    if export_folder_of(path) is not None:
        return Subject(kind="export", path=path)
    return None


def _prefix(path: str) -> Subject | None:
    if os.path.isfile(f"{path}{TEXT_SUFFIX}.idx") and os.path.isfile(f"{path}{MASK_SUFFIX}.idx"):
        return Subject(kind="instruction data", path=path)
    if os.path.isfile(f"{path}.idx") and read_head(f"{path}.idx").startswith(PICKLE_START):
        return Subject(kind="raw index", path=f"{path}.idx")
    if os.path.isfile(f"{path}.idx") or os.path.isfile(f"{path}.bin"):
        return Subject(kind="MMIDIDX", path=path)
    if os.path.isfile(f"{path}{PBIN_SUFFIX}"):
        return Subject(kind="pbin", path=f"{path}{PBIN_SUFFIX}")
    return None


def _file(path: str) -> Subject:
    stem, suffix = os.path.splitext(path)
    if export_folder_of(path) is not None or (_is_plain_parquet(path) and "export" in read_facts(path)):
        return Subject(kind="export", path=path)
    beside = next((each for each in BESIDE_SUFFIXES if path.endswith(each)), None)
    if beside is not None:
        return _of_file_beside(path, path.removesuffix(beside))
    ending = next((each for each in _CACHE_SUFFIXES if path.endswith(each)), None)
    if ending is not None:
        return Subject(kind="index cache", path=f"{path.removesuffix(ending)}{DESCRIPTION_SUFFIX}")
    if suffix == PBIN_SUFFIX:  # begins with a number, so its first byte can be any
        return Subject(kind="pbin", path=path)
    head = read_head(path)
    if head.startswith(MAGIC) or suffix == ".bin":
        return Subject(kind="MMIDIDX", path=stem if suffix in {".bin", ".idx"} else path)
    if head.startswith(PICKLE_START):
        return Subject(kind="raw index", path=path)
    if suffix == ".idx":
        return Subject(kind="MMIDIDX", path=stem)
    if suffix == LINES_SUFFIX or head.lstrip().startswith(b"{"):
        return _lines(path)
    return _nameless(path, head)


def _is_plain_parquet(path: str) -> bool:
    return path.endswith(".parquet") and not path.endswith(BESIDE_SUFFIXES) and read_head(path).startswith(b"PAR1")


def _nameless(path: str, head: bytes) -> Subject:
    """Tell what a file is whose name and first bytes say nothing.

    Raises:
        FormatError: If it is not a `.pbin`, the only kind left.
    """
    try:
        read_pbin_header(path)
    except FormatError as error:
        msg = (
            f"{path}: expected a dataset of .bin and .idx, a .pbin, a raw index, an index cache, instruction data, a "
            f"work folder or a manifest, got a file that begins with {head[:8]!r}"
        )
        raise FormatError(msg) from error
    return Subject(kind="pbin", path=path)


def _of_file_beside(path: str, prefix: str) -> Subject:
    subject = _prefix(prefix)
    if subject is None:
        msg = f"{path}: expected the dataset {prefix} beside it, found none; move it there or build it again"
        raise InputError(msg)
    return subject


def _lines(path: str) -> Subject:
    index = raw_index_path(path)
    if not os.path.isfile(index):
        msg = (
            f"{path}: expected a dataset, got text without the raw index {index}; build a dataset from it "
            f"(dsindex build), or index its lines (dsindex raw-index)"
        )
        raise InputError(msg)
    return Subject(kind="raw index", path=index)


def _nothing(path: str) -> str:
    beside = sorted(glob.glob(f"{glob.escape(path)}_*.idx"))
    if os.path.isdir(path):
        inside = os.path.join(glob.escape(path), "*")
        found = sorted([*glob.glob(f"{inside}.idx"), *glob.glob(f"{inside}{PBIN_SUFFIX}")])
        got = "a folder with several" if found else "a folder without any"
        return f"{path}: expected a dataset, got {got}; {_hint(found)}"
    return f"{path}: there is no dataset: expected a file, or a {path}.idx; {_hint(beside)}"


def _hint(found: list[str]) -> str:
    names = [name.removesuffix(".idx") for name in found]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"choose one of {', '.join(names[:4])}{more}" if names else "check the path"
