"""Expand folders and patterns into files or objects."""

from __future__ import annotations

import os
import posixpath
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from dsindex.errors import InputError
from dsindex.store.errors import PASSING_ERRORS, read_error
from dsindex.store.huggingface import pin
from dsindex.store.local import retry, walk
from dsindex.store.protocol import store_of
from dsindex.store.urls import MAGIC, has_magic, is_url, join_path, names_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsindex.store.local import InputStatus

Answer = TypeVar("Answer")
Listed: TypeAlias = "tuple[str, InputStatus | None]"
"""A file's path and None, or an object's address and its status from a listing."""


def is_folder(path: str) -> bool:
    """Whether a path is a folder; an address is a folder if it ends with a slash or names a whole bucket."""
    return names_folder(path) if is_url(path) else os.path.isdir(path)


def expand_pattern(pattern: str) -> Sequence[Listed]:
    """Return the files or objects that match a pattern, sorted by name; a path without `*?[` is returned unchanged.

    In a bucket as on a disk, `*` and `?` do not match a slash, `**` matches any number of folders, and a name that
    begins with a dot matches only a pattern that does so, too.

    Raises:
        InputError: If nothing matches, or a folder or a bucket cannot be listed.
    """
    pattern = pin(pattern)
    if not has_magic(pattern) or (names_folder(pattern) if is_url(pattern) else os.path.exists(pattern)):
        return [(pattern, None)]
    matches = _matching_objects(pattern) if is_url(pattern) else _matching_files(pattern)
    if not matches:
        raise InputError(f"{pattern}: nothing matches this pattern", hint="check it, and quote it in a shell")
    return matches


def _matching_files(pattern: str) -> Sequence[Listed]:
    parts = pattern.lstrip("/").split("/")
    # `**/**` matches the same paths as `**`, but visits folders many times. A path that matches in several ways is
    # yielded several times, hence the set.
    pattern_parts = [part for part, before in zip(parts, ["", *parts], strict=False) if (part, before) != ("**", "**")]
    matches = sorted(set(_matching_paths("/" if pattern.startswith("/") else "", pattern_parts)))
    # With `**`, drop the folders: the files in them match as well.
    return [(path, None) for path in matches if "**" not in pattern_parts or not os.path.isdir(path)]


def _matching_objects(pattern: str) -> Sequence[Listed]:
    pattern_parts = pattern.split("/")
    num_fixed = next(number for number, part in enumerate(pattern_parts) if MAGIC.search(part))
    folder = "".join(f"{part}/" for part in pattern_parts[:num_fixed])
    is_deep = num_fixed < len(pattern_parts) - 1 or pattern_parts[num_fixed] == "**"
    statuses = store_of(folder).list(folder, recursive=is_deep)
    return [(status.path, status) for status in statuses if is_match(status.path.split("/"), pattern_parts)]


def is_match(parts: Sequence[str], pattern_parts: Sequence[str]) -> bool:
    """Whether a key matches a pattern, both split at slashes.

    >>> is_match(["a", "b", "c.jsonl"], ["a", "**", "*.jsonl"]), is_match(["a", ".b.jsonl"], ["a", "*.jsonl"])
    (True, False)
    """
    # A key is not a folder, so a last `**` matches any name.
    pattern_parts = [*pattern_parts, "*"] if pattern_parts[-1:] == ["**"] else pattern_parts
    # For each n: whether the parts so far match the first n parts of the pattern. Backtracking could take forever.
    is_reached = [True, *(not set(pattern_parts[:place]) - {"**"} for place in range(1, len(pattern_parts) + 1))]
    for part in parts:
        is_hidden, was_reached, is_reached = part.startswith("."), is_reached, [False]
        for place, pattern in enumerate(pattern_parts):
            if pattern == "**":  # matches this part and perhaps the next ones, or no part
                is_reached[place] |= was_reached[place] and not is_hidden
                is_reached.append(is_reached[place])
            else:
                is_seen = not is_hidden or pattern.startswith(".")
                is_reached.append(was_reached[place] and is_seen and fnmatchcase(part, pattern))
    return is_reached[-1]


def list_files(folder: str) -> dict[tuple[str, ...], Listed]:
    """Return the files below a folder, keyed by their path relative to it, split at slashes. Links are not followed.

    Raises:
        InputError: If a folder cannot be read, or a bucket cannot be listed.
    """
    root = f"{folder.rstrip('/')}/"
    # Web consoles mark a folder by an empty object.
    files = [file for file in _files_in(root) if file[1] is None or file[1].size_bytes]
    return {tuple(path.removeprefix(root).split("/")): (path, status) for path, status in files}


def find_with_beginning(beginning: str) -> list[str]:
    """Return the files or objects of one folder whose paths start with `beginning`.

    Raises:
        InputError: If the folder cannot be read, or a bucket cannot be listed.
    """
    folder = posixpath.dirname(beginning)
    paths = (join_path(folder, posixpath.basename(path)) for path, _ in _files_in(folder, recursive=False))
    return sorted(path for path in paths if path.startswith(beginning))


def _files_in(folder: str, *, recursive: bool = True) -> Sequence[Listed]:
    if is_url(folder):
        return [(status.path, status) for status in store_of(folder).list(folder, recursive=recursive)]
    return [(path, None) for path in walk(folder or ".", recursive=recursive)]


def _matching_paths(folder: str, pattern: Sequence[str], parents: Sequence[tuple[int, int]] = ()) -> Iterator[str]:
    """Yield the paths below a folder that match a pattern, like glob.glob.

    glob treats a folder as empty if its disk fails; this raises an error. A folder without permission matches nothing.

    Args:
        folder: The folder; empty for the current one.
        pattern: The pattern, split at slashes.
        parents: Device and inode of each parent folder that the current `**` has matched.

    Raises:
        InputError: If the disk fails, or `**` would follow a link to a parent folder.
    """
    part, *later_parts = pattern
    if not MAGIC.search(part):
        path = os.path.join(folder, part)
        if later_parts:
            yield from _matching_paths(path, later_parts, parents)
        elif _try_access(lambda: os.lstat(path), path, None):
            yield path
        return
    entries: Sequence[os.DirEntry[str]] = _try_access(lambda: _scan(folder or "."), folder, [])
    if part == "**" and entries:
        status = os.stat(folder or ".")
        if (status.st_dev, status.st_ino) in parents:
            hint = "remove the link, or name the folder without `**`: links to folders are left out"
            raise InputError(f"{folder}: a link to a folder around it, which `**` would follow for ever", hint=hint)
        parents = (*parents, (status.st_dev, status.st_ino))
        yield from _matching_paths(folder, later_parts or ["*"])
    for entry in entries:
        path, is_hidden = os.path.join(folder, entry.name), entry.name.startswith(".")
        if is_hidden and not part.startswith("."):
            continue
        if part != "**" and not later_parts:
            yield from [path] if fnmatchcase(entry.name, part) else []
        elif (part == "**" or fnmatchcase(entry.name, part)) and _try_access(entry.is_dir, path, False):
            yield from _matching_paths(path, pattern if part == "**" else later_parts, parents)


def _scan(folder: str) -> Sequence[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _try_access(ask: Callable[[], Answer], path: str, default: Answer) -> Answer:
    """Call `ask`; return `default` if the path is missing, not permitted, or a link to itself.

    Raises:
        InputError: If the disk fails.
    """
    try:
        return retry(ask)
    except OSError as error:
        if error.errno in PASSING_ERRORS:
            raise read_error(path, error) from error
        return default
