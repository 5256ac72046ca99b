"""Which files the inputs of a job are, in which order: files, patterns, folders, lists of paths, standard input.

Entries of `--input` come first, as given, then the entries of each list. A pattern's matches are sorted by name; the
order within a folder is described in `dsindex.engine.input_paths`. Files are looked up here, and not opened.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from dsindex.engine.work_folder import MARKER_FILE
from dsindex.errors import InputError
from dsindex.json_text import decode_json
from dsindex.store.listing import (
    Entry,
    Lister,
    Statuses,
    at_commit,
    described_configurations,
    expand_pattern,
    is_folder,
    is_match,
    open_listing,
)
from dsindex.store.storage import open_file
from dsindex.store.urls import ONLY_INPUTS, absolute, locate, refuse_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dsindex.store.storage import InputStatus


# Find the files with records in a folder, in an order that depends on names alone.
#
# All files below the folder whose suffix is known are taken. Entries of each folder are taken by name, compared as
# bytes, so `a/z.jsonl` comes before `b.jsonl`. Left out are hidden files and folders, files of other kinds, links to
# folders (they may lead in circles), and what dsindex itself writes: work folders, manifests, provenance, quarantines,
# and the records of progress and index caches. Links to files are followed, as the cache of the Hugging Face
# hub needs.
#
# Folders of `datasets.save_to_disk` are taken as their state.json says, wherever they are found.

# Splits and numbered parts that the names of files tell, in the layouts of Hugging Face's datasets.
#
#     data/train-00000-of-00012.parquet     a split and a part
#     train/0000.parquet, train/…           a folder of the split's name
#     train.jsonl, news_test.jsonl          a split's name in a file's name, between characters that are no letters
#
# Source: https://huggingface.co/docs/hub/datasets-file-names-and-splits

ALL_SPLITS = "all"
_ALIASES = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
_WORD = re.compile(rf"(?<![^\W\d_])({'|'.join(sorted(_ALIASES, key=len, reverse=True))})(?![^\W\d_])", re.IGNORECASE)
"""The name of a split, between characters that are no letters."""
_PART = re.compile(r"(?P<stem>.*?)(?P<number>\d{1,9})-of-(?P<total>\d{1,9})(?P<hash>-[0-9a-f]{16})?(?P<rest>\D.*|)")
"""A numbered part; the hash is the hub's and differs from part to part."""
_NAMED_PART = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}\b.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFile:
    """A file with records below a folder."""

    path: str
    parts: tuple[str, ...]
    """Names of the folders below the given one, and of the file."""
    split: str | None
    """The split that its name or its folder tells; None if neither does."""


def canonical_split(name: str) -> str:
    """Return the name that Hugging Face gives a split.

    >>> canonical_split("val"), canonical_split("Train"), canonical_split("books")
    ('validation', 'train', 'books')
    """
    return _ALIASES.get(name.lower(), name)


def find_split(parts: Sequence[str]) -> str | None:
    """Return the split that a path below a folder tells; None if it tells none.

    The name of a numbered part decides, then the innermost folder that is called as a split, then a word in the file's
    name, then a word in a folder's. In a folder `data`, a numbered part may have a split of any name.

    >>> find_split(["data", "books-00000-of-00002.parquet"]), find_split(["en", "val", "0000.parquet"])
    ('books', 'validation')
    >>> find_split(["news_test.jsonl"]), find_split(["latest.jsonl"])
    ('test', None)
    """
    *folders, name = parts
    part = _NAMED_PART.fullmatch(name) if "-of-" in name else None
    if part is not None and (part[1].lower() in _ALIASES or folders[-1:] == ["data"]):
        return canonical_split(part[1])
    called, with_word = _find_folder_split(tuple(folders))
    if called is not None:
        return called
    word = _WORD.search(os.path.splitext(name)[0])
    return with_word if word is None else canonical_split(word[1])


@lru_cache(1024)
def _find_folder_split(folders: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the split as which the innermost of folders is called, and that of the innermost word in their names."""
    called = next((canonical_split(folder) for folder in reversed(folders) if folder.lower() in _ALIASES), None)
    words = filter(None, map(_WORD.search, reversed(folders)))
    return called, next((canonical_split(word[1]) for word in words), None)


def choose_split(folder: str, files: Sequence[FolderFile], wanted: str | None) -> list[FolderFile]:
    """Return the files of the wanted split, in order.

    Args:
        folder: The folder they were found in, for messages.
        files: All its files.
        wanted: A split, `all`, or None if the user named none.

    Raises:
        InputError: If there are several splits and none is wanted, or no file of the wanted one.
    """
    counts = Counter(file.split for file in files)
    unnamed = counts.pop(None, 0)
    if wanted is None:
        if len(counts) > 1:
            raise InputError(
                f"{folder}: expected files of one split, found {_describe(counts, unnamed)}; choose with --input-split "
                f"NAME, or take them all with --input-split {ALL_SPLITS}"
            )
        return list(files)
    split = canonical_split(wanted)
    if split in counts:
        return [file for file in files if file.split == split]
    if wanted == ALL_SPLITS or (split == "train" and not counts):  # files without a split are for training
        return list(files)
    msg = f"{folder}: expected files of the split {wanted!r}, found {_describe(counts, unnamed)}; check --input-split"
    raise InputError(msg)


def require_all_parts(files: Iterable[FolderFile]) -> None:
    """Check that every set of parts such as `00003-of-00012` is complete.

    Raises:
        InputError: Naming the first part that is missing or there twice.
    """
    sets: dict[tuple[str, ...], dict[int, str]] = {}
    for file in files:
        if "-of-" not in file.path:
            continue
        head, name = os.path.split(file.path)
        part = _PART.fullmatch(name)
        if part is None:
            continue
        numbers = sets.setdefault((head, part["stem"], part["total"], part["rest"]), {})
        other = numbers.setdefault(int(part["number"]), name)
        if other != name:
            msg = f"{file.path}: expected one file for each part, found {other} beside it; move one of them away"
            raise InputError(msg)
    for (head, stem, total, rest), numbers in sets.items():
        first = 1 if int(total) in numbers and 0 not in numbers else 0
        missing = next((n for n, number in enumerate(sorted(numbers), first) if n != number), first + len(numbers))
        if missing < first + int(total):
            width = len(total)
            name = f"{stem}{missing:0{width}}-of-{total}{rest}"
            raise InputError(
                f"{os.path.join(head, name)}: this part is missing, {len(numbers):,} of {int(total):,} are there; get "
                f"it, or name the files themselves if you want them without it"
            )


def _describe(counts: Counter[str | None], unnamed: int) -> str:
    shown = [f"{split} ({_files(count)})" for split, count in counts.items()]
    if unnamed:
        shown.append(f"{_files(unnamed)} whose names tell no split")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"


# Folders that `datasets.save_to_disk` writes: which Arrow files hold the records, in which order.
#
# A Dataset's folder has a state.json with `_data_files`; a DatasetDict's has a dataset_dict.json with `splits`, and a
# Dataset's folder for each.
#
# Source: datasets 4.0, Dataset.save_to_disk and DatasetDict.save_to_disk.

STATE_FILE = "state.json"
DICT_FILE = "dataset_dict.json"
MAX_STATE_BYTES = 64 << 20

Form = TypeVar("Form", bound=Struct)


class _DataFile(Struct):
    filename: str


class _State(Struct):
    data_files: Annotated[list[_DataFile], Meta(min_length=1)] = msgspec.field(name="_data_files")
    split: str | None = msgspec.field(default=None, name="_split")
    indices_files: list[object] | None = msgspec.field(default=None, name="_indices_data_files")


class _Dict(Struct):
    splits: Annotated[list[str], Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedDataset:
    """The data files of a folder that `Dataset.save_to_disk` wrote."""

    names: tuple[str, ...]
    split: str | None


def read_data_files(folder: str) -> SavedDataset | None:
    """Read a folder's state.json; return None if it is one of something else.

    Raises:
        InputError: If it cannot be read, or names files that cannot be taken one after the other.
    """
    path = os.path.join(folder, STATE_FILE)
    stored = _read_json(path)
    if not isinstance(stored, dict) or "_data_files" not in stored:
        return None
    state = _validated(path, stored, _State)
    if state.indices_files:
        raise InputError(
            f"{path}: expected records in the order of their files, got a dataset with an indices mapping; load it, "
            f"call flatten_indices(), and save it again"
        )
    names = tuple(file.filename for file in state.data_files)
    for name in names:
        _require_name(path, name)
        if not os.path.exists(os.path.join(folder, name)):
            raise InputError(f"{path}: expected the file {name!r} beside it, found none; copy the whole folder again")
    return SavedDataset(names=names, split=state.split)


def read_split_names(folder: str) -> tuple[str, ...]:
    """Read the splits in a folder's dataset_dict.json; each is a subfolder.

    Raises:
        InputError: If it cannot be read, or a subfolder is missing.
    """
    path = os.path.join(folder, DICT_FILE)
    names = tuple(_validated(path, _read_json(path), _Dict).splits)
    for name in names:
        _require_name(path, name)
        if not os.path.isdir(os.path.join(folder, name)):
            raise InputError(f"{path}: expected a folder {name!r} beside it, found none; copy the whole folder again")
    return names


def _require_name(path: str, name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InputError(f"{path}: expected a name inside the folder, got {name!r}; save the dataset again")


def _read_json(path: str) -> object:
    try:
        with open_file(path) as file:
            content = file.read(MAX_STATE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check --input") from error
    try:
        return decode_json(content[:MAX_STATE_BYTES])
    except ValueError as error:
        msg = f"{path}: expected JSON as datasets.save_to_disk writes it, got something else; save the dataset again"
        raise InputError(msg) from error


def _validated(path: str, stored: object, form: type[Form]) -> Form:
    try:
        return msgspec.convert(stored, form)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}; save the dataset again with datasets.save_to_disk") from error


# Configurations of a dataset on the Hugging Face Hub, in the header of its README.md.
#
# Source: https://huggingface.co/docs/hub/datasets-manual-configuration


class _DataFiles(Struct, kw_only=True):
    split: str = "train"
    path: str | list[str]


class _Configuration(Struct):
    config_name: str = "default"
    default: bool = False
    data_dir: str | None = None
    data_files: str | list[str | _DataFiles] | None = None


def _configured_files(folder: str, wanted: str | None) -> list[tuple[str | None, str]] | None:
    """Return split and pattern of the files of a dataset's configuration; None if it has none, or for other folders.

    Args:
        folder: An address that `pin` returned, or any other folder.
        wanted: Name of the configuration; None for the default one.

    Raises:
        InputError: If it has no such configuration, or several and none by default.
    """
    try:
        configurations = [msgspec.convert(each, _Configuration) for each in described_configurations(folder)]
    except msgspec.ValidationError as error:
        msg = f"{folder}README.md: {error}; name the files by a pattern instead"
        raise InputError(msg) from error
    names = [each.config_name for each in configurations]
    if wanted is not None and wanted not in names:
        there = f"{', '.join(names)}; check --input-config" if names else "none; leave --input-config out"
        raise InputError(f"{folder}: expected a dataset on the Hub with the configuration {wanted!r}, found {there}")
    if not configurations:
        return None
    by_default = [each for each in configurations if each.default or each.config_name == "default"] or configurations
    chosen = [each for each in configurations if each.config_name == wanted] if wanted is not None else by_default
    if len(chosen) > 1:
        raise InputError(
            f"{folder}: expected one configuration, found {', '.join(names)}; choose with --input-config NAME"
        )
    [one] = chosen
    below = f"{one.data_dir.strip('/')}/" if one.data_dir else ""
    if one.data_files is None:
        return [(None, f"{below}**")]
    files = [one.data_files] if isinstance(one.data_files, str) else one.data_files
    groups = [each if isinstance(each, _DataFiles) else _DataFiles(path=each) for each in files]
    return [
        (group.split, f"{below}{path}")
        for group in groups
        for path in ([group.path] if isinstance(group.path, str) else group.path)
    ]


DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
COMPRESSION_SUFFIXES = (".gz", ".bgz", ".zst", ".zstd", ".bz2", ".xz")
_OWN_SUFFIXES = (
    ".manifest.json",
    ".provenance.parquet",
    ".quarantine.jsonl.zst",
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


def find_folder_files(folder: str, split: str | None, *, config: str | None = None) -> tuple[list[str], Statuses]:
    """Return the paths of the files with records below a folder, in order, and what a listing says of objects.

    Args:
        folder: Path of the folder; the paths returned begin with it.
        split: The split to take, `all`, or None, which refuses a folder of several splits.
        config: The configuration to take of a dataset on the Hub; None for its default one.

    Raises:
        InputError: If nothing is found, a folder cannot be read, the split cannot be told, a file of a numbered set
            is missing, or a file seems to be there twice, in two formats.
    """
    configured = _configured_files(folder, config)
    list_folder, statuses = open_listing(folder)
    files, others = _walk(folder, list_folder)
    if configured is not None:
        splits = [(split, pattern.split("/")) for split, pattern in configured]
        files = [
            replace(file, split=file.split if named is None else canonical_split(named))
            for file in files
            for named in [name for name, wanted in splits if is_match(file.parts, wanted)][:1]
        ]
    if not files:
        raise InputError(
            f"{folder}: expected files with records ({', '.join(DATA_SUFFIXES)}, also compressed) in this folder, "
            f"found {_describe_others(others)}; name files of another kind by a pattern"
        )
    chosen = choose_split(folder, files, split)
    require_all_parts(chosen)
    _require_one_format(chosen)
    return [file.path for file in chosen], statuses


def data_stem(name: str) -> str | None:
    """Return a file's name without the suffixes of data and compression; None if it is not known as data.

    >>> data_stem("a.b.jsonl.gz"), data_stem("A.PARQUET"), data_stem("notes.txt"), data_stem("blob.gz")
    ('a.b', 'A', None, None)
    """
    stem, suffix = os.path.splitext(name)
    if suffix.lower() in COMPRESSION_SUFFIXES:
        stem, suffix = os.path.splitext(stem)
    return stem if suffix.lower() in DATA_SUFFIXES else None


def _walk(folder: str, list_folder: Lister) -> tuple[list[FolderFile], Counter[str]]:
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


def _members(folder: _Subfolder, others: Counter[str], list_folder: Lister) -> Sequence[FolderFile | _Subfolder]:
    entries = list_folder(folder.path)
    if MARKER_FILE in entries:
        others["work folders of dsindex"] += 1
        return ()
    if DICT_FILE in entries or STATE_FILE in entries:
        expected = (
            "expected files with records, got a folder that datasets.save_to_disk wrote, whose order is only read on "
            "this machine; copy it here, or name its .arrow files by a pattern"
        )
        refuse_address(folder.path, expected)
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
    folder: _Subfolder, entries: Mapping[str, Entry], others: Counter[str]
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


def _snapshot(folder: _Subfolder, list_folder: Lister) -> list[_Subfolder]:
    """Return the only snapshot in a dataset's folder of the hub's cache; its blobs have no suffix."""
    snapshots = _below(folder, "snapshots")
    names = sorted(list_folder(snapshots.path), key=os.fsencode)
    if len(names) > 1:
        msg = f"{snapshots.path}: expected one revision, found {len(names)} ({', '.join(names)}); name one of them"
        raise InputError(msg)
    return [_below(snapshots, name) for name in names]


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
            raise InputError(
                f"{file.path}: expected no other format of the same file, found {os.path.basename(other)} beside it, "
                f"and its records would count twice; move one away, or name the files themselves"
            )


def _describe_others(others: Counter[str]) -> str:
    if not others:
        return "nothing"
    kinds = others.most_common()
    shown = [f"{kind} ({count:,})" for kind, count in kinds[:_SHOWN_KINDS]]
    rest = sum(count for _, count in kinds[_SHOWN_KINDS:])
    return ", ".join([*shown, *([f"others ({rest:,})"] if rest else [])])


# Read lists of inputs: one path per line, or paths that end with NUL as `find -print0` writes them.
#
# Paths are taken literally, relative to the current folder. Between lines, blank lines and lines that begin with `#`
# are ignored, and a carriage return at the end of a line is no part of its path.

MAX_LIST_BYTES = 1 << 30
MAX_PATH_BYTES = 4095
"""Source: Linux's PATH_MAX, without the NUL."""
_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF8_MARK = b"\xef\xbb\xbf"


def read_input_list(path: str) -> Iterator[tuple[str, str]]:
    """Yield the paths in a list, each with the words that say where it stands, such as `files.txt, line 3`.

    Args:
        path: The list, or `-` to read it from standard input.

    Raises:
        InputError: If it cannot be read, has no entry, or an entry cannot be a path.
    """
    content = _read(path)
    if content.startswith(_WIDE_MARKS):
        raise InputError(f"{path}: expected a list in UTF-8 or the bytes of file names, got UTF-16; save it as UTF-8")
    is_separated = b"\0" in content
    unit = "entry" if is_separated else "line"
    is_empty = True
    for number, entry in enumerate(_split(content, is_separated=is_separated), 1):
        if not entry.strip() or (entry.startswith(b"#") and not is_separated):
            continue
        origin = f"{path}, {unit} {number}"
        if len(entry) > MAX_PATH_BYTES:
            raise InputError(
                f"{origin}: expected a path, got {len(entry)} bytes; give a file with records to --input, and a list "
                f"of paths to --input-list"
            )
        is_empty = False
        yield origin, os.fsdecode(entry)
    if is_empty:
        raise InputError(f"{path}: expected a list with at least one path, got none; check --input-list")


def _split(content: bytes, *, is_separated: bool) -> list[bytes]:
    if is_separated:
        return content.split(b"\0")
    return [line.removesuffix(b"\r") for line in content.removeprefix(_UTF8_MARK).split(b"\n")]


def _read(path: str) -> bytes:
    refuse_address(path, f"{ONLY_INPUTS}, or name it with --input if it holds text")
    try:
        with open_piped() if path == "-" else open_file(path) as file:
            content = file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        msg = f"{path}: the list cannot be read ({error.strerror}); check --input-list, which takes - for a pipe"
        raise InputError(msg) from error
    if len(content) > MAX_LIST_BYTES:
        msg = f"{path}: expected a list of at most {MAX_LIST_BYTES >> 20} MiB, got a larger file; check --input-list"
        raise InputError(msg)
    return content


STANDARD_INPUT = "-"
"""Standard input as an entry of `--input` or `--input-list`; a file of this name is `./-`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPath:
    """The path of one input."""

    path: str
    """The path to record and to show."""
    absolute_path: str
    origin: str = ""
    """The list and line that name it, for messages; empty if `--input` does."""
    status: InputStatus | None = None
    """What a listing says of it; None if it was not listed."""

    @property
    def is_standard_input(self) -> bool:
        """Whether it is what was piped to this process."""
        return self.path == STANDARD_INPUT and not self.origin

    @contextlib.contextmanager
    def errors_placed(self) -> Iterator[None]:
        """Put the list and line in front of errors about this path, if a list names it.

        Raises:
            InputError: The block's.
        """
        try:
            yield
        except InputError as error:
            if not self.origin:
                raise
            raise InputError(f"{self.origin}: {error}") from error


def find_paths(
    patterns: Sequence[str],
    *,
    lists: Sequence[str] = (),
    split: str | None = None,
    config: str | None = None,
    standard_input: str | None = None,
) -> list[FoundPath]:
    """Resolve inputs to paths, in the order of the output.

    Args:
        patterns: Files, patterns, folders, and `-` for standard input.
        lists: Files with one path per line, or `-` for a list on standard input; their entries are no patterns.
        split: The split to take from each folder that has several; `all` for all of them.
        config: The configuration to take of each dataset on the Hub that has several.
        standard_input: Where standard input is stored; None if the job cannot read it.

    Raises:
        InputError: For a pattern without a match, a list or folder that cannot be used, or a split without files.
    """
    entries = [*_given(patterns, standard_input), *_listed(lists)]
    found: list[FoundPath] = []
    num_folders = 0
    for entry in entries:
        if entry.is_standard_input or not is_folder(entry.path):
            found.append(entry)
            continue
        num_folders += 1
        with entry.errors_placed():
            files, statuses = find_folder_files(entry.path, split, config=config)
        found += [_found(path, entry.origin, statuses.get(path)) for path in files]
    for flag, name in (("split", split), ("config", config)):
        if name is not None and not num_folders:
            msg = f"--input-{flag} {name}: expected a folder to take the {flag} from, got files only"
            raise InputError(f"{msg}; leave the option out")
    return found


def _given(patterns: Iterable[str], standard_input: str | None) -> Iterator[FoundPath]:
    for pattern in patterns:
        if pattern != STANDARD_INPUT:
            statuses: Statuses = {}
            for path in expand_pattern(locate(pattern), statuses):
                yield _found(path, status=statuses.get(path))
        elif standard_input is not None:
            yield FoundPath(path=pattern, absolute_path=standard_input)
        else:
            msg = "-: expected files, got standard input, which a later build could not read again; save it to a file"
            raise InputError(msg)


def _listed(lists: Iterable[str]) -> Iterator[FoundPath]:
    for path in lists:
        for origin, entry in read_input_list(path):
            try:
                found = _found(entry, origin)
            except InputError as error:
                raise InputError(f"{origin}: {error}") from error
            yield found


def _found(path: str, origin: str = "", status: InputStatus | None = None) -> FoundPath:
    path = at_commit(locate(path))
    known = absolute(path)
    return FoundPath(path=path, absolute_path=path if path == known else known, origin=origin, status=status)


@contextlib.contextmanager
def open_piped() -> Iterator[IO[bytes]]:
    """Open standard input for reading bytes; it is not closed at the end.

    Raises:
        InputError: If it is closed or a terminal, where a person would have to type the data.
    """
    buffer = getattr(sys.stdin, "buffer", None)  # None if it is closed, or a notebook's
    if buffer is None or buffer.closed:
        raise InputError("-: expected data on standard input, but it is closed; pipe the data to this command")
    if buffer.isatty():
        msg = "-: expected data on standard input, got a terminal; pipe the data, as in `zcat FILE | dsindex …`"
        raise InputError(msg)
    yield buffer
