"""Which files the inputs of a job are, in which order: files, patterns, folders, lists of paths, standard input.

Entries of `--input` come first, as given, then the entries of each list. A pattern's matches are sorted by name; the
order within a folder is described in `dsindex.engine.input_folders`. Files are looked up here, and not opened.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dsindex.engine.input_folders import find_folder_files
from dsindex.errors import InputError
from dsindex.store.listing import expand_pattern, is_folder
from dsindex.store.spool import open_piped
from dsindex.store.storage import open_file
from dsindex.store.stores import Say, ignore
from dsindex.store.urls import NO_ACCESS, ONLY_INPUTS, absolute, locate, refuse_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dsindex.store.urls import Access


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
    standard_input: str | None = None,
    access: Access = NO_ACCESS,
    say: Say = ignore,
) -> list[FoundPath]:
    """Resolve inputs to paths, in the order of the output.

    Args:
        patterns: Files, patterns, folders, and `-` for standard input.
        lists: Files with one path per line, or `-` for a list on standard input; their entries are no patterns.
        split: The split to take from each folder that has several; `all` for all of them.
        standard_input: Where standard input is stored; None if the job cannot read it.
        access: How the object stores of addresses are reached.
        say: Shows how far the listing of a bucket is, from time to time.

    Raises:
        InputError: For a pattern without a match, a list or folder that cannot be used, or a split without files.
    """
    entries = [*_given(patterns, standard_input, access, say), *_listed(lists, access)]
    found: list[FoundPath] = []
    num_folders = 0
    for entry in entries:
        if entry.is_standard_input or not is_folder(entry.path):
            found.append(entry)
            continue
        num_folders += 1
        with entry.errors_placed():
            files = find_folder_files(entry.path, split, say=say)
        found += [_found(path, access, entry.origin) for path in files]
    if split is not None and not num_folders:
        msg = f"--input-split {split}: expected a folder to take the split from, got files only; leave the option out"
        raise InputError(msg)
    return found


def _given(patterns: Iterable[str], standard_input: str | None, access: Access, say: Say) -> Iterator[FoundPath]:
    for pattern in patterns:
        if pattern != STANDARD_INPUT:
            for path in expand_pattern(locate(pattern, access), say):
                yield _found(path, access)
        elif standard_input is not None:
            yield FoundPath(path=pattern, absolute_path=standard_input)
        else:
            msg = "-: expected files, got standard input, which a later build could not read again; save it to a file"
            raise InputError(msg)


def _listed(lists: Iterable[str], access: Access) -> Iterator[FoundPath]:
    for path in lists:
        for origin, entry in read_input_list(path):
            try:
                found = _found(entry, access, origin)
            except InputError as error:
                raise InputError(f"{origin}: {error}") from error
            yield found


def _found(path: str, access: Access, origin: str = "") -> FoundPath:
    path = locate(path, access)
    return FoundPath(path=path, absolute_path=absolute(path), origin=origin)
