"""Find the files with records in a folder, in an order that depends on names alone.

All files below the folder whose suffix is known are taken. Entries of each folder are taken by name, compared as bytes,
so `a/z.jsonl` comes before `b.jsonl`. Left out are hidden files and folders, files of other kinds, links to folders
(they may lead in circles), and what dsindex itself writes: work folders, manifests, provenance, quarantines, and the
records of progress, repairs and index caches. Links to files are followed, as the cache of the Hugging Face hub needs.

Folders of `datasets.save_to_disk` are taken as their state.json says, wherever they are found.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from dsindex.errors import InputError
from dsindex.objects.urls import ObjectUrl, is_url
from dsindex.shards.ownership import MARKER_FILE
from workflows.state.dataset_splits import FolderFile, choose_split, find_split, require_all_parts
from workflows.state.object_inputs import ListedEntry, list_entries
from workflows.state.saved_datasets import DICT_FILE, STATE_FILE, read_data_files, read_split_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_Entry: TypeAlias = "os.DirEntry[str] | ListedEntry"
_Lister: TypeAlias = "Callable[[str], Mapping[str, _Entry]]"

DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
COMPRESSION_SUFFIXES = (".gz", ".bgz", ".zst", ".zstd", ".bz2", ".xz")
_OWN_SUFFIXES = (
    ".manifest.json",
    ".provenance.parquet",
    ".quarantine.jsonl.zst",
    ".repair.json",
    ".progress.json",
    "-dsindex.json",
)
_INFO_FILES = frozenset({"dataset_info.json", "dataset_infos.json", DICT_FILE})
"""Descriptions that Hugging Face's datasets writes beside data."""
_CACHED_MAP = re.compile(r"(cache|tmp)-?[0-9a-z_]+\.arrow")
"""Results of `Dataset.map`, kept beside the data of a dataset_info.json."""
_HUB_CACHE = frozenset({"blobs", "snapshots"})
_SHOWN_KINDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subfolder:
    path: str
    parts: tuple[str, ...]
    split: str | None = None
    """The split that a dataset_dict.json gives it."""


def find_folder_files(folder: str, split: str | None) -> list[str]:
    """Return the paths of the files with records below a folder, in order.

    Args:
        folder: Path of the folder; the paths returned begin with it.
        split: The split to take, `all`, or None, which refuses a folder of several splits.

    Raises:
        InputError: If nothing is found, a folder cannot be read, the split cannot be told, a file of a numbered set
            is missing, or a file seems to be there twice, in two formats.
    """
    objects: Mapping[str, ObjectUrl] = {}
    if isinstance(folder, ObjectUrl):
        folders, objects = list_entries(folder)
        files, others = _walk(folder.rstrip("/"), lambda path: folders.get(path, {}))
    else:
        files, others = _walk(folder, _list)
    if not files:
        msg = (
            f"{folder}: expected files with records ({', '.join(DATA_SUFFIXES)}, also compressed) in this folder, "
            f"found {_describe_others(others)}; name files of another kind by a pattern"
        )
        raise InputError(msg)
    chosen = choose_split(folder, files, split)
    require_all_parts(chosen)
    _require_one_format(chosen)
    return [objects.get(file.path, file.path) for file in chosen]


def data_stem(name: str) -> str | None:
    """Return a file's name without the suffixes of data and compression; None if it is not known as data.

    >>> data_stem("a.b.jsonl.gz"), data_stem("A.PARQUET"), data_stem("notes.txt"), data_stem("blob.gz")
    ('a.b', 'A', None, None)
    """
    stem, suffix = os.path.splitext(name)
    if suffix.lower() in COMPRESSION_SUFFIXES:
        stem, suffix = os.path.splitext(stem)
    return stem if suffix.lower() in DATA_SUFFIXES else None


def _walk(folder: str, list_folder: _Lister) -> tuple[list[FolderFile], Counter[str]]:
    """Return the files below a folder, and how many others of each kind there are."""
    files: list[FolderFile] = []
    others: Counter[str] = Counter()
    pending: list[FolderFile | _Subfolder] = [_Subfolder(path=folder, parts=())]
    while pending:
        member = pending.pop()
        if isinstance(member, FolderFile):
            files.append(member)
        else:
            pending.extend(reversed(_members(member, others, list_folder)))
    return files, others


def _members(folder: _Subfolder, others: Counter[str], list_folder: _Lister) -> Sequence[FolderFile | _Subfolder]:
    entries = list_folder(folder.path)
    if MARKER_FILE in entries:
        others["work folders of dsindex"] += 1
        return ()
    if is_url(folder.path) and (DICT_FILE in entries or STATE_FILE in entries):
        msg = (
            f"{folder.path}: expected files with records, got a folder that datasets.save_to_disk wrote, whose order "
            f"is only read on this machine; copy it here, or name its .arrow files by a pattern"
        )
        raise InputError(msg)
    if DICT_FILE in entries:
        splits = read_split_names(folder.path)
        return [_below(folder, name, split=name) for name in splits]
    if STATE_FILE in entries:
        saved = read_data_files(folder.path)
        if saved is not None:
            split = folder.split or saved.split
            return [_file(folder, name, split=split) for name in saved.names]
    if entries.keys() >= _HUB_CACHE:
        return _snapshot(folder, list_folder)
    return _plain_members(folder, entries, others)


def _plain_members(
    folder: _Subfolder, entries: Mapping[str, _Entry], others: Counter[str]
) -> list[FolderFile | _Subfolder]:
    members: list[FolderFile | _Subfolder] = []
    has_info = "dataset_info.json" in entries
    for name in sorted(entries, key=os.fsencode):
        if name.startswith("."):
            others["hidden"] += 1
        elif entries[name].is_dir(follow_symlinks=False):
            members.append(_below(folder, name))
        elif entries[name].is_symlink() and os.path.isdir(entries[name].path):  # False for a link to itself
            others["links to folders"] += 1
        elif _is_data(name) and not (has_info and _CACHED_MAP.fullmatch(name)):
            members.append(_file(folder, name))
        else:
            others[os.path.splitext(name)[1] or "without suffix"] += 1
    return members


def _is_data(name: str) -> bool:
    return data_stem(name) is not None and name not in _INFO_FILES and not name.endswith(_OWN_SUFFIXES)


def _file(folder: _Subfolder, name: str, *, split: str | None = None) -> FolderFile:
    parts = (*folder.parts, name)
    return FolderFile(path=os.path.join(folder.path, name), parts=parts, split=split or find_split(parts))


def _below(folder: _Subfolder, name: str, *, split: str | None = None) -> _Subfolder:
    return _Subfolder(path=os.path.join(folder.path, name), parts=(*folder.parts, name), split=split)


def _snapshot(folder: _Subfolder, list_folder: _Lister) -> list[_Subfolder]:
    """Return the only snapshot in a dataset's folder of the hub's cache; its blobs have no suffix."""
    snapshots = _below(folder, "snapshots")
    names = sorted(list_folder(snapshots.path), key=os.fsencode)
    if len(names) > 1:
        msg = f"{snapshots.path}: expected one revision, found {len(names)} ({', '.join(names)}); name one of them"
        raise InputError(msg)
    return [_below(snapshots, name) for name in names]


def _list(path: str) -> Mapping[str, _Entry]:
    try:
        with os.scandir(path) as entries:
            return {entry.name: entry for entry in entries}
    except OSError as error:
        msg = f"{path}: the folder cannot be read ({error.strerror}); check --input"
        raise InputError(msg) from error


def _require_one_format(files: Iterable[FolderFile]) -> None:
    """Refuse files of one folder that differ only in their suffixes: they may be copies.

    Raises:
        InputError: Naming the first two.
    """
    seen: dict[str, str] = {}
    for file in files:
        stem = data_stem(file.path) or file.path
        other = seen.setdefault(stem, file.path)
        if other != file.path:
            msg = (
                f"{file.path}: expected no other format of the same file, found {os.path.basename(other)} beside it, "
                f"and its records would count twice; move one away, or name the files themselves"
            )
            raise InputError(msg)


def _describe_others(others: Counter[str]) -> str:
    if not others:
        return "nothing"
    kinds = others.most_common()
    shown = [f"{kind} ({count:,})" for kind, count in kinds[:_SHOWN_KINDS]]
    rest = sum(count for _, count in kinds[_SHOWN_KINDS:])
    return ", ".join([*shown, *([f"others ({rest:,})"] if rest else [])])
