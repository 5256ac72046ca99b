"""`--dataset-path-as HERE=THERE`: the paths of this machine and those that the job types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Replacement = tuple[str, str]
"""The beginning of a path here, and in the job."""


def parse_replacements(words: Iterable[str]) -> list[Replacement]:
    """Return the pairs among the words of `--dataset-path-as`; others are whole paths.

    >>> parse_replacements(["data=/lustre/data", "/x"])
    [('data', '/lustre/data')]
    """
    return [(here, there) for here, equals, there in (word.partition("=") for word in words) if equals]


def job_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path of this machine as the job types it; the longest beginning counts.

    >>> job_path("data/web", [("data", "/lustre/data")])
    '/lustre/data/web'
    """
    for here, there in sorted(replacements, key=lambda pair: -len(pair[0])):
        if path.startswith(here):
            return there + path.removeprefix(here)
    return path


def local_path(path: str, replacements: Sequence[Replacement]) -> str:
    """Return a path that the job types as it is on this machine.

    >>> local_path("/lustre/data/web", [("data", "/lustre/data")])
    'data/web'
    """
    for here, there in sorted(replacements, key=lambda pair: -len(pair[1])):
        if path.startswith(there):
            return here + path.removeprefix(there)
    return path
