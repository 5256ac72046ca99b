"""Which objects a pattern or a folder in a bucket names: told from listings, one for each pattern or folder."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.objects.stores import list_folder
from dsindex.objects.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.objects.urls import ObjectUrl

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


def expand_pattern(pattern: ObjectUrl) -> list[ObjectUrl]:
    """Return the objects that match a pattern, sorted by name.

    As in a file system, `*` and `?` match within a name, `**` matches any folders, and only a dot matches a dot at the
    start of a name.

    Raises:
        InputError: If there are none, or the bucket cannot be listed.
    """
    wanted = pattern.key.split("/")
    num_fixed = next(number for number, part in enumerate(wanted) if _MAGIC & set(part))
    folder = pattern.with_key("".join(f"{part}/" for part in wanted[:num_fixed]))
    listed = list_folder(folder, recursive=num_fixed < len(wanted) - 1 or wanted[num_fixed] == "**")
    matches = [url for url in listed if is_match(url.key.split("/"), wanted)]
    if not matches:
        msg = f"{pattern}: expected at least one object to match, got none; check the pattern (quote it in a shell)"
        raise InputError(msg)
    return matches


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


def list_entries(folder: ObjectUrl) -> tuple[dict[str, dict[str, ListedEntry]], dict[str, ObjectUrl]]:
    """List a folder and all below it.

    Returns:
        Path of each folder, without a slash at its end, → name → entry; and the path of each object → its address.

    Raises:
        InputError: If it cannot be listed.
    """
    top = folder.rstrip("/")
    folders: dict[str, dict[str, ListedEntry]] = {top: {}}
    objects: dict[str, ObjectUrl] = {}
    for url in list_folder(folder):
        if not url.startswith(f"{top}/") or (url.identity is not None and not url.identity.size_bytes):
            continue  # consoles mark folders by empty objects
        *names, last = url[len(top) + 1 :].split("/")
        parent = top
        for name in names:
            path = f"{parent}/{name}"
            folders[parent][name] = ListedEntry(path=path, is_folder=True)
            folders.setdefault(path, {})
            parent = path
        folders[parent].setdefault(last, ListedEntry(path=str(url), is_folder=False))
        objects[str(url)] = url
    return folders, objects


def names_object(name: str, path: str) -> bool:
    """Tell whether an address, a pattern or a folder of a bucket names an input."""
    url = parse_url(name)
    if url.is_folder:
        return path.startswith(str(url))
    if url.has_magic:
        return is_match(path.split("/"), url.split("/"))
    return path == str(url)
