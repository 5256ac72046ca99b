"""Files of an output that are not whole yet: `<final>.<plan id>.partial`, recorded before they are made."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
"""What dsindex.storage.atomic_writer adds to a name while the file is written."""


def partial_path(final: str, plan_id: str) -> str:
    """Return the name of a file until it is published."""
    return f"{final}.{plan_id}.partial"


def remove_partials(paths: Iterable[str]) -> None:
    """Remove recorded partial files, and what crashes while one was written left under its name; links stay.

    What cannot be removed is left: it is no output, and a later run finds it recorded.
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
