"""Splits and numbered parts that the names of files tell, in the layouts of Hugging Face's datasets.

    data/train-00000-of-00012.parquet     a split and a part
    train/0000.parquet, train/…           a folder of the split's name
    train.jsonl, news_test.jsonl          a split's name in a file's name, between characters that are no letters

Source: https://huggingface.co/docs/hub/datasets-file-names-and-splits
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    part = _NAMED_PART.fullmatch(name)
    if part is not None and (part[1].lower() in _ALIASES or folders[-1:] == ["data"]):
        return canonical_split(part[1])
    for folder in reversed(folders):
        if folder.lower() in _ALIASES:
            return canonical_split(folder)
    for text in (os.path.splitext(name)[0], *reversed(folders)):
        word = _WORD.search(text)
        if word is not None:
            return canonical_split(word[1])
    return None


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
            msg = (
                f"{folder}: expected files of one split, found {_describe(counts, unnamed)}; choose with --input-split "
                f"NAME, or take them all with --input-split {ALL_SPLITS}"
            )
            raise InputError(msg)
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
            msg = (
                f"{os.path.join(head, name)}: this part is missing, {len(numbers):,} of {int(total):,} are there; get "
                f"it, or name the files themselves if you want them without it"
            )
            raise InputError(msg)


def _describe(counts: Counter[str | None], unnamed: int) -> str:
    shown = [f"{split} ({_files(count)})" for split, count in counts.items()]
    if unnamed:
        shown.append(f"{_files(unnamed)} whose names tell no split")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
