"""Resolve the inputs of a job to paths: files, patterns, folders, lists of paths, standard input.

Entries of `--input` come first, in the given order, then the entries of each list. A pattern's matches are sorted by
name. No data file is opened here.

A folder stands for all data files below it. Each folder's entries are sorted by name, as bytes, so `a/z.jsonl` comes
before `b.jsonl`. Skipped are names that begin with `.` or `_` (as in Spark and Hive), folders that end with
`.incomplete` (as in `datasets`), files with other suffixes, links to folders (they may form cycles), and files that
dsindex itself wrote. Links to files are followed, because the cache of the Hugging Face Hub consists of them. In a
folder of `Dataset.save_to_disk`, only the files that its state.json names are read.

Splits and numbered parts are detected from file names, in the layouts of Hugging Face's datasets:

    data/train-00000-of-00012.parquet     a split and a part
    train/0000.parquet, train/…           a folder named after the split
    train.jsonl, news_test.jsonl          a split's name in a file name, with no letter before or after it

Source: https://huggingface.co/docs/hub/datasets-file-names-and-splits, datasets-manual-configuration; datasets 4.0,
Dataset.save_to_disk.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from dsindex.errors import InputError
from dsindex.runtime.work_folder import MARKER_FILE
from dsindex.store.config_files import parse_yaml
from dsindex.store.huggingface import forget_commits, pin, read_configurations
from dsindex.store.listing import expand_pattern, is_folder, is_match, list_files
from dsindex.store.local import LOCAL
from dsindex.store.protocol import store_of
from dsindex.store.urls import ONLY_INPUTS, absolute, join_path, locate, refuse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from io import BufferedReader

    from dsindex.store.local import InputStatus

STANDARD_INPUT = "-"
"""Standard input as an entry of `--input` or `--input-list`; a file of this name is `./-`."""
ALL_SPLITS = "all"
DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
COMPRESSION_SUFFIXES = (".gz", ".bgz", ".zst", ".zstd", ".bz2", ".xz")
MAX_PATH_BYTES = 4095
"""Source: Linux's PATH_MAX, without the NUL."""

Parts: TypeAlias = tuple[str, ...]
"""A file's path relative to a folder: the names of its subfolders, then the file's name."""

_OWN_SUFFIXES = (".manifest.json", ".provenance.parquet", ".quarantine.jsonl.zst", ".progress.json", "-dsindex.json")
_STATE_FILE, _DICT_FILE, _INFO_FILE = "state.json", "dataset_dict.json", "dataset_info.json"
"""Metadata files of Dataset.save_to_disk and DatasetDict.save_to_disk."""
_INFO_FILES = (_DICT_FILE, _INFO_FILE, "dataset_infos.json")
_CARD = "README.md"
_CONFIGURATIONS = re.compile(rb"(---\s*\n(?:(?!---|configs:).*\n)*)(configs:.*(?:\n(?!\w|---).*)*)")
"""The key of a dataset's configurations in the YAML block that begins its README.md, up to the next key."""
_CACHED_MAP = re.compile(r"(cache|tmp)-?[0-9a-z_]+\.arrow")
"""Cached results of `Dataset.map`, in a folder with a dataset_info.json."""
_ALIASES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_WORD = re.compile(rf"(?<![^\W\d_])({'|'.join(sorted(_ALIASES, key=len, reverse=True))})(?![^\W\d_])", re.IGNORECASE)
"""A split's name, with no letter before or after it."""
_PART = re.compile(r"(?P<stem>.*?)(?P<number>\d{1,9})-of-(?P<total>\d{1,9})(-[0-9a-f]{16})?(?P<rest>\D.*|)")
"""A numbered part; the Hub adds a hash that differs between parts."""
_NAMED_PART = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}\b.*")
_SKIPPED = re.compile(r"[._].*|.*\.incomplete", re.DOTALL)
_HASH = re.compile(r"[0-9a-f]{16,}")
"""Name of the folder of one revision in the cache of `datasets`."""
_TABLE_LOGS = {
    "_delta_log": ("a Delta table", "COPY (FROM delta_scan('FOLDER')) TO 'rows.parquet' in DuckDB"),
    "metadata": ("an Iceberg table", "COPY (FROM iceberg_scan('FOLDER')) TO 'rows.parquet' in DuckDB"),
    ".hoodie": ("a Hudi table", "with Spark"),
}
"""Name in a table's folder → the kind of table, and how to export its rows."""
_SHOWN_KINDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPath:
    """One input, and where it was named."""

    path: str
    """The path as recorded and shown to users."""
    absolute_path: str
    origin: str = ""
    """The list and line that name the path, for messages; empty for paths from `--input`."""
    status: InputStatus | None = None
    """Status from a listing; None if the path was not listed."""

    @property
    def is_standard_input(self) -> bool:
        """Whether this is the standard input of the process."""
        return self.path == STANDARD_INPUT and not self.origin

    @contextmanager
    def prefix_errors(self) -> Iterator[None]:
        """Prefix errors about this path with the list and line that name it, if a list does.

        Raises:
            InputError: The block's error, with the prefix.
        """
        try:
            yield
        except InputError as error:
            if not self.origin:
                raise
            raise InputError(f"{self.origin}: {error.args[0]}", *error.args[1:]) from error


def find_paths(
    patterns: Sequence[str],
    *,
    lists: Sequence[str] = (),
    split: str | None = None,
    config: str | None = None,
    exclude: Sequence[str] = (),
    standard_input: str | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> list[InputPath]:
    """Resolve inputs to paths, in the order of the output.

    Args:
        patterns: Files, patterns, folders, and `-` for standard input.
        lists: Files with one path per line, or `-` for a list on standard input; entries are literal, not patterns.
        split: The split to read from each folder that has several; `all` for all of them.
        config: The configuration to read from each dataset of the Hub, or copy of one, that has several.
        exclude: Patterns; files whose last path components match one are left out.
        standard_input: Path where standard input is stored; None if the job cannot read it.
        say: Called with a sentence about the files read from each folder.

    Raises:
        InputError: For a pattern without a match, a list or folder that cannot be used, or a split without files.
    """
    forget_commits()
    paths: list[InputPath] = []
    has_folders = False
    for entry in [*_expand_patterns(patterns, standard_input), *_expand_lists(lists)]:
        if entry.is_standard_input or not is_folder(entry.path):
            paths += [] if _is_excluded(entry.path.split("/"), exclude) else [entry]
            continue
        has_folders = True
        with entry.prefix_errors():
            files = find_folder_files(entry.path, split, config=config, exclude=exclude, say=say)
        paths += [_pin_path(path, entry.origin, status) for path, status in files]
    for flag, name in (("split", split), ("config", config)):
        if name is not None and not has_folders:
            raise InputError(f"--input-{flag} {name}: no input is a folder", hint="leave the option out")
    if not paths:
        raise InputError("--exclude leaves no input", hint="exclude fewer files")
    return paths


def _is_excluded(parts: Sequence[str], exclude: Sequence[str]) -> bool:
    return any(is_match(parts[n:], pattern.split("/")) for pattern in exclude for n in range(len(parts)))


def _expand_patterns(patterns: Iterable[str], standard_input: str | None) -> Iterator[InputPath]:
    for pattern in patterns:
        if pattern != STANDARD_INPUT:
            for path, status in expand_pattern(locate(pattern)):
                yield _pin_path(path, status=status)
        elif standard_input is not None:
            yield InputPath(path=pattern, absolute_path=standard_input)
        else:
            raise InputError("-: a later build cannot read standard input again", hint="save it to a file")


def _expand_lists(lists: Iterable[str]) -> Iterator[InputPath]:
    for path in lists:
        for origin, entry in _read_list(path):
            with InputPath(path=entry, absolute_path="", origin=origin).prefix_errors():
                input_path = _pin_path(entry, origin)
            yield input_path


def _pin_path(path: str, origin: str = "", status: InputStatus | None = None) -> InputPath:
    path = pin(locate(path))
    full_path = absolute(path)
    return InputPath(path=path, absolute_path=path if path == full_path else full_path, origin=origin, status=status)


def _read_list(path: str) -> Iterator[tuple[str, str]]:
    """Yield the paths in a list, each with its position for messages, such as `files.txt, line 3`.

    A list has one path per line, or NUL-terminated paths as written by `find -print0`. Paths are literal, relative to
    the current folder. In a list of lines, blank lines and lines that begin with `#` are ignored.
    """
    refuse_address(path, f"{ONLY_INPUTS}, or name it with --input if it holds text")
    try:
        with nullcontext(piped_input()) if path == STANDARD_INPUT else LOCAL.open(path) as file:
            content = file.read().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        hint = "check --input-list, which takes files, and - for a pipe"
        raise InputError(f"{path}: the list cannot be read ({error.strerror})", hint=hint) from error
    unit, separator, comment = ("entry", b"\0", b"\0") if b"\0" in content else ("line", b"\n", b"#")
    lines = [(number, line.removesuffix(b"\r")) for number, line in enumerate(content.split(separator), 1)]
    entries = [(number, line) for number, line in lines if line.strip() and not line.startswith(comment)]
    if not entries:
        raise InputError(f"{path}: the list has no path", hint="check --input-list")
    for number, entry in entries:
        if len(entry) > MAX_PATH_BYTES:
            problem = f"{len(entry)} bytes are too long for a path"
            hint = "--input-list takes lists of paths, --input takes files with records"
            raise InputError(f"{path}, {unit} {number}: {problem}", hint=hint)
        yield f"{path}, {unit} {number}", os.fsdecode(entry)


def piped_input() -> BufferedReader:
    """Return standard input, for reading bytes.

    Raises:
        InputError: If it is closed or a terminal, where a person would have to type the data.
    """
    buffer: BufferedReader | None = getattr(sys.stdin, "buffer", None)  # None if it is closed, or a notebook's
    if buffer is None or buffer.closed or buffer.isatty():
        raise InputError("-: nothing is piped to standard input", hint="pipe data, as in `zcat FILE | dsindex …`")
    return buffer


def find_folder_files(
    folder: str,
    split: str | None,
    *,
    config: str | None = None,
    exclude: Sequence[str] = (),
    say: Callable[[str], object],
) -> list[tuple[str, InputStatus | None]]:
    """Return the data files below a folder, in order, each with the status from the listing if there is one.

    Args:
        folder: Path of the folder; the returned paths begin with it.
        split: The split to read, or `all`; None is an error if the folder has several splits.
        config: The configuration to read from a dataset of the Hub, or a copy of one; None for its default.
        exclude: Patterns of paths to leave out.
        say: Called with a sentence about the files that are read and skipped.

    Raises:
        InputError: If there is no data file, a folder cannot be read, the split is ambiguous, a file of a numbered
            set is missing, or a file seems to exist in two formats.
    """
    listing = list_files(folder)
    sorted_files = sorted(listing, key=lambda parts: [*map(os.fsencode, parts)])
    names: defaultdict[Parts, set[str]] = defaultdict(set)
    for parts in listing:
        for depth, name in enumerate(parts):
            names[parts[:depth]].add(name)
    revisions = [names[*place, "snapshots"] for place, entries in [*names.items()] if entries >= {"blobs", "snapshots"}]
    revisions += [
        {name for name in entries if _HASH.fullmatch(name) and _INFO_FILE in names.get((*place, name), ())}
        for place, entries in names.items()
    ]
    if revision_names := next((hashes for hashes in revisions if len(hashes) > 1), None):
        problem = f"it has {len(revision_names)} revisions of a dataset ({', '.join(sorted(revision_names))})"
        raise InputError(f"{folder}: {problem}", hint="name the folder of one of them")
    _refuse_table_formats(folder, names)
    saved = {place: _read_saved_files(folder, place) for place, entries in names.items() if _STATE_FILE in entries}
    splits = {
        parts: next((name for at, name in enumerate(parts[:-1]) if _DICT_FILE in names[parts[:at]]), find_split(parts))
        for parts in sorted_files
        if _is_data(parts, names, saved.get(parts[:-1])) and not _is_excluded(parts, exclude)
    }
    base = ("snapshots", *names["snapshots",]) if names[()] >= {"blobs", "snapshots"} else ()
    configs = _read_configurations(join_path(folder, "/".join(base)), has_card=_CARD in names[base])
    if configs or config is not None:
        patterns = [(name, path.split("/")) for name, path in _choose_patterns(folder, configs, config)]
        matches = {parts: [name for name, path in patterns if is_match(parts[len(base) :], path)] for parts in splits}
        splits = {file: canonical_split(hits[0]) if hits[0] else splits[file] for file, hits in matches.items() if hits}
        if not splits:
            hint = "choose another with --input-config NAME, or name files by a pattern"
            raise InputError(f"{folder}: it has no file of the configuration that its {_CARD} describes", hint=hint)
    if not splits:
        problem = f"no file with records ({', '.join(DATA_SUFFIXES)}, also compressed) is in this folder"
        shown = _describe_files(sorted_files) or "no files"
        raise InputError(f"{folder}: {problem}; it has {shown}", hint="name other files by a pattern")
    chosen = _choose_split(folder, splits, split)
    skipped = [parts for parts in listing.keys() - chosen if not parts[-1].startswith((".", "_"))]
    say(f"{folder}: reads {_describe_files(chosen)}" + (f"; skips {_describe_files(skipped)}" if skipped else ""))
    files = [listing[parts] for parts in chosen]
    require_all_parts(path for path, _ in files if not exclude)
    _require_one_format(path for path, _ in files)
    return files


def _describe_files(files: Iterable[Parts]) -> str:
    """Describe files by suffix and count, the most frequent first; a suffix with a single file shows its name."""
    names = defaultdict[str, list[str]](list)
    for *_, name in files:
        names[os.path.splitext(name)[1] or "without suffix"].append(name)
    groups = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))[:_SHOWN_KINDS]
    return ", ".join(group[0] if len(group) == 1 else f"{len(group):,} {kind}" for kind, group in groups)


def data_stem(name: str) -> str | None:
    """Return a file's name without its data and compression suffixes; None if it has no data suffix.

    >>> data_stem("a.b.jsonl.gz"), data_stem("A.PARQUET"), data_stem("notes.txt"), data_stem("blob.gz")
    ('a.b', 'A', None, None)
    """
    stem, suffix = os.path.splitext(name)
    if suffix.lower() in COMPRESSION_SUFFIXES:
        stem, suffix = os.path.splitext(stem)
    return stem if suffix.lower() in DATA_SUFFIXES else None


def _is_data(parts: Parts, names: Mapping[Parts, set[str]], saved_names: set[str] | None) -> bool:
    """Tell whether to read a file, given the names in each folder, and the files that its state.json names."""
    *_, name = parts
    if any(_SKIPPED.fullmatch(part) or MARKER_FILE in names[parts[:depth]] for depth, part in enumerate(parts)):
        return False
    if data_stem(name) is None or name in _INFO_FILES or name.endswith(_OWN_SUFFIXES):
        return False
    if saved_names is not None:
        return name in saved_names
    return not (_INFO_FILE in names[parts[:-1]] and _CACHED_MAP.fullmatch(name))


def _refuse_table_formats(folder: str, names: Mapping[Parts, set[str]]) -> None:
    """Refuse Delta, Iceberg and Hudi tables: only their log says which files are current and which rows are deleted."""
    for place, names_inside in names.items():
        for log in _TABLE_LOGS.keys() & names_inside:
            is_log = log != "metadata" or any(name.endswith(".metadata.json") for name in names.get((*place, log), ()))
            table, example = _TABLE_LOGS[log]
            if is_log:
                problem = f"this is {table}, whose log says which of its files count"
                path = join_path(folder, "/".join(place))
                raise InputError(f"{path}: {problem}", hint=f"export the rows as Parquet, for example {example}")


class _DataFile(Struct):
    filename: str


class _State(Struct):
    files: list[_DataFile] | None = msgspec.field(default=None, name="_data_files")
    indices: list[object] | None = msgspec.field(default=None, name="_indices_data_files")


def _read_saved_files(folder: str, place: Parts) -> set[str] | None:
    """Return the files that a state.json of Dataset.save_to_disk names; None if the state.json has another origin.

    Raises:
        InputError: If it cannot be read, or the records are not in the order of the files.
    """
    path = join_path(folder, "/".join([*place, _STATE_FILE]))
    content, _ = store_of(path).read(path) or (b"{}", "")
    try:
        state = msgspec.json.decode(content, type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}", hint="save the dataset again with datasets.save_to_disk") from error
    if state.indices:
        problem = f"{path}: the dataset has an indices mapping, so its records are not in the order of its files"
        raise InputError(problem, hint="load it, call flatten_indices(), and save it again")
    return None if state.files is None else {file.filename for file in state.files}


class _DataFiles(Struct, kw_only=True):
    split: str = "train"
    path: str | list[str]


class _Configuration(Struct):
    config_name: str = "default"
    default: bool = False
    data_dir: str | None = None
    data_files: str | list[str | _DataFiles] | None = None


def _read_configurations(folder: str, *, has_card: bool) -> list[_Configuration]:
    """Return the configurations that a dataset's README.md describes.

    Args:
        folder: Address of a Hub dataset at a commit, or a folder that may be a copy of one.
        has_card: Whether the folder has a README.md.

    Raises:
        InputError: If they are not valid.
    """
    path, is_on_hub = join_path(folder, _CARD), folder.startswith("hf://")
    items = read_configurations(folder) if is_on_hub else ()
    content, _ = (has_card and not is_on_hub and store_of(path).read(path)) or (b"", "")
    try:
        if match := _CONFIGURATIONS.match(content):
            # The lines above are left empty, so that errors name the right line.
            items = parse_yaml(b"\n" * match[1].count(b"\n") + match[2], source=path)["configs"]
        return msgspec.convert(items, list[_Configuration])
    except (msgspec.ValidationError, InputError) as error:
        problem = error.args[0] if isinstance(error, InputError) else f"{path}: {error}"
        raise InputError(problem, hint="name the files by a pattern instead") from error


def _choose_patterns(
    folder: str, configs: Sequence[_Configuration], name: str | None
) -> Sequence[tuple[str | None, str]]:
    """Return (split, pattern) of each file of the named configuration, or of the default one.

    Raises:
        InputError: If there is no such configuration, or several without a default.
    """
    defaults = [config for config in configs if config.default or config.config_name == "default"] or configs
    chosen = defaults if name is None else [config for config in configs if config.config_name == name]
    if len(chosen) != 1:
        names = ", ".join(config.config_name for config in configs) or "none"
        problem = "several configurations" if name is None else f"no configuration {name!r}"
        raise InputError(f"{folder}: {problem}; its {_CARD} has {names}", hint="choose with --input-config NAME")
    [configuration] = chosen
    data_dir = configuration.data_dir or "."
    if configuration.data_files is None:
        return [(None, posixpath.normpath(f"{data_dir}/**").lstrip("/"))]
    files = [configuration.data_files] if isinstance(configuration.data_files, str) else configuration.data_files
    groups = [pattern if isinstance(pattern, _DataFiles) else _DataFiles(path=pattern) for pattern in files]
    return [
        (group.split, posixpath.normpath(f"{data_dir}/{path}").lstrip("/"))
        for group in groups
        for path in ([group.path] if isinstance(group.path, str) else group.path)
    ]


def canonical_split(name: str) -> str:
    """Return the name that Hugging Face gives a split.

    >>> canonical_split("val"), canonical_split("Train"), canonical_split("books")
    ('validation', 'train', 'books')
    """
    return _ALIASES.get(name.lower(), name)


def find_split(parts: Sequence[str]) -> str | None:
    """Return the split that a path below a folder names, or None.

    The first of these decides: the name of a numbered part, the innermost folder named after a split, a word in the
    file's name, a word in a folder's name. In a folder `data`, a numbered part may have a split of any name.

    >>> find_split(["data", "books-00000-of-00002.parquet"]), find_split(["en", "val", "0000.parquet"])
    ('books', 'validation')
    >>> find_split(["news_test.jsonl"]), find_split(["latest.jsonl"])
    ('test', None)
    """
    *folders, name = parts
    part = _NAMED_PART.fullmatch(name)
    if part is not None and (part[1].lower() in _ALIASES or folders[-1:] == ["data"]):
        return canonical_split(part[1])
    split_folders = (folder for folder in reversed(folders) if folder.lower() in _ALIASES)
    words = (word[1] for word in map(_WORD.search, [os.path.splitext(name)[0], *reversed(folders)]) if word)
    return next(map(canonical_split, itertools.chain(split_folders, words)), None)


def _choose_split(folder: str, splits: Mapping[Parts, str | None], split_name: str | None) -> list[Parts]:
    """Return the files of the wanted split, in order; None stands for the folder's only split.

    Raises:
        InputError: If `split_name` does not choose between several splits, or no file belongs to it.
    """
    counts = Counter(splits.values())
    names = counts.keys() - {None}
    split = None if split_name is None else canonical_split(split_name)
    if split in names:
        return [parts for parts, file_split in splits.items() if file_split == split]
    # Files without a split are for training.
    if split_name == ALL_SPLITS or (split_name is None and len(names) < 2) or (split == "train" and not names):
        return [*splits]
    problem = "the folder has several splits" if split_name is None else f"no file is of the split {split_name!r}"
    shown = ", ".join(sorted(f"{name or 'files without a split'} ({count:,})" for name, count in counts.items()))
    hint = f"choose with --input-split NAME, or take them all with --input-split {ALL_SPLITS}"
    raise InputError(f"{folder}: {problem}; it has {shown}", hint=hint)


def require_all_parts(paths: Iterable[str]) -> None:
    """Check that every set of parts such as `00003-of-00012` is complete.

    Raises:
        InputError: Naming the first part that is missing.
    """
    sets: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)
    for path in paths:
        head, name = os.path.split(path)
        if part := _PART.fullmatch(name):
            sets[head, part["stem"], part["total"], part["rest"]].add(int(part["number"]))
    for (head, stem, total, rest), numbers in sets.items():
        first = 1 if int(total) in numbers and 0 not in numbers else 0
        missing = next(number for number in itertools.count(first) if number not in numbers)
        if missing < first + int(total):
            name = f"{stem}{missing:0{len(total)}}-of-{total}{rest}"
            problem = f"{os.path.join(head, name)}: this part is missing, {len(numbers):,} of {int(total):,} are there"
            raise InputError(problem, hint="fetch it, or name the files themselves if you want them without it")


def _require_one_format(paths: Iterable[str]) -> None:
    """Refuse files of one folder that differ only in their suffixes: they may be copies.

    Raises:
        InputError: Naming the first two.
    """
    seen: dict[str | None, str] = {}
    for path in paths:
        other = seen.setdefault(data_stem(path), path)
        if other != path:
            problem = f"{os.path.basename(other)} is in the same folder, so its records would count twice"
            raise InputError(f"{path}: {problem}", hint="leave one out with --exclude, or name the files themselves")
