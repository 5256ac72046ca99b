"""Files of an output that are not complete yet: `<final>.<plan id>.partial`, recorded before they are created."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
"""The ending that dsindex.storage.atomic_writer adds to a name while it writes the file."""


def partial_path(final: str, plan_id: str) -> str:
    """Return the path of a file until it is published."""
    return f"{final}.{plan_id}.partial"


def remove_partials(paths: Iterable[str]) -> None:
    """Remove recorded partial files, and the temporary files that crashes left of them, but no links.

    A file that cannot be removed is left: it is not an output, and a later run finds it recorded.
    """
    for path in paths:
        folder, name = os.path.split(path)
        found: list[str] = []
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            found = [
                entry.path
                for entry in entries
                if entry.name == name
                or (entry.name.startswith(name) and _TEMPORARY.fullmatch(entry.name.removeprefix(name)))
            ]
        for entry in found:
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.lstat(entry).st_mode):
                    os.unlink(entry)
