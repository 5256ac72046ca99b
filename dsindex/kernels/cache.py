"""Where compiled kernels are kept: in the user's cache folder, by the content of the kernels' source and by CPU.

numba's own places are named after the folder that the source lies in. A cluster gives shipped code a new folder for
each content, and loses it with the session, so every first build would compile again (10 s on each node).

numba's cache files are pickles, so a folder that others can write to is not used.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llvmlite import binding

if TYPE_CHECKING:
    from collections.abc import Callable

LOCATOR = f"{__name__}.KernelLocator"


class KernelLocator:
    """Finds the cache folder of a kernel for numba, which looks for locators by name (NUMBA_CACHE_LOCATOR_CLASSES)."""

    def __init__(self, function: Callable[..., Any], source_path: str) -> None:
        self._line = function.__code__.co_firstlineno
        self._folder = kernel_folder(source_path)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return self._folder

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        make_private(self._folder)

    def get_source_stamp(self) -> str:
        """Return what must be equal for a compiled kernel to be used; the folder's name says all of it."""
        return self._folder

    def get_disambiguator(self) -> str:
        """Return what distinguishes kernels of one name and module."""
        return str(self._line)

    @classmethod
    def from_function(cls, function: Callable[..., Any], source_path: str) -> KernelLocator | None:
        """Return a locator; None if the folder cannot be used, so that numba looks for another place."""
        try:
            make_private(kernel_folder(source_path))
        except (OSError, RuntimeError):  # RuntimeError: no home folder
            return None
        return cls(function, source_path)


@functools.cache
def kernel_folder(source_path: str) -> str:
    """Return the folder for the kernels of one module, for these compilers and this machine's CPU.

    The key covers the package of kernels too, since those of other modules call them, and the module's name, which
    numba's files name: one that has moved is compiled again.

    Raises:
        OSError: If the source cannot be read.
        RuntimeError: If the user has no home folder.
    """
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    key = hashlib.sha256()
    for path in sorted({Path(source_path), *Path(__file__).parent.glob("*.py")}):
        key.update(path.read_bytes())
    module = os.path.relpath(source_path, Path(__file__).parents[1])
    versions = [importlib.metadata.version(package) for package in ("numba", "llvmlite")]
    key.update(" ".join([module, *versions, binding.get_host_cpu_name()]).encode())
    key.update(binding.get_host_cpu_features().flatten().encode())
    return os.path.join(base, "dsindex", "kernels", f"{Path(source_path).stem}-{key.hexdigest()[:32]}")


def why_unusable(folder: str) -> str | None:
    """Return why a folder, or the nearest one above it that exists, cannot keep kernels; None if it can.

    Nothing is made or changed.
    """
    place = folder
    while not os.path.lexists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        return f"{place} is no folder"
    found = os.stat(place)
    if place == folder and (found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return f"{place} belongs to another user or can be written by others"
    return None if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"


def make_private(folder: str) -> None:
    """Make the folder, for this user alone.

    Raises:
        PermissionError: If it belongs to another user, or others may write to it.
        OSError: If it cannot be made.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder}: belongs to another user or can be written by others")
    if not os.access(folder, os.W_OK):
        raise PermissionError(folder)
