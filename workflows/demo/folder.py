"""Folders that a command fills with files of fixed names: marked when new, and used again only with the marker."""

from __future__ import annotations

import os
from pathlib import Path

from dsindex.errors import OutputError
from dsindex.shards.ownership import open_folder, remove_named
from dsindex.storage import make_folder, output_error

DEMO_MARKER = "dsindex-demo.txt"
BENCHMARKS_MARKER = "dsindex-bench.txt"
_MARKS = {DEMO_MARKER: "`dsindex demo`", BENCHMARKS_MARKER: "dsindex's benchmarks"}


def own_folder(path: str, marker: str) -> Path:
    """Create a folder, mark a new or empty one, and accept one that is marked already.

    Args:
        path: The folder; created if missing.
        marker: Name of the marker file, DEMO_MARKER or BENCHMARKS_MARKER.

    Raises:
        OutputError: If it has files but no marker, or cannot be written.
    """
    make_folder(path)
    text = f"This folder was made by {_MARKS[marker]}, which replaces its files: keep others elsewhere.\n".encode()
    try:
        with open_folder(path) as folder:
            names = set(os.listdir(folder))
            if marker not in names and not names:
                _write(marker, text, folder)
            elif marker not in names or _read(marker, folder) != text:
                foreign = min(names)
                msg = (
                    f"{path}: expected a new or empty folder, or one with the {marker} that {_MARKS[marker]} wrote, "
                    f"found {foreign!r} in it; choose another --output"
                )
                raise OutputError(msg)
    except OSError as error:
        raise output_error(path, error) from error
    return Path(path)


def clear_names(folder: Path, names: tuple[str, ...]) -> None:
    """Remove files by name from a folder below a marked one, and create the folder if it is missing.

    Raises:
        OutputError: If it is a symbolic link, or one of the names is not a file.
    """
    if folder.is_symlink():
        msg = f"{folder}: expected a folder, got a symbolic link; remove it, or choose another --output"
        raise OutputError(msg)
    make_folder(str(folder))
    remove_named(str(folder), names)
    for name in names:
        if os.path.lexists(folder / name):
            msg = f"{folder / name}: expected a file or nothing, got something else; remove it"
            raise OutputError(msg)


def _write(name: str, data: bytes, folder: int) -> None:
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o644, dir_fd=folder)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _read(name: str, folder: int) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return os.read(descriptor, 1000)
    finally:
        os.close(descriptor)
