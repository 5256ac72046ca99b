"""Compare index caches."""

from __future__ import annotations

from dataclasses import dataclass

from dsindex.comparing.caches import SplitComparison, compare_caches, is_cache
from dsindex.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """What was found."""

    paths: tuple[str, str]
    splits: tuple[SplitComparison, ...]

    @property
    def is_same(self) -> bool:
        """Whether all splits have the same indices."""
        return all(split.is_same for split in self.splits)


def are_caches(first: str, second: str) -> bool:
    """Tell whether two paths are index caches.

    Raises:
        InputError: If only one of them is.
    """
    found = is_cache(first), is_cache(second)
    if found[0] != found[1]:
        cache, other = (first, second) if found[0] else (second, first)
        msg = f"{other}: expected an index cache to compare with {cache}, got something else; give two of one kind"
        raise InputError(msg)
    return found[0]


def run_compare_caches(first: str, second: str) -> CacheReport:
    """Compare two folders of index caches, or two descriptions.

    Raises:
        InputError: If a folder has several caches of a split.
        FormatError: If a file is missing or damaged.
    """
    return CacheReport(paths=(first, second), splits=compare_caches(first, second))
