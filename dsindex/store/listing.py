"""Which files or objects a folder or a pattern names."""

from __future__ import annotations

import contextlib
import glob
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from dsindex.errors import InputError
from dsindex.store.store import store_of
from dsindex.store.urls import folder_of, has_magic, is_url, names_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dsindex.store.storage import InputStatus

_MAGIC = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedEntry:
    """An object or a folder, with the interface of os.DirEntry."""

    path: str
    is_folder: bool

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - there are no links
        """Tell whether it is a folder."""
        return self.is_folder

    def is_symlink(self) -> bool:
        """Return False."""
        return False


Entry: TypeAlias = "os.DirEntry[str] | ListedEntry"
Lister: TypeAlias = "Callable[[str], Mapping[str, Entry]]"
Statuses: TypeAlias = "dict[str, InputStatus]"
"""Address of a listed object → what the listing says of it."""


def is_folder(path: str) -> bool:
    """Whether a path is a folder; an address is one if it ends with a slash."""
    return names_folder(path) if is_url(path) else os.path.isdir(path)


def at_commit(path: str) -> str:
    """Return the address of a dataset on the Hub at its present commit; other paths are unchanged."""
    if not path.startswith("hf://"):
        return path
    from dsindex.store.huggingface import pin  # huggingface_hub is slow to import

    return pin(path)


def described_configurations(folder: str) -> Sequence[object]:
    """Return the configurations of a dataset on the Hub as its README.md has them; none for other folders."""
    if not folder.startswith("hf://"):
        return ()
    from dsindex.store.huggingface import described_configurations  # huggingface_hub is slow to import

    return described_configurations(folder)


def expand_pattern(pattern: str, statuses: Statuses) -> Sequence[str]:
    """Return the files or objects that match a pattern, sorted by name; a name without `*?[` as it is.

    As in a file system, `*` and `?` match within a key's name, `**` matches any folders, and only a dot matches a dot
    at the start of a name.

    Args:
        pattern: The pattern.
        statuses: Objects that are listed are added.

    Raises:
        InputError: If there are none, or the bucket cannot be listed.
    """
    pattern = at_commit(pattern)
    if is_url(pattern):
        is_pattern = has_magic(pattern) and not names_folder(pattern)
        return _matching_objects(pattern, statuses) if is_pattern else [pattern]
    if os.path.exists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    before, is_deep, _ = pattern.partition("**")
    for top in (glob.glob(before) if before else ["."]) if is_deep else ():
        _require_no_circles(top, pattern)
    matches = sorted(glob.glob(pattern, recursive=True))
    if is_deep:  # it has the files of the folders that it matches, too
        matches = [path for path in matches if not os.path.isdir(path)]
    if not matches:
        msg = f"{pattern}: expected at least one file to match, got none; check the pattern (quote it in a shell)"
        raise InputError(msg)
    return matches


def _matching_objects(pattern: str, statuses: Statuses) -> list[str]:
    wanted = pattern.split("/")
    num_fixed = next(number for number, part in enumerate(wanted) if _MAGIC & set(part))
    folder = "".join(f"{part}/" for part in wanted[:num_fixed])
    is_deep = num_fixed < len(wanted) - 1 or wanted[num_fixed] == "**"
    matches = {
        each.path: each
        for each in store_of(folder).list(folder, recursive=is_deep)
        if is_match(each.path.split("/"), wanted)
    }
    if not matches:
        msg = f"{pattern}: expected at least one object to match, got none; check the pattern (quote it in a shell)"
        raise InputError(msg)
    statuses.update(matches)
    return list(matches)


def is_match(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Tell whether the parts of a key between slashes match those of a pattern.

    >>> is_match(["a", "b", "c.jsonl"], ["a", "**", "*.jsonl"]), is_match(["a", ".b.jsonl"], ["a", "*.jsonl"])
    (True, False)
    """
    if not wanted or not parts:
        return not parts and all(part == "**" for part in wanted)
    if wanted[0] == "**":
        below = not parts[0].startswith(".") and is_match(parts[1:], wanted)
        return below or is_match(parts, wanted[1:])
    is_hidden = parts[0].startswith(".") and not wanted[0].startswith(".")
    return not is_hidden and fnmatchcase(parts[0], wanted[0]) and is_match(parts[1:], wanted[1:])


def open_listing(folder: str) -> tuple[Lister, Statuses]:
    """Return what lists a folder and those below it, and what a listing says of each object.

    Raises:
        InputError: If a bucket cannot be listed; what is returned raises it if a folder cannot be read.
    """
    if not is_url(folder):
        return _list, {}
    folders, objects = _list_objects(folder)
    return lambda path: folders.get(path.rstrip("/"), {}), objects


def _list_objects(folder: str) -> tuple[dict[str, dict[str, ListedEntry]], Statuses]:
    """Return path of each folder, without a slash at its end, → name → entry; and what is below by address."""
    top = folder.rstrip("/")
    folders: dict[str, dict[str, ListedEntry]] = {top: {}}
    objects: Statuses = {}
    for status in store_of(folder).list(folder):
        url = status.path
        if not url.startswith(f"{top}/") or not status.size_bytes:
            continue  # consoles mark folders by empty objects
        *names, last = url[len(top) + 1 :].split("/")
        parent = top
        for name in names:
            path = f"{parent}/{name}"
            folders[parent][name] = ListedEntry(path=path, is_folder=True)
            folders.setdefault(path, {})
            parent = path
        folders[parent].setdefault(last, ListedEntry(path=url, is_folder=False))
        objects[url] = status
    return folders, objects


def find_stored(beginning: str) -> list[str]:
    """Return the paths of files, or the addresses of objects, that begin so and are in the same folder.

    Raises:
        InputError: If a bucket cannot be listed.
    """
    if not is_url(beginning):
        return sorted(glob.glob(f"{glob.escape(beginning)}*"))
    found = store_of(beginning).list(folder_of(beginning), recursive=False)
    return [each.path for each in found if each.path.startswith(beginning)]


def _list(path: str) -> Mapping[str, Entry]:
    try:
        with os.scandir(path) as entries:
            return {entry.name: entry for entry in entries}
    except OSError as error:
        raise InputError(f"{path}: the folder cannot be read ({error.strerror}); check --input") from error


def _require_no_circles(folder: str, pattern: str, around: tuple[tuple[int, int], ...] = ()) -> None:
    """Refuse `**` where a link leads to a folder around it: the same files would match under endlessly many names.

    Raises:
        InputError: Naming the link.
    """
    with contextlib.suppress(OSError):  # what cannot be read matches nothing
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in around:
            raise InputError(
                f"{pattern}: expected folders without links that lead in circles, got {folder}, which leads to a "
                "folder around it; remove the link, or name the folder instead, which leaves links to folders out"
            )
        with os.scandir(folder) as entries:
            inner = [entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        for path in inner:
            _require_no_circles(path, pattern, (*around, identity))
