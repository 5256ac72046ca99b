"""The files of an output: their suffixes, and their names until they are published, `<final>.<plan id>.partial`."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PROVENANCE_SUFFIX = "provenance.parquet"
QUARANTINE_SUFFIX = "quarantine.jsonl.zst"
PUBLISHING_ORDER = ("bin", PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "idx")
PBIN_PUBLISHING_ORDER = (PROVENANCE_SUFFIX, QUARANTINE_SUFFIX, "pbin")

_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp$")
"""The ending that dsindex.store.storage.atomic_writer adds to a name while it writes the file."""


def partial_path(final: str, plan_id: str) -> str:
    """Return the path of a file until it is published."""
    return f"{final}.{plan_id}.partial"


def find_partials(paths: Iterable[str]) -> list[str]:
    """Return those partial files that exist, and the temporary files that crashes left of them; links are not files."""
    wanted: dict[str, set[str]] = {}
    for path in paths:
        folder, name = os.path.split(path)
        wanted.setdefault(folder, set()).add(name)
    found: list[str] = []
    for folder, names in wanted.items():
        with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
            found += [
                entry.path
                for entry in entries
                if _TEMPORARY.sub("", entry.name) in names and entry.is_file(follow_symlinks=False)
            ]
    return sorted(found)


def remove_partials(paths: Iterable[str]) -> None:
    """Remove partial files; one that cannot be removed stays, since it is not an output."""
    for path in find_partials(paths):
        with contextlib.suppress(OSError):
            os.unlink(path)
