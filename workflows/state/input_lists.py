r"""Read lists of inputs: one path per line, or paths that end with NUL as `find -print0` writes them.

Paths are taken literally, relative to the current folder. Between lines, blank lines and lines that begin with `#` are
ignored, and a carriage return at the end of a line is no part of its path.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.objects.urls import ONLY_INPUTS, is_url
from dsindex.regular_files import open_file
from workflows.state.piped import open_piped

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        msg = f"{path}: expected a list in UTF-8 or the bytes of file names, got UTF-16; save it as UTF-8"
        raise InputError(msg)
    is_separated = b"\0" in content
    unit = "entry" if is_separated else "line"
    is_empty = True
    for number, entry in enumerate(_split(content, is_separated=is_separated), 1):
        if not entry.strip() or (entry.startswith(b"#") and not is_separated):
            continue
        origin = f"{path}, {unit} {number}"
        if len(entry) > MAX_PATH_BYTES:
            msg = (
                f"{origin}: expected a path, got {len(entry)} bytes; give a file with records to --input, and a list "
                f"of paths to --input-list"
            )
            raise InputError(msg)
        is_empty = False
        yield origin, os.fsdecode(entry)
    if is_empty:
        msg = f"{path}: expected a list with at least one path, got none; check --input-list"
        raise InputError(msg)


def _split(content: bytes, *, is_separated: bool) -> list[bytes]:
    if is_separated:
        return content.split(b"\0")
    return [line.removesuffix(b"\r") for line in content.removeprefix(_UTF8_MARK).split(b"\n")]


def _read(path: str) -> bytes:
    if is_url(path):
        msg = f"{path.partition('?')[0]}: {ONLY_INPUTS}, or name it with --input if it holds text"
        raise InputError(msg)
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
